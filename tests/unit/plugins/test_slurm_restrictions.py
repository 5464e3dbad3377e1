# SPDX-License-Identifier: Apache-2.0
"""What keeps jobs of Slurm from nodes: features, generic resources, licences, limits of partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.lrm.commands import THIS_HOST
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_slurm.limits import (
    GresOnNodes,
    by_number,
    first_served,
    gres_shares,
    parse_gres_on_nodes,
    parse_partition_limits,
    unfulfilled,
    within_limits,
)
from koala_slurm.outside import _unlicensed, groups_by_user
from koala_slurm.requests import (
    FreeGres,
    Restrictions,
    nodes_with_gres,
    parse_features,
    parse_gres,
    parse_licenses,
    parse_one_detailed,
    restrictions,
    with_details,
)

NOW = 1_795_000_000.0


def job(id_: str, state: LrmJobState = LrmJobState.HELD, **more: object) -> LrmJob:
    element = id_.partition("_")[2]
    index = int(element) if element else None
    return LrmJob(id=LrmJobId(id_), name="j", state=state, user="u", processors=1, array_index=index, **more)  # type: ignore[arg-type]


def ended(id_: str, code: int = 0) -> LrmJob:
    return job(id_, LrmJobState.ENDED, end=EndReason.EXITED, exit_code=code, started_at=NOW - 90, ends_at=NOW - 60)


RUNNING = job("5", LrmJobState.RUNNING, started_at=NOW - 90)


def node_row(has: str, used: str = "", *, name: str = "n1", processors: str = "0/8/0/8") -> str:
    """Return a node with its generic resources as sinfo prints it."""
    return "".join(f"{value}\x1f" for value in (name, has, used, processors)) + "\n"


@pytest.mark.parametrize(
    ("text", "parents", "words"),
    [
        ("afterok:5(unfulfilled)", [RUNNING], "waits for other jobs (afterok:5)"),
        ("afterok:5(unfulfilled)", [ended("5")], ""),
        ("afterok:5(unfulfilled)", [ended("5", 3)], "success of a job that has failed"),
        ("afterok:5(unfulfilled)", [], ""),
        ("afternotok:5(unfulfilled)", [ended("5", 3)], ""),
        ("afternotok:5(unfulfilled)", [ended("5")], "failure of a job that has ended well"),
        ("afterany:5(unfulfilled),afterok:6(unfulfilled)", [ended("5", 3), job("6")], "afterok:6"),
        ("afterok:5(unfulfilled)?afterok:6(unfulfilled)", [ended("5"), job("6")], ""),
        ("after:5(unfulfilled)", [RUNNING], ""),
        ("after:5+5(unfulfilled)", [RUNNING], "after:5+5"),
        ("after:5(unfulfilled)", [job("5")], "after:5"),
        ("afterok:5_*(unfulfilled)", [ended("5_1"), job("5_2")], "afterok"),
        ("afterok:5_*(unfulfilled)", [ended("5_1"), ended("5_2")], ""),
        ("afterany:5_1(unfulfilled)", [ended("5_1"), job("5_2")], ""),
        ("singleton(unfulfilled)", [job("5")], "same name"),
        ("singleton(unfulfilled)", [ended("5")], ""),
        ("burst_buffer", [], "waits for other jobs"),
    ],
)
def test_dependencies_are_worked_out_from_the_parents(text: str, parents: list[LrmJob], words: str) -> None:
    found = unfulfilled(job("9"), text, by_number(parents), now=NOW)
    assert (words in found, bool(words)) == (True, bool(found)), found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ((), (), "")),
        ("fast&big", (("fast", "big"), (), "")),
        ("fast|slow", ((), ("fast", "slow"), "")),
    ],
)
def test_features(text: str, expected: tuple[tuple[str, ...], tuple[str, ...], str]) -> None:
    assert parse_features(text) == expected


@pytest.mark.parametrize("text", ["[fast|slow]", "fast*2&slow*1", "a|b&c", "(a|b)&c", "!a"])
def test_features_that_cannot_be_told(text: str) -> None:
    every, some, problem = parse_features(text)
    assert (every, some, text in problem) == ((), (), True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"OverSubscribe": "NO"}, Restrictions(exclusive=True)),
        ({"TresPerTask": "cpu=2"}, Restrictions()),
        ({"TresPerTask": "cpu:2"}, Restrictions()),
        ({"OverSubscribe": "OK", "Contiguous": "0", "Reservation": "koala_start_5"}, Restrictions()),
        ({"OverSubscribe": "NO", "Exclusive": "NO"}, Restrictions()),
        ({"OverSubscribe": "YES", "Exclusive": "NO"}, Restrictions()),
        ({"OverSubscribe": "NO", "Exclusive": "NODE"}, Restrictions(exclusive=True)),
        ({"OverSubscribe": "NO", "Exclusive": "USER"}, Restrictions(exclusive=True)),
        ({"TresPerNode": "gres:gpu:a100:2,gres:fpga"}, Restrictions(gres=(("gpu:a100", 2), ("fpga", 1)), gpus=2)),
        ({"TresPerNode": "gres/gpu:2"}, Restrictions(gres=(("gpu", 2),), gpus=2)),
        ({"TresPerNode": "gres/gpu:1,gres/gpu:b:1"}, Restrictions(gres=(("gpu", 1), ("gpu:b", 1)), gpus=2)),
        ({"Licenses": "matlab:2,abaqus"}, Restrictions(licenses=(("matlab", 2), ("abaqus", 1)))),
        ({"MinTmpDiskNode": "2G", "ArrayTaskThrottle": "2"}, Restrictions(disk_mib=2048, throttle=2)),
        ({"NtasksPerN:B:S:C": "2:0:*:*", "ReqB:S:C:T": "0:0:*:*", "CoreSpec": "*"}, Restrictions()),
        ({"ReqB:S:C:T": "0:0:*:1"}, Restrictions(threads_per_core=1)),
        ({"NtasksPerN:B:S:C": "0:0:*:1"}, Restrictions(tasks_per_core=1)),
    ],
)
def test_what_a_job_asks_for(values: dict[str, str], expected: Restrictions) -> None:
    assert restrictions(values) == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"HetJobId": "7"}, "heterogeneous"),
        ({"Switches": "1@00:05:00"}, "switches"),
        ({"TresPerTask": "cpu=2,gres/gpu=1"}, "asks for gres/gpu=1, not by node"),
        ({"TresPerJob": "gres:gpu:4"}, "gres:gpu:4"),
        ({"TresPerTask": "cpu=3,gres/gpu:1"}, "asks for gres/gpu:1, not"),
        ({"Reservation": "maintenance"}, "maintenance"),
        ({"Contiguous": "1"}, "contiguous"),
        ({"CoreSpec": "2"}, "core-spec"),
        ({"NtasksPerN:B:S:C": "0:0:2:*"}, "sockets"),
        ({"ReqB:S:C:T": "0:0:2:*"}, "sockets"),
    ],
)
def test_what_cannot_be_respected(values: dict[str, str], words: str) -> None:
    assert words in restrictions(values).obstacle


def test_details_have_them() -> None:
    """The first of a name is Slurm's own."""
    text = "JobId=5 JobName=x\n   MinCPUsNode=1 MinTmpDiskNode=0\n   Features=a OverSubscribe=NO Contiguous=0\n"
    assert parse_one_detailed(text).restrictions == Restrictions(exclusive=True)


