# SPDX-License-Identifier: Apache-2.0
"""Following one job to its end: live progress on standard error, the processes' output where they wrote it."""

from __future__ import annotations

import sys
from contextlib import closing as closing_reports
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from koala_adapter.api.logprinter import LogPrinter
from koala_adapter.cli.session import abandon_output
from koala_adapter.cli.tables import (
    bar,
    components_table,
    files_lines,
    output_place,
    run_time,
    seconds,
    styled,
    sweep_lines,
    sweep_state,
    waiting_time,
)
from koala_adapter.python.display import one_line

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Self

    from rich.console import Console, RenderableType

    from koala_adapter.api.reports import JobReport


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
    """What a person sees while a job goes on: a live table on a terminal, a line per change elsewhere.

    It may be left and entered again; what was shown is not shown again.
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        """Show on ``console``, which is standard error, as what processes write there is. ``quiet``: show nothing."""
        self._console = console
        self._quiet = quiet
        self._live = self._new_live()
        self._printers: tuple[LogPrinter, ...] = ()
        self._said = ""
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
        """End it."""
        self._live.stop()

    def show(self, report: JobReport) -> None:
        """Show a job as it is now."""
        if self._quiet:
            return
        if not self._printers:
            directory = Path(report.output_directory)
            self._printers = (
                LogPrinter(directory, write=self._write),
                LogPrinter(directory, suffix=".err", write=self._write_error),
            )
        for printer in self._printers:
            printer.print_new(marked=report.processes() > 1, rest=report.over or report.concluded)
        if report.trouble != self._trouble:
            self._trouble = report.trouble
            text = report.trouble or "What koala could not write can be written again."
            self._console.print(text, style="red" if report.trouble else "", markup=False, soft_wrap=True)
        if self._console.is_terminal:
            self._live.update(_progress(report))
        elif (line := one_line(report)) != self._said:
            self._said = line
            self._console.print(line, markup=False, soft_wrap=True)

    def _write(self, data: bytes) -> None:
        try:
            self._write_to_standard_output(data)
        except BrokenPipeError:
            # Whoever read the output has seen enough of it; the job is not theirs to end. It is all in the files.
            abandon_output()

    def _write_error(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if self._console.is_terminal:
            self._live.console.print(Text(text.rstrip("\n")), soft_wrap=True)
        else:
            self._console.file.write(text)
            self._console.file.flush()

    def _write_to_standard_output(self, data: bytes) -> None:
        if self._console.is_terminal and sys.stdout.isatty():
            self._live.console.print(Text(data.decode("utf-8", "replace").rstrip("\n")), soft_wrap=True)
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _progress(report: JobReport) -> RenderableType:
    clock = f"waiting {seconds(waiting_time(report))}"
    if report.launched_at is not None:
        clock = f"running {seconds(run_time(report))} of at most {seconds(float(report.walltime))}"
    if report.outcome is not None:
        clock = f"cleaning up, {report.placeholders_left} placeholders left"
    head = Text.from_markup(f"job [bold]{report.id}[/] {escape(report.name)}  {styled(report.state)}  {clock}")
    lines: list[RenderableType] = [Spinner("dots", text=head), *_sweep_bar(report), components_table(report)]
    if report.launched_at is None and report.outcome is None:
        lines.append(Text(report.explanation, style="dim"))
    return Group(*lines)


def _sweep_bar(report: JobReport) -> list[RenderableType]:
    sweep = report.sweep
    if sweep is None:
        return []
    return [Text.from_markup(f"{bar(sweep.done + sweep.failed, sweep.total)}{sweep_state(report)}")]


def closing(report: JobReport, console: Console, *, where: bool = True) -> None:
    """Print how a job ended, and ``where`` its output is."""
    outcome = report.outcome
    detail = f": {escape(outcome.detail)}" if outcome is not None and outcome.detail else ""
    console.print(f"job [bold]{report.id}[/] {escape(report.name)}: {styled(report.state)}{detail}")
    console.print(components_table(report))
    code = "-" if outcome is None else outcome.exit_code
    output = f"; {output_place(report)}" if where else ""
    times = f"waited {seconds(waiting_time(report))}, ran {seconds(run_time(report))}"
    console.print(f"{times}, exit code {code}{output}", soft_wrap=True)
    for line in (*sweep_lines(report), *files_lines(report)):
        console.print(line, markup=False, soft_wrap=True)
    if report.placeholders_left and not report.concluded:
        console.print(
            f"[yellow]{report.placeholders_left} placeholders are still ending;[/] "
            "`koala status` shows them, `koala reap` removes what stays"
        )
