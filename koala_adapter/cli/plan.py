# SPDX-License-Identifier: Apache-2.0
"""``koala plan`` and ``koala script``: what would happen, without anything happening."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from koala_adapter.cli.fittingtable import FittingTable
from koala_adapter.cli.session import command_body, job_argument, json_option, pass_session
from koala_adapter.cli.sizenotes import size_notes
from koala_adapter.config.mpiresize import explained
from koala_adapter.errors import EXIT_NOT_PLACED, EXIT_REFUSED, ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from koala_adapter.api.clusterreports import PlannedComponent, PlanReport
    from koala_adapter.cli.session import Session
    from koala_adapter.model import Job
    from koala_adapter.service.samplesubmission import SampleSubmission

ASKING = 60.0
"""Seconds that a cluster may take to answer when no service knows it already."""
FIRST_LOOK = 30.0
"""Seconds within which a service that has just started should have seen its clusters."""
EXIT_CODES = {"placed": 0, "insufficient": EXIT_NOT_PLACED, "infeasible": EXIT_REFUSED}


@click.command()
@job_argument
@json_option
@pass_session
@command_body
def plan(session: Session, job_file: Path, as_json: bool) -> None:
    r"""Show where a job would go now. Nothing is submitted.

    Asks the service when one runs, and the clusters themselves when none does.

    \b
    Exit codes:
      0 it would be placed, 241 not now, 240 never

    \b
    Example:
      koala plan job.toml
    """
    job = session.job(job_file)
    report = planned(session, job)
    if as_json:
        session.print_json(asdict(report))
    else:
        show_plan(report, job, session.console)
        for note in (*size_notes(job, session.site), explained(job, session.site)):
            if note:
                session.console.print(escape(note))
    raise SystemExit(EXIT_CODES[report.result])


def planned(session: Session, job: Job) -> PlanReport:
    """Return where a job would go now, with a service or without."""
    with session.progress.status("looking at the clusters") as status:
        if session.client.running():
            session.client.wait_until_seen(FIRST_LOOK)
            return session.client.plan(job)
        import anyio

        from koala_adapter.api.askedclusters import ask_clusters
        from koala_adapter.api.offline import read_record
        from koala_adapter.api.reportbuilder import plan_report
        from koala_adapter.api.statedirectory import prepare_directory

        session.set_up_log()
        prepare_directory(session.directory)
        record = read_record(session.directory, session.policies)
        anyio.run(
            lambda: ask_clusters(
                session.site,
                session.plugins,
                record,
                timeout=ASKING,
                tell=lambda names: status.update(f"asking {names}"),
            )
        )
    return plan_report(record.scheduler, job, now=record.now)


def show_plan(report: PlanReport, job: Job, console: Console) -> None:
    """Print a plan for a person."""
    name = f"job [bold]{escape(job.name)}[/]"
    if report.result == "placed":
        late = [one for one in report.components if one.idle < one.processors]
        console.print(f"{name} {'[yellow]would be placed and wait[/]' if late else '[green]would start at once[/]'}")
        console.print(plan_table(report.components))
    elif report.result == "insufficient":
        console.print(f"{name} [yellow]would wait in the queue:[/] {escape(report.reason)}")
    else:
        console.print(f"{name} [red]can never run here:[/] {escape(report.reason)}")
    for cluster, reason in report.closed.items():
        console.print(f"[dim]{escape(cluster)} was left out: {escape(reason)}[/]")


def plan_table(components: tuple[PlannedComponent, ...]) -> FittingTable:
    """Return where each component would go."""
    table = FittingTable()
    for heading in ("component", "cluster", "processors", "idle now", ""):
        table.add_column(heading)
    taken: dict[str, int] = {}
    for one in components:
        idle = max(0, one.idle - taken.get(one.cluster, 0))
        taken[one.cluster] = taken.get(one.cluster, 0) + one.processors
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
    note = ""
    if session.client.running():
        samples = session.client.script(job, cluster)
    else:
        samples, note = samples_without_service(session, job, cluster)
    if as_json:
        found = [asdict(sample) for sample in samples]
        session.print_json({"cluster": cluster, "submissions": found, "note": note})
        return
    for sample in samples:
        show_sample(sample, cluster, session.console)
    if note:
        session.remark(note)


def samples_without_service(session: Session, job: Job, cluster: str) -> tuple[list[SampleSubmission], str]:
    """Return the submissions as the next service would make them, and what in them is not certain yet."""
    from koala_adapter.api.nextsubmissions import next_submissions
    from koala_adapter.api.offline import NO_INSTANCE, read_record
    from koala_adapter.api.statedirectory import prepare_directory

    configs = {config.name: config for config in session.site.clusters}
    if cluster not in configs:
        known = ", ".join(configs)
        raise ConfigurationError(f"no cluster {cluster!r}; there are: {known}", hint="give --cluster NAME")
    session.set_up_log()
    prepare_directory(session.directory)
    record = read_record(session.directory, session.policies)
    samples = next_submissions(session.site, session.plugins, record, job, configs[cluster])
    if record.instance != NO_INSTANCE:
        return samples, ""
    first = f"the first one replaces {NO_INSTANCE} in the names, and may choose another port"
    return samples, f"No service has run here yet: {first}."


def show_sample(sample: SampleSubmission, cluster: str, console: Console) -> None:
    """Print a submission so that, without colours, it could be pasted into a shell."""
    comment = f"# component {sample.component} on cluster {cluster}"
    console.print(comment, style="dim", markup=False, soft_wrap=True)
    if sample.note:
        console.print(f"# {sample.note}", style="dim", markup=False, soft_wrap=True)
    words = [f"{name}={shlex.quote(value)}" for name, value in sample.environment.items()]
    console.print(" ".join([*words, shlex.join(sample.command)]), markup=False, soft_wrap=True)
    if console.is_terminal:
        from rich.syntax import Syntax

        console.print(Syntax(sample.script, "sh", background_color="default", word_wrap=False), soft_wrap=True)
    else:
        console.print(sample.script, markup=False, soft_wrap=True, end="")
