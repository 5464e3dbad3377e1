# SPDX-License-Identifier: Apache-2.0
"""The daemon of one local cluster: its jobs, its side of the socket, and its life as a process.

It does for its jobs what slurmctld and slurmd do together. ``python -m koala_local.daemon DIRECTORY`` returns when the
daemon answers; the daemon itself goes on in a session of its own, until it has had neither jobs nor requests for long
enough. Everything that it knows is in the directory, so it may be killed and started again at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter import __version__
from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, ProtocolError
from koala_adapter.host.sockets import peer_user
from koala_adapter.model import OCCUPYING, WAITING, EndReason, LrmJobState
from koala_local import processes
from koala_local.jobs import (
    END_OF,
    LAYOUT_NAME,
    LOG_NAME,
    LONGEST_MESSAGE,
    QUEUE,
    SOCKET_NAME,
    UNHEARD,
    Ending,
    Fields,
    JobRecord,
    JobStore,
    Layout,
    Room,
    decode,
    encode,
    failure,
    fits_ever,
    free_processors,
    next_starts,
    rooms,
    short_path,
)
from koala_local.processes import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.model import LrmJobId
    from koala_local.jobs import Json


# -- Jobs of the cluster -------------------------------------------------------------------------------------
# What may be done to them, and how their processes start and end.

MOST_JOBS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A submission to the daemon."""

    name: str
    user: str
    count: int
    script: str
    walltime: int
    output_directory: str
    queue: str | None
    held: bool
    threads: int = 1
    memory_mib: int = 0
    gpus: int = 0
    exclusive: bool = False


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
            gated = self._processes.start(job, script=self._script(job.number), gpus=self._has_gpus)
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

    @property
    def _has_gpus(self) -> bool:
        return any(node.gpus for node in self.layout.nodes)

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
    return JobRecord(
        number=number,
        index=index,
        name=request.name,
        user=request.user,
        walltime=request.walltime,
        output_directory=request.output_directory,
        submitted_at=time.time(),
        state=LrmJobState.HELD if request.held else LrmJobState.QUEUED,
        threads=request.threads,
        memory_mib=request.memory_mib,
        gpus=request.gpus,
        exclusive=request.exclusive,
    )


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


# -- Daemon's side of the socket -----------------------------------------------------------------------------
# One request per connection, from processes of the same user only.

READ_SECONDS = 30.0
"""Seconds that a client may take for its request or for reading the answer."""


class Server:
    """Answers requests to a cluster."""

    def __init__(self, cluster: LocalCluster, *, asked: Callable[[], None]) -> None:
        """``asked`` is called for each request, so that the daemon knows that it is still needed."""
        self._cluster = cluster
        self._asked = asked

    async def start(self, listening: socket.socket) -> asyncio.Server:
        """Serve on a bound socket."""
        return await asyncio.start_unix_server(self._serve, sock=listening, backlog=128)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._asked()
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    if peer_user(writer.get_extra_info("socket")) not in {0, os.geteuid()}:
                        return
                    raw = await _read_all(reader)
                    writer.write(encode(self.answer(raw)))
                    await writer.drain()
        finally:
            writer.close()

    def answer(self, raw: bytes) -> dict[str, Json]:
        """Do what one request asks and return the answer."""
        try:
            fields = decode(raw)
            operation = OPERATIONS.get(fields.text("operation"))
            if operation is None:
                raise LrmRejectedError(f"this daemon ({__version__}) cannot {fields.text('operation')!r}")
            return operation(self._cluster, fields)
        except ProtocolError as error:
            return failure(LrmRejectedError(f"request not understood: {error.message}"))
        except LrmError as error:
            return failure(error)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    raw = bytearray()
    while piece := await reader.read(1 << 20):
        raw += piece
        if len(raw) > LONGEST_MESSAGE:
            raise TimeoutError
    return bytes(raw)


