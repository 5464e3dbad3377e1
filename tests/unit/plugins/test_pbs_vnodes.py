# SPDX-License-Identifier: Apache-2.0
"""Vnodes of PBS that serve some queues and chunks only, and what its scheduler says of jobs that wait."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_pbs.jobs import assign, parse_jobs, parse_nodes, parse_selections
from koala_pbs.queues import ends_of, parse_queues, parse_server
from koala_pbs.vnodes import parse_vnodes, placed, tied

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob, Node


def vnode(*, partition: str = "", used: dict[str, object] | None = None, **resources: object) -> dict[str, object]:
    """Return a vnode of eight processors as pbsnodes prints it."""
    shown: dict[str, object] = {
        "state": "free",
        "resources_available": {"arch": "linux", "host": "h", "ncpus": 8, "mem": "8gb", "vnode": "h", **resources},
        "resources_assigned": used or {},
    }
    return {**shown, "partition": partition} if partition else shown


VNODES = json.dumps(
    {
        "nodes": {
            "plain": vnode(),
            "gpu": vnode(ngpus=4, Qlist="gpu,big", used={"ngpus": 3}),
            "big": vnode(Qlist="big", scratch="100gb"),
            "apart": vnode(partition="p1"),
        }
    }
)


def queue(**attributes: object) -> dict[str, object]:
    """Return an execution queue as qstat -Q -f prints it."""
    return {"queue_type": "Execution", "enabled": "True", "started": "True", **attributes}


QUEUES = json.dumps(
    {
        "Queue": {
            "workq": queue(resources_default={"walltime": "01:00:00", "project_code": "x"}),
            "gpuq": queue(default_chunk={"Qlist": "gpu", "ncpus": 1}),
            "bigq": queue(resources_default={"Qlist": "big"}),
            "partq": queue(partition="p1"),
        }
    }
)


def nodes() -> dict[str, Node]:
    """Return the nodes with the queues that they serve."""
    queues = {one.name: one for one in parse_queues(QUEUES)}
    listed = parse_nodes(VNODES, queues=tuple(queues))
    ties = {one.name: one.tie for one in queues.values()}
    default = [one.name for one in ends_of(queues["workq"], queues)]
    return {node.name: node for node in tied(listed, parse_vnodes(VNODES), ties, default=default)}


def test_queues_are_served_by_vnodes_with_their_words_and_partition() -> None:
    """A queue without any is served by all vnodes of the default partition; unknown resources tie nothing."""
    assert {name: node.queues for name, node in nodes().items()} == {
        "plain": ("workq",),
        "gpu": ("workq", "gpuq", "bigq"),
        "big": ("workq", "bigq"),
        "apart": ("partq",),
    }


@pytest.mark.parametrize(
    ("chunk", "serving"),
    [
        ({"ngpus": 2}, {"gpu"}),
        ({"ngpus": 5}, set()),
        ({"scratch": "50gb"}, {"big"}),
        ({"ngpus": 0}, {"plain", "gpu", "big"}),
        ({"ncpus": 4, "mem": "64gb", "unheard_of": 1}, {"plain", "gpu", "big"}),
    ],
)
def test_a_queue_whose_chunks_get_an_amount_is_served_where_it_is(chunk: dict[str, object], serving: set[str]) -> None:
    """Also while jobs have it; processors, memory and what no vnode has tie nothing."""
    (one,) = parse_queues(json.dumps({"Queue": {"gpuq": queue(default_chunk=chunk)}}))
    found = tied(parse_nodes(VNODES, queues=("gpuq",)), parse_vnodes(VNODES), {"gpuq": one.tie}, default=())
    assert {node.name for node in found} == serving


@pytest.mark.parametrize(
    ("chunk", "ever", "now"),
    [
        ({"ngpus": 1}, 4, 1),
        ({"ngpus": 2}, 2, 0),
        ({"ngpus": 1, "scratch": "30gb"}, 1, 1),
        ({"ngpus": 0}, 8, 8),
        ({"Qlist": "gpu"}, 8, 8),
    ],
)
def test_places_of_a_queue_whose_chunks_get_an_amount(chunk: dict[str, object], ever: int, now: int) -> None:
    """Each placeholder takes a GPU: eight processors with four of them, of which three are taken, start one more."""
    text = json.dumps({"nodes": {"gpu": vnode(ngpus=4, Qlist="gpu", scratch="50gb", used={"ngpus": 3})}})
    config = {"Queue": {"gpuq": queue(default_chunk=chunk), "workq": queue()}}
    ties = {one.name: one.tie for one in parse_queues(json.dumps(config))}
    (node,) = tied(parse_nodes(text, queues=tuple(ties)), parse_vnodes(text), ties, default=["gpuq"])
    assert (node.places("gpuq"), node.places_idle("gpuq")) == (ever, now)
    assert (node.places(None), node.places_idle(None)) == (ever, now)
    assert (node.places("workq"), node.places_idle("workq")) == (8, 8)
    assert (node.places("gpuq,workq"), node.places_idle("gpuq,workq")) == (8, 8)


def test_chunks_get_what_their_server_says_unless_their_queue_says_otherwise() -> None:
    """A GPU for each, at a site where all nodes have some; two in one queue, and none in another."""
    server = parse_server(json.dumps({"Server": {"s": {"default_chunk": {"ncpus": 1, "ngpus": 1}}}}))
    wanted = {"oneq": {}, "twoq": {"ngpus": 2}, "noneq": {"ngpus": 0}}
    config = {"Queue": {name: queue(default_chunk=chunk) for name, chunk in wanted.items()}}
    ties = {one.name: one.tie.with_defaults(server.default_chunk) for one in parse_queues(json.dumps(config))}
    listed = tied(parse_nodes(VNODES, queues=tuple(ties)), parse_vnodes(VNODES), ties, default=["oneq"])
    found = {node.name: node for node in listed}
    assert {name: found["gpu"].places(name) for name in (*wanted, None)} == {"oneq": 4, "twoq": 2, "noneq": 8, None: 4}
    assert found["plain"].queues == ("noneq",)


def test_a_job_that_names_no_queue_has_the_places_of_any_in_which_it_may_end_up() -> None:
    """A routing queue passes it on to one whose chunks get no GPU."""
    config = {"Queue": {"gpuq": queue(default_chunk={"ngpus": 1}), "workq": queue()}}
    ties = {one.name: one.tie for one in parse_queues(json.dumps(config))}
    listed = tied(parse_nodes(VNODES, queues=tuple(ties)), parse_vnodes(VNODES), ties, default=["gpuq", "workq"])
    found = {node.name: node.places_idle(None) for node in listed}
    assert (found["gpu"], found["plain"]) == (8, 8)


def test_jobs_of_the_default_queue_do_not_count_on_others_vnodes() -> None:
    """Those that name no queue."""
    idle = {name: (node.places_idle(None), node.places_idle("partq")) for name, node in nodes().items()}
    assert idle["apart"] == (0, 8)
    assert idle["plain"][0] == 8


def test_without_ties_all_is_as_it_was() -> None:
    """A site whose queues have none."""
    listed = parse_nodes(VNODES.replace(', "partition": "p1"', ""))
    ties = {one.name: one.tie for one in parse_queues(json.dumps({"Queue": {"workq": queue()}}))}
    assert tied(listed, parse_vnodes(VNODES.replace(', "partition": "p1"', "")), ties, default=["workq"]) == listed


def job(select: str, *, comment: str = "", state: str = "H") -> str:
    """Return a listing of one job."""
    entry = {
        "Job_Name": "j",
        "Job_Owner": "ann@h",
        "job_state": state,
        "Hold_Types": "o" if state == "H" else "n",
        "Resource_List": {"select": select},
        "comment": comment,
    }
    return json.dumps({"Jobs": {"1.h": entry}})


def listed(select: str) -> LrmJob:
    """Return a held job as the plugin lists it."""
    text = job(select)
    (found,) = placed(parse_jobs(text), parse_selections(text), parse_vnodes(VNODES))
    return found


@pytest.mark.parametrize(
    ("select", "possible"),
    [
        ("1:ncpus=64", None),
        ("1:ncpus=4:ngpus=1", ("gpu",)),
        ("1:ncpus=4:ngpus=2", ()),
        ("1:ncpus=1:Qlist=big", ("big", "gpu")),
        ("1:ncpus=1:scratch=50gb", ("big",)),
        ("1:ncpus=1:scratch=200gb", ()),
        ("1:ncpus=1:ngpus=1+1:ncpus=1:scratch=1gb", ("big", "gpu")),
        ("1:ncpus=1:unheard_of=1:mpiprocs=2:mem=1gb", None),
    ],
)
def test_jobs_may_go_where_their_chunks_have_what_they_ask_for(select: str, possible: tuple[str, ...] | None) -> None:
    """By numbers, sizes and words; what no vnode has is not known to be on any."""
    assert listed(select).possible_nodes == possible


def test_no_start_where_a_chunk_lacks_something() -> None:
    """PBS does not check what qrun -H asks for: three chunks of a GPU each do not fit where one is left."""
    vnodes = parse_vnodes(VNODES)
    vnodes.require("1.h", assign("1.h", "1:ncpus=4:ngpus=1", ["gpu"] * 4))
    with pytest.raises(LrmRejectedError, match=r"plain has not what job 1\.h asks for"):
        vnodes.require("1.h", assign("1.h", "1:ncpus=4:ngpus=1", ["plain"] * 4))
    with pytest.raises(LrmRejectedError, match="2 times ngpus=1"):
        vnodes.require("1.h", assign("1.h", "2:ncpus=2:ngpus=1", ["gpu"] * 4))


@pytest.mark.parametrize(
    ("comment", "blocked"),
    [
        ("Not Running: Insufficient amount of resource: ncpus (R: 8 A: 2 T: 8)", False),
        ("Not Running: Insufficient amount of resource: mem (R: 8gb A: 2gb T: 8gb)", False),
        ("Not Running: Not enough free nodes available", False),
        ("Not Running: Job would conflict with reservation or top job", False),
        ("Not Running: No available resources on nodes", False),
        ("Not Running: Host set host=n1 has too few free resources", False),
        ("Not Running: Placement set group=a has too few free resources", False),
        ("Not Running: Job is requesting an exclusive node and node is in use", False),
        ("Not Running: Draining system to allow starving job to run", False),
        ("Not Running: User has reached server running job limit.", True),
        ("Not Running: Insufficient amount of server resource: matlab (R: 1 A: 0 T: 4)", True),
        ("Not Running: Queue not started.", True),
        ("Can Never Run: Insufficient amount of resource: ncpus (R: 80 A: 8 T: 8)", True),
        ("Can Never Run: Not enough total nodes available", True),
        ("", False),
    ],
)
def test_what_blocks_a_job(comment: str, *, blocked: bool) -> None:
    """Limits and what can never be; that others have the processors, or come first, does not."""
    (found,) = parse_jobs(job("1:ncpus=1", comment=comment, state="Q"))
    assert found.blocked is blocked


@pytest.mark.parametrize(
    ("comment", "kept"),
    [
        ("Can Never Run: Insufficient amount of resource: ncpus (R: 80 A: 8 T: 8)", True),
        ("Not Running: Queue not started.", True),
        ("Not Running: Job would cross dedicated time boundary", True),
        ("Not Running: User has reached server running job limit.", False),
        ("Not Running: Insufficient amount of server resource: matlab (R: 1 A: 0 T: 4)", False),
        ("Not Running: Not enough free nodes available", False),
        ("", False),
    ],
)
def test_what_keeps_a_job_for_good(comment: str, *, kept: bool) -> None:
    """What only the site, or another request, changes; the ends of other jobs change the rest."""
    (found,) = parse_jobs(job("1:ncpus=1", comment=comment, state="Q"))
    assert found.kept is kept
    assert found.blocked or not kept
