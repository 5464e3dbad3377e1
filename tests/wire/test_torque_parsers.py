# SPDX-License-Identifier: Apache-2.0
"""Torque's output (samples/torque, in the forms that its sources print and that sites have published), and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, NodeState
from koala_pbs.jobs import parse_jobs, parse_nodes
from koala_pbs.queues import largest_array, parse_queues, parse_server, served, walltime_limit
from koala_pbs.torque import read_torque
from koala_pbs.words import COMPLAINTS

SAMPLES = Path(__file__).parent / "samples" / "torque"
RECORDED = SAMPLES.with_name("torque61")
JOBS = (SAMPLES / "qstat-tx.xml").read_text()
NODES = (SAMPLES / "pbsnodes-x.xml").read_text()


@pytest.fixture(scope="module")
def jobs() -> dict[str, LrmJob]:
    """Give the jobs of the sample by their numbers."""
    return {str(job.id).removesuffix(".head.site"): job for job in parse_jobs(JOBS, read_torque)}


class TestJobs:
    """qstat -t -x."""

    def test_where_they_run(self, jobs: dict[str, LrmJob]) -> None:
        """Slot by slot, as Torque 2 to 4 prints it, and in ranges."""
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
        """It is a job of its own, which we told it."""
        job = jobs["103"]
        assert (job.name, job.user, job.state, job.array_index) == ("koala-12345678-1", "koala", LrmJobState.QUEUED, 2)

    def test_who_holds_them(self, jobs: dict[str, LrmJob]) -> None:
        """Its user, an operator; one that waits for another is queued."""
        assert (jobs["104"].state, jobs["104"].hold) == (LrmJobState.HELD, HoldOwner.USER)
        assert (jobs["105"].state, jobs["105"].hold) == (LrmJobState.HELD, HoldOwner.OPERATOR)
        assert (jobs["106"].state, jobs["106"].dependent) == (LrmJobState.QUEUED, True)
        assert jobs["115"].state is LrmJobState.SUSPENDED

    def test_elements(self, jobs: dict[str, LrmJob]) -> None:
        """They tell of themselves; their array is not among the jobs."""
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
        """It still stands there while the job runs again."""
        assert (jobs["116"].state, jobs["116"].end, jobs["116"].requeues) == (LrmJobState.RUNNING, None, 1)

    def test_no_jobs(self) -> None:
        """Qstat says nothing then; that it is no refusal is seen by the exit status."""
        assert parse_jobs("", read_torque) == ()


class TestRecorded:
    """What a Torque 6.1 printed that was built from its sources (samples/torque61)."""

    def sample(self, name: str) -> str:
        """Return a recorded output."""
        return (RECORDED / name).read_text()

    def test_jobs(self) -> None:
        """Running, held, waiting, ended, elements, one with an ampersand in a variable, and one over its walltime."""
        jobs = {job.id.partition(".")[0]: job for job in parse_jobs(self.sample("qstat-tx.xml"), read_torque)}
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
        """All slots are in use."""
        (node,) = parse_nodes(self.sample("pbsnodes-x.xml"), read=read_torque)
        assert (node.name, node.processors, node.processors_used, node.state) == ("vm", 4, 4, NodeState.UP)
        assert node.memory_mib == 24_106

    def test_server_and_queue(self) -> None:
        """Words are broken off at the end of a line, and go on in the next."""
        server = parse_server(self.sample("qstat-Bf.txt"), read_torque)
        assert (server.version, server.scheduling, server.default_queue) == ("master", True, "batch")
        (queue,) = parse_queues(self.sample("qstat-Qf.txt"), read_torque)
        assert (queue.name, queue.up, queue.executes) == ("batch", True, True)


class TestDamage:
    """Torque 6.1 escapes what XML does not allow; older ones need not."""

    @pytest.mark.parametrize("value", ["a && b", "if (a<b)", "x<3", "&nbsp;", "\x01", "A=b,c,d", "<<EOF"])
    def test_values_that_are_no_xml(self, value: str) -> None:
        """All jobs are read, this one too."""
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
        """No user has a say in these."""
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
        """Whatever is printed is read, or refused with a ValueError."""
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
        """The same of the sample with something put in."""
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
    """Text, with long values on several lines; placeholders are single jobs."""
    server = parse_server((SAMPLES / "qstat-Bf.txt").read_text(), read_torque)
    assert (server.name, server.version, server.default_queue) == ("head.site", "6.1.3", "batch")
    assert (server.scheduling, server.history, server.lists_others) == (True, False, True)
    assert server.may_operate(user="oper2", uid=7)
    queues = {queue.name: queue for queue in parse_queues((SAMPLES / "qstat-Qf.txt").read_text(), read_torque)}
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
def test_complaints(text: str, kind: type[LrmError]) -> None:
    """In the words of its table of errors."""
    error = COMPLAINTS.error(text, action="test", otherwise=LrmError)
    assert type(error) is kind
