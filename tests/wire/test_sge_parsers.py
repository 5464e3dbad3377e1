# SPDX-License-Identifier: Apache-2.0
"""Recorded output of Grid Engine."""

from __future__ import annotations

import calendar
import re
import subprocess
from itertools import chain
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm.drmaa.complaints import FailureKind, kind_of_text
from koala_adapter.model import EndReason, LrmJobState, NodeState
from koala_sge.accounting import parse_accounting
from koala_sge.heldjobs import Wishes, instances_on, nodes_of, parse_explained, parse_instances, parse_wishes
from koala_sge.listing import (
    LARGEST_DOCUMENT,
    LONGEST_EXPANSION,
    has_access_lists,
    job_state,
    mebibytes_of,
    parse_jobs,
    parse_limits,
    parse_nodes,
    parse_queues,
    parse_xml,
    queue_instance_state,
    seconds_of,
    task_ranges,
)

# -- Parsers of Grid Engine's output, on what Grid Engine 8.1.9 printed (samples/sge819, COMMANDS.txt says with what).


SAMPLES = Path(__file__).parent / "samples" / "sge819"

QUEUE = (
    "<queue name='{name}'><queuevalue name='qtype_string'>{kind}</queuevalue><queuevalue name='slots_used'>{used}"
    "</queuevalue><queuevalue name='slots'>{slots}</queuevalue><queuevalue name='slots_resv'>0</queuevalue>"
    "<queuevalue name='state_string'>{letters}</queuevalue></queue>"
)


def sample(name: str) -> bytes:
    """Return a recorded output."""
    return (SAMPLES / name).read_bytes()


def host(*queues: str) -> bytes:
    """Return a qhost document of one host with these queues."""
    return f"<qhost><host name='h'>{''.join(queues)}</host></qhost>".encode()


def queue(name: str = "a.q", *, kind: str = "BI", used: int = 0, slots: int = 4, letters: str = "") -> str:
    """Return a queue instance as qhost prints it."""
    return QUEUE.format(name=name, kind=kind, used=used, slots=slots, letters=letters)


