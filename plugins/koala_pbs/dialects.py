# SPDX-License-Identifier: Apache-2.0
"""The two forms of PBS's commands: those of OpenPBS and PBS Professional, and Torque's. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_pbs.documents import read_entries
from koala_pbs.torque import read_torque

if TYPE_CHECKING:
    from koala_pbs.documents import Reader

OPENPBS_NAME, TORQUE_NAME = "openpbs", "torque"

FIRST_OPENPBS_RELEASE = 13
"""PBS Professional 13, later OpenPBS; Torque ends with 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one form of the commands lists, and what it is asked with."""

    name: str
    list_jobs: tuple[str, ...]
    """Jobs and elements of arrays; an id behind it narrows it."""
    list_nodes: tuple[str, ...]
    list_queues: tuple[str, ...]
    show_server: tuple[str, ...]
    show_version: tuple[str, ...]
    read: Reader
    server_variable: str
    """Environment variable that names the server's host."""
    only_whole_arrays: bool
    """Waiting elements can be held and released only with their whole array."""


_JSON = ("-F", "json")
OPENPBS = Dialect(
    name=OPENPBS_NAME,
    list_jobs=("qstat", "-t", "-f", *_JSON),
    list_nodes=("pbsnodes", "-a", "-v", *_JSON),
    list_queues=("qstat", "-Q", "-f", *_JSON),
    show_server=("qstat", "-B", "-f", *_JSON),
    show_version=("qstat", "--version"),
    read=read_entries,
    server_variable="PBS_SERVER",
    only_whole_arrays=True,
)
TORQUE = Dialect(
    name=TORQUE_NAME,
    list_jobs=("qstat", "-t", "-x"),
    list_nodes=("pbsnodes", "-x"),
    list_queues=("qstat", "-Q", "-f"),
    show_server=("qstat", "-B", "-f"),
    # qstat --version speaks to standard error, and of the client alone.
    show_version=("qstat", "-B", "-f"),
    read=read_torque,
    server_variable="PBS_DEFAULT",
    only_whole_arrays=False,
)
DIALECTS = {dialect.name: dialect for dialect in (OPENPBS, TORQUE)}

SET_TORQUE = f'is this Torque? then set dialect = "{TORQUE_NAME}" in the settings of this cluster'
SET_OPENPBS = "leave dialect out of the settings of this cluster"


def require_release(dialect: Dialect, version: str) -> None:
    """Raise LrmRejectedError when a server of this version speaks another dialect than it is spoken to."""
    major = version.partition(".")[0]
    if dialect is TORQUE and major.isdecimal() and int(major) >= FIRST_OPENPBS_RELEASE:
        raise LrmRejectedError(f"this is OpenPBS or PBS Professional {version}, not Torque", hint=SET_OPENPBS)
