# SPDX-License-Identifier: Apache-2.0
"""Jobs of PBS that were moved to other servers.

A routing queue, qmove or a peer hands jobs of ours on. They keep their ids, leave the listing of their server, and wait
and run on the other one as they would have here. Their server remembers where each has gone, so that the commands
follow a job by its id. The other servers are those that routing queues name, which are listed in any case, and those
that jobs of ours were found on, as long as some are there.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmUnavailableError
from koala_adapter.model import LrmJobState
from koala_pbs.words import array_of, array_of_range, server_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from koala_adapter.model import LrmJob, LrmJobId
    from koala_pbs.client import PbsCommands

MOST_SERVERS = 4
"""Other servers that are listed: each costs a request for each listing of our own."""
MOST_LOOKED_FOR = 20
"""Jobs that are looked for at a time: each costs a request or two."""
SILENCE = 60.0
"""Seconds for which a server that did not answer is left alone: to connect to it may take as long as time-outs do."""
KEPT = 300.0
"""Seconds for which the end of a job is still listed."""


class MovedJobs:
    """What is known of the jobs of one user that have left a server for others."""

    def __init__(self, commands: PbsCommands, *, user: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is known yet; see :meth:`learn`."""
        self._commands = commands
        self._user = user
        self._clock = clock
        self._home = ""
        self._routed: tuple[str, ...] = ()
        self._history = False
        self._seen: dict[LrmJobId, LrmJob] = {}
        """As they were seen last, on another server."""
        self._ended_at: dict[LrmJobId, float] = {}
        self._silent_until: dict[str, float] = {}

    def learn(self, home: str, routed: Iterable[str], *, history: bool) -> None:
        """Hear what our server is called, to which others its queues pass jobs on, and whether it keeps a history."""
        self._home, self._routed, self._history = home, tuple(routed), history

    @property
    def servers(self) -> tuple[str, ...]:
        """The other servers that :meth:`listed` asks."""
        found = (_server_of(job) for id_, job in self._seen.items() if id_ not in self._ended_at)
        return tuple(dict.fromkeys((*self._routed, *found)))[:MOST_SERVERS]

    async def listed(self, here: Collection[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return our jobs on other servers; ``here``: the ids that our own server lists.

        Of a server that does not answer they are UNKNOWN.
        """
        self._forget(here)
        for server in self.servers:
            if self._clock() < self._silent_until.get(server, 0.0):
                continue
            try:
                await self._look_at(server)
            except LrmError as error:
                self._silent_until[server] = self._clock() + SILENCE
                self._doubt(server, error)
        return tuple(self._seen.values())

    def _forget(self, here: Collection[LrmJobId]) -> None:
        now = self._clock()
        old = [id_ for id_, ended in self._ended_at.items() if now > ended + KEPT]
        for id_ in (*old, *(id_ for id_ in self._seen if id_ in here)):
            self._seen.pop(id_, None)
            self._ended_at.pop(id_, None)

    async def _look_at(self, server: str) -> None:
        found = {job.id: job for job in await self._commands.jobs(at=server) if self._is_ours(job)}
        missing = [id_ for id_ in self._on(server) if id_ not in found]
        self._seen.update(found)
        # The elements of an array stay listed, ended or not, until the last one has ended.
        ends = {id_: self._seen[id_] for id_ in missing if self._seen[id_].state is LrmJobState.ENDED}
        ends |= await self._ends([id_ for id_ in missing if id_ not in ends], server)
        for id_ in missing:
            if id_ in ends:
                self._seen[id_], self._ended_at[id_] = ends[id_], self._clock()
            else:
                del self._seen[id_]

    def _is_ours(self, job: LrmJob) -> bool:
        return job.user == self._user and (server_in(job.id) == self._home or job.id in self._seen)

    def _on(self, server: str) -> Iterator[LrmJobId]:
        live = (id_ for id_ in self._seen if id_ not in self._ended_at)
        return (id_ for id_ in live if _server_of(self._seen[id_]) == server)

    async def _ends(self, ids: Sequence[LrmJobId], server: str) -> dict[LrmJobId, LrmJob]:
        ends: dict[LrmJobId, LrmJob] = {}
        for job in list(dict.fromkeys(map(array_of, ids)))[:MOST_LOOKED_FOR]:
            try:
                told = await self._commands.ended(job, at=server)
            except LrmNotFoundError:
                continue
            ends |= {one.id: one for one in told if one.state is LrmJobState.ENDED}
        return ends

    def _doubt(self, server: str, error: LrmError) -> None:
        for id_ in list(self._on(server)):
            job = self._seen[id_]
            self._seen[id_] = replace(job, state=LrmJobState.UNKNOWN, reason=error.message)

    async def find(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return those of some jobs, listed neither here nor there, that live on another server.

        Raises LrmUnavailableError when that cannot be told.
        """
        found: dict[LrmJobId, LrmJob] = {}
        for job in list(dict.fromkeys(map(array_of, ids)))[:MOST_LOOKED_FOR]:
            found |= {one.id: one for one in await self._whereabouts(job)}
        moved = {id_: found[id_] for id_ in ids if id_ in found}
        self._seen.update(moved)
        return tuple(moved.values())

    async def _whereabouts(self, job: str) -> list[LrmJob]:
        try:
            told = await self._commands.located(job, home=self._home)
        except LrmNotFoundError:
            told = await self._noted(job)
        except LrmUnavailableError:
            told = await self._noted(job)
            if not told:
                raise
        return [one for one in told if one.elsewhere and one.state is not LrmJobState.ENDED]

    async def _noted(self, job: str) -> tuple[LrmJob, ...]:
        """Return what our own server has noted of a job that has left it."""
        if not self._history:
            return ()
        try:
            return await self._commands.ended(job)
        except LrmNotFoundError:
            return ()

    def addressed(self, argument: str) -> str:
        """Return an id, or a range of elements, with the server that knows of it: ``12.here@there``."""
        array = array_of_range(argument)
        for id_, job in self._seen.items():
            if id_ not in self._ended_at and array_of(id_) == array:
                return f"{argument}@{_server_of(job)}"
        return argument


def _server_of(job: LrmJob) -> str:
    return job.elsewhere.rpartition("@")[2]
