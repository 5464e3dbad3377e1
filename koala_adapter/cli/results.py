# SPDX-License-Identifier: Apache-2.0
"""``koala logs`` and ``results``: what the processes of a job and the tasks of a sweep wrote, and how tasks ended."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter import cli
from koala_adapter.api.statedirectory import LogPrinter
from koala_adapter.cli.jobs import PATIENCE, job_information, on_lost_service
from koala_adapter.cli.session import Session, command_body, json_option, pass_session
from koala_adapter.errors import JobNotFoundError, ServiceUnavailableError
from koala_adapter.host.regularfile import paths_matching
from koala_adapter.report.values import ATTEMPTS, JobReport, SweepProgress, where_output_is
from koala_adapter.tasks.results import TaskRecord, TaskResult, output_file, read_results, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator


# -- Command ``logs`` ----------------------------------------------------------------------------------------


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@click.option("--component", "-c", help="Only this component.")
@click.option("--rank", "-r", type=int, help="Only this rank of its component, from 0.")
@click.option("--task", type=click.IntRange(min=0), metavar="N", help="This task of a sweep, or index of an array.")
@click.option("--stderr", "-e", "errors", is_flag=True, help="Standard error in place of standard output.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Attempt N of a job that ran again.")
@pass_session
@command_body
def logs(
    session: Session,
    job_id: str,
    follow: bool,
    component: str | None,
    rank: int | None,
    task: int | None,
    errors: bool,
    attempt: int | None,
) -> None:
    r"""Print what the processes of a job wrote.

    Lines are marked component/rank when there are several processes.

    \b
    Examples:
      koala logs 12 -f
      koala logs 48 --task 17
    """
    source = job_information(session)
    report = source.job(job_id)
    if task is not None:
        if follow or component is not None or rank is not None:
            raise click.UsageError("the output of a task comes at its end, and from it alone: leave out -f, -c and -r")
        _print_task_output(session, report, task, errors=errors)
        return
    if component is not None and component not in {one.name for one in report.components}:
        names = ", ".join(one.name for one in report.components)
        raise JobNotFoundError(f"job {job_id} has no component {component!r}; it has: {names}")
    suffix = ".err" if errors else ".out"
    if attempt is not None:
        report = _attempt(report, attempt)
    printer = LogPrinter(Path(report.output_directory), component=component, rank=rank, suffix=suffix, unfinished=True)
    if follow and not report.over:
        if source is not session.client:
            printer.print_new(marked=report.processes(component, rank) > 1, rest=True)
            raise ServiceUnavailableError(f"nobody follows job {job_id} now", hint="start the service: `koala serve`")
        for report in session.client.follow(job_id, patience=PATIENCE, on_lost=on_lost_service(session)):
            printer.print_new(marked=report.processes(component, rank) > 1)
    printer.print_new(marked=report.processes(component, rank) > 1, rest=True)
    if report.sweep is not None:
        session.remark(where_output_is(report.sweep))
    elif printer.silent:
        _explain_missing_output(session, report, component, rank, errors=errors, waits=not follow and not report.over)


def _attempt(report: JobReport, number: int) -> JobReport:
    """Return the report of an earlier attempt, for its output. Raises JobNotFoundError."""
    directory = Path(report.output_directory)
    kept = directory / ATTEMPTS / str(number)
    latest = max((int(one.name) for one in paths_matching(kept.parent, "*") if one.name.isdecimal()), default=0) + 1
    if number > latest:
        raise JobNotFoundError(f"job {report.id} has no attempt {number}", hint=f"the latest is attempt {latest}")
    return report if number == latest else replace(report, output_directory=str(kept), placeholders_left=0)


def _explain_missing_output(
    session: Session, report: JobReport, component: str | None, rank: int | None, *, errors: bool, waits: bool
) -> None:
    """Say why there is no output, and where it will be. Raises JobNotFoundError if it may still come."""
    other = LogPrinter(
        Path(report.output_directory), component=component, rank=rank, suffix=".out" if errors else ".err"
    )
    if not other.silent:
        here, there = ("standard error", "standard output") if errors else ("standard output", "standard error")
        show = f"koala logs {report.id}" if errors else f"koala logs {report.id} --stderr"
        session.remark(f"nothing on {here}; {show} prints {there}")
    elif waits:
        raise JobNotFoundError(f"job {report.id} has written nothing yet", hint="use -f to wait for it")


def _print_task_output(session: Session, report: JobReport, number: int, *, errors: bool) -> None:
    """Print the output of a sweep's task. Raises JobNotFoundError when the task has not ended."""
    progress = _sweep_of(report)
    directory = Path(progress.directory)
    suffix, other = ("err", "out") if errors else ("out", "err")
    try:
        sys.stdout.buffer.write((directory / output_file(number, suffix)).read_bytes())
        sys.stdout.buffer.flush()
    except FileNotFoundError:
        if (directory / output_file(number, other)).exists():
            session.remark(f"nothing on standard {'error' if errors else 'output'}; it has written to the other one")
        elif not any(number == _called(one, progress) for one in read_results(directory)):
            hint = f"`koala results {report.id}` shows which have"
            raise JobNotFoundError(f"task {number} of job {report.id} has not ended", hint=hint) from None


