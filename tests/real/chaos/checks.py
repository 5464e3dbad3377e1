# SPDX-License-Identifier: Apache-2.0
"""How each job of a chaos run may end, and what must hold when the run is over."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.errors import EXIT_CANCELLED, EXIT_LOST
from koala_adapter.outcome import JobState
from tests.real.chaos.jobs import End
from tests.real.lrms import WORDS, submissions
from tests.real.systems import SystemFailedError
from tests.real.systems.processes import wait_until

if TYPE_CHECKING:
    from koala_adapter.outcome import JobOutcome
    from koala_adapter.report.values import JobReport
    from tests.real.chaos.jobs import PlannedJob
    from tests.real.chaos.stage import Stage

END_SECONDS = 60.0
"""Bound on the time from the end of a job to that of the command that follows it."""


# -- How each job may end: as planned, or as docs/failures.md says of what happened to it. Pure: touches no file,
# clock or process.


class Result(NamedTuple):
    """Final state and exit code."""

    state: JobState
    code: int


class Consequence(Enum):
    """What the documentation says of a job to which something happens."""

    CANCELLED = Result(JobState.CANCELLED, EXIT_CANCELLED)
    """By the user, or its placeholder through the batch system while it ran."""
    LOST = Result(JobState.LOST, EXIT_LOST)
    """Agent, placeholder or node gone while it ran."""
    RANK_KILLED = Result(JobState.FAILED, 128 + 9)
    NOT_STARTED = Result(JobState.FAILED, 126)
    """An agent could not start its process."""


@dataclass
class History:
    """What happened to one job, and its outcomes as they were seen."""

    planned: PlannedJob
    happened: list[tuple[str, Consequence]] = field(default_factory=list)
    outcomes: list[JobOutcome] = field(default_factory=list)
    """All different ones: there may be one only."""

    @property
    def own(self) -> Result:
        """How the job ends by itself."""
        return Result(*self.planned.result())

    def allowed(self) -> set[Result]:
        """Return the results that the job may have: a fault may also have come when it was just over."""
        return {self.own, *(consequence.value for _, consequence in self.happened)}

    def hit(self, what: str, *consequences: Consequence) -> None:
        """Note that something happened to the job."""
        self.happened += [(what, consequence) for consequence in consequences]

    def note(self, outcome: JobOutcome | None) -> None:
        """Keep an outcome that is seen."""
        if outcome is not None and (not self.outcomes or self.outcomes[-1] != outcome):
            self.outcomes.append(outcome)

    def violations(self) -> list[str]:
        """Say in which ways the end of the job is not as it must be. Empty: it is."""
        if not self.outcomes:
            return [f"{self.planned.name} has no final state"]
        found = []
        if len(self.outcomes) > 1:
            found.append(f"{self.planned.name} has several final states: {self.outcomes}")
        last = self.outcomes[-1]
        result = Result(last.state, last.exit_code)
        if result not in self.allowed():
            wanted = ", ".join(f"{one.state} {one.code}" for one in sorted(self.allowed()))
            what = "; ".join(what for what, _ in self.happened) or "nothing"
            found.append(
                f"{self.planned.name} ended as {result.state} {result.code} ({last.detail}), may end as {wanted}; "
                f"it {self.planned.end}; what happened to it: {what}"
            )
        return found


# -- What must hold when a chaos run is over; each violation is a line that names what it concerns.

STILL_SECONDS = 120.0
"""Longest time without the end of a job once the faults are over: a lease, some lives of placeholders, sge_execd.

