# SPDX-License-Identifier: Apache-2.0
"""Settings of the plugin ``sge``: the settings table, and discovery."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field

from koala_adapter.lrm import Discovery, FoundCluster, LeftOut
from koala_adapter.lrm.drmaa.choice import SubmissionSettings
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery

if TYPE_CHECKING:
    from koala_adapter.lrm import Surroundings


# -- Settings ------------------------------------------------------------------------------------------------
# The ``[clusters.settings]`` table of a cluster whose plugin is ``sge``, and what follows from it.


class SgeSettings(SubmissionSettings):
    """Settings of one Grid Engine cell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path = Field(description="SGE_ROOT: the directory of the installation.")
    cell: str = Field(default="default", min_length=1, description="SGE_CELL: the cell's name.")
    qmaster_port: int | None = Field(
        default=None, ge=1, le=65535, description="SGE_QMASTER_PORT; by default what /etc/services says."
    )
    execd_port: int | None = Field(
        default=None, ge=1, le=65535, description="SGE_EXECD_PORT; by default what /etc/services says."
    )
    bin_directory: Path | None = Field(
        default=None, description="Directory of qstat, qhost ...; by default they are looked for in PATH."
    )
    queue: str | None = Field(
        default=None,
        description="Cluster queue of all placeholders, and the only one whose slots count; none for any queue.",
    )
    nodes: Literal["hosts", "queue-instances"] = Field(
        default="hosts",
        description="What counts as a node: 'hosts', or 'queue-instances' such as batch.q@node7, where a host serves "
        "several queues that an outside scheduler fills one by one.",
    )
    native_specification: str = Field(
        default="", description="Further qsub options of every placeholder, such as '-P physics'."
    )
    parallel_environment: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Parallel environment (sge_pe(5)) of slots of several processors, with allocation_rule $pe_slots; "
        "by default the first one in pe_list of the queue that has this rule.",
    )
    memory_resource: str = Field(
        default="h_vmem",
        min_length=1,
        description="Resource in which memory is asked for (complex(5)); in shares, where each processor takes some.",
    )
    trigger_scheduler: bool = Field(
        default=False,
        description="Run the scheduler at once after a job was pinned to a node (qconf -tsm; needs manager rights). "
        "Without it the start can take a whole schedule_interval.",
    )
    script_delivery: ScriptDelivery = Field(
        default=ScriptDelivery.PRIVATE,
        description="'private': nodes read the script from script_directory. 'copied': Grid Engine copies it to its "
        "spool directory on the node, where other users can read it while the job runs.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Further variables for Grid Engine's commands and DRMAA library. No secrets.",
    )
    request_timeout: float = Field(
        default=20.0, gt=0, description="Seconds after which a command or a call into the library counts as hung."
    )

    def variables(self) -> dict[str, str]:
        """Return the environment variables that choose the cell (sge_intro(1))."""
        variables = {
            "SGE_ROOT": str(self.root),
            "SGE_CELL": self.cell,
            # One configuration value per line, and times that need no knowledge of a time zone.
            "SGE_SINGLE_LINE": "1",
            "TZ": "UTC",
            **self.environment,
        }
        if self.qmaster_port is not None:
            variables["SGE_QMASTER_PORT"] = str(self.qmaster_port)
        if self.execd_port is not None:
            variables["SGE_EXECD_PORT"] = str(self.execd_port)
        return variables

    def library_places(self) -> tuple[str, ...]:
        """Return where this installation has its DRMAA library, as patterns of files."""
        return (f"{self.root}/lib/lx-*/libdrmaa.so.1.0", f"{self.root}/lib/lx*/libdrmaa.so*")


# -- Discovery -----------------------------------------------------------------------------------------------
# Which Grid Engine cells this host can reach: by ``SGE_ROOT``, and where installations usually are.

ROOT_VARIABLE = "SGE_ROOT"
CELL_VARIABLE = "SGE_CELL"
USUAL_ROOTS = ("/var/lib/gridengine", "/opt/sge", "/opt/gridengine", "/opt/uge", "/usr/local/sge", "/gridware/sge")
PORTS = {"qmaster_port": "SGE_QMASTER_PORT", "execd_port": "SGE_EXECD_PORT"}

