# SPDX-License-Identifier: Apache-2.0
"""Settings of the plugin ``pbs``: the dialects of PBS's commands, the settings table, and discovery."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import Discovery, FoundCluster, LeftOut
from koala_adapter.lrm.commandplugin import AbsolutePath, Word
from koala_adapter.lrm.drmaa.choice import SubmissionSettings
from koala_pbs.jobs import Reader, read_entries
from koala_pbs.torque import read_torque

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.lrm import Surroundings


# -- Dialects ------------------------------------------------------------------------------------------------
# The two forms of PBS's commands: those of OpenPBS and PBS Professional, and Torque's.

OPENPBS_NAME, TORQUE_NAME = "openpbs", "torque"

FIRST_OPENPBS_RELEASE = 13
"""PBS Professional 13, later OpenPBS; Torque ends with 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Output form and options of one variant of the PBS commands."""

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
    """Raise LrmRejectedError when a server has the version of OpenPBS, but the site file says Torque."""
    major = version.partition(".")[0]
    if dialect is TORQUE and major.isdecimal() and int(major) >= FIRST_OPENPBS_RELEASE:
        raise LrmRejectedError(f"this is OpenPBS or PBS Professional {version}, not Torque", hint=SET_OPENPBS)


# -- Settings ------------------------------------------------------------------------------------------------
# What a site file may say about a PBS server in its ``[clusters.settings]`` table.


class PbsSettings(SubmissionSettings):
    """Settings of the plugin ``pbs``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    conf: AbsolutePath | None = Field(
        default=None,
        description="PBS_CONF_FILE: the pbs.conf that chooses this server; without it /etc/pbs.conf does.",
    )
    dialect: Literal["openpbs", "torque"] = Field(
        default="openpbs",
        description=(
            "Whose commands these are: OpenPBS and PBS Professional, or Torque; `koala check` says when it is not."
        ),
    )
    server: Word | None = Field(
        default=None,
        description=(
            "PBS_SERVER: host of the server, where one pbs.conf is used for several; by default that of conf. With "
            "Torque PBS_DEFAULT, by default what its server_name file says."
        ),
    )
    bin_directory: AbsolutePath | None = Field(
        default=None,
        description="Directory of qsub, qstat, pbsnodes ... (PBS_EXEC/bin); without it PATH is searched.",
    )
    operator: bool = Field(
        default=False,
        description=(
            "koala runs as an operator or manager of PBS: it may suspend jobs and queue them again, and it starts held "
            "jobs by itself (qrun -H), elements of job arrays too. Otherwise it ties a held job to vnodes, releases "
            "it, and PBS's scheduler starts it."
        ),
    )
    max_array_size: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Largest job array of one submission, 1 where arrays are forbidden: more placeholders go as several; by "
            "default what server and queue say."
        ),
    )
    account: Word | None = Field(default=None, description="Account that pays for the placeholders (qsub -A).")
    project: Word | None = Field(default=None, description="Project of the placeholders (qsub -P).")
    command_timeout: float = Field(
        default=30.0, gt=0, le=40, description="Seconds after which a PBS command that has not answered is ended."
    )

    @model_validator(mode="after")
    def _project_can_be_had(self) -> Self:
        """Refuse settings that pbs-drmaa cannot express, when the site file is read."""
        if self.submit_by == "drmaa" and self.project is not None:
            raise ValueError("project cannot be had with submit_by = 'drmaa'")
        return self

    def variables(self) -> dict[str, str]:
        """Return the environment variables that choose the server (pbs.conf(8B))."""
        variables = {}
        if self.conf is not None:
            variables["PBS_CONF_FILE"] = str(self.conf)
        if self.server is not None:
            variables[DIALECTS[self.dialect].server_variable] = self.server
        return variables

    @model_validator(mode="after")
    def _known_to_torque(self) -> Self:
        for name, instead in (("conf", "server chooses one"), ("project", "it has account")):
            if self.dialect == TORQUE_NAME and getattr(self, name) is not None:
                raise ValueError(f"Torque has no {name}: {instead}")
        return self


# -- Discovery -----------------------------------------------------------------------------------------------
# Which PBS server this host can reach: by ``PBS_CONF_FILE`` or ``/etc/pbs.conf``, or by Torque's ``server_name``.

CONF_VARIABLE = "PBS_CONF_FILE"
USUAL_CONF = "/etc/pbs.conf"
TORQUE_SERVER_NAMES = ("/var/spool/torque/server_name", "/var/lib/torque/server_name", "/etc/torque/server_name")

_PAIR = re.compile(r"^\s*(?:export\s+)?(\w+)\s*=\s*(\S*)\s*$", re.MULTILINE)


def discover(around: Surroundings) -> Discovery:
    """Return the server that pbs.conf names, else Torque's."""
    named = around.environment.get(CONF_VARIABLE, "")
    conf = around.path(named or USUAL_CONF)
    if around.exists(conf):
        by = f"${CONF_VARIABLE}" if named else USUAL_CONF
        return Discovery(clusters=(_openpbs(around, conf, by),))
    if named:
        why = f"${CONF_VARIABLE} is {named}, and there is no such file"
        return Discovery(left_out=(LeftOut(what="PBS", why=why, remedy=f"correct or unset {CONF_VARIABLE}"),))
    return Discovery(clusters=_torque(around))


def parse_conf(text: str) -> Mapping[str, str]:
    """Return the values of a pbs.conf (pbs.conf(8B))."""
    return dict(_PAIR.findall(text))


def _openpbs(around: Surroundings, conf: str, by: str) -> FoundCluster:
    values = parse_conf(around.text(conf))
    settings: dict[str, str | int | bool] = {"conf": conf}
    server = around.environment.get(OPENPBS.server_variable, "")
    if server:
        settings["server"] = server
    programs = f"{around.path(values['PBS_EXEC'])}/bin" if "PBS_EXEC" in values else ""
    if programs and around.exists(f"{programs}/qstat"):
        settings["bin_directory"] = programs
    name = (server or values.get("PBS_SERVER", "")).partition(".")[0]
    return FoundCluster(name=name or "pbs", described=f"PBS, by {by}", settings=settings)


def _torque(around: Surroundings) -> tuple[FoundCluster, ...]:
    server = around.environment.get(TORQUE.server_variable, "")
    names = [(f"${TORQUE.server_variable}", server)]
    names += [(path, around.text(around.path(path)).strip()) for path in TORQUE_SERVER_NAMES]
    by, name = next(((by, name) for by, name in names if name), ("", ""))
    if not name or around.program("qstat") is None:
        return ()
    settings = {"dialect": TORQUE_NAME, "server": name}
    if beside := around.beside_path("qstat"):
        settings["bin_directory"] = beside
    return (FoundCluster(name=name.partition(".")[0], described=f"Torque, by {by}", settings=settings),)