def _configure(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.configure(Layout.from_json(fields.object("layout")))
    return {"version": __version__, "pid": os.getpid()}


def _version(_cluster: LocalCluster, _fields: Fields) -> dict[str, Json]:
    return {"version": __version__, "pid": os.getpid()}


def _nodes(cluster: LocalCluster, _fields: Fields) -> dict[str, Json]:
    return {
        "nodes": [
            {
                "name": name,
                "processors": room.node.processors,
                "used": room.node.processors - room.processors,
                "memory_mib": room.node.memory_mib,
                "memory_used_mib": (room.node.memory_mib or 0) - room.memory_mib,
                "gpus": room.node.gpus,
                "gpus_used": room.node.gpus - len(room.devices),
            }
            for name, room in cluster.rooms().items()
        ]
    }


def _jobs(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    return {"jobs": [job.to_json() for job in cluster.jobs(fields.text("prefix"))]}


def _submit(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    request = Request(
        name=fields.text("name"),
        user=fields.text("user"),
        count=fields.integer("count"),
        script=fields.text("script"),
        walltime=fields.integer("walltime"),
        output_directory=fields.text("output_directory"),
        queue=fields.optional_text("queue"),
        held=fields.flag("held"),
        threads=fields.optional_integer("threads") or 1,
        memory_mib=fields.optional_integer("memory_mib") or 0,
        gpus=fields.optional_integer("gpus") or 0,
        exclusive="exclusive" in fields and fields.flag("exclusive"),
    )
    return {"ids": [str(id_) for id_ in cluster.submit(request)]}


Operation: TypeAlias = "Callable[[LocalCluster, Fields], dict[str, Json]]"


def _change(change: Callable[..., None], *arguments: Callable[[Fields], object]) -> Operation:
    """Return the operation that calls a method of the cluster with arguments parsed from the request."""

    def operation(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
        change(cluster, *(read(fields) for read in arguments))
        return {}

    return operation


_ID, _IDS, _NODES = methodcaller("text", "id"), methodcaller("texts", "ids"), methodcaller("texts", "nodes")

OPERATIONS: Mapping[str, Operation] = {
    "configure": _configure,
    "version": _version,
    "nodes": _nodes,
    "jobs": _jobs,
    "submit": _submit,
    "cancel": _change(LocalCluster.cancel, _IDS),
    "hold": _change(LocalCluster.hold, _IDS),
    "release": _change(LocalCluster.release, _IDS),
    "start_on": _change(LocalCluster.start_on, _ID, _NODES),
    "suspend": _change(LocalCluster.suspend, _IDS),
    "resume": _change(LocalCluster.resume, _IDS),
    "requeue": _change(LocalCluster.requeue, _IDS),
    "signal": _change(LocalCluster.signal, _IDS, methodcaller("integer", "signal")),
    "modify": _change(LocalCluster.modify, _ID, methodcaller("integer", "walltime")),
}


# -- The process ---------------------------------------------------------------------------------------------

PID_NAME = "pid"
LARGEST_LOG = 1 << 20
LONGEST_WAIT = 45
"""Seconds that a new daemon waits for an old one to end."""
FIRST_REQUEST = 60.0
"""Seconds that a new daemon waits for its first request, however short its idle time is."""

log = logging.getLogger("koala_local")


class IdleClock:
    """Ends the daemon when it had neither jobs nor requests for long enough."""

    def __init__(self, cluster: LocalCluster, stop: asyncio.Event) -> None:
        """The clock runs from now."""
        self._cluster = cluster
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._last = time.monotonic()
        self._asked = False
        self._look()

    def asked(self) -> None:
        """Note a request; the idle time may be another one since the last."""
        self._last = time.monotonic()
        self._asked = True
        self._next.cancel()
        self._look()

    def _look(self) -> None:
        if self._cluster.busy:
            self._last = time.monotonic()
        idle = time.monotonic() - self._last
        limit = self._cluster.layout.idle_seconds
        if not self._asked:
            limit = max(limit, FIRST_REQUEST)
        if idle >= limit:
            log.info("no jobs and no requests for %d s: the end", limit)
            self._stop.set()
        else:
            self._next = self._loop.call_later(limit - idle, self._look)


async def serve(directory: Path, ready: int) -> None:
    """Run the daemon; write to the descriptor ``ready`` when it answers."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    layout = Layout.from_json(decode((directory / LAYOUT_NAME).read_bytes()))
    loop = asyncio.get_running_loop()
    store = JobStore(directory)
    cluster = LocalCluster(layout, store, directory, loop)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = IdleClock(cluster, stop)
    server = await Server(cluster, asked=clock.asked).start(_listen(directory, descriptor))
    (directory / PID_NAME).write_text(f"{os.getpid()}\n", encoding="ascii")
    log.info("daemon %d serves %s", os.getpid(), directory)
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, b"ready")
    os.close(ready)
    await stop.wait()
    # First the name: whoever comes now starts a new daemon, which waits for our lock.
    for name in (SOCKET_NAME, PID_NAME):
        (directory / name).unlink(missing_ok=True)
    server.close()
    await asyncio.sleep(0)
    cluster.close()
    store.close()


def _listen(directory: Path, descriptor: int) -> socket.socket:
    (directory / SOCKET_NAME).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(short_path(descriptor))
    (directory / SOCKET_NAME).chmod(0o600)
    return listening


def _detach(directory: Path, starting: int) -> int | None:
    """Fork; return in the child the descriptor to report readiness on, in the parent None when it has done so.

    ``starting`` is the lock of those who start a daemon: it stays with the parent. Raises SystemExit in the parent when
    the child ended before it was ready.
    """
    ready_read, ready_write = os.pipe()
    if os.fork() != 0:
        os.close(ready_write)
        if not os.read(ready_read, 5):
            raise SystemExit(f"the daemon did not start; see {directory / LOG_NAME}")
        return None
    os.close(ready_read)
    os.close(starting)
    os.setsid()
    return ready_write


def _redirect(directory: Path) -> None:
    """Connect the standard streams to nothing and to the log."""
    path = directory / LOG_NAME
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    if path.exists() and path.stat().st_size > LARGEST_LOG:
        flags |= os.O_TRUNC
    output = os.open(path, flags, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def _take_lock(directory: Path, name: str) -> int:
    """Wait for a lock of the directory, which lasts as long as the descriptor or the process.

    A process that waits longer than LONGEST_WAIT is ended by SIGALRM, or it could take over much later, when its
    client has gone.
    """
    lock = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    signal.alarm(LONGEST_WAIT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(0)
    return lock


def _somebody_listens(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(short_path(descriptor))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    finally:
        os.close(descriptor)
    return True


def ask(directory: Path) -> int:
    """Pass a request from standard input to the daemon of a directory, and its answer to standard output.

    Return 3 if no daemon has heard it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(short_path(descriptor))
        except (FileNotFoundError, ConnectionRefusedError):
            return UNHEARD
        if peer_user(connection) not in {0, os.geteuid()}:
            sys.stderr.write(f"the daemon's socket in {directory} belongs to another user\n")
            return 1
        connection.sendall(sys.stdin.buffer.read())
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(1 << 20):
            sys.stdout.buffer.write(piece)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Start the daemon of a directory, unless one is there already; with ``ask`` behind it, ask that one."""
    directory = Path(arguments[0])
    if arguments[1:] == ["ask"]:
        return ask(directory)
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        sys.stderr.write(f"{directory} must belong to you and be closed to others (chmod 700)\n")
        return 1
    os.umask(0o077)
    starting = _take_lock(directory, "start.lock")
    if _somebody_listens(directory):
        return 0
    ready = _detach(directory, starting)
    if ready is None:
        return 0
    _redirect(directory)
    _take_lock(directory, "lock")
    try:
        asyncio.run(serve(directory, ready))
    except Exception:
        log.exception("the daemon fails")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
