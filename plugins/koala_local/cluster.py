# SPDX-License-Identifier: Apache-2.0
"""The jobs of a local cluster: what may be done to them, and how their processes start and end on its slots."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.model import OCCUPYING, WAITING, EndReason, LrmJobId, LrmJobState
from koala_local import processes
from koala_local.jobs import (
    END_OF,
    QUEUE,
    Ending,
    JobRecord,
    JobRequest,
    JobStore,
    Layout,
    Room,
    fits_ever,
    free_processors,
    next_starts,
    rooms,
)
from koala_local.processes import Supervisor

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence
    from pathlib import Path


MOST_JOBS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(JobRequest):
    """A submission to the daemon."""

    count: int
    script: str
    queue: str | None
    held: bool


class LocalCluster:
    """Jobs and nodes of the local cluster; each change is stored before it takes effect."""

    def __init__(self, layout: Layout, store: JobStore, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        """``store``: has the jobs of earlier daemons."""
        self.layout = layout
        self._store = store
        self._loop = loop
        self._scripts = directory / "scripts"
        self._scripts.mkdir(mode=0o700, exist_ok=True)
        self._processes = Supervisor(directory, loop, ended=self._on_end, overdue=self._on_overdue)
        self._jobs: dict[LrmJobId, JobRecord] = {job.id: job for job in store.load()}
        self._seen_ended: dict[LrmJobId, float] = {}
        """Monotonic time since which each job is known to have ended."""
        self._recover()

    # -- what is asked ----------------------------------------------------------------------------------------

    def configure(self, layout: Layout) -> None:
        """Set another layout; jobs on removed nodes run to their end."""
        self.layout = layout
        self._start_waiting()

    @property
    def busy(self) -> bool:
        """True while there is any job that has not ended."""
        return any(job.state is not LrmJobState.ENDED for job in self._jobs.values())

    def rooms(self) -> dict[str, Room]:
        """Return the free resources of each node."""
        return rooms(self.layout.nodes, self._jobs.values())

    def jobs(self, prefix: str) -> list[JobRecord]:
        """Return the jobs whose name begins with ``prefix``; first forget those that ended long ago."""
        self._forget_old()
        return [job for job in self._jobs.values() if job.name.startswith(prefix)]

    def submit(self, request: Request) -> list[LrmJobId]:
        """Add ``count`` jobs and return their ids. Raises LrmRejectedError."""
        self._check(request)
        number = self._store.next_number()
        script = self._script(number)
        descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(request.script.encode("utf-8", "surrogateescape"))
        new = [_record(request, number=number, index=index) for index in range(1, request.count + 1)]
        self._put(new)
        self._start_waiting()
        return [job.id for job in new]

    def cancel(self, ids: Iterable[str]) -> None:
        """End jobs, whatever their state; ids that are unknown or ended are passed over."""
        wanted = set(ids)
        jobs = [job for job in self._jobs.values() if job.id in wanted]
        waiting = [job for job in jobs if job.state in WAITING]
        now = time.time()
        self._put(replace(job, state=LrmJobState.ENDED, ended_at=now, end=EndReason.CANCELLED) for job in waiting)
        self._remove_scripts(waiting)
        self._end([job for job in jobs if job.state in OCCUPYING], Ending.CANCEL)
        self._start_waiting()

    def hold(self, ids: Sequence[str]) -> None:
        """Put queued jobs in hold."""
        jobs = self._find(ids, WAITING, "hold")
        self._put(replace(job, state=LrmJobState.HELD) for job in jobs)

    def release(self, ids: Sequence[str]) -> None:
        """Let held jobs start."""
        jobs = self._find(ids, WAITING, "release")
        self._put(replace(job, state=LrmJobState.QUEUED) for job in jobs)
        self._start_waiting()

    def start_on(self, id_: str, nodes: Sequence[str]) -> None:
        """Let a held job start on one node, named once or for each of its processors, as soon as that has room."""
        (job,) = self._find([id_], WAITING, "start")
        unknown = set(nodes) - {node.name for node in self.layout.nodes}
        if unknown:
            raise LrmNotFoundError(f"there is no node {', '.join(sorted(unknown))}")
        if len(set(nodes)) != 1 or len(nodes) not in {1, job.threads}:
            asked = "one processor" if job.threads == 1 else f"{job.threads} processors of one node"
            raise LrmRejectedError(f"job {id_} needs {asked} and cannot start on {', '.join(nodes)}")
        self._put([replace(job, state=LrmJobState.QUEUED, node=nodes[0])])
        self._start_waiting()

    def suspend(self, ids: Sequence[str]) -> None:
        """Stop all processes of running jobs; they keep their processors and their walltime runs on."""
        jobs = self._find(ids, {LrmJobState.RUNNING, LrmJobState.SUSPENDED}, "suspend")
        self._put(replace(job, state=LrmJobState.SUSPENDED) for job in jobs)
        self._processes.signal_all(jobs, signal.SIGSTOP)

    def resume(self, ids: Sequence[str]) -> None:
        """Let suspended jobs go on."""
        jobs = self._find(ids, {LrmJobState.RUNNING, LrmJobState.SUSPENDED}, "resume")
        self._put(replace(job, state=LrmJobState.RUNNING) for job in jobs)
        self._processes.signal_all(jobs, signal.SIGCONT)

    def requeue(self, ids: Sequence[str]) -> None:
        """End running jobs and queue them again under the same ids."""
        self._end(self._find(ids, {LrmJobState.RUNNING, LrmJobState.SUSPENDED}, "requeue"), Ending.REQUEUE)

    def signal(self, ids: Sequence[str], number: int) -> None:
        """Send a signal to the process groups of running jobs."""
        if number not in signal.valid_signals():
            raise LrmRejectedError(f"there is no signal {number}")
        for job in self._find(ids, {LrmJobState.RUNNING, LrmJobState.SUSPENDED}, "signal"):
            self._processes.signal_script(job, number)

    def modify(self, id_: str, walltime: int) -> None:
        """Change the walltime of a job that has not ended."""
        (job,) = self._find([id_], WAITING | {LrmJobState.RUNNING, LrmJobState.SUSPENDED}, "modify")
        self._check_walltime(walltime)
        job = replace(job, walltime=walltime)
        self._put([job])
        if job.state not in WAITING:
            self._processes.set_walltime(job)

    def close(self) -> None:
        """End without touching the jobs, which the next daemon takes over."""
        self._processes.close()

    # -- what happens -----------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        for job in next_starts(self.layout.nodes, self._jobs.values()):
            self._start(replace(job, starts=job.starts + 1, bound_to=self._processors_of(job)))

    def _processors_of(self, job: JobRecord) -> tuple[int, ...]:
        """Return the processors of this host to which a job is bound; none where they are not enough for all jobs."""
        here = os.sched_getaffinity(0)
        if not self.layout.bind or job.processors == 1 or self.layout.processors > len(here):
            return ()
        return tuple(free_processors(self._jobs.values(), here)[: job.processors])

    def _start(self, job: JobRecord) -> None:
        try:
            gpus = any(node.gpus for node in self.layout.nodes)
            gated = self._processes.start(job, script=self._script(job.number), gpus=gpus)
        except OSError as error:
            reason = f"cannot start: {error}"
            self._finish(replace(job, reason=reason), EndReason.LAUNCH_FAILED)
            # Not at once, or a queue full of such jobs would be worked off in one deep recursion.
            self._loop.call_soon(self._start_waiting)
            return
        running = replace(
            job,
            state=LrmJobState.RUNNING,
            pid=gated.pid,
            birth=gated.birth,
            started_at=time.time(),
            started_since_boot=processes.since_boot(),
            ended_at=None,
        )
        self._put([running])
        self._processes.follow(running)
        gated.open()

    def _end(self, jobs: Iterable[JobRecord], ending: Ending) -> None:
        fresh = [job for job in jobs if job.state is not LrmJobState.ENDING]
        changed = [replace(job, state=LrmJobState.ENDING, ending=ending) for job in fresh]
        self._put(changed)
        for job in changed:
            self._processes.end(job, kill_wait=self.layout.kill_wait)
        # A job that is being requeued can still be cancelled.
        requeued = [job for job in jobs if job.ending is Ending.REQUEUE] if ending is Ending.CANCEL else []
        self._put(replace(job, ending=ending) for job in requeued)

    def _on_overdue(self, id_: LrmJobId) -> None:
        self._end([self._jobs[id_]], Ending.WALLTIME)

    def _on_end(self, id_: LrmJobId, status: int | None) -> None:
        job = self._jobs[id_]
        if job.ending is Ending.REQUEUE:
            self._put([_queued_again(job)])
        elif status is None:
            self._finish(job, END_OF.get(job.ending, EndReason.LOST) if job.ending else EndReason.LOST)
        else:
            killed = status < 0
            natural = EndReason.SIGNALLED if killed else EndReason.EXITED
            told = replace(job, exit_code=None if killed else status, signal=-status if killed else None)
            self._finish(told, END_OF[job.ending] if job.ending else natural)
        self._start_waiting()

    def _finish(self, job: JobRecord, end: EndReason) -> None:
        reason = job.reason or ("its process ended while nobody watched" if end is EndReason.LOST else "")
        self._put([replace(job, state=LrmJobState.ENDED, ended_at=time.time(), end=end, reason=reason)])
        self._remove_scripts([job])

    def _recover(self) -> None:
        for job in [job for job in self._jobs.values() if job.state in OCCUPYING]:
            alive = job.pid is not None and processes.is_alive(job.pid, job.birth)
            if not alive or not self._processes.follow(job):
                self._on_end(job.id, None)
            elif job.state is LrmJobState.ENDING:
                self._processes.end(job, kill_wait=self.layout.kill_wait)
        self._forget_old()
        self._remove_scripts(self._jobs.values())
        self._start_waiting()

    # -- parts ------------------------------------------------------------------------------------------------

    def _put(self, jobs: Iterable[JobRecord]) -> None:
        jobs = list(jobs)
        if jobs:
            self._store.save(jobs)
            self._jobs.update((job.id, job) for job in jobs)

    def _find(self, ids: Sequence[str], allowed: Iterable[LrmJobState], verb: str) -> list[JobRecord]:
        known = {str(job.id): job for job in self._jobs.values() if job.state is not LrmJobState.ENDED}
        unknown = [id_ for id_ in ids if id_ not in known]
        if unknown:
            raise LrmNotFoundError(f"there is no job {', '.join(unknown)}, or it has ended")
        jobs = [known[id_] for id_ in dict.fromkeys(ids)]
        wrong = [f"{job.id} is {job.state}" for job in jobs if job.state not in allowed]
        if wrong:
            raise LrmRejectedError(f"cannot {verb}: {', '.join(wrong)}")
        return jobs

    def _check(self, request: Request) -> None:
        if request.queue not in {None, QUEUE}:
            hint = f"the queue of a local cluster is called {QUEUE!r}; leave it out"
            raise LrmRejectedError(f"there is no queue {request.queue!r}", hint=hint)
        if not 1 <= request.count <= MOST_JOBS:
            raise LrmRejectedError(f"a submission has 1 to {MOST_JOBS} jobs, not {request.count}")
        if not request.name or "/" in request.name or "\0" in request.name or request.name.startswith("."):
            raise LrmRejectedError(f"{request.name!r} cannot be a job name: it becomes part of file names")
        self._check_walltime(request.walltime)
        self._check_room(request)

    def _check_room(self, request: Request) -> None:
        """Raise LrmRejectedError for jobs that could never start."""
        if request.threads < 1 or request.gpus < 0 or request.memory_mib < 0:
            raise LrmRejectedError("a job has at least one processor, and no less than no memory and no GPUs")
        if (request.threads, request.memory_mib, request.gpus) == (1, 0, 0):
            return
        if not fits_ever(self.layout.nodes, _record(request, number=0, index=1)):
            asked = f"{request.threads} processors, {request.memory_mib} MiB and {request.gpus} GPUs"
            raise LrmRejectedError(f"no node of this cluster ever has {asked} for a job")

    def _check_walltime(self, walltime: int) -> None:
        limit = self.layout.walltime_limit
        if walltime < 1 or (limit is not None and walltime > limit):
            allowed = "at least 1 s" if limit is None else f"1 to {limit} s"
            raise LrmRejectedError(f"a walltime of {walltime} s is not allowed", hint=f"allowed: {allowed}")

    def _script(self, number: int) -> Path:
        return self._scripts / f"{number}.sh"

    def _remove_scripts(self, jobs: Iterable[JobRecord]) -> None:
        needed = {job.number for job in self._jobs.values() if job.state is not LrmJobState.ENDED}
        for number in {job.number for job in jobs} - needed:
            self._script(number).unlink(missing_ok=True)

    def _forget_old(self) -> None:
        now = processes.since_boot()
        limit = now - self.layout.remember_seconds
        ended = (job.id for job in self._jobs.values() if job.ended_at is not None)
        self._seen_ended = {id_: self._seen_ended.get(id_, now) for id_ in ended}
        old = [id_ for id_, since in self._seen_ended.items() if since < limit]
        if old:
            self._store.forget(old)
            for id_ in old:
                del self._jobs[id_], self._seen_ended[id_]


def _record(request: Request, *, number: int, index: int) -> JobRecord:
    asked = {one.name: getattr(request, one.name) for one in fields(JobRequest)}
    state = LrmJobState.HELD if request.held else LrmJobState.QUEUED
    return JobRecord(**asked, number=number, index=index, submitted_at=time.time(), state=state)


def _queued_again(job: JobRecord) -> JobRecord:
    return replace(
        job,
        state=LrmJobState.QUEUED,
        node="",
        pid=None,
        birth="",
        started_at=None,
        started_since_boot=None,
        ending=None,
        reason="requeued",
        taken=0,
        bound_to=(),
        devices=(),
    )
