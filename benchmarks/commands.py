# SPDX-License-Identifier: Apache-2.0
"""Commands: the processor time of those that only ask, and what a short job costs beside ``sbatch --wait``.

python -m benchmarks.commands asking [--repeat 7]
python -m benchmarks.commands history [--repeat 7] [--jobs 100000] [--days 100]
python -m benchmarks.commands short-job [--repeat 7] [--files 20]
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import PYTHONPATH, Row, beside, command_cost, in_turns, least, main, medians, slurm_site
from koala_adapter.outcome import EndReason, JobOutcome, JobState
from koala_adapter.report.values import ComponentReport
from tests.local_koala import Koala
from tests.real.systems import SlurmCluster
from tests.unit.api.jobreports import job_report, keep_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


class Bench:
    """A user of koala with one Slurm cluster."""

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        """``directory``: for the site, the state and job files."""
        self._directory = directory
        # Each `koala run` is a service of its own and asks ten times; the default bound of sixty a minute is for one.
        site = slurm_site(directory, cluster.conf, requests_per_minute=6000)
        self._environment = {
            **cluster.environment(),
            "HOME": str(directory),
            "PYTHONPATH": PYTHONPATH,
            "KOALA_SITE": str(site),
            "KOALA_STATE": str(directory / "state"),
        }

    def koala(self, *arguments: str) -> dict[str, float]:
        """Return what one command of koala cost."""
        return command_cost([sys.executable, "-m", "koala_adapter.cli", *arguments], self._environment)

    def sbatch(self) -> dict[str, float]:
        """Return what it cost to wait for one job of Slurm's own."""
        command = ["sbatch", "--wait", "--output=/dev/null", "--chdir=/", "--wrap=hostname"]
        return command_cost(command, self._environment)

    def job_files(self, count: int) -> list[str]:
        """Write so many job files and return their paths."""
        paths = [self._directory / f"job{number}.toml" for number in range(count)]
        for path in paths:
            path.write_text('walltime = "1m"\n[[components]]\ncommand = ["true"]\nprocessors = 1\n')
        return [str(path) for path in paths]


def short_job(*, repeat: int = 7, files: int = 20) -> list[Row]:
    """What it costs to run one short job, beside ``sbatch --wait``, and to submit many, on a real Slurm.

    The baseline is ``sbatch --wait`` of a script that prints the name of the host. ``koala run -n 1 -- hostname`` is
    the service itself; its processor time is that of the process and of all commands of Slurm that it started, without
    the agent's. Then ``koala status``, ``logs`` and ``explain`` of such a job, with a service and without, and with it
    one ``koala submit`` for each of N files, and one of all of them.

    Needs the Debian packages slurmctld, slurmd and slurm-client, and root.
    """
    with SlurmCluster("bench", nodes=2, cpus=4) as cluster, tempfile.TemporaryDirectory() as directory:
        bench = Bench(cluster, Path(directory))
        one_job = partial(bench.koala, "run", "-n", "1", "--", "hostname")
        asked = {name: partial(bench.koala, *name.split()) for name in ("status", "logs 1", "explain 1")}
        one_job()  # which makes the certificate and compiles what is not compiled
        ways: dict[str, Callable[[], dict[str, float]]] = {"sbatch --wait": bench.sbatch, "koala run": one_job}
        found = in_turns(ways, repeat)
        found |= in_turns({f"koala {name}, no service": ask for name, ask in asked.items()}, repeat)
        paths = bench.job_files(files)
        bench.koala("submit", paths[0])
        try:
            found |= in_turns({f"koala {name}, with a service": ask for name, ask in asked.items()}, repeat)
            found["koala submit, one file at a time"] = [bench.koala("submit", path) for path in paths]
            together = bench.koala("submit", *paths)
        finally:
            bench.koala("serve", "--stop")
    found[f"koala submit, {files} files at once"] = [{name: value / files for name, value in together.items()}]
    return beside({name: medians(turns) for name, turns in found.items()}, "elapsed, s")


if __name__ == "__main__":
    main(asking, history, short_job)
