# SPDX-License-Identifier: Apache-2.0
"""Sweeps in job files: what they mean, and what is refused."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.jobfile import load_job_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Job, JobId, RunnerName
from koala_adapter.tasks.sweep import Expansion, filled

if TYPE_CHECKING:
    from pathlib import Path

TOP = 'walltime = 60\nkind = "malleable"\nrunner = "sweep"\n'
COMPONENT = '[[components]]\ncommand = ["p", "{a}", "{b}"]\nminimum = 1\nmaximum = 9\n'
SWEEP = '[sweep.parameters]\na = "1..3"\nb = ["x", "y"]\n'


def load(text: str, directory: Path) -> Job:
    """Read a job file."""
    return load_job_text(text, directory=directory, job_id=JobId("1"), user="u", submitted_at=0.0)


def commands(job: Job) -> list[list[str]]:
    """Return the commands of all tasks of a sweep whose values stand in its file."""
    assert job.sweep is not None
    tasks = Expansion(job.sweep, {})
    return [list(filled(job.components[0].command, tasks.row(task))) for task in range(len(tasks))]


def test_a_sweep(tmp_path: Path) -> None:
    """Its launchers give way at once unless the file says otherwise; numbers are as they are written."""
    job = load(TOP + COMPONENT + '[sweep]\nrepeats = 0\n[sweep.parameters]\na = [1, 2.5]\nb = "3..4"\n', tmp_path)
    assert (job.runner, job.components[0].retirement.grace) == (RunnerName.SWEEP, 0)
    assert job.sweep is not None
    assert job.sweep.repeats == 0
    assert commands(job) == [["p", "1", "3"], ["p", "1", "4"], ["p", "2.5", "3"], ["p", "2.5", "4"]]


def test_values_in_a_file(tmp_path: Path) -> None:
    """They are counted, and not read into the job."""
    (tmp_path / "names").write_text("one\n\ntwo\n")
    job = load(TOP + COMPONENT + '[sweep.parameters]\na = { file = "names" }\nb = ["x"]\n', tmp_path)
    assert job.sweep is not None
    assert (job.sweep.axes[0].file, job.sweep.axes[0].count) == (str(tmp_path / "names"), 2)


@pytest.mark.parametrize("kind", ["FIFO", "pipe"])
def test_values_from_a_pipe_are_refused(tmp_path: Path, kind: str) -> None:
    """The service reads the file again later: a pipe would be empty then, or keep everybody waiting."""
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    os.mkfifo(tmp_path / "names")
    file = str(tmp_path / "names") if kind == "FIFO" else f"/dev/fd/{reader}"
    try:
        with pytest.raises(ConfigurationError, match=r"cannot be used: it is no regular file"):
            load(TOP + COMPONENT + f'[sweep.parameters]\na = {{ file = "{file}" }}\nb = ["x"]\n', tmp_path)
    finally:
        os.close(reader)


def test_tables(tmp_path: Path) -> None:
    """What belongs together stays together."""
    job = load(TOP + COMPONENT + '[[sweep.table]]\na = 1\nb = "x"\n[[sweep.table]]\nb = "y"\na = 2\n', tmp_path)
    assert commands(job) == [["p", "1", "x"], ["p", "2", "y"]]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (TOP + COMPONENT, r"sweep: the table \[sweep\] is missing"),
        (TOP + COMPONENT + "[sweep]", "there is none: allowed is at least one"),
        (TOP + COMPONENT + '[sweep.parameters]\na = "1..3"\nb = ["x"]\nc = ["z"]', r"no argument .* has \{c\}"),
        (TOP + COMPONENT + '[sweep.parameters]\na = "one"\nb = ["x"]', 'a range such as "1..100"'),
        (TOP + COMPONENT + '[sweep.parameters]\na = "3..1..1"\nb = ["x"]', "whose step leads"),
        (TOP + COMPONENT + '[sweep.parameters]\na = { file = "none" }\nb = ["x"]', "none cannot be used: No such"),
        (TOP + COMPONENT + '[sweep.parameters]\na = "1..2000"\nb = "1..2000"', "4,000,000 tasks, allowed are at most"),
        (TOP + COMPONENT + '[sweep]\ncombine = "together"\n' + SWEEP, "a 3, b 2 values, allowed with"),
        (TOP + COMPONENT + "[[sweep.table]]\na = 1\nb = 2\n[[sweep.table]]\na = 1", "the names of the first one: a, b"),
        (TOP + COMPONENT + SWEEP + "[[sweep.table]]\na = 1", "it is in sweep.table, too"),
        (TOP + COMPONENT + 'output_files = ["x"]\n' + SWEEP, "what a task prints is kept"),
        (TOP + COMPONENT + COMPONENT + SWEEP, "is one component"),
        (TOP + 'launcher = "mpi"\n' + COMPONENT + SWEEP, 'with runner = "sweep" is "process"'),
        (TOP.replace("sweep", "workers") + COMPONENT + SWEEP, 'allowed with runner = "sweep" only'),
        (TOP + COMPONENT + 'retire_signal = "TERM"\n' + SWEEP, 'allowed with runner = "workers" only'),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, refusal: str, tmp_path: Path) -> None:
    """With what is allowed in its place."""
    with pytest.raises(ConfigurationError, match=refusal):
        load(text, tmp_path)


KINDS = r'allowed is a range such as "1\.\.100" or "0\.\.1\.\.0\.25", a list of values, or \{ file = "FILE" \}'


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ("[]", r"a: found an empty list, allowed is a list of at least 1"),
        ("[true, 1.5]", r"a\[0\]: found true, allowed is a text in quotes, or a number"),
        ("[1, { x = 2 }]", r"a\[1\]: allowed is a text in quotes, or a number"),
        ("{ x = 1 }", r'a: allowed is \{ file = "FILE" \}, with a value on each line of it'),
        ('{ file = "" }', r'a: allowed is \{ file = "FILE" \}, with a value on each line of it'),
        ("5", f"a: found 5, {KINDS}"),
        ("true", f"a: found true, {KINDS}"),
        ('"one"', f'a: found "one", {KINDS}'),
    ],
)
def test_values_that_are_refused_are_refused_once(values: str, refusal: str, tmp_path: Path) -> None:
    """With what is allowed for values of their kind, and not for those of all kinds."""
    text = TOP + COMPONENT.replace(', "{b}"', "") + f"[sweep.parameters]\na = {values}\n"
    with pytest.raises(ConfigurationError) as refused:
        load(text, tmp_path)
    assert re.fullmatch(rf"job:9: sweep\.parameters\.{refusal}", refused.value.message), refused.value.message
