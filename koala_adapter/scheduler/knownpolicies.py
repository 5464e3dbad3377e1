# SPDX-License-Identifier: Apache-2.0
"""The policies that one scheduler may use, by name: koala's own, and those that the site has installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES, MalleabilityPolicy
from koala_adapter.scheduler.placement.policies import PLACEMENT_POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import Component, Job
    from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
    from koala_adapter.scheduler.placement.policy import PlacementPolicy
    from koala_adapter.sizes import AcceptanceRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Policies by name. Koala's own come first and are always there."""

    placement: Mapping[str, PlacementPolicy] = field(default_factory=lambda: PLACEMENT_POLICIES)
    malleability: Mapping[str, MalleabilityPolicy] = field(default_factory=lambda: MALLEABILITY_POLICIES)
    sizes: Mapping[str, AcceptanceRule] = field(default_factory=dict)
    """Installed rules for the sizes of components, which applications decide by, not the scheduler."""

    def placement_policy(self, name: str, parameters: Parameters) -> PlacementPolicy:
        """Return a policy as a site wants it. Raises KeyError when there is none of that name."""
        return self.placement[name].set_by(parameters)

    def may_split(self, job: Job, component: Component) -> bool:
        """Tell whether a component may be placed in pieces: it is flexible, and the job's policy splits."""
        if not component.flexible or job.kind.varies:
            return False
        chosen = self.placement.get(job.placement)
        return chosen is not None and chosen.splits

    def require_placement(self, job: Job) -> None:
        """Raise ConfigurationError when a job's policy is not here: without it nothing could be decided about it."""
        if job.placement not in self.placement:
            message = f"job {job.id} is placed by the policy {job.placement!r}, which is not installed"
            known = ", ".join(sorted(self.placement))
            raise ConfigurationError(message, hint=f"install its distribution again; there are {known}")

    def require_malleability(self, parameters: Parameters, *clusters: ClusterParameters) -> None:
        """Raise ConfigurationError when a policy that a site names is not here."""
        wanted = {parameters.malleability_policy, *(one.malleability_policy for one in clusters)} - {None}
        for name in sorted(wanted - self.malleability.keys(), key=str):
            message = f"there is no malleability policy {name!r}"
            known = ", ".join(sorted(self.malleability))
            raise ConfigurationError(message, hint=f"install its distribution (again); there are {known}")


OWN = Policies()
"""Koala's own, and no others."""
