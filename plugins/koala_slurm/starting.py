# SPDX-License-Identifier: Apache-2.0
"""Tying one held job to nodes and releasing it, and what ends its start: it runs, or is held and untied again.

Between the two, the cores of an uneven pin are reserved, and a note is on disk of what the job had before.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.model import LrmJobState
from koala_slurm import control, pinning
from koala_slurm.details import (
    JobDetails,
    details_command,
    everything_command,
    new_separator,
    parse_details,
    parse_everything,
)
from koala_slurm.jobnotes import comment_change
from koala_slurm.listing import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import LrmJob
    from koala_slurm.client import SlurmCommands
    from koala_slurm.pinning import Pin
    from koala_slurm.reservations import CoreReservation
    from koala_slurm.startnotes import StartNote, StartNotes

WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.UNKNOWN})


def hold_verb(before: JobDetails) -> str:
    """Return what puts a job in hold again as it was."""
    return "hold" if before.reason == "JobHeldAdmin" else "uhold"


class Starting:
    """One start of a job on chosen nodes."""

    def __init__(self, commands: SlurmCommands, pin: Pin, notes: StartNotes, *, reservation: CoreReservation) -> None:
        """Nothing is asked yet. ``reservation``: for an uneven pin."""
        self._commands = commands
        self._pin = pin
        self._notes = notes
        self._reservation = reservation
        self._after_kill = False

    # -- asking ------------------------------------------------------------------------------------------------------

    async def begin(self, known: tuple[LrmJob, JobDetails] | None = None) -> None:
        """Tie the job and release it. Raises LrmError; after LrmRejectedError it is in hold as it was before.

        ``known``: the waiting job as it was listed lately, which saves asking for it.
        """
        job, shown = known or (await self._job(), await self._details())
        kept = self._notes.kept.get(self._pin.job)
        ran_before = kept is not None and kept.is_of(job)
        before = kept.asked(shown) if kept is not None and ran_before else shown
        self._require_number_of_nodes(before)
        self._notes.write(self._pin, before, job)
        try:
            if not self._pin.is_even:
                await self._reservation.make(job)
            # What it says of its place is over with the start.
            noted = (comment_change(job.comment, ""),) if job.note else ()
            for command in pinning.pin_commands(self._pin, before, *noted):
                await self._change(command)
            # Not with the last of these: Slurm does not take a priority for a job in hold.
            await self._change(control.job_command("release", [self._pin.job]))
        except (LrmRejectedError, LrmNotFoundError):
            with anyio.CancelScope(shield=True):
                await self._undo(before, ran_before=ran_before)
            raise

    def _require_number_of_nodes(self, asked: JobDetails) -> None:
        """Raise LrmRejectedError when the user asked for another number of nodes: tying would overwrite that."""
        given = len(self._pin.counts)
        if not asked.nodes_least <= given <= (asked.nodes_most or given):
            message = f"job {self._pin.job} asks for {asked.node_range} nodes (sbatch -N), and {given} are given"
            raise LrmRejectedError(message, hint="name as many nodes as its user allows")

    async def _undo(self, before: JobDetails, *, ran_before: bool) -> None:
        """Give a job that Slurm does not start what it had. Raises LrmUnavailableError."""
        # It may be gone, or nobody may change it. Between two of the requests that tie it it is smaller than it is.
        with suppress(LrmRejectedError, LrmNotFoundError):
            await self._untie(before)
        await self._close(ran_before=ran_before, free=True)

    # -- ending ------------------------------------------------------------------------------------------------------

    async def confirm(self) -> None:
        """End the start of a job that runs, and has been put in hold. Raises LrmError."""
        await self._close(ran_before=True, free=False)

    async def undo_start(self, note: StartNote, *, after_kill: bool = False) -> None:
        """Hold and untie a job that waits; leave it alone if Slurm has started it. Raises LrmError.

        ``after_kill``: who asked for the start was killed in the middle of it.
        """
        self._reservation.distrust_order()
        self._after_kill = after_kill
        before = note.before()
        try:
            seen = await self._job()
            if seen.state not in {LrmJobState.HELD, LrmJobState.ENDED}:
                seen = await self._held(before)
        except LrmNotFoundError:
            await self._close(ran_before=False, free=True)
            return
        waits = seen.state in WAITING
        if waits:
            await self._untie(before)
        await self._close(ran_before=seen.requeues > 0 or not waits, free=waits)

    async def _held(self, before: JobDetails) -> LrmJob:
        """Hold the job and return it as it is then. Raises LrmRejectedError when it waits and cannot be held."""
        refusal: LrmRejectedError | None = None
        try:
            await self._hold(before)
        except LrmRejectedError as error:  # it may have ended meanwhile
            refusal = error
        # What gives a waiting job its nodes back would take nodes from one that has started meanwhile.
        seen = await self._job()
        if refusal is not None and seen.state in WAITING - {LrmJobState.HELD}:
            raise refusal
        return seen

    async def _close(self, *, ran_before: bool, free: bool) -> None:
        """Give the cores back if they are reserved still, and the note away when the job is as it was."""
        if not self._pin.is_even and self._notes.is_open(self._pin.job):
            await self._reservation.give_back(after_kill=self._after_kill)
        if ran_before:
            self._notes.keep(self._pin.job, free=free)
        else:
            self._notes.remove(self._pin.job)

    async def _hold(self, before: JobDetails) -> None:
        await self._change(control.job_command(hold_verb(before), [self._pin.job]))

    async def _untie(self, before: JobDetails) -> None:
        for command in pinning.unpin_commands(self._pin, before):
            await self._change(command)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _job(self) -> LrmJob:
        separator = new_separator()
        command = (*everything_command(separator), f"--jobs={self._pin.job}")
        jobs = parse_everything(await self._read(command), separator)
        found = next((job for job in jobs if job.id == self._pin.job), None)
        if found is None:
            raise LrmNotFoundError(f"job {self._pin.job} has gone while it was started")
        return found

    async def _details(self) -> JobDetails:
        details = parse_details(await self._read(details_command(self._pin.job)))
        return details.get(self._pin.job) or next(iter(details.values()), JobDetails())

    async def _read(self, command: Sequence[str]) -> str:
        return await self._commands.read(command, action="looking at a job", environment=ENVIRONMENT)

    async def _change(self, command: Sequence[str]) -> None:
        await self._commands.change(command, action="start_on")
