# SPDX-License-Identifier: Apache-2.0
"""The tables of a job file as pydantic models; docs/jobfile.md and docs/job.schema.json are made from them."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from koala_adapter.config.diagnosis import inconsistent
from koala_adapter.config.fields import (
    LONGEST_GRACE,
    LONGEST_POINT_PATIENCE,
    MOST_HOST_PORTS,
    MOST_PATTERNS,
    MOST_RETRIES,
    SECONDS,
    AbsolutePath,
    AfterText,
    ContainerImage,
    Environment,
    Export,
    Flag,
    HandledSignalName,
    MpiResizeWanted,
    Name,
    OutputPattern,
    PlacementName,
    PlainText,
    Priority,
    RetireCommand,
    RetriedValue,
    SetupLines,
    SignalName,
    SizesName,
    SoftwareName,
    Title,
    Whole,
    WholeSeconds,
)
from koala_adapter.config.slottable import SlotTable
from koala_adapter.config.tomlfile import LONGEST_SHOWN
from koala_adapter.config.written import NotAllowedError
from koala_adapter.model import LOGICAL, Claiming, JobKind, Launcher, Notified, RetriedEnd, RunnerName
from koala_adapter.tasks.sweep import array_axis, range_axis

if TYPE_CHECKING:
    from koala_adapter.config.tomlfile import KeyPath


# -- Sweeps and input files ----------------------------------------------------------------------------------

MOST_REPEATS = 1000

KINDS = 'a range such as "1..100" or "0..1..0.25", a list of values, or { file = "FILE" }'


def _value(value: object) -> str:
    """Take numbers as they are written; refuse truth values, which programs write in different ways."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise NotAllowedError("a text in quotes, or a number")
    return value


def _file(value: object) -> object:
    """Take a table that names a file, and nothing else."""
    if isinstance(value, Mapping):
        file = value.get("file")
        if len(value) != 1 or not isinstance(file, str) or not file:
            raise NotAllowedError('{ file = "FILE" }, with a value on each line of it')
    return value


def _kind(value: object) -> str | None:
    """Tell which of the kinds of values this is meant to be."""
    if isinstance(value, str):
        return "range"
    if isinstance(value, list | tuple):
        return "list"
    return "values file" if isinstance(value, Mapping | ValuesFile) else None


def _ranged(value: str) -> str:
    try:
        found = range_axis("x", value)
    except ValueError as error:
        raise NotAllowedError(str(error)) from None
    if found is None:
        raise NotAllowedError(KINDS)
    return value


