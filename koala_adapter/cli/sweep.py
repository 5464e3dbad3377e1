# SPDX-License-Identifier: Apache-2.0
"""``koala sweep``: one program with many parameters, each task once, wherever processors are idle."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.jobs import job_information
from koala_adapter.cli.jobwords import SOURCE, save
from koala_adapter.cli.run import run_job
from koala_adapter.cli.session import command_body, json_option, pass_session
from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session
    from koala_adapter.config.commandsweep import CommandSweep
    from koala_adapter.model import Job


@click.command()
@click.argument("words", metavar="[--] PROGRAM [ARGUMENTS] ::: NAME=VALUES ...", nargs=-1, type=click.UNPROCESSED)
@click.option("--maximum", "-n", type=click.IntRange(min=1), metavar="N", help="Most processors. Default: 1000.")
@click.option("--together", is_flag=True, help="The first values are a task, the second ones the next, and so on.")
@click.option("--repeats", type=click.IntRange(0, 1000), default=2, show_default=True, help="New tries of what fails.")
@click.option(
    "--grace", type=click.IntRange(0, 3600), default=0, show_default=True, metavar="SECONDS",
    help="Time for a task to end when others want its processor; then it is killed, and done again elsewhere.",
)  # fmt: skip
@click.option("--walltime", "-t", metavar="TIME", help="How long the sweep may run, such as 10m. Default: 1h.")
@click.option("--cluster", "-C", metavar="NAME", help="The only cluster to run on.")
@click.option("--save", "save_as", type=click.Path(path_type=Path), metavar="FILE", help="Write the job file too.")
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
    repeats: int,
    grace: int,
    walltime: str | None,
    cluster: str | None,
    save_as: Path | None,
    resume: str | None,
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
        if words or save_as is not None or cluster is not None or together:
            raise click.UsageError("with --resume the sweep is what it was: nothing may stand beside it but -n and -t")
        job = _resumed(session, resume, maximum=maximum, walltime=walltime)
        if _nothing_left(session, job):
            if as_json:
                session.print_json(asdict(job_information(session).job(resume)))
            return
    else:
        from koala_adapter.config.commandjob import WALLTIME
        from koala_adapter.config.commandsweep import MOST_LAUNCHERS, CommandSweep, split_words

        command, parameters = split_words(words)
        wanted = CommandSweep(
            command=command,
            parameters=parameters,
            maximum=maximum or MOST_LAUNCHERS,
            together=together,
            repeats=repeats,
            grace=grace,
            walltime=walltime or WALLTIME,
            cluster=cluster or "",
            working_directory=str(Path.cwd()),
        )
        job = _new(session, wanted, save_as)
    report = run_job(session, job, quiet=quiet or as_json)
    if as_json:
        session.print_json(asdict(report))
    elif not quiet:
        from koala_adapter.cli.following import closing

        closing(report, session.progress)
        if report.outcome is not None and report.outcome.exit_code:
            session.remark(f"`koala sweep --resume {report.id}` goes on with what is not done")
    sys.exit(0 if report.outcome is None else report.outcome.exit_code)


def _new(session: Session, wanted: CommandSweep, save_as: Path | None) -> Job:
    from koala_adapter.config.commandsweep import sweep_file_text

    text = sweep_file_text(wanted)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{SOURCE}: an argument is not UTF-8", hint="rename the file it names") from None
    job = session.job_of_text(text, source=SOURCE)
    if save_as is not None:
        save(save_as, text)
    return job


def _resumed(session: Session, job_id: str, *, maximum: int | None, walltime: str | None) -> Job:
    """Return the job that goes on with the sweep of another one. Raises ConfigurationError."""
    from dataclasses import replace

    from koala_adapter.config.jobfile import job_from_dict
    from koala_adapter.model import JobId
    from koala_adapter.service.sweepfiles import kept_job

    try:
        before = job_from_dict(kept_job(session.directory / "jobs", JobId(job_id)))
    except (OSError, ValueError):
        message = f"nothing is known of a sweep of job {job_id}"
        raise ConfigurationError(message, hint="see `koala status`, and --state") from None
    if before.sweep is None:
        raise ConfigurationError(f"job {job_id} is no sweep")
    job = replace(before, sweep=replace(before.sweep, continues=before.sweep.continues or before.id), id=JobId("0"))
    if maximum is not None:
        job = replace(job, components=(replace(job.components[0], maximum=maximum),))
    return job if walltime is None else replace(job, walltime=_seconds(walltime))


def _nothing_left(session: Session, job: Job) -> bool:
    """Tell whether all tasks of a sweep are done, and say so if they are."""
    from koala_adapter.service.sweepfiles import latest_progress
    from koala_adapter.sweeps.progress import said

    found = latest_progress(session.directory / "jobs", job)
    if found is None or found.done < found.total:
        return False
    session.remark(f"{said(found)}: there is nothing to go on with; what came of them is in {found.directory}")
    return True


def _seconds(walltime: str) -> int:
    from koala_adapter.config.fields import DURATION_WORDS, NotAllowedError, parse_duration

    try:
        found = parse_duration(walltime)
    except NotAllowedError as error:
        raise ConfigurationError(f'--walltime: found "{walltime}", allowed is {error}') from None
    if not isinstance(found, int) or found < 1:
        raise ConfigurationError(f'--walltime: found "{walltime}", allowed is {DURATION_WORDS}')
    return found
