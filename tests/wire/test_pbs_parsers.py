# SPDX-License-Identifier: Apache-2.0
"""Recorded output of OpenPBS and Torque is read."""

from __future__ import annotations

import calendar
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm.commands import CommandResult
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, NodeState
from koala_pbs.jobs import JobRequest, read_entries
from koala_pbs.queues import largest_array, served, walltime_limit
from koala_pbs.torque import read_torque
from koala_pbs.words import COMPLAINTS, submission_error
from tests.pbs_listings import parse_jobs, parse_nodes, parse_queues, parse_requests, parse_server

SAMPLES = Path(__file__).parent / "samples"
DOCUMENTS = sorted(
    path for name in ("pbs2306", "pbs_head") for path in (SAMPLES / name).iterdir() if path.read_text()[:1] == "{"
)
SECTIONS = ("Jobs", "nodes", "Queue", "Server")


def sample(name: str, *, of: str = "pbs2306") -> str:
    """Return a recorded output."""
    return (SAMPLES / of / name).read_text()


def jobs_of(name: str, *, of: str = "pbs2306") -> dict[str, LrmJob]:
    """Return the jobs of a recorded output by their ids."""
    return {str(job.id): job for job in parse_jobs(sample(name, of=of))}


def utc(text: str) -> float:
    """Return seconds since the epoch."""
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S")))


