# SPDX-License-Identifier: Apache-2.0
"""What an outside scheduler's listing of all jobs costs on Slurm: by squeue and scontrol, and by pyslurm, in one run.

On a real Slurm with so many held jobs, of which a few change before each listing. Processor time of this process with
the commands or the helper, and of slurmctld; requests; and what the first listing takes. The ways take turns, and
medians are shown with their ratio.

    KOALA_TEST_SLURM=/opt/slurm python -m benchmarks.slurmlisting listings [--jobs 1000,20000] [--repeat 9]

Needs a Slurm, root, and pyslurm of its release.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio

from benchmarks.common import Row, main, medians, processor_time
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import new_context
from koala_adapter.testing.trial import begin_start
from koala_slurm import SlurmSettings
from koala_slurm.lrm import SlurmLrm
from tests.real.systems import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

WAYS = ("commands", "pyslurm")
Costs: TypeAlias = "dict[str, list[dict[str, float]]]"
"""By way."""
CHANGED = 10
"""Jobs that change before each listing."""


class Side:
    """One way to the jobs."""

    def __init__(self, cluster: SlurmCluster, access: str, directory: Path) -> None:
        """Nothing is asked yet."""
        self.access = access
        self._cluster = cluster
        self._requests = 0
        context = new_context(directory)
        context.commands.observer = self._count
        settings = SlurmSettings.model_validate({**cluster.plugin_settings, "access": access})
        self.lrm = SlurmLrm(context, settings)

    def _count(self, _name: str, _seconds: float, _failure: str) -> None:
        self._requests += 1

    async def measured(self, what: Callable[[], Awaitable[object]]) -> dict[str, float]:
        """Do something; return the processor time here with all children, that of slurmctld, and the requests."""
        before = self._used()
        await what()
        return {name: value - before[name] for name, value in self._used().items()}

    def _used(self) -> dict[str, float]:
        own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        library = self.lrm.library
        helper = processor_time(library.client.helper_pid) if library and library.client.helper_pid else 0.0
        controller = int((self._cluster.directory / "slurmctld.pid").read_text())
        return {
            "here": own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + helper,
            "controller": processor_time(controller),
            "requests": self._requests,
        }


async def first_listings(sides: Sequence[Side], jobs: int) -> list[Row]:
    """Return what the first listing costs: of pyslurm with the start of its helper."""
    costs = {side.access: [await side.measured(side.lrm.jobs_to_schedule)] for side in sides}
    return rows_of(f"{jobs:,} jobs, first listing", costs)


async def few_changes(cluster: SlurmCluster, sides: Sequence[Side], jobs: int, repeat: int) -> list[Row]:
    """Return what a listing costs before which a few jobs have changed."""
    ids = [job.id for job in await sides[0].lrm.jobs_to_schedule() if job.state is LrmJobState.HELD][:CHANGED]
    costs: Costs = {side.access: [] for side in sides}
    for turn in range(repeat):
        cluster.run("scontrol", "update", f"JobId={','.join(ids)}", f"TimeLimit={turn + 20}")
        for side in sides:
            costs[side.access].append(await side.measured(side.lrm.jobs_to_schedule))
    return rows_of(f"{jobs:,} jobs", costs)


async def starts(cluster: SlurmCluster, sides: Sequence[Side], repeat: int) -> list[Row]:
    """Return what a start of a held job of one processor costs."""
    costs: Costs = {side.access: [] for side in sides}
    for _ in range(repeat):
        for side in sides:
            job = LrmJobId(cluster.submit("#!/bin/sh\n", "--hold", "-n1", "--output=/dev/null"))
            await side.lrm.jobs_to_schedule()
            costs[side.access].append(await side.measured(partial(begin_start, side.lrm, job, ["n1"])))
    return rows_of("a start", costs)


def rows_of(what: str, costs: Costs) -> list[Row]:
    """Return a row for each quantity, with its median by each way."""
    found = {way: medians(turns) for way, turns in costs.items()}
    return [
        {
            "": f"{what}: {name}",
            **{way: values[name] for way, values in found.items()},
            "ratio": found["pyslurm"][name] / commands if commands else math.nan,
        }
        for name, commands in found["commands"].items()
    ]


FILL = """
import sys, pyslurm
pyslurm.slurm_init(sys.argv[1])
for index in range(int(sys.argv[2]), int(sys.argv[3])):
    pyslurm.JobSubmitDescription(
        name=f"job{index}", script="#!/bin/sh\\n", ntasks=1 + index % 3, priority=0, time_limit=10,
        environment={"A": "b"}, working_directory="/", standard_output="/dev/null", comment=f"comment {index}",
    ).submit()
"""


def fill(cluster: SlurmCluster, first: int, last: int) -> None:
    """Submit held jobs with these indices; 20,000 sbatch would take many minutes."""
    argv = [sys.executable, "-c", FILL, str(cluster.conf), str(first), str(last)]
    subprocess.run(argv, check=True, env={**os.environ, "PYSLURM_DISABLE_AUTO_INIT": "1"})


async def measure(numbers: Sequence[int], repeat: int) -> list[Row]:
    """Return all rows."""
    rows: list[Row] = []
    settings = {"MaxJobCount": str(2 * max(numbers) + 5000)}
    with tempfile.TemporaryDirectory() as directory, SlurmCluster("listing", settings=settings) as cluster:
        there = 0
        for number in numbers:
            fill(cluster, there, number)
            there = number
            sides = [Side(cluster, way, Path(directory) / f"{way}{number}") for way in WAYS]
            for side in sides:
                await side.lrm.start()
            rows += await first_listings(sides, number)
            rows += await few_changes(cluster, sides, number, repeat)
            if number == numbers[0]:
                rows += await starts(cluster, sides, repeat)
            for side in sides:
                await side.lrm.close()
    return rows


def listings(*, jobs: tuple[int, ...] = (1000, 20_000), repeat: int = 9) -> list[Row]:
    """What a listing of all jobs costs by commands and by pyslurm, in seconds of processor time, and in requests."""
    return anyio.run(measure, jobs, repeat)


if __name__ == "__main__":
    main(listings)
