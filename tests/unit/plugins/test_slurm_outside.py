# SPDX-License-Identifier: Apache-2.0
"""What the plugin ``slurm`` tells and does for an outside scheduler: the wide listing, and pins to exact numbers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.model import HoldOwner
from koala_adapter.wire.hostlists import expand
from koala_slurm.client import LISTING_REQUESTS, SlurmCommands, show_command
from koala_slurm.listing import (
    EVERY_JOB,
    JOB_FIELDS,
    NODE_COMMAND,
    PARTITION_COMMAND,
    new_separator,
    parse_jobs,
    sacct_command,
)
from koala_slurm.outside import OutsideReader
from koala_slurm.requests import (
    ANY_NODES,
    DETAILS_COMMAND,
    GRES_COMMAND,
    MORE_FIELDS,
    SITE_MARK,
    JobDetails,
    details_id,
    parse_details,
    parse_everything,
    parse_one_detailed,
    with_details,
)
from koala_slurm.reserving import (
    make_pin,
    natural_order,
    original_text,
    parse_original,
    pin_commands,
    reserve_command,
    reserved_cores,
    reserved_order,
    unpin_commands,
    unpromised,
)
from koala_slurm.words import (
    array_ids,
    array_index,
    compacted,
    duration,
    minutes,
    moment,
    waiting_elements,
)

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
    separator = new_separator()
    evil = wide(Name="x\n8\x1froot", Comment="a\n\n9\x1f|", WorkDir="/tmp/\x1f\n")
    first, second = parse_everything(listing(separator, evil, wide(JobArrayID="8")), separator)
    assert (first.id, first.name, first.comment, second.id) == ("7", "x\n8\x1froot", "a\n\n9\x1f|", "8")
    assert new_separator() != separator


@given(st.text(max_size=300))
def test_any_listing_is_read_or_refused(text: str) -> None:
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
    text = f"JobId=5 JobName=x\n   NumNodes={shown} NumCPUs=6\n   ReqTRES=cpu=6,node={shown[0]},billing=6\n"
    text += f"   AdminComment={mark} \n   Comment={comment}\n"
    assert parse_one_detailed(text).nodes_wanted == wanted


def test_details_of_an_id_that_is_there_twice_are_not_believed() -> None:
    details = parse_details(DETAILS + "JobId=63 JobName=evil\n     Nodes=n9 CPU_IDs=0-7 Mem=0\n")
    row = wide(JobArrayID="63", State="RUNNING", NodeList="n[2,4]", Reason="None", StartTime="1795000001")
    (job,) = parse_everything(listing("|@|", row), "|@|")
    assert details.of(job) is None
    assert with_details(job, None).layout == (("n2", 3), ("n4", 3))
    assert parse_details(DETAILS).of(job) == parse_one_detailed(DETAILS.partition("\n\n")[0])


def test_the_last_element_of_an_array_has_its_details() -> None:
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
    commands.shown, commands.single = record + evil, {"7": record}
    reader = OutsideReader(commands)
    victim, _ = await reader.jobs_to_schedule()
    assert (victim.exclusive, victim.obstacle, victim.possible_nodes) == (True, "", None)
    # Every user can read a command line while the command runs.
    assert not any("\x1f" in word for command in commands.asked for word in command)
    singly = [command for command in commands.asked if command[-1] == "7"]
    await reader.jobs_to_schedule()
    assert [command for command in commands.asked if command[-1] == "7"] == singly
    assert len(singly) == 1


async def test_jobs_whose_details_are_not_known_yet_are_not_offered() -> None:
    numbers = [str(number) for number in range(100, 130)]
    record = "".join(f"JobId={number} JobName=job\n   NumNodes=1 NumCPUs=6\n\n" for number in numbers)
    commands = Answering()
    commands.rows = tuple(wide(JobArrayID=number) for number in numbers)
    commands.shown = record + record
    commands.single = {number: f"JobId={number} JobName=job\n   NumNodes=1 NumCPUs=6\n" for number in numbers}
    reader = OutsideReader(commands)
    jobs = await reader.jobs_to_schedule()
    assert len(commands.asked) <= LISTING_REQUESTS
    assert {job.obstacle == "" for job in jobs} == {True, False}
    for _ in range(len(numbers)):
        jobs = await reader.jobs_to_schedule()
    assert {job.obstacle for job in jobs} == {""}


def test_other_clusters_of_a_federation_are_left_out() -> None:
    """With fed_display Slurm's commands show the jobs and nodes of all of its clusters."""
    listings = (EVERY_JOB, NODE_COMMAND, PARTITION_COMMAND, GRES_COMMAND, DETAILS_COMMAND)
    for command in (*listings, show_command("7"), sacct_command(["7"])):
        assert "--local" in command


