# SPDX-License-Identifier: Apache-2.0
"""The job of a Dask cluster's workers: what it asks of koala, and what is refused before anything is begun."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.config.jobfile import job_of_values
from koala_adapter.dask import leave
from koala_adapter.dask.cluster import CREDENTIALS, LEAVE, WorkerSettings, job_values
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Job, JobKind, Retirement, RunnerName

SETTINGS = WorkerSettings(minimum=2, maximum=8, job_name="dask", walltime="1h", python="/usr/bin/python3")
SCHEDULER = "tls://login:4711"


def made(settings: WorkerSettings, *, size: int | None = None, tls: bool = False) -> Job:
    """Return the job as koala takes it."""
    names = [LEAVE, *(CREDENTIALS.values() if tls else ())]
    files = dict.fromkeys(names, leave.__file__)
    values = job_values(settings, scheduler=SCHEDULER, size=size, files=files)
    return job_of_values(values, source="KoalaCluster", user="me", directory=Path("/"))


def test_the_job_is_one_of_workers_alone() -> None:
    """It may use every cluster, starts with the fewest workers unless told otherwise, and has no head."""
    job = made(SETTINGS, size=5)
    (worker,) = job.components
    assert (job.kind, job.runner, job.walltime) == (JobKind.MALLEABLE, RunnerName.WORKERS, 3600)
    assert (worker.minimum, worker.initial, worker.maximum, worker.flexible) == (2, 5, 8, True)
    assert not job.is_head(worker.name)
    assert made(SETTINGS).components[0].initial == 2
    assert worker.retirement == Retirement(grace=30)
    assert dict(worker.environment)["DASK_LEAVE_SECONDS"] == "15"


def test_what_the_user_says_of_the_job_is_in_it() -> None:
    """Keys of a job file go into the job, options of Dask's into the command; the environment may replace ours."""
    settings = replace(
        SETTINGS,
        cluster="alpha",
        placement="close-to-files",
        priority=7,
        environment={"DASK_LEAVE_SECONDS": "3", "PYTHONPATH": "/lib/mine"},
        worker_options=("--resources", "GPU=1"),
        death_timeout=9,
    )
    job = made(settings)
    (worker,) = job.components
    assert (worker.cluster, worker.flexible, job.placement, job.priority) == ("alpha", False, "close-to-files", 7)
    assert dict(worker.environment).items() >= settings.environment.items()
    assert worker.command[-2:] == ("--resources", "GPU=1")
    assert worker.command[worker.command.index("--death-timeout") + 1] == "9"


@pytest.mark.parametrize("tls", [False, True])
def test_keys_travel_in_files_alone(*, tls: bool) -> None:
    """A command line, which everybody sees, has the names of the files of a key, and only where there is one."""
    (worker,) = made(SETTINGS, tls=tls).components
    options = [word for word in worker.command if word.startswith("--tls")]
    assert options == (["--tls-ca-file", "--tls-cert", "--tls-key"] if tls else [])
    assert {file.target for file in worker.input_files} == {LEAVE, *(CREDENTIALS.values() if tls else ())}


@given(
    words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), max_size=4)
)
def test_the_shell_reads_nothing_of_what_the_user_says(words: list[str]) -> None:
    """Options arrive at the worker as they were given, and after them the name that only the worker knows."""
    settings = replace(SETTINGS, python="/usr/bin/printf", worker_options=tuple(words))
    command = made(settings).components[0].command
    shown = [*command[:4], "/usr/bin/printf", "%s\\0", *command[5:]]
    environment = {"KOALA_CLUSTER": "alpha", "KOALA_JOB_ID": "7", "KOALA_RANK": "3", "PATH": os.defpath}
    done = subprocess.run(shown, env=environment, stdout=subprocess.PIPE, check=True)
    arrived = done.stdout.decode().split("\0")[:-1]
    assert arrived[-2:] == ["--name", "alpha-7.3"]
    assert arrived[:-2] == list(command[5:])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (replace(SETTINGS, walltime="soon"), 'walltime: found "soon"'),
        (replace(SETTINGS, minimum=0), "minimum"),
        (replace(SETTINGS, environment={"A=": "b"}), '"A="'),
        (replace(SETTINGS, input_files=("/nowhere/to/be/found.py",)), "existing file"),
        (replace(SETTINGS, retire_grace=-1), "retire_grace"),
        (replace(SETTINGS, cluster="no cluster"), "cluster"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(settings: WorkerSettings, said: str) -> None:
    """The refusal has the words of the manual of job files."""
    with pytest.raises(ConfigurationError, match=r"^KoalaCluster: ") as refused:
        made(settings)
    assert said in refused.value.message


def test_the_example_has_the_same_leave() -> None:
    """What is shown in examples/malleable is what KoalaCluster sends along."""
    example = Path(__file__).parents[3] / "examples" / "malleable" / LEAVE
    assert example.read_bytes() == Path(leave.__file__).read_bytes()
