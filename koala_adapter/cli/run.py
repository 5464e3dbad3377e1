# SPDX-License-Identifier: Apache-2.0
"""``koala run`` and ``koala submit``: a job file in; live progress, or a job id, out."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from koala_adapter.api.standby import unless_another_answers
from koala_adapter.api.statedirectory import LOG_NAME, ownership
from koala_adapter.cli.garbage import import_a_service
from koala_adapter.cli.interrupts import Interrupts
from koala_adapter.cli.jobs import PATIENCE, lost
from koala_adapter.cli.jobwords import job_words
from koala_adapter.cli.session import command_body, json_option, pass_session
from koala_adapter.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from koala_adapter.api.reports import JobReport
    from koala_adapter.cli.innerservice import InnerService
    from koala_adapter.cli.jobwords import JobWords
    from koala_adapter.cli.session import Session
    from koala_adapter.model import Job


@click.command()
@job_words
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Neither progress nor the processes' output.")
@pass_session
@command_body
def run(session: Session, wanted: JobWords, as_json: bool, quiet: bool) -> None:
    r"""Run a job to its end and exit with its exit code.

    JOB is a job file. A program that is run on some processors needs none: it
    starts in the present directory, which the nodes must have, too.

    Uses the service when one runs, and is the service itself when none does. Ctrl-C cancels the job.

    \b
    Exit codes:
      the job's own, or 240 refused, 241 not placed, 242 lost, 243 cancelled,
      244 walltime exceeded, 245 bad configuration, 246 no service, 247 batch system

    \b
    Examples:
      koala run job.toml
      koala run -n 4 -t 10m -- ./program --steps 100
    """
    import_a_service()
    job = wanted.job(session)
    report = run_job(session, job, quiet=quiet or as_json)
    if as_json:
        session.print_json(asdict(report))
    elif not quiet:
        from koala_adapter.cli.following import closing

        closing(report, session.progress)
    sys.exit(0 if report.outcome is None else report.outcome.exit_code)


@click.command()
@job_words
@json_option
@pass_session
@command_body
def submit(session: Session, wanted: JobWords, as_json: bool) -> None:
    r"""Hand a job to the service, and start one if none runs.

    JOB is a job file, or a program as for `koala run`. Several job files, all in .toml, are several jobs: all are read
    before the first is handed over.

    The service goes on in the background; `koala serve --stop` ends it.

    \b
    Examples:
      koala submit job.toml
      koala submit *.toml
    """
    if wanted.job_files:
        _submit_several(session, wanted.job_files, as_json=as_json)
        return
    job = wanted.job(session)
    go_on_in_background(session, "no service was running; started one in the background")
    job_id = session.here.submit(job).id
    if as_json:
        session.print_json({"id": job_id})
    else:
        session.console.print(f"job {job_id} submitted; follow it with `koala logs {job_id} -f`")


def _submit_several(session: Session, files: Sequence[Path], *, as_json: bool) -> None:
    """Hand over the jobs of several files; none of them when one cannot be read."""
    jobs = [session.job(file) for file in files]
    go_on_in_background(session, "no service was running; started one in the background")
    submitted = []
    try:
        for file, job in zip(files, jobs, strict=True):
            job_id = session.here.submit(job).id
            submitted.append({"id": job_id, "file": str(file)})
            if not as_json:
                session.console.print(f"job {job_id} submitted: {file}", markup=False, soft_wrap=True)
    finally:
        # What is in is told also when the service goes away in the middle.
        if as_json:
            session.print_json({"jobs": submitted})


def go_on_in_background(session: Session, text: str) -> None:
    """Start a service that outlives this command, and say so, unless somebody else has just started one."""
    if session.client.running():
        return
    with session.progress.status("starting a service"):
        pid = session.here.begin_service()
    if pid is not None:
        session.remark(f"{text} (pid {pid}, log in {session.directory / LOG_NAME})")


@contextmanager
def service(session: Session, interrupts: Interrupts) -> Iterator[float]:
    """Make sure that a service answers during the block: the running one, or one inside this process.

    Yields for how many seconds its return is to be awaited when it goes away. When jobs are unfinished at the end of
    one inside this process, a service in the background takes over.
    """
    inner: InnerService | None = None
    try:
        with ExitStack() as stack:
            if not session.client.running():
                inner = _own(session, stack, interrupts)
            yield PATIENCE if inner is None else 0.0
    finally:
        # Only now, when nobody can submit any more, is it certain what is left.
        if inner is not None and not inner.ended and (left := inner.unfinished):
            text = f"not everything has ended yet (job {', '.join(left)}); a service in the background sees to it"
            go_on_in_background(session, text)


def _own(session: Session, stack: ExitStack, interrupts: Interrupts) -> InnerService | None:
    """Become the service inside this process; None when another one comes up at the same moment."""
    # Before anything is owned: these imports take longer than all that an interrupt could come upon after them.
    from koala_adapter.cli.innerservice import inner_service

    session.set_up_log()
    with session.progress.status("starting a service"):
        lock = unless_another_answers(
            session.client, lambda: stack.enter_context(ownership(session.directory, "koala run"))
        )
    if lock is None:
        return None
    return stack.enter_context(inner_service(session, interrupts))


def run_job(session: Session, job: Job, *, quiet: bool) -> JobReport:
    """Submit a job and follow it to its end; an interrupt cancels it and follows on, a second one only cancels."""
    from koala_adapter.cli.following import Display, follow

    with Interrupts() as interrupts, service(session, interrupts) as patience:
        display = Display(session.progress, quiet=quiet)
        job_id = ""
        try:
            with interrupts.deferred():
                job_id = session.client.submit(job)
            watched = session.client.follow(job_id, patience=patience, on_lost=lost(session))
            # A service that goes on sees to its placeholders by itself.
            return follow(watched, display, released=not patience)
        except KeyboardInterrupt:
            if not job_id:
                raise
            # Before anything is said: a second interrupt, or an output that fails, must not keep it back.
            with interrupts.deferred():
                session.client.cancel(job_id)
                session.remark(f"cancelling job {job_id} (again Ctrl-C: without waiting for its end) ...")
            watched = session.client.follow(job_id, patience=patience, on_lost=lost(session))
            return follow(watched, display)
        except ServiceUnavailableError as error:
            hint = f"job {job_id} is not lost: start the service with `koala serve`, then `koala logs {job_id} -f`"
            raise ServiceUnavailableError(error.message, hint=hint if job_id else error.hint) from error
