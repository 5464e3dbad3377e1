# SPDX-License-Identifier: Apache-2.0
"""``koala simulate``: traces and models under the policies that also order real clusters, side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from koala_adapter.cli.context import EXIT_INTERRUPTED, command_body, json_option, pass_session
from koala_adapter.errors import SimulationError
from koala_adapter.scheduler.cluster import METRICS, POLICIES
from koala_adapter.simulation import comparison
from koala_adapter.simulation.comparison import Case, run_case
from koala_adapter.simulation.figures import check_matplotlib
from koala_adapter.simulation.models import MODELS, PREFIX
from koala_adapter.simulation.parallel import watched
from koala_adapter.simulation.platform import PLATFORMS, load_platform, named_platform
from koala_adapter.simulation.replay import Policy, Site
from koala_adapter.simulation.report import Heading, write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

    from koala_adapter.cli.context import Session
    from koala_adapter.simulation.comparison import Outcome
    from koala_adapter.simulation.parallel import Board
    from koala_adapter.simulation.platform import Platform

DIRECTORY = click.Path(path_type=Path, file_okay=False)
SHOWN_NOTES = 5
"""Irregularities of a trace that are told one by one."""


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "--policy", "-p", "policies", type=click.Choice(POLICIES), multiple=True, default=("easy",), show_default=True,
    help="Order of each cluster's queue; may be given several times.",
)  # fmt: skip
@click.option("--platform", metavar="FILE", help=f"Platform file with the clusters, or one of: {', '.join(PLATFORMS)}.")
@click.option(
    "--processors", type=click.IntRange(min=1), metavar="N", help="One cluster of so many. Default: as the trace says."
)
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="At most so many jobs of each trace, the first ones."
)
@click.option("--seed", type=int, metavar="S", default=0, show_default=True, help="Of the models.")
@click.option("--kill-at-limit", is_flag=True, help="End jobs at their requested time, as a real cluster does.")
@click.option(
    "--metric", type=click.Choice(METRICS), default="processors", show_default=True,
    help="What bestfit and greedy fill gaps with most of.",
)  # fmt: skip
@click.option(
    "--depth", type=click.IntRange(min=1), metavar="N", default=1, show_default=True,
    help="Jobs that have a reservation under firstfit, bestfit and greedy.",
)  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N", help="Simulations side by side. Default: one for each core."
)
@click.option(
    "--out",
    type=DIRECTORY,
    metavar="DIR",
    help="Directory for a page, figures, a line for each job, and the schedules.",
)
@json_option
@pass_session
@command_body
def simulate(
    session: Session, traces: tuple[str, ...], policies: tuple[str, ...], platform: str | None,
    processors: int | None, jobs: int | None, seed: int, kill_at_limit: bool, metric: str, depth: int,
    processes: int | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    r"""Replay workloads under the policies of real clusters.

    TRACE is a file in the Standard Workload Format, also compressed with gzip, or a
    model: model:lublin, model:lublin-types, model:das2-fs3, model:das2-fs4.
    Every trace is simulated under every policy, on all cores. Ctrl-C shows what there
    is so far, and ends with 130.

    \b
    Examples:
      koala simulate NASA-iPSC-1993-3.1-cln.swf.gz
      koala simulate *.swf.gz -p fcfs -p easy -p conservative --out comparison
      koala simulate model:lublin --jobs 20000 --processors 256 --seed 7 --json
    """
    if platform is not None and processors is not None:
        raise click.UsageError("--platform and --processors both say how many processors there are: give one.")
    if out is not None:
        check_matplotlib()
    sites = () if platform is None else clusters_of(session, platform)
    names = trace_names(traces)
    cases = [
        Case(
            source=trace, name=names[trace], policy=Policy(name=policy, metric=metric, depth=depth), sites=sites,
            processors=processors, jobs=jobs, seed=seed, kill_at_limit=kill_at_limit, out=out,
        )
        for trace in names
        for policy in dict.fromkeys(policies)
    ]  # fmt: skip
    outcomes = run_cases(session, cases, processes or os.cpu_count() or 1)
    if as_json:
        session.print_json([outcome.to_json() for outcome in outcomes])
    else:
        show_notes(session, outcomes)
        session.console.print(outcomes_table(outcomes))
    if out is not None and outcomes:
        page = write_result(out, heading(cases), comparison.result(outcomes))
        session.remark(f"the page is {page}")
    if len(outcomes) < len(cases) or any(outcome.interrupted for outcome in outcomes):
        session.remark("interrupted: this is what there is so far")
        raise SystemExit(EXIT_INTERRUPTED)


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
    unused = unused_parts(known)
    if unused:
        session.remark(f"{platform}: {' and '.join(unused)} play no part in this simulation")
    return tuple(
        Site(name=cluster.name, processors=cluster.processors - cluster.threshold, speed=cluster.speed)
        for cluster in known.clusters
    )


def unused_parts(platform: Platform) -> list[str]:
    """Return what a platform says that replaying a workload does not use."""
    parts = {
        "local users": any(platform.background_of(cluster) for cluster in platform.clusters),
        "failures": any(platform.failures_of(cluster) for cluster in platform.clusters),
        "links": bool(platform.network.links),
    }
    return [name for name, said in parts.items() if said]


def run_cases(session: Session, cases: Sequence[Case], processes: int) -> list[Outcome]:
    """Return the outcomes in the order of the cases, those that there are when it is interrupted."""
    found: dict[int, Outcome] = {}
    with progress_display(session.moving) as display:
        bars = [display.add_task(f"{escape(case.name)} {case.policy.name}", total=None) for case in cases]

        def update(board: Board) -> None:
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
