# SPDX-License-Identifier: Apache-2.0
"""What commands print with ``--json`` on live clusters is what their schemas say."""

from __future__ import annotations

import json
import select
from typing import TYPE_CHECKING

import pytest

from koala_adapter.cli.jsonshapes import shape_schema
from tests.json_shapes import deviations
from tests.local_koala import Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

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
