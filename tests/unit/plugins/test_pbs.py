# SPDX-License-Identifier: Apache-2.0
"""The plugin ``pbs`` without a server: ids, chunks, command lines, directives, vnodes, reservations."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.commands import CommandResult
from koala_adapter.lrm.contract import Directives, ReservationRequest
from koala_adapter.model import BatchKey, EndReason, LrmJob, Node, NodeState
from koala_adapter.slots import Slot
from koala_adapter.testing import new_context
from koala_pbs import client as control
from koala_pbs.jobs import assign, parse_exec_vnode, parse_select, tied_place
from koala_pbs.lrm import PbsLrm
from koala_pbs.queues import (
    QueueConfig,
    ServerConfig,
    ends_of,
    largest_array,
    placed,
    served,
    tied,
    walltime_limit,
)
from koala_pbs.settings import PbsSettings
from koala_pbs.submission import QSUB, parse_confirmed, parse_reservations, pieces, qsub_command, rsub_command
from koala_pbs.words import (
    array_index,
    array_of,
    checked,
    compacted,
    element_ids,
    job_end,
    mebibytes_of,
    moment_of,
    number_of,
    seconds_of,
    submission_error,
)
from tests.fakes.scriptedrunner import ScriptedRunner
from tests.pbs_listings import parse_jobs, parse_nodes, parse_queues, parse_selections, parse_server, parse_vnodes

# The pure parts of the plugin ``pbs`` that nothing recorded is needed for: ids, chunks, command lines, directives.

SUBMISSION = Submission(key=BatchKey("koala-1"), count=3, script="#!/bin/sh\n", walltime=600)
EVERYTHING = Directives()
SETTINGS = PbsSettings()
UNUSUAL = Slot(exclusive=True, licenses=(("matlab", 1),))


def qsub(submission: Submission = SUBMISSION, directives: Directives = EVERYTHING, largest: int = 100) -> list[str]:
    """Return the first command line of a submission."""
    return list(qsub_command(submission, SETTINGS, directives, pieces(submission, largest)[0]))


class TestIds:
    """123.server, 123[].server, 123[4].server."""

    def test_parts(self) -> None:
        assert [array_index(id_) for id_ in ("1.vm", "1[].vm", "1[7].vm", "1[0]", "x")] == [None, None, 7, 0, None]
        assert [array_of(id_) for id_ in ("1.vm", "1[].vm", "1[7].vm-2")] == ["1.vm", "1[].vm", "1[].vm-2"]
        assert element_ids("1[].vm", range(2, 4)) == ("1[2].vm", "1[3].vm")

    @pytest.mark.parametrize("text", ["", "-W force", "1.vm;id", "1[1-3].vm", "1[.vm", "all", "1.-x", "1 .vm"])
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(LrmNotFoundError):
            checked(text)

    def test_ranges(self) -> None:
        ids = ["5.vm", *element_ids("6[].vm", (1, 2, 3, 5, 7, 8)), *element_ids("7[].vm", (1, 2))]
        assert list(compacted(ids, whole=["7[].vm"])) == ["5.vm", "6[1-3].vm", "6[5].vm", "6[7-8].vm", "7[].vm"]

    @given(st.sets(st.integers(0, 200), min_size=1))
    def test_ranges_name_just_these(self, numbers: set[int]) -> None:
        seen: list[int] = []
        for argument in compacted(element_ids("1[].vm", numbers)):
            first, last = re.fullmatch(r"1\[(\d+)-?(\d*)\]\.vm", argument).groups()  # type: ignore[union-attr]
            seen += range(int(first), int(last or first) + 1)
        assert seen == sorted(numbers)


class TestSelection:
    """Chunks and vnodes."""

    def test_chunks(self) -> None:
        chunks = parse_select('2:ncpus=4:mem=1gb+ngpus=1:note="a+b:c"')
        assert [chunk.processors for chunk in chunks] == [4, 4, 1]
        assert chunks[2].value("note") == '"a+b:c"'
        with pytest.raises(ValueError, match="too many chunks"):
            parse_select("999999999:ncpus=1")

    def test_where_it_runs(self) -> None:
        assert parse_exec_vnode("(n3:ncpus=2)+(n4:ncpus=1)") == (("n3", 2), ("n4", 1))
        assert parse_exec_vnode("n2:ncpus=4:mem=1gb+n3:ncpus=4") == (("n2", 4), ("n3", 4))
        assert parse_exec_vnode("(n1:ncpus=1+n2:ncpus=1)+(n1:ncpus=1)") == (("n1", 2), ("n2", 1))
        assert parse_exec_vnode("") == ()

    def test_ties(self) -> None:
        tied = assign("1.vm", "3:ncpus=2:mem=1gb:mpiprocs=2", ["n1"] * 4 + ["n2"] * 2)
        assert tied.select == "2:ncpus=2:mem=1gb:mpiprocs=2:vnode=n1+1:ncpus=2:mem=1gb:mpiprocs=2:vnode=n2"
        assert tied.destination == "(n1:ncpus=2:mem=1gb)+(n1:ncpus=2:mem=1gb)+(n2:ncpus=2:mem=1gb)"
        assert [tied_place(place) for place in ("scatter:excl", "pack", "vscatter:group=host")] == [
            "free:excl",
            "free",
            "free",
        ]

    @pytest.mark.parametrize(
        ("select", "nodes"),
        [
            ("1:ncpus=2", ["n1", "n2"]),
            ("2:ncpus=2", ["n1"]),
            ("2:ncpus=2", ["n1"] * 3 + ["n2"]),
            ("1:ncpus=1:vnode=n2", ["n1"]),
            ("1:ncpus=1", ["n1;rm"]),
            ("1:ncpus=1", []),
        ],
    )
    def test_what_cannot_be(self, select: str, nodes: list[str]) -> None:
        with pytest.raises(LrmRejectedError):
            assign("1.vm", select, nodes)

    @given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=8), st.randoms())
    def test_whatever_can_be_divided_is(self, sizes: list[tuple[int, int]], chance: object) -> None:
        nodes = [f"n{node}" for size, node in sorted(sizes, key=lambda pair: pair[1]) for _ in range(size)]
        chance.shuffle(sizes)  # type: ignore[attr-defined]
        found = assign("1.vm", "+".join(f"1:ncpus={size}" for size, _ in sizes), nodes)
        assert [chunk.processors for chunk, _ in found.pairs] == [size for size, _ in sizes]
        assert found.processors == {node: nodes.count(node) for node in nodes}


class TestSubmission:
    """qsub's command line."""

    def test_an_array(self) -> None:
        """All that is asked for; it must be rerunnable, or PBS takes no array."""
        command = qsub(replace(SUBMISSION, memory_mib=200, queue="workq", output_directory="/out"))
        assert command[0] == "qsub"
        pairs = list(pairwise(command))
        for pair in (
            ("-C", ""),
            ("-N", "koala-1"),
            ("-J", "1-3"),
            ("-l", "select=1:ncpus=1:mem=200mb"),
            ("-l", "walltime=600"),
            ("-o", "/out/koala-1.^array_index^.out"),
            ("-q", "workq"),
        ):
            assert pair in pairs
        assert "-r" not in command

    def test_a_single_one(self) -> None:
        """It is told its index as an element would be; PBS refuses arrays of one."""
        command = qsub(replace(SUBMISSION, count=1))
        assert "-J" not in command
        assert command[command.index("-v") + 1] == "PBS_ARRAY_INDEX=1"
        assert command[command.index("-r") + 1] == "n"

    @pytest.mark.parametrize(
        ("slot", "pairs"),
        [
            (Slot(threads=4), {("-l", "select=1:ncpus=4:mem=200mb")}),
            (Slot(gpus=2), {("-l", "select=1:ncpus=1:mem=200mb:ngpus=2")}),
            (Slot(exclusive=True), {("-l", "place=excl")}),
            (Slot(licenses=(("matlab", 2), ("comsol", 1))), {("-l", "matlab=2"), ("-l", "comsol=1")}),
            (Slot(account="physics"), {("-A", "physics")}),
            (Slot(directives=("-P fast",)), {("-P", "fast")}),
        ],
    )
    def test_slots_become_options(self, slot: Slot, pairs: set[tuple[str, str]]) -> None:
        assert pairs <= set(pairwise(qsub(replace(SUBMISSION, memory_mib=200, slot=slot))))

    def test_mapped_keys_are_options_or_parts_of_the_chunk(self) -> None:
        site = Directives(
            map=(
                ("features", (":{name}=true",)),
                ("gpus", (":naccelerators={n}",)),
                ("qos", ("-W x=qos:{name}",)),
                ("memory", (":vmem={mib}mb",)),
            )
        )
        assert QSUB.problem_of(site) == ""
        slot = Slot(threads=2, gpus=1, features=("ib", "avx"), qos="high")
        command = qsub(replace(SUBMISSION, memory_mib=9, slot=slot), site)
        assert "select=1:ncpus=2:vmem=9mb:naccelerators=1:ib=true:avx=true" in command
        assert command[-2:] == ["-W", "x=qos:high"]

    @pytest.mark.parametrize("text", [":ngpus={n}+1:ncpus=9", ":n gpus={n}", ":", "-J 1-{n}"])
    def test_maps_that_would_change_more_are_refused(self, text: str) -> None:
        assert "of gpus in [clusters.map]" in QSUB.problem_of(Directives(map=(("gpus", (text,)),)))

    @pytest.mark.parametrize(
        ("slot", "option"),
        [
            (Slot(threads=4), "nodes=1:ppn=4"),
            (Slot(threads=2, gpus=1, features=("ib", "avx")), "nodes=1:ppn=2:gpus=1:ib:avx"),
        ],
    )
    def test_slots_of_torque(self, slot: Slot, option: str) -> None:
        settings = PbsSettings(dialect="torque")
        asked = replace(SUBMISSION, memory_mib=200, slot=slot)
        pairs = set(pairwise(qsub_command(asked, settings, EVERYTHING, range(1, 2))))
        assert {("-l", option), ("-l", "mem=200mb")} <= pairs
        with pytest.raises(LrmRejectedError, match="cannot be asked for exclusive, licenses"):
            qsub_command(replace(SUBMISSION, slot=UNUSUAL), settings, EVERYTHING, range(1, 2))

    def test_pieces(self) -> None:
        assert pieces(SUBMISSION, 3) == (range(1, 4),)
        assert pieces(SUBMISSION, 2) == (range(1, 3), range(3, 4))
        assert len(pieces(SUBMISSION, 1)) == len(pieces(replace(SUBMISSION, held=True), 10)) == 3

    @pytest.mark.parametrize(
        "change",
        [
            {"key": BatchKey("1koala")},
            {"key": BatchKey("a b")},
            {"queue": "-x"},
            {"output_directory": "host:/tmp"},
            {"output_directory": "tmp"},
            {"script": "echo"},
            {"walltime": 0},
            {"count": 0},
            {"memory_mib": 0},
        ],
    )
    def test_what_cannot_be_expressed(self, change: dict[str, object]) -> None:
        with pytest.raises(LrmRejectedError, match="PBS cannot take this submission"):
            qsub(replace(SUBMISSION, **change))  # type: ignore[arg-type]

    def test_directives(self) -> None:
        directives = Directives(
            add=("-W group_list=physics", "-lngpus=1"), drop=("-m", "-l walltime"), rename=(("-A", "-P"), ("-j", "-k"))
        )
        settings = PbsSettings(account="acct")
        command = qsub_command(SUBMISSION, settings, directives, range(1, 4))
        assert not {"-m", "-A", "-j", "walltime=600"} & set(command)
        assert command[command.index("-P") + 1] == "acct"
        assert command[command.index("-k") + 1] == "oe"
        assert command[-3:] == ("-W", "group_list=physics", "-lngpus=1")
        renamed = qsub(directives=Directives(rename=(("-l walltime", "-l cput"),)))
        assert "cput=600" in renamed

    @pytest.mark.parametrize(
        "directives",
        [
            Directives(add=("-N other",)),
            Directives(add=("-J 1-9",)),
            Directives(add=("-v A=1",)),
            Directives(add=("-I",)),
            Directives(add=("-W block=true",)),
            Directives(add=("-Wblock=true",)),
            Directives(add=("-V",)),
            Directives(add=("script.sh",)),
            Directives(add=("-l a=1 -I",)),
            Directives(add=("-l 'a",)),
            Directives(add=("-l a\n-I",)),
            Directives(drop=("-N",)),
            Directives(drop=("walltime",)),
            Directives(rename=(("-q", "-I"),)),
            Directives(rename=(("-q", "queue"),)),
        ],
    )
    def test_directives_that_are_refused(self, directives: Directives) -> None:
        """What would make the placeholders impossible to follow, or is no option."""
        assert QSUB.problem_of(directives)
        with pytest.raises(LrmRejectedError):
            qsub(directives=directives)


