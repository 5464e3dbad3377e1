# SPDX-License-Identifier: Apache-2.0
"""The ``[clusters.settings]`` table of a cluster whose plugin is ``drmaa``."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from koala_drmaa.scripts import ScriptDelivery

FIELDS = frozenset({"walltime", "walltime_minutes", "queue", "memory_mib"})


class DrmaaSettings(BaseModel):
    """Settings of one cluster that is reached through DRMAA 1.0 alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: Path | None = Field(
        default=None,
        description="libdrmaa of this cluster's batch system; without it the dynamic loader looks for libdrmaa.so.",
    )
    processors: int = Field(ge=1, description="Processors that this cluster has for us: DRMAA tells nothing of nodes.")
    contact: str = Field(default="", description="DRMAA contact string; empty for the library's default.")
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Variables for the library that choose the cluster, such as SGE_ROOT or SLURM_CONF. No secrets.",
    )
    queue: str | None = Field(default=None, description="Queue of all placeholders; none for the default one.")
    native_specification: str | None = Field(
        default=None,
        description="Options of the batch system for every placeholder, such as '-r n'; by default those that keep it "
        "from being started twice.",
    )
    walltime_specification: str | None = Field(
        default=None,
        description="Native option that asks for the walltime, by default that of the library: "
        "'-l h_rt={walltime}' (seconds) for Grid Engine, '--time=0:{walltime_minutes}' for Slurm, "
        "'-l walltime={walltime}' for PBS.",
    )
    queue_specification: str | None = Field(
        default=None,
        description="Native option that names a queue, such as '-q {queue}' or '--partition={queue}'; by default that "
        "of the library.",
    )
    memory_specification: str | None = Field(
        default=None,
        description="Native option that asks for memory, such as '-l h_vmem={memory_mib}M'; by default that of the "
        "library, empty to ask for none.",
    )
    submission: Literal["auto", "bulk", "single"] = Field(
        default="auto",
        description="How several placeholders are submitted: as one 'bulk', or each as a 'single' job with KOALA_INDEX "
        "in its environment; 'auto': as the library does it rightly.",
    )
    script_delivery: ScriptDelivery = Field(
        default=ScriptDelivery.PRIVATE,
        description="'private': nodes read the script from script_directory. 'copied': the batch system copies it at "
        "submission (Grid Engine: add '-b n' to native_specification); other users of a node may then read it.",
    )
    script_directory: Path | None = Field(
        default=None,
        description="Where scripts are kept (mode 0700), seen by the nodes under the same path; default: in the "
        "state directory.",
    )
    array_index_variable: str | None = Field(
        default=None, description="Variable in which a job of a bulk finds its index; by default that of the library."
    )
    job_id_variable: str | None = Field(
        default=None, description="Variable in which a job finds its id; by default that of the library."
    )
    request_timeout: float = Field(
        default=20.0, gt=0, description="Seconds after which a call into the library counts as hung."
    )

    @field_validator("walltime_specification", "queue_specification", "memory_specification")
    @classmethod
    def _known_fields(cls, value: str | None) -> str | None:
        """Refuse fields that nobody fills in, at the time the site file is read."""
        for _, name, _, _ in string.Formatter().parse(value or ""):
            if name is not None and name not in FIELDS:
                message = f"unknown field {{{name}}}; known are {', '.join(sorted(FIELDS))}"
                raise ValueError(message)
        return value
