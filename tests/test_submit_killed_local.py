# SPDX-License-Identifier: Apache-2.0
"""``koala submit`` meets ``kill -9`` of the service: whenever that comes, there is one job, and its id is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.dyingservice import STEPS
from tests.local_koala import LIVENESS, Koala, eventually

IN_THE_JOURNAL = {"when it is in the journal", "before it is answered"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_is_submitted_while_the_service_is_killed_exists_once(koala: Koala, step: str) -> None:
    """The command starts the next service and sends the same submission again; the job runs once.

    Where it was in the journal, placeholders may have been submitted: the next service looks for them for long, which
    is not waited for.
    """
    ran = koala.directory / "ran"
    job = koala.job(f"echo $KOALA_RANK >> {ran}")
    service = subprocess.Popen(
        [sys.executable, "-m", "tests.dyingservice", step, *koala.options, "serve"],
        env=koala.environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert koala.client.wait_until_running(LIVENESS)
        told = json.loads(koala.run("submit", job, "--json").stdout)
        assert service.wait(LIVENESS) == -signal.SIGKILL
    finally:
        service.kill()
        service.wait()
    id_ = told["id"] if "id" in told else told["jobs"][0]["id"]
    assert [one.id for one in koala.client.jobs()] == [id_]
    if step in IN_THE_JOURNAL:
        koala.run("cancel", "--no-wait", id_)
    else:
        eventually(lambda: koala.report(id_).over)
        assert koala.report(id_).state == "completed"
        assert sorted(ran.read_text().split()) == ["0", "1"]
    koala.run("serve", "--stop")
    assert [one["id"] for one in koala.json("status")] == [id_]