class TestJobs:
    """qstat -xml -r -u '*'."""

    def test_running_and_waiting_tasks(self) -> None:
        """Running tasks come singly, waiting ones as ranges; all get the ids that DRMAA gave them."""
        jobs = {job.id: job for job in parse_jobs(sample("qstat_r.xml")) if job.name.startswith("koala-run")}
        number = min(jobs).partition(".")[0]
        assert set(jobs) == {f"{number}.{index}" for index in range(1, 9)}
        states = [jobs[id_].state for id_ in sorted(jobs)]
        assert states == [LrmJobState.RUNNING] * 6 + [LrmJobState.QUEUED] * 2
        assert [jobs[id_].array_index for id_ in sorted(jobs)] == list(range(1, 9))
        assert {job.processors for job in jobs.values()} == {1}

    def test_places_and_times(self) -> None:
        """A running task tells node, queue, start and end (as UTC); a waiting one when it was submitted."""
        jobs = [job for job in parse_jobs(sample("qstat_r.xml")) if job.name.startswith("koala-run")]
        running = next(job for job in jobs if job.state is LrmJobState.RUNNING)
        waiting = next(job for job in jobs if job.state is LrmJobState.QUEUED)
        assert (running.nodes, running.queue, running.user) == (("localhost",), "all.q", "root")
        assert running.started_at is not None
        assert running.ends_at == running.started_at + 3600
        assert (waiting.nodes, waiting.started_at, waiting.ends_at) == ((), None, None)
        first_day, last_day = (calendar.timegm((2026, 11, day, 0, 0, 0)) for day in (21, 23))
        assert first_day < (waiting.submitted_at or 0) < last_day

    def test_held_and_broken(self) -> None:
        """States hqw and Eqw are both HELD, and the reason tells them apart."""
        jobs = parse_jobs(sample("qstat_r.xml"))
        held = [job for job in jobs if job.name == "koala-held"]
        broken = [job for job in jobs if job.name == "noout"]
        assert [(job.state, job.reason) for job in held] == [(LrmJobState.HELD, "held")] * 3
        assert {job.state for job in broken} == {LrmJobState.HELD}
        assert all(job.reason.startswith("error state Eqw") for job in broken)

    def test_jobs_of_everybody(self) -> None:
        jobs = {job.name: job for job in parse_jobs(sample("qstat_mixed.xml"))}
        other = jobs["other"]
        assert (other.user, other.array_index, other.state) == ("nobody", None, LrmJobState.QUEUED)
        assert other.id.isdigit()

    def test_steps_between_tasks(self) -> None:
        held = [job for job in parse_jobs(sample("qstat_mixed.xml")) if job.name.startswith("held")]
        assert [job.array_index for job in held] == [2, 4, 6, 8]

    def test_deleted_is_ending(self) -> None:
        """A task that was deleted and has not gone yet is ENDING, because it was cancelled."""
        jobs = {job.raw_state: job for job in parse_jobs(sample("qstat_just_deleted.xml"))}
        assert (jobs["dr"].state, jobs["dr"].end) == (LrmJobState.ENDING, EndReason.CANCELLED)

    def test_zombies_are_ended(self) -> None:
        """Jobs that some cells keep in the listing after their end are ENDED."""
        assert {job.state for job in parse_jobs(sample("qstat_s_z_r_t.xml"))} == {LrmJobState.ENDED}

    def test_empty(self) -> None:
        assert parse_jobs(sample("qstat_empty.xml")) == ()

    @pytest.mark.parametrize(
        "name",
        sorted(path.name for path in SAMPLES.glob("qstat_*.xml") if not re.match(r"qstat_(j|g_c)", path.name)),
    )
    def test_all_listings(self, name: str) -> None:
        assert all(job.state is not LrmJobState.UNKNOWN and job.id for job in parse_jobs(sample(name)))

    def test_huge_array_of_somebody_is_one_entry(self) -> None:
        raw = (
            "<job_info><job_list><JB_job_number>7</JB_job_number><JB_name>big</JB_name><JB_owner>eve</JB_owner>"
            f"<state>qw</state><slots>2</slots><tasks>1-{LONGEST_EXPANSION + 1}:1</tasks></job_list></job_info>"
        )
        (job,) = parse_jobs(raw.encode())
        assert (job.id, job.array_index, job.processors) == ("7", None, 2 * (LONGEST_EXPANSION + 1))

    @pytest.mark.parametrize(
        ("text", "indices"),
        [("3", (3,)), ("1,2", (1, 2)), ("1-3:1,7", (1, 2, 3, 7)), ("2-9:3", (2, 5, 8)), ("", ()), ("x,1-", ())],
    )
    def test_task_ranges(self, text: str, indices: tuple[int, ...]) -> None:
        assert tuple(chain.from_iterable(task_ranges(text))) == indices


class TestStates:
    """Letters of jobs and queues."""

    @pytest.mark.parametrize(
        ("letters", "state"),
        [
            ("qw", "queued"), ("hqw", "held"), ("hRwq", "held"), ("Rq", "queued"), ("r", "running"), ("hr", "running"),
            ("t", "starting"), ("Rt", "starting"), ("Rr", "running"), ("s", "suspended"), ("ts", "suspended"),
            ("S", "suspended"), ("tS", "suspended"), ("T", "suspended"), ("Eqw", "held"), ("Ehqw", "held"),
            ("EhRqw", "held"), ("dr", "ending"), ("dt", "ending"), ("dRr", "ending"), ("ds", "ending"),
            ("dS", "ending"), ("z", "ended"), ("", "unknown"), ("x", "unknown"), ("rX", "unknown"),
        ],
    )  # fmt: skip
    def test_job_letters(self, letters: str, state: str) -> None:
        """Every combination that sge_status(5) lists, and that what it does not list is UNKNOWN."""
        assert job_state(letters) is LrmJobState(state)

    @pytest.mark.parametrize(
        ("letters", "state"),
        [("", "up"), ("d", "draining"), ("a", "draining"), ("au", "down"), ("E", "down"), ("S", "draining"),
         ("C", "draining"), ("D", "draining"), ("dE", "down"), ("o", "down"), ("P", "unknown"), ("?", "unknown")],
    )  # fmt: skip
    def test_queue_letters(self, letters: str, state: str) -> None:
        """Only a queue instance without letters takes jobs; those of a lost host or a broken queue are DOWN."""
        assert queue_instance_state(letters) is NodeState(state)


