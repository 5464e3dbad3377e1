# SPDX-License-Identifier: Apache-2.0
"""Which nodes' generic resources each of several waiting jobs may count on, so that none finds them gone. Pure.

A peer that is told where a job may run knows nothing of generic resources: two jobs with the same list would both be
sent to one node. So what is free is dealt out, in the order of the jobs' numbers, those that were released first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState
from koala_slurm.jobids import turn
from koala_slurm.restrictions import gres_rows, nodes_with_gres, parse_gres

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import LrmJob, LrmJobId
    from koala_slurm.restrictions import Restrictions


@dataclass(frozen=True, slots=True, kw_only=True)
class GresOnNodes:
    """What nodes have free."""

    free: Mapping[str, Mapping[str, int]]
    """Of each resource, by name, and by name and type; by node."""
    idle: Mapping[str, int]
    """Processors."""


def parse_gres_on_nodes(output: str) -> GresOnNodes:
    """Return what GRES_COMMAND shows."""
    states = {node: state.split("/") for node, _, _, state in gres_rows(output)}
    idle = {node: int(numbers[1]) for node, numbers in states.items() if len(numbers) > 1 and numbers[1].isdecimal()}
    return GresOnNodes(free=parse_gres(output), idle=idle)


def gres_shares(
    jobs: Sequence[LrmJob], asked: Mapping[LrmJobId, Restrictions], on_nodes: GresOnNodes
) -> dict[LrmJobId, tuple[str, ...]]:
    """Return the nodes on which each of these waiting jobs may run; none when others have what it asks for."""
    free = {node: dict(counts) for node, counts in on_nodes.free.items()}
    idle = dict(on_nodes.idle)
    wanting = sorted(
        (job for job in jobs if asked[job.id].gres), key=lambda job: (job.state is LrmJobState.HELD, turn(job))
    )
    shares: dict[LrmJobId, tuple[str, ...]] = {}
    for number, job in enumerate(wanting):
        able = nodes_with_gres(asked[job.id], free)
        contended = number + 1 < len(wanting)
        share = _share(job, able, idle) if contended else able
        shares[job.id] = share
        for node in share:
            idle[node] = idle.get(node, 0) - _each(job)
            for name, count in asked[job.id].gres:
                for shown in {name, name.partition(":")[0]}:
                    free[node][shown] = free[node].get(shown, 0) - count
    return shares


def _share(job: LrmJob, able: Sequence[str], idle: Mapping[str, int]) -> tuple[str, ...]:
    """Return the nodes that are kept for a job: those that it names, or as many as it needs, idle ones first."""
    if job.requested_nodes:
        return tuple(node for node in able if node in job.requested_nodes)
    if job.features or job.any_feature or job.excluded_nodes or "," in job.queue:
        # Which of them it may have is not known here.
        return tuple(able)
    ordered = sorted(able, key=lambda node: (idle.get(node, 0) < _each(job), node))
    return tuple(sorted(ordered[: job.node_bounds[0]]))


def _each(job: LrmJob) -> int:
    """Return the processors that a job has on each of its nodes, if they are the fewest."""
    return -(-job.processors // job.node_bounds[0])
