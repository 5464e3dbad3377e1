# SPDX-License-Identifier: Apache-2.0
"""A job without a job file: what a command line asks for, written as the job file that it stands for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from koala_adapter.config.formatting import toml_text

if TYPE_CHECKING:
    from collections.abc import Iterator

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
