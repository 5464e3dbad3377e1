# SPDX-License-Identifier: Apache-2.0
"""Live experiments: bags of jobs, what their journals tell, and reports on negotiation."""

from __future__ import annotations

import heapq
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.api.client import Client
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.model import EndReason, JobKind, RunnerName
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.report.values import JobReport
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import SimulatedJob, ft, gadget2
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import DAS3
from koala_adapter.tasks.connection import connected, received, sent
from koala_adapter.tasks.server import TOKEN_BYTES
from koala_experiments.bags import WORKER, Bag, BagServer, bag_server, live_job, name_of
from koala_experiments.framework import (
    COUNTERED,
    DECLINING,
    MALLEABLE,
    SCENARIOS,
    Pace,
    Played,
    Said,
    Scenario,
    load_experiment,
)
from koala_experiments.liveruns import JournalRecord
from koala_experiments.malleable import WM_HIGH, WMR_HIGH, KoalaWorkload, koala_workload
from koala_experiments.negotiation import as_published, findings, timeline
from koala_experiments.stage import Places, Stage, application, played, rigid, steps_done
from tests.unit.api.jobreports import job_report
from tests.unit.simulation.test_placeholders import LiveWorld

# -- Bags of work units: any number of workers takes as long as the curve says, and nothing is lost or done twice.


UNIT = 0.25
PACE = 40.0


def seconds_on(bag: Bag, workers: int) -> float:
    """Return when the last of so many workers, who begin together, is through."""
    ready = [(0.0, worker) for worker in range(workers)]
    for worker in range(workers):
        bag.join(worker)
    last = 0.0
    while ready:
        now, worker = heapq.heappop(ready)
        bag.done(worker, 1.0)
        taken = bag.take(worker)
        if taken is not None:
            heapq.heappush(ready, (now + taken, worker))
            last = max(last, now + taken)
    assert bag.empty
    return last


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 16, 32])
@pytest.mark.parametrize("make", [ft, gadget2], ids=["ft", "gadget2"])
def test_n_workers_take_the_nth_execution_time(make: object, workers: int) -> None:
    """FT and GADGET-2 at a pace of 40: within the length of the small units that are given out last."""
    application = ft() if make is ft else gadget2()
    times = [time / PACE for time in application.times()]
    found = seconds_on(Bag(times, UNIT, at=2), workers)
    assert found == pytest.approx(times[workers], rel=0.05)
    assert found >= times[workers] * 0.999


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["join", "take", "leave", "half", "all"])), max_size=200))
def test_work_is_neither_lost_nor_made(steps: list[tuple[int, str]]) -> None:
    bag = Bag([float("inf"), 8.0, 5.0, 4.0], 0.5, at=2)
    taken: dict[int, float] = {}
    done = 0.0
    for worker, step in steps:
        left = bag.left
        if step == "join":
            bag.join(worker)
        elif step == "take" and worker not in taken and bag.take(worker) is not None:
            taken[worker] = left - bag.left
        elif step == "leave":
            bag.leave(worker)
            taken.pop(worker, None)
        elif step in {"half", "all"}:
            part = 0.5 if step == "half" else 1.0
            bag.done(worker, part)
            done += part * taken.pop(worker, 0.0)
        assert bag.left + sum(taken.values()) + done == pytest.approx(bag.units)
    assert bag.empty == (bag.left <= 0 and not taken)


def test_nothing_is_given_out_where_nothing_is_left() -> None:
    bag = Bag([float("inf"), 0.1], 1.0, at=1)
    bag.join(1)
    bag.join(2)
    assert bag.take(1) is not None
    assert bag.take(2) is None
    assert not bag.empty
    bag.leave(1)
    assert bag.take(2) is not None


# -- Workers as processes at a real server: they do all the work, leave when asked to, and prove who they are.


PATIENCE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BagServer]:
    """Give a server on this host."""
    with bag_server("127.0.0.1", tmp_path / "bags") as made:
        yield made


def start_worker(server: BagServer, rank: int, bag: str = "job") -> subprocess.Popen[bytes]:
    """Start a worker as its agent does."""
    return subprocess.Popen(
        [sys.executable, WORKER, "127.0.0.1", str(server.port), bag],
        cwd=server.files[0].parent,
        env={**os.environ, "KOALA_RANK": str(rank)},
        stderr=subprocess.PIPE,
    )


