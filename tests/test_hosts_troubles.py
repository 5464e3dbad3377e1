# SPDX-License-Identifier: Apache-2.0
"""What a host does to a service: its clock is set, nothing can be written, systemd stops it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import set_clock
from tests.local_koala import LIVENESS, Koala, Running, eventually
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.systems.requirements import require
from tests.real.systems.systemd import Systemd, missing_for_systemd

# -- The time of day is set by two hours while jobs wait and run: nothing ends, nothing waits longer, no time is wrong.


HOURS = 7200.0
UNTIL = "echo started; until [ -e {}/{} ]; do sleep 0.1; done; echo done"


class SetKoala(Koala):
    """A koala all of whose commands believe a clock that the test sets."""

    @property
    def step_file(self) -> Path:
        """Where the seconds stand by which the time of day was set."""
        return self.directory / "step"

    def set_clock(self, seconds: float) -> None:
        """Set the time of day so many seconds from what it really is, for what runs and what is to come."""
        new = self.step_file.with_suffix(".new")
        new.write_text(str(seconds), encoding="ascii")
        new.rename(self.step_file)

    def __post_init__(self) -> None:
        """Begin with the right time."""
        super().__post_init__()
        self.set_clock(0)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of one ``koala``."""
        python, _, _, *rest = super().command(*arguments)
        return [python, set_clock.__file__, str(self.step_file), *rest]

    @property
    def forks(self) -> bool:
        """Every command begins with a program that makes it believe that clock."""
        return False

    def json(self, *arguments: str, check: int | None = 0) -> Any:  # noqa: ANN401 - JSON
        """Run one command with ``--json`` and return what it says; in a process, which believes that clock, too."""
        return json.loads(self.run(*arguments, "--json", check=check).stdout)


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[SetKoala]:
    """Give a site of two local clusters, and end all of it afterwards."""
    with closing(SetKoala(tmp_path)) as one:
        yield one


def polled_again(koala: SetKoala) -> None:
    """Wait until the service has looked at every cluster once more."""
    since = {one.name: one.requests for one in koala.client.clusters()}
    eventually(lambda: all(one.requests > since[one.name] + 2 for one in koala.client.clusters()))


@pytest.mark.parametrize("step", [pytest.param(HOURS, marks=pytest.mark.nightly), -HOURS])
def test_a_running_job_goes_on_and_its_times_are_right(clocked: SetKoala, step: float) -> None:
    """A job of ten minutes is not over because the clock says so, and a second one starts as ever."""
    clocked.serve()
    job = clocked.job(UNTIL.format(clocked.directory, "go"))
    running = clocked.start_said("started", "run", job)
    clocked.set_clock(step)
    clocked.run("run", clocked.job("true", name="second"))
    polled_again(clocked)
    report = clocked.json("status", "1")
    assert report["state"] == "running"
    assert 0 <= report["launched_at"] - report["submitted_at"] < LIVENESS
    assert abs(report["reported_at"] - (time.time() + step)) < LIVENESS, "what is shown agrees with the clock as it is"
    assert all(0 <= component["waited"] < LIVENESS for component in report["components"])
    assert [one["id"] for one in clocked.json("status")] == ["1", "2"]
    (clocked.directory / "go").touch()
    running.communicate(timeout=LIVENESS)
    assert running.returncode == 0
    ended = clocked.json("status", "1")
    assert 0 <= ended["finished_at"] - ended["launched_at"] < LIVENESS


@pytest.mark.parametrize("step", [pytest.param(HOURS, marks=pytest.mark.nightly), -HOURS])
def test_a_service_that_is_killed_before_the_step_goes_on_after_it(clocked: SetKoala, step: float) -> None:
    first = clocked.serve()
    running = clocked.start_said("started", "run", clocked.job(UNTIL.format(clocked.directory, "go")))
    launched_at = clocked.json("status", "1")["launched_at"]
    running.send_signal(signal.SIGKILL)
    first.send_signal(signal.SIGKILL)
    first.wait()
    clocked.set_clock(step)
    report = clocked.json("status", "1", check=None)
    assert abs(report["launched_at"] - launched_at - step) < LIVENESS, "also what is read from the journal alone"
    clocked.serve()
    polled_again(clocked)
    report = clocked.json("status", "1")
    assert report["state"] == "running"
    assert abs(report["launched_at"] - launched_at - step) < LIVENESS
    (clocked.directory / "go").touch()
    eventually(lambda: clocked.state_of("1") == "completed")


def test_a_job_that_waits_is_not_put_off(clocked: SetKoala) -> None:
    clocked.serve()
    busy = clocked.submit_foreign("others", 4, "beta")
    waiting = clocked.start("run", clocked.job("echo $KOALA_RANK", processors=2))
    eventually(lambda: clocked.has("1"))
    eventually(lambda: clocked.report("1").components[0].held == 2)
    clocked.set_clock(-HOURS)
    eventually(lambda: clocked.report("1").hand_backs > 0)
    clocked.set_clock(HOURS)
    clocked.cancel_foreign(busy, "beta")
    written, said = waiting.communicate(timeout=LIVENESS)
    assert waiting.returncode == 0, said
    assert len(written.splitlines()) == 4
    assert clocked.json("status", "1")["hand_backs"] < 5


