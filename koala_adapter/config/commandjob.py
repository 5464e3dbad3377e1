# SPDX-License-Identifier: Apache-2.0
"""Jobs and sweeps given on a command line, written as the job files that they stand for. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from koala_adapter.config.tomlfile import toml_text
from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# -- A job ---------------------------------------------------------------------------------------------------

WALLTIME = "1h"
"""How long a command may run unless its user says otherwise."""
LONGEST_NAME = 60
"""Characters of a program's name that a job is called by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandJob:
    """A program to be run on some processors, by somebody who has not written a job file."""

    command: tuple[str, ...]
    """Program and arguments."""
    processors: int = 1
    mpi: bool = False
    """All processes are one MPI world."""
    walltime: str = WALLTIME
    cluster: str = ""
    """Where it must run; empty: where the placement policy says."""
    split: bool = False
    """Several clusters may share the processors, where one has not enough."""
    working_directory: str
    """Directory on the nodes in which the processes start: an absolute path."""


def job_file_text(wanted: CommandJob) -> str:
    """Return the job file that says the same."""
    return "\n".join([*_header(wanted), "", "[[components]]", *_component(wanted)]) + "\n"


def _header(wanted: CommandJob) -> Iterator[str]:
    name = "".join(one for one in PurePath(wanted.command[0]).name if one.isprintable())[:LONGEST_NAME]
    if name.strip():
        yield f"name = {toml_text(name)}"
    yield f"walltime = {toml_text(wanted.walltime)}"
    if wanted.mpi:
        yield 'launcher = "mpi"'
    if wanted.split:
        yield 'placement = "flexible-cluster-minimization"'
    yield f"working_directory = {toml_text(wanted.working_directory)}"


def _component(wanted: CommandJob) -> Iterator[str]:
    yield f"command = [{', '.join(map(toml_text, wanted.command))}]"
    yield f"processors = {wanted.processors}"
    if wanted.cluster:
        yield f"cluster = {toml_text(wanted.cluster)}"
    if wanted.split:
        yield "flexible = true"


# -- A sweep -------------------------------------------------------------------------------------------------

SEPARATOR = ":::"
MOST_LAUNCHERS = 1000
"""At most, where the user does not say how many."""
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSweep:
    """A program and the values of its parameters, by somebody who has not written a job file."""

    command: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    """Name and ``1..100``, ``x,y`` or ``@FILE``."""
    maximum: int = MOST_LAUNCHERS
    together: bool = False
    repeats: int = 2
    grace: int = 0
    """Seconds that a task has to end when its processor is wanted."""
    walltime: str = WALLTIME
    cluster: str = ""
    working_directory: str


def split_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return a command, and the parameters behind ``:::``. Raises ConfigurationError."""
    if SEPARATOR not in words:
        message = "nothing says what the parameters are"
        raise ConfigurationError(message, hint="koala sweep -- ./program {a} {b} ::: a=1..100 b=x,y")
    at = list(words).index(SEPARATOR)
    found = []
    for word in words[at + 1 :]:
        match = _WORD.fullmatch(word)
        if match is None:
            raise ConfigurationError(
                f"found {word!r} behind {SEPARATOR}", hint="allowed is NAME=VALUES: a=1..100 b=x,y"
            )
        if not match[2]:
            raise ConfigurationError(
                f"parameter {match[1]} has no values", hint=f"{match[1]}=1..9, {match[1]}=x,y or {match[1]}=@FILE"
            )
        found.append((match[1], match[2]))
    names = [name for name, _ in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(f"parameter {twice} is there twice", hint="give each its values once")
    if not words[:at]:
        raise ConfigurationError(
            f"there is no program before {SEPARATOR}", hint="koala sweep -- ./program {a} ::: a=1..9"
        )
    return tuple(words[:at]), tuple(found)


def sweep_file_text(wanted: CommandSweep) -> str:
    """Return the job file that says the same."""
    return "\n".join([*_lines(wanted)]) + "\n"


def _lines(wanted: CommandSweep) -> Iterator[str]:
    name = "".join(one for one in PurePath(wanted.command[0]).name if one.isprintable())[:LONGEST_NAME]
    if name.strip():
        yield f"name = {toml_text(name)}"
    yield 'kind = "malleable"'
    yield 'runner = "sweep"'
    yield f"walltime = {toml_text(wanted.walltime)}"
    yield f"working_directory = {toml_text(wanted.working_directory)}"
    yield ""
    yield "[[components]]"
    yield f"command = [{', '.join(map(toml_text, wanted.command))}]"
    yield "minimum = 1"
    yield f"maximum = {wanted.maximum}"
    yield f"cluster = {toml_text(wanted.cluster)}" if wanted.cluster else "flexible = true"
    yield f"retire_grace = {wanted.grace}"
    yield ""
    yield "[sweep]"
    yield f"repeats = {wanted.repeats}"
    if wanted.together:
        yield 'combine = "together"'
    yield ""
    yield "[sweep.parameters]"
    for name, values in wanted.parameters:
        yield f"{name} = {_values(values)}"


def _values(text: str) -> str:
    if text.startswith("@"):
        return f"{{ file = {toml_text(text[1:])} }}"
    if ".." in text and "," not in text and re.fullmatch(r"[-0-9.]+", text):
        return toml_text(text)
    return f"[{', '.join(map(toml_text, text.split(',')))}]"