class TestNodes:
    """qhost -xml -q -F slots."""

    def test_full_host(self) -> None:
        (node,) = parse_nodes(sample("qhost_q.xml"))
        assert (node.name, node.state, node.processors, node.processors_used) == ("localhost", NodeState.UP, 4, 4)
        assert (node.queues, node.load, node.memory_mib) == (("all.q",), 0.71, 24064)
        assert node.processors_idle == 0

    def test_host_limit_counts_over_all_queues(self) -> None:
        """Where the host as a whole has no slots left, no queue of it has, although one is empty."""
        (node,) = parse_nodes(sample("qhost_q_F_slots.xml"), queue="second.q")
        assert (node.processors, node.processors_idle) == (3, 0)

    def test_one_queue_disabled(self) -> None:
        (both,) = parse_nodes(sample("qhost_q_F_slots_disabled.xml"))
        (second,) = parse_nodes(sample("qhost_q_F_slots_disabled.xml"), queue="second.q")
        assert (both.state, both.processors) == (NodeState.UP, 6)
        assert (second.state, second.processors_idle, second.raw_state) == (NodeState.DRAINING, 0, "d")

    def test_lost_host(self) -> None:
        """A host that is not heard of is DOWN, with no load."""
        (node,) = parse_nodes(sample("qhost_q_j_execd_dead.xml"))
        assert (node.state, node.load, node.raw_state, node.processors_idle) == (NodeState.DOWN, None, "u", 0)

    def test_host_without_batch_queue_is_no_node(self) -> None:
        assert parse_nodes(sample("qhost.xml")) == ()
        assert parse_nodes(host(queue(kind="IP"), queue(kind="P"))) == ()

    def test_unknown_queue_gives_no_nodes(self) -> None:
        assert parse_nodes(sample("qhost_q.xml"), queue="other.q") == ()

    def test_reserved_slots_are_used(self) -> None:
        (node,) = parse_nodes(host(queue(used=9, slots=4), queue("b.q", used=1, slots=4)))
        assert (node.processors, node.processors_used, node.processors_idle) == (8, 8, 0)


class TestQueues:
    """qstat -xml -g c and qconf -sq."""

    def test_queues(self) -> None:
        limits = parse_limits(sample("qconf_sq_all.txt").decode())
        first, second = parse_queues(sample("qstat_g_c_two.xml"), limits, default=None)
        assert (first.name, first.processors, first.walltime_limit, first.up) == ("all.q", 6, None, True)
        assert (second.name, second.walltime_limit) == ("second.q", 9000)
        assert not first.default
        assert not second.default
        _, second = parse_queues(sample("qstat_g_c_two.xml"), limits, default="second.q")
        assert second.default

    def test_only_queue_is_the_default(self) -> None:
        (only,) = parse_queues(sample("qstat_g_c.xml"), {}, default=None)
        assert only.default

    @pytest.mark.parametrize(
        ("lines", "limit"),
        [
            ("h_rt INFINITY\ns_rt INFINITY", None),
            ("s_rt 00:30:00\nh_rt 01:00:00", 1800),
            ("h_rt 3600,[a=7200],[b=60]", 7200),
            ("h_rt 3600,[a=INFINITY]", None),
            ("h_rt 1:0:0, \\\n   [@group=2:0:0]", 7200),
        ],
    )
    def test_limits(self, lines: str, limit: int | None) -> None:
        """The smaller of soft and hard limit, of hosts that differ the longest; INFINITY is none."""
        assert parse_limits(f"qname q\n{lines}\n") == {"q": limit}


