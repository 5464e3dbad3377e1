# SPDX-License-Identifier: Apache-2.0
"""What the plugin ``slurm`` tells and does for an outside scheduler: the wide listing, and pins to exact numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.model import HoldOwner
from koala_slurm.client import LISTING_REQUESTS, show_command
from koala_slurm.listing import (
    EVERY_JOB,
    JOB_FIELDS,
    NODE_COMMAND,
    PARTITION_COMMAND,
    new_separator,
    parse_jobs,
    sacct_command,
    squeue_command,
)
from koala_slurm.outside import OutsideReader
from koala_slurm.pinning import (
    make_pin,
    natural_order,
    original_text,
    parse_original,
    pin_commands,
    unpin_commands,
)
from koala_slurm.requests import (
    ANY_NODES,
    DETAILS_COMMAND,
    GRES_COMMAND,
    MORE_FIELDS,
    SITE_MARK,
    JobDetails,
    details_command,
    details_id,
    parse_details,
    parse_everything,
    parse_one_detailed,
    with_details,
)
from koala_slurm.reserving import Reserved, reserve_command, reserved_cores, reserved_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_slurm.client import SlurmCommands

pytestmark = pytest.mark.anyio

NARROW = ("7", "ann", "PENDING", "6", "main", "", "1795000000", "N/A", "N/A", "0:0", "JobHeldUser", "job")
MORE = (
    "1:30:00",
    "N/A",
    "(null)",
    "2",
    "0",
    "fast&big",
    "n[1-2]",
    "users",
    "(null)",
    "0",
    "/home/ann",
    "(null)",
    "(null)",
)


def listing(separator: str, *rows: tuple[str, ...]) -> str:
    """Return rows as squeue prints them."""
    return "".join("".join(f"{value}{separator}" for value in row) + "\n" for row in rows)


def wide(**changes: str) -> tuple[str, ...]:
    """Return a row with some fields changed."""
    names = (*JOB_FIELDS, *MORE_FIELDS)
    values = dict(zip(names, (*NARROW, *MORE), strict=True))
    return tuple({**values, **changes}.values())


def test_everything_about_a_job() -> None:
    """The wide listing fills what an outside scheduler must know."""
    (job,) = parse_everything(listing("|@|", wide()), "|@|")
    assert (job.walltime, job.processors_per_task, job.features) == (5400, 2, ("fast", "big"))
    assert (job.requested_nodes, job.group, job.account) == (("n1", "n2"), "users", "")
    assert (job.hold, job.dependent, job.eligible_at) == (HoldOwner.USER, False, None)


@pytest.mark.parametrize(
    ("changes", "owner"),
    [
        ({"Reason": "JobHeldAdmin"}, HoldOwner.OPERATOR),
        ({"admin_comment": SITE_MARK}, HoldOwner.OPERATOR),
        ({"admin_comment": f"{SITE_MARK}, {ANY_NODES}"}, HoldOwner.OPERATOR),
        ({"admin_comment": f"{SITE_MARK}, or not"}, HoldOwner.USER),
        ({"admin_comment": SITE_MARK, "Comment": "mine koala:hold"}, HoldOwner.USER),
        ({"Reason": "JobHeldAdmin", "admin_comment": SITE_MARK, "Comment": "koala:hold"}, HoldOwner.USER),
        ({"admin_comment": "something else"}, HoldOwner.USER),
        ({"Reason": "launch failed requeued held"}, HoldOwner.SYSTEM),
        ({"Reason": "Priority"}, None),
    ],
)
def test_whose_hold_it_is(changes: dict[str, str], owner: HoldOwner | None) -> None:
    """The site's hold is told from the user's, although Slurm shows both in the same word."""
    (job,) = parse_everything(listing("|@|", wide(**changes)), "|@|")
    assert job.hold is owner


def test_jobs_that_may_not_start_yet() -> None:
    """A dependency and a begin time are told; the moment of a release is no begin time."""
    rows = (
        wide(Dependency="afterany:6(unfulfilled)"),
        wide(EligibleTime="1795003600"),
        wide(EligibleTime="1795000000"),
    )
    waits, later, now = parse_everything(listing("|@|", *rows), "|@|")
    assert (waits.dependent, later.eligible_at, now.eligible_at) == (True, 1_795_003_600, None)


def test_components_of_heterogeneous_jobs_are_not_offered() -> None:
    """They start together; squeue has them as ``10+1``, which is no id for scontrol."""
    rows = [wide(JobArrayID=id_) for id_ in ("10+0", "10+1", "12")]
    obstacles = [job.obstacle for job in parse_everything(listing("|@|", *rows), "|@|")]
    assert [bool(obstacle) for obstacle in obstacles] == [True, True, False]
    assert "heterogeneous" in obstacles[0]


def test_users_cannot_forge_rows() -> None:
    """Line breaks and separators in a name or a comment change nothing but that name and comment."""
    separator = new_separator()
    evil = wide(Name="x\n8\x1froot", Comment="a\n\n9\x1f|", WorkDir="/tmp/\x1f\n")
    first, second = parse_everything(listing(separator, evil, wide(JobArrayID="8")), separator)
    assert (first.id, first.name, first.comment, second.id) == ("7", "x\n8\x1froot", "a\n\n9\x1f|", "8")
    assert new_separator() != separator


@given(st.text(max_size=300))
def test_any_listing_is_read_or_refused(text: str) -> None:
    """Nothing but the one error is raised."""
    try:
        parse_everything(text, "|@|")
    except LrmUnavailableError:
        return


ANYWHERE = JobDetails(processors=4, node_range="1")

DETAILS = """\
JobId=63 JobName=wrap
   Priority=1 JobState=RUNNING Reason=None
   ReqNodeList=n4,n2 ExcNodeList=n[5-6]
   NumNodes=2 NumCPUs=6 NumTasks=6
     Nodes=n2 CPU_IDs=3-4 Mem=0 GRES=
     Nodes=n4 CPU_IDs=0,2-4 Mem=0 GRES=
   MinCPUsNode=1 MinMemoryCPU=10M MinTmpDiskNode=0
   Comment=NumNodes=9-9