def ended_well(worker: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a worker."""
    _, said = worker.communicate(timeout=PATIENCE)
    assert (worker.returncode, said) == (0, b"")


def test_two_workers_do_all_there_is(server: BagServer) -> None:
    bag = Bag([float("inf"), 2.0, 1.0], 0.1, at=2)
    server.board.bags["job"] = bag
    for worker in [start_worker(server, rank) for rank in (0, 1)]:
        ended_well(worker)
    assert bag.empty
    assert set(server.board.joined_at) == {("job", 0), ("job", 1)}


def test_a_worker_that_is_asked_to_leave_gives_the_rest_back(server: BagServer) -> None:
    """Of a unit of a thousand seconds almost all is left, or all if it had not begun, and it leaves at once."""
    bag = Bag([float("inf"), 1000.0], 1000.0, at=1)
    server.board.bags["job"] = bag
    worker = start_worker(server, 0)
    until = time.monotonic() + PATIENCE
    while bag.left > 0 and time.monotonic() < until:
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    ended_well(worker)
    while bag.left < 0.9 and time.monotonic() < until:
        time.sleep(0.02)
    assert 0.9 < bag.left <= 1.0


def test_a_peer_that_is_no_worker_is_not_served(server: BagServer) -> None:
    server.board.bags["job"] = Bag([float("inf"), 1.0], 1.0, at=1)
    fingerprint, token = server.files[-1].read_text().split()
    for shown, said in (("00" * TOKEN_BYTES, b"job 0"), (token, b"nothing 0"), (token, b"job x"), (token, b"\xff")):
        with connected("127.0.0.1", server.port, fingerprint) as line:
            line.sendall(bytes.fromhex(shown))
            sent(line, said)
            assert received(line) is None
    with connected("127.0.0.1", server.port, fingerprint) as line:
        line.sendall(bytes.fromhex(token))
        sent(line, b"job 0")
        assert float(received(line) or b"") == pytest.approx(1.0)


# -- What a journal tells of a workload is what the simulator says of it, where the world answers at once.


def named(journal: list[ev.Event], jobs: dict[str, SimulatedJob]) -> list[ev.Event]:
    """Return a journal in which jobs have the names under which live ones are submitted."""
    return [
        replace(one, job=replace(one.job, name=name_of(jobs[one.job.id]))) if isinstance(one, ev.JobSubmitted) else one
        for one in journal
    ]


@pytest.mark.parametrize("workload", [WM_HIGH, WMR_HIGH], ids=["Wm-high", "Wmr-high"])
def test_the_journal_tells_what_the_simulator_says(workload: KoalaWorkload) -> None:
    """Start, end, mean and largest size of each of 40 jobs; and how many messages there were."""
    jobs = koala_workload(workload, 0, jobs=40, poisson=True)
    world = LiveWorld(DAS3, jobs, Approach.PWA, "fpsma")
    world.run()
    record = JournalRecord({name_of(one): one for one in jobs})
    record.read(named(world.service.journal, {str(one.number): one for one in jobs}))
    found = record.outcome(1.0)
    expected = simulate(DAS3, jobs, Settings(approach=Approach.PWA, malleability="fpsma"))
    assert record.failed == []
    assert found.unfinished == 0
    assert found.grow_messages + found.shrink_messages == pytest.approx(
        expected.grow_messages + expected.shrink_messages, rel=0.1
    )
    simulated = {one.job.number: one for one in expected.jobs}
    assert len(found.jobs) == 40
    for one in found.jobs:
        other = simulated[one.job.number]
        assert one.started_at == pytest.approx(other.started_at)
        assert one.ended_at == pytest.approx(other.ended_at)
        assert one.maximum_processors == other.maximum_processors
        assert one.average_processors == pytest.approx(other.average_processors)
        assert (one.grown, one.shrunk) == (other.grown, other.shrunk)
        assert one.clusters == other.clusters


def test_times_go_by_the_pace() -> None:
    """A journal of a tenth of the time, at ten seconds per second, tells the same."""
    jobs = koala_workload(WM_HIGH, 0, jobs=5)
    world = LiveWorld(DAS3, jobs, Approach.PWA, "fpsma")
    world.run()
    journal = named(world.service.journal, {str(one.number): one for one in jobs})
    outcomes = []
    for events, pace in ((journal, 1.0), ([replace(one, time=one.time / 10.0) for one in journal], 10.0)):
        record = JournalRecord({name_of(one): one for one in jobs})
        record.read(events)
        outcomes.append([(one.job.number, round(one.ended_at, 3)) for one in record.outcome(pace).jobs])
    assert outcomes[0] == outcomes[1]
    assert record.sizes(10.0)[0][0] == (0.0, 2)


def test_a_live_job_is_what_was_simulated(tmp_path: Path) -> None:
    jobs = koala_workload(WMR_HIGH, 0, jobs=20)
    for one in jobs:
        made = live_job(one, address="127.0.0.1", port=1, files=[tmp_path / "worker.py"], user="me")
        (worker,) = made.components
        if one.malleable:
            assert (made.kind, made.runner) == (JobKind.MALLEABLE, RunnerName.WORKERS)
            assert (worker.minimum, worker.maximum) == (2, one.application.maximum)
            assert worker.sizes == ("power-of-two" if one.application.name == "FT" else "any")
        else:
            assert (made.kind, made.runner, worker.minimum, worker.maximum) == (JobKind.RIGID, RunnerName.RANKS, 2, 2)


# -- What is told of scenarios of negotiation: whether they went as published, who had what when, and how fast.


def said(at: float, sender: str, status: str, processors: int) -> Said:
    """Return a message."""
    return Said(
        negotiation=1, at=at, sender=sender, status=f"NT_{status}", processors=processors, reason="", template="<NT/>"
    )


def output(*lines: tuple[object, ...]) -> bytes:
    """Return what the program prints."""
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


COMPUTED = output(
    (1001.0, "begins", 0, 2),
    (1001.5, "step", 1, 2),
    (1002.0, "step", 2, 2),
    (1002.1, "asks", 14, 6, "no more is free"),
    (1004.0, "step", 3, 2),
    (1004.5, "resized", 3, 8),
    (1005.0, "step", 4, 8),
    (1005.125, "step", 5, 8),
    (1005.25, "step", 6, 8),
)
DIALOGUE = (
    said(2.1, "application", "NEGOTIATION", 14),
    said(2.2, "koala", "NEGOTIATION", 6),
    said(2.3, "application", "ACCEPTED", 6),
    said(2.4, "koala", "COMMITTED", 6),
    said(4.6, "koala", "CONSUMED", 6),
)


def countered(scenario: Scenario = COUNTERED) -> Played:
    """Return the second scenario as it went."""
    return played(scenario, COMPUTED, begin=1000.0, end=1006.0, beside=[], messages=DIALOGUE)


def test_what_the_program_has_printed() -> None:
    one = countered()
    assert one.sizes == [(1.0, 2), (4.5, 8), (6.0, 0)]
    assert one.course == [2, 8]
    assert one.rate(2) == pytest.approx(1 / 1.25)
    assert one.rate(8) == pytest.approx(8.0)
    assert one.rate(4) is None
    assert steps_done(COMPUTED) == 6
    assert steps_done(COMPUTED[:-2]) == 5, "a line that is not whole does not count"


def test_a_scenario_goes_as_published() -> None:
    """Sizes and messages are the paper's, in their order."""
    one = countered()
    assert as_published(one)
    assert not as_published(replace(one, messages=DIALOGUE[:1]))
    assert not as_published(replace(one, sizes=[(1.0, 2), (6.0, 0)]))
    declining = replace(one, scenario=DECLINING)
    assert not as_published(declining)


def test_processors_that_come_free_one_after_the_other() -> None:
    """The offer of a part of them is no part of the scenario; nor would be another end of it."""
    whole = [("koala", "NEGOTIATION", 4), ("application", "ACCEPTED", 4), ("koala", "COMMITTED", 4)]
    messages = [replace(said(2.0, *one), negotiation=2) for one in whole]
    part = [said(1.0, "koala", "NEGOTIATION", 1), said(1.1, "application", "REJECTED", 0)]
    one = replace(countered(MALLEABLE), sizes=[(1.0, 4), (4.5, 8), (6.0, 0)], messages=[*part, *messages])
    assert as_published(one)
    assert not as_published(replace(one, messages=part))
    declined = [replace(said(3.0, *two), negotiation=3) for two in (whole[0], ("application", "REJECTED", 0))]
    assert not as_published(replace(one, messages=[*declined, *messages])), "all of them were declined"


def test_findings_need_all_rates() -> None:
    told = findings([countered()])
    assert [one.holds for one in told] == [True, False]  # eight processors were ten times as fast as two
    assert "application negotiation 14; koala negotiation 6" in told[0].outcome
    slow = findings([replace(countered(), steps=[(1.5, 2)])])
    assert slow[-1].holds is None


def test_who_had_which_processor_when() -> None:
    one = replace(countered(), beside=[(1, 0.5, 2.0)])
    figure = timeline(one)
    own, coming, others = figure.series
    assert list(zip(own.y, own.x, own.high, strict=True))[:2] == [(0, 1.0, 6.0), (1, 1.0, 6.0)]
    assert [(y, x, high) for y, x, high in zip(coming.y, coming.x, coming.high, strict=True)] == [
        (row, 2.4, 4.5) for row in range(2, 8)
    ]
    assert list(others.y) == [2]
    bars = [(y, x, h) for series in figure.series for y, x, h in zip(series.y, series.x, series.high, strict=True)]
    for row in range(8):
        spans = sorted((since, until) for y, since, until in bars if y == row)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_jobs_of_a_scenario(scenario: Scenario) -> None:
    job = application(scenario, Pace(), user="u", anywhere=False)
    (component,) = job.components
    assert job.kind is JobKind.MALLEABLE
    assert component.minimum + sum(scenario.beside) <= 8
    assert component.command[2:] == (
        "30",
        "0.8",
        scenario.sizes,
        str(scenario.wish),
        str(scenario.goal),
        str(scenario.initial * 125),
    )
    assert rigid(3, 5.0, user="u", cluster="a").components[0].maximum == 3


def test_the_experiment_plays_all_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = load_experiment("negotiation")
    asked: list[tuple[str, int, str]] = []

    def play(scenario: Scenario, pace: Pace, site: str) -> Played:
        asked.append((scenario.name, pace.steps, site))
        return countered(scenario)

    monkeypatch.setattr("koala_experiments.play_scenario", play)
    result = chosen.run(chosen.options(settings={"steps": "12", "site": "x"}))
    assert asked == [(one.name, 12, "x") for one in SCENARIOS]
    assert [one.name for one in result.listings] == [f"templates-{one.name}" for one in SCENARIOS]
    assert result.listings[0].text.startswith("2.100 s, application says:\n<NT/>")
    assert len(result.tables[0].rows) == 4 * len(DIALOGUE)


class Refusing:
    """In the place of a service that takes one job only; those that it is told to cancel are over at once."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self._taken: list[str] = []

    def submit(self, _job: object) -> str:
        """Take the first job."""
        if self._taken:
            raise ServiceUnavailableError("it has gone")
        self._taken.append("1")
        return "1"

    def cancel(self, job_id: str) -> None:
        """Take note."""
        self.cancelled.append(job_id)

    def job(self, job_id: str) -> JobReport:
        ended = JobOutcome(state=JobState.CANCELLED, reason=EndReason.CANCELLED, exit_code=243)
        return job_report(id=job_id, state=JobState.CANCELLED, outcome=ended)


def test_a_scenario_that_cannot_be_set_up_leaves_no_job(tmp_path: Path) -> None:
    """What was submitted before a submission fails is cancelled: on a site's clusters it would run for an hour."""
    client = Refusing()
    stage = Stage(cast("Client", client), tmp_path, Places(home="a", other="a"))
    scenario = next(one for one in SCENARIOS if len(one.beside) > 1)
    with pytest.raises(ServiceUnavailableError):
        stage.play(scenario, Pace(steps=6, work=0.1))
    assert client.cancelled == ["1"]
