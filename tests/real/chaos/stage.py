# SPDX-License-Identifier: Apache-2.0
"""Two Slurm clusters, a Grid Engine cell and one user of koala on all three, for one chaos run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from koala_adapter.config.jobfile import load_job_text
from koala_adapter.errors import KoalaError
from koala_adapter.model import JobId
from koala_adapter.outcome import JobState
from tests.real.chaos.checks import END_SECONDS, History
from tests.real.chaos.plan import NODES
from tests.real.lrms import Traces
from tests.real.systems import CommandError, GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, SeenProcess, SystemDirectory, find_processes, wait_until
from tests.real.user import KoalaUser

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from koala_adapter.report.values import JobReport
    from tests.forkserver import Forked
    from tests.real.chaos.jobs import PlannedJob
    from tests.real.lrms import System


# -- The agents and ranks that run now, found by what the batch systems and koala put into their environments.

RANK_COMMANDS = frozenset({"sh", "allreduce"})


@dataclass(frozen=True, slots=True, order=True)
class Agent:
    """The agent in a placeholder."""

    cluster: str
    node: str
    lrm_id: str
    pid: int


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """A process of a job: the first of its rank, or the MPI program that this one started."""

    job: str
    rank: int
    pid: int

    @property
    def leads_its_group(self) -> bool:
        """Tell whether all processes of the rank can be stopped together."""
        try:
            return os.getpgid(self.pid) == self.pid
        except ProcessLookupError:
            return False


def agents(systems: Iterable[System]) -> list[Agent]:
    """Return all agents that run now."""
    found = []
    for process in _pythons(systems):
        parent = SeenProcess.read(process.parent)
        # The guard is a child of the agent.
        if parent is None or not parent.command.startswith("python"):
            for system in systems:
                agent = _agent(system, process)
                found += [] if agent is None else [agent]
    return sorted(found)


def _pythons(systems: Iterable[System]) -> list[SeenProcess]:
    def belongs(process: SeenProcess) -> bool:
        return process.command.startswith("python") and any(process.uses(system.directory) for system in systems)

    read = map(SeenProcess.read, find_processes(belongs))
    return [process for process in read if process is not None and belongs(process)]


def _agent(system: System, process: SeenProcess) -> Agent | None:
    environment = process.environment
    if not process.uses(system.directory):
        return None
    if isinstance(system, SlurmCluster):
        array, index = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        node = environment.get("SLURMD_NODENAME", "")
        return None if array is None else Agent(system.name, node, f"{array}_{index}", process.pid)
    number, index = environment.get("JOB_ID"), environment.get("SGE_TASK_ID")
    return None if number is None else Agent(system.name, "localhost", f"{number}.{index}", process.pid)


def ranks(mark: Mapping[str, str]) -> list[Rank]:
    """Return the ranks whose processes have a mark in their environments."""
    name, value = next(iter(mark.items()))
    found = []
    for pid in find_processes(lambda process: process.environment.get(name) == value):
        process = SeenProcess.read(pid)
        if process is None or process.command not in RANK_COMMANDS or "KOALA_RANK" not in process.environment:
            continue
        parent = SeenProcess.read(process.parent)
        # What a rank's shell is about to start is for a moment a shell, too.
        if process.command == "allreduce" or parent is None or parent.command != "sh":
            environment = process.environment
            found.append(Rank(environment["KOALA_JOB_ID"], int(environment["KOALA_RANK"]), pid))
    return sorted(found)


# -- Jobs that somebody follows by ``koala run``: what it prints and how it ends, whatever becomes of the service.

LINE = re.compile(rb"(?:c\d+/\d+: )?(job\d+ \d+ \d+)")
"""What a rank writes, with or without the mark of its rank."""


class Followed:
    """One job, the command that follows it, and what that prints."""

    def __init__(self, planned: PlannedJob, process: subprocess.Popen[bytes] | Forked, output: Path) -> None:
        """Take over a command that was just started."""
        self.planned = planned
        self._process = process
        self._output = output

    def close(self) -> None:
        """End the command at once, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(END_SECONDS)

    def ended(self) -> bool:
        """Tell whether the command has ended."""
        return self._process.poll() is not None

    def violations(self, report: JobReport | None) -> list[str]:
        """Compare the end of the command and what it printed with the job as it is known."""
        printed = self._output.read_bytes()
        code = self._process.poll()
        words = printed[-300:].decode(errors="replace")
        if report is None or report.outcome is None:
            return [f"`koala run` of {self.planned.name} submitted nothing that ended; {code}: {words}"]
        found = []
        if code != report.outcome.exit_code:
            found.append(f"`koala run` ended with {code}, its job with {report.outcome.exit_code}: {words}")
        if report.state is JobState.COMPLETED and not self.planned.mpi:
            size = sum(component.processors for component in report.components)
            found += printed_violations(printed, self.planned, size)
        return found


