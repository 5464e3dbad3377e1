# SPDX-License-Identifier: Apache-2.0
"""Starts of held Slurm jobs on chosen nodes.

A held job is tied to nodes and released; its start ends when it runs, or when it is held and untied again. Between the
two, the cores of an uneven pin are reserved.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.model import LrmJob, LrmJobState
from koala_slurm import client
from koala_slurm.requests import JobDetails, with_details
from koala_slurm.reserving import WAITING, CoreReservations, Pin, pin_commands, unpin_commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_slurm.client import SlurmCommands
    from koala_slurm.library import LibraryAccess


def hold_verb(before: JobDetails | None) -> str:
    """Return the scontrol verb that restores a job's former hold."""
    return "hold" if before is not None and before.reason == "JobHeldAdmin" else "uhold"


class Starting:
    """One start of a job on chosen nodes."""

    def __init__(
        self,
        commands: SlurmCommands,
        pin: Pin,
        before: JobDetails | None,
        *,
        reservations: CoreReservations,
        cores_by_node: bool,
        library: LibraryAccess | None = None,
    ) -> None:
        """``before``: the job's request before it was tied; None: unknown.

        ``reservations``: those of uneven pins; ``cores_by_node``: they take a number of cores for each node.
        ``library``: pyslurm, for what it can change.
        """
        self._library = library
        self._commands = commands
        self._pin = pin
        self._before = before
        self._reservations = reservations
        self._cores_by_node = cores_by_node

    # -- asking ------------------------------------------------------------------------------------------------------

    async def begin(self, known: tuple[LrmJob, JobDetails] | None = None) -> None:
        """Tie the job and release it. Raises LrmError; after LrmRejectedError it is in hold as it was before.

        ``known``: the waiting job as it was listed lately, which saves asking for it.
        """
        before = self._before or (known[1] if known else await self._commands.details(self._pin.job))
        self._require_number_of_nodes(before)
        try:
            if not self._pin.is_even:
                job, shown = known or (await self._job(), await self._commands.details(self._pin.job))
                await self._reservations.make(self._pin, with_details(job, shown), by_node=self._cores_by_node)
            # pyslurm cannot change more than the list of nodes.
            if self._pin.processors > 1 or not await self._by_library("pin", next(iter(self._pin.counts))):
                for command in pin_commands(self._pin, before):
                    await self._change(command)
            # Not with the last of these: Slurm does not take a priority for a job in hold.
            if not await self._by_library("release"):
                await self._change(client.job_command("release", [self._pin.job]))
        except (LrmRejectedError, LrmNotFoundError):
            with anyio.CancelScope(shield=True):
                # It may be gone, or nobody may change it. Between two of the requests that tie it it is smaller.
                with suppress(LrmRejectedError, LrmNotFoundError):
                    await self._untie(before)
                await self.close()
            raise

    def _require_number_of_nodes(self, asked: JobDetails) -> None:
        """Raise LrmRejectedError when the user asked for another number of nodes: tying would overwrite that."""
        given = len(self._pin.counts)
        if not asked.nodes_least <= given <= (asked.nodes_most or given):
            message = f"job {self._pin.job} asks for {asked.node_range} nodes (sbatch -N), and {given} are given"
            raise LrmRejectedError(message, hint="name as many nodes as its user allows")

    # -- ending ------------------------------------------------------------------------------------------------------

    async def undo(self) -> None:
        """Hold and untie the job if it waits; leave it alone if Slurm has started it. Raises LrmError."""
        self._reservations.distrust_order()
        try:
            seen = await self._job()
            if seen.state not in {LrmJobState.HELD, LrmJobState.ENDED}:
                seen = await self._held()
        except LrmNotFoundError:
            await self.close()
            return
        if seen.state in WAITING and self._before is not None:
            await self._untie(self._before)
        await self.close()

    async def _held(self) -> LrmJob:
        """Hold the job and return its state. Raises LrmRejectedError when it waits and cannot be held."""
        refusal: LrmRejectedError | None = None
        try:
            await self._change(client.job_command(hold_verb(self._before), [self._pin.job]))
        except LrmRejectedError as error:  # it may have ended meanwhile
            refusal = error
        # What gives a waiting job its nodes back would take nodes from one that has started meanwhile.
        seen = await self._job()
        if refusal is not None and seen.state in WAITING - {LrmJobState.HELD}:
            raise refusal
        return seen

    async def close(self) -> None:
        """Give the cores back if any were reserved. Raises LrmError."""
        if not self._pin.is_even:
            await self._reservations.give_back(self._pin)

    async def _untie(self, before: JobDetails) -> None:
        for command in unpin_commands(self._pin, before):
            await self._change(command)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _job(self) -> LrmJob:
        jobs = await self._commands.everything(f"--jobs={self._pin.job}", action="looking at a job")
        found = next((job for job in jobs if job.id == self._pin.job), None)
        if found is None:
            raise LrmNotFoundError(f"job {self._pin.job} has gone while it was started")
        return found

    async def _by_library(self, verb: str, value: object = None) -> bool:
        return self._library is not None and await self._library.change(verb, [self._pin.job], value)

    async def _change(self, command: Sequence[str]) -> None:
        await self._commands.change(command, action="start_on")
