# SPDX-License-Identifier: Apache-2.0
"""The work behind ``koala simulate``, apart from the command so that other commands start without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from koala_adapter.errors import SimulationError
from koala_adapter.simulation import comparison
from koala_adapter.simulation.comparison import run_case
from koala_adapter.simulation.parallel import watched
from koala_adapter.simulation.platform import PLATFORMS, load_platform, named_platform
from koala_adapter.simulation.platform_replay import Site
from koala_adapter.simulation.report import Heading, write_result
from koala_adapter.simulation.workload_models import MODELS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

    from koala_adapter.cli.session import Session
    from koala_adapter.simulation.comparison import Case, Outcome
    from koala_adapter.simulation.parallel import ProgressBoard

SHOWN_NOTES = 5
"""Irregularities of a trace that are told one by one."""


def trace_names(traces: Iterable[str]) -> dict[str, str]:
    """Return what each trace is called, no two alike. Raises SimulationError for an unknown model."""
    names: dict[str, str] = {}
    for trace in dict.fromkeys(traces):
        name = trace.removeprefix(PREFIX)
        if trace.startswith(PREFIX):
            if name not in MODELS:
                hint = f"there is {', '.join(PREFIX + model for model in MODELS)}"
                raise SimulationError(f"there is no workload model {name}", hint=hint)
        else:
            name = Path(trace).name.removesuffix(".gz").removesuffix(".swf")
        number = sum(other == name or other.startswith(f"{name}~") for other in names.values())
        names[trace] = f"{name}~{number + 1}" if number else name
    return names


def clusters_of(session: Session, platform: str) -> tuple[Site, ...]:
    """Return the clusters of a platform file, or of a platform by name. Raises ConfigurationError, OSError."""
    path = Path(platform)
    known = named_platform(platform) if platform in PLATFORMS and not path.exists() else load_platform(path)
    if known.network.links or known.network.domains:
        session.remark(f"{platform}: the network plays no part in this simulation")
    return tuple(
        Site(
            name=cluster.name,
            processors=cluster.processors - cluster.threshold,
            speed=cluster.speed,
            cluster=cluster,
            local_users=known.background_of(cluster),
            failures=known.failures_of(cluster),
        )
        for cluster in known.clusters
    )


def run_cases(session: Session, cases: Sequence[Case], processes: int) -> list[Outcome]:
    """Return the outcomes in the order of the cases, those that there are when it is interrupted."""
    found: dict[int, Outcome] = {}
    with progress_display(session.moving) as display:
        bars = [display.add_task(f"{escape(case.name)} {case.policy.name}", total=None) for case in cases]

        def update(board: ProgressBoard) -> None:
            for bar, (done, total) in zip(bars, board.progress, strict=True):
                display.update(bar, completed=done, total=total or None)

        runs = watched(run_case, cases, processes, update)
        for index, outcome in runs:
            found[index] = outcome
            if not outcome.interrupted:
                display.update(bars[index], completed=outcome.summary.jobs, total=outcome.summary.jobs)
            if outcome.interrupted and min(processes, len(cases)) == 1:
                break
    return [found[index] for index in sorted(found) if found[index].summary.jobs or not found[index].interrupted]


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


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """Return one line for each trace and policy."""
    table = Table(box=None, pad_edge=False, header_style="dim")
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


def heading(cases: Sequence[Case]) -> Heading:
    """Return what stands at the top of the page."""
    first = cases[0]
    policies = list(dict.fromkeys(case.policy.name for case in cases))
    sources = list(dict.fromkeys(case.source for case in cases))
    words = ["koala simulate", *(Path(source).name for source in sources), *(f"--policy {name}" for name in policies)]
    if first.sites:
        words.append("--platform FILE")
    options = {"--processors": first.processors, "--jobs": first.jobs, "--seed": first.seed or None}
    words += [f"{name} {value}" for name, value in options.items() if value is not None]
    words += [f"--metric {first.policy.metric}"] if first.policy.metric != "processors" else []
    words += [f"--depth {first.policy.depth}"] if first.policy.depth > 1 else []
    words += ["--kill-at-limit"] if first.kill_at_limit else []
    lead = f"{', '.join(dict.fromkeys(case.name for case in cases))} under {', '.join(policies)}."
    return Heading(title="Simulation", lead=lead, command=" ".join([*words, "--out DIR"]))


def write_page(out: Path, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Path:
    """Write page, figures and data of several outcomes; returns the page."""
    return write_result(out, heading(cases), comparison.result(outcomes))
