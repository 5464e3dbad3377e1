# SPDX-License-Identifier: Apache-2.0
"""What an entry point of the group ``koala_adapter.policies`` names, and the names of the installed policies.

They are read from the entry points alone: nothing of a policy is imported for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from koala_adapter.lrm.contract import installed_entry_points

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib import metadata

ENTRY_POINT_GROUP = "koala_adapter.policies"
INTERFACE_VERSION = 1


class PolicyKind(StrEnum):
    """Kinds of policies."""

    PLACEMENT = "placement"
    """Which component of a job goes to which cluster."""
    MALLEABILITY = "malleability"
    """Which running malleable jobs of a cluster grow and shrink."""
    QUEUE = "queue"
    """The order of one cluster's queue."""
    SIZES = "sizes"
    """Which sizes a component of a malleable job can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDefinition:
    """A policy; its entry point is called ``KIND.NAME``, such as ``placement.most-idle``."""

    kind: PolicyKind
    name: str
    """What files and options call it: a letter, then letters, digits, ``_`` or ``-``."""
    summary: str
    factory: Callable[..., Any]
    """Makes the policy. Of placement: called with nothing, returns a
    :class:`~koala_adapter.scheduler.placement.policy.PlacementPolicy`. Of malleability: called with nothing, returns a
    :class:`~koala_adapter.scheduler.malleable.policies.MalleabilityPolicy`. Of sizes: called with nothing, returns an
    :class:`~koala_adapter.sizes.AcceptanceRule`. Of a queue: called with the number of
    processors of a cluster and ``weights=`` (:class:`~koala_adapter.queueing.queue.PriorityWeights`), returns an
    empty :class:`~koala_adapter.queueing.queue.ClusterScheduler`; it must be found by its module and name, for
    simulations in several processes."""
    interface_version: int = INTERFACE_VERSION


def installed() -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of installed policies, without importing them."""
    return tuple(installed_entry_points().select(group=ENTRY_POINT_GROUP))


def policy_names(kind: PolicyKind) -> tuple[str, ...]:
    """Return the names of installed policies of a kind, without importing them."""
    prefix = f"{kind}."
    return tuple(sorted(one.name.removeprefix(prefix) for one in installed() if one.name.startswith(prefix)))