class TestAccounting:
    """qacct -j."""

    ENDS: ClassVar = {job.name: job for job in parse_accounting(sample("qacct_j_ends.txt").decode())}

    @pytest.mark.parametrize(
        ("name", "end", "code", "signal"),
        [
            ("hrt", EndReason.WALLTIME, None, 9),
            ("self9", None, None, 9),
            ("self15", EndReason.SIGNALLED, None, 15),
            ("exit137", EndReason.EXITED, 137, None),
            ("noout", EndReason.LAUNCH_FAILED, None, None),
            ("nointerp", EndReason.LAUNCH_FAILED, None, None),
            ("deleted", None, None, 9),
        ],
    )
    def test_ends(self, name: str, end: EndReason | None, code: int | None, signal: int | None) -> None:
        """What is certain is told: who sent SIGKILL is not, and an exit status of 137 is one."""
        job = self.ENDS[name]
        assert (job.state, job.end, job.exit_code, job.signal) == (LrmJobState.ENDED, end, code, signal)

    def test_reason_and_times(self) -> None:
        """The LRM's own words, and times in UTC; a job that never started has none and was on no node."""
        walltime, unstarted = self.ENDS["hrt"], self.ENDS["noout"]
        assert walltime.reason == "failed 37: qmaster enforced h_rt, h_cpu, or h_vmem limit"
        assert (walltime.ends_at or 0) - (walltime.started_at or 0) == 2
        assert (unstarted.started_at, unstarted.ends_at, unstarted.nodes) == (None, None, ())

    def test_plain_job(self) -> None:
        (job,) = parse_accounting(sample("qacct_j_exit_3.txt").decode())
        assert (job.id.isdigit(), job.array_index, job.exit_code) == (True, None, 3)

    def test_memory_limit(self) -> None:
        text = (
            "=====\njobnumber 5\ntaskid 1\nstart_time Sat Nov 21 11:00:00 2026\nend_time Sat Nov 21 11:00:09 2026\n"
            "failed 37 : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status 137\n"
            "category -l h_rt=3600,h_vmem=2G\n"
        )
        (job,) = parse_accounting(text)
        assert job.end is EndReason.MEMORY

    def test_last_run_counts(self) -> None:
        run = "=====\njobnumber 5\ntaskid 1\nend_time Sat Nov 21 11:00:0{0} 2026\nfailed 0\nexit_status {0}\n"
        (job,) = parse_accounting(run.format(7) + run.format(3))
        assert job.exit_code == 7

    def test_a_number_that_was_used_again(self) -> None:
        """A later job of the same number, but another user, does not take the place of the earlier one."""
        run = "=====\njobnumber 5\nowner {0}\nend_time Sat Nov 21 11:00:0{1} 2026\nfailed 0\nexit_status {1}\n"
        jobs = parse_accounting(run.format("alice", 3) + run.format("nobody", 7))
        assert [(job.user, job.exit_code) for job in jobs] == [("alice", 3), ("nobody", 7)]

    @pytest.mark.parametrize(
        ("lines", "expected"),
        [
            (
                "failed 100 : assumedly after job\nexit_status 137\nsubmit_cmd qsub -N x -l h_rt=00:01:00 s.sh",
                "walltime",
            ),
            ("failed 100 : assumedly after job\nexit_status 137\nsubmit_cmd qsub -N x -l h_rt=600 s.sh", None),
            ("failed 44 : execd enforced h_rt limit\nexit_status 137", "walltime"),
            ("failed 44 : execd enforced h_rt limit\nexit_status 0", "walltime"),
            ("failed 100 : assumedly after job\nexit_status 137\ndeleted_by ann@h", "cancelled"),
            ("failed 100 : assumedly after job\nexit_status 137\ndeleted_by NONE", None),
        ],
    )
    def test_records_of_heirs(self, lines: str, expected: str | None) -> None:
        times = "start_time 11/21/2026 11:00:00.000\nend_time 11/21/2026 11:01:00.100\n"
        (job,) = parse_accounting(f"=====\njobnumber 5\nowner a\n{times}{lines}\n")
        assert (job.end and job.end.value) == expected

    @pytest.mark.parametrize("order", [(1, 2), (2, 1)])
    def test_the_run_that_ended_last_counts(self, order: tuple[int, int]) -> None:
        run = "=====\njobnumber 5\nowner a\nend_time 11/21/2026 11:0{0}:00.000\nfailed 0\nexit_status {0}\n"
        (job,) = parse_accounting("".join(run.format(number) for number in order))
        assert job.exit_code == 2

    def test_nothing_known(self) -> None:
        assert parse_accounting("") == ()


