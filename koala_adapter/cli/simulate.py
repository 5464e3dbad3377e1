# SPDX-License-Identifier: Apache-2.0
"""``koala simulate``: traces and models under the policies that also order real clusters, side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.queuepolicy import QueuePolicy
from koala_adapter.cli.session import EXIT_INTERRUPTED, command_body, json_option, pass_session
from koala_adapter.queueing.policies import METRICS

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session

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
    from koala_adapter.cli import simulationdisplay as display
    from koala_adapter.policies.loading import load_queue_policy
    from koala_adapter.simulation.compared_cases import trace_names, write_page
    from koala_adapter.simulation.comparison import Case
    from koala_adapter.simulation.figures import check_matplotlib
    from koala_adapter.simulation.replay import Policy

    if platform is not None and processors is not None:
        raise click.UsageError("--platform and --processors both say how many processors there are: give one.")
    if out is not None:
        check_matplotlib()
    sites = () if platform is None else display.clusters_of(session, platform)
    names = trace_names(traces)
    ordered_by = {
        name: Policy(name=name, metric=metric, depth=depth, make=load_queue_policy(name)) for name in policies
    }
    cases = [
        Case(
            source=trace, name=names[trace], policy=ordered_by[policy], sites=sites,
            processors=processors, jobs=jobs, seed=seed, kill_at_limit=kill_at_limit, out=out,
        )
        for trace in names
        for policy in ordered_by
    ]  # fmt: skip
    outcomes = display.run_shown(session, cases, processes or os.cpu_count() or 1)
    if as_json:
        session.print_json([outcome.to_json() for outcome in outcomes])
    else:
        display.show_notes(session, outcomes)
        session.console.print(display.outcomes_table(outcomes))
    if out is not None and outcomes:
        page = write_page(out, cases, outcomes)
        session.remark(f"the page is {page}")
    if len(outcomes) < len(cases) or any(outcome.interrupted for outcome in outcomes):
        session.remark("interrupted: this is what there is so far")
        raise SystemExit(EXIT_INTERRUPTED)
