# SPDX-License-Identifier: Apache-2.0
"""Reservations of batch systems: on all clusters for one time, or on none; and when they are given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import Claiming, EndReason, InputFile, Job, JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import (
    Action,
    EndPlaceholders,
    EndReservation,
    ReserveProcessors,
    SubmitPlaceholders,
)
from koala_adapter.scheduler.claiming.plannedstart import ANSWER_PATIENCE, LATE, LEAD, MOST_MOVES
from koala_adapter.scheduler.parameters import ClusterParameters
from koala_adapter.slots import Slot
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job, launches, of_kind, submissions

MIB = 1024 * 1024
NAMES = ["koala-k-r-1-1", "koala-k-r-1-2"]


def with_file() -> Job:
    """Return a job on a that waits for a file of 300 MiB, which has yet to travel."""
    file = InputFile(source="/data/genome", target="genome", size=300 * MIB)
    one = job("1", replace(component("x", 2, cluster="a"), input_files=(file,)))
    return replace(one, claiming=Claiming.RESERVE)


def two_clusters() -> Job:
    one = job("1", component("x", 2, cluster="a"), component("y", 1, cluster="b"))
    return replace(one, claiming=Claiming.RESERVE)


class ReservingSite(Site):
    """Clusters a and b that reserve."""

    def __init__(self, *, reserves: bool | None = True, claiming: Claiming = Claiming.PLACEHOLDERS) -> None:
        super().__init__(
            {"a": 4, "b": 4},
            None,
            ClusterParameters(name=A, reserves=True, claiming=claiming, stages=True, bandwidth=1.0),
            ClusterParameters(name=B, reserves=reserves, claiming=claiming),
        )

    def made(self, name: str) -> list[Action]:
        return self.post(ev.ReservationMade(time=self.now, job_id=JobId("1"), name=name, handle=f"at {name}"))

    def come(self, mib: int) -> list[Action]:
        """Have so much of an input file yet to come to a, at 1 MiB a second."""
        rate, missing = float(MIB), mib * MIB
        return self.post(
            ev.StagingProgressed(time=self.now, job_id=JobId("1"), cluster=A, missing_bytes=missing, rate=rate)
        )

    def refused(self, name: str, reason: str) -> list[Action]:
        return self.post(ev.ReservationRefused(time=self.now, job_id=JobId("1"), name=name, reason=reason))


def reserved() -> ReservingSite:
    """Return a site whose cluster a has made its reservation for a job of two clusters, and b not yet."""
    site = ReservingSite()
    site.submit(two_clusters())
    site.made(NAMES[0])
    return site


def test_all_clusters_reserve_for_the_same_time_before_placeholders_are_submitted() -> None:
    site = ReservingSite()
    actions = site.submit(two_clusters())
    asked = of_kind(ReserveProcessors, actions)
    assert [(one.name, one.cluster, one.count) for one in asked] == [(NAMES[0], A, 2), (NAMES[1], B, 1)]
    assert {one.start_at for one in asked} == {site.now + LEAD}
    assert not submissions(actions)
    assert not site.made(NAMES[0])
    assert "2 on a and 1 on b (asked for)" in site.explained()
    submitted = of_kind(SubmitPlaceholders, site.made(NAMES[1]))
    assert [(one.cluster, one.reservation) for one in submitted] == [(A, f"at {NAMES[0]}"), (B, f"at {NAMES[1]}")]
    assert all(one.walltime < ask.seconds for one, ask in zip(submitted, asked, strict=True))


def test_what_is_reserved_is_not_said_to_be_asked_for() -> None:
    """While files travel, the explanation tells of reservations, or of what they wait for."""
    site = ReservingSite()
    site.submit(with_file())
    assert "Processors are reserved for it, beginning in" in site.explained()
    assert "asked for so" not in site.explained()
    site.made(NAMES[0])
    assert "asked for so" not in site.explained()


def test_processors_are_reserved_when_it_is_known_when_the_files_are_there() -> None:
    site = Site({"b": 4}, None, ClusterParameters(name=B, reserves=True, stages=True))
    one = with_file()
    site.submit(replace(one, components=(replace(one.components[0], cluster=B),)))
    assert "Processors are reserved (2 on b) when it is known when the files are there." in site.explained()
    assert not of_kind(ReserveProcessors, site.actions)
    event = ev.StagingProgressed(time=site.now, job_id=one.id, cluster=B, missing_bytes=60 * MIB, rate=float(MIB))
    assert [ask.start_at for ask in of_kind(ReserveProcessors, site.post(event))] == [site.now + 60]


def test_reservations_are_given_back_when_the_last_placeholder_is_gone() -> None:
    site = reserved()
    site.made(NAMES[1])
    site.run("1")
    done = site.complete("1")
    assert not of_kind(EndReservation, done)
    before = len(site.actions)
    site.end_ending()
    assert [one.name for one in of_kind(EndReservation, site.actions[before:])] == NAMES
    assert not site.record("1").reservations


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_where_one_is_refused_all_are_given_back_and_placeholders_go_into_the_queues(how: str) -> None:
    site = reserved()
    actions = site.refused(NAMES[1], "Access denied") if how == "refused" else site.pass_time(ANSWER_PATIENCE)
    assert [one.name for one in of_kind(EndReservation, actions)] == NAMES
    actions += site.pass_time(1.0)
    assert submissions(actions) == {"a": 2, "b": 1}
    assert not any(one.reservation for one in of_kind(SubmitPlaceholders, actions))
    why = "Access denied" if how == "refused" else "no answer from b"
    assert f"claimed by placeholders alone, as they are not reserved: {why}." in site.explained()
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]


@pytest.mark.parametrize("case", ["cannot", "not wanted"])
def test_what_is_not_reserved_is_claimed_at_once(case: str) -> None:
    site = ReservingSite(reserves=case != "cannot")
    one = two_clusters()
    if case == "not wanted":
        one = replace(one, claiming=None)
    actions = site.submit(one)
    assert not of_kind(ReserveProcessors, actions)
    assert submissions(actions) == {"a": 2, "b": 1}
    why = "b takes no reservations by its plugin, or from this user" if case == "cannot" else ""
    assert site.record("1").not_reserved == why


def test_a_cluster_of_which_it_is_not_known_yet_is_asked() -> None:
    site = ReservingSite(reserves=None)
    assert [one.cluster for one in of_kind(ReserveProcessors, site.submit(two_clusters()))] == [A, B]


def test_slots_are_told_to_the_batch_system() -> None:
    one, slot = two_clusters(), Slot(threads=2, memory_mib=100, queue="q")
    one = replace(one, components=(replace(one.components[0], slot=slot), one.components[1]))
    asked = of_kind(ReserveProcessors, ReservingSite().submit(one))
    assert [(ask.count, ask.slot) for ask in asked] == [(2, slot), (1, Slot())]


def test_a_cluster_may_say_it_for_its_jobs() -> None:
    site = ReservingSite(claiming=Claiming.RESERVE)
    assert of_kind(ReserveProcessors, site.submit(replace(two_clusters(), claiming=None)))
    other = replace(two_clusters(), id=JobId("2"), claiming=Claiming.PLACEHOLDERS)
    assert submissions(site.submit(other)) == {"a": 2, "b": 1}


def test_cancelled_while_a_cluster_has_not_answered() -> None:
    site = reserved()
    assert [one.name for one in of_kind(EndReservation, site.cancel("1"))] == NAMES
    assert not site.made(NAMES[1])


def test_asked_again_after_a_restart() -> None:
    site = reserved()
    again = site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    assert [one.name for one in of_kind(ReserveProcessors, again)] == [NAMES[1]]


def test_a_submission_that_the_batch_system_refuses_in_the_reservation_goes_without() -> None:
    site = reserved()
    first, _ = of_kind(SubmitPlaceholders, site.made(NAMES[1]))
    site.post(ev.BatchRejected(time=site.now, batch=first.batch, reason="too long for it"))
    assert site.record("1").state is JobState.CLAIMING
    assert submissions(site.pass_time(200.0)) == {"a": 2}
    assert not site.actions[-1].reservation  # type: ignore[union-attr]


def test_lost_processors_are_claimed_again_without_a_reservation() -> None:
    site = reserved()
    site.made(NAMES[1])
    site.take_all()
    site.ended(site.claimed("1")[0].id, EndReason.NODE_LOST)
    again = of_kind(SubmitPlaceholders, site.pass_time(200.0))
    assert [(one.cluster, one.count, one.reservation) for one in again] == [(A, 1, "")]


def test_reservations_are_moved_when_the_files_come_later() -> None:
    site = ReservingSite()
    (asked,) = of_kind(ReserveProcessors, site.submit(with_file()))
    assert asked.start_at == site.now + 300
    (first,) = of_kind(SubmitPlaceholders, site.made(NAMES[0]))
    site.take_all()
    site.pass_time(10.0)
    assert not site.come(int(LATE) + 290)  # so late it may be
    moved = site.come(int(LATE) + 291)
    assert [one.name for one in of_kind(EndReservation, moved)] == NAMES[:1]
    assert [len(one.placeholders) for one in of_kind(EndPlaceholders, moved)] == [2]
    (again,) = of_kind(ReserveProcessors, moved)
    assert (again.name, again.start_at) == (NAMES[1], site.now + LATE + 291)
    (second,) = of_kind(SubmitPlaceholders, site.made(NAMES[1]))
    assert (first.reservation, second.reservation) == (f"at {NAMES[0]}", f"at {NAMES[1]}")


def test_news_that_come_before_the_answer_move_the_reservation_after_it() -> None:
    site = ReservingSite()
    site.submit(with_file())
    assert not site.come(500)
    moved = site.made(NAMES[0])
    assert not submissions(moved)
    assert [one.name for one in of_kind(ReserveProcessors, moved)] == NAMES[1:]


def test_reservations_moved_too_often_are_given_up() -> None:
    site = ReservingSite()
    site.submit(with_file())
    for number in range(MOST_MOVES + 1):
        site.made(f"koala-k-r-1-{number + 1}")
        site.take_all()
        actions = site.come(500 + 100 * number)
        site.end_ending()
    assert not of_kind(ReserveProcessors, actions)
    assert "not reserved: its input files took longer than expected, again and again." in site.explained()
    assert not site.record("1").reservations
    assert submissions(site.pass_time(500 + 100 * MOST_MOVES)) == {"a": 2}


def test_processors_that_are_held_stay_in_their_reservation() -> None:
    site = ReservingSite()
    site.submit(with_file())
    site.made(NAMES[0])
    site.take_all()
    site.hold(site.claimed("1")[0].id)
    assert not site.come(900)


def test_reserved_processors_are_not_handed_to_another_job() -> None:
    """Some batch systems end what is in a reservation with it, and it ends with its job."""
    site = ReservingSite()
    site.submit(replace(two_clusters(), components=(component("x", 4, cluster="a"),)))
    site.made(NAMES[0])
    site.run("1")
    site.submit(job("2", component("x", 4, cluster="a")))
    assert not launches(site.complete("1"))
    assert site.record("2").state is not JobState.LAUNCHING
