# SPDX-License-Identifier: Apache-2.0
"""``koala web`` and ``koala report``: pages on clusters and jobs, live in a browser or written to files."""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter import web as web_room
from koala_adapter.cli.jobs import job_information
from koala_adapter.cli.session import command_body, in_seconds, pass_session
from koala_adapter.errors import ConfigurationError, ServiceRunningError
from koala_adapter.host.sockets import is_loopback
from koala_adapter.report.page import Heading
from koala_adapter.report.selection import JobSelection
from koala_adapter.report.views import Jobs, write_jobs
from koala_adapter.web.access import Access

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session


# -- Command ``web`` -----------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    metavar="PORT",
    help="Port of the pages. Default: any free one.",
)
@click.option(
    "--listen", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address of this host to listen on."
)
@click.option("--allow-actions", is_flag=True, help="Let jobs be cancelled from the pages.")
@pass_session
@command_body
def web(session: Session, port: int, listen: str, allow_actions: bool) -> None:
    r"""Show clusters, jobs and their history in a browser, live.

    Prints a link with a token, by which anyone sees the pages, so it is for you alone. Without a service the pages have
    what the journal says. From another computer: ssh -L 8080:127.0.0.1:PORT HOST, and the link with port 8080. It
    needs an extra: pip install 'koala-adapter[web]'. Ctrl-C ends it.

    \b
    Examples:
      koala web
      koala web --port 8080 --allow-actions
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ConfigurationError(
            "the pages need starlette and uvicorn, which are not installed",
            hint="install them with: pip install 'koala-adapter[web]'",
        )
    session.check_site_option()
    with closing(_listening(listen, port)) as listener:
        found = listener.getsockname()[1]
        host, access = listen, Access()
        if not is_loopback(listen):
            own = socket.gethostname()
            access = Access(names=access.names | {one.lower() for one in (listen, own, socket.getfqdn())})
            host = own if listen in {"0.0.0.0", "::"} else listen  # noqa: S104 - asked for by the user
        host = f"[{host}]" if ":" in host else host
        click.echo(f"http://{host}:{found}/?token={access.token}")
        session.remark("open this link in a browser, and give it to no one: it shows your jobs. Ctrl-C ends it.")
        if not is_loopback(listen):
            session.remark(f"listening on {listen} without encryption: others in the network may read the token")
        here = session.here
        shown = web_room.Shown(
            directory=session.directory, information=here.information, access=access, actions=allow_actions
        )
        with suppress(KeyboardInterrupt):
            web_room.serve(shown, listener)


def _listening(listen: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ServiceRunningError where that cannot be."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    try:
        return socket.create_server((listen, port), family=family)
    except OSError as error:
        message = f"cannot listen on {listen} port {port}: {os.strerror(error.errno) if error.errno else error}"
        raise ServiceRunningError(message, hint="is another program there? give another --port") from error


# -- Command ``report`` --------------------------------------------------------------------------------------

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
