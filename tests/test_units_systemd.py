# SPDX-License-Identifier: Apache-2.0
"""The units of conf/ under a real systemd: what is killed comes back, what fails too often gives the queue back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.systems.requirements import require
from tests.real.systems.systemd import Systemd, missing_for_systemd

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

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


@pytest.mark.parametrize("how", ["KILL", "STOP"])
@pytest.mark.parametrize("unit", [SCHEDULE, WIKI, "koala@root"])
def test_what_is_killed_or_hangs_comes_back(host: Systemd, unit: str, how: str) -> None:
    """A new process that says that it serves."""
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


def test_one_of_three_has_the_queue(host: Systemd) -> None:
    """Starting another one ends it, and that is no failure of it."""
    for unit in (WIKI, SCHEDULE, WIKI, GIVE_BACK, SCHEDULE):
        host.run("systemctl", "start", unit)
        wait(host, unit, "active")
        others = {SCHEDULE, WIKI, GIVE_BACK} - {unit}
        assert {host.shown(other, "ActiveState") for other in others} == {"inactive"}
    host.run("systemctl", "stop", SCHEDULE)


def test_the_queue_is_given_back_after_too_many_failures(host: Systemd) -> None:
    """Until the scheduler is started again."""
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
