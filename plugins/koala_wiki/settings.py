# SPDX-License-Identifier: Apache-2.0
"""The ``[clusters.settings]`` table of a cluster whose plugin is ``wiki``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from koala_adapter.wiki.codec.protocol import Dialect


class WikiSettings(BaseModel):
    """Settings of one cluster whose resource manager speaks WIKI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=255,
        description="Where the resource manager listens. The protocol protects nothing: stay on this host, or tunnel.",
    )
    port: int = Field(default=7321, ge=1, le=65535, description="Its port; of Slurm: SchedulerPort.")
    dialect: Dialect = Field(
        default=Dialect.WIKI2,
        description="'wiki' is what Maui and Slurm's sched/wiki speak, 'wiki2' Moab and Slurm's sched/wiki2, which "
        "can requeue, signal and name jobs.",
    )
    key_file: Path | None = Field(
        default=None,
        description="File with the shared key (of Slurm: AuthKey of wiki.conf) in its first line, mode 0600. "
        "Default: nothing is signed, which few resource managers accept.",
    )
    answer_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Seconds within which a request must be answered; otherwise the cluster counts as out of reach.",
    )
    largest_reply_mib: int = Field(
        default=64, ge=1, le=95, description="Larger replies are refused; 1 MiB are some 5,000 jobs."
    )
