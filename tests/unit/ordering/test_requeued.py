# SPDX-License-Identifier: Apache-2.0
"""Jobs that the batch system queues again: held and untied, on record as waiting, and decided on anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.model import HoldOwner, LrmJobState
from koala_adapter.ordering.jobs import JobEventKind, Phase
from tests.unit.ordering.ordering_site import Listed

if TYPE_CHECKING:
    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.jobs import Entry


def ran(processors: int = 32, **values: Any) -> tuple[Listed, LrmJobId]:  # noqa: ANN401 - fields of many types
    """Return a site where one job runs, and its id."""
    site = Listed()
    site.submit("1", processors, **values)
    (start,) = site.look()
    site.run(start)
    site.accept(start.job_id)
    site.look()
    return site, start.job_id


def queue_again(site: Listed, *, held: bool, submitted_at: float) -> None:
    """Have the batch system queue the job again, as it is: tied to its nodes, with a new time of submission."""
    hold = HoldOwner.OPERATOR if held else None
    state = LrmJobState.HELD if held else LrmJobState.QUEUED
    former = site.jobs["1"].requeues
    site.change(
        "1",
        state=state,
        hold=hold,
        layout=(),
        nodes=(),
        started_at=None,
        submitted_at=submitted_at,
        requeues=former + 1,
    )


def entry_of(site: Listed, id_: LrmJobId) -> Entry:
    """Return what is kept of a job."""
    return site.mirror.entries[id_]


@pytest.mark.parametrize("held", [True, False])
def test_it_is_held_and_untied_before_it_may_start_again(held: bool) -> None:  # noqa: FBT001 - a parameter
    """Its processors are free at once; it is started anew, elsewhere too, with what its user asked for."""
    site, id_ = ran(8, requested_nodes=("n2",))
    queue_again(site, held=held, submitted_at=site.now)
    site.submit("2", 32)
    assert [one.job_id for one in site.look()] == ["2"]
    assert entry_of(site, id_).phase is Phase.RETURNING
    assert site.mirror.starts_to_undo() == ["1"]
    pin = site.mirror.starts.pins[id_]
    assert (pin.started, pin.failure) == (False, "it was queued again")
    site.change("1", state=LrmJobState.HELD, hold=HoldOwner.OPERATOR)
    site.start_undone(id_)
    site.end("2")
    (again,) = site.look()
    assert (again.job_id, again.pin.wishes.requested_nodes) == ("1", ("n2",))
    assert [one.kind for one in site.mirror.happened if one.job_id == "1"] == [
        JobEventKind.SUBMITTED,
        JobEventKind.START,
        JobEventKind.STARTED,
        JobEventKind.REQUEUED,
        JobEventKind.START,
    ]


@pytest.mark.parametrize("held", [True, False])
def test_while_nobody_looked(held: bool) -> None:  # noqa: FBT001 - a parameter
    """The record tells the next process that it had run; what still waits is held and untied as well."""
    site, id_ = ran()
    queue_again(site, held=held, submitted_at=site.now + 3)
    following = Listed(pins=site.mirror.starts.pins.values())
    following.now, following.jobs = site.now + 5, site.jobs
    assert following.look() == []
    assert following.mirror.starts_to_undo() == ["1"]
    following.change("1", state=LrmJobState.HELD, hold=HoldOwner.OPERATOR)
    following.start_undone(id_)
    assert [one.job_id for one in following.look()] == ["1"]


def test_killed_before_it_was_taken_back() -> None:
    """The next process goes on with that."""
    site, _ = ran()
    queue_again(site, held=False, submitted_at=site.now)
    site.look()
    following = Listed(pins=site.mirror.starts.pins.values())
    following.now, following.jobs = site.now, site.jobs
    assert following.look() == []
    assert following.mirror.starts_to_undo() == ["1"]


def test_what_the_batch_system_starts_first_is_adopted() -> None:
    """Queued again and started between two looks: it runs where it was put, and that is said."""
    site, id_ = ran(8)
    (before,) = site.mirror.entries[id_].nodes
    queue_again(site, held=False, submitted_at=site.now)
    other = "n4" if before[0] != "n4" else "n3"
    site.change("1", state=LrmJobState.RUNNING, layout=((other, 8),), nodes=(other,), started_at=site.now + 0.5)
    assert site.look() == []
    assert site.told(JobEventKind.ADOPTED)[0].detail == "it was queued again, and the batch system started it"
    assert entry_of(site, id_).nodes == ((other, 8),)
    assert [job.started_at for job in site.mirror.schedulers[0].running] == [site.now - 0.5]
    site.look()
    assert len(site.told(JobEventKind.ADOPTED)) == 1


def test_what_a_plugin_shows_as_tied_is_freed_without_a_record() -> None:
    """Also a job that somebody else of ours had started."""
    site = Listed()
    site.submit("1", 8, tied=True)
    assert site.look() == []
    assert site.mirror.starts_to_undo() == ["1"]
    site.change("1", tied=False)
    assert [one.job_id for one in site.look()] == ["1"]


def test_what_the_batch_system_started_itself_is_left_to_it() -> None:
    """A job that came in past the site's piece, ran and is queued again, is not ours."""
    site = Listed()
    site.submit("1", 8, state=LrmJobState.RUNNING, hold=None, layout=(("n1", 8),), nodes=("n1",), started_at=999.0)
    site.look()
    queue_again(site, held=False, submitted_at=site.now)
    assert site.look() == []
    assert site.mirror.starts_to_undo() == []
    assert "not in hold" in site.told(JobEventKind.LEFT_OUT)[0].detail


def test_a_later_job_of_the_same_number_is_another() -> None:
    """It was never queued again, and has another time of submission."""
    site, id_ = ran(8)
    site.change("1", state=LrmJobState.HELD, hold=HoldOwner.OPERATOR, layout=(), nodes=(), submitted_at=5000.0)
    assert [one.job_id for one in site.look()] == ["1"]
    assert site.told(JobEventKind.REQUEUED) == []
    assert not site.mirror.starts.pins[id_].started
