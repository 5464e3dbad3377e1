# SPDX-License-Identifier: Apache-2.0
"""The base of plugins that run commands, on a sketch of a plugin for OpenPBS: its recorded output, its complaints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from koala_adapter.errors import (
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnreachableError,
)
from koala_adapter.lrm.commands import (
    CommandRunner,
    CommandSystem,
    ComplaintTable,
    complaints,
    only_id,
    parsed,
    portions,
)
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeState

SAMPLES = Path(__file__).parents[2] / "wire" / "samples" / "openpbs2306"

COMPLAINTS = ComplaintTable(
    system="PBS",
    known=(
        *complaints(LrmUnreachableError, {"cannot connect to server": "start pbs_server"}),
        *complaints(LrmNotFoundError, {"unknown job id": "", "job has finished": ""}),
        *complaints(LrmRejectedError, {"unknown queue": "name one that qstat -Q lists", "unauthorized request": ""}),
    ),
)
STATES = {"Q": LrmJobState.QUEUED, "H": LrmJobState.HELD, "R": LrmJobState.RUNNING, "S": LrmJobState.SUSPENDED}
BEING_DELETED = ("request invalid for state of job",)
"""What qdel says of a job that it has begun to delete."""


def parse_jobs(text: str) -> tuple[LrmJob, ...]:
    """Return jobs and elements of arrays; without any, PBS prints no "Jobs"."""
    jobs = json.loads(text).get("Jobs", {})
    return tuple(
        LrmJob(
            id=LrmJobId(id_),
            name=str(job["Job_Name"]),
            state=STATES.get(job["job_state"], LrmJobState.UNKNOWN),
            user=job["Job_Owner"].partition("@")[0],
            processors=int(job["Resource_List"]["ncpus"]),
            raw_state=job["job_state"],
        )
        for id_, job in jobs.items()
        if "[]" not in id_
    )


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Return the vnodes that have processors."""
    return tuple(
        Node(
            name=name,
            state=NodeState.UP if node["state"] in {"free", "job-busy"} else NodeState.DOWN,
            processors=node["resources_available"]["ncpus"],
            processors_used=node["resources_assigned"].get("ncpus", 0),
        )
        for name, node in json.loads(text)["nodes"].items()
        if node["resources_available"]["ncpus"]
    )


@pytest.fixture
def pbs(tmp_path: Path) -> CommandSystem:
    """Return the commands of a server that prints what was recorded; see `says`."""
    return CommandSystem(
        CommandRunner(per_minute=6000), COMPLAINTS, directory=tmp_path, environment={"PBS_SERVER": "vm"}, timeout=30.0
    )


def says(directory: Path, program: str, *, out: str = "", err: str = "", status: int = 0) -> None:
    """Put a program there that prints this, and notes its arguments and server."""
    lines = (
        "#!/bin/sh",
        f'echo "$PBS_SERVER $*" >> {shlex.quote(str(directory / "calls"))}',
        f"printf %s {shlex.quote(out)}",
        f"printf %s {shlex.quote(err)} >&2",
        f"exit {status}",
    )
    (directory / program).write_text("\n".join(lines))
    (directory / program).chmod(0o755)


@pytest.mark.anyio
async def test_recorded_listings(pbs: CommandSystem, tmp_path: Path) -> None:
    """A pair of build and parse is all that a listing takes."""
    says(tmp_path, "qstat", out=(SAMPLES / "qstat_tf.json").read_text())
    says(tmp_path, "pbsnodes", out=(SAMPLES / "pbsnodes_av.json").read_text())
    text = await pbs.read(("qstat", "-t", "-f", "-F", "json"), action="listing of jobs")
    jobs = {job.id: job for job in parsed(parse_jobs, text, source="qstat")}
    assert (jobs[LrmJobId("86[1].vm")].state, jobs[LrmJobId("85.vm")].state) == (LrmJobState.RUNNING, LrmJobState.HELD)
    assert jobs[LrmJobId("90.vm")].processors == 3
    text = await pbs.read(("pbsnodes", "-av", "-F", "json"), action="listing of nodes")
    nodes = {node.name: node for node in parsed(parse_nodes, text, source="pbsnodes")}
    assert (nodes["n1"].processors, nodes["n1"].processors_used) == (4, 3)
    assert (tmp_path / "calls").read_text().splitlines() == ["vm -t -f -F json", "vm -av -F json"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("err", "status", "error"),
    [
        ("Connection refused\nqstat: cannot connect to server vm (errno=15010)\n", 255, LrmUnreachableError),
        ("qstat: Unknown Job Id 99999.vm\n", 153, LrmNotFoundError),
        ("qstat: something new\n", 1, LrmUnavailableError),
        ("", 1, LrmUnavailableError),
    ],
)
async def test_a_failed_listing_is_no_empty_one(
    pbs: CommandSystem, tmp_path: Path, err: str, status: int, error: type[LrmError]
) -> None:
    """PBS prints a JSON object without jobs then, too: the exit status and the complaint decide."""
    says(tmp_path, "qstat", out='{"pbs_server": "vm"}', err=err, status=status)
    with pytest.raises(LrmError, match="PBS: listing of jobs failed") as caught:
        await pbs.read(("qstat", "-f"), action="listing of jobs")
    assert type(caught.value) is error


