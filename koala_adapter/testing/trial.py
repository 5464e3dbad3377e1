# SPDX-License-Identifier: Apache-2.0
"""Tools of the conformance tests: recorded commands, a search for leaked secrets, and the LRM under test."""

from __future__ import annotations

import os
import secrets
import shlex
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import pytest

from koala_adapter.errors import LrmError
from koala_adapter.lrm import ClusterContext, PinnedStart, Submission
from koala_adapter.lrm.commands import DEFAULT_TIMEOUT, THIS_HOST, CommandResult, CommandRunner
from koala_adapter.model import BatchKey, ClusterName, LrmJobId, LrmJobState
from koala_adapter.slots import PLAIN, Slot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from pydantic import BaseModel

    from koala_adapter.lrm import Lrm, PluginDefinition
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.model import LrmJob


# -- A command runner that records what it ran ---------------------------------------------------------------
# So that a test can compare it with what was promised.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCommand:
    """One command as it was run."""

    argv: tuple[str, ...]
    stdin: bytes
    environment: tuple[tuple[str, str], ...]
    """What the caller added for this command."""


class RecordingRunner(CommandRunner):
    """Runs commands like its parent and keeps a list of them."""

    def __init__(self, *, host: LrmHost = THIS_HOST) -> None:
        """The bound is generous, because a test asks far more often than the service does."""
        super().__init__(per_minute=60_000, host=host)
        self.commands: list[RecordedCommand] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        urgent: bool = False,
    ) -> CommandResult:
        """Record the command, then run it; see :meth:`koala_adapter.lrm.commands.CommandRunner.run`."""
        added = tuple((environment or {}).items())
        self.commands.append(RecordedCommand(argv=tuple(argv), stdin=stdin, environment=added))
        return await super().run(argv, stdin=stdin, environment=environment, timeout=timeout, urgent=urgent)


# -- Looking for a secret where other users could see it -----------------------------------------------------
# In the arguments and environments of processes.


class SecretWatcher:
    """Scans ``/proc/*/cmdline`` and ``/proc/*/environ`` without a pause while the ``with`` block runs."""

    def __init__(self, secret: str) -> None:
        """``secret`` must be long and random: it is looked for literally."""
        self.leaks: set[str] = set()
        """Where the secret was seen: ``PID cmdline`` or ``PID environ``, with the program's name."""
        self._secret = secret.encode()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="secret-watcher", daemon=True)

    def __enter__(self) -> Self:
        """Start watching for secrets."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look a last time and stop."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            last = self._ended.is_set()
            self._scan()
            if last:
                return

    def _scan(self) -> None:
        with os.scandir("/proc") as entries:
            pids = [entry.name for entry in entries if entry.name.isdigit() and int(entry.name) != os.getpid()]
        for pid in pids:
            for part in ("cmdline", "environ"):
                try:
                    seen = Path("/proc", pid, part).read_bytes()
                    name = Path("/proc", pid, "comm").read_text(errors="replace").strip()
                except OSError:
                    continue
                if self._secret in seen:
                    self.leaks.add(f"{pid} ({name}) {part}")


# -- The LRM under test, and submissions that report through files -------------------------------------------

T = TypeVar("T")

LONGEST_JOB = 180
"""Seconds after which a job of the kit ends in any case, so that a failed test leaves nothing for long."""
BEATS_PER_SECOND = 10
"""How often a waiting job of the kit shows that it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LrmUnderTest:
    """The LRM that the conformance kit tests: started, with what the kit must know of its cluster."""

    definition: PluginDefinition
    settings: BaseModel
    context: ClusterContext
    """As given to the factory; see :func:`new_context`."""
    lrm: Lrm
    """Started; the fixture that made it closes it."""
    scratch: Path
    """Existing directory that this process and the jobs can both write."""
    processors: int
    """Processors that are idle now, and that jobs of ours can all get at once: at least 2."""
    unknown_id: LrmJobId
    """A well-formed id of a job that never was."""
    unknown_queue: str = "koala-no-such-queue"
    real: bool = True
    """False for a fake of the LRM."""
    runs_jobs: bool = True
    """False for a fake that never runs the scripts; tests that need running jobs are skipped then."""
    foreign_job: Callable[[int], AbstractAsyncContextManager[object]] | None = None
    """Makes a context in which a job that is not ours (submitted by other means) runs on that many
    processors: it runs when the context is entered and is gone after it is left. None: no such tests."""
    namesake_job: Callable[[BatchKey, int], AbstractAsyncContextManager[object]] | None = None
    """Makes a context in which an array of another user, with that name and so many elements, is in the LRM and does
    not end; it need not run, and needs no processor. None: no such tests."""
    stop_lrm: Callable[[], Awaitable[None]] | None = None
    """Makes the LRM unavailable; its jobs go on. None: the tests of unavailability are skipped."""
    start_lrm: Callable[[], Awaitable[None]] | None = None
    """Makes it available again, also when it is, and returns when it answers."""
    patience: float = 30.0
    """Seconds within which the LRM does and shows what it was asked for, such as starting a job."""
    unavailable_within: float = 60.0
    """Seconds within which any method of an unreachable LRM must have raised LrmUnavailableError."""
    slots: Mapping[str, Slot] = field(default_factory=dict)
    """A slot that the LRM under test can have, for each key of a slot of which the kit's own sample is none here."""
    walltime_precision: float | None = None
    """Seconds by which a job may outlive a walltime of 1 second, beside ``patience``; None: the LRM cannot end a job so
    soon, and only the request of a walltime is tested."""
    poll_interval: float = 0.2
    """Seconds between two looks at the LRM while waiting."""
    submitter: Lrm | None = None
    """Started; puts the kit's jobs into the same LRM, as its users do, where the plugin itself cannot ``submit``."""
    waiting: LrmJobState = LrmJobState.QUEUED
    """State in which a job is shown that is not held and for which there is no room: HELD where the plugin sees
    only an outside scheduler's view."""


