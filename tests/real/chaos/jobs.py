# SPDX-License-Identifier: Apache-2.0
"""The jobs of a chaos run: shapes and ends drawn from a source of chance, their job files, what their ranks write.

Pure: touches no file, clock or process.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.errors import EXIT_REFUSED, EXIT_WALLTIME
from koala_adapter.outcome import JobState
from tests.real.user import toml

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

CLUSTERS = ("a", "b", "c")
SMALLEST, SMALLEST_SIZE = "c", 4
"""The cluster that does not have room for any two components, and its processors."""
LONGEST_WALLTIME = 300
"""Seconds: no job that ends by itself comes near it, whatever is paused meanwhile."""
FOR_EVER = 900
TOO_MANY = 99
"""Processors that no cluster has."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR2)
"""Not SIGUSR1: MPICH keeps that for itself, so it ends no rank."""

RANK = """\
echo "$KOALA_JOB_NAME $KOALA_RANK" >>"{ledger}"
write() {{ seq -f "{name} $KOALA_RANK %.0f" "$1" "$2"; seq -f "{name} $KOALA_RANK error %.0f" "$1" "$2" >&2; }}
write 1 {half}
sleep {seconds}
write {next} {lines}
[ "$KOALA_RANK" != {culprit} ] || {end}
"""
"""Each rank notes its start by one write at the end of the ledger. The last line is for the one that ends badly."""

MPI_RANK = 'echo "$KOALA_JOB_NAME $KOALA_RANK" >>"{ledger}"; sleep {seconds}; exec "$0" "$@"'


class End(StrEnum):
    """How a job ends when nothing happens to it."""

    COMPLETES = "completes"
    EXITS = "exits"
    SIGNALLED = "is killed by a signal"
    OVERRUNS = "overruns its walltime"
    NOT_FOUND = "has no program"
    TOO_LARGE = "is too large"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedComponent:
    """A component: equal bounds unless the job is moldable."""

    cluster: str | None
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job; its name is that in the ledger."""

    name: str
    mpi: bool
    components: tuple[PlannedComponent, ...]
    end: End
    number: int
    """Exit status or signal of the rank that ends badly."""
    culprit: int
    """Rank that ends badly."""
    seconds: float
    """Time that each rank works."""
    lines: int
    """Lines that each rank of a job without MPI writes to each stream."""
    walltime: int
    followed: bool
    """Submitted by ``koala run``, which shows its output and ends with its exit code, instead of by the socket."""

    @property
    def moldable(self) -> bool:
        """Tell whether the scheduler chooses the size."""
        return any(component.minimum != component.maximum for component in self.components)

    def result(self) -> tuple[JobState, int]:
        """Return the final state and exit code when nothing happens to the job."""
        match self.end:
            case End.COMPLETES:
                return JobState.COMPLETED, 0
            case End.EXITS:
                return JobState.FAILED, self.number
            case End.SIGNALLED:
                return JobState.FAILED, 128 + self.number
            case End.OVERRUNS:
                return JobState.FAILED, EXIT_WALLTIME
            case End.NOT_FOUND:
                return JobState.FAILED, 127
            case End.TOO_LARGE:
                return JobState.REFUSED, EXIT_REFUSED

    def text(self, *, ledger: Path, mpi_program: Path, mark: Mapping[str, str]) -> str:
        """Return the job file; ``mark`` is put into the environment of all ranks."""
        command = self._command(ledger, mpi_program)
        launcher = {"launcher": "mpi"} if self.mpi else {}
        kind = {"kind": "moldable"} if self.moldable else {}
        parts = []
        for component in self.components:
            size: dict[str, int] = {"minimum": component.minimum, "maximum": component.maximum}
            if not self.moldable:
                size = {"processors": component.minimum}
            pinned = {} if component.cluster is None else {"cluster": component.cluster}
            table = {"command": command, **size, **pinned, "environment": mark}
            parts.append(f"\n[[components]]\n{toml(table)}")
        return toml({"name": self.name, "walltime": self.walltime, **kind, **launcher}) + "".join(parts)

    def written(self, rank: int, stream: str) -> bytes:
        """Return all that a rank of a job without MPI writes when it comes to its end."""
        word = "" if stream == "out" else "error "
        return b"".join(b"%s %d %s%d\n" % (self.name.encode(), rank, word.encode(), n + 1) for n in range(self.lines))

    def _command(self, ledger: Path, mpi_program: Path) -> list[str]:
        if self.end is End.NOT_FOUND:
            return ["no-such-program"]
        if self.mpi:
            end = {End.EXITS: "exit", End.SIGNALLED: "kill"}.get(self.end)
            seconds = FOR_EVER if self.end is End.OVERRUNS else self.seconds
            last = [] if end is None else [end, str(self.culprit), str(self.number)]
            return ["sh", "-c", MPI_RANK.format(ledger=ledger, seconds=seconds), str(mpi_program), *last]
        script = RANK.format(
            ledger=ledger,
            name=self.name,
            half=self.lines // 2,
            seconds=FOR_EVER if self.end is End.OVERRUNS else self.seconds,
            next=self.lines // 2 + 1,
            lines=self.lines,
            culprit=self.culprit if self.end in {End.EXITS, End.SIGNALLED} else -1,
            end=f"exit {self.number}" if self.end is End.EXITS else f"kill -{self.number} $$",
        )
        return ["sh", "-c", script]


def drawn_job(chance: random.Random, name: str) -> PlannedJob:
    """Return a job of a random shape that ends in a random way."""
    mpi = chance.random() < 0.25
    moldable = chance.random() < 0.3
    components: list[PlannedComponent] = []
    for _ in range(chance.choice((1, 1, 2, 2, 3))):
        minimum = chance.randint(1, 3)
        maximum = chance.randint(minimum, 4) if moldable else minimum
        cluster = chance.choice(CLUSTERS) if chance.random() < 0.5 else None
        there = sum(component.minimum for component in components if component.cluster == cluster == SMALLEST)
        cluster = None if there + minimum > SMALLEST_SIZE else cluster
        components.append(PlannedComponent(cluster=cluster, minimum=minimum, maximum=maximum))
    end = chance.choices(list(End), weights=(60, 12, 10, 8, 3, 1))[0]
    if end is End.TOO_LARGE:
        components[0] = PlannedComponent(cluster=None, minimum=TOO_MANY, maximum=TOO_MANY)
    number = chance.randint(1, 99) if end is End.EXITS else int(chance.choice(SIGNALS))
    return PlannedJob(
        name=name,
        mpi=mpi,
        components=tuple(components),
        end=end,
        number=number,
        culprit=chance.randrange(sum(component.minimum for component in components)),
        seconds=round(chance.uniform(0.0, 8.0), 1),
        lines=chance.choice((0, 1, 10, 10, 200, 20_000)),
        walltime=chance.randint(2, 8) if end is End.OVERRUNS else LONGEST_WALLTIME,
        followed=chance.random() < 0.3,
    )
