# SPDX-License-Identifier: Apache-2.0
"""What policies must be here: before a journal is replayed, those its events were decided with; those of new jobs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from koala_adapter.errors import JobRefusedError
from koala_adapter.scheduler.events import Configured, JobSubmitted

if TYPE_CHECKING:
    from collections.abc import Generator

    from koala_adapter.driver.recovery import EventStore
    from koala_adapter.dynaco.sizerules import SizeRules
    from koala_adapter.model import Job
    from koala_adapter.scheduler.batchnumbers import NumberedBatch
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.knownpolicies import Policies
    from koala_adapter.scheduler.records import State


def check_policies(job: Job, policies: Policies, rules: SizeRules) -> None:
    """Raise JobRefusedError when a policy that a new job names, or a rule for its sizes, is not here."""
    if job.placement not in policies.placement_names:
        known = ", ".join(sorted(policies.placement_names))
        message = f"the service has no placement policy {job.placement!r}; it has {known}"
        raise JobRefusedError(message, hint="restart it if the policy has been installed meanwhile")
    for component in job.components:
        if not rules.known(component.sizes):
            message = f"component {component.name!r}: the service has no rule {component.sizes!r} for sizes"
            raise JobRefusedError(message, hint="restart it if the rule has been installed meanwhile")


class WithPolicies:
    """A journal that refuses to be replayed without the policies that it needs.

    Without them, jobs would be refused in the replay that waited or ran in truth. Nothing is written by then.
    """

    def __init__(self, store: EventStore, policies: Policies) -> None:
        """``policies``: those that there are."""
        self._store = store
        self._policies = policies

    def recover(self) -> tuple[State | None, Generator[tuple[int, Event], None, None]]:
        """Return the latest snapshot, or None, and the numbered events after it.

        Raises ConfigurationError when a policy is gone that a job needs which has not ended; so do the events, before
        the first that would be decided otherwise than it was.
        """
        state, events = self._store.recover()
        for record in state.jobs.values() if state is not None else ():
            if not record.state.final:
                self._policies.require_placement(record.job)
        return state, self._checked(state, events)

    def _checked(
        self, state: State | None, events: Generator[tuple[int, Event], None, None]
    ) -> Generator[tuple[int, Event], None, None]:
        configured = state is None
        with closing(events):
            for number, event in events:
                if isinstance(event, Configured):
                    self._policies.require_malleability(event.parameters, *event.clusters)
                elif isinstance(event, JobSubmitted):
                    self._policies.require_placement(event.job)
                if not configured and state is not None and not isinstance(event, Configured):
                    clusters = [record.parameters for record in state.clusters.values() if record.configured]
                    self._policies.require_malleability(state.parameters, *clusters)
                configured = True
                yield number, event

    def set_aside(self, number: int, event: Event, failure: str) -> None:
        """Leave an event out from now on."""
        self._store.set_aside(number, event, failure)

    def note_batch(self, batch: NumberedBatch) -> None:
        """Keep which submission has a name."""
        self._store.note_batch(batch)

    def batches(self) -> list[NumberedBatch]:
        """Return the submissions that were noted."""
        return self._store.batches()

    def largest_batch_number(self) -> int:
        """Return the largest number in the name of a submission."""
        return self._store.largest_batch_number()
