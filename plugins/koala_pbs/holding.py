# SPDX-License-Identifier: Apache-2.0
"""Holds of PBS jobs: a user's own and an operator's. Waiting elements of an array are held and released together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.model import LrmJobState
from koala_adapter.plugin.commandsystem import portions
from koala_pbs import control
from koala_pbs.jobids import array_index, array_of, checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import LrmJobId
    from koala_pbs.client import PbsCommands

ARGUMENTS_PER_COMMAND = 100


class Holding:
    """Holds and releases the jobs of one server."""

    def __init__(self, commands: PbsCommands, *, operator: bool) -> None:
        """``operator``: we are an operator of PBS, whose holds users cannot take away."""
        self._commands = commands
        self._operator = operator

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, or in an operator's if that is what we are; arrays as a whole only."""
        kinds = "o" if self._operator else "u"
        for part in portions(await self._holdable(ids), ARGUMENTS_PER_COMMAND):
            await self._commands.change(control.hold(part, kinds), action="hold")

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Take our hold and the user's from jobs; from arrays as a whole only."""
        await self._release(await self._holdable(ids), "uo" if self._operator else "u")

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Take the operator's hold from jobs, and leave their users'; from arrays as a whole."""
        await self._release(list(dict.fromkeys(map(array_of, ids))), "o")

    async def _release(self, jobs: Sequence[str], kinds: str) -> None:
        for part in portions(jobs, ARGUMENTS_PER_COMMAND):
            await self._commands.change(control.release(part, kinds), action="release")

    async def _holdable(self, ids: Sequence[LrmJobId]) -> list[str]:
        """Return jobs, and arrays all of whose waiting elements are named.

        Raises LrmNotFoundError for an element that is not there, and LrmRejectedError for a part of an array.
        """
        elements = [job for job in ids if array_index(checked(job)) is not None]
        if not elements or not self._commands.dialect.only_whole_arrays:
            return list(ids)
        listed = await self._commands.jobs()
        there = {job.id for job in listed if job.state is not LrmJobState.ENDED}
        waiting = {job.id for job in listed if job.state in {LrmJobState.QUEUED, LrmJobState.HELD}}
        for job in elements:
            if job not in there:
                raise LrmNotFoundError(f"job {job} has gone", hint="it has ended, or never was")
            left_out = {other for other in waiting if array_of(other) == array_of(job)} - set(elements)
            if left_out:
                message = f"PBS holds and releases whole job arrays only, and {min(left_out)} is not among the jobs"
                raise LrmRejectedError(message, hint="submit jobs singly that are to be held singly")
        return list(dict.fromkeys(map(array_of, ids)))
