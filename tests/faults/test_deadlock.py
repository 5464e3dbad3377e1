# SPDX-License-Identifier: Apache-2.0
"""The deadlock experiment of the virtual job model (PAPERS section 2).

Clusters A and B have three nodes each; user 1 goes first on A, user 2 on B. At the same moment each submits a job of
six nodes, through a service of his own, so that nobody sees both. Each gets one cluster and waits for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.outcome import JobState
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from tests.faults.clock import Clock
from tests.faults.driver import SimulatedService
from tests.faults.faults import Faults
from tests.faults.lrm import SimulatedLrm
from tests.faults.world import WELL, check_progress
from tests.unit.scheduler_site import A, B, component, job, recount

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName, TaskEnd

HOUR = 3600.0
RUN = 300.0
PARAMETERS = Parameters(placeholder_life=600.0, backoff=60.0, lease=90.0)


@dataclass(slots=True)
class Experiment:
    """Both services and their clusters."""

    clock: Clock
    lrms: dict[ClusterName, SimulatedLrm]
    services: dict[str, SimulatedService]

    def run(self, seconds: float) -> None:
        """Let time pass, with checks after every step, until both jobs are over or the time is."""
        end = self.clock.now + seconds
        while self.clock.now < end and not self.over:
            assert self.clock.step()
            for service in self.services.values():
                recount(service.state)
                check_progress(service.state)
            for lrm in self.lrms.values():
                assert len([e for e in lrm.live("koala-") if e.started_at is not None]) <= 3

    @property
    def over(self) -> bool:
        """Tell whether both jobs have ended and left nothing."""
        ended = all(service.outcomes and not service.state.placeholders for service in self.services.values())
        return ended and not any(lrm.live("koala-") for lrm in self.lrms.values())

    def states(self) -> list[JobState]:
        """Return the states of the jobs of user 1 and user 2."""
        return [next(iter(service.state.jobs.values())).state for service in self.services.values()]


def prepared(seed: int, parameters: Parameters) -> Experiment:
    """Return the experiment just after both submissions."""
    clock = Clock()
    lrms = {
        A: SimulatedLrm(clock, "a", nodes=3, favoured="user1"),
        B: SimulatedLrm(clock, "b", nodes=3, favoured="user2"),
    }
    clusters = tuple(ClusterParameters(name=name) for name in lrms)
    runs: dict[str, tuple[float, TaskEnd]] = {"of user1": (RUN, WELL), "of user2": (RUN, WELL)}
    services = {
        user: SimulatedService(
            clock,
            lrms,
            Faults(seed=100 * seed + number),
            replace(parameters, instance=user),
            clusters,
            user=user,
            runs=runs,
        )
        for number, user in enumerate(("user1", "user2"))
    }
    experiment = Experiment(clock, lrms, services)
    while any(c.processors is None for service in services.values() for c in service.state.clusters.values()):
        assert clock.step()
    for user, service in services.items():
        parts = (component("x", 3, cluster="a"), component("y", 3, cluster="b"))
        one = job(f"of {user}", *parts, walltime=1000, submitted_at=clock.now)
        service.post(ev.JobSubmitted(time=clock.now, job=one))
    return experiment


@pytest.mark.parametrize("seed", range(20))
def test_both_jobs_finish_one_after_the_other(seed: int) -> None:
    """One gives its half back at the end of its life, the other runs, then the first."""
    experiment = prepared(seed, PARAMETERS)
    experiment.run(3 * HOUR)
    assert experiment.states() == [JobState.COMPLETED, JobState.COMPLETED]
    assert experiment.over
    records = [next(iter(service.state.jobs.values())) for service in experiment.services.values()]
    assert sum(record.hand_backs for record in records) >= 1
    launched = sorted(record.launched_at or 0.0 for record in records)
    assert launched[1] - launched[0] >= RUN


def test_without_a_life_cycle_neither_ever_starts() -> None:
    """The experiment is what it is meant to be: whoever holds for ever, waits for ever."""
    experiment = prepared(0, replace(PARAMETERS, placeholder_life=1e9))
    experiment.run(20 * HOUR)
    assert experiment.states() == [JobState.CLAIMING, JobState.CLAIMING]
    held = [next(iter(service.state.jobs.values())).held for service in experiment.services.values()]
    assert held == [3, 3]
