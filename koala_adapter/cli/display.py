# SPDX-License-Identifier: Apache-2.0
"""Tables and lines that show jobs and clusters to a person: reports in, renderables out.

Nothing else is looked at but whether there is a directory of output.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from koala_adapter.cli.fittingtable import FittingTable
from koala_adapter.config.formatting import printable, show_duration, show_size
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.api.clusterreports import ClusterReport
    from koala_adapter.api.reports import ComponentReport, JobReport

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
    """Return the state in its colour."""
    return f"[{state_style(state)}]{state.value}[/]"


def seconds(value: float | None) -> str:
    """Return a duration as people say it; a dash when there is none."""
    if value is None:
        return "-"
    if value < FINE:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < SHORT else show_duration(round(value))


def bar(part: int, whole: int) -> str:
    """Return a bar of ``part`` of ``whole``."""
    full = BAR if whole <= 0 else round(BAR * min(part, whole) / whole)
    return f"[green]{'━' * full}[/][dim]{'╌' * (BAR - full)}[/]"


def run_time(report: JobReport) -> float | None:
    """Return the seconds from launch to the end, or until now."""
    if report.launched_at is None:
        return None
    return (report.finished_at or report.reported_at) - report.launched_at


def waiting_time(report: JobReport) -> float:
    """Return the seconds from submission to launch, or until now."""
    return (report.launched_at or report.finished_at or report.reported_at) - report.submitted_at


def components_table(report: JobReport) -> FittingTable:
    """Return where each component is and what it holds."""
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
            escape(_few(component.hosts)),
        )
    return table


def held(report: JobReport, component: ComponentReport) -> int:
    """Return the processors a component holds, or held when it ran."""
    return component.processors if report.finished_at and report.launched_at else component.held


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown  # noqa: PLR2004 - as many as shown


def job_lines(report: JobReport) -> list[str | FittingTable]:
    """Return a job in detail."""
    lines: list[str | FittingTable] = [
        f"job [bold]{report.id}[/] ({escape(report.name)}): {styled(report.state)}",
        escape(report.explanation),
        components_table(report),
        *([changes_table(report)] if report.size_changes else []),
        (
            f"waited {seconds(waiting_time(report))}, ran {seconds(run_time(report))}, tries {report.tries}, "
            f"handed back {report.hand_backs} times"
        ),
        output_place(report),
    ]
    return lines + [escape(line) for line in (*sweep_lines(report), *files_lines(report))]


def output_place(report: JobReport) -> str:
    """Return where what a job printed is, if there is any."""
    if not Path(report.output_directory).is_dir():
        return "no output"
    return f"output in {escape(report.output_directory)}"


def sweep_lines(report: JobReport) -> list[str]:
    """Return how far a sweep is, and where its results are."""
    sweep = report.sweep
    if sweep is None:
        return []
    left = f", about {seconds(sweep.seconds_left)} left" if sweep.seconds_left else ""
    counted = f"{sweep.done}/{sweep.total} tasks done, {sweep.failed} failed, {sweep.running} running{left}"
    return [counted, f"results in {sweep.directory}/results.jsonl"]


def sweep_state(report: JobReport) -> str:
    """Return how far a sweep is, in as few words as can be; nothing for other jobs."""
    sweep = report.sweep
    if sweep is None:
        return ""
    left = f", {seconds(sweep.seconds_left)} left" if sweep.seconds_left and report.outcome is None else ""
    failed = f", {sweep.failed} failed" if sweep.failed else ""
    return f" {sweep.done}/{sweep.total}{failed}{left}"


def changes_table(report: JobReport) -> FittingTable:
    """Return how the size of a job has changed while it ran, and how long after its launch."""
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
    """Return what became of the files that the ranks left: where they are, which are not there and why."""
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
    """Return names as they can be shown on a terminal, and how many there are beside them."""
    shown = names[:MOST_NAMED]
    more = f" and {number - len(shown):,} more" if number > len(shown) else ""
    return ", ".join(printable(name) for name in shown) + more


def jobs_table(reports: Sequence[JobReport]) -> FittingTable:
    """Return one line for each job."""
    table = FittingTable()
    for heading in ("id", "name", "state", "processors", "clusters", "waited", "ran", "exit"):
        table.add_column(heading)
    for report in reports:
        placed = sorted({component.cluster for component in report.components if component.cluster})
        table.add_row(
            report.id,
            escape(report.name),
            styled(report.state) + sweep_state(report),
            str(sum(component.processors for component in report.components)),
            ", ".join(placed) or "-",
            seconds(waiting_time(report)),
            seconds(run_time(report)),
            "-" if report.outcome is None else str(report.outcome.exit_code),
        )
    return table


def clusters_table(reports: Sequence[ClusterReport], now: float) -> FittingTable:
    """Return one line for each cluster."""
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


def _cluster_state(report: ClusterReport) -> str:
    if report.closed is not None:
        return f"[red]{escape(report.closed)}[/]"
    down = f", {report.down} on nodes that are not up" if report.down else ""
    wanted = f", {report.others_waiting} wanted by others who wait" if report.others_waiting else ""
    return f"[green]open[/]{down}{wanted}"
