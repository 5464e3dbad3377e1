# SPDX-License-Identifier: Apache-2.0
"""Jobs and clusters drawn on a terminal, and jobs followed until they end.

In this order: the size of a job over time, tables for narrow terminals, tables and lines made of reports, following one
job (``koala run``), watching jobs (``koala status --watch``). Everything is drawn from reports alone, except that the
existence of a directory of output is looked up.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing as closing_reports
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from koala_adapter.api.statedirectory import LogPrinter
from koala_adapter.cli.console import AsWritten
from koala_adapter.cli.listing import COLUMNS, NOW_COLUMNS, Kind, short_time
from koala_adapter.cli.session import abandon_output
from koala_adapter.config.tomlfile import printable, show_duration, show_size
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.outcome import JobState
from koala_adapter.python.jobs import Progress, awaited, one_line
from koala_adapter.report.values import run_time, waiting_time

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from typing import Self

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from koala_adapter.cli.listing import Column
    from koala_adapter.cli.session import Session
    from koala_adapter.report.sitevalues import ClusterFiles, ClusterReport
    from koala_adapter.report.values import ComponentReport, JobReport, TransferReport, UsageReport


# -- Size of a job over time ---------------------------------------------------------------------------------
# One line of characters, made of a report without I/O.


def size_now(report: JobReport) -> int:
    """Return the number of processors of a job."""
    return sum(component.processors for component in report.components)


def sizes_over_time(report: JobReport, points: int) -> list[int]:
    """Return a job's processors at ``points`` times, evenly from launch to end or now.

    What its latest changes tell of, of which so many are kept; before them it is taken to have had one size.
    """
    if report.launched_at is None or points < 1:
        return []
    until = report.finished_at or report.reported_at
    span = max(0.0, until - report.launched_at)
    moments = [report.launched_at + span * (number + 1) / points for number in range(points)]
    places = {(one.name, one.cluster) for one in report.components if one.cluster}
    size = sum(report.size_at_last(name, cluster) for name, cluster in places)
    sizes, changes = [], list(report.size_changes)
    for moment in reversed(moments):
        while changes and changes[-1].at > moment:
            change = changes.pop()
            size -= change.after - change.before
        sizes.append(size)
    return sizes[::-1]


STEPS = "▁▂▃▄▅▆▇█"
"""Heights, from little to much."""


def sparkline(values: Sequence[int]) -> str:
    """Return one bar character for each value, scaled to the largest."""
    largest = max(values, default=0)
    if largest <= 0:
        return STEPS[0] * len(values)
    return "".join(STEPS[max(0, -(-value * len(STEPS) // largest) - 1)] for value in values)


# -- Tables for narrow terminals -----------------------------------------------------------------------------
# Nothing is cut off: where the columns do not fit, each row becomes some short lines.

GAP = 2
"""Columns between two cells."""
LONG = 16
"""Cells that are longer may go on below themselves before the table is given up."""
INDENT = "  "


class FittingTable(Table):
    """Table that is printed row by row as a list where the terminal is too narrow (renderable of rich)."""

    def __init__(self, *headings: str) -> None:
        """Create a table without rows."""
        super().__init__(*headings, box=None, pad_edge=False, header_style="dim")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table if it fits, else its rows as lists."""
        if self.row_count and self._least_width() > options.max_width:
            yield from self._stacked(options.max_width)
        else:
            yield from super().__rich_console__(console, options)

    def _least_width(self) -> int:
        """Return the width that the table needs when long cells wrap."""
        widths = []
        for column in self.columns:
            longest = max(len(_text(cell).plain) for cell in (column.header, *column.cells))
            widths.append(longest if column.no_wrap else min(LONG, longest))
        return sum(widths) + GAP * (len(widths) - 1)

    def _stacked(self, width: int) -> Iterator[RenderableType]:
        columns = [(_text(column.header).plain, list(column.cells)) for column in self.columns]
        for number in range(self.row_count):
            name, *cells = [(heading, _text(values[number])) for heading, values in columns]
            line = Text.assemble(name[1], style="bold")
            for heading, value in cells:
                if not value.plain:
                    continue
                part = Text.assemble((f"{heading} " if heading else "", "dim"), value)
                if line.cell_len + GAP + part.cell_len > width and line.plain.strip():
                    yield line
                    line = Text(INDENT)
                line.append_text(Text("" if line.plain == INDENT else " " * GAP)).append_text(part)
            yield line


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell), emoji=False)


# -- Tables and lines of jobs and clusters -------------------------------------------------------------------

