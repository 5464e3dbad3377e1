# SPDX-License-Identifier: Apache-2.0
"""DYNACO, plan: the actions that bring an application to the size that was decided on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start the process of a new rank in the placeholder that holds its processor."""

    rank: int


@dataclass(frozen=True, slots=True)
class RetireProcess:
    """Ask the process of a rank to end, wait for that, and kill it when it takes too long."""

    rank: int


Plan: TypeAlias = "tuple[StartProcess | RetireProcess, ...]"
"""For workers the order does not matter: each comes and goes without the others."""


def growth(ranks: Iterable[int]) -> Plan:
    """Return the plan that takes new ranks in."""
    return tuple(StartProcess(rank) for rank in ranks)


def farewell(ranks: Iterable[int]) -> Plan:
    """Return the plan that takes all of some workers out, because their walltime is near."""
    return tuple(RetireProcess(rank) for rank in sorted(ranks))


def shrinkage(ranks: Collection[int], count: int, *, leaving: Collection[int] = ()) -> Plan:
    """Return the plan that takes ``count`` of some ranks out: those that came last go first.

    ``leaving``: ranks that are on their way out for another reason, which are not asked again.
    """
    staying = sorted(rank for rank in ranks if rank not in leaving)
    return tuple(RetireProcess(rank) for rank in reversed(staying[max(0, len(staying) - count) :]))
