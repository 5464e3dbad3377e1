# SPDX-License-Identifier: Apache-2.0
"""The deadlock experiment of the virtual job model (Xing 2009).

Clusters A and B have three nodes each; user 1 goes first on A, user 2 on B. At the same moment each submits a job of
six nodes, through a service of his own, so that nobody sees both. Each gets one cluster and waits for the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from tests.faults.driver import SimulatedService
from tests.faults.faults import Faults
from tests.faults.lrm import Clock, Element, SimulatedLrm
from tests.faults.world import WELL, check_progress
from tests.unit.scheduler.scheduler_site import A, B, component, job, recount

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.records import JobRecord

HOUR = 3600.0
RUN = 300.0
NODES = 3
PARAMETERS = Parameters(placeholder_life=600.0, backoff=60.0, lease=90.0)
SHORT = replace(PARAMETERS, placeholder_life=120.0, backoff=80.0)
"""Lives that are not much longer than a batch system and a poll need."""
REACTION = 10.0
"""Seconds until a batch system has started what can start."""
MOST_ROUNDS = 6
"""So often at most one job gives back what it holds, of two that hold what the other needs."""


@dataclass(slots=True)
class DirectJob:
    """A job whose real pieces were submitted past koala: they hold their nodes until all of them run."""

    clock: Clock
    lrms: dict[ClusterName, SimulatedLrm]
    running: list[Element] = field(default_factory=list)
    ended_at: float | None = None

    def submit(self, user: str) -> None:
        for lrm in self.lrms.values():
            lrm.submit("direct", NODES, walltime=1e9, user=user, on_start=self._started)

    def _started(self, element: Element) -> None:
        self.running.append(element)
        if len(self.running) == NODES * len(self.lrms):
            self.clock.after(RUN, self._end)

    def _end(self) -> None:
        self.ended_at = self.clock.now
        for lrm in self.lrms.values():
            for element in self.running:
                if element.id in lrm.elements:
                    lrm.exited(element)


@dataclass(slots=True)
class Experiment:
    """The services and their clusters."""

    clock: Clock
    lrms: dict[ClusterName, SimulatedLrm]
    services: dict[str, SimulatedService]
    began_at: float = 0.0

    def run(self, seconds: float) -> None:
        """Let time pass, with checks after every step, until all jobs are over or the time is."""
        end = self.clock.now + seconds
        while self.clock.now < end and not self.over:
            assert self.clock.step()
            for service in self.services.values():
                recount(service.state)
                check_progress(service.state)
            for lrm in self.lrms.values():
                assert len([e for e in lrm.live("koala-") if e.started_at is not None]) <= NODES

    @property
    def over(self) -> bool:
        ended = all(service.outcomes and not service.state.placeholders for service in self.services.values())
        return ended and not any(lrm.live("koala-") for lrm in self.lrms.values())

    def records(self) -> list[JobRecord]:
        return [service.state.jobs[JobId("1")] for service in self.services.values()]

    def states(self) -> list[JobState]:
        return [record.state for record in self.records()]

    def submit(self) -> None:
        """Have each service take a job that needs all of both clusters: the first of its user, so all are job 1."""
        self.began_at = self.clock.now
        for service in self.services.values():
            parts = (component("x", NODES, cluster="a"), component("y", NODES, cluster="b"))
            one = job("1", *parts, walltime=1000, submitted_at=self.clock.now)
            service.post(ev.JobSubmitted(time=self.clock.now, job=one))


def prepared(seed: int, parameters: Parameters, *, services: int = 2) -> Experiment:
    """Return the experiment before the submissions; the names of the users and their instances come from the seed."""
    clock = Clock()
    users = [f"{random.Random(f'{seed}/{number}').getrandbits(32):08x}" for number in range(2)]
    lrms = {
        A: SimulatedLrm(clock, "a", nodes=NODES, favoured=users[0], reaction=REACTION),
        B: SimulatedLrm(clock, "b", nodes=NODES, favoured=users[1], reaction=REACTION),
    }
    clusters = tuple(ClusterParameters(name=name) for name in lrms)
    made = {
        user: SimulatedService(
            clock,
            lrms,
            Faults(seed=100 * seed + number),
            replace(parameters, instance=user),
            clusters,
            user=user,
            runs={"1": (RUN, WELL)},
        )
        for number, user in enumerate(users[:services])
    }
    experiment = Experiment(clock, lrms, made)
    while any(c.processors is None for service in made.values() for c in service.state.clusters.values()):
        assert clock.step()
    return experiment


@pytest.mark.parametrize("parameters", [PARAMETERS, SHORT], ids=["long", "short"])
@pytest.mark.parametrize("seed", range(5))
def test_both_jobs_finish_one_after_the_other(seed: int, parameters: Parameters) -> None:
    """One gives its half back at the end of its life, the other runs, then the first."""
    experiment = prepared(seed, parameters)
    experiment.submit()
    experiment.run(3 * HOUR)
    assert experiment.states() == [JobState.COMPLETED, JobState.COMPLETED]
    assert experiment.over
    records = experiment.records()
    assert 1 <= max(record.hand_backs for record in records) <= MOST_ROUNDS
    launched = sorted(record.launched_at or 0.0 for record in records)
    assert RUN <= launched[1] - launched[0] <= RUN + parameters.placeholder_life
    assert launched[0] - experiment.began_at <= MOST_ROUNDS * parameters.placeholder_life


def test_most_deadlocks_are_broken_in_the_first_round() -> None:
    """Of many pairs of instances few draw the same life; nobody is in step for long."""
    rounds = []
    for seed in range(1000, 1030):
        experiment = prepared(seed, SHORT)
        experiment.submit()
        while not all(service.outcomes for service in experiment.services.values()):
            assert experiment.clock.step()
        rounds.append(max(record.hand_backs for record in experiment.records()))
    assert sum(number == 1 for number in rounds) >= len(rounds) / 2
    assert max(rounds) <= MOST_ROUNDS


@pytest.mark.parametrize("seed", range(4))
def test_somebody_who_holds_directly_gets_what_is_given_back(seed: int) -> None:
    """Who never gives back runs first, after one life at most, and then the job that gave way."""
    experiment = prepared(seed, SHORT, services=1)
    direct = DirectJob(experiment.clock, experiment.lrms)
    direct.submit(user=experiment.lrms[B].favoured)
    experiment.submit()
    experiment.run(HOUR)
    assert experiment.states() == [JobState.COMPLETED]
    (record,) = experiment.records()
    assert direct.ended_at is not None
    assert direct.ended_at - experiment.began_at <= RUN + SHORT.placeholder_life + 3 * REACTION
    assert direct.ended_at <= (record.launched_at or 0.0) <= direct.ended_at + SHORT.placeholder_life


def test_without_a_life_cycle_neither_ever_starts() -> None:
    """Check of the experiment itself: a job that never gives processors back waits for longer than the longest life."""
    experiment = prepared(0, replace(SHORT, placeholder_life=1e9))
    experiment.submit()
    experiment.run(MOST_ROUNDS * SHORT.placeholder_life)
    assert experiment.states() == [JobState.CLAIMING, JobState.CLAIMING]
    assert [record.held for record in experiment.records()] == [NODES, NODES]
