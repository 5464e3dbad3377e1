# SPDX-License-Identifier: Apache-2.0
"""What jobs have held and used. For how long processors were held is added up again after each event of every test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.api import reporting
from koala_adapter.model import EndReason, JobId, RetriedEnd, TaskEnd
from koala_adapter.outcome import JobState, TaskUsage
from koala_adapter.report.values import RANKS_LISTED, JobReport, UsageReport, run_time, waiting_time
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, OfferProcessors
from koala_adapter.slots import Slot
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import Site, component, job, of_kind

MIB = 2**20


def used(seconds: float, mib: int = 1) -> TaskUsage:
    return TaskUsage(
        user_seconds=seconds - 0.5, system_seconds=0.5, memory_bytes=mib * MIB, read_bytes=10, written_bytes=20
    )


def measure(site: Site, rank: int, usage: TaskUsage, id_: str = "1") -> list[Action]:
    return site.post(ev.RankMeasured(time=site.now, job_id=JobId(id_), rank=rank, usage=usage))


def reported(site: Site, id_: str = "1") -> JobReport:
    return reporting.job_report(site.scheduler, site.record(id_), now=site.now, wall_offset=0.0, output_directory="")


def usage_of(site: Site, id_: str = "1") -> UsageReport:
    usage = reported(site, id_).usage
    assert usage is not None
    return usage


def test_processors_are_held_from_the_first_agent_to_the_end() -> None:
    """Also while the job waits for others; a rank of several threads has so many processors."""
    site = Site({"a": 8})
    wide = replace(component("x", 2, cluster="a"), slot=Slot(threads=3))
    first, second = site.queue(job("1", wide))
    assert reported(site).usage is None
    site.hold(first)
    site.pass_time(10)
    assert usage_of(site).held_before_launch_seconds == pytest.approx(30)
    site.hold(second)
    site.run("1")
    site.pass_time(20)
    site.complete("1")
    site.pass_time(100)  # until the batch system has ended them is not the job's time
    usage = usage_of(site)
    assert usage.held_before_launch_seconds == pytest.approx(30)
    assert usage.held_seconds == pytest.approx(30 + 20 * 6)


def test_a_processor_that_is_handed_on_is_held_anew() -> None:
    site = Site({"a": 2})
    site.start(job("1", 2))
    site.submit(job("2", 2))
    site.pass_time(30)
    site.complete("1")
    site.pass_time(7)
    assert usage_of(site, "1").held_seconds == pytest.approx(60)
    assert usage_of(site, "2").held_seconds == pytest.approx(14)


def test_each_size_counts_for_its_time() -> None:
    """Placeholders of a growth are held before the application has taken them in."""
    site = MalleableSite({"a": 10})
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 8), initial=2)))
    site.pass_time(10)
    site.answer(offer, 6)
    site.take_all()
    site.hold_stubs()
    site.pass_time(5)
    usage = usage_of(site)
    assert usage.held_seconds == pytest.approx(2 * 10 + 8 * 5)
    assert usage.held_before_launch_seconds == 0


def test_ranks_are_added_up() -> None:
    """The largest memory is that of one rank; what was asked for it stands beside."""
    site = Site({"a": 4})
    large = replace(component("y", 1, cluster="a"), slot=Slot(memory_mib=2048))
    site.start(job("1", component("x", 2, cluster="a"), large))
    site.pass_time(100)
    for rank, one in enumerate([used(30), replace(used(60), gpu_seconds=7.0), used(90, mib=1024)]):
        measure(site, rank, one)
    site.complete("1")
    usage = usage_of(site)
    assert (usage.used_seconds, usage.system_seconds) == (180, 1.5)
    assert usage.share == pytest.approx(0.6)
    assert (usage.memory_bytes, usage.memory_rank, usage.memory_asked_bytes) == (1024 * MIB, 2, 2048 * MIB)
    assert (usage.read_bytes, usage.written_bytes, usage.gpu_seconds) == (30, 60, 7.0)
    assert [(one.rank, one.component) for one in usage.by_rank] == [(0, "x"), (1, "x"), (2, "y")]


def test_ranks_that_end_with_their_job_count_once() -> None:
    """Their agents tell of them when the job is over already, and again when they register again."""
    site = Site({"a": 2})
    site.start(job("1", 2))
    site.pass_time(10)
    measure(site, 0, used(4))
    site.rank_ends("1", 0, TaskEnd(reason=EndReason.EXITED, exit_code=1))
    assert site.record("1").state is JobState.FAILED
    assert (usage_of(site).measured, usage_of(site).uncounted) == (1, 1)
    for seconds in (5, 6):
        measure(site, 1, used(seconds))
    assert usage_of(site).used_seconds == 9
    assert usage_of(site).uncounted == 0


def test_all_attempts_count() -> None:
    """Times and bytes are added up by rank; the processors held are those before each launch, and of each run."""
    site = Site({"a": 2})
    site.submit(replace(job("1", 2), retries=1, retry_on=(RetriedEnd.FAILED,)))
    for attempt, seconds in enumerate((5, 7)):
        site.take_all()
        first, second = site.claimed("1")
        site.hold(first.id)
        site.pass_time(3)
        site.hold(second.id)
        site.run("1")
        site.pass_time(10)
        measure(site, 0, used(seconds, mib=8 - attempt))
        site.rank_ends("1", 0, TaskEnd(reason=EndReason.EXITED, exit_code=1))
        site.end_ending()
        site.pass_time(0)
    assert site.record("1").state is JobState.FAILED
    usage = usage_of(site)
    assert (usage.used_seconds, usage.memory_bytes, usage.read_bytes) == (12, 8 * MIB, 20)
    assert (usage.measured, usage.uncounted) == (1, 2)
    assert usage.held_before_launch_seconds == pytest.approx(6)
    assert usage.held_seconds == pytest.approx(6 + 2 * 20)


def test_between_two_attempts_a_job_waits() -> None:
    """The run that is over is no part of what it waits or runs, also when it is cancelled then."""
    site = Site({"a": 4})
    site.start(replace(job("1", 1), retries=1, submitted_at=site.now))
    site.pass_time(100)
    site.rank_ends("1", 0, TaskEnd(reason=EndReason.EXITED, exit_code=1))
    held = usage_of(site)
    assert (held.held_seconds, held.held_before_launch_seconds) == (100, 0)
    site.pass_time(7)
    for _ in range(2):
        report = reported(site)
        assert (waiting_time(report), run_time(report)) == (7, None)
        site.cancel("1")


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_that_do_not_exist_have_used_nothing(rank: int) -> None:
    site = Site({"a": 2})
    site.start(job("1", 2))
    measure(site, rank, used(1))
    measure(site, 0, used(1), "7")
    assert site.record("1").usages == {}


def test_of_many_ranks_the_least_and_the_most_busy_are_listed() -> None:
    site = Site({"a": 40})
    site.start(job("1", 40))
    for rank in range(40):
        measure(site, rank, used(float(100 - rank)))
    listed = usage_of(site).by_rank
    assert len(listed) == RANKS_LISTED
    assert [one.rank for one in listed] == [*range(39, 31, -1), *range(7, -1, -1)]