def test_licences_and_generic_resources_that_are_free() -> None:
    free = parse_licenses("LicenseName=matlab Total=4 Used=3 Free=1 Remote=no\n")
    assert free == {"matlab": 1}
    first = node_row("gpu:a100:2(S:0),fpga:1", "gpu:a100:1(IDX:0),fpga:0")
    known = parse_gres(first + node_row("gpu:a100:2", "gpu:a100:0(IDX:N/A)", name="n2"))
    assert nodes_with_gres(Restrictions(gres=(("gpu", 1),)), known) == ("n1", "n2")
    assert nodes_with_gres(Restrictions(gres=(("gpu:a100", 2),)), known) == ("n2",)
    assert nodes_with_gres(Restrictions(gres=(("fpga", 1),)), known) == ("n1",)


@pytest.mark.parametrize(
    ("has", "used", "free"),
    [
        ("gpu:2,shard:8", "gpu:0(IDX:N/A),shard:0(IDX:N/A)", {"gpu": 2, "shard": 8}),
        ("gpu:2(S:0),shard:8", "gpu:0(IDX:N/A),shard:1(IDX:0)", {"gpu": 1, "shard": 4}),
        ("gpu:2,shard:8", "gpu:1(IDX:0),shard:1(IDX:1)", {"gpu": 0, "shard": 0}),
        ("gpu:2,shard:8", "gpu:0(IDX:N/A),shard:3(3/4,0/4)", {"gpu": 1, "shard": 5}),
        (
            "gpu:tesla:2,gpu:kepler:2,shard:tesla:8,shard:kepler:8",
            "gpu:tesla:1(IDX:0),gpu:kepler:0(IDX:N/A),shard:tesla:0(IDX:N/A),shard:kepler:2(IDX:2-3)",
            {"gpu": 1, "gpu:tesla": 1, "gpu:kepler": 0, "shard": 4, "shard:tesla": 4, "shard:kepler": 0},
        ),
        (
            "gpu:tesla:2,gpu:kepler:2,shard:tesla:8,shard:kepler:8",
            "gpu:tesla:2(IDX:0-1),gpu:kepler:0(IDX:N/A),shard:tesla:0(-/4,-/4),shard:kepler:3(3/4,0/4)",
            {"gpu": 1, "gpu:tesla": 0, "gpu:kepler": 1, "shard": 5, "shard:tesla": 0, "shard:kepler": 5},
        ),
        ("gpu:tesla:2,shard:8", "gpu:tesla:1(IDX:0),shard:0(IDX:N/A)", {"gpu": 1, "gpu:tesla": 1, "shard": 4}),
    ],
)
def test_shards_are_parts_of_gpus(has: str, used: str, free: dict[str, int]) -> None:
    """What has one in use is no whole GPU; Slurm 22.05 shows as used shards the number of GPUs that have any in use."""
    counts = parse_gres(node_row(has, used))["n1"].counts
    assert {name: counts[name] for name in free} == free


