# SPDX-License-Identifier: Apache-2.0
"""How a job ended, what its processes wrote, and the files that they left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.api.logprinter import LogPrinter
from koala_adapter.errors import JobFailedError, KoalaError
from koala_adapter.python.display import mimebundle

if TYPE_CHECKING:
    from collections.abc import Container

    from koala_adapter.api.reports import JobReport
    from koala_adapter.scheduler.outcome import JobState

LAST_LINES = 5
"""Lines of standard error in the message of a job that failed."""


@dataclass(frozen=True, slots=True, repr=False)
class JobResult:
    """A job that has ended."""

    report: JobReport
    """Everything that is known of it."""

    def __repr__(self) -> str:
        """Say which job it is and how it ended."""
        return f"<koala.JobResult {self.id} {self.report.name}: {self.state.value}, exit code {self.exit_code}>"

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        """Return what a notebook shows."""
        del include, exclude
        return mimebundle(self.report)

    @property
    def id(self) -> str:
        """The id of the job, for `koala status` and `koala logs`."""
        return self.report.id

    @property
    def state(self) -> JobState:
        """Its final state."""
        return self.report.state

    @property
    def exit_code(self) -> int:
        """Its own exit code, or what `koala run` ends with: 241 not placed, 242 lost, 243 cancelled, 244 walltime."""
        return 1 if self.report.outcome is None else self.report.outcome.exit_code

    @property
    def ok(self) -> bool:
        """True when it has done what it was to do: exit code 0."""
        return self.exit_code == 0

    @property
    def detail(self) -> str:
        """Why it ended as it did, in one sentence; empty when there is nothing to say."""
        return "" if self.report.outcome is None else self.report.outcome.detail

    @property
    def directory(self) -> Path:
        """Where its output is: ``COMPONENT/RANK.out``, ``.err``, and the output files in ``COMPONENT/RANK``."""
        return Path(self.report.output_directory)

    @property
    def stdout(self) -> str:
        """What its processes wrote to standard output; lines are marked component/rank when there are several."""
        return text_of(self.report)

    @property
    def stderr(self) -> str:
        """What its processes wrote to standard error, in the same way."""
        return text_of(self.report, stderr=True)

    def output(self, component: str | None = None, rank: int | None = None, *, stderr: bool = False) -> str:
        """Return what one process wrote, or those of a component; ``rank`` counts from 0 in each component."""
        return text_of(self.report, component, rank, stderr=stderr)

    @property
    def files(self) -> tuple[Path, ...]:
        """The output files of all processes that have arrived, in order."""
        found: list[Path] = []
        for name in sorted({one.name for one in self.report.components}):
            ranks = [path for path in (self.directory / name).glob("*") if path.name.isdecimal() and path.is_dir()]
            for rank in sorted(ranks, key=lambda path: int(path.name)):
                found += sorted(path for path in rank.rglob("*") if path.is_file() and not path.is_symlink())
        return tuple(found)

    def check(self) -> None:
        """Raise JobFailedError unless the job ended well."""
        if self.ok:
            return
        said = f": {self.detail}" if self.detail else ""
        last = self.stderr.splitlines()[-LAST_LINES:]
        lines = "".join(f"\n  {line}" for line in last)
        raise JobFailedError(
            f"job {self.id} {self.report.name}: {self.state.value}{said}{lines}",
            hint=f"all that it wrote is in {self.directory}",
            job_id=self.id,
            job_exit_code=self.exit_code,
        )


def text_of(report: JobReport, component: str | None = None, rank: int | None = None, *, stderr: bool = False) -> str:
    """Return what the processes of a job have written so far. What is no UTF-8 is replaced.

    Raises KoalaError when the state directory with it is not there any more.
    """
    directory = Path(report.output_directory)
    if not directory.parent.parent.is_dir():
        message = f"the output of job {report.id} is gone: its state directory, {directory.parent.parent}, was removed"
        raise KoalaError(message, hint="read it before a koala.local_site() ends")
    return OutputFollower(report, component, rank, stderr=stderr).new_text(report, rest=True)


class OutputFollower:
    """Reads what the processes of a job, or some of them, write, each piece of it once."""

    def __init__(self, report: JobReport, component: str | None, rank: int | None, *, stderr: bool) -> None:
        """``component``, ``rank``: None for all of them."""
        self._component, self._rank = component, rank
        self._pieces: list[bytes] = []
        suffix = ".err" if stderr else ".out"
        directory = Path(report.output_directory)
        self._printer = LogPrinter(directory, component=component, rank=rank, suffix=suffix, write=self._pieces.append)

    def new_text(self, report: JobReport, *, rest: bool) -> str:
        """Return what is new; ``rest``: also a line without an end."""
        self._printer.print_new(marked=report.processes(self._component, self._rank) > 1, rest=rest)
        text = b"".join(self._pieces).decode("utf-8", "replace")
        self._pieces.clear()
        return text

    def new_lines(self, report: JobReport) -> list[str]:
        """Return the lines that are new, and what is left of one when the job has ended."""
        text = self.new_text(report, rest=report.outcome is not None)
        return text.removesuffix("\n").split("\n") if text else []
