# SPDX-License-Identifier: Apache-2.0
"""Jobs of all shapes on a real Slurm, started by a stand-in for Maui: all come to their end, and none waits for others.

Each job writes where it ran and with how much, which is compared with what its user asked for.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.wiki.codec.words import Dialect
from tests.real.mauistandin import MauiStandIn
from tests.real.systems import SlurmCluster
from tests.real.systems.requirements import missing_for_slurm, require
from tests.real.wiki_serving import WikiServing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

pytestmark = [pytest.mark.real("slurmctld", "slurmd"), pytest.mark.timeout(600)]

PIECE = Path(__file__).parents[2] / "conf" / "job_submit.lua"
USER = "nobody"
SCRIPT = "#!/bin/sh\nexec sleep 0.5\n"

SHAPES: Mapping[str, Sequence[str]] = {
    "one": ("-n1",),
    "on n3": ("-n2", "-w", "n3"),
    "one node": ("-n5", "-N1"),
    "two each": ("-n8", "--ntasks-per-node=2"),
    "not there": ("-n2", "-x", "n1,n2"),
    "either": ("-n1", "-C", "fast|slow"),
    "both": ("-n1", "-C", "fast&big"),
    "range": ("-n3", "-N2-3"),
    "uneven": ("-n5", "-N2"),
    "alone": ("-n1", "--exclusive"),
    "threads": ("-n2", "-c3"),
    "two nodes by name": ("-n3", "-w", "n1,n2"),
    "wide": ("-n11",),
    "one licence": ("-n1", "-L", "tool"),
    "the same licence": ("-n1", "-L", "tool"),
    "one card": ("-n1", "--gres=fpga:1"),
    "the same card": ("-n1", "--gres=fpga:1", "-w", "n3"),
    "cards of two nodes": ("-n2", "-N2", "--gres=fpga:1"),
    "in a partition of single nodes": ("-n5", "-p", "single", "--time=10"),
}
NEVER: Mapping[str, tuple[Sequence[str], str]] = {
    "reordered features": (("-n1", "-C", "[fast*1&slow*1]"), "features"),
    "no such resource": (("-n1", "--gres=gpu:1"), "no node has free"),
    "too long for its partition": (("-n1", "-p", "single", "--time=50"), "minutes at most"),
    "more nodes than its partition gives": (("-N2", "-p", "single", "--time=10"), "at most 1 nodes"),
    "no room in its partition": (("-n9", "-p", "single", "--time=10"), "can take"),
    "contiguous": (("-n2", "--contiguous"), "contiguous"),
}
SETTINGS = {"JobSubmitPlugins": "lua", "Licenses": "tool:1", "GresTypes": "fpga,gpu"}
SINGLE = ("PartitionName=single", "Nodes=n1,n2", "MaxNodes=1", "MaxTime=20", "State=UP")
NODES: Mapping[str, frozenset[str]] = {
    "on n3": frozenset({"n3"}),
    "not there": frozenset({"n3", "n4"}),
    "either": frozenset({"n1", "n2", "n3"}),
    "both": frozenset({"n2"}),
    "two nodes by name": frozenset({"n1", "n2"}),
    "the same card": frozenset({"n3"}),
    "in a partition of single nodes": frozenset({"n1", "n2"}),
}
NUMBERS: Mapping[str, tuple[int, int]] = {
    "on n3": (1, 1),
    "one node": (1, 1),
    "two each": (4, 4),
    "range": (2, 3),
    "uneven": (2, 2),
    "two nodes by name": (2, 2),
    "cards of two nodes": (2, 2),
    "in a partition of single nodes": (1, 1),
}
"""Least and most nodes."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WikiServing]:
    """Serve a cluster of four nodes of eight processors, three of them with features."""
    require(missing_for_slurm(lua=True))
    cluster = SlurmCluster("shapes", nodes=4, cpus=8, settings=SETTINGS, gres=("fpga", 1))
    (cluster.directory / "job_submit.lua").write_text(PIECE.read_text())
    with cluster:
        for node, features in (("n1", "fast"), ("n2", "fast,big"), ("n3", "slow")):
            cluster.run("scontrol", "update", f"NodeName={node}", f"Features={features}")
        cluster.run("scontrol", "create", *SINGLE)
        with WikiServing(tmp_path_factory.mktemp("shapes"), cluster, "--cache", "0.5") as served:
            yield served


