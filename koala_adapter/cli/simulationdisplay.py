# SPDX-License-Identifier: Apache-2.0
"""What ``koala simulate`` and ``koala experiment`` show on a terminal: progress, irregularities, a table of outcomes.

A file of its own, because it imports the simulator and what rich draws with, which help texts need not wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from koala_adapter.cli.display import FittingTable
from koala_adapter.simulation.comparison import find_platform, run_cases, sites_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from koala_adapter.cli.session import Session
    from koala_adapter.simulation.comparison import Case, Outcome
    from koala_adapter.simulation.replay import Site


SHOWN_NOTES = 5
"""Irregularities of a trace that are told one by one."""


def clusters_of(platform: str) -> tuple[Site, ...]:
    """Return the clusters of a platform file, or of a platform by name. Raises ConfigurationError, OSError."""
    return sites_of(find_platform(platform))


def run_shown(session: Session, cases: Sequence[Case], processes: int) -> list[Outcome]:
    """Return the outcomes in the order of the cases, those that there are when it is interrupted."""
    with progress_display(session.moving) as display:
        bars = [display.add_task(f"{escape(case.name)} {case.policy.name}", total=None) for case in cases]
        return run_cases(
            cases, processes, lambda index, done, total: display.update(bars[index], completed=done, total=total)
        )


def progress_display(console: Console) -> Progress:
    """Return a display of bars, which shows nothing without a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def told(display: Progress) -> Callable[[int, int, str], None]:
    """Return who shows in a display how far an experiment is."""
    bars = {}

    def tell(done: int, total: int, what: str, /) -> None:
        if what not in bars:
            bars[what] = display.add_task(escape(what), total=total)
        display.update(bars[what], completed=done, total=total)

    return tell


def show_notes(session: Session, outcomes: Sequence[Outcome]) -> None:
    """Tell what is irregular about each trace."""
    for trace in dict.fromkeys(outcome.trace for outcome in outcomes):
        found = next(outcome.irregularities for outcome in outcomes if outcome.trace == trace)
        for one in found[:SHOWN_NOTES]:
            session.remark(f"{trace}: {one}")
        if len(found) > SHOWN_NOTES:
            session.remark(f"{trace}: {len(found) - SHOWN_NOTES} more irregularities, see --json")
    for outcome in outcomes:
        if outcome.counters.get("given_up"):
            count = outcome.counters["given_up"]
            session.remark(
                f"{outcome.trace} under {outcome.policy}: {count} jobs lost nodes again and again (given up)"
            )


def outcomes_table(outcomes: Sequence[Outcome]) -> FittingTable:
    """Return one line for each trace and policy."""
    table = FittingTable()
    for heading in ("trace", "policy"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        "processors", "jobs", "left out", "mean wait (s)", "p95 wait (s)", "slowdown", "bounded", "used",
        "makespan (s)", "jobs/s",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for one in outcomes:
        summary = one.summary
        table.add_row(
            escape(one.trace),
            one.policy + (" [yellow](part)[/]" if one.interrupted else ""),
            f"{one.processors:,}",
            f"{summary.jobs:,}",
            f"{one.skipped:,}",
            f"{summary.mean_wait:,.1f}",
            f"{summary.percentiles['wait']['p95']:,.0f}",
            f"{summary.mean_slowdown:,.2f}",
            f"{summary.mean_bounded_slowdown:,.2f}",
            f"{summary.utilization:.1%}",
            f"{summary.makespan:,.0f}",
            f"{summary.jobs / one.seconds:,.0f}" if one.seconds > 0 else "-",
        )
    return table
