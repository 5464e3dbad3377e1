# SPDX-License-Identifier: Apache-2.0
"""Shapes of what ``--json`` prints, by name and version, the JSON Schemas made from them, and ``koala schema``.

Within a version members may be added; removing one, or changing its meaning, makes another version.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import click
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from koala_adapter.cli.session import Session, command_body, pass_session
from koala_adapter.config.schema import DIALECT, Schema, job_schema, schema_text, site_schema
from koala_adapter.ordering.asking import Explanation
from koala_adapter.ordering.jobs import JobEvent
from koala_adapter.ordering.shadow import ShadowReport
from koala_adapter.outcome import JobState  # noqa: TC001 - read at run time
from koala_adapter.report.page import Finding  # noqa: TC001 - read at run time
from koala_adapter.report.sitevalues import (
    CleanReport,
    ClusterReport,
    NegotiationAccess,
    NegotiationReport,
    PlanReport,
    SampleSubmission,
)
from koala_adapter.report.values import JobReport
from koala_adapter.service.leftovers import Leftover  # noqa: TC001 - read at run time
from koala_adapter.tasks.results import TaskRecord

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Answer to a submission: the id of the job."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedFile:
    """A submitted job file, one of several."""

    id: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedFiles:
    """Submitted job files; those after a failed one are missing."""

    jobs: tuple[SubmittedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledJobs:
    """Results of cancelling several jobs."""

    cancelled: tuple[JobReport, ...]
    left: dict[str, str]
    """Why a job was not cancelled, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOfTask(TaskRecord):
    """Result of a sweep's task that has completed or used up its attempts."""

    stdout: str
    """All that it has printed."""
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation:
    """Explanation of a job's state."""

    id: str
    state: JobState
    explanation: str
    """For people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExplanation(Explanation):
    """Explanation of a job in a cluster's own queue."""

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripts:
    """Submissions for a cluster, not sent."""

    cluster: str
    submissions: tuple[SampleSubmission, ...]
    note: str
    """What is not as it would be; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check."""

    cluster: str | None
    """None: this host, or a site as a whole."""
    site: str | None
    """The site of the cluster, or that which was checked; None: this host."""
    subject: str
    ok: bool
    found: str
    remedy: str
    """What to do; empty when it is OK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Results of all checks."""

    ok: bool
    """Whether nothing failed."""
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """Placeholders that no job owns."""

    dry_run: bool
    """Nothing was cancelled."""
    found: tuple[Leftover, ...]
    stayed: tuple[Leftover, ...]
    """Those of them that are still there."""
    trouble: dict[str, str]
    """Why a cluster could not be looked at, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned(CleanReport):
    """Removed and spared files."""

    size: int = 0
    """Bytes of all that was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBackQueue:
    """Jobs given back to the batch system's own scheduler."""

    cluster: str
    released: tuple[str, ...]
    running: tuple[str, ...]
    """Running jobs that would have come back in hold and will not now."""
    still_held: dict[str, str]
    """Why a job could not be released, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowEnd(ShadowReport):
    """Last line of a shadow run, with its report."""

    kind: str
    """Always ``report``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WikiReply:
    """Reply of a WIKI resource manager."""

    status: int
    """Below 0: refused."""
    text: str
    records: tuple[str, ...] | None
    """Of a list; None: it is none."""


