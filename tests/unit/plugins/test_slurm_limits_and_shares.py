# SPDX-License-Identifier: Apache-2.0
"""Limits of partitions, and generic resources for which several waiting jobs ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_slurm.limits import (
    GresOnNodes,
    first_served,
    gres_shares,
    parse_gres_on_nodes,
    parse_partition_limits,
    within_limits,
)
from koala_slurm.outside import _licensed, groups_by_user
from koala_slurm.requests import FreeGres, Restrictions, nodes_with_gres, parse_one_detailed, restrictions, with_details

PARTITIONS = """\
PartitionName=batch AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=YES QoS=N/A MaxNodes=UNLIMITED \
MaxTime=UNLIMITED MinNodes=0 Nodes=n[1-4] State=UP TotalCPUs=32
PartitionName=small AllowAccounts=ALL DenyAccounts=games QoS=N/A MaxNodes=2 MaxTime=01:00:00 MinNodes=1 State=UP
PartitionName=large AllowAccounts=physics,bio QoS=N/A MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=3 State=UP
PartitionName=closed AllowAccounts=ALL QoS=N/A MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 State=INACTIVE
PartitionName=more AllowAccounts=ALL QoS=generous MaxNodes=1 MaxTime=1 MinNodes=1 State=UP
PartitionName=quick AllowGroups=ALL AllowAccounts=ALL AllowQos=short,tight QoS=N/A MaxTime=UNLIMITED State=UP
PartitionName=calm AllowGroups=ALL AllowAccounts=ALL DenyQos=short QoS=generous MaxTime=1 State=UP
PartitionName=staff AllowGroups=staff,root AllowAccounts=ALL AllowQos=ALL QoS=N/A MaxTime=UNLIMITED State=UP
"""
LIMITS = parse_partition_limits(PARTITIONS)
JOB = LrmJob(id=LrmJobId("7"), name="j", state=LrmJobState.HELD, user="ann", processors=4, queue="batch", walltime=7200)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"queue": "small"}, "60 minutes at most"),
        ({"queue": "small", "walltime": None}, ""),
        ({"queue": "small", "walltime": 60, "nodes_least": 3}, "at most 2 nodes"),
        ({"queue": "small", "walltime": 60, "account": "games"}, "does not serve account games"),
        ({"queue": "large", "account": "bio", "nodes_wanted": 2}, "at least 3 nodes"),
        ({"queue": "large", "account": "art", "nodes_wanted": 4}, "does not serve account art"),
        ({"queue": "closed"}, "INACTIVE"),
        ({"queue": "small,batch"}, ""),
        ({"queue": "small,closed"}, "60 minutes at most"),
        ({"queue": "more", "nodes_wanted": 2}, ""),
        ({"queue": "not known"}, ""),
    ],
)
def test_what_a_partition_does_not_allow(changes: dict[str, object], words: str) -> None:
    """It is an obstacle; one partition of several that lets the job start is enough."""
    found = within_limits(replace(JOB, **changes), LIMITS)  # type: ignore[arg-type]
    assert words in found.obstacle
    assert bool(found.obstacle) == bool(words)


@pytest.mark.parametrize(
    ("queue", "qos", "groups", "words"),
    [
        ("quick", "short", None, ""),
        ("quick", "normal", None, "partition quick does not serve QOS normal"),
        ("quick", "", None, ""),
        ("calm", "short", None, "partition calm does not serve QOS short"),
        ("calm", "normal", None, ""),
        ("staff", "normal", frozenset({"users"}), "partition staff serves no group of ann"),
        ("staff", "normal", frozenset({"users", "staff"}), ""),
        ("staff", "normal", None, ""),
    ],
)
def test_whom_a_partition_does_not_serve(queue: str, qos: str, groups: frozenset[str] | None, words: str) -> None:
    """Slurm takes such jobs, and does not start them; a QOS of the partition changes nothing of that."""
    assert within_limits(replace(JOB, queue=queue), LIMITS, qos=qos, groups=groups).obstacle == words


def test_groups_are_those_of_this_host() -> None:
    """Of a user that it does not know nothing is said."""
    found = groups_by_user(["root", "nobody knows this user"])
    assert "root" in found["root"]
    assert len(found) == 1


def test_a_partition_bounds_the_number_of_nodes() -> None:
    """Where the user leaves it open."""
    small = within_limits(replace(JOB, queue="small", walltime=60), LIMITS)
    assert small.node_bounds == (1, 2)
    large = within_limits(replace(JOB, queue="large", account="bio", nodes_most=4), LIMITS)
    assert large.node_bounds == (3, 4)
    assert within_limits(JOB, LIMITS).node_bounds == JOB.node_bounds


def held(number: int, *, processors: int = 1, state: LrmJobState = LrmJobState.HELD) -> LrmJob:
    """Return a waiting job."""
    return replace(JOB, id=LrmJobId(str(number)), processors=processors, state=state)


def shares(jobs: list[LrmJob], free: dict[str, int], idle: dict[str, int], *, each: int = 1) -> dict[str, set[str]]:
    """Return the nodes of each job when all ask for so many of one resource on each node."""
    on_nodes = GresOnNodes(free={node: FreeGres(counts={"gpu": number}) for node, number in free.items()}, idle=idle)
    found = gres_shares(jobs, {job.id: Restrictions(gres=(("gpu", each),)) for job in jobs}, on_nodes)
    return {str(job): set(nodes) for job, nodes in found.items()}


def test_two_jobs_do_not_count_on_one_resource() -> None:
    """Each has a node of its own; the third waits."""
    found = shares([held(9), held(10), held(11)], {"n1": 1, "n2": 1}, {"n1": 8, "n2": 8})
    assert found == {"9": {"n1"}, "10": {"n2"}, "11": set()}


def test_a_node_with_several_serves_several() -> None:
    """As many as there are."""
    found = shares([held(number) for number in range(1, 5)], {"n1": 4}, {"n1": 8}, each=2)
    assert found == {"1": {"n1"}, "2": {"n1"}, "3": set(), "4": set()}


def test_who_is_alone_may_choose() -> None:
    """All nodes that have it."""
    assert shares([held(1)], {"n1": 1, "n2": 2, "n3": 0}, {}) == {"1": {"n1", "n2"}}


def test_idle_nodes_and_released_jobs_come_first() -> None:
    """A job does not wait for processors of a node while another has both idle."""
    found = shares([held(1, processors=4), held(2)], {"n1": 1, "n2": 1}, {"n1": 2, "n2": 8})
    assert found == {"1": {"n2"}, "2": {"n1"}}
    released = held(5, state=LrmJobState.QUEUED)
    assert shares([held(1), released], {"n1": 1}, {"n1": 8}) == {"5": {"n1"}, "1": set()}


def test_a_job_with_nodes_of_its_own_choice_keeps_those() -> None:
    """And whose nodes are not known here may have any of them."""
    named, picky = replace(held(1), requested_nodes=("n2",)), replace(held(2), features=("fast",))
    found = shares([named, picky, held(3)], {"n1": 1, "n2": 1, "n3": 1}, {})
    assert found == {"1": {"n2"}, "2": {"n1", "n3"}, "3": set()}


def test_what_sinfo_shows() -> None:
    """Free resources and idle processors of each node."""
    end = "\x1f"
    shown = parse_gres_on_nodes(f"n1{end}gpu:a100:2(S:0){end}gpu:a100:1(IDX:0){end}3/5/0/8{end}\n")
    assert shown.free == {"n1": FreeGres(counts={"gpu:a100": 1, "gpu": 1})}
    assert shown.idle == {"n1": 5}


@pytest.mark.parametrize(
    ("has", "asked", "enough"),
    [
        ("localtmp:800G", "gres:localtmp:100G", True),
        ("localtmp:800G", "gres:localtmp:42k", True),
        ("localtmp:800G", "gres:localtmp:100", True),
        ("localtmp:1k", "gres/localtmp:1024", True),
        ("localtmp:1k", "gres/localtmp=1025", False),
        ("gpu:no_consume:4", "gres:gpu:4", True),
        ("gpu:no_consume:4", "gres:gpu:5", False),
        ("x:y:no_consume:4G", "gres:x:y:4G", True),
        ("tmp:2T", "gres:tmp:1P", False),
    ],
)
def test_units_of_generic_resources(has: str, asked: str, enough: bool) -> None:  # noqa: FBT001
    """They are powers of 1024, on both sides."""
    end = "\x1f"
    free = parse_gres_on_nodes(f"n1{end}{has}{end}{end}0/8/0/8{end}\n").free
    wanted = restrictions({"TresPerNode": asked})
    assert nodes_with_gres(wanted, free) == (("n1",) if enough else ())


def test_what_is_not_consumed_serves_any_number_of_jobs() -> None:
    """Each may have all of it at the same time."""
    end = "\x1f"
    on_nodes = parse_gres_on_nodes(f"n1{end}gpu:no_consume:4,fpga:1{end}{end}0/8/0/8{end}\n")
    for name, number, second in (("gpu", 4, ("n1",)), ("fpga", 1, ())):
        asked = {LrmJobId(id_): Restrictions(gres=((name, number),)) for id_ in ("1", "2")}
        assert gres_shares([held(1), held(2)], asked, on_nodes)[LrmJobId("2")] == second


@pytest.mark.parametrize(
    ("asked", "processors", "memory"),
    [
        ({"CpusPerTres": "gres:gpu:4"}, 8, None),
        ({"CpusPerTres": "gres/gpu:4", "MemPerTres": "gres/gpu:1024"}, 8, 2048),
        ({}, 1, None),
    ],
)
def test_processors_and_memory_by_gpu(asked: dict[str, str], processors: int, memory: int | None) -> None:
    """Slurm shows a job in hold with one processor, and gives it more when it starts."""
    text = "".join(f"   {name}={value}\n" for name, value in ({"TresPerNode": "gres:gpu:a100:2"} | asked).items())
    details = parse_one_detailed(f"JobId=7 JobName=j\n   NumNodes=1 NumCPUs=1\n{text}")
    job = with_details(held(7), details)
    assert (job.processors, job.memory_per_node_mib) == (processors, memory)


def test_jobs_in_their_users_hold_share_last() -> None:
    """They are scheduled where holds cannot be told apart, and take nothing from others."""
    user = replace(held(1), hold=HoldOwner.USER)
    others = [user, replace(held(2), hold=HoldOwner.OPERATOR)]
    assert max(others, key=first_served) is user
    asked = {job.id: Restrictions(licenses=(("matlab", 6),)) for job in others}
    assert _licensed(others, asked, {"matlab": 10}) == {"2"}
    assert _licensed([user], asked, {"matlab": 10}) == {"1"}
