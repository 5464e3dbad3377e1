# SPDX-License-Identifier: Apache-2.0
"""What is to run, as said on a command line: a job file, a program, or a program with the values of its parameters."""

from __future__ import annotations

import functools
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from koala_adapter import config
from koala_adapter.config.tomlfile import toml_of
from koala_adapter.config.written import is_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Job as CheckedJob
from koala_adapter.model import Notified
from koala_adapter.python.description import SLOT_NAMES, WALLTIME, Component, Job
from koala_adapter.tasks.sweep import MOST_LAUNCHERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koala_adapter.cli.session import Session

R = TypeVar("R")

SOURCE = "command line"
"""What refusals call a job without a file."""


# -- A job file, or a program and its processors -------------------------------------------------------------


def _gpus(_context: click.Context, _option: click.Parameter, value: str | None) -> int | str | None:
    """Return the number of GPUs as int where the text is a number."""
    return int(value) if value and value.isdecimal() else value


def _one_or_by_cluster(
    _context: click.Context, _option: click.Parameter, values: Sequence[str]
) -> str | dict[str, str] | None:
    """Parse NAME or CLUSTER=NAME,...: one name for all clusters, or names by cluster."""
    if len(values) == 1 and "=" not in values[0]:
        return values[0]
    if not all("=" in value for value in values):
        raise click.BadParameter(f"found {', '.join(values)}, allowed is one NAME, or CLUSTER=NAME for each cluster")
    return dict(_pair(value, "CLUSTER=NAME") for value in values)


