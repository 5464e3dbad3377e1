# SPDX-License-Identifier: Apache-2.0
"""No name of a submission is used twice, whatever is left out of a replay: what has one was asked for in the world.

The journal is a real one. The defect is that of another version: it shows when the journal is replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import JournalBlockedError
from koala_adapter.model import BatchKey, ClusterName, JobId
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.service.journal import Journal
from tests.unit.driver.test_loop import Looped
from tests.unit.scheduler.scheduler_site import component, job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.scheduler.context import NumberedBatch

A = ClusterName("a")


@pytest.fixture
def looped(tmp_path: Path) -> Iterator[Looped]:
    """Return a loop on an empty journal."""
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.set_value("instance", "t")
        yield Looped(journal)


def work(looped: Looped) -> None:
    """Configure a cluster of nine processors, and submit jobs 1 and 2 to it, of two and of three."""
    parameters = Parameters(instance="t")
    looped.loop.post(ev.Configured(time=1000.0, parameters=parameters, clusters=(ClusterParameters(name=A),)))
    looped.loop.post(ev.ClusterPolled(time=1000.0, cluster=A, processors=9, idle=9, ours=0))
    submit(looped, 1)
    submit(looped, 2)


def submit(looped: Looped, number: int) -> None:
    """Submit the job of this number, which has one processor more than that."""
    one = job(str(number), component("x", number + 1, cluster="a"))
    looped.loop.enter(ev.JobSubmitted(time=1000.0 + number, job=one))


def asked_for(looped: Looped) -> list[tuple[BatchKey, int]]:
    """Return all submissions that were asked for, in all lives: name and size."""
    return [(one.batch, one.count) for one in looped.effector.done if isinstance(one, act.SubmitPlaceholders)]


def known(looped: Looped) -> dict[BatchKey, tuple[JobId, int]]:
    """Return the submissions that the scheduler knows, with their jobs and sizes."""
    return {key: (one.job_id, one.count) for key, one in looped.loop.scheduler.state.batches.items()}


def upgrade(looped: Looped) -> None:
    """Restart with a version that fails on the submission of job 1."""
    looped.defects.before = lambda event: isinstance(event, ev.JobSubmitted) and event.job.id == "1"
    looped.restart()
    assert [one.event_type for one in looped.journal.events_set_aside()] == ["JobSubmitted"]


def test_a_submission_keeps_its_name_when_an_earlier_one_is_left_out(looped: Looped) -> None:
    """What the batch system has under a name is what the scheduler takes it for."""
    work(looped)
    assert asked_for(looped) == [("koala-t-1", 2), ("koala-t-2", 3)]
    upgrade(looped)
    assert known(looped) == {"koala-t-2": ("2", 3)}
    looped.restart()
    assert known(looped) == {"koala-t-2": ("2", 3)}


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_name_that_was_used_is_not_used_again(looped: Looped, *, snapshot: bool) -> None:
    """Also when the only ones who used it are left out, and after the snapshot that forgets them."""
    work(looped)
    looped.loop.post(ev.CancelRequested(time=1003.0, job_id=JobId("2")))
    looped.defects.before = lambda event: isinstance(event, ev.JobSubmitted) and event.job.id in {"1", "2"}
    looped.restart()
    assert known(looped) == {}
    if snapshot:
        number = looped.journal.append(ev.ClusterPolled(time=1004.0, cluster=A, processors=9, idle=9, ours=0))
        list(looped.journal.snapshot_in_groups(looped.loop.scheduler.state, number))
        looped.restart()
    submit(looped, 3)
    assert asked_for(looped)[2:] == [("koala-t-3", 4)]
    looped.restart()
    assert known(looped) == {"koala-t-3": ("3", 4)}


def test_a_submission_that_only_a_replay_makes_has_a_name_of_its_own(looped: Looped) -> None:
    """Where one is left out another finds room earlier: it was never asked for under any name that was used."""
    work(looped)
    submit(looped, 5)  # finds no room: 2 + 3 + 6 is more than 9
    assert len(asked_for(looped)) == 2
    submit(looped, 3)
    assert asked_for(looped)[2:] == [("koala-t-3", 4)]
    upgrade(looped)
    assert known(looped) == {"koala-t-2": ("2", 3), "koala-t-4": ("5", 6)}
    looped.restart()
    assert known(looped) == {"koala-t-2": ("2", 3), "koala-t-4": ("5", 6)}


def test_what_is_not_noted_is_not_asked_for(looped: Looped) -> None:
    """While the journal is full, nothing is submitted under a name that it does not know."""
    work(looped)
    note_batch = looped.journal.note_batch

    def full(batch: NumberedBatch) -> None:
        raise JournalBlockedError(f"full: {batch}")

    looped.journal.note_batch = full  # type: ignore[method-assign]
    submit(looped, 3)
    assert len(asked_for(looped)) == 2
    looped.journal.note_batch = note_batch  # type: ignore[method-assign]
    looped.loop.try_again()
    assert asked_for(looped)[2:] == [("koala-t-3", 4)]
    assert [one.key for one in looped.journal.batches()] == ["koala-t-1", "koala-t-2", "koala-t-3"]