_SMALLEST_USER = re.compile(r"^min_uid\s+([0-9]+)", re.MULTILINE)


def discover(around: Surroundings) -> Discovery:
    """Return the cells of all installations."""
    named = around.environment.get(ROOT_VARIABLE, "")
    roots = {around.path(named): True} if named else {}
    for usual in USUAL_ROOTS:
        roots.setdefault(around.path(usual), False)
    clusters, left_out = [], []
    for root, by_variable in roots.items():
        cells = _cells(around, root, by_variable=by_variable)
        if by_variable and not cells:
            why = f"${ROOT_VARIABLE} is {named}, and no cell below it has a common/act_qmaster"
            left_out.append(LeftOut(what="Grid Engine", why=why, remedy=f"correct or unset {ROOT_VARIABLE}"))
        for cell in cells:
            found = _found(around, root, cell, by_variable=by_variable)
            refusal = _refuses_us(around, found)
            if refusal is None:
                clusters.append(found)
            else:
                left_out.append(refusal)
    return Discovery(clusters=tuple(clusters), left_out=tuple(left_out))


def smallest_user(configuration: str) -> int:
    """Return the smallest user id that Grid Engine takes jobs of, by what ``qconf -sconf`` prints."""
    found = _SMALLEST_USER.search(configuration)
    return int(found[1]) if found else 0


def _cells(around: Surroundings, root: str, *, by_variable: bool) -> list[str]:
    """Return the cells of an installation, first the one that the variable names."""
    cells = [path.split("/")[-3] for path in around.matching(f"{root}/*/common/act_qmaster")]
    named = around.environment.get(CELL_VARIABLE, "default") if by_variable else ""
    return sorted(cells, key=lambda cell: cell != named)


def _found(around: Surroundings, root: str, cell: str, *, by_variable: bool) -> FoundCluster:
    settings: dict[str, str | int | bool] = {"root": root, "cell": cell}
    # The variables are of the cell that they name; every other one says its ports in the file that its users source.
    ours = by_variable and cell == around.environment.get(CELL_VARIABLE, "default")
    sourced = around.text(f"{root}/{cell}/common/settings.sh")
    for key, variable in PORTS.items():
        told = re.search(rf"^\s*{variable}=([0-9]+)", sourced, re.MULTILINE)
        port = around.environment.get(variable, "") if ours else (told[1] if told else "")
        if port.isdecimal():
            settings[key] = int(port)
    programs = _programs(around, root)
    if programs:
        settings["bin_directory"] = programs
    by = f"${ROOT_VARIABLE}" if by_variable else root
    name = "gridengine" if cell == "default" else cell
    return FoundCluster(name=name, described=f"Grid Engine cell {cell}, by {by}", settings=settings)


def _programs(around: Surroundings, root: str) -> str:
    """Return the directory of the commands of an installation; empty where they are on the PATH."""
    if around.program("qconf") is not None:
        return around.beside_path("qconf")
    machine = (around.output((f"{root}/util/arch",), {ROOT_VARIABLE: root}) or "").strip()
    programs = f"{root}/bin/{machine}"
    return programs if machine and around.exists(f"{programs}/qconf") else ""


def _refuses_us(around: Surroundings, found: FoundCluster) -> LeftOut | None:
    """Return why a Grid Engine accepts no jobs of this user: Debian's rejects root."""
    program = f"{found.settings['bin_directory']}/qconf" if "bin_directory" in found.settings else "qconf"
    variables = {"SGE_ROOT": str(found.settings["root"]), "SGE_CELL": str(found.settings["cell"])}
    for key, variable in PORTS.items():
        if key in found.settings:
            variables[variable] = str(found.settings[key])
    least = smallest_user(around.output((program, "-sconf"), variables) or "")
    if around.uid >= least:
        return None
    why = f"it takes no jobs of users with so small an id as yours, {around.uid} (min_uid {least} in qconf -sconf)"
    return LeftOut(what=found.described, why=why, remedy="use koala as an ordinary user")