class TestJobs:
    """qstat -t -f -F json."""

    def test_a_running_job(self) -> None:
        job = jobs_of("qstat-tf-json.out")["84.vm"]
        assert (job.name, job.user, job.state, job.raw_state) == ("koala-run", "root", LrmJobState.RUNNING, "R 42")
        assert (job.nodes, job.layout, job.processors) == (("n1",), (("n1", 1),), 1)
        assert job.submitted_at == job.started_at == utc("2026-11-22 04:15:45")
        assert (job.walltime, job.ends_at) == (600, utc("2026-11-22 04:25:45"))
        assert (job.queue, job.working_directory, job.group) == ("workq", "/home/user", "root")
        assert not job.dependent, "another job waits for it, not it for another"

    def test_elements_and_their_array(self) -> None:
        jobs = jobs_of("qstat-tf-json.out")
        assert not [id_ for id_ in jobs if "[]" in id_]
        assert {id_: job.array_index for id_, job in jobs.items() if id_.startswith("86")} == {
            "86[1].vm": 1,
            "86[2].vm": 2,
            "86[3].vm": 3,
        }
        held = [job for id_, job in jobs.items() if id_.startswith("87")]
        assert [job.array_index for job in held] == [2, 4, 6, 8, 10]
        assert {(job.state, job.hold) for job in held} == {(LrmJobState.HELD, HoldOwner.USER)}

    def test_what_waits_for_what(self) -> None:
        """A hold, another job, a time, processors, or suspended: each is told apart."""
        jobs = jobs_of("qstat-tf-json.out")
        assert (jobs["85.vm"].state, jobs["85.vm"].hold) == (LrmJobState.HELD, HoldOwner.USER)
        assert (jobs["88.vm"].state, jobs["88.vm"].dependent) == (LrmJobState.QUEUED, True)
        assert (jobs["89.vm"].state, jobs["89.vm"].eligible_at) == (LrmJobState.QUEUED, utc("2026-11-22 05:15:00"))
        assert (jobs["91.vm"].state, jobs["91.vm"].blocked) == (LrmJobState.QUEUED, True)
        assert jobs["91.vm"].kept, "it asks for more than there is"
        assert jobs["91.vm"].reason.startswith("Can Never Run: Insufficient amount of resource: ncpus")
        assert jobs["92.vm"].state is LrmJobState.SUSPENDED

    def test_shapes(self) -> None:
        jobs = jobs_of("qstat-tf-json.out")
        multi, big, small = jobs["90.vm"], jobs["91.vm"], jobs["93.vm"]
        assert (multi.processors, multi.layout) == (3, (("n3", 2), ("n4", 1)))
        assert (multi.node_bounds, multi.requested_nodes, multi.tasks_per_node) == ((2, 2), ("n3", "n4"), 1)
        assert (big.processors, big.processors_per_task, big.node_bounds) == (20, 4, (1, 5))
        assert (small.memory_per_processor_mib, small.account) == (200, "acct")
        assert jobs["94.vm" if "94.vm" in jobs else "88.vm"].node_bounds == (1, 1)

    def test_hold_of_an_operator(self) -> None:
        """What conf/pbs_queuejob.py leaves: the site's hold."""
        assert {"o"} <= {one.holds for one in parse_requests(sample("hook-held-json.out")).values()}
        text = sample("qstat-one.out").replace('"job_state":\t"R"', '"job_state":\t"H"')
        (job,) = parse_jobs(text.replace('"Hold_Types":\t"n"', '"Hold_Types":\t"o"'))
        assert (job.state, job.hold) == (LrmJobState.HELD, HoldOwner.OPERATOR)
        (job,) = parse_jobs(text.replace('"Hold_Types":\t"n"', '"Hold_Types":\t"uo"'))
        assert job.hold is HoldOwner.USER, "its user holds it too, and only he knows why"

    @pytest.mark.parametrize(
        ("id_", "end", "code", "signal"),
        [
            ("95.vm", EndReason.EXITED, 7, None),
            ("96.vm", EndReason.EXITED, 137, None),
            ("97.vm", EndReason.WALLTIME, None, None),
            ("85.vm", EndReason.CANCELLED, None, None),
            ("86[2].vm", EndReason.CANCELLED, None, None),
            ("88.vm", None, None, None),
        ],
    )
    def test_ends(self, id_: str, end: EndReason | None, code: int | None, signal: int | None) -> None:
        """As the shell that PBS starts tells them; a job that was deleted is cancelled, whatever its exit status."""
        job = jobs_of("qstat-xtf-json.out")[id_]
        assert (job.state, job.end, job.exit_code, job.signal) == (LrmJobState.ENDED, end, code, signal)

    def test_an_element_that_was_deleted_early(self) -> None:
        jobs = jobs_of("qstat-xt-after-element-delete.out")
        assert (jobs["434[1].vm"].state, jobs["434[1].vm"].end) == (LrmJobState.ENDED, None)
        assert jobs["434[1].vm"].exit_code is None
        assert jobs["434[2].vm"].end is EndReason.CANCELLED
        assert jobs["434[3].vm"].state is LrmJobState.RUNNING

    def test_deleted_by_signal_at_the_head(self) -> None:
        """256 and the signal where the shell itself was killed; -11 is a job that was queued again, then deleted."""
        ends = Counter(
            (job.end, job.signal)
            for job in parse_jobs(sample("v230606_qstat-xf-Fjson.json", of="pbs_head"))
            if job.end is not None
        )
        assert ends[EndReason.SIGNALLED, 15] == 1
        assert ends[EndReason.CANCELLED, None] >= 4

    def test_words_that_look_like_numbers(self) -> None:
        """A name is text, also where 23.06 takes it for a number."""
        assert "12345" in {job.name for job in jobs_of("v230606_qstat-xf-Fjson.json", of="pbs_head").values()}
        assert all(isinstance(job.name, str) for path in DOCUMENTS for job in parse_jobs(path.read_text()))

    def test_every_state_that_was_recorded_is_known(self) -> None:
        jobs = [job for path in DOCUMENTS for job in parse_jobs(path.read_text())]
        states = {job.raw_state: job.state for job in jobs}
        assert LrmJobState.UNKNOWN not in states.values()
        assert len(states) > 10

    def test_a_state_that_is_not_known(self) -> None:
        (job,) = parse_jobs(sample("qstat-one.out").replace('"job_state":\t"R"', '"job_state":\t"?"'))
        assert (job.state, job.raw_state) == (LrmJobState.UNKNOWN, "? 42")

    def test_no_jobs(self) -> None:
        assert parse_jobs(sample("err-qstat-unknown.out")) == ()

    def test_what_a_job_asks_for(self) -> None:
        requests = parse_requests(sample("qstat-tf-json.out"))
        select = "1:ncpus=2:vnode=n3+1:ncpus=1:vnode=n4"
        assert requests["90.vm"] == JobRequest(select=select, place="vscatter", holds="n")
        assert requests["87[].vm"].holds == "u"


