# SPDX-License-Identifier: Apache-2.0
"""The ``[clusters.settings]`` table of a cluster whose plugin is ``sge``, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from koala_drmaa.environment import first_library
from koala_drmaa.scripts import ScriptDelivery


class SgeSettings(BaseModel):
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
    drmaa_library: Path | None = Field(
        default=None,
        description="libdrmaa of Grid Engine; by default looked for under root/lib and where Debian puts it.",
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
    memory_resource: str = Field(
        default="h_vmem", min_length=1, description="Resource in which memory is asked for (complex(5))."
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
    script_directory: Path | None = Field(
        default=None,
        description="Where scripts are kept (mode 0700), seen by the nodes under the same path; default: in the "
        "state directory.",
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

    def command(self, name: str) -> str:
        """Return how a command of Grid Engine is called."""
        return str(self.bin_directory / name) if self.bin_directory else name

    def library(self) -> Path | None:
        """Return the DRMAA library: the given one, or the first that is found."""
        if self.drmaa_library is not None:
            return self.drmaa_library
        return first_library(
            (
                f"{self.root}/lib/lx-*/libdrmaa.so.1.0",
                f"{self.root}/lib/lx*/libdrmaa.so*",
                "/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0",
                "/usr/lib/*/libdrmaa.so.1.0",
            )
        )