def new_context(directory: Path, *, cluster: str = "conformance", host: LrmHost = THIS_HOST) -> ClusterContext:
    """Return a context for the cluster under test, with a recording runner and a private state directory.

    ``host``: where its batch system is; another one than this is connected.
    """
    state = directory / "state"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ClusterContext(
        cluster=ClusterName(cluster), commands=RecordingRunner(host=host), state_directory=state, user=host.user
    )


async def eventually(
    look: Callable[[], Awaitable[T]],
    accept: Callable[[T], bool],
    *,
    what: str,
    seconds: float,
    interval: float = 0.2,
) -> T:
    """Look until what is seen is acceptable; after ``seconds`` fail the test with what was seen.

    Between two looks are ``interval`` seconds, more where looks take long: they must not hinder what is waited for.
    """
    deadline = anyio.current_time() + seconds
    while True:
        began = anyio.current_time()
        seen = await look()
        if accept(seen):
            return seen
        now = anyio.current_time()
        if now > deadline:
            pytest.fail(f"{what}: not within {seconds:g} s; last seen: {seen}")
        await anyio.sleep(max(interval, now - began))


async def begin_start(lrm: Lrm, job: LrmJobId, nodes: Sequence[str]) -> PinnedStart:
    """Have a held job that was never tied started on nodes, one entry for each processor; return the start.

    As the core does: first the plugin is asked what undoing the start will need.
    """
    start = PinnedStart(job=job, nodes=tuple(nodes), original=await lrm.original_request(job))
    await lrm.start_on(start)
    return start


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A submission of the kit: its scripts write into ``directory`` and wait there for the file ``go``."""

    submission: Submission
    directory: Path
    ids: tuple[LrmJobId, ...] = ()

    @property
    def key(self) -> BatchKey:
        """Name of the submission in the LRM."""
        return self.submission.key

    def go(self) -> None:
        """Let all waiting placeholders of this submission go on to their end."""
        (self.directory / "go").touch()

    def report(self, index: int) -> list[str] | None:
        """Return the lines [index, job id, process id] that a placeholder wrote; None before it started."""
        path = self.directory / f"report.{index}"
        return path.read_text().splitlines() if path.exists() else None

    def reports(self) -> dict[str, list[str]]:
        """Return all reports by the suffix of their file, which is the index as the placeholder saw it."""
        return {path.name.partition(".")[2]: path.read_text().splitlines() for path in self.directory.glob("report.*")}

    def starts(self, index: int) -> int:
        """How often the placeholder has begun."""
        path = self.directory / f"starts.{index}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def beats(self) -> int:
        """How often all waiting placeholders together have shown that they live (ten times a second each)."""
        return sum(path.stat().st_size for path in self.directory.glob("beat.*"))


class Trial:
    """One test's use of the LRM under test: fresh names, waiting with a deadline, cleaning up."""

    def __init__(self, under_test: LrmUnderTest) -> None:
        """Create a trial without submissions."""
        self.under_test = under_test
        self.lrm = under_test.lrm
        self.submitter = under_test.submitter or under_test.lrm
        self.waiting = under_test.waiting
        self._batches: list[Batch] = []
        self._prefix = f"kk{secrets.token_hex(3)}"

    # -- what the LRM can do ---------------------------------------------------------------------------------

    def need(self, capability: str) -> None:
        """Skip the test when the LRM does not state this capability (that it refuses then is tested too)."""
        if not getattr(self.lrm.capabilities, capability):
            pytest.skip(f"{type(self.lrm).__name__} does not state the capability {capability!r}")

    def requests(self) -> int:
        """Requests to the LRM counted so far."""
        return self.under_test.context.commands.window.total

    # -- submitting ------------------------------------------------------------------------------------------

    def prepare(
        self,
        *,
        count: int = 1,
        body: str = "",
        wait: bool = True,
        exit_code: int = 0,
        walltime: int = 600,
        queue: str | None = None,
        held: bool = False,
        slot: Slot = PLAIN,
    ) -> Batch:
        """Describe a submission without sending it.

        Its script reports, runs ``body`` (shell; the variables ``d`` and ``index`` are set), waits for the
        file ``go`` if ``wait``, and exits with ``exit_code``.
        """
        name = f"{self._prefix}n{len(self._batches)}"
        directory = self.under_test.scratch / name
        (directory / "output").mkdir(parents=True)
        submission = Submission(
            key=BatchKey(name),
            count=count,
            script=self._script(directory, body=body, wait=wait, exit_code=exit_code),
            walltime=walltime,
            queue=queue,
            output_directory=str(directory / "output"),
            held=held,
            slot=slot,
        )
        batch = Batch(submission=submission, directory=directory)
        self._batches.append(batch)
        return batch

    async def send(self, batch: Batch) -> Batch:
        """Submit a prepared batch and return it with its ids."""
        ids = await self.submitter.submit(batch.submission)
        sent = Batch(submission=batch.submission, directory=batch.directory, ids=tuple(ids))
        self._batches[self._batches.index(batch)] = sent
        return sent

    async def submit(
        self,
        *,
        count: int = 1,
        body: str = "",
        wait: bool = True,
        exit_code: int = 0,
        walltime: int = 600,
        held: bool = False,
        slot: Slot = PLAIN,
    ) -> Batch:
        """Render a submission and submit it."""
        batch = self.prepare(
            count=count, body=body, wait=wait, exit_code=exit_code, walltime=walltime, held=held, slot=slot
        )
        return await self.send(batch)

    def _script(self, directory: Path, *, body: str, wait: bool, exit_code: int) -> str:
        index, job = self.submitter.array_index_variable, self.submitter.job_id_variable
        waiting = (
            f'n=0\nwhile [ ! -e "$d/go" ] && [ $n -lt {LONGEST_JOB * BEATS_PER_SECOND} ]; do\n'
            '  printf . >> "$d/beat.$index"; sleep 0.1; n=$((n+1))\ndone\n'
        )
        return (
            "#!/bin/sh\n"
            f"d={shlex.quote(str(directory))}\n"
            f'index="${{{index}-}}"\n'
            'echo started >> "$d/starts.$index"\n'
            f'printf \'%s\\n\' "$index" "${{{job}-}}" "$$" > "$d/.report.$index"\n'
            'mv "$d/.report.$index" "$d/report.$index"\n'
            f"{body}\n{waiting if wait else ''}exit {exit_code}\n"
        )

    async def start_on(self, job: LrmJobId, *nodes: str) -> PinnedStart:
        """Have a held job started on nodes; see `begin_start`."""
        return await begin_start(self.lrm, job, nodes)

    async def run_another(self) -> None:
        """Run another job to its end: a job that is still pending after it is not pending for lack of processors."""
        batch = await self.submit(wait=False)
        await self.wait_reports(batch, 1)
        await self.wait_ended(batch)

    # -- watching --------------------------------------------------------------------------------------------

    async def jobs(self, batch: Batch) -> dict[LrmJobId, LrmJob]:
        """Return the jobs of a batch that the LRM lists, by id."""
        if not self.lrm.capabilities.find_by_name:
            return {job.id: job for job in await self.lrm.jobs() if job.id in batch.ids}
        listed = await self.lrm.jobs(name_prefix=batch.key)
        return {job.id: job for job in listed if job.name == batch.key}

    async def states(self, batch: Batch) -> list[LrmJobState]:
        """Return the states of a batch in the order of its indices: ENDED also for what is not listed."""
        jobs = await self.jobs(batch)
        return [jobs[id_].state if id_ in jobs else LrmJobState.ENDED for id_ in batch.ids]

    async def wait_states(
        self, batch: Batch, *wanted: LrmJobState, what: str = "", seconds: float | None = None
    ) -> None:
        """Wait until the states of a batch, in any order, are these."""
        await self.until(
            lambda: self.states(batch),
            lambda states: sorted(states) == sorted(wanted),
            what=what or f"states {', '.join(wanted)} of {batch.key}",
            seconds=seconds,
        )

    async def wait_running(self, batch: Batch) -> None:
        """Wait until all jobs of a batch are shown as running and have begun to wait."""
        await self.wait_states(batch, *[LrmJobState.RUNNING] * len(batch.ids))
        await self.wait_reports(batch, len(batch.ids))

    async def wait_ended(self, batch: Batch, *, seconds: float | None = None) -> None:
        """Wait until all jobs of a batch have ended or left the listing."""
        ended = [LrmJobState.ENDED] * len(batch.ids)
        await self.wait_states(batch, *ended, what=f"end of {batch.key}", seconds=seconds)

    async def wait_reports(self, batch: Batch, count: int) -> None:
        """Wait until at least ``count`` placeholders have written their reports."""

        async def look() -> int:
            return len(batch.reports())

        await self.until(look, lambda seen: seen >= count, what=f"{count} started placeholders of {batch.key}")

    async def wait_file(self, path: Path) -> bytes:
        """Wait until a file exists and return its contents; writers move it into place when complete."""

        async def look() -> bool:
            return await anyio.Path(path).exists()

        await self.until(look, bool, what=f"file {path.name}")
        return await anyio.Path(path).read_bytes()

    async def until(
        self,
        look: Callable[[], Awaitable[T]],
        accept: Callable[[T], bool],
        *,
        what: str,
        seconds: float | None = None,
    ) -> T:
        """:func:`eventually`, with the patience of the LRM under test unless ``seconds`` are given."""
        under = self.under_test
        bound = under.patience if seconds is None else seconds
        return await eventually(look, accept, what=what, seconds=bound, interval=under.poll_interval)

    # -- cleaning up -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End all that the test has submitted and wait until it is gone, so that tests stay independent."""
        for batch in self._batches:
            batch.go()
        listed = await self.submitter.jobs(name_prefix=self._prefix)
        left = [job.id for job in listed if job.state is not LrmJobState.ENDED]
        if left:
            await self.submitter.cancel(left)
        await self.until(self._left, lambda count: count == 0, what="nothing left of the test")

    async def _left(self) -> int:
        try:
            listed = await self.submitter.jobs(name_prefix=self._prefix)
        except LrmError:
            return -1
        return sum(job.state is not LrmJobState.ENDED for job in listed)
