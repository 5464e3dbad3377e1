# SPDX-License-Identifier: Apache-2.0
"""Jobs that grow and shrink while they run, on local clusters: the example of a head and workers as it stands."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.local_koala import Gate, Koala, eventually
from tests.taskqueue import expected_sum, write_taskqueue
from tests.unit.policies.installed import ENTRY_POINTS, EXAMPLES, install

if TYPE_CHECKING:
    from pathlib import Path

BROKEN = """
from koala_adapter.sizes import UsableSizes
from koala_adapter.policies import PolicyDefinition, PolicyKind

def make():
    return UsableSizes("broken", lambda processors: 1 // 0)

BROKEN = PolicyDefinition(kind=PolicyKind.SIZES, name="broken", summary="fails", factory=make)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def sizes(koala: Koala, job: str = "1") -> dict[str, int]:
    """Return the processors of the workers on each cluster."""
    found: dict[str, int] = {}
    for one in koala.json("status", job)["components"]:
        if one["name"] == "worker" and one["processors"]:
            found[one["cluster"]] = found.get(one["cluster"], 0) + one["processors"]
    return found


def outcome(koala: Koala, job: str = "1") -> dict[str, Any]:
    """Return how a job ended, once it has."""
    eventually(lambda: koala.json("status", job)["outcome"] is not None)
    found: dict[str, Any] = koala.json("status", job)["outcome"]
    return found


def expect_right(koala: Koala, job: str = "1") -> None:
    """Expect that the head has printed each result once, and their sum."""
    *results, total = (koala.state / "jobs" / job / "head" / "0.out").read_text().splitlines()
    assert sorted(int(line.split()[0]) for line in results) == [*range(len(results))]
    assert total == expected_sum(len(results))


def workers_saying(koala: Koala, word: str) -> int:
    """Return how many workers of job 1 have printed a word."""
    said = (path.read_text() for path in (koala.state / "jobs" / "1" / "worker").glob("*.out"))
    return sum(word in text for text in said)


def test_workers_come_while_processors_are_idle_and_go_when_others_wait(koala: Koala) -> None:
    """1 worker becomes 7 on two clusters; a rigid job gets its processors; then they come back. All is worked out."""
    koala.serve()
    end, rigid = Gate(koala.directory / "end"), Gate(koala.directory / "rigid")
    koala.inside("submit", str(write_taskqueue(koala.directory, tasks=1, seconds=0.3, until=end.path)))
    eventually(lambda: sum(sizes(koala).values()) == 7)
    assert set(sizes(koala)) == {"alpha", "beta"}
    eventually(lambda: workers_saying(koala, "joins") == 7)  # earlier, SIGTERM would end them without a word
    koala.inside("submit", koala.job(rigid.wait, name="rigid", processors=3))
    eventually(lambda: koala.state_of("2") == "running")
    assert sum(sizes(koala).values()) <= 2
    assert "room for job 2" in koala.inside("explain", "1").stdout
    rigid.open()
    assert outcome(koala, "2")["exit_code"] == 0
    eventually(lambda: sum(sizes(koala).values()) == 7)
    end.open()
    assert outcome(koala)["exit_code"] == 0
    expect_right(koala)
    eventually(lambda: koala.placeholders() == [])
    report = koala.json("status", "1")
    changes = [(one["before"], one["after"]) for one in report["size_changes"]]
    assert any(after > before for before, after in changes)
    assert any(after < before for before, after in changes)
    assert workers_saying(koala, "leaves") >= 5, "those that were asked to leave did not"


@pytest.mark.nightly  # tests/real shows the same
@pytest.mark.parametrize("moment", ["growing", "shrinking"])
def test_a_service_that_is_killed_while_a_job_changes(koala: Koala, moment: str) -> None:
    """The application goes on; the next service goes on with the change; nothing is leaked, the result is right."""
    service = koala.serve()
    end = Gate(koala.directory / "end")
    koala.inside("submit", str(write_taskqueue(koala.directory, tasks=1, seconds=0.3, until=end.path)))
    if moment == "shrinking":
        eventually(lambda: sum(sizes(koala).values()) == 7)
        koala.inside("submit", koala.job("true", name="rigid", processors=3))
    else:
        eventually(lambda: "running" in koala.state_of("1"))
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    koala.serve()
    if moment == "shrinking":
        assert outcome(koala, "2")["exit_code"] == 0
    eventually(lambda: sum(sizes(koala).values()) == 7)
    end.open()
    assert outcome(koala)["exit_code"] == 0
    expect_right(koala)
    eventually(lambda: koala.placeholders() == [])


def test_a_worker_that_does_not_listen_is_killed_after_its_grace(koala: Koala) -> None:
    """The processors that it holds are free in the end, and the job goes on without it."""
    koala.serve()
    text = (
        'kind = "malleable"\nrunner = "workers"\nwalltime = 300\n'
        '[[components]]\nname = "head"\ncommand = ["sleep", "300"]\nprocessors = 1\ncluster = "alpha"\n'
        '[[components]]\nname = "worker"\ncommand = ["sh", "-c", "trap : TERM; while :; do sleep 1; done"]\n'
        'minimum = 1\nmaximum = 4\ncluster = "beta"\nretire_grace = 2\n'
    )
    path = koala.directory / "deaf.toml"
    path.write_text(text)
    koala.inside("submit", str(path))
    eventually(lambda: sizes(koala) == {"beta": 4})
    koala.inside("submit", koala.job("true", name="rigid", processors=2))
    assert outcome(koala, "2")["exit_code"] == 0
    assert koala.state_of("1") == "running"
    koala.inside("cancel", "1")
    eventually(lambda: koala.placeholders() == [])


def test_an_owner_resizes_a_job(koala: Koala) -> None:
    """Down and up again within the bounds of the job file; whatever cannot be is refused with the way out."""
    koala.serve()
    never = koala.directory / "never"
    koala.inside("submit", str(write_taskqueue(koala.directory, tasks=1, seconds=0.2, until=never)))
    eventually(lambda: sum(sizes(koala).values()) == 7)
    koala.inside("resize", "1", "2")
    eventually(lambda: sum(sizes(koala).values()) == 2)
    koala.inside("resize", "1", "4", "--component", "worker")
    eventually(lambda: sum(sizes(koala).values()) == 4)
    assert "its job file allows 1 to 20" in koala.inside("resize", "1", "21", check=240).stderr
    assert "name one of: worker" in koala.inside("resize", "1", "1", "--component", "head", check=240).stderr
    koala.inside("cancel", "1")
    assert "has ended" in koala.inside("resize", "1", "2", check=240).stderr
    eventually(lambda: koala.placeholders() == [])


SQUARES = """
name = "squares"
kind = "malleable"
runner = "workers"
walltime = 300
[[components]]
name = "worker"
command = ["sleep", "900"]
minimum = 1
maximum = 9
cluster = "{}"
sizes = "{}"
"""


@pytest.mark.nightly
def test_sizes_by_a_rule_that_is_installed(koala: Koala, tmp_path: Path) -> None:
    """Four processors make a square, three do not. Where a rule fails, its job keeps its size, and says why."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    install(packages, f"{ENTRY_POINTS}sizes.broken = brokensizes:BROKEN\n")
    (packages / "brokensizes.py").write_text(BROKEN)
    koala.packages += [packages, EXAMPLES]
    koala.serve()
    for name, cluster in (("square-grids", "alpha"), ("broken", "beta")):
        path = koala.directory / f"{name}.toml"
        path.write_text(SQUARES.format(cluster, name))
        koala.run("submit", str(path))
        eventually(lambda: sum(sizes(koala).values()) == 4)
    assert "near are 1 and 4" in koala.inside("resize", "1", "3", check=240).stderr
    eventually(lambda: "raises ZeroDivisionError" in koala.json("status", "2")["explanation"])
    assert (koala.state_of("2"), sum(sizes(koala, "2").values())) == ("running", 1)
    koala.inside("resize", "1", "1")
    eventually(lambda: sum(sizes(koala).values()) == 1)
    for job in ("1", "2"):
        koala.inside("cancel", job)
    eventually(lambda: koala.placeholders() == [])


def test_a_wish_for_more_has_the_clusters_looked_at(koala: Koala) -> None:
    """What others have given up since the last poll is had at once, not only after the next one, ten minutes later."""
    text = koala.site_file.read_text()
    koala.site_file.write_text(
        text.replace("poll_interval = 0.5", "poll_interval = 600").replace(
            "[scheduler]", '[scheduler]\napproach = "none"'
        )
    )
    foreign = koala.submit_foreign("busy", 3, "alpha")
    koala.serve()
    path = koala.directory / "patient.toml"
    path.write_text(
        'kind = "malleable"\nrunner = "workers"\nwalltime = 300\n[[components]]\nname = "worker"\n'
        'command = ["sleep", "900"]\nminimum = 1\nmaximum = 4\ncluster = "alpha"\n'
    )
    koala.inside("submit", str(path))
    eventually(lambda: koala.state_of("1") == "running")
    koala.cancel_foreign(foreign, "alpha")
    eventually(lambda: len(koala.placeholders()) == 1)
    koala.inside("resize", "1", "4")
    eventually(lambda: sizes(koala) == {"alpha": 4})
    koala.inside("cancel", "1")
    eventually(lambda: koala.placeholders() == [])
