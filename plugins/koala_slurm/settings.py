# SPDX-License-Identifier: Apache-2.0
"""What a site file may say about a Slurm cluster in its ``[clusters.settings]`` table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from koala_drmaa.transportsettings import TransportSettings


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _one_word(text: str) -> str:
    if not text or not text.isprintable() or any(character.isspace() for character in text):
        raise ValueError("must be one word without blanks or control characters")
    return text


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Word = Annotated[str, AfterValidator(_one_word)]


class SlurmSettings(TransportSettings):
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
    use_pyslurm: Literal["auto", "never"] = Field(
        default="never",
        description=(
            "Without effect, kept for site files that have it: everything is read with squeue and sinfo, which are "
            "faster than pyslurm."
        ),
    )
    command_timeout: float = Field(
        default=30.0,
        gt=0,
        le=40,
        description="Seconds after which a Slurm command that has not answered is ended.",
    )
    start_timeout: float = Field(
        default=15.0,
        gt=0,
        le=300,
        description=(
            "Without effect, kept for site files that have it: how long a start may take is said to `koala schedule` "
            "(--patience) and `koala wiki serve` (--reply-within)."
        ),
    )

    @model_validator(mode="after")
    def _environment_can_be_had(self) -> Self:
        """Refuse what slurm-drmaa cannot be asked for, at the time the site file is read."""
        if self.transport == "drmaa" and self.environment != "built":
            raise ValueError("environment = 'login' cannot be had with transport = 'drmaa'")
        return self

    def variables(self) -> dict[str, str]:
        """Return the environment variables that choose the cluster."""
        return {"SLURM_CONF": str(self.conf)} if self.conf else {}