@pytest.mark.parametrize(
    ("stderr", "status", "kind"),
    [
        ("Connection refused\nqsub: cannot connect to server vm (errno=15010)", 162, LrmUnreachableError),
        ("qsub: would exceed complex's per-user limit", 38, LrmUnavailableError),
        ("qsub: something that nobody has seen", 1, LrmRejectedError),
        ("", 1, LrmUnavailableError),
        ("Killed", 137, LrmUnavailableError),
    ],
)
def test_submission_errors(stderr: str, status: int, kind: type[Exception]) -> None:
    result = CommandResult(argv=("qsub",), returncode=status, stdout=b"", stderr=stderr.encode())
    assert type(submission_error(result)) is kind


def test_values() -> None:
    """Times, sizes and numbers in all of PBS's forms."""
    assert [seconds_of(text) for text in ("00:10:00", "10:00", "600", "100:00:00", "x", "")] == [
        600,
        600,
        600,
        360_000,
        None,
        None,
    ]
    assert [mebibytes_of(text) for text in ("4gb", "204800kb", "1b", "0kb", "1mw", "1", "x")] == [
        4096,
        200,
        1,
        0,
        8,
        1,
        None,
    ]
    assert [moment_of(text) for text in ("Thu Jan  1 00:01:00 1970", "60", "never")] == [60.0, 60.0, None]
    assert [number_of(text, 7) for text in ("3", "1e3", "2.0", "x", "inf")] == [3, 1000, 2, 7, 7]