_STYLES = {
    JobState.WAITING: "yellow",
    JobState.CLAIMING: "yellow",
    JobState.LAUNCHING: "cyan",
    JobState.RUNNING: "cyan",
    JobState.COMPLETED: "green",
}
BAR = 12
FINE = 10.0
"""Durations below this (seconds) are shown with a decimal."""
MOST_NAMED = 8
"""Files in one line."""
SHORT = 120
"""Durations below this (seconds) are shown in seconds, longer ones as hours, minutes and seconds."""


def state_style(state: JobState) -> str:
    """Return the colour of a state."""
    return _STYLES.get(state, "red")


def styled(state: JobState) -> str:
    """Return the state as coloured markup."""
    return f"[{state_style(state)}]{state.value}[/]"


def seconds(value: float | None) -> str:
    """Return a duration in words; a dash for None."""
    if value is None:
        return "-"
    if value < FINE:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < SHORT else show_duration(round(value))


def bar(part: int, whole: int) -> str:
    """Return a bar that is filled by ``part`` of ``whole``."""
    full = BAR if whole <= 0 else round(BAR * min(part, whole) / whole)
    return f"[green]{'━' * full}[/][dim]{'╌' * (BAR - full)}[/]"


def components_table(report: JobReport) -> FittingTable:
    """Return the table of a job's components: clusters, processors, nodes."""
    table = FittingTable()
    for heading in ("component", "cluster", "held", "", "waited", "hosts"):
        table.add_column(heading)
    for component in report.components:
        table.add_row(
            escape(component.name),
            component.cluster or "[dim]-[/]",
            f"{held(report, component)} of {component.processors}",
            bar(held(report, component), component.processors),
            seconds(component.waited),
            escape(_few(component.nodes)),
        )
    return table


def held(report: JobReport, component: ComponentReport) -> int:
    """Return the processors of a component, or those that it had when it ran."""
    return component.processors if report.finished_at and report.launched_at else component.held


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown  # noqa: PLR2004 - as many as shown


def job_lines(report: JobReport) -> list[str | FittingTable]:
    """Return the lines that show a job in detail."""
    lines: list[str | FittingTable] = [
        f"job [bold]{report.id}[/] ({escape(report.name)}): {styled(report.state)}",
        escape(report.explanation),
        components_table(report),
        *([escape(report.slots)] if report.slots else []),
        *([changes_table(report)] if report.size_changes else []),
        *([attempts_table(report)] if report.attempts else []),
        f"waited {seconds(waiting_time(report))}, ran {seconds(run_time(report))}{placing(report)}",
        *usage_lines(report),
        output_place(report),
    ]
    return lines + [escape(line) for line in (*sweep_lines(report), *files_lines(report))]


def placing(report: JobReport) -> str:
    """Return how often a job could not be placed, or had to hand back what it held; empty: never."""
    tries = f", tried {report.tries} times to be placed" if report.tries > 1 else ""
    backs = f", handed back {_counted(report.hand_backs, 'time')}" if report.hand_backs else ""
    return tries + backs


def output_place(report: JobReport) -> str:
    """Return the directory of a job's output, where it exists."""
    if not Path(report.output_directory).is_dir():
        return "no output"
    return f"output in {escape(report.output_directory)}"


def sweep_lines(report: JobReport) -> list[str]:
    """Return the lines that show a sweep's progress and where its results are."""
    sweep = report.sweep
    if sweep is None:
        return []
    left = f", about {seconds(sweep.seconds_left)} left" if sweep.seconds_left else ""
    counted = f"{sweep.done}/{sweep.total} tasks done, {sweep.failed} failed, {sweep.running} running{left}"
    return [counted, f"results in {sweep.directory}/results.jsonl"]


def transfer_line(transfer: TransferReport) -> str:
    """Return how far input files are on their way to a cluster, with a bar."""
    arrived = f"{show_size(transfer.size - transfer.missing)} of {show_size(transfer.size)}"
    rate = f", {show_size(int(transfer.rate))}/s" if transfer.rate else ""
    left = f", {seconds(transfer.seconds_left)} left" if transfer.seconds_left is not None else ""
    waits = f"; waits: {escape(transfer.waits_for)}" if transfer.waits_for else ""
    done = bar(transfer.size - transfer.missing, transfer.size)
    return f"{done} input files to {escape(transfer.cluster)}: {arrived}{rate}{left}{waits}"


def sweep_state(report: JobReport) -> str:
    """Return a sweep's progress in a few words; empty for other jobs."""
    sweep = report.sweep
    if sweep is None:
        return ""
    left = f", {seconds(sweep.seconds_left)} left" if sweep.seconds_left and report.outcome is None else ""
    failed = f", {sweep.failed} failed" if sweep.failed else ""
    return f" {sweep.done}/{sweep.total}{failed}{left}"


