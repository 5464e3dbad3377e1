# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` in the place of a fake PBS's scheduler, and what ``koala check`` says of that server."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fakes.pbs import FakePbs
from tests.pbs_scheduling import SECONDS, SITE, inside, koala, scheduling
from tests.real.systems.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS = ("-C", "", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakePbs]:
    """Give a fake of two vnodes of two processors, whose site hook holds every job."""
    fake = FakePbs(tmp_path / "fake", site_hook=True)
    yield fake
    fake.close()


@pytest.fixture
def site(fake: FakePbs, tmp_path: Path) -> Path:
    """Give a site file with that server, at which koala is an operator."""
    file = tmp_path / "site.toml"
    file.write_text(SITE.format(requests=6000, conf=fake.conf, bin_directory=fake.bin_directory))
    return file


def submit(fake: FakePbs, *options: str, seconds: float = 0.5) -> str:
    """Submit a job as another user does."""
    return fake.run("qsub", *OPTIONS, *options, stdin=f"#!/bin/sh\nexec sleep {seconds}\n")


def test_a_queue_runs_to_its_end(fake: FakePbs, site: Path) -> None:
    """In the order of submission, elements of an array at the same time; a user's own hold is left alone."""
    wide = submit(fake, "-l", "select=2:ncpus=2", "-l", "place=scatter")
    held = submit(fake, "-h")
    array = submit(fake, "-J", "1-2")
    last = submit(fake, "-l", "select=1:ncpus=2")
    elements = {array.replace("[]", f"[{index}]") for index in (1, 2)}
    with scheduling(site, "--policy", "fcfs") as lines:
        lines.wait("ended", {wide, last, *elements})
        assert held in lines.told("left out")
    starts = lines.told("start")
    assert starts[0] == wide
    assert set(starts[1:3]) == elements
    assert starts[3:] == [last]
    first = next(line for line in lines.all() if line["kind"] == "start")
    assert "n1" in json.dumps(first)
    assert "n2" in json.dumps(first)


def test_a_job_that_is_queued_again_is_started_again(fake: FakePbs, site: Path) -> None:
    """It comes back in the hold that it never left."""
    job = submit(fake, seconds=600)
    with scheduling(site) as lines:
        lines.wait("started", {job})
        fake.run("qrerun", job, user=os.environ.get("USER") or "root")
        lines.wait("requeued", {job})
        wait_until(lambda: lines.told("started").count(job) > 1, seconds=SECONDS, what="it runs again")


def test_any_user_may_ask_why_a_job_waits(fake: FakePbs, site: Path) -> None:
    """Who runs no scheduler, and has another state directory, is answered at the socket that the site file names."""
    directory = site.with_name("ask")
    directory.mkdir(mode=0o755)
    path = directory / "p.sock"
    for options in (("select=2:ncpus=2",), ("select=1:ncpus=1",)):
        last = submit(fake, "-l", *options, seconds=600)
    with scheduling(site, "--policy", "fcfs", "--ask-socket", str(path)) as lines:
        lines.wait("submitted", {last})
        asking = site.with_name("asking")
        asking.mkdir(mode=0o700)
        own = asking / "site.toml"
        own.write_text(site.read_text().replace("[clusters.settings]", f'ask_socket = "{path}"\n[clusters.settings]'))
        wait_until(
            lambda: "place 1 of 1 in the queue" in inside(own, "explain", f"p:{last}").stdout,
            seconds=SECONDS,
            what="it is told why the job waits",
            details=lambda: inside(own, "explain", f"p:{last}").output,
        )
        assert "Traceback" not in site.with_name("errors").read_text()
    assert not path.exists()


def test_a_shadow_starts_nothing(fake: FakePbs, site: Path) -> None:
    """It says when it would have, and needs no hook."""
    plain = FakePbs(site.parent / "plain")
    site.write_text(site.read_text().replace(str(fake.conf.parent), str(plain.conf.parent)))
    plain.set_scheduling(on=False)
    job = submit(plain, "-l", "select=1:ncpus=2")
    with scheduling(site, "--shadow") as lines:
        lines.wait("start", {job})
        assert '"job_state":\t"Q"' in plain.run("qstat", "-f", "-F", "json", job)
        plain.set_scheduling(on=True)
        lines.wait("started", {job})
    plain.close()


def test_check_says_what_is_missing(fake: FakePbs, site: Path) -> None:
    """All is well with the hook and an operator; without them each is named with its way out."""
    done = inside(site, "check", "--outside", "--no-submit")
    assert "jobs come in held: yes, in an operator's hold" in done.stdout
    assert "we may start them: yes" in done.stdout
    plain = FakePbs(site.parent / "plain", operators=())
    site.write_text(site.read_text().replace(str(fake.conf.parent), str(plain.conf.parent)))
    done = inside(site, "check", "--outside", "--no-submit")
    assert "jobs come in held: no" in done.stdout
    assert "koala conf pbs_queuejob.py" in done.stdout
    assert "set server operators +=" in done.stdout
    assert done.exit_code
    plain.close()


def test_one_cluster_is_checked(site: Path) -> None:
    """That which is named, and no other; a wrong name is refused with those that there are."""
    site.write_text(site.read_text() + site.read_text().replace('"p"', '"q"'))
    checks = json.loads(inside(site, "check", "--outside", "--cluster", "q", "--json").stdout)["checks"]
    assert {one["cluster"] for one in checks} == {None, "q"}
    assert "jobs come in held" in {one["subject"] for one in checks}
    done = inside(site, "check", "--cluster", "x")
    assert done.exit_code == 245
    assert "p, q" in done.stderr


def test_the_queue_is_given_back(fake: FakePbs, site: Path) -> None:
    """What the hook held runs, arrays too; what a user holds stays with its user; again, there is nothing to do."""
    plain = [submit(fake), submit(fake, "-l", "select=1:ncpus=2")]
    array = submit(fake, "-J", "1-2")
    own = submit(fake, "-h")
    command = koala(site, "schedule", "--give-back", "p", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    elements = {array.replace("[]", f"[{index}]") for index in (1, 2)}
    assert set(plain) | elements <= set(told["released"])
    assert told["still_held"] == {}
    wait_until(lambda: not unfinished(fake) - {own}, seconds=SECONDS, what="all but the user's have run")
    assert '"Hold_Types":\t"u"' in fake.run("qstat", "-f", "-F", "json", own)
    again = json.loads(inside(site, "schedule", "--give-back", "p", "--json").stdout)
    assert (again["released"], again["still_held"]) == ([], {})
    assert "delete hook" in done.stderr


def test_the_queue_is_not_given_back_under_a_running_scheduler(fake: FakePbs, site: Path) -> None:
    """It would hold again what was queued again: it is to be stopped first."""
    del fake
    with scheduling(site) as lines:
        wait_until(
            lambda: "schedules cluster p" in site.with_name("errors").read_text(), seconds=SECONDS, what="it is up"
        )
        done = inside(site, "schedule", "--give-back", "p")
        assert done.exit_code
        assert "stop it first" in done.stderr
        assert lines.all() == []


def test_a_cluster_must_be_named(site: Path) -> None:
    """One to schedule, or one to give back."""
    done = inside(site, "schedule")
    assert done.exit_code == 2
    assert "--cluster" in done.stderr


def unfinished(fake: FakePbs) -> set[str]:
    """Return the jobs that are listed and not over."""
    listed = json.loads(fake.run("qstat", "-t", "-f", "-F", "json")).get("Jobs", {})
    return {id_ for id_, job in listed.items() if job["job_state"] not in {"F", "X"}}