@pytest.mark.parametrize("text", ["", "{", '{"Jobs": {"1.vm": {}}}', '{"Jobs": [1]}', "[]", '{"Jobs": {"1.vm": 7}}'])
def test_what_cannot_be_read_is_no_answer(text: str) -> None:
    """Whatever a parser stumbles over, nothing is known of the jobs, and what was printed is told."""
    with pytest.raises(LrmUnavailableError, match="qstat printed what cannot be read") as caught:
        parsed(parse_jobs, text, source="qstat")
    assert repr(text) in caught.value.message


@pytest.mark.anyio
async def test_changes_and_cancels(pbs: CommandSystem, tmp_path: Path) -> None:
    """The text of a complaint decides; a job that is gone, or going, needs no cancelling."""
    says(tmp_path, "qhold")
    await pbs.change(("qhold", "1.vm"), action="hold")
    says(tmp_path, "qhold", err="qhold: Unauthorized Request  1.vm\n")
    with pytest.raises(LrmRejectedError, match="hold failed"):
        await pbs.change(("qhold", "1.vm"), action="hold")
    for gone in ("qdel: Job has finished 84.vm", "qdel: Unknown Job Id 9.vm", "qdel: Request invalid for state of job"):
        says(tmp_path, "qdel", err=f"{gone}\n", status=35)
        await pbs.cancel(("qdel", "84.vm"), gone=BEING_DELETED)
    says(tmp_path, "qdel", err="qdel: Unauthorized Request  1.vm\nqdel: cannot connect to server vm\n", status=162)
    with pytest.raises(LrmUnreachableError):
        await pbs.cancel(("qdel", "1.vm", "2.vm"))
    says(tmp_path, "qdel", status=134)
    with pytest.raises(LrmUnavailableError, match="without a word"):
        await pbs.cancel(("qdel", "1.vm"))


@pytest.mark.anyio
async def test_the_version_is_asked_once(pbs: CommandSystem, tmp_path: Path) -> None:
    """It is kept when it was found, and asked for again when it was not."""

    def version(text: str) -> str | None:
        found = re.search(r"pbs_version = (\S+)", text)
        return found[1] if found else None

    says(tmp_path, "qstat", out="nothing")
    with pytest.raises(LrmUnavailableError, match="printed no version: 'nothing'"):
        await pbs.version(("qstat", "--version"), version)
    says(tmp_path, "qstat", out="pbs_version = 23.06.06")
    assert [await pbs.version(("qstat", "--version"), version) for _ in range(2)] == ["23.06.06"] * 2
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_ids_among_banners() -> None:
    """One line that is an id is one; none and several are none, and the submission is looked for."""
    pattern = re.compile(r"[0-9]+(\[\])?\.[\w.-]+")
    assert only_id("Welcome\n102.vm\n", pattern) == "102.vm"
    for text in ("", "102.vm\n103.vm\n"):
        with pytest.raises(LrmUnavailableError):
            only_id(text, pattern)


def test_portions_are_complete_and_bounded() -> None:
    """Of qdel: it takes one id at a time: with several it may crash and delete nothing."""
    assert list(portions(["1", "2", "3"], 2)) == [("1", "2"), ("3",)]
    assert list(portions(["1", "2"], 1)) == [("1",), ("2",)]
    assert list(portions([], 2)) == []
