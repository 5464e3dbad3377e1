# SPDX-License-Identifier: Apache-2.0
"""Jobs that somebody follows by ``koala run``: what it prints and how it ends, whatever becomes of the service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.outcome import JobState

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from koala_adapter.report.values import JobReport
    from tests.forkserver import Forked
    from tests.real.chaos.jobs import PlannedJob

END_SECONDS = 60.0
"""Bound on the time from the end of a job to that of the command that follows it."""
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
