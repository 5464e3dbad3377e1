# SPDX-License-Identifier: Apache-2.0
"""Jobs followed on a terminal: one to its end (``koala run``), then jobs watched (``koala status --watch``)."""

from __future__ import annotations

import sys
from contextlib import closing as closing_reports
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from koala_adapter.api.statedirectory import LogPrinter
from koala_adapter.cli.console import AsWritten
from koala_adapter.cli.display import (
    bar,
    components_table,
    files_lines,
    job_lines,
    jobs_table,
    output_place,
    seconds,
    styled,
    sweep_lines,
    sweep_state,
    transfer_line,
    usage_line,
)
from koala_adapter.cli.terminal import abandon_output
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.python.jobs import Progress, awaited, one_line
from koala_adapter.report.values import JobReport, run_time, waiting_time

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from typing import Self

    from rich.console import Console, RenderableType

    from koala_adapter.cli.display import FittingTable
    from koala_adapter.cli.session import Session


# -- Following one job to its end ----------------------------------------------------------------------------
# Live progress on standard error; the output of the processes stays in the files that they wrote.


def follow(reports: Generator[JobReport, None, None], display: Display, *, released: bool = True) -> JobReport:
    """Show a job until it is over and return its last report.

    ``released``: that nothing is left of it in any LRM is awaited, too.
    """
    last: JobReport | None = None
    with display, closing_reports(reports):
        for report in reports:
            display.show(report)
            last = report
            if report.concluded and not released:
                break
    if last is None:
        raise AssertionError("a watch gives at least one report")
    return last


