# SPDX-License-Identifier: Apache-2.0
"""Policies by name: koala's own placement policies, and all policies that one scheduler may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.placement.policies import (
    CloseToFiles,
    ClusterMinimization,
    FlexibleClusterMinimization,
    WaitingHistory,
    WorstFit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.model import Component, Job
    from koala_adapter.scheduler.malleable.policies import MalleabilityPolicy
    from koala_adapter.scheduler.parameters import ClusterParameters
    from koala_adapter.scheduler.placement.policy import PlacementPolicy
    from koala_adapter.sizes import AcceptanceRule


# -- Koala's own placement policies --------------------------------------------------------------------------
# Under the names that job files and site files use.

_MAKERS: Mapping[str, Callable[[Parameters], PlacementPolicy]] = {
    WorstFit.name: lambda _: WorstFit(),
    CloseToFiles.name: lambda _: CloseToFiles(),
    ClusterMinimization.name: lambda _: ClusterMinimization(),
    FlexibleClusterMinimization.name: lambda _: FlexibleClusterMinimization(),
    WaitingHistory.name: lambda parameters: WaitingHistory(parameters.cluster_cost),
}
POLICIES: Mapping[str, PlacementPolicy] = {name: make(Parameters()) for name, make in _MAKERS.items()}
"""Each policy as it is where a site says nothing."""


def policy(name: str, parameters: Parameters) -> PlacementPolicy:
    """Return a policy as a site wants it. Raises KeyError when there is none of that name."""
    return _MAKERS[name](parameters)


# -- All policies of one scheduler: koala's own, and those of the site ---------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Policies by name. Koala's own come first and are always there."""

    placement: Mapping[str, PlacementPolicy] = field(default_factory=dict)
    """Further ones of placement."""
    malleability: Mapping[str, MalleabilityPolicy] = field(default_factory=dict)
    """Further ones of malleability."""
    sizes: Mapping[str, AcceptanceRule] = field(default_factory=dict)
    """Further rules for the sizes of components, which applications decide by, not the scheduler."""

    @property
    def placement_names(self) -> tuple[str, ...]:
        """All policies of placement."""
        return *POLICIES, *self.placement

    @property
    def malleability_names(self) -> tuple[str, ...]:
        """All policies of malleability."""
        return *MALLEABILITY_POLICIES, *self.malleability

    def placement_policy(self, name: str, parameters: Parameters) -> PlacementPolicy:
        """Return a policy as a site wants it. Raises KeyError when there is none of that name."""
        return policy(name, parameters) if name in POLICIES else self.placement[name]

    def malleability_policy(self, name: str) -> MalleabilityPolicy:
        """Return a policy. Raises KeyError when there is none of that name."""
        return MALLEABILITY_POLICIES[name] if name in MALLEABILITY_POLICIES else self.malleability[name]

    def may_split(self, job: Job, component: Component) -> bool:
        """Tell whether a component may be placed in pieces: it is flexible, and the job's policy splits."""
        if not component.flexible or job.kind.varies:
            return False
        chosen = POLICIES.get(job.placement) or self.placement.get(job.placement)
        return chosen is not None and chosen.splits

    def require_placement(self, job: Job) -> None:
        """Raise ConfigurationError when a job's policy is not here: without it nothing could be decided about it."""
        if job.placement not in self.placement_names:
            message = f"job {job.id} is placed by the policy {job.placement!r}, which is not installed"
            raise ConfigurationError(message, hint=f"install its distribution again; there are {self._placements}")

    def require_malleability(self, parameters: Parameters, *clusters: ClusterParameters) -> None:
        """Raise ConfigurationError when a policy that a site names is not here."""
        wanted = {parameters.malleability_policy, *(one.malleability_policy for one in clusters)} - {None}
        for name in sorted(wanted - set(self.malleability_names), key=str):
            message = f"there is no malleability policy {name!r}"
            known = ", ".join(sorted(self.malleability_names))
            raise ConfigurationError(message, hint=f"install its distribution (again); there are {known}")

    @property
    def _placements(self) -> str:
        return ", ".join(sorted(self.placement_names))


OWN = Policies()
"""Koala's own, and no others."""
