# SPDX-License-Identifier: Apache-2.0
"""Where held jobs of all users may run, and whether their own users hold them: what qstat's listing does not tell.

Grid Engine itself is asked which queue instances have what a job asks for (qselect), once for all jobs that ask for the
same; and once for each job what stands in its context.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState
from koala_drmaa.classify import kind_of_text
from koala_drmaa.protocol import FailureKind
from koala_sge import requests
from koala_sge.contexts import JobContext, parse_contexts
from koala_sge.queues import has_access_lists, parse_limits
from koala_sge.wishes import PLAIN_QUEUE, Wishes, instances_on, nodes_of, parse_instances, parse_wishes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import LrmJob, LrmJobId
    from koala_sge.client import GridEngineCommands
    from koala_sge.settings import SgeSettings

SELECTIONS_KEPT = 60.0
"""Seconds for which it is believed which queue instances have something: load values are among what is asked for."""
OLD_SELECTIONS = 2
"""Asked for again with one listing; the others follow with the next ones."""
SELECTING = 1.0
"""Seconds after which a listing waits for no further ones."""
USER_HOLDS = "its user holds it"
NOT_ASKED_YET = "it is being asked where it may run"


class HeldJobs:
    """What is known of the jobs in hold of one cell."""

    def __init__(self, commands: GridEngineCommands, settings: SgeSettings) -> None:
        """Nothing is asked yet."""
        self._commands = commands
        self._settings = settings
        self._by_queue = settings.nodes == "queue-instances"
        self._contexts: dict[str, JobContext] = {}
        """By job number."""
        self._wishes: Mapping[str, Wishes] = {}
        """By job number, as they were before a pin of ours."""
        self._selected: dict[Wishes, tuple[float, frozenset[str]]] = {}
        """When it was asked which queue instances have what is asked for, and which."""
        self._limits: Mapping[str, int | None] = {}
        """Walltimes of the queues."""
        self._of_users = False
        """There are queues that not everybody may use."""
        self._queues_asked_at: float | None = None

    async def described(self, listing: bytes, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Return jobs, those in hold with the nodes on which they may run and what keeps them. Raises LrmError."""
        held = {requests.job_number(job.id) for job in jobs if job.state is LrmJobState.HELD}
        if not held:
            self._contexts, self._wishes = {}, {}
            return list(jobs)
        await self._ask_contexts(held)
        wishes = {number: wish for number, wish in parse_wishes(listing).items() if number in held}
        await self._ask_queues()
        self._wishes = {number: self._asked_for(number, wish) for number, wish in wishes.items()}
        await self._ask_selections(tuple(dict.fromkeys([Wishes(), *(wish.selected for wish in self._wishes.values())])))
        return [self._described(job) if job.state is LrmJobState.HELD else job for job in jobs]

    def queues(self, job: LrmJobId) -> tuple[str, ...]:
        """Return the queues that a job in hold asked for before it was pinned; empty: any."""
        wishes = self._wishes.get(requests.job_number(job))
        return () if wishes is None else wishes.queues

    def instances(self, job: LrmJobId, node: str) -> tuple[str, ...] | None:
        """Return the queue instances of a node that a job may have; None when that is not known."""
        found = self._instances(requests.job_number(job))
        return None if found is None else instances_on(node, found, by_queue=self._by_queue)

    def note_pin(self, job: LrmJobId) -> None:
        """Take note that a job was pinned, and keeps in its context what it had asked for."""
        number = requests.job_number(job)
        if number in self._contexts:
            self._contexts[number] = replace(self._contexts[number], queues=self.queues(job))

    def has_note(self, job: LrmJobId) -> bool:
        """Tell whether a job in hold has a note in its context, as far as that is known."""
        return bool(self._contexts.get(requests.job_number(job), JobContext()).note)

    def note(self, number: str, text: str) -> None:
        """Take note that a job has a note, or none, in its context."""
        if number in self._contexts:
            self._contexts[number] = replace(self._contexts[number], note=text)

    async def context(self, job: LrmJobId) -> JobContext:
        """Return the context of a job as it is now. Raises LrmError."""
        number = requests.job_number(job)
        shown = await self._commands.run(requests.explain_jobs(self._settings, [number]))
        return parse_contexts(shown.text).get(number, JobContext())

    async def _ask_contexts(self, held: set[str]) -> None:
        self._contexts = {number: known for number, known in self._contexts.items() if number in held}
        # A hold of its user may be taken back.
        asked = {number for number in held if number not in self._contexts or self._contexts[number].user_hold}
        if asked:
            numbers = sorted(asked, key=int)[: requests.LARGEST_EXPLANATION]
            shown = await self._commands.run(requests.explain_jobs(self._settings, numbers))
            self._contexts.update(parse_contexts(shown.text))

    async def _ask_queues(self) -> None:
        now = time.monotonic()
        if self._queues_asked_at is None or now > self._queues_asked_at + SELECTIONS_KEPT:
            shown = await self._commands.run(requests.show_queues(self._settings))
            if not shown.stderr.strip():
                self._limits = parse_limits(shown.text, names=("h_rt",))
                self._of_users = has_access_lists(shown.text)
                self._queues_asked_at = now

    async def _ask_selections(self, wanted: Sequence[Wishes]) -> None:
        now = time.monotonic()
        self._selected = {wish: known for wish, known in self._selected.items() if wish in wanted}
        times = {wish: at for wish, (at, _) in self._selected.items()}
        new = [wish for wish in wanted if wish not in times]
        old = sorted((wish for wish, at in times.items() if now > at + SELECTIONS_KEPT), key=lambda wish: times[wish])
        for wish in (*new, *old[:OLD_SELECTIONS]):
            found = await self._selection(wish)
            if found is not None:
                self._selected[wish] = now, found
            if time.monotonic() > now + SELECTING:
                break

    async def _selection(self, wishes: Wishes) -> frozenset[str] | None:
        """Return what Grid Engine selects; None when it has not said."""
        found: list[frozenset[str]] = []
        # The first task of a parallel job is on the same node as all others: a start is on one node.
        for queues in (wishes.queues, wishes.master_queues) if wishes.master_queues else (wishes.queues,):
            result = await self._commands.run(requests.select_instances(self._settings, wishes, queues))
            # What the cell does not know, nothing has.
            if result.stderr.strip() and kind_of_text(result.complaint) is FailureKind.UNAVAILABLE:
                return None
            found.append(parse_instances(result.text))
        return found[0].intersection(*found)

    def _asked_for(self, number: str, wishes: Wishes) -> Wishes:
        """Return wishes with the queues that were asked for before a pin, and the user where that matters."""
        context = self._contexts.get(number, JobContext())
        queues = wishes.queues if context.queues is None else tuple(sorted(context.queues))
        return replace(wishes, queues=queues, user=wishes.user if self._of_users else "")

    def _instances(self, number: str) -> frozenset[str] | None:
        """Return the queue instances that a job may have; None when that is not known."""
        wishes = self._wishes.get(number)
        if wishes is None or wishes.selected not in self._selected:
            return None
        found = self._selected[wishes.selected][1]
        limits = {name: self._limits.get(name.partition("@")[0]) for name in found}
        return frozenset(name for name, limit in limits.items() if limit is None or (wishes.walltime or 0) <= limit)

    def _described(self, job: LrmJob) -> LrmJob:
        number = requests.job_number(job.id)
        wishes, found = self._wishes.get(number, Wishes()), self._instances(number)
        context = self._contexts.get(number)
        plain = len(wishes.queues) == 1 and PLAIN_QUEUE.fullmatch(wishes.queues[0])
        note = None if context is None else context.note
        job = replace(job, queue=wishes.queues[0] if plain else "", note=note)
        if context is not None and context.user_hold:
            return replace(job, obstacle=USER_HOLDS)
        if context is None or found is None:
            return replace(job, obstacle=NOT_ASKED_YET)
        if not found:
            return replace(job, obstacle=f"no queue instance has what it asks for ({wishes.in_words})")
        everywhere = found == self._selected.get(Wishes(), (0.0, frozenset()))[1]
        possible = None if everywhere else tuple(sorted(nodes_of(found, by_queue=self._by_queue)))
        return replace(job, possible_nodes=possible)
