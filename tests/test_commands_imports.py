# SPDX-License-Identifier: Apache-2.0
"""What commands import while a service answers them: nothing of the service, so that they answer at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api.statedirectory import JOURNAL_NAME
from tests.imported import imported_packages
from tests.local_koala import Koala

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ENDED = "ended"
ALONE = frozenset({"click", "koala_adapter"})


@pytest.fixture(scope="module")
def koala(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
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
def test_asking_a_service_imports_little(koala: Koala, command: str) -> None:
    found = imported_packages(koala.command(*command.split())[1:], koala.environment)
    assert found == EXPECTED[command]


@pytest.mark.parametrize("command", ["status", "explain 1 --json", "logs 1"])
def test_asking_of_jobs_that_are_over_imports_little_without_a_service(koala: Koala, command: str) -> None:
    asked = koala.command("--state", str(koala.directory / ENDED), *command.split())[1:]
    assert imported_packages(asked, koala.environment) == ALONE | {"rich"}


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_handing_a_job_to_a_service_imports_nothing_of_a_service(koala: Koala, command: str) -> None:
    found = imported_packages(koala.command(command, koala.job("true"))[1:], koala.environment)
    assert {"click", "koala_local", "pydantic"} <= found
    assert found.isdisjoint({"cryptography", "koala_slurm", "koala_sge", "structlog"})


def test_a_service_does_without_what_few_jobs_need() -> None:
    """`koala run` on Slurm is a service: what drives DRMAA libraries and what applications negotiate by come later."""
    few = {
        "koala_adapter.lrm.drmaa.protocol",
        "koala_adapter.lrm.drmaa.transport",
        "lxml",
        "koala_adapter.negotiation",
        "http.client",
    }
    program = "import sys, koala_slurm.lrm, koala_adapter.cli.innerservice; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert few.isdisjoint(done.stdout.split())
