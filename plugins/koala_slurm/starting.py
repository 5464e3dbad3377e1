# SPDX-License-Identifier: Apache-2.0
"""Starting one held job on chosen nodes: tie, release, look until it runs; if it does not, hold and untie it again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.model import EndReason, LrmJobState
from koala_slurm import control, pinning
from koala_slurm.details import (
    JobDetails,
    details_command,
    everything_command,
    new_separator,
    parse_details,
    parse_everything,
)
from koala_slurm.listing import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import LrmJob
    from koala_slurm.client import SlurmCommands
    from koala_slurm.pinning import Pin
    from koala_slurm.reservations import CoreReservation
    from koala_slurm.startnotes import StartNote, StartNotes

WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.UNKNOWN})

FIRST_LOOK = 0.1
SLOWEST_LOOK = 1.0
"""Seconds between two looks at a job that was told to start; Slurm has no event for it."""


class Starting:
    """One attempt to start a job on chosen nodes."""

    def __init__(
        self, commands: SlurmCommands, pin: Pin, notes: StartNotes, *, reservation: CoreReservation, timeout: float
    ) -> None:
        """Nothing is asked yet. ``reservation``: for an uneven pin. ``timeout``: seconds the job may take to start."""
        self._commands = commands
        self._timeout = timeout
        self._pin = pin
        self._notes = notes
        self._reservation = reservation
        self._before: JobDetails | None = None
        self._reserved = False
        self._tied = False
        self._ran_before = False

    async def run(self, known: tuple[LrmJob, JobDetails] | None = None) -> None:
        """Start the job; when this returns, it runs there. Raises LrmError, with the job in hold as it was before.

        A job that runs is held, too: when Slurm queues it again, it waits for us, and not for the nodes that it had.
        ``known``: the waiting job as it was listed lately, which saves asking for it.
        """
        try:
            await self._prepare(known)
            await self._tie()
            await self._release_and_look()
            await self._hold_when_queued_again()
        finally:
            if self._reserved:
                with anyio.CancelScope(shield=True):
                    await self._reservation.give_back()
            self._put_away_note()

    def _put_away_note(self) -> None:
        if self._pin.job in self._notes.kept:
            return  # it is tied as it was
        if self._tied or self._ran_before:
            self._notes.keep(self._pin.job, free=not self._tied)
        else:
            self._notes.remove(self._pin.job)

    async def _hold_when_queued_again(self) -> None:
        # Its short life may be over; and what cannot be held now is held as soon as it is seen to wait.
        with suppress(LrmError):
            await self._hold()

    async def take_back(self, note: StartNote) -> None:
        """Hold and untie a job that waits again; leave it alone if Slurm has started it meanwhile. Raises LrmError."""
        self._before, self._tied = note.before(), True
        seen = await self._job()
        if seen.state is not LrmJobState.HELD:
            await self._hold()
            seen = await self._job()
        if seen.state in WAITING:
            await self._free()
            self._notes.keep(self._pin.job, free=True)

    async def _tie(self) -> None:
        self._tied = True
        try:
            for command in pinning.pin_commands(self._pin, self._before or JobDetails()):
                await self._change(command)
        except BaseException:
            # Between two of these requests the job is smaller than it is.
            with anyio.CancelScope(shield=True):
                await self._untie()
            raise

    async def _untie(self) -> None:
        """Give a waiting job back what it had before it was tied."""
        with suppress(LrmError):
            await self._free()

    async def _free(self) -> None:
        for command in pinning.unpin_commands(self._pin, self._before or JobDetails()):
            await self._change(command)
        self._tied = False

    async def recover(self, note: StartNote) -> None:
        """Set right what a process that was killed in the middle of a start left: the job runs there, or is held.

        Raises LrmError.
        """
        self._before, self._tied = note.before(), True
        try:
            seen = await self._job()
        except LrmNotFoundError:
            self._tied = False
        else:
            self._ran_before = seen.requeues > 0
            await (self._hold_again() if seen.state in WAITING else self._hold_when_queued_again())
        if not self._pin.is_even:
            await self._reservation.give_back(after_kill=True)
        self._put_away_note()

    async def _release_and_look(self) -> None:
        await self._change(control.job_command("release", [self._pin.job]))
        try:
            started = await self._await_start()
        except (LrmNotFoundError, LrmRejectedError):
            raise
        except LrmError:
            await self._hold_again()
            raise
        except anyio.get_cancelled_exc_class():
            # Whoever waits has no more time: not started must mean held.
            with anyio.CancelScope(shield=True), suppress(LrmError):
                await self._hold_again()
            raise
        if started:
            return
        await self._hold_again()
        if await self._has_started():  # while it was being held
            return
        places = ", ".join(self._pin.counts)
        message = f"job {self._pin.job} did not start on {places} within {self._timeout:g} s"
        raise LrmUnavailableError(message, hint="the nodes are busy; the job is held again")

    async def _prepare(self, known: tuple[LrmJob, JobDetails] | None) -> None:
        """Learn what the job has now, to give it back; reserve the cores of an uneven pin."""
        pin = self._pin
        if known is None:
            details = parse_details(await self._read(details_command(pin.job), "looking at a job"))
            self._before = details.get(pin.job) or next(iter(details.values()), None)
        else:
            self._before = known[1]
        job = known[0] if known else await self._job()
        kept = self._notes.kept.get(pin.job)
        if kept is not None and kept.is_of(job):
            self._ran_before = True
            self._before = kept.asked(self._before or JobDetails())
        self._require_number_of_nodes()
        self._notes.write(pin, self._before or JobDetails(), job)
        if not pin.is_even:
            await self._reservation.make(job)
            self._reserved = True

    def _require_number_of_nodes(self) -> None:
        """Raise LrmRejectedError when the user asked for another number of nodes: tying would overwrite that."""
        asked, given = self._before or JobDetails(), len(self._pin.counts)
        if not asked.nodes_least <= given <= (asked.nodes_most or given):
            message = f"job {self._pin.job} asks for {asked.node_range} nodes (sbatch -N), and {given} are given"
            raise LrmRejectedError(message, hint="name as many nodes as its user allows")

    async def _await_start(self) -> bool:
        wait = FIRST_LOOK
        with anyio.move_on_after(self._timeout):
            while not await self._has_started():
                await anyio.sleep(wait)
                wait = min(SLOWEST_LOOK, 2 * wait)
            return True
        return False

    async def _has_started(self) -> bool:
        seen = await self._job()
        if seen.end is EndReason.CANCELLED:
            raise LrmNotFoundError(f"job {self._pin.job} has gone while it was started")
        if seen.state in WAITING:
            return False
        await self._require_layout(seen)
        return True

    async def _require_layout(self, seen: LrmJob) -> None:
        """Raise LrmRejectedError, with the job stopped and held again, when it runs elsewhere than it should."""
        counts = self._pin.counts
        if self._pin.processors == 1 or seen.state not in {LrmJobState.RUNNING, LrmJobState.STARTING}:
            return
        layout = dict.fromkeys(seen.nodes, seen.processors)
        if len(seen.nodes) > 1:
            details = parse_details(await self._read(details_command(self._pin.job), "looking at a started job"))
            layout = dict(details.get(self._pin.job, JobDetails()).layout)
        # A job that has its nodes for itself has more processors there than it asked for.
        if layout.keys() == counts.keys() and all(layout[node] >= count for node, count in counts.items()):
            return
        self._reservation.distrust_order()
        job = [self._pin.job]
        # Held while it runs, it is held when it is queued again.
        for command in (control.job_command("uhold", job), control.requeueable_command(job)):
            await self._change(command)
        await self._change(control.job_command("requeue", job))
        found = ", ".join(f"{count} on {node}" for node, count in layout.items())
        raise LrmRejectedError(
            f"Slurm started job {self._pin.job} with {found}, which is not what was asked; it is queued and held again"
        )

    async def _hold(self) -> None:
        by_operator = self._before is not None and self._before.reason == "JobHeldAdmin"
        await self._change(control.job_command("hold" if by_operator else "uhold", [self._pin.job]))

    async def _hold_again(self) -> None:
        await self._hold()
        # What gives a waiting job its nodes back would take nodes from one that has started meanwhile.
        if (await self._job()).state in WAITING:
            await self._untie()

    async def _job(self) -> LrmJob:
        separator = new_separator()
        command = (*everything_command(separator), f"--jobs={self._pin.job}")
        jobs = parse_everything(await self._read(command, "looking at a job"), separator)
        found = next((job for job in jobs if job.id == self._pin.job), None)
        if found is None:
            raise LrmNotFoundError(f"job {self._pin.job} has gone while it was started")
        return found

    async def _read(self, command: Sequence[str], action: str) -> str:
        return await self._commands.read(command, action=action, environment=ENVIRONMENT)

    async def _change(self, command: Sequence[str]) -> None:
        await self._commands.change(command, action="start_on")
