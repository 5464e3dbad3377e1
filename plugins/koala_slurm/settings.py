# SPDX-License-Identifier: Apache-2.0
"""Settings of the plugin ``slurm``: the ``[clusters.settings]`` table of a cluster, and discovery."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from koala_adapter.lrm import Discovery, FoundCluster, LeftOut
from koala_adapter.lrm.commandplugin import AbsolutePath, Word
from koala_adapter.lrm.drmaa.choice import SubmissionSettings
from koala_slurm.listing import CONFIG_COMMAND, parse_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.lrm import Surroundings


# -- Settings ------------------------------------------------------------------------------------------------


class SlurmSettings(SubmissionSettings):
    """Settings of the plugin ``slurm``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    conf: AbsolutePath | None = Field(
        default=None,
        description="Path of the slurm.conf that chooses this cluster; without it the commands use their default.",
    )
    bin_directory: AbsolutePath | None = Field(
        default=None,
        description="Directory of sbatch, squeue, sinfo, scontrol, scancel and sacct; without it PATH is searched.",
    )
    account: Word | None = Field(default=None, description="Account that pays for the placeholders (sbatch --account).")
    qos: Word | None = Field(default=None, description="Quality of service of the placeholders (sbatch --qos).")
    reservation: Word | None = Field(
        default=None,
        description="Reservation in which the placeholders run (sbatch --reservation); its nodes then count as usable.",
    )
    environment: Literal["built", "login"] = Field(
        default="built",
        description=(
            'Environment of the placeholders: "built" gives them HOME, USER, SHELL, PATH and the locale of the '
            'submitting host, at once; "login" makes every node run the user\'s login shell first (sbatch '
            "--export=NONE), which costs time for each placeholder, minutes when home directories are slow."
        ),
    )
    access: Literal["auto", "commands", "pyslurm"] = Field(
        default="auto",
        description=(
            "How the jobs of all users are read for an outside scheduler (`koala schedule`, `koala wiki serve`): "
            "'commands', with squeue and scontrol; 'pyslurm', through that library in a helper process, which `koala "
            "check` then demands; 'auto', through pyslurm where it is installed, opens, and is of the controller's "
            "release, else with commands."
        ),
    )
    command_timeout: float = Field(
        default=30.0,
        gt=0,
        le=40,
        description="Seconds after which a Slurm command that has not answered is ended.",
    )

    @model_validator(mode="after")
    def _environment_can_be_had(self) -> Self:
        """Refuse settings that slurm-drmaa cannot express, when the site file is read."""
        if self.submit_by == "drmaa" and self.environment != "built":
            raise ValueError("environment = 'login' cannot be had with submit_by = 'drmaa'")
        return self

    def variables(self) -> dict[str, str]:
        """Return the environment variables that choose the cluster."""
        return {"SLURM_CONF": str(self.conf)} if self.conf else {}


# -- Discovery -----------------------------------------------------------------------------------------------
# Which Slurm clusters this host can reach: by ``SLURM_CONF``, below ``/etc``, from the controller, by slurmdbd.

CONF_VARIABLE = "SLURM_CONF"
CONF_FILES = "/etc/slurm*/slurm.conf"
CLUSTERS_COMMAND = ("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster,controlhost")

_NAME = re.compile(r"^\s*ClusterName\s*=\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_DATABASE = re.compile(r"^\s*AccountingStorageType\s*=\s*accounting_storage/slurmdbd\b", re.MULTILINE | re.IGNORECASE)


def discover(around: Surroundings) -> Discovery:
    """Return the clusters whose slurm.conf is here, or the one that the commands use without any."""
    named = around.environment.get(CONF_VARIABLE, "")
    left_out = []
    files: dict[str, str] = {}
    if named and around.exists(around.path(named)):
        files[around.path(named)] = f"${CONF_VARIABLE}"
    elif named:
        why = f"${CONF_VARIABLE} is {named}, and there is no such file"
        left_out.append(LeftOut(what="Slurm", why=why, remedy=f"correct or unset {CONF_VARIABLE}"))
    seen = {around.resolved(file) for file in files}
    for file in around.matching(around.path(CONF_FILES)):
        if (resolved := around.resolved(file)) not in seen:
            seen.add(resolved)
            files[file] = file
    clusters = [_of_file(around, file, by) for file, by in files.items()]
    if not files and around.program(CONFIG_COMMAND[0]) is not None:
        clusters = _without_file(around)
    left_out += _without_conf(around, files, {cluster.name for cluster in clusters})
    return Discovery(clusters=tuple(clusters), left_out=tuple(left_out))


def parse_clusters(output: str) -> dict[str, str]:
    """Return clusters of slurmdbd with the hosts of their controllers; those not running are left out."""
    rows = (line.split("|") for line in output.splitlines())
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2 and row[0].strip()}  # noqa: PLR2004 - name and host


def _of_file(around: Surroundings, file: str, by: str) -> FoundCluster:
    found = _NAME.search(around.text(file))
    # It may be in a file that this one includes.
    name = found[1] if found else _asked(around, {CONF_VARIABLE: file})
    settings = {"conf": file, **_programs(around)}
    return FoundCluster(name=name or "slurm", described=f"Slurm, by {by}", settings=settings)


def _programs(around: Surroundings) -> dict[str, str]:
    """Return the setting that names the directory of the commands, where that is needed."""
    beside = around.beside_path(CONFIG_COMMAND[0])
    return {"bin_directory": beside} if beside else {}


def _without_file(around: Surroundings) -> list[FoundCluster]:
    """Return the cluster whose configuration comes from its controller (configless)."""
    name = _asked(around, {})
    described = f"Slurm, by {around.program(CONFIG_COMMAND[0])}"
    return [FoundCluster(name=name, described=described, settings=_programs(around))] if name else []


def _asked(around: Surroundings, variables: dict[str, str]) -> str:
    return parse_config(around.output(CONFIG_COMMAND, variables) or "").cluster


def _without_conf(around: Surroundings, files: Mapping[str, str], known: set[str]) -> list[LeftOut]:
    """Return clusters of slurmdbd that no slurm.conf on this host describes."""
    for file in files:
        if _DATABASE.search(around.text(file)):
            others = parse_clusters(around.output(CLUSTERS_COMMAND, {CONF_VARIABLE: file}) or "")
            remedy = "copy its slurm.conf here, and give its path as conf in a [[clusters]] table of its own"
            return [
                LeftOut(
                    what=f"Slurm cluster {name}",
                    why=f"slurmdbd knows it{f' on {host}' if host else ''}, but no slurm.conf of it is on this host",
                    remedy=remedy,
                )
                for name, host in others.items()
                if name not in known
            ]
    return []