class Display:
    """Progress of one job: a live table on a terminal, else a line for each change.

    It may be left and entered again; what was shown is not shown again.
    """

    def __init__(self, console: Console, *, quiet: bool, output: bool = True) -> None:
        """Show on ``console``, which is standard error, as what processes write there is.

        ``quiet``: show no progress; ``output``: show what processes write.
        """
        self.latest: JobReport | None = None
        """The report that came last."""
        self._console = console
        self._quiet = quiet
        self._output = output
        self._live = self._new_live()
        self._printers: tuple[LogPrinter, ...] = ()
        self._progress = Progress()
        self._trouble = ""

    def __enter__(self) -> Self:
        """Begin the live display, if there is a terminal."""
        if self._console.is_terminal and not self._quiet:
            self._live = self._new_live()
            self._live.start()
        return self

    def _new_live(self) -> Live:
        return Live(console=self._console, refresh_per_second=8, transient=True, redirect_stdout=False)

    def __exit__(self, *_: object) -> None:
        """Stop the live display."""
        self._live.stop()

    def show(self, report: JobReport) -> None:
        """Show the present state of a job."""
        self.latest = report
        if self._output:
            self._show_output(report)
        if self._quiet:
            return
        if report.trouble != self._trouble:
            self._trouble = report.trouble
            text = report.trouble or "What koala could not write can be written again."
            self._console.print(text, style="red" if report.trouble else "", markup=False, soft_wrap=True)
        if self._console.is_terminal:
            self._live.update(_progress(report))
            return
        for line in self._progress.new_lines(report):
            self._console.print(line, markup=False, soft_wrap=True)

    def _show_output(self, report: JobReport) -> None:
        if not self._printers:
            directory = Path(report.output_directory)
            self._printers = (
                LogPrinter(directory, write=self._write, unfinished=True, attempts=True),
                LogPrinter(directory, suffix=".err", write=self._write_error, unfinished=True, attempts=True),
            )
        for printer in self._printers:
            printer.print_new(marked=report.processes() > 1, rest=report.over or report.concluded)

    def _write(self, data: bytes) -> None:
        try:
            self._write_to_standard_output(data)
        except BrokenPipeError:
            # The reader of the output, such as head(1), has ended. The job goes on, and its files have all of it.
            abandon_output()

    def _write_error(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if self._console.is_terminal:
            self._live.console.print(AsWritten(text), soft_wrap=True, end="")
        else:
            self._console.file.write(text)
            self._console.file.flush()

    def _write_to_standard_output(self, data: bytes) -> None:
        if self._console.is_terminal and sys.stdout.isatty():
            self._live.console.print(AsWritten(data.decode("utf-8", "replace")), soft_wrap=True, end="")
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _progress(report: JobReport) -> RenderableType:
    clock = f"waiting {seconds(waiting_time(report))}"
    if report.launched_at is not None:
        clock = f"running {seconds(run_time(report))} of at most {seconds(float(report.walltime))}"
    if report.outcome is not None:
        clock = f"cleaning up, {report.placeholders_left} placeholders left"
    name = f"[bold]{report.id}[/] {escape(report.name)}"
    head = Text.from_markup(f"job {name}  {styled(report.state)}  {clock}", emoji=False)

    files = [Text.from_markup(transfer_line(one), emoji=False) for one in report.transfers]
    lines: list[RenderableType] = [Spinner("dots", text=head), *_sweep_bar(report), *files, components_table(report)]
    if waits_for := awaited(report):
        lines.append(Text(waits_for, style="dim"))
    return Group(*lines)


def _sweep_bar(report: JobReport) -> list[RenderableType]:
    sweep = report.sweep
    if sweep is None:
        return []
    return [Text.from_markup(f"{bar(sweep.done + sweep.failed, sweep.total)}{sweep_state(report)}", emoji=False)]


def closing(report: JobReport, console: Console, *, where: bool = True) -> None:
    """Print the end of a job; ``where``: also the directory of its output."""
    outcome = report.outcome
    detail = f": {escape(outcome.detail)}" if outcome is not None and outcome.detail else ""
    console.print(f"job [bold]{report.id}[/] {escape(report.name)}: {styled(report.state)}{detail}")
    console.print(components_table(report))
    code = "-" if outcome is None else outcome.exit_code
    output = f"; {output_place(report)}" if where else ""
    times = f"waited {seconds(waiting_time(report))}, ran {seconds(run_time(report))}"
    console.print(f"{times}, exit code {code}{output}", soft_wrap=True)
    for line in (*filter(None, [usage_line(report)]), *sweep_lines(report), *files_lines(report)):
        console.print(line, markup=False, soft_wrap=True)
    if report.placeholders_left and not report.concluded:
        console.print(
            f"[yellow]{report.placeholders_left} placeholders are still ending;[/] "
            "`koala status` shows them, `koala reap` removes what stays"
        )


# -- Watching jobs -------------------------------------------------------------------------------------------
# ``koala status --watch``: refreshed in place on a terminal, a line for each change elsewhere.

T = TypeVar("T")

AGAIN = 3600.0
"""Seconds for which a service is waited for at a time."""
OTHER_LINES = 2
"""Lines of a terminal that the rows of jobs must leave: the heading, and the one with the cursor."""


class Watched:
    """Live table of several jobs, or printed changes without a terminal."""

    def __init__(self, console: Console) -> None:
        """Show jobs on ``console``."""
        self._console = console

        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._said: dict[str, str] = {}
        self._progress = Progress()

    def __enter__(self) -> Self:
        """Begin the live display, if there is a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the live display; the last picture stays."""
        self._live.stop()

    def show(self, reports: Sequence[JobReport]) -> None:
        """Show the present state of jobs; on a terminal the latest ones that fit."""
        if not self._console.is_terminal:
            self._say({report.id: one_line(report) for report in reports} or {"": "no jobs"})
            return
        self._live.update(self._fitting(reports) if reports else "no jobs", refresh=True)

    def _fitting(self, reports: Sequence[JobReport]) -> FittingTable:
        """Return the table of as many of the latest jobs as fit; narrow tables take several lines for each."""
        room = max(1, self._console.height - OTHER_LINES)
        shown = reports[-room:]
        while len(shown) > 1 and len(self._console.render_lines(jobs_table(shown))) >= self._console.height:
            shown = shown[1:]
        return jobs_table(shown)

    def show_one(self, report: JobReport) -> None:
        """Show one job in detail."""
        if self._console.is_terminal:
            self._live.update(Group(*job_lines(report)), refresh=True)
            return
        for line in self._progress.new_lines(report):
            self._console.print(line, markup=False, soft_wrap=True)

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
    """Show each change until Ctrl-C, which ends the command normally."""
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
