# SPDX-License-Identifier: Apache-2.0
"""The plugin ``wiki`` reads recorded replies of a real Slurm as what ``scontrol`` and ``squeue`` showed just before."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import anyio.abc
import pytest

from koala_adapter.errors import (
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
    WikiError,
)
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobState, Node, NodeState
from koala_adapter.testing import new_context
from koala_adapter.wiki.codec.records import Count, JobRecord, NodeRecord, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import Reply, parse_reply
from koala_adapter.wiki.codec.words import Dialect
from koala_wiki import PLUGIN
from koala_wiki.lrm import (
    QUEUE,
    WikiSettings,
    comment_parts,
    is_gone,
    to_job,
    to_lrm_error,
    to_node,
    to_queues,
    used_processors,
)
from tests.wire.wiki_samples import Exchange, golden

_NODE = re.compile(r"^NodeName=(\S+) (.*)$", re.MULTILINE)
_JOB = re.compile(r"^ +(\d+) +(\S+) +([A-Z_]+) +\S+ +(\d+) +(\d+) ", re.MULTILINE)

STATES = {
    "PENDING": {LrmJobState.HELD},
    "RUNNING": {LrmJobState.RUNNING},
    "SUSPENDED": {LrmJobState.SUSPENDED},
    "COMPLETING": {LrmJobState.RUNNING, LrmJobState.ENDING, LrmJobState.ENDED, LrmJobState.HELD},
    "CANCELLED": {LrmJobState.ENDED, LrmJobState.RUNNING, LrmJobState.ENDING},
    "COMPLETED": {LrmJobState.ENDED, LrmJobState.RUNNING, LrmJobState.ENDING},
    "FAILED": {LrmJobState.ENDED, LrmJobState.RUNNING, LrmJobState.ENDING},
    "TIMEOUT": {LrmJobState.ENDED, LrmJobState.RUNNING, LrmJobState.ENDING},
    "NODE_FAIL": {LrmJobState.ENDED, LrmJobState.RUNNING, LrmJobState.ENDING},
}
"""What a state of squeue may be over WIKI: a job that is over is called Running until its nodes are clean.
One that was told to be requeued meanwhile is Idle."""


def lists(dialect: Dialect, verb: bytes) -> list[tuple[Exchange, str]]:
    """Return the recorded answers to a query, with what follows ARG=."""
    found = []
    for exchange in golden(dialect):
        if exchange.reply is not None and b"CMD=" + verb in exchange.request:
            reply: Reply = parse_reply(exchange.opened_reply())
            if reply.argument is not None:
                found.append((exchange, reply.argument))
    return found


def shown_nodes(exchange: Exchange) -> dict[str, dict[str, str]]:
    """Return the nodes as scontrol showed them."""
    return {
        name: dict(part.split("=", 1) for part in rest.split() if "=" in part)
        for name, rest in _NODE.findall(exchange.scontrol)
    }


def node_problem(node: Node, shown: dict[str, str]) -> str:
    """Return in what a node differs from what scontrol said."""
    state = shown["State"]
    expected = NodeState.UP
    if "DOWN" in state:
        expected = NodeState.DOWN
    elif "DRAIN" in state or "FAIL" in state:
        expected = NodeState.DRAINING
    features = () if shown["AvailableFeatures"] == "(null)" else tuple(shown["AvailableFeatures"].split(","))
    pairs: list[tuple[object, object]] = [(node.state, expected)]
    if node.architecture:  # a delta leaves out what has not changed
        pairs += [(node.features, features), (node.architecture, shown["Arch"]), (node.operating_system, "Linux")]
    if node.memory_mib is not None:
        pairs += [(node.processors, int(shown["CPUTot"])), (node.memory_mib, int(shown["RealMemory"]))]
        pairs.append((node.disk_mib, int(shown["TmpDisk"])))
    return "; ".join(f"{found} instead of {wanted}" for found, wanted in pairs if found != wanted)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_nodes_are_those_of_slurm(dialect: Dialect) -> None:
    """State, processors, memory, disk and features agree with scontrol."""
    problems, looked_at = {}, 0
    for exchange, argument in lists(dialect, b"GETNODES"):
        shown = shown_nodes(exchange)
        for record in parse_nodes(argument):
            looked_at += 1
            problem = node_problem(to_node(record, {}), shown[record.name])
            if problem:
                problems[exchange.case, record.name] = problem
    assert problems == {}
    assert looked_at > 20


@pytest.mark.parametrize("dialect", list(Dialect))
def test_jobs_are_those_of_slurm(dialect: Dialect) -> None:
    problems, looked_at = [], 0
    for exchange, argument in lists(dialect, b"GETJOBS"):
        shown = {id_: (state, int(cpus)) for id_, _, state, _, cpus in _JOB.findall(exchange.scontrol)}
        for record in parse_jobs(argument):
            if record.id not in shown:
                continue
            job, (state, cpus) = to_job(record, dialect), shown[record.id]
            looked_at += 1
            counted = record.tasks is not None and state != "COMPLETING"  # squeue counts what is left
            if job.state not in STATES[state] or (counted and job.processors != cpus):
                problems.append(f"{exchange.case}: {job.id} {job.raw_state} {job.processors}, not {state} {cpus}")
            if job.layout and sum(count for _, count in job.layout) != job.processors:
                problems.append(f"{exchange.case}: {job.id} has {job.layout} for {job.processors}")
    assert problems == []
    assert looked_at > 60


RUNNING = JobRecord(
    id="7",
    state="Running",
    user="ada",
    tasks=3,
    processors_per_task=2,
    task_list=("n4", "n4", "n2"),
    started_at=1000,
    walltime=600,
    queued_at=900,
)


def job(**values: object) -> LrmJob:
    """Return what a record of WIKI2 with these values is to us."""
    return to_job(JobRecord(**{"id": "1", **values}), Dialect.WIKI2)  # type: ignore[arg-type]


def test_a_running_job_has_its_layout_and_end() -> None:
    seen = to_job(RUNNING, Dialect.WIKI)
    assert (seen.processors, seen.layout, seen.nodes) == (6, (("n4", 4), ("n2", 2)), ("n4", "n2"))
    assert (seen.started_at, seen.ends_at, seen.submitted_at) == (1000.0, 1600.0, 900.0)
    assert (seen.state, seen.hold) == (LrmJobState.RUNNING, None)


def test_waiting_jobs_are_held_by_the_site() -> None:
    """Idle waits for an outside scheduler; Hold is nobody's to start; other words are not guessed."""
    assert (job(state="Idle").state, job(state="Idle").hold) == (LrmJobState.HELD, HoldOwner.OPERATOR)
    assert (job(state="Hold").state, job(state="Hold").hold) == (LrmJobState.HELD, HoldOwner.SYSTEM)
    for word in ("idle", "Cancelled", "", "Deferred"):
        assert (job(state=word).state, job(state=word).hold) == (LrmJobState.UNKNOWN, None)


