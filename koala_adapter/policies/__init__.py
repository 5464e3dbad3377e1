# SPDX-License-Identifier: Apache-2.0
"""Policies that a site installs: their definition by entry points, loading them, and checking their answers.

This module is the door for authors of policies: an entry point of the group ``koala_adapter.policies`` names a
:class:`PolicyDefinition`. ``loading`` finds and makes the installed policies, ``checked`` verifies what they answer.
The scheduler and the queues are given the policies; they do not look for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ENTRY_POINT_GROUP",
    "INTERFACE_VERSION",
    "PolicyDefinition",
    "PolicyKind",
]


# -- What an entry point of the group ``koala_adapter.policies`` names ---------------------------------------

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