# -- Command ``results`` -------------------------------------------------------------------------------------

MOST_IN_TABLE = 200
"""Tasks in a table, unless more are asked for."""


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--failed", is_flag=True, help="Only tasks that failed for good.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Most tasks shown. Default: 200 in a table, else all.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for spreadsheets.")
@json_option
@pass_session
@command_body
def results(session: Session, job_id: str, failed: bool, limit: int | None, as_csv: bool, as_json: bool) -> None:
    r"""Show what became of each task of a sweep or an array, as far as they are over.

    Output is the last line that a task has printed; --json prints a line for each task, with all that it has printed.

    \b
    Examples:
      koala results 48
      koala results 48 --csv > squares.csv
      koala results 48 --json | jq -r 'select(.status != 0) | .stderr'
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are two forms of the same: use one of them")
    progress = _sweep_of(job_information(session).job(job_id))
    found = (one for one in read_results(Path(progress.directory)) if not failed or not one.ok)
    if as_json:
        for one in islice(found, limit):
            click.echo(json.dumps(_document(one), ensure_ascii=False))
    elif as_csv:
        _write_csv(islice(found, limit))
    else:
        shown = list(islice(found, limit or MOST_IN_TABLE))
        none = "none failed" if failed else "no task is over yet"
        session.console.print(
            cli.display.results_table(list(map(row_of, shown)), by_index=progress.by_index) if shown else none
        )
        if limit is None and next(found, None) is not None:
            session.remark(f"these are the first {MOST_IN_TABLE}; --limit shows more, --csv and --json all")
    if not progress.over:
        session.remark(f"{progress.done} of {progress.total} tasks are done, {progress.failed} failed")


def _sweep_of(report: JobReport) -> SweepProgress:
    """Return the progress of a job's sweep. Raises JobNotFoundError when the job is no sweep."""
    if report.sweep is None:
        hint = f"`koala logs {report.id}` prints what it wrote"
        raise JobNotFoundError(f"job {report.id} is no sweep, and has no tasks", hint=hint)
    return report.sweep


def _document(result: TaskResult) -> dict[str, object]:
    told = {field.name: getattr(result, field.name) for field in fields(TaskRecord)}
    return {**told, "stdout": result.stdout, "stderr": result.stderr}


def _write_csv(found: Iterator[TaskResult]) -> None:
    writer: csv.DictWriter[str] | None = None
    for row in map(row_of, found):
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)


def _called(result: TaskResult, progress: SweepProgress) -> int:
    """Return the number by which a task is asked for."""
    return int(result.parameters["index"]) if progress.by_index else result.task
