# SPDX-License-Identifier: Apache-2.0
"""What a site file may say about a PBS server in its ``[clusters.settings]`` table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from koala_drmaa.transportsettings import TransportSettings
from koala_pbs.dialects import DIALECTS, TORQUE_NAME


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _one_word(text: str) -> str:
    if not text or not text.isprintable() or any(character.isspace() for character in text) or text.startswith("-"):
        raise ValueError("must be one word without blanks or control characters")
    return text


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Word = Annotated[str, AfterValidator(_one_word)]


class PbsSettings(TransportSettings):
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
        """Refuse what pbs-drmaa cannot be asked for, at the time the site file is read."""
        if self.transport == "drmaa" and self.project is not None:
            raise ValueError("project cannot be had with transport = 'drmaa'")
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
