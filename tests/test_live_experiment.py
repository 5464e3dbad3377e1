# SPDX-License-Identifier: Apache-2.0
"""``koala experiment run koala-live``: a tiny one from the command to its page, and nothing is left of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api.client import Client
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.scheduler.parameters import Approach
from koala_experiments.framework import LiveRun
from koala_experiments.liveruns import clusters_in_small, run_live, workload_in_small
from tests.local_koala import Koala, eventually, processes_naming

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WHOLE = 400.0
"""Seconds that a whole experiment may take; four runs of two jobs took 140 on two cores with a load of 28."""


@pytest.fixture
def koala() -> Iterator[Koala]:
    """Give a site in a directory with a path so short that whatever is temporary is made in it."""
    directory = Path(tempfile.mkdtemp(prefix="kl", dir="/tmp"))
    try:
        with closing(Koala(directory)) as made:
            yield made
    finally:
        shutil.rmtree(directory)


def left(koala: Koala) -> list[str]:
    """Return what else is in the directory in which all that is temporary is made."""
    return sorted(path.name for path in koala.directory.iterdir() if path.name not in {"site.toml", "out"})


def jobs_run(koala: Koala) -> bool:
    """Tell whether a service of an experiment has launched a job."""
    for state in koala.directory.glob("koala-live-*/state"):
        with suppress(ServiceUnavailableError):
            return any(one.launched_at for one in Client(state).jobs())
    return False


@pytest.mark.nightly
def test_a_tiny_experiment_writes_its_page(koala: Koala) -> None:
    """Two jobs in each of four runs: live and simulated values of each stand in the data, and all is gone."""
    settings = ["jobs=2", "pace=400", "approaches=pwa"]
    options = [word for one in settings for word in ("--set", one)]
    koala.run("experiment", "run", "koala-live", *options, "--out", str(koala.directory / "out"), timeout=WHOLE)
    result = json.loads((koala.directory / "out" / "result.json").read_text())
    rows = result["tables"]["live-and-simulated"]
    assert [(row["approach"], row["policy"], row["workload"]) for row in rows] == [
        ("PWA", policy, workload) for policy in ("FPSMA", "EGS") for workload in ("W'm", "W'mr")
    ]
    for row in rows:
        live, simulated = row["execution (s) live"], row["execution (s) simulated"]
        assert row["execution (s) difference (%)"] == pytest.approx(100 * (simulated / live - 1), abs=0.06)
        assert live > 60.0, "no job takes less than FT at its best"
    assert all(row["until held (s)"] > 0 for row in result["tables"]["delays"])
    jobs = result["tables"]["jobs"]
    assert len(jobs) == 8
    for row in rows:
        mine = [
            one["response (s) live"] for one in jobs if all(one[name] == row[name] for name in ("policy", "workload"))
        ]
        assert sum(mine) / len(mine) == pytest.approx(row["response (s) live"], abs=0.1)
    figures = {path.name for path in (koala.directory / "out" / "figures").glob("*.png")}
    assert {f"figure-8{part}.png" for part in "abcdef"} <= figures
    assert {"compared-execution.png", "compared-response.png", "compared-used.png"} <= figures
    assert len([name for name in figures if name.startswith("used-pwa-")]) == 4
    assert left(koala) == []
    assert processes_naming(str(koala.directory)) == []


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
SMALLEST = {
    "koala-live": ("jobs=2", "pace=1000", "divisor=20", "approaches=pra"),
    "negotiation": ("steps=6", "work=0.05"),
}
"""Live experiments with settings at the ends of what is allowed."""


def refuse(word: str) -> None:
    """Take no number that JSON does not have."""
    pytest.fail(f"{word} in the JSON of the result")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SMALLEST)
def test_live_experiments_end_with_a_result_at_their_smallest(koala: Koala, name: str, seed: int) -> None:
    """Whatever its claims come to, where hardly anything is run; and nothing is left."""
    options = [word for one in SMALLEST[name] for word in ("--set", one)]
    out = koala.directory / "out"
    koala.run("experiment", "run", name, "--seed", str(seed), *options, "--out", str(out), timeout=WHOLE)
    result = json.loads((out / "result.json").read_text(), parse_constant=refuse)
    assert result["findings"]
    assert all(rows for rows in result["tables"].values())
    assert (out / "index.html").exists()
    assert left(koala) == []
    assert processes_naming(str(koala.directory)) == []


@pytest.mark.nightly
def test_an_interrupted_experiment_leaves_nothing(koala: Koala) -> None:
    """Ctrl-C while jobs run ends them, their clusters and the command, which says so by its exit code."""
    process = koala.start("experiment", "run", "koala-live", "--set", "pace=5", "--out", str(koala.directory / "out"))
    eventually(lambda: jobs_run(koala))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert "interrupted" in said
    assert process.returncode == 130
    assert left(koala) == []
    assert processes_naming(str(koala.directory)) == []


@pytest.mark.nightly
def test_on_the_clusters_of_a_site_file(koala: Koala, monkeypatch: pytest.MonkeyPatch) -> None:
    """The approach and policy are those that are wanted, whatever the file says, and all is gone afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(koala.directory))
    koala.site_file.write_text(koala.site_file.read_text().replace("[scheduler]", '[scheduler]\napproach = "none"'))
    jobs = workload_in_small("W'm", 0, jobs=2, divisor=8)
    ended: list[int] = []
    outcome = run_live(
        LiveRun(
            approach=Approach.PRA,
            malleability="egs",
            jobs=jobs,
            clusters=clusters_in_small(8),
            pace=100,
            site=str(koala.site_file),
        ),
        ended.append,
    )
    assert [(one.name, one.processors) for one in outcome.clusters] == [("alpha", 4), ("beta", 4)]
    assert ended[-1] == 2
    assert len(outcome.outcome.jobs) == 2
    assert all(max(size for _, size in steps) > 2 for steps in outcome.sizes.values()), "jobs grow"
    assert all(steps[-1][1] == 0 for steps in outcome.sizes.values())
    until = time.monotonic() + 60
    while processes_naming(str(koala.directory)) and time.monotonic() < until:
        time.sleep(0.1)
    assert processes_naming(str(koala.directory)) == []
    assert left(koala) == []
    assert os.path.lexists(koala.site_file)


@pytest.mark.nightly
def test_the_published_negotiations_write_their_page(koala: Koala) -> None:
    """All four scenarios go as published; timelines and templates stand beside the page, and nothing is left."""
    out = koala.directory / "out"
    koala.run("experiment", "run", "negotiation", "--set", "steps=9", "--out", str(out), timeout=WHOLE)
    result = json.loads((out / "result.json").read_text())
    assert [one["holds"] for one in result["findings"][:4]] == [True] * 4, result["findings"]
    assert {row["status"] for row in result["tables"]["messages"]} >= {"NT_NEGOTIATION", "NT_REJECTED", "NT_CONSUMED"}
    assert len(list((out / "figures").glob("timeline-*.png"))) == 4
    assert "<NT NT_AgreementID=" in (out / "data" / "templates-asks-for-14.txt").read_text()
    assert "&lt;NT_Status&gt;NT_COMMITTED" in (out / "index.html").read_text()
    assert left(koala) == []
