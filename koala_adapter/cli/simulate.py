# SPDX-License-Identifier: Apache-2.0
"""``koala simulate``: policies compared on traces and models.

Then what ``koala experiment`` says where its distribution is not installed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from koala_adapter.cli.display import FittingTable
from koala_adapter.cli.session import EXIT_INTERRUPTED, QueuePolicy, Session, command_body, json_option, pass_session
from koala_adapter.errors import ConfigurationError
from koala_adapter.policies.loading import load_queue_policy
from koala_adapter.queueing.backfill import METRICS
from koala_adapter.report.figures import check_matplotlib
from koala_adapter.simulation.comparison import Case, find_platform, run_cases, sites_of, trace_names, write_page
from koala_adapter.simulation.replay import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from koala_adapter.simulation.comparison import Outcome


# -- Command ``simulate`` ------------------------------------------------------------------------------------
# Traces and models under the policies that also order real clusters, side by side.

DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "--policy", "-p", "policies", type=QueuePolicy(), multiple=True, default=("easy",), show_default=True,
    help="Order of each cluster's queue; may be given several times.",
)  # fmt: skip
@click.option("--platform", metavar="FILE", help="Platform file with the clusters, or das3.")
@click.option(
    "--processors", type=click.IntRange(min=1), metavar="N", help="One cluster of so many. Default: as the trace says."
)
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="At most so many jobs of each trace, the first ones."
)
@click.option(
    "--seed", type=int, metavar="S", default=0, show_default=True, help="Of models, local users and failures."
)
@click.option("--kill-at-limit", is_flag=True, help="End jobs at their requested time, as a real cluster does.")
@click.option("--dependencies", is_flag=True, help="Submit a job that names a preceding job after the end of that job.")
@click.option(
    "--memory", is_flag=True, help="Count the memory that jobs ask for, by memory_per_node of the platform's clusters."
)
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
    processors: int | None, jobs: int | None, seed: int, kill_at_limit: bool, dependencies: bool, memory: bool,
    metric: str, depth: int, processes: int | None, out: Path | None, as_json: bool,
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
    sites = () if platform is None else sites_of(find_platform(platform))
    if memory and not any(site.cluster is not None and site.cluster.memory_per_node for site in sites):
        raise click.UsageError("--memory counts by the nodes of a platform: write memory_per_node into its file.")
    names = trace_names(traces)
    ordered_by = {
        name: Policy(name=name, metric=metric, depth=depth, make=load_queue_policy(name)) for name in policies
    }
    cases = [
        Case(
            source=trace, name=names[trace], policy=ordered_by[policy], sites=sites, platform=platform or "",
            processors=processors, jobs=jobs, seed=seed, kill_at_limit=kill_at_limit,
            dependencies=dependencies, memory=memory, out=out,
        )
        for trace in names
        for policy in ordered_by
    ]  # fmt: skip
    outcomes = run_shown(session, cases, processes or os.cpu_count() or 1)
    if as_json:
        session.print_json([outcome.to_json() for outcome in outcomes])
    else:
        show_irregularities(session, outcomes)
        session.console.print(outcomes_table(outcomes))
    if out is not None and outcomes:
        page = write_page(out, cases, outcomes)
        session.remark(f"the page is {page}")
    if len(outcomes) < len(cases) or any(outcome.interrupted for outcome in outcomes):
        session.remark("interrupted: this is what there is so far")
        raise SystemExit(EXIT_INTERRUPTED)


# -- ``koala experiment`` where it is not installed ----------------------------------------------------------


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@pass_session
@command_body
def experiment(_session: Session) -> None:
    r"""Repeat the published evaluations.

    The experiments are a distribution of their own, koala-experiments, which is not installed here. It is in the
    sources of koala-adapter, in plugins/koala-experiments.

    \b
    Example:
      pip install /path/to/koala-adapter/plugins/koala-experiments
    """
    raise ConfigurationError(
        "the experiments are a distribution of their own, which is not installed",
        hint="pip install the folder plugins/koala-experiments of the sources of koala-adapter",
    )


# -- Progress, irregularities and outcomes on a terminal -----------------------------------------------------

SHOWN_NOTES = 5
"""Irregularities of a trace that are told one by one."""


def run_shown(session: Session, cases: Sequence[Case], processes: int) -> list[Outcome]:
    """Run the cases with a display of progress; return their outcomes in order."""
    with progress_display(session.moving) as display:
        bars = [display.add_task(f"{escape(case.name)} {case.policy.name}", total=None) for case in cases]
        return run_cases(
            cases, processes, lambda index, done, total: display.update(bars[index], completed=done, total=total)
        )


def progress_display(console: Console) -> Progress:
    """Return a progress display, which prints nothing without a terminal."""
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
    """Return a listener that shows an experiment's progress in a display."""
    bars = {}

    def tell(done: int, total: int, what: str, /) -> None:
        if what not in bars:
            bars[what] = display.add_task(escape(what), total=total)
        display.update(bars[what], completed=done, total=total)

    return tell


def show_irregularities(session: Session, outcomes: Sequence[Outcome]) -> None:
    """Print the irregularities of each trace."""
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
    """Return the table of results by trace and policy."""
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