@pytest.mark.parametrize(
    ("status", "substate", "end"),
    [
        (0, "92", (EndReason.EXITED, 0, None)),
        (255, "93", (EndReason.EXITED, 255, None)),
        (137, "93", (EndReason.EXITED, 137, None)),
        (256, "93", (EndReason.EXITED, 256, None)),
        (271, "93", (EndReason.SIGNALLED, None, 15)),
        (320, "93", (EndReason.SIGNALLED, None, 64)),
        (321, "93", (EndReason.EXITED, 321, None)),
        (271, "91", (EndReason.CANCELLED, None, None)),
        (None, "92", (None, None, None)),
        (-1, "93", (EndReason.LAUNCH_FAILED, None, None)),
        (-3, "93", (None, None, None)),
        (-4, "93", (EndReason.NODE_LOST, None, None)),
        (-11, "93", (None, None, None)),
        (-25, "93", (EndReason.CANCELLED, None, None)),
        (-27, "93", (EndReason.MEMORY, None, None)),
        (-29, "93", (EndReason.WALLTIME, None, None)),
        (-999, "93", (EndReason.LAUNCH_FAILED, None, None)),
    ],
)
def test_ends(status: int | None, substate: str, end: tuple[EndReason | None, int | None, int | None]) -> None:
    """Exit codes, signals beyond 255, what PBS itself did below zero; a job that was deleted is cancelled."""
    assert job_end(status, substate) == end