JobId=70 ArrayJobId=69 ArrayTaskId=2-5 JobName=array
   NumNodes=2-2 NumCPUs=4
   MinMemoryNode=1.50G
"""


def test_details() -> None:
    """Layout, insisted nodes and memory come from scontrol; elements of an array that wait share them."""
    details = {id_: one for id_, (one,) in parse_details(DETAILS).records.items()}
    assert details["63"].layout == (("n2", 2), ("n4", 4))
    assert (details["63"].nodes_wanted, details["63"].excluded_nodes) == (None, ("n5", "n6"))
    assert details["63"].memory_per_processor_mib == 10
    assert (details["69"].nodes_wanted, details["69"].memory_per_node_mib) == (2, 1536)
    (job,) = parse_everything(listing("|@|", wide(JobArrayID="69_3")), "|@|")
    assert details_id(job) == "69"
    assert with_details(job, details["69"]).nodes_wanted == 2


@pytest.mark.parametrize(
    ("shown", "tres", "wanted", "node_range"),
    [
        ("2-2", "ReqTRES=cpu=9,mem=4000M,node=1,billing=9", None, "2"),
        ("2-2", "ReqTRES=cpu=9,mem=8000M,node=2,billing=9", 2, "2-2"),
        ("2-2", "TRES=cpu=9,mem=8000M,node=2,billing=9", 2, "2-2"),
        ("1-1", "ReqTRES=cpu=6,mem=4000M,node=1,billing=6", 1, "1-1"),
        ("2-3", "ReqTRES=cpu=9,mem=4000M,node=1,billing=9", None, "2-3"),
        ("2", "TRES=cpu=9,mem=4000M,node=1,billing=9", None, "2"),
        ("2-2", "ReqTRES=(null)", 2, "2-2"),
    ],
)
def test_number_of_nodes_that_is_nobodys_wish(shown: str, tres: str, wanted: int | None, node_range: str) -> None:
    """From 23.11 on Slurm shows a number of nodes that follows from the processors like one that the user asked for."""
    details = parse_one_detailed(f"JobId=5 JobName=x\n   NumNodes={shown} NumCPUs=9 NumTasks=9\n   {tres}\n")
    assert (details.nodes_wanted, details.node_range) == (wanted, node_range)


@pytest.mark.parametrize(
    ("shown", "nodes", "least", "most"),
    [("1-6", 1, 1, 6), ("3-20", 1, 1, 20), ("3-4", 1, 1, 4), ("3-3", 2, 2, 3), ("2-2", 2, 2, 2), ("1-1", 1, 1, 1)],
    ids=["-n6", "-n20", "-n20 -N1-4", "-n20 -N2-3", "-n6 -N2", "-n6 -N1"],
)
@pytest.mark.parametrize("mark", ["", f"   AdminComment={SITE_MARK}, {ANY_NODES} \n"], ids=["", "hook"])
def test_number_of_nodes_where_slurm_bounds_it_by_the_tasks(
    shown: str, nodes: int, least: int, most: int, mark: str
) -> None:
    """From 26.05 on each has an upper bound; the lower one is estimated, and what the user asked for is in its TRES."""
    text = f"JobId=5 JobName=x\n   NumNodes={shown} NumCPUs=6 NumTasks=6\n   ReqTRES=cpu=6,node={nodes},billing=6\n"
    details = parse_one_detailed(text + f"   OverSubscribe=NO Exclusive=NO Contiguous=0\n{mark}")
    assert (details.nodes_least, details.nodes_most) == (least, most)


@pytest.mark.parametrize(
    ("shown", "mark", "comment", "wanted"),
    [
        ("1-1", SITE_MARK, "", 1),
        ("1-1", f"{SITE_MARK}, {ANY_NODES}", "", None),
        ("1-1", f"{SITE_MARK}, {ANY_NODES}", "mine koala:nodes", 1),
        ("1-1", "something else", "", 1),
        ("2-2", f"{SITE_MARK}, {ANY_NODES}", "", None),
    ],
)
def test_number_of_nodes_by_the_word_of_the_site(shown: str, mark: str, comment: str, wanted: int | None) -> None:
    """The site's hook has seen what was asked for, and tells it where Slurm shows the same for both."""
    text = f"JobId=5 JobName=x\n   NumNodes={shown} NumCPUs=6\n   ReqTRES=cpu=6,node={shown[0]},billing=6\n"
    text += f"   AdminComment={mark} \n   Comment={comment}\n"
    assert parse_one_detailed(text).nodes_wanted == wanted


