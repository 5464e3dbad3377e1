# SPDX-License-Identifier: Apache-2.0
"""``koala status --watch``: jobs as they change, refreshed in place on a terminal, a line for each change elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rich.console import Group
from rich.live import Live

from koala_adapter.cli.tables import job_lines, jobs_table
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.python.display import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

    from rich.console import Console

    from koala_adapter.api.reports import JobReport
    from koala_adapter.cli.fittingtable import FittingTable
    from koala_adapter.cli.session import Session

T = TypeVar("T")

AGAIN = 3600.0
"""Seconds for which a service is waited for at a time."""
OTHER_LINES = 2
"""Lines of a terminal that the rows of jobs must leave: the heading, and the one with the cursor."""


class Watched:
    """What a person sees of jobs while they go on."""

    def __init__(self, console: Console) -> None:
        """Show on ``console``."""
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Begin the live display, if there is a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what was shown last."""
        self._live.stop()

    def show(self, reports: Sequence[JobReport]) -> None:
        """Show all jobs as they are now; on a terminal those that it has lines for, the latest ones."""
        if not self._console.is_terminal:
            self._say({report.id: one_line(report) for report in reports} or {"": "no jobs"})
            return
        self._live.update(self._fitting(reports) if reports else "no jobs", refresh=True)

    def _fitting(self, reports: Sequence[JobReport]) -> FittingTable:
        """Return the table of the latest jobs that have room; where it is narrow, one has several lines."""
        room = max(1, self._console.height - OTHER_LINES)
        shown = reports[-room:]
        while len(shown) > 1 and len(self._console.render_lines(jobs_table(shown))) >= self._console.height:
            shown = shown[1:]
        return jobs_table(shown)

    def show_one(self, report: JobReport) -> None:
        """Show one job in detail."""
        if self._console.is_terminal:
            self._live.update(Group(*job_lines(report)), refresh=True)
        else:
            self._say({report.id: one_line(report)})

    def _say(self, lines: dict[str, str]) -> None:
        for job_id, line in lines.items():
            if self._said.get(job_id) != line:
                self._said[job_id] = line
                self._console.print(line, markup=False, soft_wrap=True)


def watch_all(session: Session, limit: int) -> None:
    """Show the jobs at each change, until Ctrl-C."""
    with Watched(session.console) as watched:
        until_interrupted(watched.show, _reports(session, limit))


def watch_one(session: Session, job_id: str) -> None:
    """Show a job at each change, until it is over or Ctrl-C. Raises JobNotFoundError."""
    with Watched(session.console) as watched:
        until_interrupted(watched.show_one, _reports_of(session, job_id))


def until_interrupted(show: Callable[[T], None], changes: Iterable[T]) -> None:
    """Show each change; Ctrl-C is the ordinary end of it."""
    try:
        for one in changes:
            show(one)
    except KeyboardInterrupt:
        return


def _reports(session: Session, limit: int) -> Iterator[list[JobReport]]:
    while True:
        try:
            yield from session.client.watch_jobs(limit)
        except ServiceUnavailableError:
            yield session.here.recorded().jobs(limit)
            session.remark("no service runs; waiting for one")
            while not session.client.wait_until_running(AGAIN):
                pass


def _reports_of(session: Session, job_id: str) -> Iterator[JobReport]:
    while True:
        try:
            yield from session.client.watch(job_id)
        except ServiceUnavailableError:
            report = session.here.recorded().job(job_id)
            yield report
            if report.over:
                return
            session.remark("no service runs; waiting for one")
            while not session.client.wait_until_running(AGAIN):
                pass
        else:
            return
