# SPDX-License-Identifier: Apache-2.0
"""Sweeps on local clusters: every result once, whatever is killed; what fails is tried again, and gone on with."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.local_koala import LIVENESS, Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SWEEP = """\
name = "squares"
kind = "malleable"
runner = "sweep"
walltime = "30m"

[[components]]
command = ["sh", "-c", '''{script}''']
minimum = 1
maximum = 4
flexible = true

[sweep.parameters]
a = "1..{last}"
"""


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give two local clusters of four processors."""
    one = Koala(tmp_path)
    yield one
    one.close()


def entries(koala: Koala, job: str) -> list[dict[str, Any]]:
    """Return what is written down of the tasks of a sweep."""
    path = koala.state / "jobs" / job / "sweep" / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_task_once_whatever_is_killed(koala: Koala, tmp_path: Path) -> None:
    """Launchers, then the service; what they were at is done by others, or by themselves when it is back."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"echo $PPID {{a}} >>{begun}; while [ ! -e {go} ]; do sleep 0.1; done; echo $(( {{a}} * {{a}} ))"
    job_file = tmp_path / "squares.toml"
    job_file.write_text(SWEEP.format(script=script, last=30))
    service = koala.serve()
    koala.run("submit", str(job_file))

    def launchers() -> set[int]:
        lines = begun.read_text().splitlines() if begun.exists() else []
        return {int(line.split()[0]) for line in lines}

    eventually(lambda: len(launchers()) >= 3)
    for pid in sorted(launchers())[:2]:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: sum(one["state"] == "lost" for one in entries(koala, "1")) == 2)
    os.kill(service.pid, signal.SIGKILL)
    service.wait(LIVENESS)
    go.touch()
    koala.serve()
    eventually(lambda: koala.report("1").over)
    report = koala.report("1")
    assert report.outcome is not None
    assert (report.outcome.exit_code, report.sweep and report.sweep.done) == (0, 30)
    done = [one for one in entries(koala, "1") if one["state"] == "done"]
    assert sorted(one["task"] for one in done) == list(range(30))
    directory = koala.state / "jobs" / "1" / "sweep"
    for one in done:
        assert int((directory / one["stdout"]).read_text()) == int(one["parameters"]["a"]) ** 2
    assert "30/30" in koala.inside("status").stdout


def test_what_failed_is_gone_on_with(koala: Koala, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is repeated and listed, and the exit code says so; a later job does that alone."""
    script = f"test {{a}} != 3 -o -e {tmp_path}/mended && echo {{a}}-{{b}}"
    koala.serve()
    saved = tmp_path / "saved.toml"
    words = ("sweep", "--repeats", "1", "--save", str(saved), "--", "sh", "-c", script, ":::", "a=1..4", "b=x,y")
    monkeypatch.chdir(tmp_path)
    done = koala.inside(*words, check=1)
    assert "2 of 8 tasks failed" in done.stderr
    assert "koala sweep --resume 1" in done.stderr
    assert [one["state"] for one in entries(koala, "1") if one["task"] == 4] == ["repeated", "failed"]
    logs = koala.inside("logs", "1")
    assert logs.stdout == ""
    where = f"{koala.state}/jobs/1/sweep/tasks,suchas000/4.outand.erroftask4,whichfailed;"
    assert where in "".join(logs.stderr.split())
    (tmp_path / "mended").touch()
    report = koala.json("sweep", "--resume", "1")
    assert (report["outcome"]["exit_code"], report["sweep"]["done"], report["sweep"]["failed"]) == (0, 8, 0)
    tasks = [one["task"] for one in entries(koala, "1") if one["state"] == "done"]
    assert sorted(tasks) == list(range(8))
    assert "all 8 tasks are done: there is nothing to go on with" in koala.inside("sweep", "--resume", "1").stderr
    assert koala.json("sweep", "--resume", "2")["id"] == "2"
    assert [one["job"] for one in entries(koala, "1") if one["state"] == "resumed"] == ["2"]
    assert koala.json("run", str(saved))["sweep"]["done"] == 8
    alone = koala.inside("sweep", "-n", "1", "--json", "--", "true", "{a}", ":::", "a=1..3")
    assert json.loads(alone.stdout)["sweep"]["done"] == 3
    assert "nothing is known of a sweep of job 99" in koala.inside("sweep", "--resume", "99", check=245).stderr