def test_details_of_an_id_that_is_there_twice_are_not_believed() -> None:
    """One of them is in somebody's comment; a running job counts as spread evenly then."""
    details = parse_details(DETAILS + "JobId=63 JobName=evil\n     Nodes=n9 CPU_IDs=0-7 Mem=0\n")
    row = wide(JobArrayID="63", State="RUNNING", NodeList="n[2,4]", Reason="None", StartTime="1795000001")
    (job,) = parse_everything(listing("|@|", row), "|@|")
    assert details.of(job) is None
    assert with_details(job, None).layout == (("n2", 3), ("n4", 3))
    assert parse_details(DETAILS).of(job) == parse_one_detailed(DETAILS.partition("\n\n")[0])


def test_the_last_element_of_an_array_has_its_details() -> None:
    """Slurm shows it by its own number alone."""
    (job,) = parse_everything(listing("|@|", wide(JobArrayID="69_3")), "|@|")
    text = "JobId=69 ArrayJobId=69 ArrayTaskId=3 JobName=array\n   NumNodes=2-2 NumCPUs=4\n"
    found = parse_details(text).of(job)
    assert found is not None
    assert found.nodes_wanted == 2
    forged = f"{text}\nJobId=70 JobName=evil\n   Comment=x\n\nJobId=1 ArrayJobId=69 ArrayTaskId=1-2\n   NumCPUs=1\n"
    assert parse_details(forged).of(job) is None


