# SPDX-License-Identifier: Apache-2.0
"""A command line becomes a job file that says the same, whatever its words contain."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.config.commandjob import CommandJob, job_file_text
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Job, JobId, Launcher

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def job(wanted: CommandJob) -> Job:
    """Return the job that the text of one describes."""
    return load_job_text(
        job_file_text(wanted), directory=Path("/"), job_id=JobId("1"), user="u", submitted_at=0.0, source="command line"
    )


@given(command=st.lists(WORDS, min_size=1, max_size=4), directory=WORDS)
def test_words_arrive_as_they_were_written(command: list[str], directory: str) -> None:
    """Quotes, backslashes and control characters among them."""
    wanted = CommandJob(command=tuple(command), processors=3, working_directory="/" + directory, split=True)
    values = tomllib.loads(job_file_text(wanted))
    (component,) = values["components"]
    assert component == {"command": command, "processors": 3, "flexible": True}
    assert values["working_directory"] == "/" + directory


def test_everything_that_can_be_said() -> None:
    """The job has it, and is called by its program."""
    wanted = CommandJob(
        command=("./bin/simulate", "--steps", "5"),
        processors=7,
        mpi=True,
        walltime="2m",
        cluster="alpha",
        working_directory="/work",
    )
    found = job(wanted)
    assert (found.name, found.walltime, found.launcher, found.working_directory) == (
        "simulate",
        120,
        Launcher.MPI,
        "/work",
    )
    (component,) = found.components
    assert (component.command, component.minimum, component.cluster) == (wanted.command, 7, "alpha")


@pytest.mark.parametrize(
    ("walltime", "command", "complaint"), [("soon", ("ls",), "walltime"), ("1m", ("l\0s",), "command")]
)
def test_what_no_job_may_be(walltime: str, command: tuple[str, ...], complaint: str) -> None:
    """It is refused as in a job file, and the refusal names the key."""
    with pytest.raises(ConfigurationError, match=complaint):
        job(CommandJob(command=command, walltime=walltime, working_directory="/"))
