# SPDX-License-Identifier: Apache-2.0
"""``koala clean``: removes what is left of jobs that ended long ago."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.durations import in_seconds
from koala_adapter.cli.session import EXIT_FAILURE, command_body, json_option, pass_session

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session
    from koala_adapter.service.cleanreport import CleanReport

MIB = 1024**2
MOST_NAMED = 20
"""Jobs in one line."""


@click.command()
@click.option(
    "--older",
    required=True,
    metavar="TIME",
    callback=in_seconds,
    help="Time since the end of a job, at least, such as 30d.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@json_option
@pass_session
@command_body
def clean(session: Session, older: float, dry_run: bool, as_json: bool) -> None:
    r"""Remove what is left of jobs that ended long ago.

    That is the directory with their output, their report, and what was negotiated for them; and counts of requests,
    words of placeholders and a log to which nothing has been added for so long. Jobs that are not finished, and what
    ended later, stay. It works with and without a running service.

    \b
    Examples:
      koala clean --older 30d --dry-run
      koala clean --older 30d
    """
    with session.progress.status("looking" if dry_run else "cleaning"):
        report = _clean(session, older, dry_run=dry_run)
    if as_json:
        session.print_json({**asdict(report), "size": report.size})
    else:
        _show(session, report)
    sys.exit(EXIT_FAILURE if report.trouble else 0)


def _clean(session: Session, older: float, *, dry_run: bool) -> CleanReport:
    if session.client.running():
        return session.client.clean(older, dry_run=dry_run)
    from koala_adapter.api.offlinecleaning import clean as clean_here

    session.set_up_log()
    return clean_here(session.directory, session.policies, older=older, dry_run=dry_run)


def _show(session: Session, report: CleanReport) -> None:
    from koala_adapter.config.formatting import printable

    for line in _lines(report):
        session.console.print(line, markup=False, soft_wrap=True)
    for trouble in report.trouble:
        session.progress.print(f"cannot be removed: {printable(trouble)}", style="red", markup=False, soft_wrap=True)


def _lines(report: CleanReport) -> list[str]:
    """Return what was removed, and what was spared, as a person reads it."""
    lines = []
    done = "would remove" if report.dry_run else "removed"
    if not report.removed and not report.jobs:
        lines.append("nothing is left of jobs that ended so long ago")
    else:
        jobs = "1 job" if len(report.jobs) == 1 else f"{len(report.jobs):,} jobs"
        sorts = ", ".join(f"{one.what}: {one.number:,} ({_mib(one.size)})" for one in report.removed)
        lines.append(f"{done} what is left of {jobs}, {_mib(report.size)} in all")
        lines += [f"  {sorts}"] if sorts else []
    if report.jobs:
        more = f" and {len(report.jobs) - MOST_NAMED:,} more" if len(report.jobs) > MOST_NAMED else ""
        lines.append(f"  jobs: {', '.join(report.jobs[:MOST_NAMED])}{more}")
    lines.append(f"spared: {report.unfinished:,} unfinished, {report.newer:,} that ended later")
    if report.continued:
        lines.append(f"spared, since a later job goes on with their sweep: {', '.join(report.continued)}")
    return lines


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
