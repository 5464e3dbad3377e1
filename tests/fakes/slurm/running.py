# SPDX-License-Identifier: Apache-2.0
"""Starting jobs on fake nodes, running their scripts, and noting how they end."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.scripts import detach, end_script, run_script, signal_script
from tests.fakes.slurm.allocation import place
from tests.fakes.slurm.state import Job, Store

if TYPE_CHECKING:
    from tests.fakes.slurm.state import State


def schedule(store: Store, state: State) -> None:
    """Start every pending job that fits, in order of submission."""
    for job in sorted(state.jobs, key=lambda job: job.id):
        if job.state != "PENDING" or job.reason.startswith("JobHeld"):
            continue
        places = place(store, state, job)
        if places:
            _start(store, job, places)
        else:
            job.reason = "Resources"


def _start(store: Store, job: Job, places: dict[str, int]) -> None:
    job.state, job.reason, job.started, job.ended, job.status = "RUNNING", "None", time.time(), 0.0, 0
    job.places, job.node = places, next(iter(places))
    job.fate = ""
    store.process(job).unlink(missing_ok=True)
    # Not read from the state: whoever cancels the job holds its lock, and waits for the script to have a process.
    store.order(job.id).write_text(json.dumps(asdict(job)))
    number = job.id
    job.runner = detach(lambda: run(store, number))


def send(store: Store, job: Job, number: int) -> None:
    """Send a signal to all processes of a job's script, once it has some."""
    signal_script(store.process(job), number)


def end(store: Store, job: Job, fate: str) -> None:
    """Take a running job's processes away; it enters the state ``fate`` when they are gone."""
    job.state, job.fate = "COMPLETING", fate
    end_script(store.process(job), job.runner)


def run(store: Store, number: int) -> None:
    """Run the script of a job to its end, note that, and start what now fits."""
    job = Job(**json.loads(store.order(number).read_text()))
    name = job.output.replace("%%", "\0").replace("%x", job.name).replace("%a", str(job.element)).replace("\0", "%")
    ended = run_script(
        store.script(job),
        output=Path(name),
        environment={
            **job.environment,
            "SLURM_JOB_ID": str(job.id),
            "SLURM_ARRAY_JOB_ID": str(job.array),
            "SLURM_ARRAY_TASK_ID": str(job.element),
            "SLURMD_NODENAME": job.node,
        },
        process_file=store.process(job),
        seconds=job.minutes * 60,
    )
    with store.locked() as state:
        job = next(job for job in state.jobs if job.id == number)
        _note_end(job, ended.status, "TIMEOUT" if ended.timed_out and not job.fate else job.fate)
        schedule(store, state)


def _note_end(job: Job, status: int, fate: str) -> None:
    job.status = -status if status < 0 else status << 8
    job.ended = time.time()
    if fate == "PENDING":
        job.reason = job.reason if job.reason == "JobHeldUser" else "None"
        job.state, job.node, job.started, job.ended = "PENDING", "", 0.0, 0.0
        job.places = {}
    elif fate:
        job.state = fate
    else:
        job.state = "FAILED" if status else "COMPLETED"
        job.reason = "NonZeroExitCode" if status else "None"
