# SPDX-License-Identifier: Apache-2.0
"""Koala's own placement policies by the names that job files and site files use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.placement.closetofiles import CloseToFiles
from koala_adapter.scheduler.placement.minimization import ClusterMinimization, FlexibleClusterMinimization
from koala_adapter.scheduler.placement.waitinghistory import WaitingHistory
from koala_adapter.scheduler.placement.worstfit import WorstFit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.scheduler.placement.policy import PlacementPolicy

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
