# SPDX-License-Identifier: Apache-2.0
"""Starts of held PBS jobs on chosen vnodes: notes of tied jobs, the two ways to start, and checks."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol

import anyio

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnreachableError
from koala_adapter.model import LrmJobState
from koala_pbs import client
from koala_pbs.jobs import assign, shape_of, tied_place
from koala_pbs.words import array_index, array_of, hold_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.model import LrmJob
    from koala_pbs.client import PbsCommands


# -- Notes of tied jobs --------------------------------------------------------------------------------------
# What a job asked for before it was tied to vnodes, on disk as long as it is tied. PBS keeps only what a job asks for
# now; one that ran and is queued again comes back tied.


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedNote:
    """What one job asked for before it was tied."""

    job: str
    select: str
    place: str
    holds: str
    """Kinds of hold that it was in."""
    submitted_at: float | None = None

    def is_of(self, job: LrmJob) -> bool:
        """Tell whether a job is the one of this note, and not a later one with its number."""
        return self.submitted_at in {None, job.submitted_at}


class TiedNotes:
    """The notes of one server, each a file of mode 0600."""

    def __init__(self, directory: Path) -> None:
        """The directory is made with the first note."""
        self._directory = directory
        self._notes = {note.job: note for note in _read(directory)}

    @property
    def notes(self) -> Mapping[str, TiedNote]:
        """The notes by job."""
        return self._notes

    def write(self, note: TiedNote) -> None:
        """Put a note on disk, for certain. Raises LrmUnreachableError: then nothing may be changed."""
        path = self._path(note.job)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(asdict(note)).encode())
                file.flush()
                os.fsync(descriptor)
            path.with_suffix(".new").replace(path)
        except OSError as error:
            message = f"cannot note the start of job {note.job} in {self._directory}: {error.strerror}"
            raise LrmUnreachableError(message, hint="is the disk full?") from error
        self._notes[note.job] = note

    def remove(self, job: str) -> None:
        """Remove a note; harmless when there is none."""
        if self._notes.pop(job, None) is not None:
            with suppress(OSError):
                self._path(job).unlink(missing_ok=True)

    def _path(self, job: str) -> Path:
        return self._directory / f"{job}.json"


def _read(directory: Path) -> list[TiedNote]:
    """Return the notes on disk; one that cannot be read was never acted upon, and is removed."""
    found: list[TiedNote] = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(TiedNote(**json.loads(path.read_text())))
        except (OSError, ValueError, TypeError):
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return found


# -- Two ways to start a job ---------------------------------------------------------------------------------
# As any user: the job is tied to its vnodes (``qalter -l select=1:ncpus=2:vnode=n3``) and released; PBS's scheduler
# starts it when there is room, and a job that runs is put in hold for the case that it is queued again. As an operator:
# ``qrun -H`` starts it at once, with the hold that it is in, which is still there when it is queued again. That takes
# no look at what is free, so we do.

WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD})
OURS = "u"
SITES = "o"


class Starting(Protocol):
    """One way to start jobs. All raise LrmError; see the methods of Lrm."""

    async def start_on(self, job: str, nodes: Sequence[str]) -> None:
        """Have a held job start on these vnodes; return when that is accepted."""

    async def confirm(self, job: str) -> None:
        """Take note that a job was seen to run."""

    async def undo_start(self, job: str) -> None:
        """Hold a job that did not start, or waits again, and untie it from its vnodes."""

    def as_asked(self, jobs: Iterable[LrmJob]) -> tuple[LrmJob, ...]:
        """Return jobs of a whole listing with what their users asked for."""


async def _look(commands: PbsCommands, job: str) -> tuple[LrmJob, tuple[str, str, str]]:
    """Return a job, and its select, place and holds. Raises LrmNotFoundError when it has ended."""
    jobs, requests = await commands.job(job)
    found = next((one for one in jobs if one.id == job), None)
    if found is None or found.state is LrmJobState.ENDED:
        raise LrmNotFoundError(f"job {job} has gone", hint="it has ended, or never was")
    return found, requests[job]


class ByScheduler:
    """Ties jobs and releases them: PBS's scheduler starts them."""

    def __init__(self, commands: PbsCommands, notes: TiedNotes) -> None:
        """``notes``: of the jobs that are tied."""
        self._commands = commands
        self._notes = notes

    async def start_on(self, job: str, nodes: Sequence[str]) -> None:
        """Tie a job and release it. Elements of arrays cannot be altered, and so not be started so."""
        seen, (select, place, holds) = await _look(self._commands, job)
        if array_index(job) is not None:
            message = f"{job} is an element of an array, which PBS can alter and release only as a whole"
            raise LrmRejectedError(message, hint="set operator = true where koala is an operator of PBS")
        kept = self._notes.notes.get(job)
        if kept is not None and kept.is_of(seen):
            select, place = kept.select, kept.place
        assignment = assign(job, select, nodes)
        before = TiedNote(job=job, select=select, place=place, holds=holds, submitted_at=seen.submitted_at)
        self._notes.write(before)
        try:
            await self._change(client.set_selection(job, assignment.select, tied_place(place)))
            await self._change(client.release([job], holds if hold_owner(holds) is not None else OURS))
        except (LrmRejectedError, LrmNotFoundError):
            with anyio.CancelScope(shield=True), suppress(LrmRejectedError, LrmNotFoundError):
                await self._untie(before)
            self._notes.remove(job)
            raise

    async def confirm(self, job: str) -> None:
        """Hold the job while it runs."""
        await self._hold(job)

    async def undo_start(self, job: str) -> None:
        note = self._notes.notes.get(job)
        try:
            await self._hold(job)
            seen, _ = await _look(self._commands, job)
        except LrmNotFoundError:
            self._notes.remove(job)
            return
        # What has started meanwhile stays as it is, and tied.
        if note is not None and seen.state in WAITING:
            if note.is_of(seen):
                await self._untie(note)
            self._notes.remove(job)

    def as_asked(self, jobs: Iterable[LrmJob]) -> tuple[LrmJob, ...]:
        """Return jobs that wait as their users asked for them; drop the notes of jobs that are over."""
        jobs = tuple(jobs)
        if not self._notes.notes:
            return jobs
        there = {str(job.id): job for job in jobs if job.state is not LrmJobState.ENDED}
        for id_, note in list(self._notes.notes.items()):
            if id_ not in there or not note.is_of(there[id_]):
                self._notes.remove(id_)
        return tuple(self._as_asked(job) for job in jobs)

    def _as_asked(self, job: LrmJob) -> LrmJob:
        note = self._notes.notes.get(job.id)
        if note is None or job.state not in WAITING:
            return job
        return replace(shape_of(job, note.select, note.place), tied=True)

    async def _hold(self, job: str) -> None:
        note = self._notes.notes.get(job)
        holds = note.holds if note is not None and hold_owner(note.holds) is not None else OURS
        await self._change(client.hold([array_of(job)], holds))

    async def _untie(self, note: TiedNote) -> None:
        await self._change(client.set_selection(note.job, note.select, note.place))

    async def _change(self, command: Sequence[str]) -> None:
        await self._commands.change(command, action="start_on")


