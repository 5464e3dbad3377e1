# SPDX-License-Identifier: Apache-2.0
"""Replays: schedules computed by hand, numbers of other simulators, and laws that every schedule obeys."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from koala_adapter.queueing.backfill import POLICIES
from koala_adapter.simulation.metrics import job_metrics, summarized, used_processors
from koala_adapter.simulation.replay import NEVER, Policy, Replay, Site, replay
from koala_adapter.simulation.workload import NEEDED, read_trace, workload
from tests.unit.simulation.workloads import PROCESSORS, any_workload, archive, make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.simulation.metrics import Summary
    from koala_adapter.simulation.workload import Workload

EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES)


def played(work: Workload, policy: str = "easy", processors: int = PROCESSORS) -> Replay:
    """Return what happens on one cluster."""
    return replay(work, Policy(name=policy), [Site(name="here", processors=processors)])


def starts(policy: str, *jobs: tuple[float, ...], processors: int = 4) -> Sequence[float]:
    """Return when jobs, as `make` takes them, start on a cluster of four processors."""
    return played(make(*jobs, processors=processors), policy, processors).starts


def test_fcfs_by_hand() -> None:
    """Nobody passes the job that waits, even where there is room."""
    assert starts("fcfs", (0, 3, 10), (1, 2, 5), (2, 1, 1), (3, 4, 2)) == [0, 10, 10, 15]


def test_easy_by_hand() -> None:
    """What ends by the shadow time overtakes, and so does what needs only the extra processors; others wait."""
    # 3 of 4 are taken until 10. The head needs 2: shadow time 10, two extra processors then.
    assert starts("easy", (0, 3, 10), (1, 2, 5), (2, 1, 8)) == [0, 10, 2]
    assert starts("easy", (0, 3, 10), (1, 2, 5), (2, 1, 9)) == [0, 10, 2]
    # The head needs all 4: nothing is extra, so a job must end by 10.
    assert starts("easy", (0, 3, 10), (1, 4, 5), (2, 1, 8), (2, 1, 9)) == [0, 10, 2, 15]
    # With the simplest backfill extra processors are nobody's.
    assert starts("metacluster", (0, 3, 10), (1, 2, 5), (2, 1, 9)) == [0, 10, 10]


def test_estimates_count_and_not_run_times() -> None:
    """The shadow time is that of the estimates; an early end lets the head start early."""
    assert starts("easy", (0, 3, 5, 10), (1, 4, 5), (2, 1, 8)) == [0, 10, 2]
    assert starts("easy", (0, 3, 5, 10), (1, 4, 5), (2, 1, 2, 9)) == [0, 5, 10]


def test_all_of_an_instant_happens_before_the_pass() -> None:
    """A job that comes when another ends finds its processors free, and both jobs of an instant are seen at once."""
    assert starts("easy", (0, 4, 10), (10, 4, 5)) == [0, 10]
    # One pass per event would start the small job in the room of the large one that comes at the same instant.
    assert starts("fcfs", (0, 4, 10), (3, 4, 5), (10, 1, 5)) == [0, 10, 15]
    assert starts("easy", (0, 2, 10), (0, 2, 10), (5, 4, 1), (5, 1, 5)) == [0, 0, 10, 11]


@EVERY_POLICY
@given(work=any_workload)
def test_laws_of_every_schedule(policy: str, work: Workload) -> None:
    """Every job runs once, not before its submission, never on more processors than there are; work is conserved."""
    result = played(work, policy)
    assert not result.interrupted
    assert all(start >= submit for start, submit in zip(result.starts, work.submits, strict=True))
    measured = job_metrics(result)
    used = used_processors(measured)
    assert 0 <= min(used.values) <= max(used.values) <= PROCESSORS
    total = used.mean(0, max(measured.ends)) * max(measured.ends)
    assert total == pytest.approx(sum(size * run for size, run in zip(work.sizes, work.runs, strict=True)))


@EVERY_POLICY
@given(work=any_workload)
def test_no_policy_leaves_the_cluster_idle(policy: str, work: Workload) -> None:
    """While a job waits, the head of the queue at least does not fit: never do all processors stand idle."""
    measured = job_metrics(played(work, policy))
    idle = [
        (end, min((start for start in measured.starts if start >= end), default=end))
        for end in [0, *measured.ends]
        if not any(start <= end < until for start, until in zip(measured.starts, measured.ends, strict=True))
    ]
    waiting = list(zip(measured.submits, measured.starts, strict=True))
    assert not any(submit <= begin < end <= start for begin, end in idle for submit, start in waiting)


@given(work=any_workload)
def test_fcfs_never_overtakes(work: Workload) -> None:
    """Jobs start in the order in which they were submitted."""
    assert all(one <= other for one, other in pairwise(played(work, "fcfs").starts))


@given(work=any_workload)
def test_firstfit_is_easy(work: Workload) -> None:
    """FIRSTFIT with one reservation and the order of arrival gives the schedule of EASY."""
    assert played(work, "firstfit").starts == played(work, "easy").starts


@given(work=any_workload)
def test_the_first_of_the_queue_is_not_delayed_by_backfill(work: Workload) -> None:
    """With exact estimates, the first job that waits starts under EASY when it starts under FCFS."""
    exact = make(*zip(work.submits, work.sizes, work.runs, work.runs, strict=True))
    fcfs, easy = played(exact, "fcfs").starts, played(exact, "easy").starts
    first = next((place for place, start in enumerate(fcfs) if start > exact.submits[place]), 0)
    assert easy[: first + 1] == fcfs[: first + 1]


@EVERY_POLICY
@given(work=any_workload)
def test_a_replay_can_be_repeated(policy: str, work: Workload) -> None:
    """The same workload gives the same schedule."""
    assert played(work, policy) == played(work, policy)


def test_a_job_goes_to_the_least_loaded_cluster_that_is_large_enough() -> None:
    """Load is what jobs need over what there is; among equals the larger cluster; large jobs only where they fit."""
    work = make((0, 1, 10), (0, 2, 10), (0, 2, 10), (0, 6, 10), (0, 2, 10))
    sites = [Site(name="small", processors=4), Site(name="large", processors=8)]
    result = replay(work, Policy(name="metacluster"), sites)
    # 0/4 and 0/8: large; 0/4 and 1/8: small; 2/4 and 1/8: large; 6 fit only on large, and wait; 2/4 and 9/8: small.
    assert list(result.places) == [1, 0, 1, 1, 0]
    assert list(result.starts) == [0, 0, 0, 10, 0]
    assert result.processors == 12


def test_a_faster_cluster_ends_jobs_sooner() -> None:
    """On a cluster of speed 2 a job of 10 s takes 5, and so does its estimate."""
    work = make((0, 4, 10), (1, 4, 10))
    result = replay(work, Policy(name="easy"), [Site(name="fast", processors=4, speed=2)])
    assert (list(result.starts), list(result.runs)) == ([0, 5], [5, 5])
    assert list(work.runs) == [10, 10]


@given(work=any_workload)
def test_one_cluster_of_several_loops_is_one_cluster(work: Workload) -> None:
    """The loop for several clusters gives on one of ordinary speed what the loop for one gives."""
    site = Site(name="here", processors=PROCESSORS)
    twice = make(
        *((t, n, 2 * r, 2 * e) for t, n, r, e in zip(work.submits, work.sizes, work.runs, work.estimates, strict=True))
    )
    fast = replay(twice, Policy(name="easy"), [Site(name="here", processors=PROCESSORS, speed=2)])
    assert list(fast.starts) == list(replay(work, Policy(name="easy"), [site]).starts)


def long_workload() -> Workload:
    """Return jobs that take many instants."""
    return make(*((number, 3, 7) for number in range(12_000)))


def test_a_watch_can_end_a_replay() -> None:
    """What was started until then is the result, and is marked as a part."""
    heard: list[int] = []

    def stop_half_way(submitted: int, /) -> bool:
        heard.append(submitted)
        return submitted < 6_000

    result = replay(long_workload(), Policy(name="easy"), [Site(name="x", processors=8)], watch=stop_half_way)
    assert result.interrupted
    assert heard == sorted(heard)
    measured = job_metrics(result)
    assert 0 < len(measured.starts) < 12_000
    assert min(measured.starts) >= 0
    assert list(result.starts).count(NEVER) == 12_000 - len(measured.starts)
    assert summarized(measured, 8).jobs == len(measured.starts)


def test_an_interrupt_ends_a_replay() -> None:
    """Ctrl-C gives the result so far."""

    def interrupt(submitted: int, /) -> bool:
        if submitted:
            raise KeyboardInterrupt
        return True

    result = replay(long_workload(), Policy(name="easy"), [Site(name="x", processors=8)], watch=interrupt)
    assert result.interrupted
    assert 0 < len(job_metrics(result).waits) < 12_000


PUBLISHED = {
    "NASA-iPSC-1993-3.1-cln": (18_066, 128, 8.081, 4.067, 1.0119, 7_949_022),
    "CTC-SP2-1996-3.1-cln": (77_205, 338, 767_875.633, 14_990.196, 51.5512, 29_306_751),
    "SDSC-DS-2004-2.1-cln": (84_893, 1_664, 35_591.694, 5_271.240, 32.5983, 31_655_986),
    "HPC2N-2002-2.2-cln": (202_871, 240, 16_702.461, 11_259.430, 88.1741, 109_256_855),
    "SDSC-BLUE-2000-4.2-cln": (232_536, 1_152, 379_345.049, 7_756.726, 36.1679, 84_289_735),
}
"""Jobs, processors, mean wait under FCFS and EASY, mean bounded slowdown and makespan under EASY: a plain loop's."""
CHECKED = tuple(PUBLISHED) if os.environ.get("KOALA_ALL_TRACES") else ("NASA-iPSC-1993-3.1-cln",)
"""All of them take a quarter of a minute."""


@pytest.mark.parametrize("name", CHECKED)
def test_archive_traces_give_the_numbers_of_an_independent_loop(name: str) -> None:
    """Mean waits, bounded slowdown and makespan agree in every digit that is known."""
    jobs, processors, fcfs, easy, bounded, makespan = PUBLISHED[name]
    work = workload(read_trace(archive(name), NEEDED))
    assert (len(work), work.processors) == (jobs, processors)
    totals = {policy: _totals(work, policy) for policy in ("fcfs", "easy")}
    assert round(totals["fcfs"].mean_wait, 3) == fcfs
    assert round(totals["easy"].mean_wait, 3) == easy
    assert round(totals["easy"].mean_bounded_slowdown, 4) == bounded
    assert totals["easy"].makespan == makespan


def _totals(work: Workload, policy: str) -> Summary:
    processors = work.processors or 0
    return summarized(job_metrics(played(work, policy, processors)), processors)