def test_routing_queues() -> None:
    queues = {
        queue.name: queue
        for queue in (
            QueueConfig(name="short", executes=True, up=True, walltime_limit=600, max_array_size=1),
            QueueConfig(name="long", executes=True, up=True, walltime_limit=6000, max_array_size=None),
            QueueConfig(name="free", executes=True, up=True, walltime_limit=None, max_array_size=None),
            route("r", "short", "long"),
            route("again", "r", "free", "gone@elsewhere", "again"),
            route("capped", "r", walltime_limit=60),
            route("nowhere"),
        )
    }
    limits = {name: walltime_limit(queue, queues) for name, queue in queues.items()}
    assert limits == {"short": 600, "long": 6000, "free": None, "r": 6000, "again": None, "capped": 60, "nowhere": None}
    assert [largest_array(None, queues, name) for name in ("r", "again", "long", "nowhere")] == [1, 1, 10_000, 10_000]
    # To another server no arrays can be moved, were there a queue of that name here that takes them.
    queues["away"] = route("away", "long@other:15001", "@third")
    assert (largest_array(None, queues, "away"), walltime_limit(queues["away"], queues)) == (1, None)
    assert queues.pop("away").servers == ("other", "third")
    nodes = (
        Node(name="n1", state=NodeState.UP, processors=4, processors_used=0, queues=("short",)),
        Node(name="n2", state=NodeState.UP, processors=2, processors_used=0, queues=("long", "free")),
    )
    found = {queue.name: queue.processors for queue in served(queues, nodes, default="r")}
    assert found == {"short": 4, "long": 2, "free": 2, "r": 6, "again": 6, "capped": 6, "nowhere": 0}