def printed_violations(printed: bytes, planned: PlannedJob, size: int) -> list[str]:
    """Say of which ranks of a completed job not all was printed, once and in order (their stderr is not printed)."""
    by_rank: dict[bytes, list[bytes]] = {}
    for line in printed.splitlines():
        match = LINE.fullmatch(line)
        if match is not None:
            by_rank.setdefault(match[1].split()[1], []).append(match[1])
    found = []
    for rank in range(size):
        wanted = planned.written(rank, "out").splitlines()
        shown = by_rank.get(b"%d" % rank, [])
        if shown != wanted:
            found.append(f"`koala run` printed {len(shown)} lines of rank {rank}, wanted are {len(wanted)}")
    return found


# -- Two Slurm clusters, a Grid Engine cell and one user of koala on all three, for one chaos run.

CENTER = {"lease": 30, "heartbeat": 2, "registration_timeout": 60}
SCHEDULER = {"placeholder_life": 20, "longest_backoff": 3, "reuse": True}
SOON_GIVEN_UP = {
    "SlurmdTimeout": "10",
    "MessageTimeout": "10",
    "KillWait": "2",
    "BatchStartTimeout": "10",
    "UnkillableStepTimeout": "20",
}
SOON_UNHEARD = {"max_unheard": "00:00:20"}
"""The batch systems take soon for dead what was killed or stopped."""
TENDING = 5.0
"""Seconds between two looks of the administrator of the batch systems."""
MOST_JOBS = 1000
PROLOG = '#!/bin/sh\necho "export TMPDIR={directory}/$SLURMD_NODENAME"\n'


