# SPDX-License-Identifier: Apache-2.0
"""Starts of held PBS jobs on chosen vnodes, in two ways."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeAlias

import anyio

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.model import WAITING, LrmJob, LrmJobState
from koala_pbs import client
from koala_pbs.jobs import JobRequest, assign, tied_place
from koala_pbs.words import array_index, array_of, hold_owner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import PinnedStart
    from koala_pbs.client import PbsCommands


# -- What a job asked for before it was tied -----------------------------------------------------------------
# PBS keeps only what a job asks for now; one that ran and is queued again comes back tied.


def parse_original(text: str) -> JobRequest | None:
    """Return the request in a text that `original_request` returned; None for none, or one that cannot be read."""
    try:
        return JobRequest(**json.loads(text))
    except (ValueError, TypeError):
        return None


def hold_kinds(before: JobRequest | None) -> str:
    """Return the kinds of hold that a job gets again after its start: those of before, or koala's own."""
    return OURS if before is None or hold_owner(before.holds) is None else before.holds


# -- Two ways to start a job ---------------------------------------------------------------------------------
# As any user: the job is tied to its vnodes (``qalter -l select=1:ncpus=2:vnode=n3``) and released; PBS's scheduler
# starts it when there is room, and a job that runs is put in hold for the case that it is queued again. As an operator:
# ``qrun -H`` starts it at once, with the hold that it is in, which is still there when it is queued again. That takes
# no look at what is free, so we do.

OURS = "u"
SITES = "o"


async def _look(commands: PbsCommands, job: str) -> tuple[LrmJob, JobRequest]:
    """Return a job with its request. Raises LrmNotFoundError when it has ended."""
    found = await commands.job(job)
    if found is None or found[0].state is LrmJobState.ENDED:
        raise LrmNotFoundError(f"job {job} has gone", hint="it has ended, or never was")
    return found


class ByScheduler:
    """Starts jobs by tying and releasing them for PBS's scheduler."""

    def __init__(self, commands: PbsCommands) -> None:
        self._commands = commands

    async def original_request(self, job: str) -> str:
        _, asked = await _look(self._commands, job)
        return json.dumps(asdict(asked))

    async def start_on(self, start: PinnedStart) -> None:
        """Tie a job and release it. Elements of arrays cannot be altered, and so not be started so."""
        job = start.job
        before = parse_original(start.original)
        if before is None:
            _, before = await _look(self._commands, job)
        if array_index(job) is not None:
            message = f"{job} is an element of an array, which PBS can alter and release only as a whole"
            raise LrmRejectedError(message, hint="set operator = true where koala is an operator of PBS")
        assignment = assign(job, before.select, start.nodes)
        try:
            await self._change(client.set_selection(job, assignment.select, tied_place(before.place)))
            await self._change(client.release([job], hold_kinds(before)))
        except (LrmRejectedError, LrmNotFoundError):
            with anyio.CancelScope(shield=True), suppress(LrmRejectedError, LrmNotFoundError):
                await self._untie(job, before)
            raise

    async def confirm_start(self, start: PinnedStart) -> None:
        """Hold the job while it runs."""
        await self._hold(start.job, parse_original(start.original))

    async def undo_start(self, start: PinnedStart) -> None:
        before = parse_original(start.original)
        with suppress(LrmNotFoundError):
            await self._hold(start.job, before)
            seen, _ = await _look(self._commands, start.job)
            # What has started meanwhile stays as it is, and tied.
            if before is not None and seen.state in WAITING:
                await self._untie(start.job, before)

    async def _hold(self, job: str, before: JobRequest | None) -> None:
        await self._change(client.hold([array_of(job)], hold_kinds(before)))

    async def _untie(self, job: str, before: JobRequest) -> None:
        await self._change(client.set_selection(job, before.select, before.place))

    async def _change(self, command: Sequence[str]) -> None:
        await self._commands.change(command, action="start_on")


class ByOperator:
    """Starts jobs by qrun, one at a time, so that the free processors just seen are still free."""

    def __init__(self, commands: PbsCommands) -> None:
        self._commands = commands
        self._one_at_a_time = anyio.Lock()

    async def original_request(self, job: str) -> str:  # noqa: ARG002 - as the other way
        """Return nothing: a job is not changed."""
        return ""

    async def start_on(self, start: PinnedStart) -> None:
        job = start.job
        seen, asked = await _look(self._commands, job)
        if seen.state not in WAITING:
            raise LrmRejectedError(f"job {job} is {seen.state}, and does not wait")
        assignment = assign(job, asked.select, start.nodes)
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

    async def confirm_start(self, start: PinnedStart) -> None:
        """Do nothing: the job still has the hold that it was in."""

    async def undo_start(self, start: PinnedStart) -> None:
        """Hold the job, unless it is held still; nothing ties it."""
        job = start.job
        try:
            seen, _ = await _look(self._commands, job)
            if seen.state is LrmJobState.QUEUED:
                held = array_of(job) if self._commands.dialect.only_whole_arrays else job
                await self._commands.change(client.hold([held], SITES), action="undo_start")
        except LrmNotFoundError:
            return


Starting: TypeAlias = ByScheduler | ByOperator
"""Their methods are those of `Lrm` for starts, and raise LrmError."""