class ByOperator:
    """Starts jobs by qrun; one at a time, so that the look at what is free is still true."""

    def __init__(self, commands: PbsCommands) -> None:
        self._commands = commands
        self._one_at_a_time = anyio.Lock()

    async def start_on(self, job: str, nodes: Sequence[str]) -> None:
        seen, (select, _, _) = await _look(self._commands, job)
        if seen.state not in WAITING:
            raise LrmRejectedError(f"job {job} is {seen.state}, and does not wait")
        assignment = assign(job, select, nodes)
        async with self._one_at_a_time:
            await self._require_room(job, assignment.processors)
            self._commands.vnodes.require(job, assignment)
            await self._commands.change(client.run_on(job, assignment, self._commands.dialect), action="start_on")

    async def _require_room(self, job: str, processors: Mapping[str, int]) -> None:
        idle = {node.name: node.processors_idle for node in await self._commands.nodes()}
        for name, count in processors.items():
            if name not in idle:
                raise LrmRejectedError(f"there is no vnode {name}", hint="name vnodes that pbsnodes -av shows")
            if idle[name] < count:
                raise LrmRejectedError(f"job {job} wants {count} processors of {name}, where {idle[name]} are idle")

    async def confirm(self, job: str) -> None:
        """Do nothing: the job still has the hold that it was in."""

    async def undo_start(self, job: str) -> None:
        """Hold the job, unless it is held still; nothing ties it."""
        try:
            seen, _ = await _look(self._commands, job)
            if seen.state is LrmJobState.QUEUED:
                held = array_of(job) if self._commands.dialect.only_whole_arrays else job
                await self._commands.change(client.hold([held], SITES), action="undo_start")
        except LrmNotFoundError:
            return

    def as_asked(self, jobs: Iterable[LrmJob]) -> tuple[LrmJob, ...]:
        return tuple(jobs)