async def test_a_comment_hides_nothing_of_another_job() -> None:
    """A user writes the head of another's record into a comment: that job is asked for by itself."""
    record = "JobId=7 JobName=job\n   NumNodes=1 NumCPUs=6\n   OverSubscribe=NO Licenses=(null)\n   Comment=(null) \n\n"
    evil = (
        "JobId=9 JobName=evil\n   NumNodes=1 NumCPUs=1\n   Comment=a\n\nJobId=7 JobName=x \n   TresPerNode=gres:gpu:4\n"
    )
    commands = Answering()
    commands.rows = (wide(), wide(JobArrayID="9", Comment="a\n\nJobId=7 JobName=x"))
    commands.details, commands.single = record + evil, {"7": record}
    reader = OutsideReader(cast("SlurmCommands", commands))
    victim, _ = await reader.jobs()
    assert (victim.exclusive, victim.obstacle, victim.possible_nodes) == (True, "", None)
    # Every user can read a command line while the command runs.
    assert not any("\x1f" in word for command in commands.asked for word in command)
    singly = [command for command in commands.asked if command[-1] == "7"]
    await reader.jobs()
    assert [command for command in commands.asked if command[-1] == "7"] == singly
    assert len(singly) == 1


async def test_jobs_whose_details_are_not_known_yet_are_not_offered() -> None:
    """However many records a comment imitates, a listing costs a bounded number of requests."""
    numbers = [str(number) for number in range(100, 130)]
    record = "".join(f"JobId={number} JobName=job\n   NumNodes=1 NumCPUs=6\n\n" for number in numbers)
    commands = Answering()
    commands.rows = tuple(wide(JobArrayID=number) for number in numbers)
    commands.details = record + record
    commands.single = {number: f"JobId={number} JobName=job\n   NumNodes=1 NumCPUs=6\n" for number in numbers}
    reader = OutsideReader(cast("SlurmCommands", commands))
    jobs = await reader.jobs()
    assert len(commands.asked) <= LISTING_REQUESTS
    assert {job.obstacle == "" for job in jobs} == {True, False}
    for _ in range(len(numbers)):
        jobs = await reader.jobs()
    assert {job.obstacle for job in jobs} == {""}


def test_other_clusters_of_a_federation_are_left_out() -> None:
    """With fed_display Slurm's commands show the jobs and nodes of all of its clusters."""
    listings = (squeue_command(user="ann"), EVERY_JOB, NODE_COMMAND, PARTITION_COMMAND, GRES_COMMAND, DETAILS_COMMAND)
    for command in (*listings, details_command("7"), show_command("7"), sacct_command(["7"])):
        assert "--local" in command


def test_a_job_name_ends_no_row_of_ones_own_jobs() -> None:
    """A line break in it neither ends the row nor makes the listing unreadable."""
    end = new_separator()
    rows = ["\x1f".join((*NARROW[:-1], name)) + end for name in ("a\nb", "x\n8\x1froot")]
    assert [job.name for job in parse_jobs("\n".join(rows) + "\n", end)] == ["a\nb", "x\n8\x1froot"]


def test_pins() -> None:
    """Even numbers take one request, different ones two, and a reservation."""
    (even,) = pin_commands(make_pin("5", ["n4", "n4", "n4", "n2", "n2", "n2"]), ANYWHERE)
    assert even[2:] == ("JobId=5", "ReqNodeList=n4,n2", "NumNodes=2-2", "MinCPUsNode=3")
    pin = make_pin("5", ["n10", "n10", "n10", "n2"])
    first, second = pin_commands(pin, ANYWHERE)
    assert first[3:] == ("ReqNodeList=n10,n2", "NumNodes=2-2", "MinCPUsNode=1", "Reservation=koala_start_5")
    assert second[3:] == ("NumCPUs=4",)
    assert pin_commands(make_pin("5_2", ["n1"]), ANYWHERE) == (("scontrol", "update", "JobId=5_2", "ReqNodeList=n1"),)
    back, number = unpin_commands(pin, JobDetails(processors=4, node_range="1", requested_nodes=("n2",)))
    assert {"ReqNodeList=n2", "NumNodes=1-100000", "Reservation="} <= set(back)
    assert number[3:] == ("NumCPUs=4",)


