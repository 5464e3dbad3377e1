# SPDX-License-Identifier: Apache-2.0
"""The settings of clusters whose jobs are read by commands and may be submitted through DRMAA."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


class TransportSettings(BaseModel, defer_build=True):
    """How placeholders are submitted."""

    transport: Literal["commands", "drmaa"] = Field(
        default="commands",
        description="How placeholders are submitted: by the batch system's own commands, or through its DRMAA library, "
        "in a helper process. Everything else is done by commands in either case.",
    )
    drmaa_library: Path | None = Field(
        default=None,
        description="libdrmaa of this batch system, for transport = 'drmaa'; by default looked for in /usr/lib, "
        "/usr/local and /opt.",
    )
    script_directory: Path | None = Field(
        default=None,
        description="Where scripts are kept (mode 0700) with transport = 'drmaa', seen by the nodes under the same "
        "path; default: in the state directory.",
    )
