# SPDX-License-Identifier: Apache-2.0
"""A PBS server (a fake one) under an outside scheduler that speaks WIKI, with koala as an operator between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.testing import new_context
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.records import parse_nodes
from koala_adapter.wiki.codec.words import Dialect
from koala_pbs import PLUGIN, PbsSettings
from tests.fakes.pbs import FakePbs
from tests.real.systems.processes import wait_until
from tests.wiki_scheduler import KEY, SECONDS, Scheduler
from tests.wiki_server import WikiServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS = ("-C", "", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakePbs]:
    """Give a server of two vnodes of four processors, whose hook holds every job and which starts none itself."""
    fake = FakePbs(tmp_path / "fake", cpus=4, site_hook=True)
    fake.set_scheduling(on=False)
    yield fake
    fake.close()


@pytest.fixture
def scheduler(fake: FakePbs, tmp_path: Path) -> Iterator[Scheduler]:
    """Serve it, and give its scheduler."""
    settings = PbsSettings(conf=fake.conf, bin_directory=fake.bin_directory, operator=True)
    context = new_context(tmp_path / "context")
    server = WikiServer(
        lambda: PLUGIN.factory(context, settings), dialect=Dialect.WIKI2, key=read_key(KEY), directory=tmp_path / "s"
    )
    server.start()
    yield Scheduler(server.port)
    server.stop()


def submit(fake: FakePbs, select: str, *options: str) -> str:
    """Submit a job as another user does; return its id."""
    return fake.run("qsub", *OPTIONS, "-l", f"select={select}", *options, stdin="#!/bin/sh\nexec sleep 600\n")


def test_jobs_start_where_they_are_told(fake: FakePbs, scheduler: Scheduler) -> None:
    """Also elements of an array, one by one; what cannot be is refused, and the job waits as before."""
    wide = submit(fake, "2:ncpus=2", "-l", "place=scatter")
    array = submit(fake, "1:ncpus=1", "-J", "1-2")
    first, second = (array.replace("[]", f"[{index}]") for index in (1, 2))
    assert {node.name for node in parse_nodes(scheduler.done("GETNODES ARG=0:ALL"))} == {"n1", "n2"}
    assert {job: record.state for job, record in scheduler.jobs().items()} == dict.fromkeys(
        (wide, first, second), "Idle"
    )
    assert scheduler.ask(f"STARTJOB ARG={wide} TASKLIST=n1:n1:n2:n2").status < 0
    assert scheduler.ask(f"STARTJOB ARG={first} TASKLIST=n9").status < 0
    # A task is a chunk, here of two processors.
    scheduler.done(f"STARTJOB ARG={wide} TASKLIST=n1:n2")
    scheduler.done(f"STARTJOB ARG={second} TASKLIST=n2")
    assert scheduler.wait(wide, "Running").task_list == ("n1", "n2")
    assert scheduler.wait(second, "Running").task_list == ("n2",)
    assert scheduler.jobs()[first].state == "Idle"


def test_suspended_requeued_cancelled(fake: FakePbs, scheduler: Scheduler) -> None:
    """A job that is queued again is in hold again, and starts when it is told to."""
    job = submit(fake, "1:ncpus=1")
    scheduler.jobs()
    scheduler.done(f"STARTJOB ARG={job} TASKLIST=n1")
    scheduler.wait(job, "Running")
    scheduler.done(f"SUSPENDJOB ARG={job}")
    scheduler.wait(job, "Suspended")
    # A suspended job is resumed by PBS's own scheduler.
    fake.set_scheduling(on=True)
    scheduler.done(f"RESUMEJOB ARG={job}")
    scheduler.wait(job, "Running")
    scheduler.done(f"REQUEUEJOB ARG={job}")
    scheduler.wait(job, "Idle")
    scheduler.done(f"STARTJOB ARG={job} TASKLIST=n2")
    scheduler.wait(job, "Running")
    scheduler.done(f"CANCELJOB ARG={job} TYPE=ADMIN")
    wait_until(lambda: scheduler.jobs()[job].state in {"Removed", "Completed"}, seconds=SECONDS, what="it has gone")
