# SPDX-License-Identifier: Apache-2.0
"""``koala run``, ``submit`` and ``sweep``: a job, or a parameter sweep, submitted and followed."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koala_adapter import config
from koala_adapter import service as service_room
from koala_adapter.api.client import unless_another_answers
from koala_adapter.api.statedirectory import LOG_NAME, ownership
from koala_adapter.cli import collect_hardly_ever
from koala_adapter.cli.arguments import (
    JobArguments,
    checked,
    job_arguments,
    needs_options,
    sweep_of_words,
    with_dependencies,
)
from koala_adapter.cli.following import Display, closing, follow
from koala_adapter.cli.jobs import PATIENCE, job_information, on_lost_service
from koala_adapter.cli.session import Session, command_body, json_option, pass_session
from koala_adapter.cli.terminal import Interrupts
from koala_adapter.config.written import DURATION_WORDS, NotAllowedError, parse_duration
from koala_adapter.errors import ConfigurationError, ServiceUnavailableError
from koala_adapter.model import Job, JobId
from koala_adapter.report.values import JobReport, end_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.cli.innerservice import InnerService


# -- Commands ``run`` and ``submit`` -------------------------------------------------------------------------


@click.command()
@job_arguments
@json_option
@click.option("--quiet", "-q", is_flag=True, help="No progress: what the processes print, and nothing else.")
@pass_session
@command_body
def run(session: Session, wanted: JobArguments, as_json: bool, quiet: bool) -> None:
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
    collect_hardly_ever()
    job = wanted.job(session)
    report = run_job(session, job, quiet=quiet or as_json, output=not as_json)
    if as_json:
        session.print_json(asdict(report))
    elif not quiet:
        closing(report, session.progress)
    sys.exit(0 if report.outcome is None else report.outcome.exit_code)


@click.command()
@job_arguments
@click.option("--chain", is_flag=True, help="Of several job files, each starts when the one before has completed.")
@json_option
@pass_session
@command_body
def submit(session: Session, wanted: JobArguments, chain: bool, as_json: bool) -> None:
    r"""Hand a job to the service, and start one if none runs.

    JOB is a job file, or a program as for `koala run`. Several job files, all in .toml, are several jobs: all are read
    before the first is handed over.

    The service goes on in the background; `koala serve --stop` ends it.

    \b
    Examples:
      koala submit job.toml
      koala submit *.toml
      koala submit --chain prepare.toml simulate.toml
      koala submit --after 12:any clean-up.toml
    """
    if wanted.job_files:
        _submit_several(session, wanted, chain=chain, as_json=as_json)
        return
    if chain:
        raise click.UsageError("--chain is for several job files")
    job = wanted.job(session)
    go_on_in_background(session, "no service was running; started one in the background")
    job_id = session.here.submit(job).id
    if as_json:
        session.print_json({"id": job_id})
    else:
        session.console.print(f"job {job_id} submitted; follow it with `koala logs {job_id} -f`")


def _submit_several(session: Session, wanted: JobArguments, *, chain: bool, as_json: bool) -> None:
    """Hand over the jobs of several files; none of them when one cannot be read. ``chain``: each after the last."""
    files = wanted.job_files
    jobs = [wanted.of_file(session, file) for file in files]
    go_on_in_background(session, "no service was running; started one in the background")
    submitted: list[dict[str, str]] = []
    try:
        for file, job in zip(files, jobs, strict=True):
            before = [submitted[-1]["id"]] if chain and submitted else []
            job_id = session.here.submit(with_dependencies(job, before)).id
            submitted.append({"id": job_id, "file": str(file)})
            if not as_json:
                session.console.print(f"job {job_id} submitted: {file}", markup=False, soft_wrap=True)
    finally:
        # What is in is told also when the service goes away in the middle.
        if as_json:
            session.print_json({"jobs": submitted})


def go_on_in_background(session: Session, text: str) -> None:
    """Start a service that outlives this command, and say so, unless another process has just started one."""
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


def run_job(session: Session, job: Job, *, quiet: bool, output: bool = True) -> JobReport:
    """Submit a job and follow it to its end; an interrupt cancels it and follows on, a second one only cancels.

    ``quiet``: show no progress; ``output``: show what its processes print.
    """
    with Interrupts() as interrupts, service(session, interrupts) as patience:
        display = Display(session.progress, quiet=quiet, output=output)
        job_id = ""
        try:
            with interrupts.deferred():
                job_id = session.client.submit(job)
            watched = session.client.follow(job_id, patience=patience, on_lost=on_lost_service(session))
            # A service that goes on sees to its placeholders by itself.
            return follow(watched, display, released=not patience)
        except KeyboardInterrupt:
            if not job_id:
                raise
            if display.latest is not None and display.latest.outcome is not None:
                return display.latest  # it has ended already: what is left of it is seen to without this command
            # Before anything is said: a second interrupt, or an output that fails, must not keep it back.
            with interrupts.deferred():
                session.client.cancel(job_id)
                session.remark(f"cancelling job {job_id} (again Ctrl-C: without waiting for its end) ...")
            watched = session.client.follow(job_id, patience=patience, on_lost=on_lost_service(session))
            return follow(watched, display)
        except ServiceUnavailableError as error:
            hint = f"job {job_id} is not lost: start the service with `koala serve`, then `koala logs {job_id} -f`"
            raise ServiceUnavailableError(error.message, hint=hint if job_id else error.hint) from error


# -- Command ``sweep`` ---------------------------------------------------------------------------------------
# One program with many parameters: each task runs once, wherever processors are idle.


@click.command()
@click.argument("words", metavar="[--] PROGRAM [ARGUMENTS] ::: NAME=VALUES ...", nargs=-1, type=click.UNPROCESSED)
@click.option("--maximum", "-n", type=click.IntRange(min=1), metavar="N", help="Most tasks at once. Default: 1000.")
@click.option("--together", is_flag=True, help="The first values are a task, the second ones the next, and so on.")
@click.option("--repeats", type=click.IntRange(0, 1000), help="New tries of what fails. Default: 2.")
@click.option(
    "--grace", type=click.IntRange(0, 3600), metavar="SECONDS",
    help="Time for a task to end when others want its processor; then it is killed, done again elsewhere. Default: 0.",
)  # fmt: skip
@click.option("--walltime", "-t", metavar="TIME", help="How long the sweep may run, such as 10m. Default: 1h.")
@click.option("--cluster", "-C", metavar="NAME", help="The only cluster to run on.")
@click.option("--save", "save_as", type=click.Path(path_type=Path), metavar="FILE", help="Write the job file too.")
@needs_options
@click.option("--resume", metavar="ID", help="Go on with the sweep of an earlier job: what is not done, or failed.")
@json_option
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@pass_session
@command_body
def sweep(
    session: Session,
    words: tuple[str, ...],
    maximum: int | None,
    together: bool,
    repeats: int | None,
    grace: int | None,
    walltime: str | None,
    cluster: str | None,
    save_as: Path | None,
    resume: str | None,
    needs: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    r"""Run a program with many parameters, each combination once.

    NAME=VALUES is a range (a=1..100, a=0..1..0.25), a list (b=x,y), or a file with a value on each line (c=@FILE).
    {NAME} in an argument stands for a value. Tasks run on whatever processors of any cluster are idle, and make way for
    others. Ctrl-C stops the sweep; --resume ID goes on with it.

    \b
    Exit codes:
      0 all tasks succeeded, 1 some failed; else as `koala run`

    \b
    Examples:
      koala sweep -- ./program {a} {b} ::: a=1..100 b=x,y
      koala sweep --resume 12
    """
    if resume is not None:
        if words or save_as is not None or cluster is not None or together or needs:
            raise click.UsageError(
                "with --resume the sweep is what it was: nothing may stand beside it but -n, -t, --repeats, --grace"
            )
        job = _resumed(session, resume, maximum=maximum, walltime=walltime, repeats=repeats, grace=grace)
        if _nothing_left(session, job):
            if as_json:
                session.print_json(asdict(job_information(session).job(resume)))
            return
    else:
        wanted = sweep_of_words(
            words,
            maximum=maximum,
            together=together,
            repeats=repeats,
            grace=grace,
            walltime=walltime,
            cluster=cluster,
            needs=needs,
        )
        job = checked(session, wanted, save_as)
    report = run_job(session, job, quiet=quiet or as_json)
    if as_json:
        session.print_json(asdict(report))
    elif not quiet:
        closing(report, session.progress)
        if report.outcome is not None and report.outcome.exit_code:
            session.remark(f"`koala sweep --resume {report.id}` goes on with what is not done")
    sys.exit(0 if report.outcome is None else report.outcome.exit_code)


def _resumed(
    session: Session,
    job_id: str,
    *,
    maximum: int | None = None,
    walltime: str | None = None,
    repeats: int | None = None,
    grace: int | None = None,
) -> Job:
    """Return the job that goes on with the sweep of another one. Raises ConfigurationError."""
    try:
        before = config.job_from_dict(service_room.kept_job(session.directory / "jobs", JobId(job_id)))
    except (OSError, ValueError):
        message = f"nothing is known of a sweep of job {job_id}"
        raise ConfigurationError(message, hint="see `koala status`, and --state") from None
    if before.sweep is None:
        raise ConfigurationError(f"job {job_id} is no sweep")
    again = before.sweep.repeats if repeats is None else repeats
    sweep = replace(before.sweep, continues=before.sweep.continues or before.id, repeats=again)
    component = before.components[0]
    if maximum is not None:
        if maximum < component.minimum:
            message = f"-n: found {maximum}, but the sweep of job {job_id} has at least {component.minimum} processors"
            raise ConfigurationError(message, hint=f"allowed is -n {component.minimum} or more")
        component = replace(component, maximum=maximum)
    if grace is not None:
        component = replace(component, retirement=replace(component.retirement, grace=grace))
    job = replace(before, sweep=sweep, components=(component,), id=JobId("0"))
    return job if walltime is None else replace(job, walltime=_seconds(walltime))


def _nothing_left(session: Session, job: Job) -> bool:
    """Tell whether all tasks of a sweep are done, and say so if they are."""
    found = service_room.latest_progress(session.directory / "jobs", job)
    if found is None or found.done < found.total:
        return False
    session.remark(f"{end_in_words(found)}: there is nothing to go on with; what came of them is in {found.directory}")
    return True


def _seconds(walltime: str) -> int:
    try:
        found = parse_duration(walltime)
    except NotAllowedError as error:
        raise ConfigurationError(f'--walltime: found "{walltime}", allowed is {error}') from None
    if not isinstance(found, int) or found < 1:
        raise ConfigurationError(f'--walltime: found "{walltime}", allowed is {DURATION_WORDS}')
    return found
