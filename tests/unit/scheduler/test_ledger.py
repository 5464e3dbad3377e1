# SPDX-License-Identifier: Apache-2.0
"""What is counted is true after any events, and one module alone writes it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.scheduler import records
from koala_adapter.scheduler.records import ClusterTable
from koala_adapter.scheduler.states import Ledger
from tests.unit.scheduler import test_malleability_state
from tests.unit.scheduler.scheduler_site import A, B, Site, copied, job
from tests.unit.scheduler.test_state import eventful

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import ClusterName

SCHEDULER = Path(records.__file__).parent
KEPT = frozenset(
    {
        "ending",
        "gathering",
        "held",
        "job_id",
        "live",
        "managed",
        "mixed",
        "offered",
        "pending",
        "phase",
        "queued",
        "state",
    }
)
"""Attributes of records that the ledger alone assigns."""
TABLES = frozenset({"batches", "changes", "jobs", "placeholders"})
"""Tables of the state, and of a job, that it alone changes."""
OWN = {("context.py", "self.state"), ("core.py", "self.state"), ("states.py", "self.job_id")}
"""Attributes of other objects with the same names, which are not records, in their constructors."""


def written(source: str) -> list[str]:
    """Return what a module assigns or deletes that is the ledger's."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=name) if name in KEPT:
                found.append(ast.unparse(node))
            case ast.Subscript(
                ctx=ast.Store() | ast.Del(),
                value=ast.Attribute(value=ast.Name("state" | "record") | ast.Attribute(attr="state"), attr=name),
            ) if name in TABLES:
                found.append(ast.unparse(node))
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=ast.Attribute(attr="pending")):
                found.append(ast.unparse(node))
            case _:
                pass
    return found


def without_ledger(source: str) -> str:
    """Return the source of a module without the class that may write."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name == Ledger.__name__)]
    return ast.unparse(tree)


def test_nobody_else_writes_what_is_counted() -> None:
    """The source of the whole scheduler is read: counts, states, changes of size and tables have one writer."""
    others = {
        (path.name, target)
        for path in SCHEDULER.rglob("*.py")
        for target in written(without_ledger(path.read_text(encoding="utf-8")))
        if (path.name, target) not in OWN
    }
    assert others == set()


@pytest.mark.parametrize(
    "statement",
    [
        "cluster.offered += 1",
        "cluster.managed, x = 1, 2",
        "record.state = JobState.RUNNING",
        "state.clusters[name].ending -= 1",
        "change.phase = ChangePhase.OVER",
        "record.changes[number] = change",
        "del state.placeholders[id_]",
        "context.state.jobs[id_] = record",
        "cluster.pending[key] = 1",
    ],
)
def test_a_second_writer_is_found(statement: str) -> None:
    """The test above can fail."""
    assert written(statement)


@pytest.mark.parametrize("malleable", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_counts_are_what_they_would_be_if_counted_again(seed: int, *, malleable: bool) -> None:
    """After random events of every kind."""
    site = test_malleability_state.eventful(seed)[0] if malleable else eventful(seed)
    again = copied(site.state)
    for cluster in again.clusters.values():
        cluster.managed = cluster.queued = cluster.ending = cluster.offered = cluster.gathering = -1
        cluster.pending = {}
    for record in again.jobs.values():
        record.live = record.held = -1
    for batch in again.batches.values():
        batch.live = -1
    Ledger(again)
    assert again == site.state
    assert [list(one.pending) for one in again.clusters.values()] == [
        list(one.pending) for one in site.state.clusters.values()
    ]


def test_placeholders_and_submissions_are_found_by_cluster() -> None:
    """Those of one cluster, in the order in which they came, also after some are gone and after a snapshot."""
    site = Site({"a": 4, "b": 4})
    for number in range(4):
        site.submit(job(str(number), 2))
    site.take_all()
    site.ended(site.claimed("1")[0].id)
    for state in (site.state, copied(site.state)):
        for name in (A, B):
            there = state.placeholders.on(name)
            assert there
            assert list(there.items()) == [(id_, one) for id_, one in state.placeholders.items() if one.cluster == name]
            batches = state.batches.on(name)
            assert list(batches.items()) == [(key, one) for key, one in state.batches.items() if one.cluster == name]
    for placeholder in list(site.state.placeholders.values()):
        site.ended(placeholder.id)
    assert not [id_ for id_ in site.state.placeholders.on(A) if id_ not in site.state.placeholders]


@dataclass(frozen=True)
class Somewhere:
    """A record of nothing else."""

    cluster: ClusterName


def test_records_by_cluster_follow_every_change_of_their_table() -> None:
    """Whatever dict can do: what is not in the table is on no cluster, and the other way round."""
    table = ClusterTable((n, Somewhere(A if n % 2 else B)) for n in range(8))
    changes: list[Callable[[], object]] = [
        lambda: table.pop(3),
        lambda: table.pop(3, None),
        lambda: table.setdefault(8, Somewhere(A)),
        lambda: table.setdefault(8, Somewhere(B)),
        lambda: table.update({9: Somewhere(B), 1: Somewhere(A)}),
        lambda: table.__ior__({10: Somewhere(A)}),
        table.popitem,
        table.clear,
    ]
    for change in changes:
        before = dict(table)
        change()
        for name in (A, B):
            assert dict(table.on(name)) == {key: one for key, one in table.items() if one.cluster == name}, before
    assert not table
