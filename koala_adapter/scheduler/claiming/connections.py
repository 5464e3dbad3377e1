# SPDX-License-Identifier: Apache-2.0
"""Jobs whose processes must connect to each other, and clusters of several sites whose nodes may not.

Agents try it, in both directions, and the answers are kept for a day. Such a job goes to one cluster, or to clusters
that are known to connect; else to some of which nothing is known, whose agents then try before its processes start.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.model import ClusterName, Job, Launcher

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from koala_adapter.scheduler.placement.policy import ComponentRequest
    from koala_adapter.scheduler.records import JobRecord, State

    Pair = frozenset[ClusterName]

PATIENCE = 60.0
"""Seconds for which a job that holds all of its processors waits for agents to try connections, at most."""


def must_connect(job: Job) -> bool:
    """Return whether the processes of a job need connections to each other that koala cannot relay."""
    return job.launcher is Launcher.MPI


def may_spread(record: JobRecord, requests: Sequence[ComponentRequest]) -> bool:
    """Return whether processes that must connect could be placed on several clusters."""
    return must_connect(record.job) and (len(record.job.components) > 1 or any(one.splittable for one in requests))


class Doubts(NamedTuple):
    """Pairs of clusters whose nodes are not known to connect."""

    apart: set[Pair]
    """In one direction at least they were seen not to."""
    untried: set[Pair]
    """Neither that is known, nor that they connect in both directions."""

    @property
    def all(self) -> set[Pair]:
        """All of these pairs."""
        return self.apart | self.untried


def doubts(state: State, names: Iterable[ClusterName], now: float) -> Doubts:
    """Return which pairs of some clusters are not known to connect."""
    found = Doubts(set(), set())
    for one, other in combinations(dict.fromkeys(names), 2):
        answers = {state.connects(one, other, now), state.connects(other, one, now)}
        if False in answers:
            found.apart.add(frozenset((one, other)))
        elif None in answers:
            found.untried.add(frozenset((one, other)))
    return found


def doubts_of(state: State, record: JobRecord, now: float) -> Doubts:
    """Return which pairs of the clusters of a placed job are not known to connect, if its processes must connect."""
    names = (claim.cluster for claim in record.claims if claim.cluster is not None and claim.processors)
    return doubts(state, names if must_connect(record.job) else (), now)


def groups(names: Iterable[ClusterName], barred: Collection[Pair]) -> list[list[ClusterName]]:
    """Return groups of clusters, as large as can be, without barred pairs; each cluster is in one or more."""
    found: list[list[ClusterName]] = []
    all_names = list(names)
    for first in all_names:
        group = [first]
        for name in all_names:
            if name != first and all(frozenset((name, one)) not in barred for one in group):
                group.append(name)
        if not any(set(group) <= set(other) for other in found):
            found.append(group)
    return found


def said_apart(apart: Collection[Pair]) -> str:
    """Return in words why a job is not spread over pairs of clusters, and what helps."""
    return (
        f"its MPI processes must connect, which nodes of these clusters cannot: {pairs_said(apart)} "
        "(it needs room on one cluster, or on clusters that can; relay = true is not for MPI)"
    )


def said_untried(untried: Collection[Pair]) -> str:
    """Return in words that the agents of a job will try, or are trying, connections of its clusters."""
    return f"whether nodes of {pairs_said(untried)} connect, which its agents try before its MPI processes start"


def pairs_said(pairs: Collection[Pair]) -> str:
    """Return pairs of clusters in words."""
    return "; ".join(sorted(" and ".join(sorted(pair)) for pair in pairs))
