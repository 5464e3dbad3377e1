# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` and the WIKI server on a real PBS server, whose hook (conf/pbs_queuejob.py) holds every job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koala_adapter.testing import new_context
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.records import parse_nodes
from koala_adapter.wiki.codec.words import Dialect
from koala_pbs import PLUGIN, PbsSettings
from tests.pbs_scheduling import SITE, scheduling
from tests.real.systems.pbs import OTHER, PbsServer
from tests.real.systems.processes import wait_until
from tests.wiki_server import KEY, SECONDS, Scheduler, WikiServer

pytestmark = pytest.mark.never_required

PIECE = Path(__file__).parents[2] / "conf" / "pbs_queuejob.py"
OPTIONS = ("-f", "-C", "", "-S", "/bin/sh", "-o", "/dev/null", "-j", "oe", "-l", "walltime=60")


@pytest.fixture
def holding(server: PbsServer) -> Iterator[PbsServer]:
    """Give it with the site's piece at work."""
    server.run("qmgr", "-c", "delete hook koala_test", check=False)
    server.run("qmgr", "-c", "create hook koala_test event=queuejob")
    server.run("qmgr", "-c", f"import hook koala_test application/x-python default {PIECE}")
    yield server
    server.run("qmgr", "-c", "delete hook koala_test")


@pytest.fixture
def site(server: PbsServer, tmp_path: Path) -> Path:
    """Give a site file with that server, at which koala is an operator."""
    file = tmp_path / "site.toml"
    file.write_text(SITE.format(requests=400, conf=server.conf, bin_directory=server.bin_directory))
    return file


def submit(server: PbsServer, *options: str, seconds: float = 0.5) -> str:
    """Submit a job as another user does."""
    return server.run("qsub", *OPTIONS, *options, stdin=f"#!/bin/sh\ncd /; exec sleep {seconds}\n", user=OTHER)


def test_a_queue_runs_to_its_end(holding: PbsServer, site: Path) -> None:
    """In the order of submission, elements of an array singly; a user's own hold is left alone."""
    held = submit(holding, "-h")
    first = submit(holding)
    array = submit(holding, "-J", "1-2")
    last = submit(holding)
    elements = {array.replace("[]", f"[{index}]") for index in (1, 2)}
    with scheduling(site, "--policy", "fcfs") as lines:
        lines.wait("ended", {first, last, *elements})
        assert held in lines.told("left out")
    starts = lines.told("start")
    assert (starts[0], set(starts[1:3]), starts[3:]) == (first, elements, [last])


def test_a_job_that_is_queued_again_is_started_again(holding: PbsServer, site: Path) -> None:
    """It comes back in the hold that it never left."""
    job = submit(holding, seconds=50)
    with scheduling(site) as lines:
        lines.wait("started", {job})
        holding.run("qrerun", job)
        lines.wait("requeued", {job})
        wait_until(lambda: lines.told("started").count(job) > 1, seconds=SECONDS, what="it runs again")


def test_a_shadow_starts_nothing(server: PbsServer, site: Path) -> None:
    """It says when it would have; PBS's own scheduler starts it later."""
    server.run("qmgr", "-c", "set server scheduling = False")
    try:
        job = submit(server)
        with scheduling(site, "--shadow") as lines:
            lines.wait("start", {job})
            assert "job_state = Q" in server.run("qstat", "-f", job)
            server.run("qmgr", "-c", "set server scheduling = True")
            lines.wait("started", {job})
    finally:
        server.run("qmgr", "-c", "set server scheduling = True")


def test_an_outside_scheduler(holding: PbsServer, tmp_path: Path) -> None:
    """It starts, suspends, resumes, queues again and cancels through the WIKI server."""
    settings = PbsSettings(conf=holding.conf, bin_directory=holding.bin_directory, operator=True)
    context = new_context(tmp_path / "context")
    serving = WikiServer(
        lambda: PLUGIN.factory(context, settings), dialect=Dialect.WIKI2, key=read_key(KEY), directory=tmp_path / "s"
    )
    job = submit(holding, seconds=50)
    serving.start()
    try:
        scheduler = Scheduler(serving.port)
        node = parse_nodes(scheduler.done("GETNODES ARG=0:ALL"))[0].name
        scheduler.wait(job, "Idle")
        scheduler.done(f"STARTJOB ARG={job} TASKLIST={node}")
        scheduler.wait(job, "Running")
        scheduler.done(f"SUSPENDJOB ARG={job}")
        scheduler.wait(job, "Suspended")
        scheduler.done(f"RESUMEJOB ARG={job}")
        scheduler.wait(job, "Running")
        scheduler.done(f"REQUEUEJOB ARG={job}")
        scheduler.wait(job, "Idle")
        scheduler.done(f"CANCELJOB ARG={job} TYPE=ADMIN")
        wait_until(lambda: scheduler.jobs()[job].state in {"Removed", "Completed"}, seconds=SECONDS, what="it has gone")
    finally:
        serving.stop()
