# SPDX-License-Identifier: Apache-2.0
"""A WIKI scheduler drives local clusters and PBS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.host.sockets import free_port
from koala_adapter.testing import new_context
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.records import parse_nodes
from koala_adapter.wiki.codec.words import Dialect
from koala_pbs import PLUGIN, PbsSettings
from tests.fakes.pbs import FakePbs
from tests.local_koala import Koala, eventually
from tests.real.systems.processes import wait_until
from tests.wiki_server import KEY, SECONDS, Scheduler, WikiServer

# -- ``koala wiki serve``, in real processes, and ``koala wiki ask`` on local clusters: the whole multicluster as one.


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site of two local clusters and a key, and end all of it afterwards."""
    with closing(Koala(tmp_path)) as one:
        (tmp_path / "key").write_text("77\n")
        (tmp_path / "key").chmod(0o600)
        yield one


PATIENT = ("--reply-within", "120", "--start-reply-within", "120")


class WikiScheduler:
    """Asks a server as a scheduler would."""

    def __init__(self, koala: Koala, *which: str) -> None:
        """Start the server, and wait until it answers."""
        self._koala = koala
        self._options = ("--port", str(free_port()), "--key-file", str(koala.directory / "key"))
        koala.start("wiki", "serve", *which, *self._options, "--dialect", "wiki2", "--cache", "0.2", *PATIENT)
        eventually(lambda: self.ask("GETNODES", "0:ALL", check=None)["status"] == 0)
        asked = koala.run("wiki", "ask", *self._options, "--json", "GETNODES", "0:ALL")
        assert json.loads(asked.stdout)["status"] == 0, "so it is in a process of its own"

    def ask(self, *message: str, check: int | None = 0) -> Any:  # noqa: ANN401 - JSON
        """Return the reply to a request."""
        done = self._koala.inside("wiki", "ask", *self._options, "--timeout", "120", "--json", *message, check=check)
        return json.loads(done.stdout) if done.stdout else {"status": None, "text": done.stderr}

    def records(self, *message: str) -> dict[str, str]:
        """Return the records of a list by their ids."""
        return dict(text.partition(":")[::2] for text in self.ask(*message)["records"] if text)


def test_all_clusters_are_one(koala: Koala) -> None:
    """Nodes carry their cluster as partition, jobs are koala's own, placed by koala, and can be cancelled."""
    koala.serve()
    first = koala.inside("submit", koala.job("sleep 600", processors=2)).stdout.split()[1]
    eventually(lambda: koala.state_of(first) == "running")
    second = koala.inside("submit", koala.job("sleep 600", processors=4)).stdout.split()[1]
    scheduler = WikiScheduler(koala, "--all")
    nodes = scheduler.records("GETNODES", "0:ALL")
    assert {name: text.partition("PARTITION=")[2].partition(";")[0] for name, text in nodes.items()} == {
        "alpha.n1": "alpha",
        "beta.n1": "beta",
    }
    jobs = scheduler.records("GETJOBS", "0:ALL")
    assert "STATE=Running;TASKLIST=alpha.n1:alpha.n1:beta.n1:beta.n1;" in jobs[first]
    assert jobs[second].startswith("STATE=Hold;")
    refused = scheduler.ask("STARTJOB", second, f"TASKLIST={':'.join(['alpha.n1'] * 4 + ['beta.n1'] * 4)}", check=None)
    assert (refused["status"], "itself starts it" in refused["text"]) == (-911, True)
    assert scheduler.ask("CANCELJOB", first, "TYPE=ADMIN")["text"] == f"job {first} cancelled successfully"
    eventually(lambda: scheduler.records("GETJOBS", f"0:{first}")[first].startswith("STATE=Removed;"))
    assert koala.state_of(first) == "cancelled"


def test_a_local_cluster(koala: Koala) -> None:
    job = koala.submit_held("held")
    scheduler = WikiScheduler(koala, "--cluster", "alpha")
    assert scheduler.records("GETJOBS", "0:ALL")[job].startswith("STATE=Idle;")
    assert "it is offered to the scheduler" in koala.inside("explain", f"alpha:{job}").stdout
    second = koala.run("schedule", "--cluster", "alpha", "--once", check=None)
    assert (second.returncode != 0, "koala wiki serve --cluster alpha" in second.stderr) == (True, True), second
    scheduler.ask("STARTJOB", job, "TASKLIST=n1")
    eventually(lambda: scheduler.records("GETJOBS", "0:ALL")[job].startswith("STATE=Running;TASKLIST=n1;"))
    scheduler.ask("SUSPENDJOB", job)
    assert scheduler.records("GETJOBS", "0:ALL")[job].startswith("STATE=Suspended;")
    scheduler.ask("RESUMEJOB", job)
    scheduler.ask("MODIFYJOB", job, "TIMELIMIT=7")
    assert "WCLIMIT=420;" in scheduler.records("GETJOBS", "0:ALL")[job]
    scheduler.ask("SIGNALJOB", job, "VALUE=TERM")
    eventually(lambda: scheduler.records("GETJOBS", "0:ALL")[job].startswith("STATE=Removed;"))


def test_serve_says_what_is_wrong(koala: Koala) -> None:
    key = koala.directory / "key"
    for options, words in (
        (("--key-file", str(key)), "--cluster NAME or --all"),
        (("--cluster", "gamma", "--key-file", str(key)), "alpha, beta"),
        (("--cluster", "alpha", "--key-file", "/nowhere/key"), "cannot read the key file"),
        (("--cluster", "alpha", "--peer", "maui", "--key-file", str(key)), "no address or network"),
    ):
        done = koala.inside("wiki", "serve", *options, check=245)
        assert words in done.stderr
    key.chmod(0o644)
    assert "mode 0644" in koala.run("wiki", "serve", "--all", "--key-file", str(key), check=245).stderr


# -- A PBS server (a fake one) under an outside scheduler that speaks WIKI, with koala as an operator between them.


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
