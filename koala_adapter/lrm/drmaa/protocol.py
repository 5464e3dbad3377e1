# SPDX-License-Identifier: Apache-2.0
"""Messages between a plugin and its DRMAA helper process, as values and as lines of JSON. Pure.

One request is one line, its answer is one line with the same number. The helper is a separate process because libdrmaa
allows one session and one library per process, may abort its process, and may hang. In order: requests, results, lines.
The helper, which may run at a site with an old Python, knows the fields alone; results are read by
:mod:`koala_adapter.lrm.drmaa.client`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from koala_adapter.lrm.drmaa.complaints import FailureKind  # noqa: TC001 - may be read at run time

if TYPE_CHECKING:
    from collections.abc import Mapping


# -- Requests and results, and writing them as lines ---------------------------------------------------------


class ControlAction(StrEnum):
    """Values of drmaa_control (DRMAA 1.0, section 3.2.7), as the drmaa library spells them."""

    SUSPEND = "suspend"
    RESUME = "resume"
    HOLD = "hold"
    RELEASE = "release"
    TERMINATE = "terminate"


class JobStatus(StrEnum):
    """Values of drmaa_job_ps (DRMAA 1.0, section 3.2.7), as the drmaa library spells them; GONE is ours."""

    UNDETERMINED = "undetermined"
    QUEUED_ACTIVE = "queued_active"
    SYSTEM_ON_HOLD = "system_on_hold"
    USER_ON_HOLD = "user_on_hold"
    USER_SYSTEM_ON_HOLD = "user_system_on_hold"
    RUNNING = "running"
    SYSTEM_SUSPENDED = "system_suspended"
    USER_SUSPENDED = "user_suspended"
    USER_SYSTEM_SUSPENDED = "user_system_suspended"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"
    """The LRM does not know the job any more."""


class _Message:
    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}
    """For whoever reads it by pydantic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template(_Message):
    """Attributes of a DRMAA job template that koala uses."""

    name: str
    remote_command: str
    arguments: tuple[str, ...] = ()
    working_directory: str
    output_path: str
    native_specification: str
    held: bool = False
    processors: int = 1
    """Of each job: for the ledger alone, the native specification asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession(_Message):
    """Load the library and open the session; the first request to a helper."""

    op: Literal["open"] = "open"
    contact: str = ""
    ledger: str | None = None
    """Path of the ledger in which submissions are recorded; None: none is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJobs(_Message):
    """Submit ``count`` jobs of one template: all of a submission, or a portion of those that go one by one."""

    op: Literal["submit"] = "submit"
    template: Template
    count: int
    index_variable: str | None = None
    """Environment variable in which each finds its index; they are submitted one by one. None: as one bulk."""
    first: int = 1
    """Index of the first."""
    total: int = 0
    """Jobs of the whole submission; 0: no more than these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlJobs(_Message):
    """Apply one action to each of the jobs."""

    op: Literal["control"] = "control"
    action: ControlAction
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBatches(_Message):
    """Return all batches of the ledger whose name begins with ``prefix``, with the status of their jobs."""

    op: Literal["list"] = "list"
    prefix: str = ""
    tells_success: bool = False
    """Exit code 0 is a success; else the exit codes of jobs that may be cancelled ones are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachLrm(_Message):
    """Send the LRM a request without effect, to see whether it answers."""

    op: Literal["reach"] = "reach"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonBatches(_Message):
    """Stop reporting batches whose submission has an unknown outcome."""

    op: Literal["abandon"] = "abandon"
    keys: tuple[str, ...]


Request: TypeAlias = OpenSession | SubmitJobs | ControlJobs | ListBatches | AbandonBatches | ReachLrm


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(_Message):
    """Reply to OpenSession: library and system."""

    result: Literal["opened"] = "opened"
    system: str
    implementation: str
    version: str
    contact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(_Message):
    """Reply to SubmitJobs: the job ids in the order of indices."""

    result: Literal["submitted"] = "submitted"
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(_Message):
    """A job for which a control action failed."""

    id: str
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Controlled(_Message):
    """Reply to ControlJobs: the jobs for which it failed."""

    result: Literal["controlled"] = "controlled"
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob(_Message):
    """A job of a listed batch, with its status."""

    id: str
    status: JobStatus
    exit_code: int | None = None
    signal: int | None = None
    aborted: bool = False
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBatch(_Message):
    """A batch of the ledger. For jobs that are missing it is not known whether they were submitted."""

    key: str
    count: int
    submitted_at: float
    processors: int = 1
    """Of each job."""
    jobs: tuple[ListedJob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(_Message):
    """Reply to ListBatches."""

    result: Literal["listed"] = "listed"
    batches: tuple[ListedBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(_Message):
    """Reply to a request without a result."""

    result: Literal["done"] = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(_Message):
    """Reply to a failed request."""

    result: Literal["failure"] = "failure"
    kind: FailureKind
    message: str


Result: TypeAlias = Opened | Submitted | Controlled | Listed | Done | Failure


def encode(number: int, request: Request) -> bytes:
    """Return a request with its number as one line, ending in a newline; it contains no other."""
    line = {"number": number, "request": request}
    return json.dumps(line, default=_fields_of, separators=(",", ":")).encode() + b"\n"


def _fields_of(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in type(message).__slots__}  # type: ignore[attr-defined]
