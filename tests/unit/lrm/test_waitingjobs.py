# SPDX-License-Identifier: Apache-2.0
"""Which jobs of a listing wait for processors of some nodes, and for how many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.lrm.listing import MOST_TOLD, processors_wanted
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from tests.unit.service.scripted_lrm import node

NOON = 43_200.0
JOB = LrmJob(id=LrmJobId("1"), name="local", state=LrmJobState.QUEUED, user="bob", processors=3)
NODES = (node("n1", queues=("short", "long")), node("n2", queues=("long",)))


def test_in_the_order_of_the_queue() -> None:
    """Each for itself, so that a large one can be told from many small ones."""
    jobs = [replace(JOB, id=LrmJobId(str(number)), processors=number) for number in (4, 1, 2)]
    assert processors_wanted(jobs, NODES, time_of_day=NOON) == (4, 1, 2)


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({}, True),
        ({"state": LrmJobState.RUNNING}, False),
        ({"state": LrmJobState.STARTING}, False),
        ({"state": LrmJobState.HELD}, False),
        ({"state": LrmJobState.UNKNOWN}, False),
        ({"dependent": True}, False),
        ({"blocked": True}, False),
        ({"eligible_at": NOON + 1}, False),
        ({"eligible_at": NOON}, True),
        ({"queue": "long"}, True),
        ({"queue": "debug"}, False),
        ({"queue": "debug,short"}, True),
        ({"requested_nodes": ("n2",)}, True),
        ({"requested_nodes": ("n9",)}, False),
        ({"excluded_nodes": ("n1",)}, True),
        ({"excluded_nodes": ("n1", "n2")}, False),
        ({"processors": 8}, True),
        ({"processors": 9}, False),
    ],
)
def test_only_what_could_be_started_here(changed: dict[str, object], *, counts: bool) -> None:
    """Whatever else is missing, processors that come free do not start it."""
    job = replace(JOB, **changed)  # type: ignore[arg-type]
    assert bool(processors_wanted([job], NODES, time_of_day=NOON)) == counts


def test_nodes_that_tell_no_queues_may_serve_any() -> None:
    """What is not told excludes nothing."""
    assert processors_wanted([replace(JOB, queue="debug")], (node("n1"),), time_of_day=NOON) == (3,)


def test_a_long_queue_is_not_told_of_in_full() -> None:
    """An event of the journal stays small, however many wait."""
    jobs = [replace(JOB, id=LrmJobId(str(number)), processors=1) for number in range(5000)]
    assert processors_wanted(jobs, NODES, time_of_day=NOON) == (1,) * MOST_TOLD
