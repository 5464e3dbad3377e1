# SPDX-License-Identifier: Apache-2.0
"""The tables of a job file. They are the reference: docs/jobfile.md and docs/job.schema.json are made from them."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from koala_adapter.config.diagnosis import inconsistent
from koala_adapter.config.fields import (
    SECONDS,
    AbsolutePath,
    Environment,
    Flag,
    Name,
    NotAllowedError,
    PlacementName,
    PlainText,
    Title,
    Whole,
    WholeSeconds,
)
from koala_adapter.config.inputfiles import InputFileTable
from koala_adapter.config.malleablejob import (
    LONGEST_GRACE,
    LONGEST_POINT_PATIENCE,
    RetireCommand,
    SignalName,
    SizesName,
)
from koala_adapter.config.mpiresize import MpiResizeWanted
from koala_adapter.config.outputfiles import MOST_PATTERNS, OutputPattern
from koala_adapter.config.sweepjob import SweepTable
from koala_adapter.config.tomlfile import LONGEST_SHOWN
from koala_adapter.model import JobKind, Launcher, RunnerName

if TYPE_CHECKING:
    from koala_adapter.config.tomlfile import KeyPath

MOST_PROCESSORS = 1_000_000
LONGEST_WALLTIME = 315_360_000
"""Ten years, in seconds."""


def _command(value: object) -> object:
    """Refuse a command given as one text: where its words end would be a guess."""
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    if not words or any(character in value for character in "|&;<>$`*?~"):
        words = ["/bin/sh", "-c", value]
    if len(value) > LONGEST_SHOWN:
        words = ["./simulate", "--steps", "100"]
    raise NotAllowedError(f"a list of texts, such as command = {json.dumps(words, ensure_ascii=False)}")


class ComponentTable(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A part of the job that runs in one cluster."""

    name: Name | None = Field(
        default=None,
        description="Name in reports and file names. Default: c1, c2 and so on, in the order of the file.",
    )
    command: Annotated[tuple[PlainText, ...], BeforeValidator(_command)] = Field(
        min_length=1,
        description='Program and arguments, as a list: ["./simulate", "--steps", "100"]. No shell reads it.',
    )
    processors: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSORS,
        description="Processors, one rank on each. Either this or minimum and maximum.",
    )
    minimum: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSORS,
        description="Fewest processors to start with and, in a malleable job, to keep. Only in a moldable or malleable "
        "job, together with maximum.",
    )
    maximum: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSORS,
        description="Most processors of use. Only in a moldable or malleable job, together with minimum.",
    )
    initial: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSORS,
        description="Processors to start with where so many are idle. Only in a malleable job. Default: minimum.",
    )
    cluster: Name | None = Field(
        default=None,
        description="Cluster that this component must run in. Default: the placement policy chooses.",
    )
    launcher: Launcher | None = Field(
        default=None,
        description="How the ranks are started. Default: that of the job. All components of a job must agree.",
    )
    flexible: Flag = Field(
        default=False,
        description="true: a placement policy that splits components (flexible-cluster-minimization, waiting-history) "
        "may divide this one over several clusters. Other policies keep it whole. In a malleable job it starts on one "
        "cluster, and grows on any.",
    )
    input_files: tuple[InputFileTable, ...] = Field(
        default=(),
        description="Files that each rank finds in its working directory: paths relative to the job file, or tables "
        '{ source = "data/a.txt", target = "a.txt" }.',
    )
    output_files: tuple[OutputPattern, ...] = Field(
        default=(),
        max_length=MOST_PATTERNS,
        description="Files that are fetched from each rank when it has ended, however it ended: paths or glob patterns "
        'below its working directory, such as ["result-*", "logs/**/*.txt"]. Directories are fetched whole.',
    )
    environment: Environment = Field(
        default={},
        description="Environment variables for this component, beside those of the job.",
    )
    sizes: SizesName = Field(
        default="any",
        description="Sizes that it can have: any, power-of-two, multiple-of-N, or an installed rule; of an offer it "
        "takes as many processors as bring it to the largest of them. Only in a malleable job. With runner adaptive "
        "the program says so itself, and is offered no other sizes than these.",
    )
    retire_signal: SignalName = Field(
        default="TERM",
        description="Signal that asks a worker to end, without SIG.",
    )
    retire_command: RetireCommand = Field(
        default=(),
        description="Command that asks a worker to end instead: it is run on the worker's node, in its environment "
        "but in a directory of its own unless the job has a working_directory, and may take as long as retire_grace.",
    )
    retire_grace: WholeSeconds | None = Field(
        default=None,
        ge=0,
        le=LONGEST_GRACE,
        json_schema_extra=SECONDS,
        description="After so long, a worker that was asked to end is killed, and the task of a launcher. Default: 30; "
        "with runner sweep 0: the task is killed at once, and done again elsewhere.",
    )
    point_patience: WholeSeconds = Field(
        default=60,
        ge=1,
        le=LONGEST_POINT_PATIENCE,
        json_schema_extra=SECONDS,
        description="For so long the processes of an adaptive component may take to meet at an adaptation point, and "
        "new ones to join; then a change of size is given up. More than the longest step of the program.",
    )
    done_patience: WholeSeconds = Field(
        default=600,
        ge=1,
        le=LONGEST_POINT_PATIENCE,
        json_schema_extra=SECONDS,
        description="For so long the processes of an adaptive component may take to carry a change of size out, from "
        "the point to the last done(); then a process that has not is taken as lost, and with it the job. More than "
        "the redistribution of the state takes.",
    )

    @property
    def size(self) -> tuple[int, int]:
        """Fewest and most processors."""
        return self.processors or self.minimum or 1, self.processors or self.maximum or 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[KeyPath, str]] = []
        if self.processors is not None:
            problems.extend(
                ((key,), "given together with processors: allowed is either processors, or minimum and maximum")
                for key in ("minimum", "maximum")
                if getattr(self, key) is not None
            )
        elif self.minimum is None or self.maximum is None:
            problems.append(
                ((), "the size is missing: allowed is processors, or (in a moldable job) minimum and maximum")
            )
        elif self.maximum < self.minimum:
            problems.append((("maximum",), f"found {self.maximum}, allowed is at least minimum ({self.minimum})"))
        if self.initial is not None and not self.size[0] <= self.initial <= self.size[1]:
            text = f"found {self.initial}, allowed is from minimum ({self.size[0]}) to maximum ({self.size[1]})"
            problems.append((("initial",), text))
        if self.flexible and self.cluster is not None:
            problems.append((("flexible",), f'allowed in a component without cluster = "{self.cluster}" only'))
        if not self.command[0]:
            problems.append((("command", 0), "found an empty text, allowed is the name or path of a program"))
        if problems:
            raise inconsistent(*problems)
        return self


