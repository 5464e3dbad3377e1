# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks note that they ran, write for a while, and end, when told, with a code for the user to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import KoalaUser, part

CODE = 5
"""Exit code of the last rank, once all others have ended with 0."""

SCRIPT = """\
echo "$KOALA_RANK" >>"{ran}"
i=0
while [ $i -lt {lines} ]; do i=$((i+1)); echo "line $i"; echo "error $i" >&2; sleep 0.2; done
until [ -e "{go}" ]; do sleep 0.2; done
if [ "$KOALA_RANK" = {last} ]; then
    while [ "$(wc -l <"{over}")" -lt {last} ]; do sleep 0.1; done
    exit {code}
fi
echo "$KOALA_RANK" >>"{over}"
"""


class NotedRanks:
    """Components of ranks that leave notes in a directory which all nodes see."""

    def __init__(self, directory: Path, clusters: Mapping[str, int], *, lines: int, mark: Mapping[str, str]) -> None:
        """``clusters``: number of ranks by cluster, one component for each; ``mark``: added to their environment."""
        self._notes = directory
        self._notes.mkdir(parents=True)
        for name in ("ran", "over"):
            (self._notes / name).touch()
        self._clusters = clusters
        self._lines = lines
        self._mark = mark

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self._clusters.values())

    def parts(self) -> Sequence[str]:
        """Return the components of a job file."""
        script = SCRIPT.format(
            ran=self._notes / "ran",
            over=self._notes / "over",
            go=self._notes / "go",
            lines=self._lines,
            last=self.size - 1,
            code=CODE,
        )
        return [part(name, count, "sh", "-c", script, environment=self._mark) for name, count in self._clusters.items()]

    def mpi_parts(self, program: Path, *arguments: str) -> Sequence[str]:
        """Return components that run an MPI program after the note; it ends with its own code."""
        script = f'echo "$KOALA_RANK" >>"{self._notes / "ran"}"; exec "$0" "$@"'
        command = ("sh", "-c", script, str(program), *arguments)
        return [part(name, count, *command, environment=self._mark) for name, count in self._clusters.items()]

    def let_end(self) -> None:
        """Let the ranks end when they have written all; until then they run."""
        (self._notes / "go").touch()

    def ran(self) -> list[int]:
        """Return the ranks that ran, one entry for each time, in order of their numbers."""
        return self._numbers("ran")

    def over(self) -> list[int]:
        """Return the ranks, all but the last, that came to their end."""
        return self._numbers("over")

    def written(self, stream: str = "out") -> bytes:
        """Return what each rank writes."""
        word = {"out": "line", "err": "error"}[stream]
        return b"".join(f"{word} {number}\n".encode() for number in range(1, self._lines + 1))

    def _numbers(self, name: str) -> list[int]:
        return sorted(int(line) for line in (self._notes / name).read_text().split())


def expect_noted_end(user: KoalaUser, job: str, ranks: NotedRanks, report: JobReport) -> None:
    """Insist that each rank ran once and wrote everything, and that the code of the last one is the job's."""
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.FAILED, CODE), report
    assert report.outcome.rank == ranks.size - 1
    assert ranks.ran() == list(range(ranks.size))
    for component in report.components:
        for rank in range(component.processors):
            for stream in ("out", "err"):
                expect_output(user, job, (component.name, rank, stream), ranks.written(stream))


def expect_output(user: KoalaUser, job: str, place: tuple[str, int, str], written: bytes) -> None:
    """Insist on what a rank wrote: the job has ended when one has failed, while others are yet to be heard."""
    wait_until(
        lambda: user.output_of(job, *place) == written,
        seconds=PATIENCE,
        what=f"all that {place} wrote",
        details=lambda: f"{user.output_of(job, *place)!r}\n{user.details()}",
    )