def test_error_reasons() -> None:
    one = (
        "<ulong_sublist><JAT_task_number>{}</JAT_task_number><JAT_message_list><ulong_sublist><QIM_message>11/21/2026 "
        "12:31:24 [0:31652]: error: can&apos;t open output file &quot;/nosuch&quot;{}</QIM_message></ulong_sublist>"
        "</JAT_message_list></ulong_sublist>"
    )
    tasks = one.format(1, "") + one.format(3, ": No such file or directory")
    document = (
        f"<detailed_job_info><djob_info><element><JB_job_number>22</JB_job_number><JB_ja_tasks>{tasks}</JB_ja_tasks>"
    )
    explained = parse_explained(f"{document}</element></djob_info></detailed_job_info>".encode())
    output = 'can\'t open output file "/nosuch"'
    assert explained["22"].error_reasons == {1: output, 3: f"{output}: No such file or directory"}


class TestComplaints:
    """What commands and library print when they refuse."""

    COMPLAINTS = tuple(
        line.strip().removeprefix("stderr: ")
        for line in (SAMPLES / "COMMANDS.txt").read_text().splitlines()
        if line.strip().startswith("stderr: ")
    )

    @pytest.mark.parametrize(
        ("wording", "kind"),
        [
            ("unable to send message to qmaster", FailureKind.UNAVAILABLE),
            ("commlib error", FailureKind.UNAVAILABLE),
            ("unknown queue", FailureKind.REJECTED),
            ("unknown resource", FailureKind.REJECTED),
            ("is not a valid object name", FailureKind.REJECTED),
            ("requires manager privileges", FailureKind.REJECTED),
            ("not found", FailureKind.NOT_FOUND),
        ],
    )
    def test_recorded_wording(self, wording: str, kind: FailureKind) -> None:
        recorded = [line for line in self.COMPLAINTS if wording in line]
        assert recorded
        assert {kind_of_text(line) for line in recorded} == {kind}

    def test_other_users_job(self) -> None:
        assert kind_of_text(sample("err_qdel_other_user.txt").decode()) is FailureKind.REJECTED

    def test_unknown_job(self) -> None:
        """A job that does not exist is not found, although Grid Engine says that it denies."""
        assert kind_of_text(sample("err_qdel_unknown.txt").decode()) is FailureKind.NOT_FOUND