class JobHeader(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The keys at the top of a job file."""

    name: Title | None = Field(default=None, description="Name of the job in reports. Default: that of the file.")
    kind: JobKind = Field(
        default=JobKind.RIGID,
        description="rigid: the sizes are as written. moldable: the scheduler chooses between minimum and maximum. "
        "malleable: it also changes the size between them while the job runs.",
    )
    runner: RunnerName = Field(
        default=RunnerName.RANKS,
        description="What runs the job. ranks: as many processes as there are placeholders, by the launcher. workers: "
        "a head (the components with processors) that decides when the job is over, and workers (those with minimum "
        "and maximum) that come and go while it runs. adaptive: programs whose processes compute in step and use "
        "koala_app (the components with minimum and maximum); all processes change together. sweep: the command of the "
        "one component is run with each combination of the values in [sweep], by launchers that come and go.",
    )
    placement: PlacementName | None = Field(
        default=None,
        description="Placement policy, koala's own or an installed one. Default: that of the site.",
    )
    walltime: WholeSeconds = Field(
        ge=1,
        le=LONGEST_WALLTIME,
        json_schema_extra=SECONDS,
        description="How long the job may run, from the launch of its ranks.",
    )
    warn_before: WholeSeconds | None = Field(
        default=None,
        ge=0,
        le=LONGEST_WALLTIME,
        json_schema_extra=SECONDS,
        description="So long before the end of the walltime, with runner adaptive the program is told that the end is "
        "near (app.ending); with runner workers all workers are asked to end, as by retire_signal, and no further ones "
        "come. 0: neither. Default: 60 with runner adaptive, 0 with workers.",
    )
    priority: Whole = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="Higher goes first; equal ones go in order of submission.",
    )
    maximum_tries: Whole | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Placement tries after which the submission fails. Default: the number of the site.",
    )
    working_directory: AbsolutePath | None = Field(
        default=None,
        description="Directory on the nodes in which ranks start, and which stays. Default: a private temporary one "
        "for each rank, which is removed at its end: see output_files.",
    )
    launcher: Launcher = Field(
        default=Launcher.PROCESS,
        description="process: each rank starts by itself. mpi: all ranks of all components form one MPI_COMM_WORLD.",
    )
    mpi_resize: MpiResizeWanted = Field(
        default=MpiResizeWanted.ANY,
        description="How an MPI program changes its size, with runner adaptive. spawn: by MPI_Comm_spawn, on clusters "
        "whose MPI can do that. restart: it is started anew, with its state in files below working_directory, which "
        "all nodes must share. any: spawn if all clusters on which it may run can, else restart.",
    )
    environment: Environment = Field(default={}, description="Environment variables for all ranks, and mpiexec.")


class JobTable(JobHeader, frozen=True, extra="forbid", defer_build=True):
    """A whole job file."""

    sweep: SweepTable | None = Field(
        default=None,
        description="The tasks of a job with runner sweep: see there.",
    )
    components: tuple[ComponentTable, ...] = Field(
        min_length=1,
        description="The parts of the job, one [[components]] table for each: see there.",
    )