def test_a_job_that_is_being_cleaned_up_is_ending() -> None:
    seen = job(state="Running", tasks=1, completed_at=1300, started_at=1000)
    assert (seen.state, seen.ends_at, seen.nodes) == (LrmJobState.ENDING, 1300.0, ())


def test_ends_are_told_only_when_they_are_certain() -> None:
    assert (job(state="Completed", exit_code=3).end, job(state="Completed", exit_code=3).exit_code) == (
        EndReason.EXITED,
        3,
    )
    for record in (job(state="Completed", exit_code=0), job(state="Removed", exit_code=0), job(state="Vacated")):
        assert (record.state, record.end, record.exit_code) == (LrmJobState.ENDED, None, None)


def test_a_year_is_no_limit() -> None:
    """Slurm reports a year where there is none, and Maui's 100 days mean the same."""
    assert job(state="Idle", walltime=365 * 86400).walltime is None
    assert job(state="Idle", walltime=-1).walltime is None
    assert job(state="Idle", walltime=86400).walltime == 86400


def test_comments_of_slurm_are_taken_apart() -> None:
    text = "DEPEND=afterok:5?NACCESSPOLICY:shared?TPN:4?JOBFLAGS:RESTARTABLE?what? my words"
    assert comment_parts(text)["DEPEND"] == "afterok:5"
    seen = job(state="Idle", comment=text)
    assert (seen.dependent, seen.tasks_per_node, seen.comment) == (True, 4, "what? my words")
    assert to_job(JobRecord(id="1", comment=text), Dialect.WIKI).comment == text


