# SPDX-License-Identifier: Apache-2.0
"""``koala run`` and ``koala submit``: a job file in; live progress, or a job id, out."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from anyio.from_thread import start_blocking_portal

from koala_adapter.cli.context import command_body, job_argument, json_option, pass_session
from koala_adapter.cli.following import closing, follow
from koala_adapter.hosting import host, ownership, start_in_background
from koala_adapter.reports import JOB_REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.cli.context import Session
    from koala_adapter.model import Job
    from koala_adapter.reports import JobReport


@click.command()
@job_argument
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Neither progress nor the processes' output.")
@pass_session
@command_body
def run(session: Session, job_file: Path, as_json: bool, quiet: bool) -> None:
    r"""Run a job to its end and exit with its exit code.

    Uses the service when one runs, and is the service itself when none does. Ctrl-C cancels the job.

    \b
    Exit codes: the job's own, or 240 refused, 241 not placed, 242 lost, 243 cancelled, 244 walltime exceeded,
    245 bad configuration, 246 no service, 247 batch system.

    \b
    Example:
      koala run job.toml
    """
    job = session.job(job_file)
    with service(session):
        report = run_job(session, job, quiet=quiet or as_json)
    if as_json:
        session.print_json(JOB_REPORT.dump_python(report, mode="json"))
    elif not quiet:
        closing(report, session.progress)
    sys.exit(0 if report.outcome is None else report.outcome.exit_code)


@click.command()
@job_argument
@json_option
@pass_session
@command_body
def submit(session: Session, job_file: Path, as_json: bool) -> None:
    r"""Hand a job to the service and return; starts the service when none runs.

    \b
    Example:
      koala submit job.toml
    """
    job = session.job(job_file)
    if not session.client.running():
        pid = start_in_background(session.site_file, session.directory)
        session.progress.print(f"no service was running; started one in the background (pid {pid})")
    job_id = session.client.submit(job)
    if as_json:
        session.print_json({"id": job_id})
    else:
        session.console.print(f"job {job_id} submitted; follow it with `koala logs {job_id} -f`")


@contextmanager
def service(session: Session) -> Iterator[None]:
    """Make sure that a service answers during the block: the running one, or one inside this process.

    When jobs of others are unfinished at the end of one inside this process, a service in the background takes over.
    """
    if session.client.running():
        yield
        return
    with ownership(session.directory), start_blocking_portal() as portal:
        future, hosted = portal.start_task(host, session.site, session.plugins, session.directory)
        try:
            yield
        finally:
            others = portal.call(lambda: list(hosted.unfinished))
            future.cancel()
    if others:
        pid = start_in_background(session.site_file, session.directory)
        session.progress.print(f"{len(others)} jobs are unfinished; a service in the background goes on (pid {pid})")


def run_job(session: Session, job: Job, *, quiet: bool) -> JobReport:
    """Submit a job and follow it to its end; an interrupt cancels it and follows on."""
    with terminated_like_interrupt():
        job_id = session.client.submit(job)
        try:
            return follow(session.client.watch(job_id), session.progress, quiet=quiet)
        except KeyboardInterrupt:
            session.progress.print(f"cancelling job {job_id} …")
            session.client.cancel(job_id)
            return follow(session.client.watch(job_id), session.progress, quiet=quiet)


@contextmanager
def terminated_like_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP act as Ctrl-C does."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
