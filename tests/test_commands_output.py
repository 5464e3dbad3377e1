# SPDX-License-Identifier: Apache-2.0
"""What commands print with ``--json`` and import on local clusters, and jobs that start after others."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from koala_adapter.api.statedirectory import JOURNAL_NAME
from koala_adapter.cli.jsonshapes import shape_schema
from tests.imported import imported_packages
from tests.json_shapes import deviations
from tests.local_koala import Koala, eventually

# What commands print with ``--json`` on live clusters is what their schemas say.

ROUND = 5.0
"""Seconds after which another job comes, if nothing was told of the one before."""


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
    """Give a site with a service on which a job and a sweep have run, and one job waits."""
    with closing(Koala(tmp_path_factory.mktemp("q"))) as one:
        one.serve()
        one.run("run", one.job("echo hello", name="first"))
        one.run("sweep", "--", "echo", "{a}", ":::", "a=1,2")
        one.run("submit", one.job("true", name="large", processors=4), one.job("true", name="larger", processors=4))
        one.submit_orphan("koala-00000000-1")
        yield one


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
def test_output_is_as_its_schema_says(queued: Koala, shape: str, command: str) -> None:
    found = queued.json(*command.split())
    assert found
    assert deviations(found, shape_schema(shape)) == []


def test_output_about_job_files_is_as_its_schema_says(queued: Koala) -> None:
    """Where a job would go, what would be submitted, and what was."""
    file = queued.job("true", name="asked")
    assert deviations(queued.json("plan", file, check=None), shape_schema("plan")) == []
    assert deviations(queued.json("script", file, "--cluster", "alpha"), shape_schema("scripts")) == []
    assert deviations(queued.json("submit", file), shape_schema("submitted")) == []
    assert deviations(queued.json("submit", file, file), shape_schema("submitted-files")) == []
    assert deviations(queued.json("run", file), shape_schema("job-report")) == []


def test_lines_of_a_shadow_are_as_their_schemas_say(queued: Koala) -> None:
    shadow = queued.start("schedule", "--cluster", "beta", "--shadow", "--json")
    stdout = shadow.stdout
    assert stdout is not None

    def told() -> bool:
        ids = queued.submit_foreign("other", 1, "beta")
        found = bool(select.select([stdout], [], [], ROUND)[0])
        queued.cancel_foreign(ids, "beta")
        return found

    eventually(told)
    shadow.terminate()
    *events, report = map(json.loads, stdout.readlines())
    assert events
    assert [wrong for event in events for wrong in deviations(event, shape_schema("queue-event"))] == []
    assert deviations(report, shape_schema("shadow-report")) == []


def test_output_of_a_simulation_is_as_its_schema_says(queued: Koala) -> None:
    found = queued.json("simulate", "model:lublin", "--jobs", "50", "--processors", "64")
    assert found
    assert deviations(found, shape_schema("simulation-list")) == []


# What commands import while a service answers them: nothing of the service, so that they answer at once.

ENDED = "ended"
ALONE = frozenset({"click", "koala_adapter"})


@pytest.fixture(scope="module")
def imports_koala(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
    """Give a site with a service; beside its state directory, the job was run when there was none: `ended`."""
    with closing(Koala(tmp_path_factory.mktemp("q"))) as one:
        one.run("run", one.job("echo hello"))
        (one.directory / ENDED).mkdir(mode=0o700)
        shutil.copy(one.state / JOURNAL_NAME, one.directory / ENDED)
        one.serve()
        yield one


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


# -- Jobs that start after others have ended, on local clusters, by the installed command.


def test_a_chain_whose_middle_fails(koala: Koala) -> None:
    """What comes after it is cancelled with the reason, and what waits for its failure runs."""
    files = []
    for number, script in enumerate(["echo one", "exit 3", "echo three"], start=1):
        (file := koala.directory / f"{number}.toml").write_text(
            f'name = "part{number}"\nwalltime = "5m"\n'
            f'[[components]]\ncommand = ["sh", "-c", "{script}"]\nprocessors = 1\n'
        )
        files.append(str(file))
    koala.run("submit", "--chain", *files)
    koala.run("run", "--after", "part2:failed", "-n", "1", "--", "echo", "cleaned up")
    jobs = {job["name"]: job["state"] for job in json.loads(koala.run("status", "--json").stdout)}
    assert jobs == {"part1": "completed", "part2": "failed", "part3": "cancelled", "echo": "completed"}
    assert "it was to start only after job 2 had completed, and its state is failed" in koala.run("explain", "3").stdout


def test_jobs_before_that_are_not_there_or_ended_otherwise(koala: Koala) -> None:
    """Nothing is submitted; what has ended as asked for is waited for no longer."""
    koala.run("run", "-n", "1", "--", "false", check=1)
    done = koala.run("submit", "--after", "nosuch", "-n", "1", "--", "true", check=None)
    assert done.returncode
    assert "it is to start after job 'nosuch', which there is not" in done.stderr
    koala.run("run", "--after", "1:any", "-n", "1", "--", "true")


def test_notices_by_the_command_line(koala: Koala) -> None:
    """A site that does not say how to tell refuses it; else what the site file names gets each event, once."""
    refused = koala.run("run", "--notify", "end", "-n", "1", "--", "true", check=None)
    assert refused.returncode
    assert "write [notify] there" in refused.stderr
    told = koala.directory / "told"
    with koala.site_file.open("a") as site:
        site.write(f'\n[notify]\ncommand = ["sh", "-c", "cat >> {told}; echo >> {told}"]\n')
    wanted = ("--notify", "start", "--notify", "end", "--retries", "1")
    koala.run("run", *wanted, "-n", "1", "--", "false", check=1)
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert sorted((event["event"], event["state"]) for event in events) == [("end", "failed"), ("start", "launching")]
