# SPDX-License-Identifier: Apache-2.0
"""``koala run`` and ``koala submit``: a job file in; live progress, or a job id, out."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypeVar, cast

import click
import structlog
from anyio.from_thread import start_blocking_portal

from koala_adapter.api.hosting import LOG_NAME, host, ownership, start_in_background
from koala_adapter.api.offline import read_record
from koala_adapter.api.reports import JOB_REPORT
from koala_adapter.cli.asking import PATIENCE, lost
from koala_adapter.cli.context import command_body, job_argument, json_option, pass_session
from koala_adapter.cli.following import Display, closing, follow
from koala_adapter.cli.interrupts import Interrupts
from koala_adapter.cli.logstream import LogStream
from koala_adapter.errors import ServiceRunningError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from koala_adapter.api.reports import JobReport
    from koala_adapter.cli.context import Session
    from koala_adapter.model import Job

CLOSING = 10.0
"""Seconds that our own service may take to end once it has begun to."""
COMING_UP = 120.0
"""Seconds to wait for a service that somebody else is starting."""
OTHER_START = 2.0
"""Seconds after which it is looked whether that one is still there."""

T = TypeVar("T")


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
    Exit codes:
      the job's own, or 240 refused, 241 not placed, 242 lost, 243 cancelled,
      244 walltime exceeded, 245 bad configuration, 246 no service, 247 batch system

    \b
    Example:
      koala run job.toml
    """
    job = session.job(job_file)
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
    r"""Hand a job to the service, and start one if none runs.

    The service goes on in the background; `koala serve --stop` ends it.

    \b
    Example:
      koala submit job.toml
    """
    job = session.job(job_file)
    if not session.client.running():
        go_on_in_background(session, "no service was running; started one in the background")
    job_id = session.client.submit(job)
    if as_json:
        session.print_json({"id": job_id})
    else:
        session.console.print(f"job {job_id} submitted; follow it with `koala logs {job_id} -f`")


def go_on_in_background(session: Session, text: str) -> None:
    """Start a service that outlives this command, and say so, unless somebody else has just started one."""
    with session.progress.status("starting a service"):
        pid = unless_another_answers(session, lambda: start_in_background(session.site_file, session.directory))
    if pid is not None:
        session.remark(f"{text} (pid {pid}, log in {session.directory / LOG_NAME})")


def unless_another_answers(session: Session, start: Callable[[], T]) -> T | None:
    """Return what ``start`` returns; None when another service, on whose start it waited, answers instead.

    Raises ServiceRunningError when another process owns the directory and does not come to answer.
    """
    until = time.monotonic() + COMING_UP
    while True:
        try:
            return start()
        except ServiceRunningError as error:
            # In between the start is tried again: the other one may fail.
            if session.client.wait_until_running(OTHER_START):
                return None
            if time.monotonic() > until:
                message = f"{error.message}, but has not answered for {COMING_UP:.0f} s"
                hint = f"see what it says there, or in {session.directory / LOG_NAME}; end it and try again"
                raise ServiceRunningError(message, hint=hint) from None


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
        if (
            inner is not None
            and not inner.ended
            and (left := read_record(session.directory, session.policies).unfinished)
        ):
            text = f"not everything has ended yet (job {', '.join(left)}); a service in the background sees to it"
            go_on_in_background(session, text)


def _own(session: Session, stack: ExitStack, interrupts: Interrupts) -> InnerService | None:
    """Become the service inside this process; None when another one comes up at the same moment."""
    with session.progress.status("starting a service"):
        lock = unless_another_answers(session, lambda: stack.enter_context(ownership(session.directory, "koala run")))
    if lock is None:
        return None
    return stack.enter_context(inner_service(session, interrupts))


@dataclass(slots=True)
class InnerService:
    """A service inside this process."""

    ended: bool = False
    """It ended by itself: it was stopped, or it failed."""


@contextmanager
def inner_service(session: Session, interrupts: Interrupts) -> Iterator[InnerService]:
    """Run a service inside this process during the block, the only part of this that an interrupt may end."""
    inner = InnerService()
    with log_to_file(session), interrupts.put_off(), start_blocking_portal() as portal:
        with interrupts.let_in(), session.progress.status(f"asking {len(session.site.enabled_clusters)} clusters"):
            future, server = portal.start_task(
                partial(host, policies=session.policies), session.site, session.plugins, session.directory
            )
        try:
            with interrupts.let_in():
                yield inner
        except ServiceUnavailableError:
            # It is our own that is gone, so we know why.
            error = future.exception(timeout=CLOSING)
            if error is not None:
                raise error from None
            raise
        finally:
            inner.ended = future.done()
            if not inner.ended:
                portal.call(server.quiet)  # or asyncio would grumble about a read that is both done and cancelled
            future.cancel()


@contextmanager
def log_to_file(session: Session) -> Iterator[None]:
    """Have a service inside this process log where one in the background does, not among what people read."""
    if session.verbose:
        yield
        return
    former = structlog.get_config()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    file = os.fdopen(os.open(session.directory / LOG_NAME, flags, 0o600), "a", buffering=1)
    structlog.configure(
        processors=[*former["processors"][:-1], structlog.dev.ConsoleRenderer(colors=False)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogStream(file))),
    )
    try:
        yield
    finally:
        structlog.configure(**former)
        with suppress(OSError):  # what a full disk did not take
            file.close()


def run_job(session: Session, job: Job, *, quiet: bool) -> JobReport:
    """Submit a job and follow it to its end; an interrupt cancels it and follows on, a second one only cancels."""
    with Interrupts() as interrupts, service(session, interrupts) as patience:
        display = Display(session.progress, quiet=quiet)
        job_id = ""
        try:
            with interrupts.put_off():
                job_id = session.client.submit(job)
            watched = session.client.follow(job_id, patience=patience, on_lost=lost(session))
            return follow(watched, display)
        except KeyboardInterrupt:
            if not job_id:
                raise
            # Before anything is said: a second interrupt, or an output that fails, must not keep it back.
            with interrupts.put_off():
                session.client.cancel(job_id)
                session.remark(f"cancelling job {job_id} (again Ctrl-C: without waiting for its end) ...")
            watched = session.client.follow(job_id, patience=patience, on_lost=lost(session))
            return follow(watched, display)
        except ServiceUnavailableError as error:
            hint = f"job {job_id} is not lost: start the service with `koala serve`, then `koala logs {job_id} -f`"
            raise ServiceUnavailableError(error.message, hint=hint if job_id else error.hint) from error