class TestDamage:
    """What PBS prints and is no JSON (openpbs #1255, #2049, #2541, #2677), and what nobody prints."""

    @pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
    def test_lines_say_the_same_as_json(self, path: Path) -> None:
        text = path.read_text()
        for section in SECTIONS:
            whole = read_entries(text, section)
            if not whole:
                continue
            first = re.escape(next(iter(whole)))
            damaged = re.sub(rf'("{first}"\s*:\s*\{{\n)', '\\1\t\t\t"koala":\t005,\n', text, count=1)
            with pytest.raises(ValueError, match=r"delimiter|Expecting"):
                json.loads(damaged)
            read = read_entries(damaged, section)
            assert read.keys() == whole.keys()
            if section == "Jobs":
                assert [job.state for job in parse_jobs(damaged)] == [job.state for job in parse_jobs(text)]

    @pytest.mark.parametrize(
        "line",
        [
            '"comment":"HEALTH "check" (Sep 04)"',
            '"Submit_arguments":"-v A=\\\'x\\\'"',
            '"Account_Name":007',
            '"MYVAR":"ab\\,c"',
            '"odd":nan',
            '"job_state":"Q"',
        ],
    )
    def test_bad_values(self, line: str) -> None:
        """Unescaped quotes, escapes and numbers that JSON does not have, and an attribute twice; as 19 prints lines."""
        text = (
            '{\n    "timestamp":1,\n    "Jobs":{\n        "53.host.org":{\n            "Job_Name":"sleep",\n'
            '            "job_state":"R",\n            "euser":"ann",\n            "Resource_List":{\n'
            f'                "ncpus":2\n            }},\n            {line},\n            "substate":42\n'
            "        }\n    }\n}\n"
        )
        (job,) = parse_jobs(text)
        assert (job.id, job.name, job.user, job.processors) == ("53.host.org", "sleep", "ann", 2)

    def test_a_job_twice_is_refused(self) -> None:
        text = sample("qstat-one.out")
        block = text[text.index('\t\t"84.vm"') : text.rindex("\t}\n}")].rstrip("\n")
        twice = text.replace(block, f"{block},\n{block}")
        for damaged in (twice, twice.replace('"substate":\t42', '"substate":\t042')):
            with pytest.raises(ValueError, match=r"84\.vm is there twice"):
                parse_jobs(damaged)

    @pytest.mark.parametrize("cut", [100, 900, 5000])
    def test_what_is_cut_short_is_refused(self, cut: int) -> None:
        """It must not pass for fewer jobs."""
        with pytest.raises(ValueError, match=r"cut short|no JSON"):
            parse_jobs(sample("qstat-tf-json.out")[:-cut])

    @pytest.mark.parametrize("name", ["Job_Name", "job_state"])
    def test_a_job_that_cannot_be_read_is_named(self, name: str) -> None:
        text = sample("qstat-one.out").replace(f'"{name}"', '"other"')
        with pytest.raises(ValueError, match=rf"job 84\.vm cannot be read: .* {name}"):
            parse_jobs(text)

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"Jobs": 7}', '{"Jobs": [1]}', '{"Jobs": {"1.vm": 7}}', '{"a": {']
    )
    def test_what_is_no_listing(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            parse_jobs(text)

    @given(st.text(max_size=300))
    def test_anything(self, text: str) -> None:
        for parse in (parse_jobs, parse_nodes, parse_queues):
            try:
                parse(text)
            except ValueError:
                continue

    @given(st.integers(0, 20_000), st.text(max_size=30))
    def test_anything_in_the_midst(self, place: int, text: str) -> None:
        whole = sample("qstat-tf-json.out")
        try:
            parse_jobs(whole[:place] + text + whole[place:])
        except ValueError:
            return


class TestNodes:
    """pbsnodes -a -v -F json."""

    def test_vnodes(self) -> None:
        nodes = {node.name: node for node in parse_nodes(sample("pbsnodes-av-json.out"))}
        assert list(nodes) == ["n1", "n2", "n3", "n4"]
        assert (nodes["n1"].processors, nodes["n1"].processors_used, nodes["n1"].processors_idle) == (4, 3, 1)
        assert (nodes["n1"].memory_mib, nodes["n1"].architecture) == (4096, "linux")
        assert {node.state for node in nodes.values()} == {NodeState.UP}

    def test_too_much_on_a_vnode(self) -> None:
        nodes = {node.name: node for node in parse_nodes(sample("pbsnodes_av_busy.json", of="pbs_head"))}
        assert all(node.processors_idle >= 0 for node in nodes.values())

    @pytest.mark.parametrize(
        ("words", "state", "idle"),
        [
            ("free", NodeState.UP, 1),
            ("job-busy", NodeState.UP, 1),
            ("job-exclusive", NodeState.UP, 0),
            ("offline", NodeState.DRAINING, 0),
            ("offline,down", NodeState.DOWN, 0),
            ("state-unknown,down", NodeState.DOWN, 0),
            ("state-unknown", NodeState.UNKNOWN, 0),
            ("resv-exclusive", NodeState.DRAINING, 0),
            ("something-new", NodeState.UNKNOWN, 0),
        ],
    )
    def test_states(self, words: str, state: NodeState, idle: int) -> None:
        text = sample("pbsnodes-av-json.out").replace('"state":\t"free"', f'"state":\t"{words}"')
        node = parse_nodes(text)[0]
        assert (node.state, node.processors_idle, node.raw_state) == (state, idle, words)

    def test_vnodes_of_one_queue(self) -> None:
        text = sample("pbsnodes-av-json.out").replace('"n1":\t{\n', '"n1":\t{\n\t\t\t"queue":\t"big",\n')
        nodes = {node.name: node.queues for node in parse_nodes(text, queues=("big", "workq"))}
        assert nodes == {"n1": ("big",), "n2": ("workq",), "n3": ("workq",), "n4": ("workq",)}
        assert {node.queues for node in parse_nodes(sample("pbsnodes-av-json.out"), queues=("workq",))} == {()}


class TestMovedJobs:
    """Two servers, ``vm`` and ``other``, to which a held job was moved by qmove."""

    def test_what_its_own_server_says(self) -> None:
        (moved,) = parse_jobs(sample("qstat-x-moved.out"))
        assert (moved.state, moved.end) == (LrmJobState.ENDED, EndReason.LOST)
        assert moved.reason == "PBS has moved it to workq@other; koala does not follow jobs to other servers"
        (ended,) = parse_jobs(sample("qstat-x-moved-finished.out"))
        assert (ended.state, ended.end, ended.reason) == (LrmJobState.ENDED, None, 'Job finished at "other"')

    def test_a_routing_queue(self) -> None:
        assert [queue.servers for queue in parse_queues(sample("qstat-Qf-routing.out"))] == [(), ("other",)]
        queues = parse_queues(sample("qstat-Qf-routing.out"), home="other")
        assert [(queue.destinations, queue.servers) for queue in queues] == [((), ()), (("workq",), ())]


class TestServer:
    """qstat -B and -Q."""

    def test_server(self) -> None:
        server = parse_server(sample("qstat-Bf-json.out"))
        assert (server.name, server.version, server.default_queue) == ("vm", "23.06.06", "workq")
        assert (server.scheduling, server.history, server.lists_others) == (True, True, True)
        assert server.max_array_size == 10_000

    def test_queues(self) -> None:
        nodes = parse_nodes(sample("pbsnodes-av-json.out"))
        queues = {one.name: one for one in parse_queues(sample("qstat-Qf-json.out"))}
        (queue,) = served(queues, nodes, default="workq")
        assert (queue.name, queue.up, queue.processors, queue.default) == ("workq", True, 16, True)


@pytest.mark.parametrize(
    "name", ["err-badqueue.err", "err-badres.err", "err-badselect.err", "qsub-J-1-1.err", "qsub-directive-obeyed.err"]
)
def test_refused_submissions(name: str) -> None:
    printed = CommandResult(argv=("qsub",), returncode=170, stdout=b"", stderr=sample(name).encode())
    error = submission_error(printed)
    assert type(error) is LrmRejectedError
    assert error.hint


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("err-qdel-finished.err", LrmNotFoundError),
        ("err-qdel-unknown.err", LrmNotFoundError),
        ("err-qrls-unknown.err", LrmNotFoundError),
        ("err-qstat-finished.err", LrmNotFoundError),
        ("qalter-element-select.err", LrmRejectedError),
        ("qhold-element.err", LrmRejectedError),
        ("qdel-running-again.err", LrmRejectedError),
        ("node-offline.err", LrmRejectedError),
    ],
)
def test_complaints(name: str, kind: type[LrmError]) -> None:
    assert type(COMPLAINTS.error(sample(name), action="test", otherwise=LrmUnavailableError)) is kind


