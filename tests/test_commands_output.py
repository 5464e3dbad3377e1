# SPDX-License-Identifier: Apache-2.0
"""What commands print with ``--json`` on live clusters, and what they import."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api.statedirectory import JOURNAL_NAME
from koala_adapter.cli.jsonshapes import shape_schema
from tests.imported import imported_packages
from tests.json_shapes import deviations
from tests.local_koala import Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


# What commands print with ``--json`` on live clusters is what their schemas say.

ROUND = 5.0
"""Seconds after which another job comes, if nothing was told of the one before."""


@pytest.fixture(scope="module")
def koala(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
    """Give a site with a service on which a job and a sweep have run, and one job waits."""
    one = Koala(tmp_path_factory.mktemp("q"))
    try:
        one.serve()
        one.run("run", one.job("echo hello", name="first"))
        one.run("sweep", "--", "echo", "{a}", ":::", "a=1,2")
        one.run("submit", one.job("true", name="large", processors=4), one.job("true", name="larger", processors=4))
        one.submit_orphan("koala-00000000-1")
        yield one
    finally:
        one.close()


@pytest.mark.parametrize(
    ("shape", "command"),
    [
        ("job-report", "status 1"),
        ("job-report", "status 2"),
        ("job-report", "cancel 3"),
        ("job-list", "status"),
        ("job-list", "history --name f*"),
        ("cancelled-jobs", "cancel 1 4-5"),
        ("explanation", "explain 1"),
        ("cluster-list", "clusters"),
        ("checks", "check --no-submit"),
        ("cleaned", "clean --older 30d --dry-run"),
        ("reaped", "reap --all --dry-run"),
        ("given-back", "schedule --give-back alpha"),
        ("experiment-list", "experiment list"),
    ],
)
def test_output_is_as_its_schema_says(koala: Koala, shape: str, command: str) -> None:
    found = koala.json(*command.split())
    assert found
    assert deviations(found, shape_schema(shape)) == []


def test_output_about_job_files_is_as_its_schema_says(koala: Koala) -> None:
    """Where a job would go, what would be submitted, and what was."""
    file = koala.job("true", name="asked")
    assert deviations(koala.json("plan", file, check=None), shape_schema("plan")) == []
    assert deviations(koala.json("script", file, "--cluster", "alpha"), shape_schema("scripts")) == []
    assert deviations(koala.json("submit", file), shape_schema("submitted")) == []
    assert deviations(koala.json("submit", file, file), shape_schema("submitted-files")) == []
    assert deviations(koala.json("run", file), shape_schema("job-report")) == []


def test_lines_of_a_shadow_are_as_their_schemas_say(koala: Koala) -> None:
    shadow = koala.start("schedule", "--cluster", "beta", "--shadow", "--json")
    stdout = shadow.stdout
    assert stdout is not None

    def told() -> bool:
        ids = koala.submit_foreign("other", 1, "beta")
        found = bool(select.select([stdout], [], [], ROUND)[0])
        koala.cancel_foreign(ids, "beta")
        return found

    eventually(told)
    shadow.terminate()
    *events, report = map(json.loads, stdout.readlines())
    assert events
    assert [wrong for event in events for wrong in deviations(event, shape_schema("queue-event"))] == []
    assert deviations(report, shape_schema("shadow-report")) == []


def test_output_of_a_simulation_is_as_its_schema_says(koala: Koala) -> None:
    found = koala.json("simulate", "model:lublin", "--jobs", "50", "--processors", "64")
    assert found
    assert deviations(found, shape_schema("simulation-list")) == []


# What commands import while a service answers them: nothing of the service, so that they answer at once.

ENDED = "ended"
ALONE = frozenset({"click", "koala_adapter"})


@pytest.fixture(scope="module")
def imports_koala(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
    """Give a site with a service; beside its state directory, the job was run when there was none: `ended`."""
    one = Koala(tmp_path_factory.mktemp("q"))
    try:
        one.run("run", one.job("echo hello"))
        (one.directory / ENDED).mkdir(mode=0o700)
        shutil.copy(one.state / JOURNAL_NAME, one.directory / ENDED)
        one.serve()
        yield one
    finally:
        one.close()


EXPECTED = {
    "status": ALONE | {"rich"},
    "status --json": ALONE,
    "status 1": ALONE | {"rich"},
    "status 1 --json": ALONE,
    "explain 1": ALONE | {"rich"},
    "explain 1 --json": ALONE,
    "logs 1": ALONE,
    "cancel 1 --json": ALONE,
    "clusters": ALONE | {"rich"},
    "clusters --json": ALONE,
}


@pytest.mark.parametrize("command", EXPECTED)
def test_asking_a_service_imports_little(imports_koala: Koala, command: str) -> None:
    found = imported_packages(imports_koala.command(*command.split())[1:], imports_koala.environment)
    assert found == EXPECTED[command]


@pytest.mark.parametrize("command", ["status", "explain 1 --json", "logs 1"])
def test_asking_of_jobs_that_are_over_imports_little_without_a_service(imports_koala: Koala, command: str) -> None:
    asked = imports_koala.command("--state", str(imports_koala.directory / ENDED), *command.split())[1:]
    assert imported_packages(asked, imports_koala.environment) == ALONE | {"rich"}


@pytest.mark.parametrize("command", ["submit", "run", "plan"])
def test_handing_a_job_to_a_service_imports_nothing_of_a_service(imports_koala: Koala, command: str) -> None:
    """The service checks it, with the types of job and site files and the plugins, which take long to import."""
    found = imported_packages(imports_koala.command(command, imports_koala.job("true"))[1:], imports_koala.environment)
    assert command == "plan" or found == ALONE | {"rich"}
    assert found.isdisjoint({"cryptography", "koala_local", "koala_slurm", "koala_sge", "structlog"})


def test_a_service_does_without_what_few_jobs_need() -> None:
    """`koala run` on Slurm is a service: what drives DRMAA libraries and what applications negotiate by come later."""
    few = {
        "koala_adapter.lrm.drmaa.protocol",
        "koala_adapter.lrm.drmaa.transport",
        "lxml",
        "koala_adapter.negotiation",
        "koala_adapter.runners.adaptive",
        "koala_adapter.runners.mpi",
        "koala_adapter.service.leftovers",
        "http.client",
    }
    program = "import sys, koala_slurm.lrm, koala_adapter.cli.innerservice; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert few.isdisjoint(done.stdout.split())