After that sge_execd is started anew, once: one that was cut off from sge_qmaster may never tell it what has ended.
"""
CLEAN_SECONDS = 60.0
"""Bound on the time from the end of all jobs until nothing is left."""
SIGNS = ("Traceback", "failed on an event", "a defect of koala")


def violations(stage: Stage) -> list[str]:
    """Wait for the end of all jobs and return what is not as it must be. Empty: all is well."""
    found = [*_unfinished(stage), *_followed(stage)]
    stage.reap()
    found += [*stage.troubles, *stage.changed_files()]
    for id_, history in stage.histories.items():
        found += [f"job {id_}: {line}" for line in history.violations()]
        if id_ in stage.reports:
            found += [f"job {id_}: {line}" for line in _output(stage, history, stage.reports[id_])]
    found += ledger_violations(stage.ledger.read_text(), _sizes(stage))
    found += _left(stage)
    for system in stage.systems:
        names = Counter(name for name, _ in submissions(system, stage.user.prefix))
        found += [f"{system.name}: {name} was submitted {count} times" for name, count in names.items() if count > 1]
    log = stage.user.log.read_text(errors="replace")
    return found + [f"the log of the service has {sign!r}" for sign in SIGNS if sign in log]


def _unfinished(stage: Stage) -> list[str]:
    stage.wait_submitted()
    if stage.execd_is_late:
        stage.restart_execd()
    over = [0]

    def further() -> bool:
        stage.look()
        over.append(sum(report.over for report in stage.reports.values()))
        return over[-1] > over[-2]

    for _ in range(2):
        with suppress(SystemFailedError):
            while over[-1] < len(stage.histories):
                wait_until(further, seconds=STILL_SECONDS, what="the next job over")
            return []
        stage.restart_execd()
    missing = [f"job {id_} is not known any more" for id_ in stage.histories if id_ not in stage.reports]
    late = [report for report in stage.reports.values() if not report.over]
    return missing + [
        f"job {report.id} is {report.state}, with {report.placeholders_left} placeholders, and for "
        f"{STILL_SECONDS:g} s no job was over: {report.explanation}"
        for report in late
    ]


def _followed(stage: Stage) -> list[str]:
    with suppress(SystemFailedError):
        wait_until(lambda: all(one.ended() for one in stage.followed), seconds=END_SECONDS, what="end of commands")
    by_name = {report.name: (report.id, report) for report in stage.reports.values()}
    found = []
    for one in stage.followed:
        id_, report = by_name.get(one.planned.name, ("", None))
        found += [f"job {id_}: {line}" for line in one.violations(report)]
    return found


def _sizes(stage: Stage) -> dict[str, int | None]:
    """Return by name of a job how many ranks must have been started; None: at most one of each number."""
    sizes: dict[str, int | None] = dict.fromkeys(stage.forgotten)
    for id_, history in stage.histories.items():
        completed = bool(history.outcomes) and history.outcomes[-1].state is JobState.COMPLETED
        without = history.planned.end in {End.NOT_FOUND, End.TOO_LARGE}
        size = sum(component.processors for component in stage.reports[id_].components) if completed else None
        sizes[history.planned.name] = 0 if without else size
    return sizes


def ledger_violations(ledger: str, sizes: dict[str, int | None]) -> list[str]:
    """Compare the notes of all ranks with the sizes of the jobs."""
    notes = Counter(ledger.splitlines())
    found = [f"started {count} times: rank {note}" for note, count in notes.items() if count > 1]
    by_job: dict[str, set[str]] = {name: set() for name in sizes}
    for note in notes:
        name, _, rank = note.partition(" ")
        by_job.setdefault(name, set()).add(rank)
    for name, ranks in by_job.items():
        size = sizes.get(name)
        if name not in sizes or (size is not None and ranks != {str(rank) for rank in range(size)}):
            found.append(f"{name} ran as ranks {sorted(ranks)}, wanted are {size}")
    return found


def _output(stage: Stage, history: History, report: JobReport) -> list[str]:
    """Say whose output is not the beginning of what it writes, or not all of it where it came to its end."""
    planned, found = history.planned, []
    if planned.end in {End.NOT_FOUND, End.TOO_LARGE}:
        return []
    completed = report.state is JobState.COMPLETED
    outcome = report.outcome
    for component in report.components:
        for index in range(component.processors if component.first_rank is not None else 0):
            rank = (component.first_rank or 0) + index
            by_itself = outcome is not None and outcome.rank == rank and planned.end in {End.EXITS, End.SIGNALLED}
            complete = completed or (by_itself and not history.happened)
            for stream in ("out", "err"):
                written = stage.user.output_of(report.id, component.name, index, stream)
                if planned.mpi:
                    good = mpi_output_is_good(written, rank, stream, complete=completed)
                else:
                    wanted = planned.written(rank, stream)
                    good = written == wanted if complete else wanted.startswith(_without_words_of_shell(written))
                if not good:
                    text = f"{len(written)} bytes, of which the last are {written[-60:]!r}"
                    found.append(f"output of {component.name}/{index} ({stream}), {report.state}: {text}")
    if outcome is not None and not history.happened and planned.end in {End.EXITS, End.SIGNALLED}:
        found += [] if outcome.rank == planned.culprit else [f"told is rank {outcome.rank}, not {planned.culprit}"]
    return found


def _without_words_of_shell(written: bytes) -> bytes:
    """Return what a rank wrote before its shell said which signal ended the command for which it waited."""
    for words in (b"Terminated\n", b"Killed\n"):
        written = written.removesuffix(words)
    return written


def mpi_output_is_good(written: bytes, rank: int, stream: str, *, complete: bool) -> bool:
    """Tell whether a rank of the MPI program wrote its one line: in full, or not at all where it was ended."""
    if stream == "err" or (not complete and not written):
        # MPICH may complain there about the end of another rank.
        return True
    line = re.fullmatch(rb"rank=(\d+) size=(\d+) host=\S+ component=\S+ sum=(\d+)\n", written)
    if line is None:
        return False
    told, size, total = map(int, line.groups())
    return told == rank and total == size * (size + 1) // 2


def _left(stage: Stage) -> list[str]:
    def left() -> list[str]:
        # What a placeholder said whose agent had no time to remove it is kept for the user.
        mine = [one for one in stage.traces.left() if not one.startswith(WORDS)]
        if stage.forgotten:
            # Scripts of submissions that are not known any more are removed after an hour.
            mine = [one for one in mine if "/scripts/" not in one or stage.user.prefix in one]
        return mine + stage.left_in_temporary()

    with suppress(SystemFailedError):
        wait_until(lambda: not left(), seconds=CLEAN_SECONDS, what="nothing left")
        return []
    return [f"left: {one}" for one in left()]
