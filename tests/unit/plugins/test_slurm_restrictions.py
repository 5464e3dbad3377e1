# SPDX-License-Identifier: Apache-2.0
"""What keeps a waiting job of Slurm from starting: its parents, and what it asks for beside processors."""

from __future__ import annotations

import pytest

from koala_adapter.model import EndReason, LrmJob, LrmJobId, LrmJobState
from koala_slurm.limits import by_number, unfulfilled
from koala_slurm.requests import (
    Restrictions,
    missing_license,
    nodes_with_gres,
    parse_features,
    parse_gres,
    parse_licenses,
    parse_one_detailed,
    restrictions,
)

NOW = 1_795_000_000.0


def job(id_: str, state: LrmJobState = LrmJobState.HELD, **more: object) -> LrmJob:
    """Return a job."""
    element = id_.partition("_")[2]
    index = int(element) if element else None
    return LrmJob(id=LrmJobId(id_), name="j", state=state, user="u", processors=1, array_index=index, **more)  # type: ignore[arg-type]


def ended(id_: str, code: int = 0) -> LrmJob:
    """Return a job that has ended by itself."""
    return job(id_, LrmJobState.ENDED, end=EndReason.EXITED, exit_code=code, started_at=NOW - 90, ends_at=NOW - 60)


RUNNING = job("5", LrmJobState.RUNNING, started_at=NOW - 90)


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
    """Whatever Slurm still shows of a job in hold; a parent that is not there any more is none."""
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
    """All of them, or one of them."""
    assert parse_features(text) == expected


@pytest.mark.parametrize("text", ["[fast|slow]", "fast*2&slow*1", "a|b&c", "(a|b)&c", "!a"])
def test_features_that_cannot_be_told(text: str) -> None:
    """They are named."""
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
        ({"TresPerNode": "gres:gpu:a100:2,gres:fpga"}, Restrictions(gres=(("gpu:a100", 2), ("fpga", 1)))),
        ({"TresPerNode": "gres/gpu:2"}, Restrictions(gres=(("gpu", 2),))),
        ({"Licenses": "matlab:2,abaqus"}, Restrictions(licenses=(("matlab", 2), ("abaqus", 1)))),
        ({"MinTmpDiskNode": "2G", "ArrayTaskThrottle": "2"}, Restrictions(disk_mib=2048, throttle=2)),
        ({"NtasksPerN:B:S:C": "2:0:*:*", "ReqB:S:C:T": "0:0:*:*", "CoreSpec": "*"}, Restrictions()),
        ({"ReqB:S:C:T": "0:0:*:1"}, Restrictions(threads_per_core=1)),
        ({"NtasksPerN:B:S:C": "0:0:*:1"}, Restrictions(tasks_per_core=1)),
        ({"TresPerTask": "cpu=3"}, Restrictions()),
        ({"TresPerTask": "cpu:3"}, Restrictions()),
    ],
)
def test_what_a_job_asks_for(values: dict[str, str], expected: Restrictions) -> None:
    """As scontrol shows it."""
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
    """It is an obstacle, with its name."""
    assert words in restrictions(values).obstacle


def test_details_have_them() -> None:
    """The first of a name is Slurm's own."""
    text = "JobId=5 JobName=x\n   MinCPUsNode=1 MinTmpDiskNode=0\n   Features=a OverSubscribe=NO Contiguous=0\n"
    assert parse_one_detailed(text).restrictions == Restrictions(exclusive=True)


def test_licences_and_generic_resources_that_are_free() -> None:
    """By node, and with the type where one is asked for."""
    free = parse_licenses("LicenseName=matlab Total=4 Used=3 Free=1 Remote=no\n")
    assert missing_license(Restrictions(licenses=(("matlab", 1),)), free) == ""
    assert "matlab" in missing_license(Restrictions(licenses=(("matlab", 2),)), free)
    end = "\x1f"
    rows = (("n1", "gpu:a100:2(S:0),fpga:1", "gpu:a100:1(IDX:0),fpga:0"), ("n2", "gpu:a100:2", "gpu:a100:0(IDX:N/A)"))
    known = parse_gres("".join(f"{node}{end}{has}{end}{used}{end}1/7/0/8{end}\n" for node, has, used in rows))
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
    counts = parse_gres(f"n1\x1f{has}\x1f{used}\x1f0/8/0/8\x1f\n")["n1"].counts
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
    there = parse_gres(f"n1\x1fgpu:2,shard:8\x1f{used}\x1f0/8/0/8\x1f\n")["n1"]
    found = 0
    while there.has("shard", number):
        there = there.without("shard", number)
        found += 1
    assert found == jobs
