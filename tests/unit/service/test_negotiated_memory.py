# SPDX-License-Identifier: Apache-2.0
"""An application asks for memory with its processors: new placeholders come with it where the site allows it."""

from __future__ import annotations

import pytest

from koala_adapter import negotiation as nt
from koala_adapter.model import ClusterName
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from koala_adapter.scheduler.records import ChangePhase
from tests.unit.scheduler.scheduler_site import of_kind
from tests.unit.service.test_negotiations import Stage

KEY = ("MEM", "", "")


def stage_of(processors: int, limit: int | None = None) -> Stage:
    return Stage(processors, Approach.NONE, (ClusterParameters(name=ClusterName("a"), memory_limit=limit),))


def wish(processors: int, memory: int, usage: str = "NT_REQUIRED", direction: str = "grow") -> nt.Template:
    resources = [nt.resource("MEM", memory, usage=usage, negotiability="NT_FIXED")]
    if processors:
        resources.insert(0, nt.resource("CPU", processors))
    return nt.template("0-1", "APPLICATION", "node", "koala", resources, direction=direction)


def submitted(stage: Stage) -> list[tuple[int, int]]:
    return [(one.count, one.memory_mib) for one in of_kind(SubmitPlaceholders, stage.site.actions)]


def test_new_placeholders_come_with_the_memory() -> None:
    stage = stage_of(5, limit=8192)
    stage.say(wish(2, 4096))
    assert stage.heard[-1].kind == "accepted"
    assert stage.latest().quantities() == {("CPU", "", ""): 2, KEY: 4096}
    stage.say(nt.committed(stage.latest()))
    assert submitted(stage) == [(2, 0), (2, 4096)]


def test_fewer_processors_come_with_the_same_memory() -> None:
    stage = stage_of(5, limit=8192)
    stage.say(wish(6, 4096))
    assert (stage.heard[-1].kind, stage.latest().quantities()) == ("offer", {("CPU", "", ""): 3, KEY: 4096})
    stage.start()
    stage.say(nt.accepted(stage.latest()))
    assert stage.heard[-1].kind == "agreed"
    assert stage.phase is ChangePhase.GATHERING
    assert submitted(stage) == [(2, 0), (3, 4096)]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("processors", [3, 2])
def test_memory_that_an_application_declines_in_its_answer_is_not_submitted(processors: int, again: bool) -> None:  # noqa: FBT001
    """It takes the processors of a counter-offer without it, all or fewer; ``again``: also by a later service."""
    stage = stage_of(5, limit=8192)
    stage.say(wish(6, 4096, "NT_OPTIONAL"))
    assert (stage.heard[-1].kind, stage.latest().quantities()) == ("offer", {("CPU", "", ""): 3, KEY: 4096})
    if processors == 3:
        stage.say(nt.accepted(stage.latest(), declined=[KEY]))
    else:
        stage.say(nt.countered(stage.latest(), {("CPU", "", ""): processors}, declined=[KEY]))
        if again:
            stage.start()
        stage.say(nt.committed(stage.latest()))
    if again:
        stage.start()
    assert stage.application.state(stage.latest().key) == "agreed"
    assert stage.latest().quantities() == {("CPU", "", ""): processors}
    assert submitted(stage) == [(2, 0), (processors, 0)]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_counter_offer_whose_memory_was_declined_stands_after_a_restart(forgotten: bool) -> None:  # noqa: FBT001
    stage = stage_of(5)
    stage.say(wish(6, 4096, "NT_OPTIONAL"))
    assert (stage.heard[-1].kind, stage.latest().quantities()) == ("offer", {("CPU", "", ""): 3})
    if forgotten:
        stage.kept = stage.kept[:1]
    stage.start()
    stage.say(nt.accepted(stage.latest()))
    assert stage.heard[-1].kind == "agreed"
    assert submitted(stage) == [(2, 0), (3, 0)]


def test_an_acceptance_whose_memory_was_declined_stands_after_a_restart() -> None:
    stage = stage_of(5)
    stage.say(wish(2, 4096, "NT_OPTIONAL"))
    assert stage.heard[-1].kind == "accepted"
    stage.start()
    stage.say(nt.committed(stage.latest()))
    assert stage.application.state(stage.latest().key) == "agreed"


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (None, "the site gives an application no more memory on a"),
        (4095, "on a a processor comes with 4095 MiB of memory at most, not 4096"),
    ],
)
def test_where_it_cannot_be_had_it_is_refused_with_the_reason(limit: int | None, reason: str) -> None:
    """All of the wish if the memory is required; the memory alone if it is optional."""
    stage = stage_of(5, limit)
    stage.say(wish(2, 4096))
    assert (stage.heard[-1].kind, stage.heard[-1].reason) == ("ended", reason)
    stage = stage_of(5, limit)
    stage.say(wish(2, 4096, "NT_OPTIONAL"))
    assert stage.latest().quantities() == {("CPU", "", ""): 2}
    stage.say(nt.committed(stage.latest()))
    assert submitted(stage) == [(2, 0), (2, 0)]


@pytest.mark.parametrize(("processors", "direction"), [(0, "grow"), (1, "shrink")])
def test_the_memory_of_a_process_that_runs_stays(processors: int, direction: str) -> None:
    stage = stage_of(5, limit=8192)
    stage.say(wish(processors, 4096, direction=direction))
    assert stage.heard[-1].kind == "ended"
    assert "does not change that of a process that runs" in stage.heard[-1].reason