# -- A limit on the size of files stands for a full disk: output and journal wait, and everybody is told why.


MIB = 1024 * 1024
LINES = 400_000
LARGE = f"seq {LINES}"
"""Writes 2.6 MiB."""
WORDS = "File too large"


def unwrapped(text: str) -> str:
    """Return a text without the breaks that long paths make in its lines."""
    return " ".join(text.split())


def limit(process: Running, size: int) -> None:
    """Let a process make no file longer than this; as if a disk were full, and not for what it has started before."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))


def test_output_waits_and_the_reason_is_told(koala: Koala) -> None:
    service = koala.serve()
    limit(service, MIB)
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and WORDS in koala.report("1").trouble)
    assert WORDS in koala.inside("status", "1").stdout
    report = koala.json("status", "1")
    assert report["state"] == "running"
    assert WORDS in report["trouble"]
    assert str(koala.state / "jobs" / "1") in report["trouble"].replace("\n", "")
    assert WORDS in koala.inside("explain", "1").stdout
    eventually(lambda: "contact" not in koala.inside("explain", "1").stdout)  # agents are heard all the same
    limit(service, resource.RLIM_INFINITY)
    _, said = running.communicate(timeout=LIVENESS)
    assert running.returncode == 0, said
    assert WORDS in said
    assert "can be written again" in unwrapped(said)
    assert koala.json("status", "1")["trouble"] == ""
    expected = "".join(f"{number}\n" for number in range(1, LINES + 1))
    for component in ("left", "right"):
        assert (koala.state / "jobs" / "1" / component / "0.out").read_text() == expected
    service.terminate()
    _, logged = service.communicate(timeout=LIVENESS)
    assert "output cannot be written" in logged
    assert "output can be written again" in logged


def test_a_job_that_is_cancelled_meanwhile_ends_and_says_what_is_missing(koala: Koala) -> None:
    service = koala.serve()
    limit(service, MIB)
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and WORDS in koala.report("1").trouble)
    koala.inside("cancel", "1")
    running.communicate(timeout=LIVENESS)
    assert running.returncode == 243
    assert "The end of its output could not be written" in unwrapped(koala.inside("explain", "1").stdout)
    assert koala.placeholders() == []


def test_a_journal_that_cannot_be_written_stops_decisions_and_nothing_else(koala: Koala) -> None:
    service = koala.serve()
    running = koala.start_said("started", "run", koala.job(UNTIL.format(koala.directory, "go")))
    eventually(lambda: koala.state_of("1") == "running")  # output comes before the word that a process has started
    limit(service, 0)
    refused = koala.inside("submit", koala.job("true", name="other"), check=246)
    assert "the journal cannot be written" in unwrapped(refused.stderr)
    assert "the journal cannot be written" in koala.json("status", "1")["trouble"]
    assert "the journal cannot be written" in unwrapped(koala.inside("cancel", "1", check=246).stderr)
    (koala.directory / "go").touch()
    assert "the journal cannot be written" in unwrapped(koala.inside("explain", "1").stdout)
    assert koala.state_of("1") == "running"
    assert service.poll() is None
    limit(service, resource.RLIM_INFINITY)
    written, said = running.communicate(timeout=LIVENESS)
    assert running.returncode == 0, said
    assert written.count("done") == 2
    assert "the journal cannot be written" in unwrapped(said)
    assert koala.run("run", koala.job("true", name="other")).returncode == 0
    assert [one["state"] for one in koala.json("status")] == ["completed", "completed"]
    service.terminate()
    _, logged = service.communicate(timeout=LIVENESS)
    assert logged.count("nothing is decided until the journal can be written") == 1
    assert logged.count("the journal can be written again") == 1


@pytest.fixture
def small_disk(koala: Koala) -> Iterator[Path]:
    """Give the state directory a file system of its own, of 3 MiB."""
    koala.state.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs"]
    done = subprocess.run(["mount", *options, str(koala.state)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield koala.state
    finally:
        subprocess.run(["mount", "-o", "remount,size=100m", str(koala.state)], check=True)
        koala.close()
        subprocess.run(["umount", "--lazy", str(koala.state)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_run_goes_on_when_a_full_disk_has_room_again(koala: Koala, small_disk: Path) -> None:
    """Its application is not given up for that: its output waits, the reason is told, and nothing is lost."""
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and "No space left" in koala.report("1").trouble)
    assert running.poll() is None
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    _, said = running.communicate(timeout=LIVENESS)
    assert running.returncode == 0, said
    assert "No space left on device" in unwrapped(said)
    expected = "".join(f"{number}\n" for number in range(1, LINES + 1))
    for component in ("left", "right"):
        assert (koala.state / "jobs" / "1" / component / "0.out").read_text() == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_run_that_waits_for_a_full_disk_can_be_interrupted(koala: Koala, small_disk: Path) -> None:
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and "No space left" in koala.report("1").trouble)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=LIVENESS)
    assert running.returncode != 0, said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("size", "code", "words"),
    [(0, 245, "cannot use the state directory"), (100, 246, "cannot open the journal: File too large")],
)
def test_a_service_does_not_start_where_nothing_can_be_written(koala: Koala, size: int, code: int, words: str) -> None:
    """It says why and ends, with a code after which systemd does not try again."""
    first = koala.serve()
    first.kill()
    first.wait()
    process = koala.start_anew(
        "serve",
        # Python would leave the first bytes of bytecode where all other tests look for it.
        environment={"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    _, said = process.communicate(timeout=LIVENESS)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert words in unwrapped(said)


# -- The units of conf/ under a real systemd: what is killed comes back, what fails too often gives the queue back.


CONF = Path(__file__).parents[1] / "conf"
SITE = """\
[control_center]
listen = "127.0.0.1"

