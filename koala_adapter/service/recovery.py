# SPDX-License-Identifier: Apache-2.0
"""What must be here before a journal is replayed: the policies with which its events were decided. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.events import Configured, JobSubmitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.policies import Policies
    from koala_adapter.scheduler.records import State


def require_policies(state: State | None, events: Sequence[Event], policies: Policies) -> None:
    """Raise ConfigurationError when a policy is gone that a snapshot or the events after it need.

    Without it, jobs would be refused in the replay that waited or ran in truth.
    """
    if state is not None:
        for record in state.jobs.values():
            if not record.state.final:
                policies.require_placement(record.job)
        if events and not isinstance(events[0], Configured):
            clusters = [record.parameters for record in state.clusters.values() if record.configured]
            policies.require_malleability(state.parameters, *clusters)
    for event in events:
        if isinstance(event, JobSubmitted):
            policies.require_placement(event.job)
        elif isinstance(event, Configured):
            policies.require_malleability(event.parameters, *event.clusters)
