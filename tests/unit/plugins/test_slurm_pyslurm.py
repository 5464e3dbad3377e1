# SPDX-License-Identifier: Apache-2.0
"""Reading with pyslurm in a child process: what it finds, when it is used, and how it is given up."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.model import EndReason, LrmJobState, NodeState
from koala_adapter.testing import RecordingRunner, new_context
from koala_slurm import SlurmSettings
from koala_slurm.lrm import SlurmLrm
from koala_slurm.pyslurm_client import parse_answer
from tests.fakes.slurm import FakeSlurm

pytestmark = pytest.mark.anyio

MODULE_PATH = Path(__file__).parents[2] / "fakes" / "pyslurm25"

NODE = {
    "name": "n1",
    "state": "MIXED",
    "partitions": ["main", "short"],
    "allocated_cpus": 3,
    "idle_cpus": 5,
    "total_cpus": 8,
    "real_memory": 4000,
    "cpu_load": 0.5,
}
JOB = {
    "id": 7,
    "array_id": None,
    "array_task_id": None,
    "array_tasks_waiting": None,
    "user_name": "root",
    "state": "RUNNING",
    "state_reason": "None",
    "cpus": 1,
    "partition": "main",
    "allocated_nodes": "n1",
    "submit_time": 1795258933,
    "start_time": 1795258934,
    "end_time": 1795262533,
    "exit_code": None,
    "exit_code_signal": None,
    "name": "koala-x",
}
CONTENTS: dict[str, object] = {
    "version": "25.11.2",
    "nodes": [NODE, {**NODE, "name": "n2", "state": "IDLE+NOT_RESPONDING", "partitions": None, "cpu_load": None}],
    "jobs": [
        JOB,
        {**JOB, "id": 8, "array_id": 8, "array_tasks_waiting": "2-3%1", "state": "PENDING", "allocated_nodes": None},
        {**JOB, "id": 9, "array_id": 8, "array_task_id": 1, "state": "FAILED", "exit_code": 3, "exit_code_signal": 0},
        {**JOB, "id": 10, "user_name": "nobody", "name": "koala-theirs"},
    ],
}


async def make(
    tmp_path: Path, contents: dict[str, object] | None, *, release: str = "25.11.7", use: str = "auto"
) -> SlurmLrm:
    """Return a started plugin on a fake Slurm, with a pyslurm of these contents (None: without one)."""
    fake = FakeSlurm(tmp_path / "fake", release=release)
    file = tmp_path / "pyslurm.json"
    file.write_text(json.dumps(contents or {}))
    environment = {"PYTHONPATH": str(MODULE_PATH), "FAKE_PYSLURM": str(file)} if contents else {}
    context = replace(new_context(tmp_path), commands=RecordingRunner(environment=environment), user="root")
    settings = SlurmSettings.model_validate(
        {"conf": fake.conf, "bin_directory": fake.bin_directory, "use_pyslurm": use}
    )
    lrm = SlurmLrm(context, settings)
    await lrm.start()
    return lrm


def programs(lrm: SlurmLrm) -> list[str]:
    """Return the names of the programs that were run after the start."""
    runner = lrm._context.commands
    assert isinstance(runner, RecordingRunner)
    names = [os.path.basename(command.argv[0]) for command in runner.commands]  # noqa: PTH119 - plain text
    python = os.path.basename(sys.executable)  # noqa: PTH119
    return ["pyslurm" if name == python else name for name in names]


async def test_nodes(tmp_path: Path) -> None:
    """Nodes come with state, processors, memory, load and partitions, without any command of Slurm."""
    lrm = await make(tmp_path, CONTENTS)
    first, second = await lrm.nodes()
    assert (first.name, first.state, first.processors, first.processors_idle) == ("n1", NodeState.UP, 8, 5)
    assert (first.memory_mib, first.load, first.queues) == (4000, 0.5, ("main", "short"))
    assert (second.state, second.load, second.queues) == (NodeState.DOWN, None, ())
    assert programs(lrm)[-1] == "pyslurm"
    assert "sinfo" not in programs(lrm)


async def test_jobs(tmp_path: Path) -> None:
    """Jobs come as the listing of squeue would show them, elements of waiting arrays singly."""
    lrm = await make(tmp_path, CONTENTS)
    jobs = {str(job.id): job for job in await lrm.jobs(name_prefix="koala-x")}
    assert {id_: job.state for id_, job in jobs.items()} == {
        "7": LrmJobState.RUNNING,
        "8_2": LrmJobState.QUEUED,
        "8_3": LrmJobState.QUEUED,
        "8_1": LrmJobState.ENDED,
    }
    assert (jobs["7"].nodes, jobs["7"].started_at, jobs["7"].ends_at) == (("n1",), 1795258934, 1795262533)
    assert (jobs["8_1"].end, jobs["8_1"].exit_code, jobs["8_1"].array_index) == (EndReason.EXITED, 3, 1)
    assert {job.id for job in await lrm.jobs(name_prefix="koala")} == {"7", "8_1", "8_2", "8_3"}
    assert "squeue" not in programs(lrm)


async def test_never(tmp_path: Path) -> None:
    """Where the site forbids it, pyslurm is not even looked for."""
    lrm = await make(tmp_path, CONTENTS, use="never")
    assert await lrm.jobs() == ()
    assert "pyslurm" not in programs(lrm)
    assert lrm.requests_per_poll == 3


@pytest.mark.parametrize(
    ("contents", "release", "said"),
    [
        (None, "25.11.7", "not installed"),
        (CONTENTS, "24.11.5", "25.11.2 is not made for Slurm 24.11.5"),
        ({"version": "25.11.2", "exit_on_import": True}, "25.11.7", "unusable"),
    ],
)
async def test_unusable_pyslurm_is_left_alone(
    tmp_path: Path, contents: dict[str, object] | None, release: str, said: str
) -> None:
    """Without a fitting pyslurm the commands are used from the start, and ``check`` says why."""
    lrm = await make(tmp_path, contents, release=release)
    assert len(await lrm.nodes()) == 2
    assert programs(lrm).count("pyslurm") == 1
    assert said in next(result.found for result in await lrm.check() if result.subject == "pyslurm")


@pytest.mark.parametrize(
    "trouble",
    [
        {"version": "25.11.2"},
        {"version": "25.11.2", "exit_on_import": True},
        {"version": "25.11.2", "nodes": [{"name": "n1"}], "jobs": [{"id": 1}]},
        {"version": "25.11.2", "nodes": [{**NODE, "total_cpus": -1}], "jobs": [{**JOB, "state": None}]},
    ],
)
async def test_first_trouble_ends_its_use(tmp_path: Path, trouble: dict[str, object]) -> None:
    """When pyslurm fails, the commands answer the same request and all later ones, and the log says so once."""
    lrm = await make(tmp_path, CONTENTS)
    assert lrm.requests_per_poll == 4
    (tmp_path / "pyslurm.json").write_text(json.dumps(trouble))
    before = lrm._context.commands.window.total
    with capture_logs() as logs:
        assert len(await lrm.nodes()) == 2
        assert await lrm.jobs() == ()
        assert lrm._context.commands.window.total - before <= lrm.requests_per_poll
        await lrm.jobs()
        await lrm.nodes()
    assert len(logs) == 1
    assert "pyslurm" in str(logs[0]["event"])
    assert programs(lrm).count("pyslurm") == 2


@pytest.mark.parametrize("output", ["", "[]", "{}", "null", '{"version": 1, "rows": 5}', "pyslurm: warning\n{}"])
def test_wrong_answers_are_trouble(output: str) -> None:
    """Anything but the reader's own answer is an error."""
    with pytest.raises(LrmUnavailableError):
        parse_answer(output)