@pytest.mark.parametrize(
    ("used", "number", "jobs"),
    [
        ("", 1, 8),
        ("", 2, 4),
        ("", 3, 2),  # each of them leaves one that no other such job can have
        ("", 4, 2),
        ("", 5, 1),
        ("", 8, 1),
        ("gpu:0(IDX:N/A),shard:6(3/4,3/4)", 1, 2),
        ("gpu:0(IDX:N/A),shard:6(3/4,3/4)", 2, 0),
        ("gpu:0(IDX:N/A),shard:3(3/4,0/4)", 2, 2),
        ("gpu:0(IDX:N/A),shard:2(1/4,1/4)", 3, 2),
        ("gpu:1(IDX:0),shard:1(0/4,1/4)", 3, 1),
        ("gpu:0(IDX:N/A),shard:1(IDX:0)", 3, 1),
    ],
)
def test_shards_of_one_gpu(used: str, number: int, jobs: int) -> None:
    """As many jobs as fit beside each other, when those that run leave less of a GPU than one of them needs."""
    there = parse_gres(node_row("gpu:2,shard:8", used))["n1"]
    found = 0
    while there.has("shard", number):
        there = there.without("shard", number)
        found += 1
    assert found == jobs


# Limits of partitions, and generic resources for which several waiting jobs ask.

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


async def test_groups_are_those_of_the_host() -> None:
    found = await groups_by_user(THIS_HOST, ["root", "nobody knows this user"])
    assert "root" in found["root"]
    assert len(found) == 1


def test_a_partition_bounds_the_number_of_nodes() -> None:
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
    found = shares([held(9), held(10), held(11)], {"n1": 1, "n2": 1}, {"n1": 8, "n2": 8})
    assert found == {"9": {"n1"}, "10": {"n2"}, "11": set()}


def test_a_node_with_several_serves_several() -> None:
    found = shares([held(number) for number in range(1, 5)], {"n1": 4}, {"n1": 8}, each=2)
    assert found == {"1": {"n1"}, "2": {"n1"}, "3": set(), "4": set()}


def test_who_is_alone_may_choose() -> None:
    assert shares([held(1)], {"n1": 1, "n2": 2, "n3": 0}, {}) == {"1": {"n1", "n2"}}


def test_idle_nodes_and_released_jobs_come_first() -> None:
    found = shares([held(1, processors=4), held(2)], {"n1": 1, "n2": 1}, {"n1": 2, "n2": 8})
    assert found == {"1": {"n2"}, "2": {"n1"}}
    released = held(5, state=LrmJobState.QUEUED)
    assert shares([held(1), released], {"n1": 1}, {"n1": 8}) == {"5": {"n1"}, "1": set()}


def test_a_job_with_nodes_of_its_own_choice_keeps_those() -> None:
    named, picky = replace(held(1), requested_nodes=("n2",)), replace(held(2), features=("fast",))
    found = shares([named, picky, held(3)], {"n1": 1, "n2": 1, "n3": 1}, {})
    assert found == {"1": {"n2"}, "2": {"n1", "n3"}, "3": set()}


def test_what_sinfo_shows() -> None:
    shown = parse_gres_on_nodes(node_row("gpu:a100:2(S:0)", "gpu:a100:1(IDX:0)", processors="3/5/0/8"))
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
    free = parse_gres_on_nodes(node_row(has)).free
    wanted = restrictions({"TresPerNode": asked})
    assert nodes_with_gres(wanted, free) == (("n1",) if enough else ())


def test_what_is_not_consumed_serves_any_number_of_jobs() -> None:
    on_nodes = parse_gres_on_nodes(node_row("gpu:no_consume:4,fpga:1"))
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
    text = "".join(f"   {name}={value}\n" for name, value in ({"TresPerNode": "gres:gpu:a100:2"} | asked).items())
    details = parse_one_detailed(f"JobId=7 JobName=j\n   NumNodes=1 NumCPUs=1\n{text}")
    job = with_details(held(7), details)
    assert (job.processors, job.memory_per_node_mib) == (processors, memory)


def test_jobs_in_their_users_hold_share_last() -> None:
    user = replace(held(1), hold=HoldOwner.USER)
    others = [user, replace(held(2), hold=HoldOwner.OPERATOR)]
    assert max(others, key=first_served) is user
    asked = {job.id: Restrictions(licenses=(("matlab", 6),)) for job in others}
    assert _unlicensed(others, asked, {"matlab": 10}) == {"1": "there are too few free licences matlab"}
    assert _unlicensed([user], asked, {"matlab": 10}) == {}
