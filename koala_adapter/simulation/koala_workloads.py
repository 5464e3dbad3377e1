# SPDX-License-Identifier: Apache-2.0
"""The workloads of KOALA's experiments with malleable jobs (CoreGRID TR-0092), from a seed.

300 jobs, half of them NAS FT and half GADGET-2, chosen uniformly. Wm: all malleable, one every 120 s. Wmr: half
malleable, half rigid. W'm and W'mr: the same, one every 30 s. Malleable jobs start on 2 processors, rigid ones have 2.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.simulation.application_models import FREE, ft, gadget2
from koala_adapter.simulation.simulated_jobs import SimulatedJob

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.simulation.application_models import ReconfigurationCost

JOBS = 300
INITIAL = 2
"""Processors of a malleable job at its start, and of a rigid job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KoalaWorkload:
    """What one of the workloads is like."""

    name: str
    interarrival: float
    """Seconds between two submissions."""
    rigid: float
    """Share of rigid jobs."""


WM = KoalaWorkload(name="Wm", interarrival=120.0, rigid=0.0)
WMR = KoalaWorkload(name="Wmr", interarrival=120.0, rigid=0.5)
WM_HIGH = KoalaWorkload(name="W'm", interarrival=30.0, rigid=0.0)
WMR_HIGH = KoalaWorkload(name="W'mr", interarrival=30.0, rigid=0.5)
WORKLOADS: Mapping[str, KoalaWorkload] = {workload.name: workload for workload in (WM, WMR, WM_HIGH, WMR_HIGH)}


def koala_workload(
    workload: KoalaWorkload,
    seed: int,
    *,
    jobs: int = JOBS,
    poisson: bool = False,
    cost: ReconfigurationCost = FREE,
    malleable: bool = True,
) -> list[SimulatedJob]:
    """Return the jobs of a workload: exactly half of each application, and the exact share of rigid jobs, in any order.

    ``poisson`` makes the times between submissions exponential instead of equal; ``malleable=False`` makes all jobs
    rigid, which is what the malleable ones are compared with. Applications, order and times do not depend on that.
    """
    chance = random.Random(f"{seed}/{workload.name}")
    applications = [ft(cost), gadget2(cost)]
    kinds = _shuffled(chance, jobs, 0.5)
    rigid = _shuffled(chance, jobs, workload.rigid)
    time = 0.0
    found = []
    for number in range(jobs):
        found.append(
            SimulatedJob(
                number=number,
                submitted_at=time,
                application=applications[kinds[number]],
                initial=INITIAL,
                malleable=malleable and not rigid[number],
            )
        )
        time += chance.expovariate(1.0 / workload.interarrival) if poisson else workload.interarrival
    return found


def _shuffled(chance: random.Random, count: int, share: float) -> list[bool]:
    """Return as many values, the given share of them true, in any order."""
    true = round(count * share)
    values = [True] * true + [False] * (count - true)
    chance.shuffle(values)
    return values