class ValuesFile(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A file with a value on each line."""

    file: Annotated[str, StringConstraints(min_length=1)] = Field(
        description="Path on this host, relative to the directory of the job file, or absolute; or lfn:NAME, a name "
        "of the catalogues of clusters."
    )


Value: TypeAlias = Annotated[PlainText, BeforeValidator(_value)]

ParameterName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]

Values: TypeAlias = Annotated[
    Annotated[str, AfterValidator(_ranged), Tag("range")]
    | Annotated[tuple[Value, ...], Field(min_length=1), Tag("list")]
    | Annotated[ValuesFile, BeforeValidator(_file), Tag("values file")],
    Discriminator(_kind, custom_error_type="kind_of_values", custom_error_message=KINDS),
]


class SweepTable(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The tasks of a sweep."""

    parameters: dict[ParameterName, Values] = Field(
        default={},
        description='The values of each parameter: a range with both ends ("1..100", "0..1..0.25"), a list of '
        'values, or a file with one on each line ({ file = "names.txt" }). {name} in the command stands for a value.',
    )
    table: tuple[dict[ParameterName, Value], ...] = Field(
        default=(),
        description="Parameters whose values belong together: a table for each combination, all with the same names. "
        "Beside others it is combined with these like one parameter.",
    )
    combine: Literal["product", "together"] = Field(
        default="product",
        description="product: each value with each value of the others, the last parameter changing fastest. together: "
        "the first values of all are a task, then the second ones and so on; all must have as many.",
    )
    repeats: Whole = Field(default=2, ge=0, le=MOST_REPEATS, description="How often a task that fails is tried again.")


def _source(value: str) -> str:
    if not value or "\0" in value:
        raise NotAllowedError("the path of a file, relative to the job file or absolute")
    if value.startswith("~"):
        raise NotAllowedError("a path relative to the job file or absolute: ~ is not expanded here")
    if value.startswith(LOGICAL) and not _is_name(value.removeprefix(LOGICAL)):
        raise NotAllowedError(f"{LOGICAL} and a name as catalogues have it, without blanks and not beginning with /")
    return value


def _is_name(value: str) -> bool:
    """Tell whether a catalogue may have a logical name."""
    return bool(value) and value.isprintable() and " " not in value and not value.startswith("/")


def _target(value: str) -> str:
    parts = value.split("/")
    if not value or "\0" in value or value.startswith("/") or ".." in parts or parts[-1] in {"", "."}:
        raise NotAllowedError("a path below the working directory of the rank: relative, without .., with a file name")
    return posixpath.normpath(value)


class InputFileTable(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A file or directory that each rank of a component finds before it starts."""

    source: Annotated[str, AfterValidator(_source)] = Field(
        description="Path on this host, relative to the directory of the job file, or absolute."
    )
    target: Annotated[str, AfterValidator(_target)] | None = Field(
        default=None,
        description="Path in the working directory of the rank. Default: the last part of source.",
    )

    @property
    def name(self) -> str:
        """The target, or its default."""
        return self.target or posixpath.basename(posixpath.normpath(self.source.removeprefix(LOGICAL)))

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: object) -> object:
        """A path alone stands for a table with this source."""
        return {"source": value} if isinstance(value, str) else value


# -- Components, the head of a job file, and the whole file --------------------------------------------------

MOST_PROCESSORS = 1_000_000
MOST_RANKS = 200
"""Ranks of a slot: its agent needs five descriptors for each, and often may have 1,024 of them."""
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


class ComponentTable(SlotTable, frozen=True, extra="forbid", defer_build=True):
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
        description="Number of ranks; each has as many processors as threads says. Either this or minimum and maximum.",
    )
    minimum: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSORS,
        description="Fewest ranks to start with and, in a malleable job, to keep. Only in a moldable or malleable job, "
        "together with maximum.",
    )
    maximum: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSORS,
        description="Most ranks of use. Only in a moldable or malleable job, together with minimum.",
    )
    ranks_per_slot: Whole = Field(
        default=1,
        ge=1,
        le=MOST_RANKS,
        description="So many ranks share one job of the batch system and its node: it asks for the threads of all of "
        "them, and for everything else once. The number of ranks is a multiple of it. Only with runner ranks.",
    )
    initial: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_PROCESSORS,
        description="Ranks to start with where so many have room. Only in a malleable job. Default: minimum.",
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
        description="Files and directories that each rank finds in its working directory: paths relative to the job "
        'file, or tables { source = "data/a.txt", target = "a.txt" }.',
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
    export: Export = Field(
        default=(),
        description="Variables of the submitter's environment that go to the ranks of this component, beside those of "
        "the job.",
    )
    setup: SetupLines = Field(
        default=(),
        description="Lines that a shell runs before each rank of this component, after those of the job.",
    )
    software: tuple[SoftwareName, ...] = Field(
        default=(),
        description="Software of the site file that this component needs, beside that of the job.",
    )
    container: ContainerImage | None = Field(
        default=None,
        description="Image in which the ranks of this component run. Default: that of the job.",
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
        """Fewest and most ranks."""
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


def _array(value: str) -> str:
    try:
        array_axis(value)
    except ValueError as error:
        raise NotAllowedError(str(error)) from None
    return value


class JobHeader(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The keys at the top of a job file."""

    name: Title | None = Field(default=None, description="Name of the job in reports. Default: that of the file.")
    kind: JobKind = Field(
        default=JobKind.RIGID,
        description="rigid: the sizes are as written. moldable: the scheduler chooses between minimum and maximum. "
        "malleable: it also changes the size between them while the job runs. evolving: the program alone does that, "
        "by asking for processors and giving them back.",
    )
    runner: RunnerName = Field(
        default=RunnerName.RANKS,
        description="What runs the job. ranks: as many processes as there are placeholders, by the launcher. workers: "
        "a head (the components with processors) that decides when the job is over, and workers (those with minimum "
        "and maximum) that come and go while it runs. adaptive: programs whose processes compute in step and use "
        "koala_app (the components with minimum and maximum); all processes change together. sweep: the command of the "
        "one component is run with each combination of the values in [sweep], by launchers that come and go.",
    )
    array: Annotated[str, AfterValidator(_array)] | None = Field(
        default=None,
        description="Runs the command of the one component once for each of these indices, as a sweep: numbers and "
        'ranges, such as "1-100", "0-99:3" or "1,5,7-9"; "1-100%10" has at most ten tasks at once. A task finds its '
        "index in KOALA_ARRAY_INDEX, and {index} in the command stands for it.",
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
        "come; with runner ranks checkpoint_signal is sent. 0: nothing of it. Default: 60, or 0 with workers.",
    )
    checkpoint_signal: HandledSignalName | None = Field(
        default=None,
        description="Signal, without SIG, that is sent warn_before the end of the walltime to those processes of the "
        "ranks that have a handler for it, so that they save their state. With runner ranks only.",
    )
    requeue_on_walltime: Flag = Field(
        default=False,
        description="The job waits and runs again when its walltime is over, or as soon as all its ranks have ended, "
        "one of them with status 75: it has saved its state and is not finished. It may run elsewhere then, and in a "
        "moldable job with another size. With runner ranks only.",
    )
    retries: Whole = Field(
        default=0,
        ge=0,
        le=MOST_RETRIES,
        description="How often the job runs again after an end that is one of retry_on; of an array, how often each "
        "task that fails. With runner ranks and array only.",
    )
    retry_on: tuple[RetriedValue, ...] = Field(
        default=(RetriedEnd.FAILED, RetriedEnd.LOST),
        min_length=1,
        max_length=MOST_PATTERNS,
        description="Ends after which the job runs again, as often as retries allows. failed: a rank ended with "
        "another status than 0, was killed by a signal, or could not be started. lost: a node, or the contact to an "
        "agent, was lost. memory: a rank used more memory than it had. walltime: the walltime was over. A number: a "
        "rank ended with this status.",
    )
    priority: Priority = Field(
        default=0,
        description="Higher goes first; equal ones go in order of submission. low is -500, normal 0, high 500, "
        "super-high 1000. A job of higher priority that waits in the queue of a cluster gets the processors there that "
        "a lower one of the same user holds while it waits for others.",
    )
    claiming: Claiming | None = Field(
        default=None,
        description="How processors are claimed. placeholders: by jobs that wait in the queues of batch systems. "
        "reserve: by reservations on all its clusters for the same time, its estimated start, in which placeholders "
        "run; where one is refused, by placeholders alone. Default: as the site file says of its clusters.",
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
    after: tuple[AfterText, ...] = Field(
        default=(),
        max_length=1000,
        description="Jobs that must have ended before this one starts, by their ids, or by a name that the latest one "
        'has: "12" or "12:ok" when it has completed, "12:failed" when it has not, "12:any" in any case. When one of '
        "them ends otherwise, this job is cancelled.",
    )
    notify: tuple[Notified, ...] = Field(
        default=(),
        description="What of the job is told by the ways that [notify] of the site file names. start: it starts. end: "
        "it has ended. fail: it has ended otherwise than well.",
    )
    relay: Flag = Field(
        default=False,
        description="Ranks whose nodes cannot connect to each other, such as those of two sites, reach each other "
        "through koala: KOALA_ADDRESSES has for each of them an address of the rank's own node. Ranks of launcher "
        "process only.",
    )
    host_ports: tuple[Annotated[Whole, Field(ge=1, le=65535)], ...] = Field(
        default=(),
        max_length=MOST_HOST_PORTS,
        description="Ports of koala's host to which the ranks may connect, at KOALA_HOST_ADDRESS; through koala where "
        "nodes cannot reach the host. With relay, the host reaches the ranks, too. Ranks of launcher process only.",
    )
    environment: Environment = Field(default={}, description="Environment variables for all ranks, and mpiexec.")
    export: Export = Field(
        default=(),
        description='Variables of the submitter\'s environment that go to all ranks, as they are at submission: "all", '
        'or a list of names and patterns, such as ["PYTHONPATH", "CONDA_*"]. What environment sets goes before.',
    )
    setup: SetupLines = Field(
        default=(),
        description='Lines that a shell runs on the node before each rank, such as ["module load gcc/12", "source '
        '~/venv/bin/activate"]. The rank starts in the environment that they leave; a line that fails is the failure '
        "of the rank.",
    )
    software: tuple[SoftwareName, ...] = Field(
        default=(),
        description="Names of software of the site file that all components need. They run only on clusters that have "
        "it, after the lines that make it available.",
    )
    container: ContainerImage | None = Field(
        default=None,
        description="Image in which the ranks run, by the container_runtime of their cluster. Only clusters that have "
        "one are used.",
    )


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
