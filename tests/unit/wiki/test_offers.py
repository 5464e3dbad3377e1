# SPDX-License-Identifier: Apache-2.0
"""What is told of where a job may run: a peer that follows it places the job as its user allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koala_adapter.model import LrmJob, LrmJobState, Node, NodeState
from koala_adapter.wiki.codec.records import NodeRecord
from koala_adapter.wiki.codec.words import Dialect
from koala_adapter.wiki.reporting import Host, Offer, ReportingRules, dealt, job_record, lacks, offer, tasks_of
from tests.real.mauistandin import Room, place
from tests.unit.wiki.wiki_source import job

FEATURES = {"n1": ("fast",), "n2": ("fast", "gpu"), "n3": ("slow",), "n4": ()}


def host(name: str, processors: int = 8, memory: int = 4000) -> Host:
    """Return a node."""
    node = Node(
        name=name,
        state=NodeState.UP,
        processors=processors,
        processors_used=0,
        memory_mib=memory,
        disk_mib=1000,
        queues=("main",),
        features=FEATURES.get(name, ()),
    )
    return Host.of(name, node)


HOSTS = tuple(host(name) for name in FEATURES)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"processors": 2, "requested_nodes": ("n3",)},
            Offer(tasks=2, nodes=1, tasks_per_node=2, host_list=("n3",) * 2),
        ),
        ({"processors": 5, "nodes_wanted": 1}, Offer(tasks=5, nodes=1, tasks_per_node=5)),
        ({"processors": 8, "tasks_per_node": 2}, Offer(tasks=8, nodes=4, tasks_per_node=2)),
        ({"processors": 2, "excluded_nodes": ("n1", "n2")}, Offer(tasks=2, host_list=("n3", "n3", "n4", "n4"))),
        ({"processors": 1, "any_feature": ("fast", "slow")}, Offer(tasks=1, host_list=("n1", "n2", "n3"))),
        ({"processors": 3, "nodes_least": 2, "nodes_most": 3}, Offer(tasks=4, nodes=2, tasks_per_node=2)),
        ({"processors": 5, "nodes_wanted": 2}, Offer(tasks=6, nodes=2, tasks_per_node=3)),
        ({"processors": 6}, Offer(tasks=6)),
        ({"processors": 1, "exclusive": True}, Offer(tasks=8, nodes=1, tasks_per_node=8)),
        ({"processors": 9, "exclusive": True}, Offer(tasks=16, nodes=2, tasks_per_node=8)),
        (
            {"processors": 2, "disk_per_node_mib": 500},
            Offer(tasks=2, host_list=("n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4")),
        ),
    ],
)
def test_each_request_has_its_record(change: dict[str, object], expected: Offer) -> None:
    """The shapes that a real Maui could not start, as they are to be told."""
    assert offer(replace(job("5"), **change), HOSTS) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requested_nodes": ("n9",)}, "it must run on n9, which is not there"),
        ({"requested_nodes": ("n3",), "features": ("fast",)}, "n3, which has not the features fast"),
        ({"processors": 33}, "can take 32 of them"),
        ({"processors": 9, "nodes_wanted": 1}, "9 tasks on one node"),
        ({"disk_per_node_mib": 2000}, "can take 0 of them"),
        ({"memory_per_node_mib": 5000}, "can take 0 of them"),
        ({"processors": 40, "exclusive": True}, "for itself"),
    ],
)
def test_what_never_starts_is_told(change: dict[str, object], words: str) -> None:
    """Nobody is offered what no node can take."""
    assert words in offer(replace(job("5"), **change), HOSTS).obstacle  # type: ignore[arg-type]


def test_one_node_where_the_batch_system_divides_jobs() -> None:
    """A parallel job of Grid Engine is never split; one that no node can take is not offered."""
    assert offer(job("5", 5), HOSTS, one_node=True) == Offer(tasks=5, nodes=1, tasks_per_node=5)
    assert offer(job("5", 12), HOSTS, one_node=True).obstacle


HOST_SETS = st.lists(
    st.builds(host, st.sampled_from(["n1", "n2", "n3", "n4", "n5"]), st.integers(1, 9), st.sampled_from([1000, 4000])),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one.name,
)
NAMES = st.sampled_from(["n1", "n2", "n3", "n4"])


@st.composite
def requests(draw: st.DrawFn) -> LrmJob:
    """Return a job with any of the options that restrict where it may run."""
    least = draw(st.integers(1, 3))
    most = draw(st.none() | st.integers(least, 4))
    tasks, each = max(draw(st.integers(1, 12)), least), draw(st.sampled_from([1, 1, 2]))
    return replace(
        job("5", tasks * each),
        processors_per_task=each,
        nodes_least=least,
        nodes_most=most,
        tasks_per_node=draw(st.none() | st.integers(1, 4)),
        features=tuple(draw(st.sets(st.sampled_from(["fast", "gpu"]), max_size=1))),
        any_feature=draw(st.sampled_from([(), (), ("fast", "slow")])),
        excluded_nodes=tuple(draw(st.sets(NAMES, max_size=1))),
        requested_nodes=tuple(sorted(draw(st.sets(NAMES, max_size=2)))) if draw(st.booleans()) else (),
        memory_per_processor_mib=draw(st.sampled_from([None, None, 100, 900])),
        exclusive=draw(st.sampled_from([False, False, False, True])),
    )


@given(wanted=requests(), hosts=HOST_SETS, one_node=st.booleans())
@example(
    wanted=replace(job("5"), exclusive=True, memory_per_processor_mib=900),
    hosts=[host("n1", 2, 1000)],
    one_node=False,
)
def test_what_is_offered_can_be_placed_and_is_what_the_user_asked_for(
    wanted: LrmJob, hosts: list[Host], *, one_node: bool
) -> None:
    """A peer that follows the record places it on empty nodes, and the job's own share obeys every bound."""
    told = offer(wanted, hosts, one_node=one_node)
    if told.obstacle:
        return
    words = ReportingRules(dialect=Dialect.WIKI, one_node=one_node)
    assert wanted.state is LrmJobState.HELD
    record = job_record(wanted, hosts=hosts, tasks=(), words=words, changed_at=0)
    assert record.state == "Idle"
    rooms = {
        one.wire: Room(
            NodeRecord(name=one.wire, features=tuple(one.features), memory=one.memory_mib, disk=one.disk_mib),
            one.processors,
            one.memory_mib or 0,
        )
        for one in hosts
    }
    tasks = place(record, rooms)
    assert len(tasks) == told.tasks, (record, rooms)
    own = Counter(dealt(wanted, tasks))
    least, most = wanted.node_bounds
    known = {one.wire: one for one in hosts}
    assert own.total() == tasks_of(wanted)
    assert least <= len(own) <= (most or len(own))
    assert not one_node or len(own) == 1
    assert set(wanted.requested_nodes) <= set(own)
    assert max(own.values()) <= (wanted.tasks_per_node or own.total())
    for name, count in own.items():
        assert not lacks(wanted, known[name])
        assert count * wanted.processors_per_task <= known[name].processors
        memory = count * wanted.processors_per_task * (wanted.memory_per_processor_mib or 0)
        assert memory <= (known[name].memory_mib or memory)