def submit(serving: WikiServing, *options: str) -> str:
    """Submit a short job of an ordinary user."""
    assert isinstance(serving.system, SlurmCluster)
    return serving.system.submit(SCRIPT, "--output=/dev/null", "--time=20", *options, user=USER)


def ran_on(serving: WikiServing, job: str) -> frozenset[str]:
    """Return the nodes on which a job ran, as Slurm says."""
    assert isinstance(serving.system, SlurmCluster)
    shown = serving.system.run("scontrol", "show", "job", job)
    found = re.search(r"^\s+NodeList=(\S+)", shown, re.MULTILINE)
    assert found, shown
    assert re.search(r"JobState=COMPLETED", shown), shown
    return frozenset(serving.system.run("scontrol", "show", "hostnames", found[1]).split())


def run_all(serving: WikiServing, rounds: int) -> None:
    """Have so many jobs of each shape run, and compare what Slurm did with what was asked for."""
    impossible = {submit(serving, *options): (name, words) for name, (options, words) in NEVER.items()}
    jobs = {submit(serving, *options): name for _ in range(rounds) for name, options in SHAPES.items()}
    first = next(iter(jobs))
    jobs[submit(serving, "-n1", f"--dependency=afterok:{first}")] = "one"
    array = submit(serving, "-n1", "--array=0-3%2")
    elements = {f"{array}_{number}" for number in range(4)}
    maui = MauiStandIn(serving.peer(Dialect.WIKI), interval=1.0, defer=5.0)
    left = maui.run([*jobs, *elements], seconds=240 + 60 * rounds)
    assert not left, ({job: (jobs.get(job), maui.jobs.get(job)) for job in left}, maui.refusals, serving.details())
    assert maui.refusals == []
    for job, name in jobs.items():
        nodes = ran_on(serving, job)
        assert nodes <= NODES.get(name, nodes), (name, nodes)
        least, most = NUMBERS.get(name, (1, 4))
        assert least <= len(nodes) <= most, (name, nodes)
    for job, (name, words) in impossible.items():
        record = maui.jobs[job]
        assert (record.state, words in record.comment) == ("Hold", True), (name, record)
    assert Counter(job.state for job in maui.jobs.values())["Idle"] == 0


def test_every_shape_runs_where_its_user_allows(serving: WikiServing) -> None:
    """One job of each, two that cannot be told, an array with a throttle, and a job that waits for another."""
    run_all(serving, 1)


@pytest.mark.nightly
def test_two_hundred_jobs_of_all_shapes(serving: WikiServing) -> None:
    """None waits for a refused one, none violates its request."""
    run_all(serving, 15)


@pytest.mark.nightly
def test_kills_node_loss_and_requeues_lose_nothing(serving: WikiServing) -> None:
    """Kills every ten seconds, a node that goes away and comes back, jobs queued again: all run to their end."""
    assert isinstance(serving.system, SlurmCluster)
    cluster = serving.system
    jobs = {submit(serving, *options): name for _ in range(6) for name, options in SHAPES.items()}
    maui = MauiStandIn(serving.peer(Dialect.WIKI), interval=1.0, defer=5.0)
    left, begun, killed = set(jobs), time.monotonic(), 0
    while left and time.monotonic() < begun + 400:
        left = maui.run(left, seconds=10)
        if not left:
            break
        serving.kill()
        killed += 1
        if killed == 1:
            cluster.kill_node("n4")
            cluster.run("scontrol", "update", "NodeName=n4", "State=DOWN", "Reason=test")
            running = [row[0] for row in cluster.squeue("--states=RUNNING")]
            for job in running:
                cluster.run("scontrol", "requeue", job, check=False)
        if killed == 3:
            cluster.start_node("n4")
            cluster.return_to_use()
        for job in left:  # Slurm gives what was queued again a time to begin
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+2", check=False)
        serving.start()
    assert not left, ({job: (jobs[job], maui.jobs.get(job)) for job in left}, maui.refusals, serving.details())
    for job, name in jobs.items():
        nodes = ran_on(serving, job)
        assert nodes <= NODES.get(name, nodes), (name, nodes)