def route(name: str, *destinations: str, walltime_limit: int | None = None) -> QueueConfig:
    return QueueConfig(
        name=name,
        executes=False,
        up=True,
        walltime_limit=walltime_limit,
        max_array_size=None,
        destinations=destinations,
    )


def test_largest_array() -> None:
    server = ServerConfig(
        name="vm",
        version="23",
        scheduling=True,
        history=True,
        lists_others=True,
        default_queue="a",
        max_array_size=50,
        managers="",
        operators="op@*",
    )
    queues = {
        name: QueueConfig(name=name, executes=True, up=True, walltime_limit=None, max_array_size=limit)
        for name, limit in (("a", 1), ("b", 90), ("c", None))
    }
    assert [largest_array(server, queues, name) for name in (None, "a", "b", "c", "d")] == [1, 1, 50, 50, 50]
    assert largest_array(None, {}, None) == 10_000
    assert [server.may_operate(user=user, uid=uid) for user, uid in (("op", 5), ("root", 0), ("ann", 9))] == [
        True,
        None,
        False,
    ]


def test_servers_side_by_side() -> None:
    assert PbsSettings().variables() == {}
    settings = PbsSettings.model_validate({"conf": "/etc/pbs2.conf", "server": "pbs2"})
    assert settings.variables() == {"PBS_CONF_FILE": "/etc/pbs2.conf", "PBS_SERVER": "pbs2"}


def test_command_lines() -> None:
    assert control.notify("1.vm", "-W x\ny") == ("qmsg", "-E", " -W x y", "1.vm")
    assert control.parse_version("pbs_version = 23.06.06") == "23.06.06"
    assert control.parse_version("Version: 6.1-dev\nCommit: 93") == "6.1-dev"
    assert control.parse_version("nothing") is None


# Vnodes of PBS that serve some queues and chunks only, and what its scheduler says of jobs that wait.


