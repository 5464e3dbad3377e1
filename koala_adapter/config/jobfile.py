# SPDX-License-Identifier: Apache-2.0
"""Job files: what to run, on how many processors, and where it may run.

The models below are the reference: docs/jobfile.md and docs/job.schema.json are made from them. A Job as a plain
dictionary, for the service's socket and the journal, is made and read here too.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from koala_adapter.config.diagnosis import Problems, inconsistent, not_among
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
from koala_adapter.config.formatting import show_duration
from koala_adapter.config.inputfiles import InputFileTable, collect_input_files
from koala_adapter.config.malleablejob import (
    LONGEST_GRACE,
    RetireCommand,
    SignalName,
    SizesName,
    malleability_problems,
    signal_number,
)
from koala_adapter.config.outputfiles import MOST_PATTERNS, OutputPattern
from koala_adapter.config.tomlfile import LONGEST_SHOWN, parse_document, read_document
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import ClusterName, Component, Job, JobId, JobKind, Launcher, Retirement, RunnerName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.config.tomlfile import Document, KeyPath
    from koala_adapter.model import InputFile

HINT = "every key is described in docs/jobfile.md"
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


class ComponentTable(BaseModel, frozen=True, extra="forbid"):
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
        description="Sizes that it can have: any, power-of-two, or multiple-of-N; of an offer it takes as many "
        "processors as bring it to the largest of them. Only in a malleable job.",
    )
    retire_signal: SignalName = Field(
        default="TERM",
        description="Signal that asks a worker to end, without SIG.",
    )
    retire_command: RetireCommand = Field(
        default=(),
        description="Command that asks a worker to end instead: it is run on the worker's node, in its environment, "
        "and may take as long as retire_grace.",
    )
    retire_grace: WholeSeconds = Field(
        default=30,
        ge=0,
        le=LONGEST_GRACE,
        json_schema_extra=SECONDS,
        description="After so long, a worker that was asked to end is killed.",
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


class JobHeader(BaseModel, frozen=True, extra="forbid"):
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
        "and maximum) that come and go while it runs.",
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
    environment: Environment = Field(default={}, description="Environment variables for all ranks.")


class JobTable(JobHeader, frozen=True, extra="forbid"):
    """A whole job file."""

    components: tuple[ComponentTable, ...] = Field(
        min_length=1,
        description="The parts of the job, one [[components]] table for each: see there.",
    )


def load_job(path: Path, *, job_id: JobId, user: str, submitted_at: float, site: SiteConfig | None = None) -> Job:
    """Return the job that the file at ``path`` describes, checked against ``site`` when one is given.

    ``submitted_at``: seconds since the epoch. Raises ConfigurationError with all problems of the file, one per line.
    """
    table, files = _table(read_document(path), path.absolute().parent, site)
    return _job(table, files, site, name=path.stem, job_id=job_id, user=user, submitted_at=submitted_at)


def load_job_text(
    text: str,
    *,
    directory: Path,
    job_id: JobId,
    user: str,
    submitted_at: float,
    source: str = "job",
    site: SiteConfig | None = None,
) -> Job:
    """Return the job that a TOML text describes, as ``load_job`` does.

    ``directory``: where relative input files are. ``source``: what refusals call the text, and the job's name when it
    has none.
    """
    table, files = _table(parse_document(text, source=source), directory.absolute(), site)
    return _job(table, files, site, name=source, job_id=job_id, user=user, submitted_at=submitted_at)


def check_job(job: Job, site: SiteConfig) -> None:
    """Raise ConfigurationError when ``site`` cannot take the job: cluster unknown or disabled, walltime too long."""
    pinned = [(index, component.cluster) for index, component in enumerate(job.components)]
    problems = _site_problems(pinned, job.walltime, site)
    if problems:
        lines = [f"job {job.id}: {_place(job, path)}: {text}" for path, text in problems]
        raise ConfigurationError("\n".join(lines), hint="see the site file, or: koala clusters")


def job_from_dict(values: Mapping[str, object]) -> Job:
    """Return the job whose fields these are, as ``asdict`` and JSON give them. Raises ConfigurationError for others."""
    try:
        return _JOB.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"not the record of a job: {where}: {first['msg']}"
        raise ConfigurationError(message, hint="is it of another version of koala-adapter?") from None


_JOB: TypeAdapter[Job] = TypeAdapter(Job)


def _table(
    document: Document, directory: Path, site: SiteConfig | None
) -> tuple[JobTable, list[tuple[InputFile, ...]]]:
    """Return the validated file and the input files of each component; refuse with everything that is wrong."""
    problems = Problems(document, hint=HINT)
    table = problems.validated(JobTable, document.data)
    header, components = _valid_parts(document.data)
    before = None if header is None or header.working_directory is None else len(header.working_directory.encode()) + 1
    files = collect_input_files(
        problems, [(index, component.input_files) for index, component in components], directory, before=before
    )
    _check_together(problems, header, components)
    if header is not None:
        for path, text in malleability_problems(header, components):
            problems.add(path, text)
    if site is not None:
        pinned = [(index, _cluster_name(component)) for index, component in components]
        for path, text in _site_problems(pinned, header.walltime if header else None, site):
            problems.add(path, text)
    problems.refuse()
    if table is None:
        raise AssertionError("a job that is not valid has problems")
    return table, files


def _valid_parts(data: Mapping[str, object]) -> tuple[JobHeader | None, list[tuple[int, ComponentTable]]]:
    """Return the parts that are valid by themselves, so that what they mean is checked even beside one that is not."""
    try:
        header = JobHeader.model_validate({key: value for key, value in data.items() if key != "components"})
    except (ValidationError, RecursionError):
        header = None
    components = []
    tables = data.get("components")
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        try:
            components.append((index, ComponentTable.model_validate(table)))
        except (ValidationError, RecursionError):
            continue
    return header, components


def _check_together(
    problems: Problems, header: JobHeader | None, components: Sequence[tuple[int, ComponentTable]]
) -> None:
    """Check what concerns several tables: names, launchers, and sizes that fit the kind of the job."""
    seen: dict[str, int] = {}
    for index, component in components:
        name = _component_name(index, component)
        if seen.setdefault(name, index) != index:
            text = f'"{name}" is already the name of components[{seen[name]}]: allowed is a name of its own'
            problems.add(("components", index, "name"), text)
        if header is None:
            continue
        if header.kind is JobKind.RIGID and component.minimum is not None:
            text = 'allowed in a moldable or malleable job only: write kind = "moldable" at the top, or processors here'
            problems.add(("components", index, "minimum"), text)
        first = components[0][1].launcher or header.launcher
        if (launcher := component.launcher or header.launcher) is not first:
            text = f'found "{launcher}" where another component has "{first}": allowed is one launcher for all'
            problems.add(("components", index, "launcher"), text)


def _site_problems(
    pinned: Sequence[tuple[int, ClusterName | None]], walltime: int | None, site: SiteConfig
) -> list[tuple[KeyPath, str]]:
    """Return what makes a job impossible at ``site``, by the place in its file."""
    found: list[tuple[KeyPath, str]] = []
    wanted = (walltime or 0) + site.parameters.launch_margin
    enabled = {cluster.name: cluster for cluster in site.enabled_clusters}
    for index, name in pinned:
        path = ("components", index, "cluster")
        if name is None:
            continue
        if name not in enabled:
            known = [cluster.name for cluster in site.clusters]
            disabled = "a cluster that is disabled in the site file; " if name in known else ""
            found.append((path, disabled + not_among(name, enabled, what="a cluster of the site")))
        elif (limit := enabled[name].parameters.walltime_limit) is not None and wanted > limit:
            found.append((("walltime",), _too_long(wanted, limit, site, f'cluster "{name}" grants')))
    if any(path == ("walltime",) for path, _ in found):
        return found
    limits = [cluster.parameters.walltime_limit for cluster in enabled.values()]
    known_limits = [limit for limit in limits if limit is not None]
    if known_limits and len(known_limits) == len(limits) and wanted > max(known_limits):
        found.append((("walltime",), _too_long(wanted, max(known_limits), site, "every cluster grants")))
    return found


def _too_long(wanted: int, limit: int, site: SiteConfig, who: str) -> str:
    margin = site.parameters.launch_margin
    longest = show_duration(max(0, limit - margin))
    return (
        f"found {show_duration(wanted - margin)}, allowed is at most {longest}: {who} at most {show_duration(limit)}, "
        f"of which {margin} s are the site's launch_margin"
    )


def _place(job: Job, path: KeyPath) -> str:
    index = path[1] if len(path) > 1 else None
    return f'cluster of component "{job.components[index].name}"' if isinstance(index, int) else "walltime"


def _cluster_name(component: ComponentTable) -> ClusterName | None:
    return ClusterName(component.cluster) if component.cluster is not None else None


def _component_name(index: int, component: ComponentTable) -> str:
    return component.name or f"c{index + 1}"


def _job(
    table: JobTable,
    files: Sequence[tuple[InputFile, ...]],
    site: SiteConfig | None,
    *,
    name: str,
    job_id: JobId,
    user: str,
    submitted_at: float,
) -> Job:
    components = tuple(
        Component(
            name=_component_name(index, component),
            command=component.command,
            minimum=component.size[0],
            maximum=component.size[1],
            cluster=_cluster_name(component),
            launcher=component.launcher or table.launcher,
            input_files=files[index],
            output_files=component.output_files,
            environment=tuple(component.environment.items()),
            initial=component.initial,
            flexible=component.flexible,
            sizes=component.sizes,
            retirement=Retirement(
                signal=signal_number(component.retire_signal),
                command=component.retire_command,
                grace=component.retire_grace,
            ),
        )
        for index, component in enumerate(table.components)
    )
    return Job(
        id=job_id,
        name=table.name or name,
        kind=table.kind,
        components=components,
        walltime=table.walltime,
        user=user,
        submitted_at=submitted_at,
        priority=table.priority,
        placement=table.placement or (site.scheduler.placement if site is not None else "worst-fit"),
        maximum_tries=table.maximum_tries,
        environment=tuple(table.environment.items()),
        working_directory=table.working_directory,
        runner=table.runner,
    )