def test_a_job_name_ends_no_row_of_ones_own_jobs() -> None:
    end = new_separator()
    rows = ["\x1f".join((*NARROW[:-1], name)) + end for name in ("a\nb", "x\n8\x1froot")]
    assert [job.name for job in parse_jobs("\n".join(rows) + "\n", end)] == ["a\nb", "x\n8\x1froot"]


def test_pins() -> None:
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
    pin, before = make_pin("5", nodes), JobDetails(processors=2, node_range=node_range)
    for commands in (pin_commands(pin, before), unpin_commands(pin, before)):
        assert any("NumNodes=" in word for word in commands[0]) == changed


def test_reservations() -> None:
    """A number of cores for each node, in the order of slurm.conf, or one for all; what Slurm made of it is read."""
    order = natural_order(["n10", "n2"])
    extent = (f"Nodes={','.join(order)}", "CoreCnt=1,3")
    by_node = reserve_command("x", extent, user="ann", partition="main", duration="16")
    assert {"ReservationName=x", "StartTime=now", "Nodes=n2,n10", "CoreCnt=1,3", "Users=ann"} <= set(by_node)
    assert reserved_order("ReservationName=x Nodes=n[2,10] NodeCnt=2") == ("n2", "n10")
    shown = "ReservationName=x Nodes=n[2,10] CoreCnt=5 NodeName=n2 CoreIDs=4-6 NodeName=n10 CoreIDs=0,2 TRES=cpu=5"
    assert reserved_cores(shown) == {"n2": 3, "n10": 2}
    assert reserved_cores(" NodeName=n2 CoreIDs=4-") == {}
    with pytest.raises(LrmRejectedError):
        reserve_command("x", extent, user="a b", partition="main", duration="infinite")


def test_cores_promised_to_another_start_are_not_idle() -> None:
    assert unpromised({"n1": 8, "n3": 2}, [{"n1": 3, "n2": 1}, {"n1": 1}]) == {"n1": 4, "n3": 2}
    assert unpromised({"n1": 8, "n3": 2}, [{"n1": 9}]) == {"n1": 0, "n3": 2}


def test_what_a_job_asked_for_comes_back_from_its_text() -> None:
    details = JobDetails(processors=6, node_range="2-3", requested_nodes=("n1",), reason="JobHeldAdmin")
    assert parse_original(original_text(details)) == details
    assert [parse_original(text) for text in ("", "{}", "[1]", '{"requested_nodes": [], "size": 1}')] == [None] * 4


class Answering(SlurmCommands):
    """Commands that print what they are told."""

    def __init__(self) -> None:
        self.rows: tuple[tuple[str, ...], ...] = ()
        self.shown = ""
        self.single: dict[str, str] = {}
        """What is printed of a job that is asked for alone."""
        self.asked: list[Sequence[str]] = []

    async def read(self, command: Sequence[str], *, action: str, environment: Mapping[str, str] | None = None) -> str:
        """Print the listing, with its separator, or the details."""
        assert action
        assert environment
        self.asked.append(command)
        if command[0] == "scontrol":
            return self.single.get(command[-1], self.shown)
        separator = environment["SQUEUE_FORMAT2"].partition("JobArrayID:")[2].partition(",")[0]
        return listing(separator, *self.rows)


# Slurm's notations: job ids of array elements, host lists, durations and points in time.

ELEMENTS = st.sets(st.integers(min_value=0, max_value=3000))