RESERVATIONS = """\
Resv ID: R2.vm
Reserve_Name = koala-x-r-12-1
Reserve_Owner = ann@vm
reserve_state = RESV_CONFIRMED
queue = R2
resv_nodes = (n1:ncpus=2:mem=102400kb)+(n1:ncpus=2:mem=102400kb)+(n1:ncpus=2:m
\tem=102400kb)

Resv ID: R3.vm
Reserve_Name = koala-x-r-12-2
Reserve_Owner = ann@vm
reserve_state = RESV_BEING_DELETED

Resv ID: R4.vm
Reserve_Name = course
Reserve_Owner = anna@vm
reserve_state = RESV_RUNNING
"""
"""As pbs_rstat -f of 23.06.06 shows them, shortened."""


def test_reservations_are_asked_for_and_read() -> None:
    slot = Slot(threads=2, gpus=1, licenses=(("matlab", 2),))
    placeholders = replace(SUBMISSION, slot=slot, memory_mib=100, queue="gpu")
    request = ReservationRequest(placeholders=placeholders, starts_in=9.0)
    defaults = {"ncpus": "1", "Qlist": "gpu"}
    command = rsub_command(request, SETTINGS, EVERYTHING, begins_at=1_800_000_000.0, defaults=defaults)
    assert command[:9] == ("pbs_rsub", "-I", "-20", "-N", "koala-1", "-R", "202701150800.00", "-D", "600")
    assert command[9:] == (
        *("-l", "select=3:ncpus=2:mem=100mb:ngpus=1:Qlist=gpu"),
        *("-l", "place=free", "-l", "matlab=6"),
    )
    alone = replace(request, placeholders=replace(placeholders, slot=Slot(exclusive=True)))
    assert "place=vscatter:excl" in rsub_command(alone, SETTINGS, EVERYTHING, begins_at=0.0, defaults={})
    assert parse_confirmed("R2.vm CONFIRMED\n") == "R2"
    assert not parse_confirmed("R3.vm DENIED\n") + parse_confirmed("R3.vm UNCONFIRMED\n")
    assert parse_reservations(RESERVATIONS, "ann") == {"koala-x-r-12-1": "R2"}
    assert parse_reservations("", "ann") == {}
    # The queue of a reservation takes the place of the one that was named.
    assert qsub(replace(placeholders, reservation="R2"))[qsub(placeholders).index("-q") + 1] == "R2"


async def test_reservations_are_made_listed_and_removed(tmp_path: Path) -> None:
    runner = ScriptedRunner(
        {
            "pbs_rsub": (0, "R2.vm CONFIRMED\n", ""),
            "pbs_rstat": (0, RESERVATIONS, ""),
            "qselect": (0, "7.vm\n", ""),
            "pbs_rdel": (1, "", "pbs_rdel: Unknown Reservation Id  R2.vm"),
        }
    )
    lrm = PbsLrm(replace(new_context(tmp_path), commands=runner, user="ann"), SETTINGS)
    request = ReservationRequest(placeholders=SUBMISSION, starts_in=9.0)
    assert await lrm.reserve(request) == "R2"
    assert await lrm.reservations() == {"koala-x-r-12-1": "R2"}
    with pytest.raises(LrmUnavailableError, match="jobs are in it"):
        await lrm.unreserve("R2")
    runner.answers["qselect"] = (0, "", "")
    await lrm.unreserve("R2")  # it is there no more
    runner.answers["pbs_rdel"] = (1, "", "pbs_rdel: Unauthorized Request  R2.vm")
    with pytest.raises(LrmRejectedError, match="Unauthorized Request"):
        await lrm.unreserve("R2")
    runner.answers["pbs_rsub"] = (0, "R3.vm DENIED\n", "")
    with pytest.raises(LrmRejectedError, match=r"pbs_rsub: R3\.vm DENIED"):
        await lrm.reserve(request)


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
    assert {name: node.queues for name, node in nodes().items()} == {
        "plain": ("workq",),
        "gpu": ("workq", "gpuq", "bigq"),
        "big": ("workq", "bigq"),
        "apart": ("partq",),
    }
    idle = {name: (node.places_idle(None), node.places_idle("partq")) for name, node in nodes().items()}
    assert (idle["apart"], idle["plain"][0]) == ((0, 8), 8), "jobs that name no queue do not get there"


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
