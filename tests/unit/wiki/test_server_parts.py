# SPDX-License-Identifier: Apache-2.0
"""Parts of a WIKI server that compute: task lists in which Maui notices every change, and names on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import ClusterName
from koala_adapter.wiki.codec.words import Dialect, check_host
from koala_adapter.wiki.inventory import host_counts, next_task_list
from koala_adapter.wiki.reporting import node_names, wire_name
from koala_adapter.wiki.resource import RunningJobsFile
from koala_adapter.wiki.sources import Place
from tests.unit.wiki.wiki_source import MemorySource, Server, job, running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COUNTS = st.dictionaries(st.sampled_from(["n1", "n2", "n3", "n4"]), st.integers(1, 4), min_size=1)


def maui_notices(known: Sequence[str], reported: Sequence[str]) -> bool:
    """Tell whether Maui sees a difference: it compares entry by entry, up to the length of the new list."""
    return any(place >= len(known) or known[place] != host for place, host in enumerate(reported))


@given(COUNTS, st.lists(COUNTS, max_size=6))
def test_maui_notices_every_change_of_size(first: dict[str, int], later: list[dict[str, int]]) -> None:
    """However a job grows, shrinks and moves, Maui notices, but for a shrink within one host, which it never can."""
    reported = next_task_list((), first)
    for counts in later:
        before, reported = reported, next_task_list(reported, counts)
        assert host_counts(reported) == counts
        assert len(set(reported)) == len(host_counts(reported))
        if host_counts(before) == counts:
            assert reported == before
        elif len(counts) > 1 or set(counts) != {before[0]} or len(reported) > len(before):
            assert maui_notices(before, reported), (before, reported)


def test_new_hosts_come_first() -> None:
    """A job that grows shows its newest host first; one that shrinks to a beginning of its list is turned."""
    grown = next_task_list(("n1",) * 4, {"n1": 4, "n2": 2})
    assert grown == ("n2", "n2", "n1", "n1", "n1", "n1")
    assert next_task_list(("n1", "n2", "n3"), {"n1": 1, "n2": 1}) == ("n2", "n1")


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text(max_size=80)), unique=True, max_size=12))
def test_names_on_the_wire(places: list[tuple[str, str]]) -> None:
    """Every node has a name that can be sent, no two have the same, and a name once given stays."""
    listed = [Place(cluster=ClusterName(cluster), node=node) for cluster, node in places]
    names = node_names(listed[: len(listed) // 2], {})
    more = node_names(listed, names)
    assert len(set(more.values())) == len(listed)
    assert names.items() <= more.items()
    for name in more.values():
        check_host(name)


def test_ambiguous_names_carry_their_cluster() -> None:
    """Equal names of two clusters are told apart; a queue instance loses its at sign."""
    places = [Place(cluster=ClusterName(cluster), node="n1") for cluster in ("a", "b")]
    assert set(node_names(places, {}).values()) == {"a.n1", "b.n1"}
    assert wire_name("n2.q@localhost") == "n2.q_localhost"


@pytest.mark.anyio
async def test_ends_are_told_after_a_restart(tmp_path: Path) -> None:
    """A job that ended while no server ran is reported over by the next one, and one that still runs as running."""
    memory = RunningJobsFile(tmp_path / "running.json")
    server = Server(tmp_path, memory=memory)
    server.source.add(running("7", {"n1": 2}), running("8", {"n2": 2}), job("5"))
    await server.states()
    later = Server(tmp_path, memory=memory)
    later.source.add(running("8", {"n2": 2}))
    assert await later.states() == {"7": "Completed", "8": "Running"}
    (tmp_path / "running.json").write_text("[[1]]")
    assert memory.load() == ()


@pytest.mark.anyio
async def test_the_end_of_a_job_that_nobody_saw_running_is_told(tmp_path: Path) -> None:
    """The server was killed after a start, and the job is over, and forgotten, before the next one looks."""
    memory = RunningJobsFile(tmp_path / "running.json")
    server = Server(tmp_path, memory=memory)
    server.source.add(job("5"), job("6"))
    await server.states()
    async with server.running():
        assert (await server.ask("STARTJOB ARG=5 TASKLIST=n1")).status == 0
        left = memory.load()
    assert [one.id for one in left] == ["5"]
    memory.save(left)
    later = Server(tmp_path, memory=memory)
    later.source.add(job("6"))
    assert await later.states() == {"5": "Completed", "6": "Idle"}


@pytest.mark.anyio
async def test_an_end_that_nobody_was_told_is_told_after_two_restarts(tmp_path: Path) -> None:
    """A server that looked, and was killed before a peer asked, has told nobody."""
    memory = RunningJobsFile(tmp_path / "running.json")
    server = Server(tmp_path, memory=memory)
    # A queue instance has another name on the wire, and no listing has been read when the file is.
    server.source.add(running("7", {"n1.q@host": 2}), job("6"))
    await server.states()
    looked = Server(tmp_path, memory=memory)
    looked.source.add(job("6"))
    await looked.resource.readings.fresh(now=True)
    assert [one.id for one in memory.load()] == ["7"]
    later = Server(tmp_path, memory=memory)
    later.source.add(job("6"))
    assert await later.states() == {"6": "Idle", "7": "Completed"}
    assert (await later.states())["7"] == "Completed"
    later.source.add(running("8", {"n2": 2}))
    await later.states()
    assert [one.id for one in memory.load()] == ["8"]


@pytest.mark.anyio
async def test_a_job_that_nobody_knows_any_more_is_told_to_be_over(tmp_path: Path) -> None:
    """Maui never forgets a job whose end it is not told, and cancels it again and again."""
    server = Server(tmp_path)
    server.source.add(job("6"))
    assert await server.states() == {"6": "Idle"}
    reply = await server.ask("CANCELJOB ARG=99 TYPE=ADMIN")
    assert (reply.status, reply.text) == (-700, "No such job")
    assert await server.states() == {"6": "Idle", "99": "Removed"}
    moab = Server(tmp_path / "moab", dialect=Dialect.WIKI2)
    assert (await moab.ask("CANCELJOB ARG=99 TYPE=ADMIN")).status == -700
    assert await moab.states() == {}


@pytest.mark.anyio
async def test_a_defect_costs_one_request(tmp_path: Path) -> None:
    """When something fails that must not, the peer gets a failure, and the next request is served."""

    class Broken(MemorySource):
        async def cancel(self, job: object) -> None:
            raise ZeroDivisionError(job)

    server = Server(tmp_path, Broken())
    server.source.add(job("5"), running("7", {"n1": 1}))
    assert (await server.ask("CANCELJOB ARG=7 TYPE=ADMIN")).status == -1
    assert (await server.states())["7"] == "Running"
