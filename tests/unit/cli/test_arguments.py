# SPDX-License-Identifier: Apache-2.0
"""A command line describes a job as a job file does, whatever its words contain."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.cli.arguments import SOURCE, JobArguments, sweep_of_words
from koala_adapter.config.jobfile import job_of_values
from koala_adapter.config.tomlfile import toml_of
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Launcher

if TYPE_CHECKING:
    from koala_adapter.model import Job
    from koala_adapter.python.description import Job as Description

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def arguments(words: list[str], **options: object) -> JobArguments:
    """Return arguments of ``koala run``."""
    given = {"processors": None, "mpi": False, "walltime": None, "cluster": None, "split": False, "save": None}
    return JobArguments(words=tuple(words), **given | options)  # type: ignore[arg-type]


def job_of(described: Description) -> Job:
    """Return the job of a description."""
    return job_of_values(described.values(), source=SOURCE, user="u", directory=Path("/"))


@given(words=st.lists(WORDS, min_size=1, max_size=4), directory=WORDS)
def test_words_arrive_as_they_were_written(words: list[str], directory: str) -> None:
    """Quotes, backslashes and control characters among them; the job file that is saved has them, too."""
    values = arguments(words, processors=3, split=True)._description().values() | {"working_directory": directory}
    assert tomllib.loads(toml_of(values)) == values
    assert values["components"] == [{"command": words, "processors": 3, "flexible": True}]


def test_everything_that_can_be_said() -> None:
    """The job has it, and is called by its program."""
    words = ["./bin/simulate", "--steps", "5"]
    found = job_of(arguments(words, processors=7, mpi=True, walltime="2m", cluster="alpha")._description())
    assert (found.name, found.walltime, found.launcher) == ("simulate", 120, Launcher.MPI)
    assert found.working_directory == str(Path.cwd())
    (component,) = found.components
    assert (component.command, component.minimum, component.cluster) == (tuple(words), 7, "alpha")


@pytest.mark.parametrize(
    ("options", "word", "key"), [({"walltime": "soon"}, "ls", "walltime"), ({}, "l\0s", "command")]
)
def test_what_no_job_may_be(options: dict[str, object], word: str, key: str) -> None:
    """It is refused as in a job file; the refusal names the key, and no line of a file that does not exist."""
    with pytest.raises(ConfigurationError, match=f"^{SOURCE}: [^:]*{key}"):
        job_of(arguments([word, "x"], **options)._description())


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def test_a_sweep(tmp_path: Path) -> None:
    """A range, a list and a file; launchers are as many as tasks at most."""
    (tmp_path / "names").write_text("n\n")
    words = ["prog", "{a}-{b}", "{c}", ":::", "a=1..2", "b=x,1..2", f"c=@{tmp_path}/names"]
    described = sweep_of_words(words, maximum=5, grace=3)
    assert tomllib.loads(toml_of(described.values())) == described.values()
    job = job_of(described)
    assert job.sweep is not None
    assert [axis.count for axis in job.sweep.axes] == [2, 2, 1]
    assert (job.components[0].maximum, job.components[0].retirement.grace) == (4, 3)
    assert job.components[0].flexible


def test_a_sweep_on_one_cluster_is_not_divided() -> None:
    """It has the options that were given."""
    words = ["p", "{a}{b}", ":::", "a=1..4", "b=1..4"]
    job = job_of(sweep_of_words(words, together=True, repeats=0, cluster="alpha", walltime="1m", maximum=3))
    assert job.sweep is not None
    assert (job.sweep.together, job.sweep.repeats, job.walltime) == (True, 0, 60)
    assert (job.components[0].maximum, job.components[0].cluster, job.components[0].flexible) == (3, "alpha", False)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["prog", "{a}"], "nothing says what the parameters are"),
        ([":::", "a=1"], "no program before"),
        (["p", "{a}", ":::", "1..3"], "found '1..3' behind"),
        (["p", "{a}", ":::", "a=1", "a=2"], "there twice"),
        (["p", "{a}", ":::", "a="], "parameter a has no values"),
    ],
)
def test_words_that_are_no_sweep(words: list[str], refusal: str) -> None:
    """They are refused with an example of some that are."""
    with pytest.raises(ConfigurationError, match=refusal):
        sweep_of_words(words)


def test_values_that_are_refused() -> None:
    """As in a job file."""
    with pytest.raises(ConfigurationError, match=rf"^{SOURCE}: sweep\.parameters\.a: found "):
        job_of(sweep_of_words(["p", "{a}", ":::", "a=1..2..-1"]))
