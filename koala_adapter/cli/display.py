# SPDX-License-Identifier: Apache-2.0
"""Jobs and clusters as tables and lines: first tables for narrow terminals, then what is drawn of reports.

Everything is drawn from reports alone, except that the existence of a directory of output is looked up.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from koala_adapter.cli.listing import COLUMNS, NOW_COLUMNS, Column, Kind, short_time
from koala_adapter.config.tomlfile import printable, show_duration, show_size
from koala_adapter.outcome import JobState
from koala_adapter.report.values import counted, run_time, waiting_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from koala_adapter.report.sitevalues import ClusterFiles, ClusterReport
    from koala_adapter.report.values import ComponentReport, JobReport, TransferReport, UsageReport


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
LONGEST_LINE = 100
"""Characters of the output of a task."""
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
    table = FittingTable("component", "cluster", "held", "", "waited", "hosts")
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
    backs = f", handed back {counted(report.hand_backs, 'time')}" if report.hand_backs else ""
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
    uncounted = f"; {counted(usage.uncounted, 'rank')} not counted" if usage.uncounted else ""
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
    table = FittingTable("attempt", "began", "ran", "clusters", "ended")
    for one in report.attempts:
        ran, clusters = seconds(one.ended_at - one.launched_at), escape(_few(one.clusters))
        ended = one.end if one.goes_on else escape(one.outcome.detail or one.outcome.reason.value)
        table.add_row(str(one.number), short_time(one.launched_at, report.reported_at), ran, clusters, ended)
    return table


def changes_table(report: JobReport) -> FittingTable:
    """Return the table of a job's changes of size, with times since its launch."""
    table = FittingTable("changed after", "component", "cluster", "processors", "why")
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
        lines.append(f"{counted(files.arrived, 'file')} of the ranks ({show_size(files.size)}) in {where}")
    if files.refused:
        names = _listed(files.refusals, files.refused)
        lines.append(f"{counted(files.refused, 'file')} of the ranks did not come: {names}")
    if report.outcome is not None and files.awaited:
        names = _listed(files.awaited_ranks, files.awaited)
        state = "are not all there" if report.over else "are still coming"
        lines.append(f"output files of {counted(files.awaited, 'rank')} {state}: {names}")
    if files.left:
        names = _listed(files.left_names, files.left)
        were, are = ("was", "is") if files.left == 1 else ("were", "are")
        lines.append(
            f"{counted(files.left, 'file')} {were} left in the ranks' directories and {are} gone: {names}; "
            "see output_files in `koala docs jobfile`"
        )
    return lines


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


def routes_table(reports: Sequence[ClusterReport], now: float) -> FittingTable:
    """Return one line for each way between two sites: how quickly files get to a cluster directly from another site."""
    table = FittingTable()
    for heading in ("cluster", "directly from", "bandwidth", "from", "seen ago", "round trip"):
        table.add_column(heading, no_wrap=True)
    table.add_column("", overflow="fold")
    for report in reports:
        for route in report.network.routes:
            table.add_row(
                report.name,
                route.site,
                "none" if route.bandwidth is None else f"{route.bandwidth:.3g} MiB/s",
                route.source or "-",
                "-" if route.observed_at is None else seconds(max(0.0, now - route.observed_at)),
                "-" if route.latency is None else f"{1000 * route.latency:.1f} ms",
                escape(route.trouble),
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
    again = f", asked again in {report.asked_again_in:.0f} s" if report.asked_again_in >= 1 else ""
    if report.closed is not None:
        return f"[red]{escape(report.closed)}[/]{again}"
    down = f", {report.down} on nodes that are not up" if report.down else ""
    wanted = f", {report.others_waiting} wanted by others who wait" if report.others_waiting else ""
    nodes = ""
    if report.idle is not None and 0 < report.largest_idle < report.idle:
        nodes = f", at most {report.largest_idle} on a node"
    kinds = f" ({', '.join(report.gpu_kinds)})" if report.gpu_kinds else ""
    gpus = f", {report.gpus_idle} of {report.gpus} GPUs idle{kinds}" if report.gpus else ""
    return f"[green]open[/]{nodes}{gpus}{down}{wanted}{again}"


def results_table(rows: Sequence[dict[str, Any]], *, by_index: bool = False) -> FittingTable:
    """Return the table of tasks with their results. ``by_index``: they have no number but their index."""
    left_out = {"attempt", "task"} if by_index else {"attempt"}
    table = FittingTable(*("exit" if name == "status" else name for name in rows[0] if name not in left_out))
    for row in rows:
        bad = row["status"] != 0
        row["status"] = "[red]lost[/]" if row["status"] is None else f"[red]{row['status']}[/]" if bad else "0"
        row["seconds"] = seconds(row["seconds"])
        cells = {name: escape(str(value)) for name, value in row.items() if name not in {"status", "seconds"}}
        cells["output"] = escape(str(row["output"])[:LONGEST_LINE])
        table.add_row(*(cells.get(name, str(row[name])) for name in row if name not in left_out))
    return table