def test_what_jobs_use_is_not_idle() -> None:
    used = used_processors([RUNNING, JobRecord(id="8", state="Suspended", task_list=("n2",))])
    nodes = [
        to_node(NodeRecord(name="n2", state="Running", processors=8), used),
        to_node(NodeRecord(name="n4", state="Running", processors=8, processors_free=1), used),
        to_node(NodeRecord(name="n5", state="Busy", processors=8), used),
        to_node(NodeRecord(name="n6", state="asleep", processors=8), used),
    ]
    assert [node.processors_idle for node in nodes] == [6, 1, 0, 0]
    assert nodes[3].state is NodeState.UNKNOWN


def test_queues_are_what_nodes_name() -> None:
    named = [
        to_node(NodeRecord(name="n1", state="Idle", processors=4, classes=(Count("a", 4), Count("b", 4))), {}),
        to_node(NodeRecord(name="n2", state="Down", processors=4, partition="c"), {}),
    ]
    assert [(queue.name, queue.processors, queue.up) for queue in to_queues(named)] == [
        ("a", 4, True),
        ("b", 4, True),
        ("c", 4, False),
    ]
    (only,) = to_queues([to_node(NodeRecord(name="n1", state="Idle"), {})])
    assert (only.name, only.default, only.processors) == (QUEUE, True, 1)
    assert to_queues([])[0].up is False


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (-140, "Still performing initialization", LrmUnavailableError),
        (-300, "unsupported request type", LrmUnsupportedError),
        (-810, "REQUEUEJOB command not supported", LrmUnsupportedError),
        (-350, "TS value too far from NOW", LrmRejectedError),
        (-422, "bad checksum", LrmRejectedError),
        (-700, "No such job", LrmNotFoundError),
        (-700, "Invalid job id specified", LrmNotFoundError),
        (-700, "Job not pending, can't start", LrmRejectedError),
        (-913, "Could not start job 6(n3): Resources", LrmRejectedError),
    ],
)
def test_refusals_are_one_of_our_errors(status: int, text: str, expected: type[Exception]) -> None:
    error = to_lrm_error(WikiError(text, status=status), what="STARTJOB of 6")
    assert type(error) is expected
    assert text in error.message
    assert str(status) in error.message


def test_a_refused_query_is_an_outage() -> None:
    error = WikiError("the LRM did not answer in time", status=-700)
    assert type(to_lrm_error(error, what="GETJOBS", of_query=True)) is LrmUnavailableError
    assert type(to_lrm_error(error, what="CANCELJOB of 1")) is LrmRejectedError


@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_recorded_refusal_to_cancel_is_understood(dialect: Dialect) -> None:
    """Slurm's words for unknown and finished jobs mean that nothing is left to cancel; others do not."""
    gone: set[str] = set()
    others: set[str] = set()
    for exchange in golden(dialect):
        if exchange.reply is not None and b"CMD=CANCELJOB" in exchange.request:
            reply = parse_reply(exchange.opened_reply())
            if reply.status < 0:
                (gone if is_gone(WikiError(reply.text, status=reply.status)) else others).add(reply.text)
    unknown = "Invalid job id specified" if dialect is Dialect.WIKI else "No such job"
    assert unknown in gone
    assert others <= {"Invalid ARG value", "CANCELJOB lacks ARG", "No TYPE value", "Invalid TYPE value"}


async def test_requests_are_measured_and_bounded_like_commands(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    context = new_context(tmp_path)
    context.commands.patience = 0.2
    context.commands.observer = lambda name, _seconds, failure: seen.append((name, failure))
    key = tmp_path / "key"
    key.write_text("12345678\n")
    key.chmod(0o600)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        lrm = PLUGIN.factory(context, WikiSettings(host="127.0.0.1", port=port, key_file=key))
        await lrm.start()
        with pytest.raises(LrmUnavailableError, match=r"within 0\.2 s"):
            await lrm.nodes()
    assert seen == [("GETNODES", "timeout")]
