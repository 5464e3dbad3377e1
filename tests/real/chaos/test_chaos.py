# SPDX-License-Identifier: Apache-2.0
"""Chaos, in the night: one short run with the nightly tests; as many as fit with ``tox run -e chaos``.

``--chaos-seed N`` begins with the plan of seed N, so it repeats what a violation names.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.real.chaos.actors import act
from tests.real.chaos.checks import violations
from tests.real.chaos.plan import make_plan
from tests.real.chaos.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.chaos.conftest import Wanted

pytestmark = [
    pytest.mark.real("slurmctld", "slurmd", "sge_qmaster", "sge_execd", "mpicc", "mpiexec.hydra"),
    pytest.mark.nightly,
]


def tell(line: str) -> None:
    """Show progress."""
    print(line, flush=True)  # noqa: T201 - a long run shows what it does


def run(seed: int, seconds: float, directory: Path, mpi_program: Path) -> list[str]:
    """Run the plan of a seed; return the violations, told with how to repeat them."""
    plan = make_plan(seed, seconds)
    directory.mkdir()
    (directory / "plan.txt").write_text(str(plan))
    tell(f"chaos of seed {seed}: {len(plan.jobs)} jobs, {plan.faults} faults in {seconds:g} s")
    began = time.monotonic()
    with Stage.open(directory / "user") as stage:
        act(plan, stage, mpi_program=mpi_program, tell=tell)
        found = [f"seed {seed}: {line}" for line in violations(stage)]
        if found:
            logs = "\n".join(system.logs() for system in stage.systems)
            (directory / "systems.txt").write_text(f"{stage.user.details()}\n{logs}")
    tell(f"chaos of seed {seed}: {len(found)} violations, {time.monotonic() - began:.0f} s")
    for line in found:
        tell(line)
    if found:
        tell(f"plan, state and log: {directory}; repeat: tox run -e chaos -- --chaos-seed {seed}\n{plan}")
    return found


def test_chaos(tmp_path: Path, allreduce: Path, wanted: Wanted) -> None:
    """Whatever goes wrong: one final state for each job, each rank started once, nothing left."""
    until = time.monotonic() + wanted.in_all
    found: list[str] = []
    seed = wanted.seed
    while True:
        found += run(seed, wanted.seconds, tmp_path / str(seed), allreduce)
        if time.monotonic() >= until:
            break
        seed += 1
    assert found == []
