# SPDX-License-Identifier: Apache-2.0
"""Large input files travel before processors are claimed: when placeholders are submitted, and what can go wrong."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import CACHED, BatchKey, ClusterName, Component, EndReason, InputFile, Job, JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, StageFiles, StopStaging
from koala_adapter.scheduler.claiming.plannedstart import LOOK, MARGIN, STARTS_IN
from koala_adapter.scheduler.claiming.waiting import FIRST_LOOK
from koala_adapter.scheduler.clusters import Wait
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from tests.unit.scheduler.scheduler_site import A, B, C, Site, component, job, launches, of_kind, submissions

MIB = 1024 * 1024
SIZE = 300 * MIB
GENOME = InputFile(source="/data/genome", target="genome", size=SIZE)
BEFORE = STARTS_IN + MARGIN
"""Seconds before the files are there at which placeholders are submitted where processors are idle."""


def with_genome(one: Component) -> Component:
    return replace(one, input_files=(GENOME,))


def genome_job(id_: str = "1", size: int = 2, cluster: str | None = "a") -> Job:
    return job(id_, with_genome(component("c", size, cluster=cluster)))


class FilesSite(Site):
    """Clusters a and b, to which files are brought: to a at 1 MiB/s, as is said of it, to b at an unknown speed."""

    def __init__(self, parameters: Parameters | None = None, *, stages: bool = True) -> None:
        super().__init__(
            {"a": 4, "b": 4},
            parameters,
            ClusterParameters(name=A, stages=stages, bandwidth=1.0),
            ClusterParameters(name=B, stages=stages),
        )

    def progressed(self, missing: int, rate: float | None, cluster: ClusterName = A) -> list[Action]:
        return self.post(
            ev.StagingProgressed(time=self.now, job_id=JobId("1"), cluster=cluster, missing_bytes=missing, rate=rate)
        )

    def staged(self, id_: str = "1", cluster: ClusterName = A) -> list[Action]:
        return self.post(ev.FilesStaged(time=self.now, job_id=JobId(id_), cluster=cluster))

    def failed(self, reason: str, cluster: ClusterName = A) -> list[Action]:
        return self.post(ev.StagingFailed(time=self.now, job_id=JobId("1"), cluster=cluster, reason=reason))


def travelling() -> FilesSite:
    """Return a site with a job whose file is on its way to a."""
    site = FilesSite()
    site.submit(genome_job())
    return site


# -- When placeholders are submitted


def test_placeholders_are_submitted_close_to_the_estimated_arrival() -> None:
    site = FilesSite()
    actions = site.submit(genome_job())
    assert of_kind(StageFiles, actions) == [StageFiles(job_id=JobId("1"), cluster=A, files=(GENOME,))]
    assert not submissions(site.pass_time(300 - BEFORE - 1))
    assert submissions(site.pass_time(2)) == {"a": 2}
    site.take_all()
    site.hold_all("1")
    assert site.record("1").state is JobState.CLAIMING
    assert launches(site.staged()) == ["1"]


def test_a_file_with_a_logical_name_is_brought_where_it_is_missing() -> None:
    """Then it is there for the next job, for which it is kept."""
    site, genome = FilesSite(), InputFile(source="lfn:genome", target="genome")
    site.post(ev.FilesFound(time=site.now, cluster=A, bringable=((genome.source, SIZE),)))
    for id_ in "12":
        actions = site.submit(job(id_, replace(component("c", 2, cluster="a"), input_files=(genome,))))
        assert of_kind(StageFiles, actions) == [
            StageFiles(job_id=JobId(id_), cluster=A, files=(replace(genome, size=SIZE),))
        ]
        assert not submissions(actions) or id_ == "2"
        place = f"{CACHED}{'0' * 64}/{SIZE}"
        site.post(ev.FilesFound(time=site.now, cluster=A, found=((genome.source, place),)))
        site.staged(id_)
        site.take_all()
        site.hold_all(id_)
        assert site.record(id_).state is JobState.LAUNCHING


def test_to_a_cluster_here_only_files_with_logical_names_are_brought() -> None:
    """Others are here, however large they are."""
    site, genome = Site({"c": 4}, None, ClusterParameters(name=C, stages=True, here=True)), "lfn:genome"
    site.post(ev.FilesFound(time=site.now, cluster=C, bringable=((genome, 9),)))
    assert submissions(site.submit(genome_job("1", cluster="c"))) == {"c": 2}
    both = (GENOME, InputFile(source=genome, target="genome"))
    actions = site.submit(job("2", replace(component("c", 2, cluster="c"), input_files=both)))
    assert [[file.source for file in one.files] for one in of_kind(StageFiles, actions)] == [[genome]]
    assert not submissions(actions)
    site.post(ev.FilesFound(time=site.now, cluster=C, found=((genome, f"{CACHED}{'0' * 64}/9"),)))
    assert submissions(site.post(ev.FilesStaged(time=site.now, job_id=JobId("2"), cluster=C))) == {"c": 2}


def test_the_estimate_gets_better_as_files_arrive() -> None:
    site = travelling()
    assert not submissions(site.progressed(SIZE // 2, 1.5 * MIB))  # another 100 s
    assert not submissions(site.pass_time(100 - BEFORE - 1))
    assert submissions(site.progressed(MIB, MIB)) == {"a": 2}


def test_files_that_another_cluster_holds_come_from_there() -> None:
    """From its site, where the way from there is faster."""
    there = ClusterParameters(name=C, files=("/data",), site="far")
    site = Site({"b": 4, "c": 4}, None, ClusterParameters(name=B, stages=True, bandwidth_from=((C, 10.0),)), there)
    assert not submissions(site.submit(genome_job(cluster="b")))
    assert "0.0 MiB of 300 MiB on b from far, there in 30 s at 10 MiB/s" in site.explained()
    assert submissions(site.pass_time(30 - BEFORE)) == {"b": 2}


def test_at_an_unknown_speed_it_is_waited_for_the_first_news() -> None:
    site = FilesSite()
    site.submit(genome_job(cluster="b"))
    assert not submissions(site.pass_time(LOOK - 1))
    assert not submissions(site.progressed(SIZE, 3.0 * MIB, B))
    assert submissions(site.pass_time(100 - BEFORE)) == {"b": 2}


def test_a_busy_cluster_is_asked_as_much_earlier_as_others_have_waited_there() -> None:
    site = FilesSite()
    site.poll("a", 4, idle=0)
    site.state.clusters[A].waits = [Wait(batch=site.state.parameters.instance, seconds=200.0)]  # type: ignore[arg-type]
    site.submit(genome_job())
    assert not submissions(site.pass_time(300 - 200 - MARGIN - 1))
    assert submissions(site.pass_time(1)) == {"a": 2}


def test_all_components_are_held_close_to_the_arrival_of_the_last_file() -> None:
    site = FilesSite()
    actions = site.submit(job("1", with_genome(component("far", 2, cluster="a")), component("near", 1, cluster="b")))
    assert [one.cluster for one in of_kind(StageFiles, actions)] == [A]
    assert not submissions(actions)
    assert submissions(site.pass_time(300)) == {"a": 2, "b": 1}


@pytest.mark.parametrize("case", ["small", "here", "held"])
def test_what_need_not_travel_is_not_waited_for(case: str) -> None:
    site = FilesSite(stages=case != "here")
    one = genome_job()
    if case == "small":
        one = job("1", replace(one.components[0], input_files=(replace(GENOME, size=MIB),)))
    if case == "held":
        held = replace(site.clusters[0], files=("/data",))
        site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=(held, site.clusters[1])))
    actions = site.submit(one)
    assert submissions(actions) == {"a": 2}
    assert bool(of_kind(StageFiles, actions)) is (case == "held")


# -- What is told


def test_explained_while_files_travel() -> None:
    site = travelling()
    assert site.explained() == (
        "The job is placed (2 on a). Its input files are on the way: 0.0 MiB of 300 MiB on a, there in 5 min at 1.0 "
        "MiB/s. Processors are asked for so that they are held then: 2 on a in 5 min, expected at once."
    )
    site.progressed(180 * MIB, 25.0 * MIB)
    assert "120 MiB of 300 MiB on a, there in 7 s at 25 MiB/s" in site.explained()
    assert "The job holds 0 of 2 processors" in site.explained()


# -- What goes wrong


def test_processors_that_come_too_early_are_handed_back_and_the_job_is_not_set_back() -> None:
    site = FilesSite(Parameters(placeholder_life=40.0))
    site.submit(genome_job())
    site.pass_time(300 - BEFORE)
    site.take_all()
    site.hold_all("1")
    site.progressed(SIZE, MIB)  # it was much too optimistic
    site.pass_time(60)
    record = site.record("1")
    assert (record.hand_backs, record.failed_claims, record.tries, record.state) == (1, 0, 0, JobState.CLAIMING)
    assert "files are still on the way" in record.last_trouble
    site.end_ending()
    assert submissions(site.pass_time(240)) == {"a": 2}
    site.staged()
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]


def test_files_that_cannot_be_brought_to_a_cluster_go_to_another_one() -> None:
    site = FilesSite()
    site.submit(genome_job(cluster=None))
    first = site.record("1").claims[0].cluster
    assert first is not None
    site.failed("no space left on device", first)
    actions = site.pass_time(LOOK - 1)
    (other,) = {A, B} - {first}
    assert [one.cluster for one in of_kind(StageFiles, actions)] == [other]
    assert list(site.record("1").staging) == [other]


def test_files_that_can_be_brought_nowhere_end_the_job() -> None:
    site = travelling()
    site.failed("no space left on device")
    outcome = site.outcome("1")
    assert outcome.state is JobState.REFUSED
    assert "input files cannot be brought to a: no space left on device" in outcome.detail


@pytest.mark.parametrize("after", [0, 290])
def test_the_transfer_of_a_cancelled_job_is_stopped(after: float) -> None:
    site = travelling()
    site.pass_time(after)
    assert of_kind(StopStaging, site.cancel("1")) == [StopStaging(job_id=JobId("1"), cluster=A)]
    assert not site.staged()


def test_files_are_asked_for_again_after_a_restart_and_when_nothing_is_heard() -> None:
    site = travelling()
    assert of_kind(StageFiles, site.pass_time(300 + LOOK))
    site.take_all()
    site.now += 1000
    again = site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    assert [one.cluster for one in of_kind(StageFiles, again)] == [A]


def test_after_a_restart_an_old_estimate_does_not_count() -> None:
    site = travelling()
    site.now += 1000
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    assert not submissions(site.pass_time(30))
    assert not submissions(site.progressed(SIZE, MIB))
    assert submissions(site.pass_time(300)) == {"a": 2}


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "does not"])
def test_after_a_restart_a_cluster_that_has_not_answered_yet_is_waited_for(*, answers: bool) -> None:
    """What was postponed is submitted when it answers, and given up when it does not in time."""
    site = travelling()
    site.post(ev.ClusterUnavailable(time=site.now, cluster=A, reason="it has not answered yet", awaited=True))
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    assert not submissions(site.staged())
    assert not submissions(site.pass_time(FIRST_LOOK / 2))
    assert site.record("1").state is JobState.CLAIMING
    if answers:
        assert submissions(site.poll("a", 4) + site.pass_time(1)) == {"a": 2}
    else:
        assert not submissions(site.pass_time(FIRST_LOOK / 2 + 1))
        assert site.record("1").state is JobState.WAITING


def test_a_cluster_without_room_when_the_files_are_nearly_there_is_a_failed_claim() -> None:
    """The job waits again, and files that were there already need no second journey."""
    site = travelling()
    site.staged()
    site.take_all()
    for placeholder in site.claimed("1"):
        site.ended(placeholder.id, EndReason.CANCELLED)
    assert site.record("1").state is JobState.WAITING
    assert site.record("1").staging[A].done
    actions = site.pass_time(200)
    assert submissions(actions) == {"a": 2}
    assert not of_kind(StageFiles, actions)


def test_held_processors_of_another_job_are_not_left_idle_for_files() -> None:
    """A job whose files have yet to travel gets no placeholders of one that has completed."""
    site = FilesSite()
    site.start(job("0", 4))
    where = site.record("0").claims[0].cluster
    site.submit(genome_job("1", 4, where))
    site.complete("0")
    assert not site.record("1").live


# -- Whatever is foreseen


@given(
    size=st.integers(21, 2000),
    bandwidth=st.one_of(st.none(), st.floats(0.1, 100.0)),
    news=st.lists(st.tuples(st.floats(0.0, 200.0), st.floats(0.0, 1.0), st.floats(0.1, 100.0)), max_size=6),
    idle=st.integers(0, 4),
    waited=st.lists(st.floats(0.0, 500.0), max_size=3),
)
def test_no_placeholder_is_submitted_before_it_is_of_use(
    size: int,
    bandwidth: float | None,
    news: list[tuple[float, float, float]],
    idle: int,
    waited: list[float],
) -> None:
    """They come when the files are nearly there, as far as is known; and each transfer ends, or is stopped."""
    site = Site({"a": 4}, None, ClusterParameters(name=A, stages=True, bandwidth=bandwidth))
    site.poll("a", 4, idle=idle)
    cluster = site.state.clusters[A]
    cluster.waits = [Wait(batch=BatchKey(f"earlier-{n}"), seconds=one) for n, one in enumerate(waited)]
    file = replace(GENOME, size=size * MIB)
    actions = site.submit(job("1", replace(component("c", 2, cluster="a"), input_files=(file,))))
    foreseen = site.now + size / bandwidth if bandwidth else inf
    most = max(STARTS_IN, *waited, 0.0)
    for pause, part, rate in news:
        if submissions(actions):
            assert site.now >= foreseen - most - MARGIN - 1e-6
            break
        site.now += pause
        actions = site.pass_time(0.0)
        if submissions(actions):  # by what was foreseen until now
            assert site.now >= foreseen - most - MARGIN - 1e-6
            break
        foreseen = site.now + part * size / rate
        missing = round(part * size * MIB)
        event = ev.StagingProgressed(
            time=site.now, job_id=JobId("1"), cluster=A, missing_bytes=missing, rate=rate * MIB
        )
        actions = site.post(event)
        foreseen = min(foreseen, site.now + missing / rate / MIB)
    site.post(ev.FilesStaged(time=site.now, job_id=JobId("1"), cluster=A))
    site.run("1")
    stopped = of_kind(StopStaging, site.complete("1"))
    assert [one.cluster for one in stopped] == [A]
    assert not site.record("1").staging