@pytest.mark.parametrize(
    "path",
    [path for path in sorted((SAMPLES / "pbs_head").glob("*.txt")) if path.name != "bug_qdel_multi.txt"],
    ids=lambda path: path.stem,
)
def test_refusals_of_the_head(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if re.match(r"q[a-z]+: ", line)]
    assert all(COMPLAINTS.find(line) for line in lines)
    assert lines


# Torque's output (samples/torque, in the forms that its sources print and that sites have published), and damaged.

JOBS = sample("qstat-tx.xml", of="torque")
NODES = sample("pbsnodes-x.xml", of="torque")


@pytest.fixture(scope="module")
def jobs() -> dict[str, LrmJob]:
    """Give the jobs of the sample by their numbers."""
    return {str(job.id).removesuffix(".head.site"): job for job in parse_jobs(JOBS, read_torque)}


class TestTorqueJobs:
    """qstat -t -x."""

    def test_where_they_run(self, jobs: dict[str, LrmJob]) -> None:
        assert jobs["101"].layout == (("n1", 4), ("n2", 4))
        assert jobs["102"].layout == (("n3", 6), ("n4", 2))
        assert (jobs["101"].started_at, jobs["101"].ends_at) == (1_500_000_100, 1_500_003_700)
        assert (jobs["101"].user, jobs["101"].group, jobs["101"].working_directory) == ("ann", "staff", "/home/ann")

    def test_what_they_ask_for(self, jobs: dict[str, LrmJob]) -> None:
        """Nodes with processors, named ones, processors anywhere, and those of one node."""
        assert (jobs["101"].processors, jobs["101"].node_bounds, jobs["101"].memory_per_processor_mib) == (
            8,
            (2, 2),
            1024,
        )
        assert (jobs["102"].processors, jobs["102"].requested_nodes) == (8, ("n3",))
        assert (jobs["107"].processors, jobs["107"].node_bounds, jobs["107"].walltime) == (4, (1, 1), 86_340)
        assert (jobs["108"].processors, jobs["108"].node_bounds, jobs["108"].memory_per_processor_mib) == (
            8,
            (1, 8),
            1024,
        )

    def test_a_placeholder_knows_its_index(self, jobs: dict[str, LrmJob]) -> None:
        job = jobs["103"]
        assert (job.name, job.user, job.state, job.array_index) == ("koala-12345678-1", "koala", LrmJobState.QUEUED, 2)

    def test_who_holds_them(self, jobs: dict[str, LrmJob]) -> None:
        assert (jobs["104"].state, jobs["104"].hold) == (LrmJobState.HELD, HoldOwner.USER)
        assert (jobs["105"].state, jobs["105"].hold) == (LrmJobState.HELD, HoldOwner.OPERATOR)
        assert (jobs["106"].state, jobs["106"].dependent) == (LrmJobState.QUEUED, True)
        assert jobs["115"].state is LrmJobState.SUSPENDED

    def test_elements(self, jobs: dict[str, LrmJob]) -> None:
        assert "109[]" not in jobs
        assert (jobs["109[1]"].array_index, jobs["109[1]"].nodes) == (1, ("n2",))
        assert (jobs["109[2]"].end, jobs["109[2]"].exit_code) == (EndReason.EXITED, 3)

    @pytest.mark.parametrize(
        ("number", "end", "code", "signal"),
        [
            ("110", EndReason.EXITED, 0, None),
            ("111", EndReason.SIGNALLED, None, 15),
            ("112", EndReason.WALLTIME, None, None),
            ("113", EndReason.MEMORY, None, None),
            ("114", EndReason.LAUNCH_FAILED, None, None),
        ],
    )
    def test_ends(
        self, jobs: dict[str, LrmJob], number: str, end: EndReason, code: int | None, signal: int | None
    ) -> None:
        """Torque's numbers below zero are not those of OpenPBS."""
        job = jobs[number]
        assert (job.state, job.end, job.exit_code, job.signal) == (LrmJobState.ENDED, end, code, signal)
        assert job.ends_at == 1_500_000_200

    def test_an_end_of_an_earlier_run(self, jobs: dict[str, LrmJob]) -> None:
        assert (jobs["116"].state, jobs["116"].end, jobs["116"].requeues) == (LrmJobState.RUNNING, None, 1)

    def test_no_jobs(self) -> None:
        assert parse_jobs("", read_torque) == ()


