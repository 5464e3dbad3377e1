# SPDX-License-Identifier: Apache-2.0
"""Jobs as programs describe them: the same keys as in a job file, and the same refusals."""

from __future__ import annotations

import doctest
from dataclasses import fields
from pathlib import Path

import pytest

import koala_adapter as koala
from koala_adapter.config.jobfile import job_of_values
from koala_adapter.config.jobtables import ComponentTable, JobTable
from koala_adapter.model import Job as CheckedJob
from koala_adapter.model import JobKind, RunnerName
from koala_adapter.python import description


def checked(job: koala.Job, directory: Path) -> CheckedJob:
    """Return a job as a service takes it; no site is asked."""
    return job_of_values(job.values(), source="koala.Job", user="me", directory=directory)


def test_a_component_has_the_keys_of_a_job_file() -> None:
    """Neither more nor fewer: what is new in job files is new here."""
    assert {one.name for one in fields(koala.Component)} == set(ComponentTable.model_fields)


def test_a_job_has_the_keys_of_a_job_file() -> None:
    """And those of its only component where it has no ``components``."""
    assert {one.name for one in fields(koala.Job)} == {*JobTable.model_fields, *description.ALONE}
    assert set(ComponentTable.model_fields) >= description.ALONE


def test_a_program_alone_is_a_job(tmp_path: Path) -> None:
    """On one processor, for an hour, called by its program."""
    job = checked(koala.Job([Path("/bin/echo"), "hello"]), tmp_path)
    assert (job.name, job.walltime, job.components[0].minimum) == ("echo", 3600, 1)
    assert job.components[0].command == ("/bin/echo", "hello")


def test_all_that_is_said_arrives(tmp_path: Path) -> None:
    """Texts, numbers, paths and mappings, of the job and of its components."""
    (tmp_path / "a").touch()
    job = checked(
        koala.Job(
            components=(
                koala.Component(["head"], environment={"A": "1"}),
                koala.Component(
                    ("worker", Path("x")),
                    name="crew",
                    minimum=1,
                    maximum=8,
                    input_files=[tmp_path / "a", {"source": tmp_path / "a", "target": "b"}],
                    output_files=["*.txt"],
                    retire_grace="1m",
                    flexible=True,
                ),
            ),
            kind="malleable",
            runner="workers",
            walltime=90,
            priority=3,
            working_directory=tmp_path,
        ),
        tmp_path,
    )
    head, crew = job.components
    assert (job.kind, job.runner, job.walltime, job.priority) == (JobKind.MALLEABLE, RunnerName.WORKERS, 90, 3)
    assert (job.name, job.working_directory) == ("head", str(tmp_path))
    assert (head.minimum, head.environment) == (1, (("A", "1"),))
    assert (crew.name, crew.command, crew.maximum, crew.retirement.grace) == ("crew", ("worker", "x"), 8, 60)
    assert [one.target for one in crew.input_files] == ["a", "b"]
    assert (crew.output_files, crew.flexible) == (("*.txt",), True)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (koala.Job(), "^koala.Job: it has nothing to run"),
        (koala.Job("sleep 100"), r'command: found "sleep 100", allowed is a list of texts, .*\["sleep", "100"\]'),
        (koala.Job(["sleep"], processors=0), "processors: found 0, allowed is a whole number from 1"),
        (koala.Job(["sleep"], walltime="90"), 'walltime: found "90"'),
        (koala.Job(["sleep"], kind="soft"), 'kind: found "soft", allowed is '),
        (koala.Job(["a"], components=[koala.Component(["b"])]), "given together with components: command"),
        (koala.Job(processors=3, components=[koala.Component(["b"])]), "given together with components: processors"),
        (koala.Job(components=[koala.Component(["b"], minimum=2)]), "the size is missing"),
        (koala.Job(["sleep"], environment={"A": 3}), "environment"),  # type: ignore[dict-item]
        (koala.Job(["sleep", 3]), r"command\[1\]: found 3"),  # type: ignore[list-item]
        (koala.Job(["sleep"], input_files=["nowhere"]), "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(job: koala.Job, said: str, tmp_path: Path) -> None:
    """In the words of a job file, as a ConfigurationError of koala's tree."""
    with pytest.raises(koala.ConfigurationError, match=said) as raised:
        checked(job, tmp_path)
    assert isinstance(raised.value, koala.KoalaError)


def test_the_examples_are_true() -> None:
    """What the docstrings show is what comes out."""
    assert doctest.testmod(description).failed == 0
    assert doctest.testmod(description).attempted > 1