class Stage:
    """The batch systems, the user, and what is known of the jobs; ``Stage.open`` starts and ends all of it."""

    def __init__(self, slurms: tuple[SlurmCluster, SlurmCluster], cell: GridEngineCell, user: KoalaUser) -> None:
        """Take what runs already; use ``open`` instead."""
        self.slurm = {cluster.name: cluster for cluster in slurms}
        self.cell = cell
        self.user = user
        self.traces = Traces(user)
        self.ledger = user.directory / "ledger"
        self.ledger.touch()
        self.began = time.monotonic()
        self.histories: dict[str, History] = {}
        """By job id, in order of submission."""
        self.reports: dict[str, JobReport] = {}
        """The latest of each job."""
        self.troubles: list[str] = []
        """What was seen on the way that must not be."""
        self.followed: list[Followed] = []
        self.forgotten: set[str] = set()
        """Names of jobs that were not over when the journal was lost."""
        self._before: set[str] = set()
        """Ids of jobs of before that have files."""
        self._kept: dict[Path, bytes] = {}
        """What their files held then."""
        self.service_hangs = False
        self.away: set[str] = set()
        """Clusters whose controller is killed or stopped."""
        self.execd_is_late = False
        """sge_qmaster was killed: sge_execd tells a new one only after minutes what has ended."""
        self._tended = self.began
        self._planned: dict[str, PlannedJob] = {}
        self._temporary: dict[str, Path] = {}

    @classmethod
    @contextmanager
    def open(cls, directory: Path) -> Iterator[Self]:
        """Bring everything up; at the end nothing of it is left."""
        with ExitStack() as opened:
            own = SystemDirectory.create("chaos")
            opened.callback(own.remove)
            temporary = {name: own.path / name for name in NODES}
            for name, path in temporary.items():
                for node in NODES[name]:
                    (path / node).mkdir(parents=True)
                    (path / node).chmod(0o1777)
            slurms = tuple(
                opened.enter_context(_slurm(name, temporary[name], own.path / f"prolog.{name}")) for name in "ab"
            )
            cell = opened.enter_context(GridEngineCell("c", slots=4, configuration=SOON_UNHEARD))
            cell.use_temporary_directory(temporary["c"] / "localhost")
            user = KoalaUser(directory, [*slurms, cell], center=CENTER, scheduler=SCHEDULER)
            opened.callback(user.close)
            user.serve()
            stage = cls((slurms[0], slurms[1]), cell, user)
            stage._temporary = temporary
            opened.callback(stage.let_service_go_on)
            opened.callback(stage.end_commands)
            yield stage

    @property
    def systems(self) -> list[System]:
        """All three."""
        return [*self.slurm.values(), self.cell]

    def system(self, cluster: str) -> System:
        """Return one by its name."""
        return self.slurm.get(cluster, self.cell)

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.began

    # -- jobs -------------------------------------------------------------------------------------------------

    def submit(self, planned: PlannedJob, mpi_program: Path) -> str:
        """Submit a job, by ``koala run`` or by the socket, and say what is known of it."""
        self._planned[planned.name] = planned
        text = planned.text(ledger=self.ledger, mpi_program=mpi_program, mark=self.traces.mark)
        if planned.followed:
            path = self.user.directory / f"{planned.name}.toml"
            path.write_text(text)
            output = path.with_suffix(".printed")
            self.followed.append(Followed(planned, self.user.start_into(output, "run", str(path)), output))
            return "followed"
        job = load_job_text(
            text, directory=self.user.directory, job_id=JobId(""), user="root", submitted_at=time.time()
        )
        id_ = self.user.client.submit(job)
        self.histories[id_] = History(planned)
        return f"job {id_}"

    def wait_submitted(self) -> None:
        """Return when every command has submitted its job, or ended."""

        def submitted() -> bool:
            self.look()
            known = {history.planned.name for history in self.histories.values()}
            return all(one.planned.name in known or one.ended() for one in self.followed)

        wait_until(submitted, seconds=PATIENCE, what="all commands have submitted their jobs")

    def end_commands(self) -> None:
        """End the commands that still run."""
        for one in self.followed:
            one.close()

    # -- the service -------------------------------------------------------------------------------------------------

    def stop_service(self) -> None:
        """Let the service hang."""
        if self.user.service is not None:
            self.user.service.send_signal(signal.SIGSTOP)
            self.service_hangs = True

    def let_service_go_on(self) -> None:
        """Let a service that hangs go on."""
        if self.service_hangs and self.user.service is not None:
            self.user.service.send_signal(signal.SIGCONT)
        self.service_hangs = False

    def look(self) -> None:
        """Read the reports of all jobs, unless there is no service to be asked: then nothing can have changed."""
        if self.service_hangs or self.user.service is None:
            return
        try:
            for report in self.user.client.jobs(limit=MOST_JOBS):
                if report.id in self._before:
                    trouble = f"job {report.id}, {report.name}, has the number of one of before"
                    self.troubles += [] if trouble in self.troubles else [trouble]
                    continue
                self.reports[report.id] = report
                history = self.histories.setdefault(report.id, History(self._planned[report.name]))
                history.note(report.outcome)
        except KoalaError as error:
            code = self.user.service.poll()
            if code is not None:
                self.troubles.append(f"at {self.now():.1f} s: the service ended by itself with {code}: {error}")
                self.user.service = None
                self.user.serve()
        self.traces.note_running()
        self._tend()

    def forget(self) -> list[str]:
        """Note that nothing is known any more of the jobs that are there; return the ids of those that are not over.

        Those without files are forgotten, too: their numbers may be given again.
        """
        self._before |= {path.name for path in (self.user.state / "jobs").iterdir()}
        over = {id_ for id_, report in self.reports.items() if report.over and id_ in self._before}
        gone = [id_ for id_ in self.histories if id_ not in over]
        for id_ in gone:
            self.forgotten.add(self.histories.pop(id_).planned.name)
            self.reports.pop(id_, None)
        for one in [one for one in self.followed if not one.ended() or one.planned.name in self.forgotten]:
            one.close()
            self.followed.remove(one)
        files = (path for path in (self.user.state / "jobs").rglob("*") if path.is_file())
        self._kept |= {path: path.read_bytes() for path in files}
        return gone

    def changed_files(self) -> list[str]:
        """Return which files of jobs that were forgotten are not as they were."""
        return [
            f"file of a job of before: {path}"
            for path, content in self._kept.items()
            if not path.exists() or path.read_bytes() != content
        ]

    def reap(self) -> None:
        """Have the placeholders of forgotten jobs cancelled, as their user does."""
        if self.forgotten:
            result = self.user.run_apart("reap", "--all", "--yes", timeout=2 * PATIENCE)
            if result.code:
                self.troubles.append(f"koala reap --all ended with {result.code}: {result.text}{result.stderr}")

    def restart_execd(self) -> None:
        """Start the daemon of the Grid Engine host anew; its jobs go on."""
        self.cell.kill_execd(with_jobs=False)
        self.cell.start_execd()
        self.execd_is_late = False

    def _tend(self) -> None:
        """Give nodes back to use that a batch system has taken out of it, as its administrator does now and then."""
        if time.monotonic() - self._tended < TENDING:
            return
        self._tended = time.monotonic()
        for system in self.systems:
            if system.name not in self.away:
                # Before a batch system is itself again it may not take this, or not in time.
                with suppress(CommandError, subprocess.TimeoutExpired):
                    system.return_to_use()

    def unfinished(self) -> list[JobReport]:
        """Return the latest reports of all jobs that have no outcome."""
        return [report for report in self.reports.values() if report.outcome is None]

    def job_of(self, cluster: str, lrm_id: str) -> str | None:
        """Return the job to which a placeholder belongs; None: to none that is unfinished."""
        for report in self.unfinished():
            for component in report.components:
                if component.cluster == cluster and lrm_id in component.lrm_ids:
                    return report.id
        return None

    # -- temporary directories ---------------------------------------------------------------------------------------

    def clear_temporary(self, cluster: str, node: str) -> None:
        """Remove the temporary files of a node, as its next start does after a power cut."""
        for path in (self._temporary[cluster] / node).iterdir():
            shutil.rmtree(path, ignore_errors=True)

    def left_in_temporary(self) -> list[str]:
        """Return what is in the temporary directories of the nodes."""
        paths = [path for directory in self._temporary.values() for path in directory.glob("*/*")]
        return [f"temporary directory {path}" for path in sorted(paths)]


def _slurm(name: str, temporary: Path, prolog: Path) -> SlurmCluster:
    """Return a cluster whose jobs have their temporary directories, one for each node, below a path."""
    prolog.write_text(PROLOG.format(directory=temporary))
    prolog.chmod(0o755)
    return SlurmCluster(name, nodes=len(NODES[name]), cpus=4, settings={"TaskProlog": str(prolog), **SOON_GIVEN_UP})
