# SPDX-License-Identifier: Apache-2.0
"""Jobs of a simulated workload as live ones: head elsewhere, workers that take units of work from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.dynaco.decide import PowerOfTwo
from koala_adapter.liveworkload.bag import Bag
from koala_adapter.model import Component, InputFile, Job, JobId, JobKind, Retirement, RunnerName

if TYPE_CHECKING:
    from koala_adapter.simulation.simulated_jobs import SimulatedJob

WORKER = Path(__file__).with_name("worker.py")
UNIT = 0.25
"""Seconds, at most, that a unit of work takes at a job's first size."""
WALLTIME = 24 * 3600
GRACE = 10
"""Seconds after which a worker that was asked to leave is killed; it leaves at once."""


def name_of(job: SimulatedJob) -> str:
    """Return the name under which a job is submitted."""
    return f"{job.application.name.lower()}-{job.number}"


def bag_of(job: SimulatedJob, pace: float) -> Bag:
    """Return the work of a job, to be done at a pace of so many of its seconds per second."""
    times = [time * job.work / pace for time in job.application.times()]
    return Bag(times, UNIT, at=job.initial)


def live_job(job: SimulatedJob, *, address: str, port: int, key: Path, user: str) -> Job:
    """Return a job whose workers find their bag at an address; ``key``: file with what they prove themselves by."""
    application = job.application
    low, high = (application.minimum, application.maximum) if job.malleable else (job.initial, job.initial)
    worker = Component(
        name="worker",
        command=("python3", WORKER.name, address, str(port), name_of(job)),
        minimum=low,
        maximum=high,
        initial=job.initial if job.malleable else None,
        input_files=tuple(InputFile(source=str(path), target=path.name) for path in (WORKER, key)),
        sizes="power-of-two" if isinstance(application.acceptance, PowerOfTwo) else "any",
        retirement=Retirement(grace=GRACE),
    )
    return Job(
        id=JobId("0"),
        name=name_of(job),
        kind=JobKind.MALLEABLE if job.malleable else JobKind.RIGID,
        components=(worker,),
        walltime=WALLTIME,
        user=user,
        submitted_at=0.0,
        placement=job.placement,
        runner=RunnerName.WORKERS if job.malleable else RunnerName.RANKS,
    )