SHORTEST_MEASURED = 5.0
"""Seconds that a job has run, below which what it has used says nothing."""


def usage_line(report: JobReport) -> str:
    """Return the usage of an ended job in one line; empty for short jobs and where nothing was measured."""
    usage, ran = report.usage, run_time(report)
    if usage is None or not usage.measured or report.outcome is None or ran is None or ran < SHORTEST_MEASURED:
        return ""
    before = usage.held_before_launch_seconds / usage.held_seconds if usage.held_seconds else 0.0
    claimed = f" ({_percent(before)} of that time before its launch)" if before >= WORTH_TELLING else ""
    uncounted = f"; {_counted(usage.uncounted, 'rank')} not counted" if usage.uncounted else ""
    return f"used {_percent(usage.share)} of the processors it held{claimed}, {_memory(usage)}{uncounted}"


WORTH_TELLING = 0.1
"""Part of the time that a job held processors, below which its launch was soon enough."""


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _memory(usage: UsageReport) -> str:
    shown, where = show_size(usage.memory_bytes), " in its largest rank" if usage.measured > 1 else ""
    if not usage.memory_asked_bytes:
        return f"{shown} of memory{where}"
    most = show_size(usage.memory_asked_bytes)
    return f"{shown.removesuffix(most.partition(' ')[2]).rstrip()} of {most}{where}"


def usage_lines(report: JobReport) -> list[str | FittingTable]:
    """Return the lines that show a job's usage; none before a rank has ended."""
    usage = report.usage
    if usage is None or not usage.measured:
        return []
    gpus = "" if usage.gpu_seconds is None else f", GPUs busy {seconds(usage.gpu_seconds)}"
    used = (
        f"processor time {seconds(usage.used_seconds)} ({seconds(usage.system_seconds)} of it in the kernel) of "
        f"{seconds(usage.held_seconds)} held, read {show_size(usage.read_bytes)}, "
        f"written {show_size(usage.written_bytes)}{gpus}"
    )
    lines: list[str | FittingTable] = [*filter(None, [usage_line(report)]), used]
    if usage.measured == 1:
        return lines
    table = FittingTable("rank", "component", "processor time", "memory", "read", "written")
    for one in usage.by_rank:
        each = one.used
        sizes = map(show_size, (each.memory_bytes, each.read_bytes, each.written_bytes))
        table.add_row(str(one.rank), escape(one.component), seconds(each.processor_seconds), *sizes)
    left = usage.measured - len(usage.by_rank)
    return [*lines, table, *([f"and {left:,} ranks in between"] if left else [])]


def attempts_table(report: JobReport) -> FittingTable:
    """Return the table of a job's earlier attempts and their ends."""
    table = FittingTable()
    for heading in ("attempt", "began", "ran", "clusters", "ended"):
        table.add_column(heading)
    for one in report.attempts:
        ran, clusters = seconds(one.ended_at - one.launched_at), escape(_few(one.clusters))
        ended = one.end if one.goes_on else escape(one.outcome.detail or one.outcome.reason.value)
        table.add_row(str(one.number), short_time(one.launched_at, report.reported_at), ran, clusters, ended)
    return table


def changes_table(report: JobReport) -> FittingTable:
    """Return the table of a job's changes of size, with times since its launch."""
    table = FittingTable()
    for heading in ("changed after", "component", "cluster", "processors", "why"):
        table.add_column(heading)
    for change in report.size_changes:
        table.add_row(
            seconds(change.at - (report.launched_at or change.at)),
            escape(change.component),
            change.cluster,
            f"{change.before} to {change.after}",
            escape(change.reason),
        )
    return table


def files_lines(report: JobReport) -> list[str]:
    """Return the lines on output files of ranks: where they are, which are missing and why."""
    files, lines = report.files, []
    if files.arrived:
        where = f"{report.output_directory}/COMPONENT/RANK"
        lines.append(f"{_counted(files.arrived, 'file')} of the ranks ({show_size(files.size)}) in {where}")
    if files.refused:
        names = _listed(files.refusals, files.refused)
        lines.append(f"{_counted(files.refused, 'file')} of the ranks did not come: {names}")
    if report.outcome is not None and files.awaited:
        names = _listed(files.awaited_ranks, files.awaited)
        state = "are not all there" if report.over else "are still coming"
        lines.append(f"output files of {_counted(files.awaited, 'rank')} {state}: {names}")
    if files.left:
        names = _listed(files.left_names, files.left)
        were, are = ("was", "is") if files.left == 1 else ("were", "are")
        lines.append(
            f"{_counted(files.left, 'file')} {were} left in the ranks' directories and {are} gone: {names}; "
            "see output_files in `koala docs jobfile`"
        )
    return lines


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _listed(names: Sequence[str], number: int) -> str:
    """Return names shortened for a terminal, with the number of those left out."""
    shown = names[:MOST_NAMED]
    more = f" and {number - len(shown):,} more" if number > len(shown) else ""
    return ", ".join(printable(name) for name in shown) + more


