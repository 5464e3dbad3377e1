# SPDX-License-Identifier: Apache-2.0
"""``koala plan`` and ``script``: what would happen to a job, without anything happening.

First what is told about changes of size, then the commands.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from koala_adapter import config
from koala_adapter.cli.arguments import JobArguments, job_arguments
from koala_adapter.cli.display import FittingTable
from koala_adapter.cli.session import Session, command_body, job_argument, json_option, pass_session
from koala_adapter.errors import EXIT_NOT_PLACED, EXIT_REFUSED
from koala_adapter.model import Component, Job, JobKind
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.slots import ranks_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.report.sitevalues import PlannedComponent, PlannedTravel, PlanReport, SampleSubmission


# -- What is told about changes of size ----------------------------------------------------------------------
# Between which sizes a job will change on a site, and when; told before the job starts.

_WHEN = {
    Approach.PRA: "grows while processors are free, before jobs that wait are looked at",
    Approach.PWA: "grows while processors are free, and gives them back when other jobs wait",
    Approach.NONE: "changes only when it asks for it itself, or its owner does by `koala resize`",
}


def size_notes(job: Job, site: SiteConfig) -> list[str]:
    """Return a sentence for each component that changes its size while the job runs; empty for other jobs."""
    return [_note(job, one, site.parameters.approach) for one in job.components if job.changes_size(one.name)]


def _note(job: Job, component: Component, approach: Approach) -> str:
    if component.cluster is not None:
        where = f"on {component.cluster}"
    elif component.flexible:
        where = "on all clusters together"
    else:
        where = "on the cluster where it starts"
    who = "it" if len(job.components) == 1 else component.name
    span = f"{component.minimum} to {component.maximum} processors {where}"
    when = "changes only when it asks for it itself" if job.kind is JobKind.EVOLVING else _WHEN[approach]
    return f"{who} can have {span} while it runs: it {when}"


# -- Commands ``plan`` and ``script`` ------------------------------------------------------------------------
# What would happen, without anything happening.

EXIT_CODES = {"placed": 0, "insufficient": EXIT_NOT_PLACED, "infeasible": EXIT_REFUSED}


@click.command()
@job_arguments
@json_option
@pass_session
@command_body
def plan(session: Session, wanted: JobArguments, as_json: bool) -> None:
    r"""Show where a job would go now. Nothing is submitted.

    JOB is a job file, or a program as for `koala run`. Asks the service when one runs, and the clusters themselves when
    none does.

    \b
    Exit codes:
      0 it would be placed, 241 not now, 240 never

    \b
    Examples:
      koala plan job.toml
      koala plan -n 64 --memory 4GiB -- ./program --steps 100
    """
    job = wanted.job(session)
    with session.progress.status("looking at the clusters") as status:
        report = session.here.plan(job, lambda names: status.update(f"asking {names}"))
    if as_json:
        session.print_json(asdict(report))
    else:
        show_plan(report, job, session.console)
        if job.kind.varies:
            for note in (*size_notes(job, session.site), config.explained(job, session.site)):
                if note:
                    session.console.print(escape(note))
    raise SystemExit(EXIT_CODES[report.result])


def show_plan(report: PlanReport, job: Job, console: Console) -> None:
    """Print a plan for a person."""
    name = f"job [bold]{escape(job.name)}[/]"
    if report.result == "placed":
        idle = idle_left(report.components)
        late = any(free < one.processors for one, free in zip(report.components, idle, strict=True))
        console.print(f"{name} {'[yellow]would be placed and wait[/]' if late else '[green]would start at once[/]'}")
        console.print(plan_table(report.components))
        if report.untried:
            console.print(escape(f"it is not known {report.untried}"))
        for one, free in zip(report.components, idle, strict=True):
            if not one.slot.is_plain:
                console.print(escape(f"{one.component} on {one.cluster}: {ranks_of(one.processors, one.slot)}"))
            if job.component(one.component).files_travel:
                console.print(escape(f"{one.component} on {one.cluster}: {files_said(one)}; {wait_said(one, free)}"))
    elif report.result == "insufficient":
        console.print(f"{name} [yellow]would wait in the queue:[/] {escape(report.reason)}")
    else:
        console.print(f"{name} [red]can never run here:[/] {escape(report.reason)}")
    for cluster, reason in report.closed.items():
        console.print(f"[dim]{escape(cluster)} was left out: {escape(reason)}[/]")


FILES_NAMED = 3


def files_said(one: PlannedComponent) -> str:
    """Say which input files of a component must get to its cluster, and how long that takes."""
    if not one.missing:
        return "all of its input files are there"
    names = ", ".join([*one.missing[:FILES_NAMED], *["…"][: len(one.missing) - FILES_NAMED]])
    time = "for a time that is not known" if one.transfer_seconds is None else f"for {one.transfer_seconds:.1f} s"
    what = f"{len(one.missing)} of {one.input_files} input files travel {time}, {one.missing_mib:.1f} MiB: {names}"
    if not any(way.source for way in one.travels):
        return what
    return f"{what}; {', '.join(_way_said(way) for way in one.travels)}"


def _way_said(one: PlannedTravel) -> str:
    rate = "" if one.bandwidth is None else f" at {one.bandwidth:.3g} MiB/s"
    return f"{one.mib:.1f} MiB from {one.source or 'here'}{rate}"


def wait_said(one: PlannedComponent, idle: int) -> str:
    """Say when processors of a component are expected, for which so many are idle."""
    if one.processors <= idle:
        return "processors at once"
    wait = "an unknown wait" if one.expected_wait is None else f"{one.expected_wait:.0f} s"
    return f"processors after {wait}"


def idle_left(components: tuple[PlannedComponent, ...]) -> list[int]:
    """Return the slots that are idle for each component when those before it have theirs."""
    taken: dict[str, int] = {}
    left = []
    for one in components:
        left.append(max(0, one.idle - math.ceil(taken.get(one.cluster, 0) / one.slot.threads)))
        taken[one.cluster] = taken.get(one.cluster, 0) + one.processors * one.slot.threads
    return left


def plan_table(components: tuple[PlannedComponent, ...]) -> FittingTable:
    """Return where each component would go."""
    size = "processors" if all(one.slot.is_plain for one in components) else "ranks"
    size = "slots" if any(one.slot.ranks > 1 for one in components) else size
    table = FittingTable("component", "cluster", size, "idle now", "")
    for one, idle in zip(components, idle_left(components), strict=True):
        missing = one.processors - idle
        note = f"[yellow]{missing} would wait in its queue[/]" if missing > 0 else "[green]at once[/]"
        table.add_row(escape(one.component), one.cluster, str(one.processors), str(idle), note)
    return table


@click.command()
@job_argument
@click.option("--cluster", "-c", required=True, help="The cluster that it would be submitted to.")
@json_option
@pass_session
@command_body
def script(session: Session, job_file: Path, cluster: str, as_json: bool) -> None:
    r"""Show exactly what would be submitted to a cluster.

    That is, for each component: command, environment and script, with a text in the place of the one-time token.
    Nothing is sent.

    \b
    Example:
      koala script job.toml --cluster alpha
    """
    job = session.job(job_file)
    samples, note = session.here.script(job, cluster)
    if as_json:
        found = [asdict(sample) for sample in samples]
        session.print_json({"cluster": cluster, "submissions": found, "note": note})
        return
    for sample in samples:
        show_sample(sample, cluster, session.console)
    shown = {sample.component for sample in samples}
    for name in [one.name for one in job.components if one.name not in shown]:
        session.remark(f"component {name} never goes to {cluster}, so nothing is submitted there for it")
    if note:
        session.remark(note)


def show_sample(sample: SampleSubmission, cluster: str, console: Console) -> None:
    """Print a submission so that, without colours, it could be pasted into a shell."""
    needed = "" if sample.slot.is_plain else f": {ranks_of(sample.ranks, sample.slot)}"
    comment = f"# component {sample.component} on cluster {cluster}{needed}"
    console.print(comment, style="dim", markup=False, soft_wrap=True)
    if sample.note:
        console.print(f"# {sample.note}", style="dim", markup=False, soft_wrap=True)
    if sample.call:
        console.print(f"# {shlex.join(sample.call)}", style="dim", markup=False, soft_wrap=True)
    words = [f"{name}={shlex.quote(value)}" for name, value in sample.environment.items()]
    console.print(" ".join([*words, shlex.join(sample.command)]), markup=False, soft_wrap=True)
    if console.is_terminal:
        from rich.syntax import Syntax

        console.print(Syntax(sample.script, "sh", background_color="default", word_wrap=False), soft_wrap=True)
    else:
        console.print(sample.script, markup=False, soft_wrap=True, end="")