def _licenses(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    pairs = [_pair(value, "NAME=N") for value in values]
    for name, number in pairs:
        if not number.isdecimal():
            raise click.BadParameter(f'found "{name}={number}", allowed is NAME=N with a whole number N')
    return {name: int(number) for name, number in pairs}


def _directives(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value in values:
        cluster, argument = _pair(value, "CLUSTER=ARG, such as alpha=--reservation=course")
        found.setdefault(cluster, []).append(argument)
    return found


def _pair(text: str, allowed: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not (name and value):
        raise click.BadParameter(f'found "{text}", allowed is {allowed}')
    return name, value


def needs_options(function: Callable[..., R]) -> Callable[..., R]:
    """Decorator: add the options for what each rank needs, its environment included; the command gets ``needs``.

    That is a dictionary of what was given, by the keys of a job file.
    """

    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Processors of each rank. Default: 1.")
    @click.option("--memory", metavar="SIZE", help="Memory of each rank, such as 4GiB.")
    @click.option("--gpus", metavar="[KIND:]N", callback=_gpus, help="GPUs of each rank, such as a100:2.")
    @click.option("--exclusive", is_flag=True, help="Nothing else runs on the node of a rank.")
    @click.option("--scratch", metavar="SIZE", help="Space on the node's own disk for each rank.")
    @click.option("--feature", "features", multiple=True, metavar="WORD", help="Feature that the nodes must have.")
    @click.option(
        "--license", "licenses", multiple=True, metavar="NAME=N", callback=_licenses, help="Licenses of each rank."
    )
    @click.option(
        "--queue", multiple=True, metavar="[CLUSTER=]NAME", callback=_one_or_by_cluster, help="Queue or partition."
    )
    @click.option(
        "--account", multiple=True, metavar="[CLUSTER=]NAME", callback=_one_or_by_cluster, help="Account to charge."
    )
    @click.option(
        "--qos", multiple=True, metavar="[CLUSTER=]NAME", callback=_one_or_by_cluster, help="Quality of service."
    )
    @click.option(
        "--directive", "directives", multiple=True, metavar="CLUSTER=ARG", callback=_directives,
        help="Argument of the submission to a cluster.",
    )  # fmt: skip
    @click.option("--export", multiple=True, metavar="NAME", help='Variable that PROGRAM gets from here, or "all".')
    @click.option("--setup", multiple=True, metavar="LINE", help='Line of a shell before PROGRAM: "module load gcc".')
    @click.option("--software", multiple=True, metavar="NAME", help="Software that the cluster must have.")
    @click.option("--container", metavar="IMAGE", help="Container image in which PROGRAM runs.")
    @functools.wraps(function)
    def with_needs(*args: object, **options: object) -> R:
        names = (*SLOT_NAMES, "export", "setup", "software", "container")
        needs = {name: value for name in names if (value := options.pop(name))}
        if needs.get("export") == ("all",):
            needs["export"] = "all"
        return function(*args, needs=needs, **options)

    return with_needs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """Arguments and options of ``koala run`` and ``submit`` that describe the job."""

    words: tuple[str, ...]
    """A job file, or a program and its arguments."""
    keys: dict[str, Any] = field(default_factory=dict)
    """What options say of a program, by the keys of a job file."""
    save: Path | None = None
    after: tuple[str, ...] = ()
    """Jobs that must have ended before, besides those of a job file."""
    notify: tuple[str, ...] = ()
    """What of the job is told, besides what a job file says."""

    def job(self, session: Session) -> CheckedJob:
        """Return the job. Raises ConfigurationError and UsageError."""
        return self._with_options(with_dependencies(self._job(session), self.after), session)

    def of_file(self, session: Session, path: Path) -> CheckedJob:
        """Return the job of one of several job files, options included. Raises ConfigurationError and UsageError."""
        return self._with_options(with_dependencies(session.job(path), self.after), session)

    def _with_options(self, job: CheckedJob, session: Session) -> CheckedJob:
        """Return a job description with the options added. Raises UsageError."""
        if self.notify and not session.here.config.notify.ways:
            raise click.UsageError("--notify: the site file does not say how to tell: write [notify] there")
        return replace(job, notify=tuple(dict.fromkeys((*job.notify, *map(Notified, self.notify)))))

    def _job(self, session: Session) -> CheckedJob:
        if len(self.words) > 1 or self._given:
            if len(self.words) == 1 and self.words[0].endswith(".toml"):
                raise click.UsageError("a job file says itself what it needs: nothing may stand beside it")
            if "placement" in self.keys and "cluster" in self.keys:
                raise click.UsageError("--split is for several clusters, and --cluster names one: leave one out")
            return checked(session, self._description(), self.save)
        path = Path(self.words[0])
        if path.suffix != ".toml" and path.is_file() and os.access(path, os.X_OK):
            message = f"{path} is a program, no job file"
            raise ConfigurationError(message, hint=f"koala run -n PROCESSORS -- {path}")
        if path.suffix != ".toml" and not path.exists() and shutil.which(self.words[0]) is not None:
            message = f"{path}: there is no such job file, but a program of that name"
            raise ConfigurationError(message, hint=f"to run it: koala run -n 1 -- {path}")
        return session.job(path)

    @property
    def job_files(self) -> tuple[Path, ...]:
        """The job files, when all words are files and there are several; else empty."""
        several = len(self.words) > 1 and all(word.endswith(".toml") for word in self.words)
        return tuple(map(Path, self.words)) if several and not self._given else ()

    @property
    def _given(self) -> bool:
        """Whether options describe a job, which then is no job file."""
        return bool(self.keys) or self.save is not None

    def _description(self) -> Job:
        keys = {"processors": 1, **self.keys, "walltime": self.keys.get("walltime") or WALLTIME}
        return Job(self.words, working_directory=Path.cwd(), **keys)


def with_dependencies(job: CheckedJob, after: Sequence[str]) -> CheckedJob:
    """Return a job description that starts after further jobs. Raises UsageError."""
    if not after:
        return job
    try:
        return replace(job, after=(*job.after, *map(config.after_of, after)))
    except ValueError as error:
        raise click.UsageError(f"--after: found {', '.join(after)}, allowed is {error}") from None


def checked(session: Session, described: Job, save_as: Path | None) -> CheckedJob:
    """Return the job of a description, checked against the site; write it as a job file where --save asks for that.

    Raises ConfigurationError, before anything is written.
    """
    text = toml_of(described.values())
    if not is_text(text):
        raise ConfigurationError(f"{SOURCE}: an argument, or the present directory, is not UTF-8", hint="rename it")
    job = session.job(described)
    if save_as is not None:
        _save(save_as, text)
    return job


def _save(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already", hint="save under another name, or remove it") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def number_or_name(text: str) -> int | str:
    """Return the whole number that a text is, or the text: a job file has numbers and names."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text, re.ASCII) else text


KEYS = ("processors", "ranks_per_slot", "walltime", "cluster", "array", "retries", "checkpoint_signal", "name")
"""Options that are keys of a job file as they stand."""


def job_arguments(function: Callable[..., R]) -> Callable[..., R]:
    """Decorator: add the arguments and options that describe a job; the command gets ``wanted``."""

    @click.argument("words", metavar="JOB | [--] PROGRAM [ARGUMENTS]", nargs=-1, required=True, type=click.UNPROCESSED)
    @click.option("--processors", "-n", type=click.IntRange(min=1), metavar="N", help="Ranks of PROGRAM. Default: 1.")
    @click.option(
        "--ranks-per-slot", type=click.IntRange(min=1), metavar="N", help="Ranks that share a job of the batch system."
    )
    @click.option("--mpi", is_flag=True, help="PROGRAM is one MPI world of N processes.")
    @click.option("--walltime", "-t", metavar="TIME", help="How long PROGRAM may run, such as 10m. Default: 1h.")
    @click.option("--cluster", "-C", metavar="NAME", help="Cluster that PROGRAM must run in.")
    @click.option("--split", is_flag=True, help="Several clusters may share N, where one has not enough.")
    @click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the job file this stands for.")
    @click.option("--array", metavar="I-J[%N]", help="A task for each index, such as 1-100, at most N at once.")
    @click.option("--after", multiple=True, metavar="JOB[:ok|failed|any]", help="Start when JOB has ended so.")
    @click.option(
        "--notify", multiple=True, type=click.Choice([one.value for one in Notified]), help="Have that told ([notify])."
    )
    @click.option("--retries", type=click.IntRange(min=0), metavar="N", help="Run it again N times where it fails.")
    @click.option("--retry-on", multiple=True, metavar="END", help="failed, lost, memory, walltime or an exit status.")
    @click.option("--checkpoint-signal", metavar="NAME", help="Send it a minute before the walltime is over.")
    @click.option("--requeue-on-walltime", is_flag=True, help="Run it again until it ends before its walltime.")
    @click.option("--name", metavar="NAME", help="Name of the job. Default: that of PROGRAM.")
    @click.option("--priority", metavar="P", help="low, normal, high, super-high or -1000 to 1000: higher goes first.")
    @needs_options
    @functools.wraps(function)
    def with_arguments(*args: object, **options: Any) -> R:  # noqa: ANN401 - as click has checked
        keys = {name: value for name in KEYS if (value := options.pop(name)) is not None}
        if ends := options.pop("retry_on"):
            keys["retry_on"] = [number_or_name(one) for one in ends]
        if (priority := options.pop("priority")) is not None:
            keys["priority"] = number_or_name(priority)
        if options.pop("requeue_on_walltime"):
            keys["requeue_on_walltime"] = True
        if options.pop("mpi"):
            keys["launcher"] = "mpi"
        if options.pop("split"):
            keys |= {"placement": "flexible-cluster-minimization", "flexible": True}
        own = {name: options.pop(name) for name in ("words", "save", "after", "notify")}
        wanted = JobArguments(keys=keys | options.pop("needs"), **own)
        return function(*args, wanted=wanted, **options)

    return with_arguments


# -- A program and the values of its parameters --------------------------------------------------------------

SEPARATOR = ":::"
REPEATS = 2
"""New tries of a task that fails, unless the user says otherwise."""
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def sweep_of_words(
    words: Sequence[str],
    *,
    maximum: int | None = None,
    together: bool = False,
    repeats: int | None = None,
    grace: int | None = None,
    walltime: str | None = None,
    cluster: str | None = None,
    needs: dict[str, Any] | None = None,
) -> Job:
    """Return the sweep that the words of ``koala sweep`` describe: a program, ``:::`` and NAME=VALUES.

    ``grace``: seconds that a task has to end when its processor is wanted. ``needs``: what each task needs, as
    :func:`needs_options` has it. Raises ConfigurationError.
    """
    command, parameters = _split(words)
    # The environment is that of the job, everything else that of its only component.
    slot = {name: value for name, value in (needs or {}).items() if name in SLOT_NAMES}
    environment = {name: value for name, value in (needs or {}).items() if name not in SLOT_NAMES}
    component = Component(
        command,
        minimum=1,
        maximum=maximum or MOST_LAUNCHERS,
        cluster=cluster,
        flexible=True if cluster is None else None,
        retire_grace=grace or 0,
        **slot,
    )
    tasks: dict[str, object] = {"repeats": REPEATS if repeats is None else repeats, "parameters": parameters}
    return Job(
        components=[component],
        kind="malleable",
        runner="sweep",
        walltime=walltime or WALLTIME,
        working_directory=Path.cwd(),
        sweep=tasks | ({"combine": "together"} if together else {}),
        **environment,
    )


def _split(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, object]]:
    if SEPARATOR not in words:
        message = "nothing says what the parameters are"
        raise ConfigurationError(message, hint="koala sweep -- ./program {a} {b} ::: a=1..100 b=x,y")
    at = list(words).index(SEPARATOR)
    found: dict[str, object] = {}
    for word in words[at + 1 :]:
        match = _WORD.fullmatch(word)
        if match is None:
            raise ConfigurationError(
                f"found {word!r} behind {SEPARATOR}", hint="allowed is NAME=VALUES: a=1..100 b=x,y"
            )
        name, values = match.groups()
        if not values:
            raise ConfigurationError(f"parameter {name} has no values", hint=f"{name}=1..9, {name}=x,y or {name}=@FILE")
        if name in found:
            raise ConfigurationError(f"parameter {name} is there twice", hint="give each its values once")
        found[name] = _values(values)
    if not words[:at]:
        raise ConfigurationError(
            f"there is no program before {SEPARATOR}", hint="koala sweep -- ./program {a} ::: a=1..9"
        )
    return tuple(words[:at]), found


def _values(text: str) -> object:
    """Parse VALUES of a parameter as a file, a range or a list, in the form of a job file."""
    if text.startswith("@"):
        return {"file": text[1:]}
    if ".." in text and "," not in text and re.fullmatch(r"[-0-9.]+", text):
        return text
    return text.split(",")