def jobs_table(reports: Sequence[JobReport], columns: Sequence[str] = NOW_COLUMNS) -> FittingTable:
    """Return the table of jobs."""
    table = FittingTable(*columns)
    for report in reports:
        table.add_row(*(_cell(COLUMNS[name], report) for name in columns))
    return table


def _cell(column: Column, report: JobReport) -> str:
    value = column.value(report)
    match column.kind:
        case Kind.STATE:
            return styled(value) + sweep_state(report)
        case Kind.SECONDS:
            return seconds(value)
        case Kind.TIME if value is not None:
            return short_time(value, time.time())
        case Kind.BYTES if value is not None:
            return show_size(value)
        case Kind.SHARE if value is not None:
            return _percent(value)
    return "-" if value in {None, ""} else escape(str(value))


def clusters_table(reports: Sequence[ClusterReport], now: float) -> FittingTable:
    """Return the table of clusters."""
    table = FittingTable()
    for heading in ("cluster", "system", "size", "idle", "others", "ours", "kept", "seen ago", "req/min"):
        table.add_column(heading, no_wrap=heading != "system", min_width=7 if heading == "system" else None)
    table.add_column("state", overflow="fold")
    for report in reports:
        queued = f" ({report.placeholders_queued} queued)" if report.placeholders_queued else ""
        table.add_row(
            report.name,
            report.lrm or report.plugin,
            "-" if report.processors is None else str(report.processors),
            "-" if report.idle is None else str(report.idle),
            "-" if report.others is None else str(report.others),
            f"{report.placeholders}{queued}",
            str(report.threshold),
            "never" if report.polled_at is None else seconds(max(0.0, now - report.polled_at)),
            f"{report.requests_last_minute}/{report.requests_per_minute}",
            _cluster_state(report),
        )
    return table


def network_table(reports: Sequence[ClusterReport], now: float) -> FittingTable:
    """Return one line for each cluster: how quickly files get there, which are there, and how koala knows."""
    table = FittingTable()
    for heading in ("cluster", "site", "bandwidth", "from", "seen ago", "round trip"):
        table.add_column(heading, no_wrap=True)
    table.add_column("nodes reach", overflow="fold")
    table.add_column("files known", overflow="fold")
    for report in reports:
        network = report.network
        table.add_row(
            report.name,
            network.site or "here",
            "not known" if network.bandwidth is None else f"{network.bandwidth:.3g} MiB/s",
            network.source or "-",
            "-" if network.observed_at is None else seconds(max(0.0, now - network.observed_at)),
            "-" if network.latency is None else f"{1000 * network.latency:.1f} ms",
            escape(", ".join(f"{'' if one.connects else 'not '}{one.cluster}" for one in network.connections)) or "-",
            _files_known(report.files),
        )
    return table


def _files_known(files: ClusterFiles) -> str:
    if files.trouble:
        return f"[red]{escape(files.trouble)}[/]"
    catalogue = "not read yet" if files.entries is None else f"{files.entries} by its catalogue"
    known = [
        *([f"{files.stated} stated"] if files.stated else []),
        *([catalogue] if files.catalogue else []),
        *([f"{files.cached} put there by koala"] if files.cached else []),
    ]
    return ", ".join(known) or "-"


def _cluster_state(report: ClusterReport) -> str:
    if report.closed is not None:
        return f"[red]{escape(report.closed)}[/]"
    down = f", {report.down} on nodes that are not up" if report.down else ""
    wanted = f", {report.others_waiting} wanted by others who wait" if report.others_waiting else ""
    nodes = ""
    if report.idle is not None and 0 < report.largest_idle < report.idle:
        nodes = f", at most {report.largest_idle} on a node"
    kinds = f" ({', '.join(report.gpu_kinds)})" if report.gpu_kinds else ""
    gpus = f", {report.gpus_idle} of {report.gpus} GPUs idle{kinds}" if report.gpus else ""
    return f"[green]open[/]{nodes}{gpus}{down}{wanted}"


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
            # Whoever read the output has seen enough of it; the job is not theirs to end. It is all in the files.
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