class TestXml:
    """Reading XML from a program that is not ours."""

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"error: unable to contact qmaster",
            b"<job_info><job_list>",
            b"<other/>",
            b"<!DOCTYPE job_info [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><job_info>&x;</job_info>",
            b"<!DOCTYPE job_info SYSTEM 'http://127.0.0.1:1/x.dtd'><job_info/>",
        ],
    )
    def test_refused(self, raw: bytes) -> None:
        with pytest.raises(LrmUnavailableError):
            parse_xml(raw, root="job_info", source="qstat")

    def test_too_large(self) -> None:
        class Large(bytes):
            __slots__ = ()

            def __len__(self) -> int:
                return LARGEST_DOCUMENT + 1

        with pytest.raises(LrmUnavailableError, match="bytes"):
            parse_xml(Large(b"<job_info/>"), root="job_info", source="qstat")

    def test_control_characters_in_names(self) -> None:
        """A job whose name holds what XML forbids does not hide all other jobs."""
        raw = sample("qstat_mixed.xml").replace(b"<JB_name>other", b"<JB_name>ot\x01er")
        assert len(parse_jobs(raw)) == len(parse_jobs(sample("qstat_mixed.xml")))

    @given(st.binary(max_size=400))
    def test_any_bytes(self, noise: bytes) -> None:
        """Whatever bytes come, nothing but our own error is raised."""
        for raw in (noise, b"<job_info><job_list>" + noise + b"</job_list></job_info>"):
            try:
                parse_jobs(raw)
            except LrmUnavailableError:
                continue

    @given(st.text(max_size=60))
    def test_any_values(self, text: str) -> None:
        assert seconds_of(text) is None or isinstance(seconds_of(text), int)
        assert mebibytes_of(text) is None or isinstance(mebibytes_of(text), int)
        parse_accounting(f"===\njobnumber 1\nfailed {text}\nexit_status {text}\nstart_time {text}\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3600", 3600),
        ("1:00:00", 3600),
        ("::5", 5),
        ("00:02:", 120),
        ("3600.000", 3600),
        ("INFINITY", None),
        ("", None),
    ],
)
def test_times(text: str, seconds: int | None) -> None:
    """All forms of sge_types(1); INFINITY is no limit."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("23.5G", 24064), ("476.6M", 476), ("1024K", 1), ("0.0", 0), ("-", None), ("2Q", None)]
)
def test_sizes(text: str, mebibytes: int | None) -> None:
    """Sizes with and without a unit, in MiB."""
    assert mebibytes_of(text) == mebibytes


# -- What Grid Engine 8.1.9 tells of where waiting jobs may run, and of their contexts; and its submission verifier.


PIECE = Path(__file__).parents[2] / "conf" / "sge_jsv.sh"
LISTING = b"""<?xml version='1.0'?>
<job_info><queue_info/><job_info>
<job_list state="pending"><JB_job_number>15</JB_job_number><JB_owner>ann</JB_owner><state>hqw</state><slots>2</slots>
<requested_pe name="any">2</requested_pe><hard_request name="h_rt" resource_contribution="0.000000">60</hard_request>
<hard_request name="arch" resource_contribution="0.000000">vax</hard_request>
<hard_req_queue>n4.q</hard_req_queue><hard_req_queue>n2.q@@allhosts</hard_req_queue>
<master_hard_req_queue>n2.q</master_hard_req_queue></job_list>
<job_list state="pending"><JB_job_number>16</JB_job_number><JB_owner>bob</JB_owner><state>hqw</state><slots>1</slots>
<soft_request name="h_rt">60</soft_request><soft_req_queue>n2.q</soft_req_queue></job_list>
</job_info></job_info>"""


def explained(*contexts: dict[str, str]) -> bytes:
    """Return what qstat -xml -j prints of jobs 1, 2 ... with these contexts."""
    words = [
        "".join(
            f"<context_list><VA_variable>{k}</VA_variable><VA_value>{v}</VA_value></context_list>"
            for k, v in one.items()
        )
        for one in contexts
    ]
    jobs = "".join(
        f"<element><JB_job_number>{number}</JB_job_number><JB_context>{text}</JB_context></element>"
        for number, text in enumerate(words, start=1)
    )
    return f"<detailed_job_info><djob_info>{jobs}</djob_info></detailed_job_info>".encode()


def test_hard_requests_of_a_listing() -> None:
    wishes = parse_wishes(LISTING)
    assert wishes["15"] == Wishes(
        user="ann",
        resources=(("arch", "vax"), ("h_rt", "60")),
        queues=("n2.q@@allhosts", "n4.q"),
        master_queues=("n2.q",),
        environment="any",
        walltime=60,
    )
    assert wishes["15"].selected.resources == (("arch", "vax"),)
    assert wishes["16"] == Wishes(user="bob")


def test_contexts() -> None:
    found = parse_explained(explained({"koala_user_hold": "1", "x": "1"}, {}, {"a": "b"}))
    assert {number: job.user_hold for number, job in found.items()} == {"1": True, "2": False, "3": False}


def test_jobs_that_are_not_known_or_not_told() -> None:
    """Unknown jobs are none, in the words of each release; a qmaster that does not answer is an error."""
    assert parse_explained((SAMPLES / "err_qstat_j_unknown.xml").read_bytes()) == {}
    assert (
        parse_explained(
            b"<?xml version='1.0'?>\n<unknown_jobs xmlns:xsd='x'>\n<>\n<ST_name>9</ST_name></></unknown_jobs>"
        )
        == {}
    )
    with pytest.raises(LrmUnavailableError, match="comunication_error"):
        parse_explained(b"<?xml version='1.0'?>\n<comunication_error ><AN_status>11</AN_status></comunication_error>")


def test_groups_accounts_and_submissions() -> None:
    """As Grid Engine 8.1.9 printed them; the account of jobs that have none is no account."""
    job = parse_explained((SAMPLES / "qstat_j_error_state.xml").read_bytes())["1"]
    assert (job.group, job.account, job.submitted_at) == ("root", "", 1795259488.0)
    assert job.error_reasons == {1: "can't chdir to /nonexistent: No such file or directory"}


def test_selected_instances_and_their_nodes() -> None:
    found = parse_instances("a.q@n1\nb.q@n1\na.q@n2\nno such thing\n")
    assert nodes_of(found, by_queue=False) == {"n1", "n2"}
    assert nodes_of(found, by_queue=True) == found
    assert instances_on("n1", found, by_queue=False) == ("a.q@n1", "b.q@n1")
    assert instances_on("a.q@n1", found, by_queue=True) == ("a.q@n1",)


def test_access_lists_and_limits_of_queues() -> None:
    """NONE is none."""
    text = "qname a.q\nuser_lists NONE\nxuser_lists NONE\ns_rt 60\nh_rt 100\nqname b.q\nuser_lists {}\nh_rt INFINITY\n"
    assert not has_access_lists(text.format("NONE"))
    assert has_access_lists(text.format("arusers,[n1=staff]"))
    assert parse_limits(text, names=("h_rt",)) == {"a.q": 100, "b.q": None}


def verified(*parameters: str) -> list[str]:
    """Return what the site's piece changes of a job."""
    words = ["START", *(f"PARAM {parameter}" for parameter in parameters), "BEGIN", "QUIT"]
    done = subprocess.run(
        ["sh", str(PIECE)], input="".join(f"{word}\n" for word in words), capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "STARTED"
    assert lines[-1].startswith("RESULT STATE")
    return lines[1:-1]


@pytest.mark.parametrize(
    ("parameters", "changes"),
    [
        (("N test",), ["PARAM h u"]),
        (("N test", "h u"), ["PARAM h u", "PARAM ac koala_user_hold=1"]),
        (("h u", "ac a=b,c"), ["PARAM h u", "PARAM ac a=b,c,koala_user_hold=1"]),
        (("N debug-1", "h u"), []),
    ],
)
def test_a_hold_of_its_user_is_kept_apart(parameters: tuple[str, ...], changes: list[str]) -> None:
    assert verified(*parameters) == changes