[[clusters]]
name = "a"
plugin = "local"
settings = { processors = 4 }
"""
SCHEDULE, WIKI, GIVE_BACK = "koala-schedule@a", "koala-wiki@a", "koala-give-back@a"
ALL_NIGHT = "[Unit]\nStartLimitIntervalSec=3600\nOnFailure=koala-give-back@%i.service\n"
"""Five ends are too many, however long they take on a busy machine."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    """Give a host on which an administrator has installed koala as the guide says."""
    require(missing_for_systemd())
    with Systemd(tmp_path_factory.mktemp("systemd")) as one:
        for name in ("etc/koala", "opt/koala/bin", f"etc/systemd/system/{SCHEDULE}.service.d"):
            (one.root / name).mkdir(parents=True)
        program = one.root / "opt/koala/bin/koala"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m koala_adapter.cli "$@"\n')
        program.chmod(0o755)
        (one.root / "etc/koala/site.toml").write_text(SITE)
        (one.root / "etc/koala/wiki.key").write_text("1234567890\n")
        (one.root / "etc/koala/wiki.key").chmod(0o600)
        for unit in CONF.glob("*@.service"):
            (one.root / "etc/systemd/system" / unit.name).write_text(unit.read_text())
        (one.root / f"etc/systemd/system/{SCHEDULE}.service.d/override.conf").write_text(ALL_NIGHT)
        one.boot()
        yield one


def wait(host: Systemd, unit: str, state: str) -> None:
    """Wait until a unit is in a state."""
    wait_until(
        lambda: host.shown(unit, "ActiveState") == state,
        seconds=PATIENCE,
        what=f"{unit} is {state}",
        details=lambda: host.run("journalctl", "--no-pager", "--lines=30"),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["KILL", "STOP"])
@pytest.mark.parametrize("unit", [SCHEDULE, WIKI, "koala@root"])
def test_what_is_killed_or_hangs_comes_back(host: Systemd, unit: str, how: str) -> None:
    host.run("systemctl", "start", unit)
    before = host.shown(unit, "MainPID")
    host.run("kill", f"-{how}", before)
    wait_until(
        lambda: host.shown(unit, "MainPID") not in {before, "0"},
        seconds=PATIENCE,
        what=f"another {unit}",
        details=lambda: host.run("journalctl", "--no-pager", f"--unit={unit}"),
    )
    wait(host, unit, "active")
    host.run("systemctl", "stop", unit)
    assert host.shown(unit, "Result") == "success"


@pytest.mark.nightly
def test_one_of_three_has_the_queue(host: Systemd) -> None:
    for unit in (WIKI, SCHEDULE, WIKI, GIVE_BACK, SCHEDULE):
        host.run("systemctl", "start", unit)
        wait(host, unit, "active")
        others = {SCHEDULE, WIKI, GIVE_BACK} - {unit}
        assert {host.shown(other, "ActiveState") for other in others} == {"inactive"}
    host.run("systemctl", "stop", SCHEDULE)


@pytest.mark.nightly
def test_the_queue_is_given_back_after_too_many_failures(host: Systemd) -> None:
    host.run("systemctl", "start", SCHEDULE)

    def stays_down() -> bool:
        if host.shown(SCHEDULE, "ActiveState") == "failed":
            return True
        pid = host.shown(SCHEDULE, "MainPID")
        if pid != "0":
            host.run("kill", "-KILL", pid, check=False)
        return False

    wait_until(stays_down, seconds=PATIENCE, what="it stays down")
    wait_until(
        lambda: host.shown(GIVE_BACK, "ActiveState") != "inactive",
        seconds=PATIENCE,
        what="the queue is given back",
        details=lambda: host.run("journalctl", "--no-pager", f"--unit={GIVE_BACK}"),
    )
    host.run("systemctl", "reset-failed", SCHEDULE)
    host.run("systemctl", "start", SCHEDULE)
    assert host.shown(SCHEDULE, "ActiveState") == "active"
    assert host.shown(GIVE_BACK, "ActiveState") == "inactive"
    host.run("systemctl", "stop", SCHEDULE)