class TestRecorded:
    """What a Torque 6.1 printed that was built from its sources (samples/torque61)."""

    def test_jobs(self) -> None:
        """Running, held, waiting, ended, elements, one with an ampersand in a variable, and one over its walltime."""
        jobs = {job.id.partition(".")[0]: job for job in parse_jobs(sample("qstat-tx.xml", of="torque61"), read_torque)}
        assert {number: job.state for number, job in jobs.items()} == {
            "149": LrmJobState.RUNNING,
            "150": LrmJobState.HELD,
            "151": LrmJobState.ENDED,
            "152": LrmJobState.QUEUED,
            "153[1]": LrmJobState.RUNNING,
            "153[2]": LrmJobState.RUNNING,
            "154": LrmJobState.HELD,
            "155": LrmJobState.ENDED,
        }
        assert (jobs["149"].processors, jobs["149"].layout, jobs["149"].user) == (2, (("vm", 2),), "daemon")
        assert [jobs[f"153[{index}]"].array_index for index in (1, 2)] == [1, 2]
        assert (jobs["151"].end, jobs["151"].exit_code) == (EndReason.EXITED, 7)
        assert jobs["155"].end is EndReason.WALLTIME
        assert jobs["150"].hold is HoldOwner.USER

    def test_nodes(self) -> None:
        (node,) = parse_nodes(sample("pbsnodes-x.xml", of="torque61"), read=read_torque)
        assert (node.name, node.processors, node.processors_used, node.state) == ("vm", 4, 4, NodeState.UP)
        assert node.memory_mib == 24_106

    def test_server_and_queue(self) -> None:
        server = parse_server(sample("qstat-Bf.txt", of="torque61"), read_torque)
        assert (server.version, server.scheduling, server.default_queue) == ("master", True, "batch")
        (queue,) = parse_queues(sample("qstat-Qf.txt", of="torque61"), read_torque)
        assert (queue.name, queue.up, queue.executes) == ("batch", True, True)


