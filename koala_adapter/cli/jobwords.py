# SPDX-License-Identifier: Apache-2.0
"""What to run, as `koala run` and `koala submit` are told: a job file, or a program and on how many processors."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.cli.session import Session
    from koala_adapter.model import Job

R = TypeVar("R")

SOURCE = "command line"
"""What refusals call a job without a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWords:
    """The words of a command line that say what is to run."""

    words: tuple[str, ...]
    """A job file, or a program and its arguments."""
    processors: int | None
    mpi: bool
    walltime: str | None
    cluster: str | None
    split: bool
    save: Path | None

    def job(self, session: Session) -> Job:
        """Return the job. Raises ConfigurationError and UsageError."""
        if self._of_a_program:
            return self._job_of_a_program(session)
        path = Path(self.words[0])
        if path.suffix != ".toml" and path.is_file() and os.access(path, os.X_OK):
            message = f"{path} is a program, no job file"
            raise ConfigurationError(message, hint=f"koala run -n PROCESSORS -- {path}")
        return session.job(path)

    @property
    def job_files(self) -> tuple[Path, ...]:
        """The job files that are named, several at once; empty where the words are one job."""
        several = len(self.words) > 1 and all(word.endswith(".toml") for word in self.words)
        return tuple(map(Path, self.words)) if several and not self._given else ()

    @property
    def _given(self) -> bool:
        given = (self.processors, self.walltime, self.cluster, self.save)
        return self.mpi or self.split or any(one is not None for one in given)

    @property
    def _of_a_program(self) -> bool:
        return len(self.words) > 1 or self._given

    def _job_of_a_program(self, session: Session) -> Job:
        from koala_adapter.config.commandjob import WALLTIME, CommandJob, job_file_text

        if len(self.words) == 1 and self.words[0].endswith(".toml"):
            raise click.UsageError("a job file says itself what it needs: nothing may stand beside it")
        text = job_file_text(
            CommandJob(
                command=self.words,
                processors=1 if self.processors is None else self.processors,
                mpi=self.mpi,
                walltime=self.walltime or WALLTIME,
                cluster=self.cluster or "",
                split=self.split,
                working_directory=str(Path.cwd()),
            )
        )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"{SOURCE}: an argument is not UTF-8", hint="rename the file it names") from None
        job = session.job_of_text(text, source=SOURCE)
        if self.save is not None:
            save(self.save, text)
        return job


def save(path: Path, text: str) -> None:
    """Write a job file that is not there yet. Raises ConfigurationError."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already", hint="save under another name, or remove it") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def job_words(function: Callable[..., R]) -> Callable[..., R]:
    """Have a command take what is to run, as its argument ``wanted``: JobWords."""

    @click.argument("words", metavar="JOB | [--] PROGRAM [ARGUMENTS]", nargs=-1, required=True, type=click.UNPROCESSED)
    @click.option("--processors", "-n", type=click.IntRange(min=1), metavar="N", help="Processors for PROGRAM.")
    @click.option("--mpi", is_flag=True, help="PROGRAM is one MPI world of N processes.")
    @click.option("--walltime", "-t", metavar="TIME", help="How long PROGRAM may run, such as 10m. Default: 1h.")
    @click.option("--cluster", "-C", metavar="NAME", help="Cluster that PROGRAM must run in.")
    @click.option("--split", is_flag=True, help="Several clusters may share N, where one has not enough.")
    @click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the job file this stands for.")
    @functools.wraps(function)
    def with_words(*args: object, **options: object) -> R:
        names = ("words", "processors", "mpi", "walltime", "cluster", "split", "save")
        wanted = JobWords(**{name: options.pop(name) for name in names})  # type: ignore[arg-type] # as click checked
        return function(*args, wanted=wanted, **options)

    return with_words