def expanded(argument: str) -> set[str]:
    """Return the ids that an argument names, by an independent reading of the notation."""
    job, _, elements = argument.partition("_")
    if not elements:
        return {job}
    found = set()
    for item in elements.strip("[]").split(","):
        first, _, last = item.partition("-")
        found |= {f"{job}_{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_ids_of_an_array() -> None:
    assert array_ids("7", 3) == ("7_1", "7_2", "7_3")
    assert [array_index(job) for job in ("7_3", "7_0", "7", "7+1", "x")] == [3, 0, None, None, None]


@pytest.mark.parametrize(
    ("jobs", "arguments"),
    [
        ([], ()),
        (["5"], ("5",)),
        (["5_3"], ("5_3",)),
        (["5_1", "5_2", "5_3"], ("5_[1-3]",)),
        (["5_3", "5_1", "5_1"], ("5_[1,3]",)),
        (["5_1", "5_2", "6_7", "8", "5_9"], ("5_[1-2,9]", "6_7", "8")),
        (["5_1", "5"], ("5",)),
        (["7_1", "7_2"], ("7",)),
        (["7_2"], ("7_2",)),
        (["7_1", "7_2", "7_3"], ("7_[1-3]",)),
        (["9+1"], ("9+1",)),
    ],
)
def test_compacted(jobs: list[str], arguments: tuple[str, ...]) -> None:
    assert compacted(jobs, {"7": 2, "6": 0}) == arguments


@given(st.dictionaries(st.integers(min_value=1, max_value=10**6), ELEMENTS, max_size=5))
def test_compacted_names_exactly_these(wanted: dict[int, set[int]]) -> None:
    jobs = {f"{job}_{element}" for job, elements in wanted.items() for element in elements}
    arguments = compacted(sorted(jobs))
    assert set().union(*map(expanded, arguments)) == jobs
    assert all(len(argument) < 12_000 for argument in arguments)


@pytest.mark.parametrize(
    "wrong", ["", "x", "1 2", "1_", "_1", "1_2_3", "-1", "1;2", "1\n", "1_[2]", "9" * 20, "\uff11"]
)
def test_wrong_ids_do_not_reach_a_command(wrong: str) -> None:
    with pytest.raises(LrmNotFoundError):
        compacted(["1", wrong])


@pytest.mark.parametrize(
    ("waiting", "numbers"),
    [("1-4", [1, 2, 3, 4]), ("0,7-9%2", [0, 7, 8, 9]), ("10-20:5", [10, 15, 20]), ("2-9:3", [2, 5, 8])],
)
def test_waiting_elements(waiting: str, numbers: list[int]) -> None:
    assert list(waiting_elements(waiting)) == numbers


@pytest.mark.parametrize("waiting", ["", "1-4,...", "x", "1-", "1-9:0", "0-9999999", "1,,2"])
def test_waiting_elements_that_are_not_understood(waiting: str) -> None:
    with pytest.raises(ValueError, match="array elements"):
        waiting_elements(waiting)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
        ("n1", ("n1",)),
        ("n1,m2", ("n1", "m2")),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10,12]-ib,login1", ("n08-ib", "n09-ib", "n10-ib", "n12-ib", "login1")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-", ("n[1-",)),
        ("n[a-b]", ("n[a-b]",)),
        ("n[3-1]", ("n[3-1]",)),
        ("n[1-999999999]", ("n[1-999999999]",)),
        ("n[1-99999]m[1-99999]", ("n[1-99999]m[1-99999]",)),
    ],
)
def test_host_list(text: str, hosts: tuple[str, ...]) -> None:
    assert expand(text) == hosts


@given(st.text(alphabet="n[]-,0123456789", max_size=40))
def test_host_list_of_anything(text: str) -> None:
    assert len(expand(text)) <= 100_000 * 40


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("05:30", 330),
        ("01:30:00", 5400),
        ("2-00:00:00", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("UNLIMITED", None),
        ("infinite", None),
        ("INVALID", None),
        ("", None),
        ("1-2-3", None),
        ("::", None),
    ],
)
def test_duration(text: str, seconds: int | None) -> None:
    """All of Slurm's forms of a duration are read; anything else is no limit."""
    assert duration(text) == seconds


@given(st.integers(min_value=1, max_value=10**8))
def test_minutes_cover_the_seconds(seconds: int) -> None:
    """Whole minutes are enough for the seconds, and less than one minute more."""
    assert 0 <= minutes(seconds) * 60 - seconds < 60


@pytest.mark.parametrize("text", ["N/A", "Unknown", "None", "0", "", "NONE", "2026-13-01T00:00:00", "yesterday"])
def test_no_point_in_time(text: str) -> None:
    assert moment(text) is None


def test_point_in_time() -> None:
    """Seconds are taken as they are, ISO times as local time."""
    assert moment("1795258933") == 1795258933.0
    now = int(time.time())
    assert moment(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))) == pytest.approx(now, abs=3600)


@given(st.text())
def test_point_in_time_of_anything(text: str) -> None:
    found = moment(text)
    assert found is None or re.search(r"[1-9]", text)