class TestTorqueDamage:
    """Torque 6.1 escapes what XML does not allow; older ones need not."""

    @pytest.mark.parametrize("value", ["a && b", "if (a<b)", "x<3", "&nbsp;", "\x01", "A=b,c,d", "<<EOF"])
    def test_values_that_are_no_xml(self, value: str) -> None:
        text = JOBS.replace("PBS_O_SHELL=/bin/bash", f"PBS_O_SHELL=/bin/bash,ODD={value}")
        assert [job.id for job in parse_jobs(text, read_torque)] == [job.id for job in parse_jobs(JOBS, read_torque)]

    def test_a_job_that_cannot_be_read_is_not_known(self) -> None:
        """A tag in a value is more than can be guessed; all other jobs are read."""
        text = JOBS.replace("<Job_Name>killed<", "<Job_Name><b>killed<")
        read = {job.id: job for job in parse_jobs(text, read_torque)}
        assert read.keys() == {job.id for job in parse_jobs(JOBS, read_torque)}
        assert [id_ for id_, job in read.items() if job.state is LrmJobState.UNKNOWN] == ["111.head.site"]
        assert "no XML" in read[LrmJobId("111.head.site")].reason

    def test_a_node_twice(self) -> None:
        name = NODES.partition("<name>")[2].partition("</name>")[0]
        with pytest.raises(ValueError, match=f"{name} is there twice"):
            parse_nodes(
                NODES.replace("<name>", f"<name>{name}</name><name>", 1).replace("</Data>", "", 1)
                + NODES.partition("<Data>")[2],
                read=read_torque,
            )

    @pytest.mark.parametrize("cut", [10, 700, 5000])
    def test_what_is_cut_short_is_refused(self, cut: int) -> None:
        """It must not pass for fewer jobs."""
        with pytest.raises(ValueError, match=r"cannot be read|no XML"):
            parse_jobs(JOBS[:-cut], read_torque)

    def test_no_entities(self) -> None:
        """Nothing is fetched or expanded: a document type is no part of what is read."""
        text = f'<!DOCTYPE Data [<!ENTITY e SYSTEM "file:///etc/passwd">]>{JOBS}'.replace(">well<", ">&e;<")
        assert "&e;" in {job.name for job in parse_jobs(text, read_torque)}

    @given(st.text(max_size=300))
    def test_anything(self, text: str) -> None:
        for printed in (text, f"<Data><Job><Job_Id>1.a</Job_Id>{text}</Job></Data>", f"Queue: a\n    {text}"):
            for parse in (parse_jobs, parse_queues):
                try:
                    parse(printed, read_torque)
                except ValueError:
                    continue
            try:
                parse_nodes(printed.replace("Job>", "Node>").replace("Job_Id", "name"), read=read_torque)
            except ValueError:
                continue

    @given(st.integers(0, 20_000), st.text(max_size=30))
    def test_anything_in_the_midst(self, place: int, text: str) -> None:
        try:
            parse_jobs(JOBS[:place] + text + JOBS[place:], read_torque)
        except ValueError:
            return


