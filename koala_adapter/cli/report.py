# SPDX-License-Identifier: Apache-2.0
"""``koala report``: pictures of a job or of a day."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.durations import in_seconds
from koala_adapter.cli.jobs import job_information
from koala_adapter.cli.session import command_body, pass_session

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
    help="Directory for the page, its figures (PNG, SVG) and data (CSV, JSON).",
)
@pass_session
@command_body
def report(session: Session, job_id: str | None, since: float | None, directory: Path) -> None:
    r"""Draw what a job, or all jobs of some time, had where and when.

    A chart of placeholders by cluster, when each waited and was used; processors in use over time; tables of clusters
    and jobs. index.html has all of it in one file. Drawing needs matplotlib: pip install 'koala-adapter[figures]'.

    \b
    Examples:
      koala report 12
      koala report --since 1d --out monday
    """
    if (job_id is None) == (since is None):
        raise click.UsageError("report what? Either JOB or --since TIME.")
    from koala_adapter.history.picture import history
    from koala_adapter.simulation.figures import check_matplotlib
    from koala_adapter.simulation.report import Heading, write_result

    check_matplotlib()
    source, now = job_information(session), time.time()
    if job_id is not None:
        reports, title, lead = [source.job(job_id)], f"job {job_id}", f"What job {job_id} had where and when."
    else:
        reports = source.jobs(MOST_JOBS)
        title, lead = "koala's jobs", f"What the jobs of {session.directory} had where and when."
    zone = datetime.now().astimezone().tzinfo
    result = history(reports, since=None if since is None else now - since, now=now, **({"zone": zone} if zone else {}))
    words = f"koala report {job_id}" if job_id is not None else f"koala report --since {since:g}s"
    with session.progress.status("drawing"):
        page = write_result(directory, Heading(title=title, lead=lead, command=words), result)
    session.console.print(f"wrote {page}", markup=False, soft_wrap=True)