@pytest.mark.parametrize(
    ("nodes", "node_range", "changed"),
    [(["n1"] * 2, "1", False), (["n1"] * 2, "1-1", False), (["n1", "n2"], "2-2", False), (["n1"] * 2, "1-3", True)],
)
def test_the_number_of_nodes_is_left_alone_where_it_may_be(nodes: list[str], node_range: str, *, changed: bool) -> None:
    """What Slurm shows need not be what the user asked for, so it is written back only where it had to be changed."""
    pin, before = make_pin("5", nodes), JobDetails(processors=2, node_range=node_range)
    for commands in (pin_commands(pin, before), unpin_commands(pin, before)):
        assert any("NumNodes=" in word for word in commands[0]) == changed


def test_reservations() -> None:
    """A number of cores for each node, in the order of slurm.conf, or one for all; what Slurm made of it is read."""
    order = natural_order(["n10", "n2"])
    by_node = reserve_command("x", order, [1, 3], user="ann", partition="main", walltime=601)
    assert {"ReservationName=x", "Nodes=n2,n10", "CoreCnt=1,3", "Users=ann", "Duration=16"} <= set(by_node)
    assert "CoreCnt=4" in reserve_command("x", order, [4], user="ann", partition="main", walltime=None)
    assert reserved_order("ReservationName=x Nodes=n[2,10] NodeCnt=2") == ("n2", "n10")
    shown = "ReservationName=x Nodes=n[2,10] CoreCnt=5 NodeName=n2 CoreIDs=4-6 NodeName=n10 CoreIDs=0,2 TRES=cpu=5"
    assert reserved_cores(shown) == {"n2": 3, "n10": 2}
    assert reserved_cores(" NodeName=n2 CoreIDs=4-") == {}
    with pytest.raises(LrmRejectedError):
        reserve_command("x", ("n2",), [1], user="a b", partition="main", walltime=None)


def test_cores_promised_to_another_start_are_not_idle() -> None:
    """Slurm shows reserved cores as idle until the job for which they are kept runs."""
    reserved = Reserved(promised={"5": {"n1": 3, "n2": 1}, "6": {"n1": 1}, "7": {"n2": 2}})
    assert reserved.on(["n1", "n3"]) == ["5", "6"]
    assert reserved.idle({"n1": 8, "n3": 2}, {"5", "6"}) == {"n1": 4, "n3": 2}
    assert reserved.idle({"n1": 8, "n3": 2}, {"6"}) == {"n1": 7, "n3": 2}


def test_what_a_job_asked_for_comes_back_from_its_text() -> None:
    """A text that is empty, or not ours, tells nothing."""
    details = JobDetails(processors=6, node_range="2-3", requested_nodes=("n1",), reason="JobHeldAdmin")
    assert parse_original(original_text(details)) == details
    assert [parse_original(text) for text in ("", "{}", "[1]", '{"requested_nodes": [], "size": 1}')] == [None] * 4


class Answering:
    """Commands that print what they are told."""

    def __init__(self) -> None:
        self.rows: tuple[tuple[str, ...], ...] = ()
        self.details = ""
        self.single: dict[str, str] = {}
        """What is printed of a job that is asked for alone."""
        self.asked: list[Sequence[str]] = []

    async def read(self, command: Sequence[str], *, action: str, environment: Mapping[str, str]) -> str:
        """Print the listing, with its separator, or the details."""
        assert action
        assert environment
        self.asked.append(command)
        if command[0] == "scontrol":
            return self.single.get(command[-1], self.details)
        separator = environment["SQUEUE_FORMAT2"].partition("JobArrayID:")[2].partition(",")[0]
        return listing(separator, *self.rows)