def test_nodes() -> None:
    """Slots in use in both forms; states as of OpenPBS."""
    nodes = {node.name: node for node in parse_nodes(NODES, read=read_torque)}
    assert {name: (node.processors, node.processors_used) for name, node in nodes.items()} == {
        "n1": (8, 5),
        "n2": (8, 8),
        "n3": (8, 6),
        "n4": (4, 2),
        "n5": (8, 0),
        "n6": (8, 0),
        "n7": (1, 0),
    }
    assert [node.state for node in nodes.values()] == [
        *[NodeState.UP] * 4,
        NodeState.DRAINING,
        NodeState.DOWN,
        NodeState.DOWN,
    ]
    assert (nodes["n4"].reason, nodes["n1"].memory_mib) == ("rack 4", 16_000)


def test_jobs_of_a_node_that_cannot_be_read() -> None:
    """Its free slots must not be guessed."""
    with pytest.raises(ValueError, match="no job on a node"):
        parse_nodes(NODES.replace("0-5/102.head.site", "0-5 102"), read=read_torque)
    with pytest.raises(ValueError, match="no slots"):
        parse_nodes(NODES.replace("0-5/102.head.site", "5-0/102.head.site"), read=read_torque)


def test_queues_and_server() -> None:
    server = parse_server(sample("qstat-Bf.txt", of="torque"), read_torque)
    assert (server.name, server.version, server.default_queue) == ("head.site", "6.1.3", "batch")
    assert (server.scheduling, server.history, server.lists_others) == (True, False, True)
    assert server.may_operate(user="oper2", uid=7)
    queues = {queue.name: queue for queue in parse_queues(sample("qstat-Qf.txt", of="torque"), read_torque)}
    assert {name: (queue.executes, queue.up, walltime_limit(queue, queues)) for name, queue in queues.items()} == {
        "batch": (True, True, 172_800),
        "closed": (True, False, None),
        "route": (False, True, 172_800),
    }
    assert largest_array(server, queues, "batch") == 1
    nodes = parse_nodes(NODES, read=read_torque)
    assert {queue.name: queue.processors for queue in served(queues, nodes, default="batch")}["route"] == 45


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("qstat: Unknown Job Id Error 9.head.site", LrmNotFoundError),
        ("qdel: nonexistent job id: 9.head.site", LrmNotFoundError),
        ("qdel: Request invalid for state of job MSG=invalid state for job - COMPLETE 110.head.site", LrmRejectedError),
        ("qsub: submit error (Unknown queue MSG=cannot locate queue)", LrmRejectedError),
        ("qsub: submit error (Queue does not allow job arrays)", LrmRejectedError),
        ("qsub can not be run as root", LrmRejectedError),
        ("qsub: submit error (Maximum number of jobs already in queue for user)", LrmUnavailableError),
        (
            "qsub: submit error (Job exceeds queue resource limits MSG=cannot satisfy queue max walltime)",
            LrmRejectedError,
        ),
        ("qstat: cannot connect to server head.site (errno=15137) could not connect to trqauthd", LrmUnreachableError),
        ("pbs_server is currently too busy to service this request. Please retry this request.", LrmUnavailableError),
    ],
)
def test_torque_complaints(text: str, kind: type[LrmError]) -> None:
    error = COMPLAINTS.error(text, action="test", otherwise=LrmError)
    assert type(error) is kind
