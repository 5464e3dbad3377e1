# SPDX-License-Identifier: Apache-2.0
"""Commands that ask or tell the service something about jobs: status, cancel, explain, logs, clusters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.context import command_body, json_option, pass_session
from koala_adapter.cli.output import LogPrinter
from koala_adapter.cli.tables import clusters_table, job_lines, jobs_table
from koala_adapter.errors import JobNotFoundError
from koala_adapter.reports import CLUSTER_REPORT, JOB_REPORT

if TYPE_CHECKING:
    from koala_adapter.cli.context import Session


@click.command()
@click.argument("job_id", metavar="[ID]", required=False)
@json_option
@pass_session
@command_body
def status(session: Session, job_id: str | None, as_json: bool) -> None:
    r"""Show the jobs, or one job in detail.

    \b
    Example:
      koala status 12
    """
    if job_id is None:
        reports = session.client.jobs()
        if as_json:
            session.print_json([JOB_REPORT.dump_python(report, mode="json") for report in reports])
        else:
            session.console.print(jobs_table(reports) if reports else "no jobs")
        return
    report = session.client.job(job_id)
    if as_json:
        session.print_json(JOB_REPORT.dump_python(report, mode="json"))
    else:
        session.console.print(*job_lines(report), sep="\n")


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--no-wait", is_flag=True, help="Do not wait until its placeholders are gone.")
@json_option
@pass_session
@command_body
def cancel(session: Session, job_id: str, no_wait: bool, as_json: bool) -> None:
    r"""End a job and everything of it in all batch systems.

    \b
    Example:
      koala cancel 12
    """
    report = session.client.cancel(job_id)
    if not no_wait:
        for report in session.client.watch(job_id):  # noqa: B007 - the last one is wanted
            pass
    if as_json:
        session.print_json(JOB_REPORT.dump_python(report, mode="json"))
    else:
        left = f", {report.placeholders_left} placeholders still ending" if report.placeholders_left else ""
        session.console.print(f"job {report.id}: {report.state.value}{left}")


@click.command()
@click.argument("job_id", metavar="ID")
@json_option
@pass_session
@command_body
def explain(session: Session, job_id: str, as_json: bool) -> None:
    r"""Say why a job waits, what it holds, and what would let it start.

    \b
    Example:
      koala explain 12
    """
    report = session.client.job(job_id)
    if as_json:
        session.print_json({"id": report.id, "state": report.state.value, "explanation": report.explanation})
    else:
        session.console.print(report.explanation)


@click.command()
@json_option
@pass_session
@command_body
def clusters(session: Session, as_json: bool) -> None:
    r"""Show the clusters: what is idle, what we hold, how often we ask.

    \b
    Example:
      koala clusters --json
    """
    reports = session.client.clusters()
    if as_json:
        session.print_json([CLUSTER_REPORT.dump_python(report, mode="json") for report in reports])
    else:
        session.console.print(clusters_table(reports, time.time()))


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@click.option("--component", "-c", help="Only this component.")
@click.option("--rank", "-r", type=int, help="Only this rank of its component, from 0.")
@click.option("--stderr", "-e", "errors", is_flag=True, help="Standard error in place of standard output.")
@pass_session
@command_body
def logs(session: Session, job_id: str, follow: bool, component: str | None, rank: int | None, errors: bool) -> None:
    r"""Print what the processes of a job wrote.

    Lines are marked component/rank when there are several processes.

    \b
    Example:
      koala logs 12 -f
    """
    report = session.client.job(job_id)
    suffix = ".err" if errors else ".out"
    printer = LogPrinter(Path(report.output_directory), component=component, rank=rank, suffix=suffix)
    if follow and not report.over:
        for _ in session.client.watch(job_id):
            printer.print_new()
    printer.print_new(rest=True)
    if not printer.files and not follow and not report.over:
        raise JobNotFoundError(f"job {job_id} has written nothing yet", hint="use -f to wait for it")