TemplateStatus: TypeAlias = Literal[
    "NT_NEGOTIATION",
    "NT_ACCEPTED",
    "NT_COMMITTED",
    "NT_CONSUMED",
    "NT_REJECTED",
    "NT_WITHDRAWN",
    "NT_EXPIRED",
    "NT_ERROR",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateResource:
    """One resource of a negotiation template."""

    type: str
    """CPU, MEM, or a name that both sides know."""
    quantity: int
    """Processors, MiB, or as the name means."""
    usage: Literal["NT_REQUIRED", "NT_OPTIONAL"]
    negotiability: Literal["NT_NEGOTIABLE", "NT_FIXED"]
    status: TemplateStatus
    minimum: int | None = None
    """The least that the sender takes as a counter-offer."""
    maximum: int | None = None
    """The most."""
    cluster: str = ""
    component: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationTemplate:
    """A negotiation template."""

    agreement_id: str
    """Chosen by the initiator; with that, it names the negotiation and the agreement that comes of it."""
    initiator: Literal["RMS", "APPLICATION"]
    source: str
    """Host of the initiator."""
    dest: str
    """Host of its peer."""
    status: TemplateStatus
    resources: tuple[TemplateResource, ...]
    direction: Literal["grow", "shrink"] | None = None
    obligation: Literal["voluntary", "mandatory"] | None = None
    answer_within: float | None = None
    """Seconds from its arrival."""
    round: int | None = None
    """Number of the offer, from 1."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceIrregularity:
    """One kind of irregularity of a trace, counted."""

    kind: str
    count: int
    line: int | None
    """The first."""
    left_out: bool
    """Whether such jobs are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCase:
    """Result of replaying a trace under a policy; times in seconds."""

    trace: str
    policy: str
    processors: int
    jobs: int
    skipped: int
    """Jobs left out."""
    mean_wait: float | None
    mean_slowdown: float | None
    mean_bounded_slowdown: float | None
    makespan: float | None
    utilization: float | None
    """From 0 to 1."""
    percentiles: dict[str, dict[str, float]]
    """By what is measured, and by the percentage."""
    jobs_per_second: float | None
    """Of the simulation."""
    mean_run: float | None
    mean_response: float | None
    mean_queue: float | None
    """Jobs that wait, on average."""
    largest_queue: int | None
    irregularities: tuple[TraceIrregularity, ...]
    extras: dict[str, int]
    """What the policy counted."""
    interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSetting:
    """A setting of an experiment."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownExperiment:
    """An experiment in the list."""

    name: str
    summary: str
    paper: str
    seeds: int
    settings: tuple[ExperimentSetting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """Result of an experiment."""

    experiment: str
    page: str
    """Path of the page."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """JSON that one or more commands print with ``--json``."""

    version: int
    commands: tuple[str, ...]
    kind: Any
    """A type; of each line where ``lines`` is true."""
    lines: bool = False
    brief: bool = False
    """Members that have a default are left out where they would have it."""


SHAPES = {
    "job-report": Shape(
        version=1,
        commands=("run", "sweep", "status ID", "cancel ID", "resize"),
        kind=JobReport,
    ),
    "job-list": Shape(version=1, commands=("status", "history"), kind=list[JobReport]),
    "submitted": Shape(version=1, commands=("submit JOB",), kind=Submitted),
    "submitted-files": Shape(version=1, commands=("submit JOB JOB",), kind=SubmittedFiles),
    "cancelled-jobs": Shape(version=1, commands=("cancel ID ID",), kind=CancelledJobs),
    "task-result": Shape(version=1, commands=("results",), kind=ResultOfTask, lines=True),
    "explanation": Shape(version=1, commands=("explain ID",), kind=JobExplanation),
    "local-explanation": Shape(version=1, commands=("explain CLUSTER:ID",), kind=LocalExplanation),
    "cluster-list": Shape(version=1, commands=("clusters",), kind=list[ClusterReport]),
    "plan": Shape(version=1, commands=("plan",), kind=PlanReport),
    "scripts": Shape(version=1, commands=("script",), kind=Scripts),
    "checks": Shape(version=1, commands=("check",), kind=Checks),
    "reaped": Shape(version=1, commands=("reap",), kind=Reaped),
    "cleaned": Shape(version=1, commands=("clean",), kind=Cleaned),
    "queue-event": Shape(version=1, commands=("schedule",), kind=JobEvent, lines=True),
    "shadow-report": Shape(version=1, commands=("schedule --shadow",), kind=ShadowEnd, lines=True),
    "given-back": Shape(version=1, commands=("schedule --give-back CLUSTER",), kind=GivenBackQueue),
    "negotiation-list": Shape(version=1, commands=("negotiations",), kind=list[NegotiationReport]),
    "negotiation-access": Shape(version=1, commands=("negotiation access",), kind=NegotiationAccess),
    "negotiation-template": Shape(version=1, commands=("negotiation check",), kind=NegotiationTemplate, brief=True),
    "simulation-list": Shape(version=1, commands=("simulate",), kind=list[SimulatedCase]),
    "experiment-list": Shape(version=1, commands=("experiment list",), kind=list[KnownExperiment]),
    "experiment-result": Shape(version=1, commands=("experiment run",), kind=ExperimentResult),
    "wiki-reply": Shape(version=1, commands=("wiki ask",), kind=WikiReply),
}
"""By the names under which `koala schema` prints them."""


class _AllThere(GenerateJsonSchema):
    """Schema generator for printed JSON, in which members with defaults are always present."""

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ANN401, ARG002 - the signature of pydantic
        """Return True, as members with a default are printed, too."""
        return True


def shape_schema(name: str) -> Schema:
    """Return the JSON Schema of a shape. Raises KeyError."""
    shape = SHAPES[name]
    generator = GenerateJsonSchema if shape.brief else _AllThere
    schema = TypeAdapter(shape.kind).json_schema(mode="serialization", schema_generator=generator)
    told = " and ".join(f"`koala {command} --json`" for command in shape.commands)
    description = f"{'Each line' if shape.lines else 'What'} {told} prints. Within a version members may be added."
    if shape.brief:
        description += " Those that are not required are left out where there is nothing to say."
    known = {kind.__name__: kind for kind in _dataclasses(shape.kind)}
    for found in ([schema] if "properties" in schema else []) + list(schema.get("$defs", {}).values()):
        kind = known.get(found.get("title", ""))
        if kind is not None:
            _describe(found, kind)
        for member in found.get("properties", {}).values():
            member.pop("title", None)
    return {
        **schema,
        "$schema": DIALECT,
        "title": f"koala {name}, version {shape.version}",
        "description": description,
        "x-version": shape.version,
    }


def _dataclasses(kind: Any) -> Iterator[type]:  # noqa: ANN401 - any type
    """Return the dataclasses in a type and, recursively, in their members."""
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
        hints = inspect.get_annotations(kind, eval_str=True)
        for base in kind.__mro__[1:-1]:
            hints |= inspect.get_annotations(base, eval_str=True)
        for field in fields(kind):
            yield from _dataclasses(hints[field.name])
    for part in get_args(kind):
        yield from _dataclasses(part)


def _describe(schema: dict[str, Any], kind: type) -> None:
    """Add to each member of a schema the docstring below it in the source."""
    schema["description"] = inspect.getdoc(kind) or ""
    for cls in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for member, text in pairwise(statements):
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                found = schema["properties"].get(member.target.id)
                if found is not None and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    found["description"] = inspect.cleandoc(str(text.value.value))


# -- Command ``schema`` --------------------------------------------------------------------------------------


@click.command()
@click.argument("kind", metavar="NAME", type=click.Choice(["site", "job", *SHAPES]))
@pass_session
@command_body
def schema(session: Session, kind: str) -> None:
    r"""Print the JSON Schema of site files, job files, or what a command prints with --json.

    NAME is site, job, or a name in `koala docs json`. The first two are for editors that check and complete TOML. That
    of site files has the settings of all plugins that are
    installed. An editor finds it by a first line such as
    "#:schema site.schema.json".

    \b
    Example:
      koala schema job > job.schema.json
    """
    match kind:
        case "site":
            found = site_schema(session.plugins)
        case "job":
            found = job_schema()
        case _:
            found = shape_schema(kind)
    click.echo(schema_text(found), nl=False)
