# SPDX-License-Identifier: Apache-2.0
"""``koala report``: a page with charts of a job, or of all jobs of some time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.jobs import job_information
from koala_adapter.cli.session import command_body, in_seconds, pass_session
from koala_adapter.report.jobspage import Jobs, write_jobs
from koala_adapter.report.page import Heading
from koala_adapter.report.selection import JobSelection

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session

MOST_JOBS = 10_000


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option(
    "--since", callback=in_seconds, metavar="TIME", help="What went on so long ago or later, such as 12h or 1d."
)
@click.option(
    "--out",
    "-o",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("koala-report"),
    show_default=True,
    help="Directory for the page, its charts (SVG) and data (CSV, JSON).",
)
@pass_session
@command_body
def report(session: Session, job_id: str | None, since: float | None, directory: Path) -> None:
    r"""Draw what a job, or all jobs of some time, had where and when.

    Charts in clock time: the processors of each cluster by job, processors in use, and when each job waited and ran;
    tables of clusters and jobs. index.html has all of it in one file. The same pages, live: koala web.

    \b
    Examples:
      koala report 12
      koala report --since 1d --out monday
    """
    if (job_id is None) == (since is None):
        raise click.UsageError("report what? Either JOB or --since TIME.")
    source, now = job_information(session), time.time()
    if job_id is not None:
        one = source.job(job_id)
        title, lead = f"Job {job_id} {one.name}", f"What job {job_id} had where and when."
        jobs = Jobs(reports=[one], negotiations=source.negotiations(job_id=job_id), now=now)
    else:
        begin = now - (since or 0.0)
        title, lead = "koala's jobs", f"What the jobs of {session.directory} had where and when."
        jobs = Jobs(reports=source.jobs(MOST_JOBS, JobSelection(since=begin)), since=begin, now=now)
    words = f"koala report {job_id}" if job_id is not None else f"koala report --since {since:g}s"
    page = write_jobs(directory, Heading(title=title, lead=lead, command=words), jobs)
    session.console.print(f"wrote {page}", markup=False, soft_wrap=True)
