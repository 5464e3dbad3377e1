# SPDX-License-Identifier: Apache-2.0
"""The time of day is set by two hours while jobs wait and run: nothing ends, nothing waits longer, no time is wrong."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import set_clock
from tests.local_koala import LIVENESS, Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

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
def koala(tmp_path: Path) -> Iterator[SetKoala]:
    """Give a site of two local clusters, and end all of it afterwards."""
    one = SetKoala(tmp_path)
    try:
        yield one
    finally:
        one.close()


def polled_again(koala: SetKoala) -> None:
    """Wait until the service has looked at every cluster once more."""
    since = {one.name: one.requests for one in koala.client.clusters()}
    eventually(lambda: all(one.requests > since[one.name] + 2 for one in koala.client.clusters()))


@pytest.mark.parametrize("step", [pytest.param(HOURS, marks=pytest.mark.nightly), -HOURS])
def test_a_running_job_goes_on_and_its_times_are_right(koala: SetKoala, step: float) -> None:
    """A job of ten minutes is not over because the clock says so, and a second one starts as ever."""
    koala.serve()
    job = koala.job(UNTIL.format(koala.directory, "go"))
    running = koala.start("run", job)
    assert running.stdout is not None
    assert "started" in running.stdout.readline()
    koala.set_clock(step)
    koala.run("run", koala.job("true", name="second"))
    polled_again(koala)
    report = koala.json("status", "1")
    assert report["state"] == "running"
    assert 0 <= report["launched_at"] - report["submitted_at"] < LIVENESS
    assert abs(report["reported_at"] - (time.time() + step)) < LIVENESS, "what is shown agrees with the clock as it is"
    assert all(0 <= component["waited"] < LIVENESS for component in report["components"])
    assert [one["id"] for one in koala.json("status")] == ["1", "2"]
    (koala.directory / "go").touch()
    running.communicate(timeout=LIVENESS)
    assert running.returncode == 0
    ended = koala.json("status", "1")
    assert 0 <= ended["finished_at"] - ended["launched_at"] < LIVENESS


@pytest.mark.parametrize("step", [pytest.param(HOURS, marks=pytest.mark.nightly), -HOURS])
def test_a_service_that_is_killed_before_the_step_goes_on_after_it(koala: SetKoala, step: float) -> None:
    """On the same boot the next service knows exactly how long nobody was there."""
    first = koala.serve()
    running = koala.start("run", koala.job(UNTIL.format(koala.directory, "go")))
    assert running.stdout is not None
    assert "started" in running.stdout.readline()
    launched_at = koala.json("status", "1")["launched_at"]
    running.send_signal(signal.SIGKILL)
    first.send_signal(signal.SIGKILL)
    first.wait()
    koala.set_clock(step)
    report = koala.json("status", "1", check=None)
    assert abs(report["launched_at"] - launched_at - step) < LIVENESS, "also what is read from the journal alone"
    koala.serve()
    polled_again(koala)
    report = koala.json("status", "1")
    assert report["state"] == "running"
    assert abs(report["launched_at"] - launched_at - step) < LIVENESS
    (koala.directory / "go").touch()
    eventually(lambda: koala.state_of("1") == "completed")


def test_a_job_that_waits_is_not_put_off(koala: SetKoala) -> None:
    """The placeholders that came first are given back after their life, not two hours later, and not at once."""
    koala.serve()
    busy = koala.submit_foreign("others", 4, "beta")
    waiting = koala.start("run", koala.job("echo $KOALA_RANK", processors=2))
    eventually(lambda: koala.has("1"))
    eventually(lambda: koala.report("1").components[0].held == 2)
    koala.set_clock(-HOURS)
    eventually(lambda: koala.report("1").hand_backs > 0)
    koala.set_clock(HOURS)
    koala.cancel_foreign(busy, "beta")
    written, said = waiting.communicate(timeout=LIVENESS)
    assert waiting.returncode == 0, said
    assert len(written.splitlines()) == 4
    assert koala.json("status", "1")["hand_backs"] < 5
