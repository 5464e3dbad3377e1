# SPDX-License-Identifier: Apache-2.0
"""Commands: the processor time of those that only ask, and what a short job costs beside ``sbatch --wait``.

python -m benchmarks.commands asking [--repeat 7]
python -m benchmarks.commands history [--repeat 7] [--jobs 100000] [--days 100]
python -m benchmarks.commands short-job [--repeat 7]
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import PYTHONPATH, Row, beside, command_cost, least, main, median_rows, slurm_site
from koala_adapter.outcome import EndReason, JobOutcome, JobState
from koala_adapter.report.values import ComponentReport
from tests.local_koala import Koala
from tests.real.systems import SlurmCluster
from tests.unit.api.jobreports import job_report, keep_reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.report.values import JobReport


def asking(*, repeat: int = 7) -> list[Row]:
    """Processor time of short commands over that of ``python -c "import click"``, which none can do without.

    A service runs on two local clusters and has run a job; each command asks it. The least of several runs counts: what
    is more than that came from other work on the machine.
    """
    with tempfile.TemporaryDirectory() as directory:
        koala = Koala(Path(directory))
        try:
            job = koala.job("true")
            koala.serve()
            koala.run("run", job)
            commands: dict[str, Sequence[str]] = {"import click": [sys.executable, "-c", "import click"]}
            for words in (
                "--version", "--help", "status --json", "status", "explain 1", "logs 1", "cancel 1", "clusters",
                f"plan {job}", f"submit {job}", "run --quiet -n 1 -- true", "check --no-submit",
            ):  # fmt: skip
                commands[words.replace(job, "JOB")] = koala.command(*words.split())
            return _least_beside_first(koala, commands, repeat)
        finally:
            koala.close()


def history(*, repeat: int = 7, jobs: int = 100_000, days: int = 100) -> list[Row]:
    """Processor time of questions about kept jobs over that of ``koala --version``.

    No service runs. So many jobs have ended in so many days, every tenth of them badly. The least of several runs
    counts, as for ``asking``.
    """
    with tempfile.TemporaryDirectory() as directory:
        koala = Koala(Path(directory))
        now, step = time.time(), days * 86_400 / jobs
        keep_reports(koala.state, (_ended(number, now - (jobs - number) * step) for number in range(1, jobs + 1)))
        questions = (
            "--version", "history", "history --since 1d", "history --since 1d --failed --name train-*",
            "history --name other", "status",
        )  # fmt: skip
        return _least_beside_first(koala, {words: koala.command(*words.split()) for words in questions}, repeat)


def _least_beside_first(koala: Koala, commands: Mapping[str, Sequence[str]], repeat: int) -> list[Row]:
    """Return the processor time of commands, and its ratio to that of the first."""

    def cost(command: Sequence[str]) -> float:
        return command_cost(command, koala.environment)["processor, s"]

    times = least({name: partial(cost, command) for name, command in commands.items()}, repeat)
    return beside({name: {"processor, s": used} for name, used in times.items()}, "processor, s")


def _ended(number: int, at: float) -> JobReport:
    """Return the report of a job on four nodes."""
    state = JobState.COMPLETED if number % 10 else JobState.FAILED
    part = ComponentReport(
        name="main",
        command=("./simulate", "--steps", str(number)),
        cluster="alpha",
        processors=4,
        held=0,
        queued=0,
        lrm_ids=tuple(f"{number}_{index}" for index in range(4)),
        hosts=tuple(f"node{index:03}" for index in range(4)),
        first_rank=0,
        waited=9.0,
    )
    return job_report(
        id=str(number),
        name=f"train-{number % 7}",
        state=state,
        submitted_at=at - 60,
        launched_at=at - 50,
        finished_at=at,
        components=(part,),
        outcome=JobOutcome(state=state, reason=EndReason.EXITED, exit_code=int(state is JobState.FAILED)),
    )


def short_job(*, repeat: int = 7) -> list[Row]:
    """What it costs to run one short job, beside ``sbatch --wait``, on a real Slurm.

    The baseline is ``sbatch --wait`` of a script that prints the name of the host. ``koala run -n 1 -- hostname`` is
    the service itself; its processor time is that of the process and of all commands of Slurm that it started, without
    the agent's.

    Needs the Debian packages slurmctld, slurmd and slurm-client, and root.
    """
    commands = {
        "sbatch --wait": ["sbatch", "--wait", "--output=/dev/null", "--chdir=/", "--wrap=hostname"],
        "koala run": [sys.executable, "-m", "koala_adapter.cli", "run", "-n", "1", "--", "hostname"],
    }
    with SlurmCluster("bench", nodes=2, cpus=4) as cluster, tempfile.TemporaryDirectory() as directory:
        # Each `koala run` is a service of its own with four requests; the default bound is sixty a minute.
        site = slurm_site(Path(directory), cluster.conf, requests_per_minute=6000)
        environment = {
            **cluster.environment(),
            "HOME": directory,
            "PYTHONPATH": PYTHONPATH,
            "KOALA_SITE": str(site),
            "KOALA_STATE": f"{directory}/state",
        }
        command_cost(commands["koala run"], environment)  # makes the certificate and compiles what is not compiled
        ways = {name: partial(command_cost, command, environment) for name, command in commands.items()}
        return median_rows(ways, repeat, "elapsed, s")


if __name__ == "__main__":
    main(asking, history, short_job)
