# SPDX-License-Identifier: Apache-2.0
"""Requests of WIKI as values: one class for each verb, of which two verbs share the release of tasks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from koala_adapter.wiki.codec.words import CancelType, HostFormat, Verb

ALL: Final = "ALL"
LONGEST_COMMENT: Final = 512
HIGHEST_NUMBER: Final = 65_535
"""That SIGNALJOB may carry; whether there is such a signal, whoever is to send it finds."""
HIGHEST_PORT: Final = 65535
LONGEST_MESSAGE: Final = 4096
"""Characters of a NOTIFYJOB."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNodes:
    """List nodes: those called ``names``, or all when None; in full only what changed after ``since`` (0: all)."""

    verb: ClassVar[Verb] = Verb.GETNODES
    since: int = 0
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobs:
    """List jobs: those of ``ids``, or all when None; in full only what changed after ``since`` (0: all)."""

    verb: ClassVar[Verb] = Verb.GETJOBS
    since: int = 0
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    """Start a job on exactly these hosts."""

    verb: ClassVar[Verb] = Verb.STARTJOB
    job: str
    tasks: tuple[str, ...]
    """One host for each task; empty: the resource manager chooses."""
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """End a job."""

    verb: ClassVar[Verb] = Verb.CANCELJOB
    job: str
    type: CancelType = CancelType.ADMIN
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendJob:
    """Stop the processes of a running job for now."""

    verb: ClassVar[Verb] = Verb.SUSPENDJOB
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    """Let a suspended job go on."""

    verb: ClassVar[Verb] = Verb.RESUMEJOB
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueJob:
    """Put a running job back into the queue."""

    verb: ClassVar[Verb] = Verb.REQUEUEJOB
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyJob:
    """Change attributes of a job. TIMELIMIT is in minutes, unlike WCLIMIT of a record."""

    verb: ClassVar[Verb] = Verb.MODIFYJOB
    job: str
    changes: tuple[tuple[str, str], ...]
    """Pairs (name, value) such as ``("TIMELIMIT", "20")``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalJob:
    """Send a signal to a running job."""

    verb: ClassVar[Verb] = Verb.SIGNALJOB
    job: str
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyJob:
    """Tell the user of a job something."""

    verb: ClassVar[Verb] = Verb.NOTIFYJOB
    job: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """Set the port that gets events (0: none) and the form of host lists; None leaves it as it is."""

    verb: ClassVar[Verb] = Verb.INITIALIZE
    event_port: int | None = None
    hosts: HostFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WillRun:
    """Ask when and where a job could start on some of these nodes."""

    verb: ClassVar[Verb] = Verb.JOBWILLRUN
    job: str
    nodes: tuple[str, ...] = ()
    not_before: int | None = None
    """Seconds since the epoch."""
    preempt: tuple[str, ...] = ()
    """Jobs that may be taken to be gone."""
    old: bool = False
    """In the older form, ``JOBID=5@TIME,NODES``; it is answered in the older form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTasks:
    """Let a running job grow by one task for each of ``hosts``."""

    verb: ClassVar[Verb] = Verb.JOBADDTASK
    job: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTasks:
    """Let a running job shrink by these tasks."""

    job: str
    tasks: tuple[int, ...]
    """Positions in the job's task list, from 0."""
    verb: Verb = Verb.JOBRELEASETASK
    """Or JOBREMOVETASK, which means the same."""


Request = (
    GetNodes
    | GetJobs
    | StartJob
    | CancelJob
    | SuspendJob
    | ResumeJob
    | RequeueJob
    | ModifyJob
    | SignalJob
    | NotifyJob
    | Initialize
    | WillRun
    | AddTasks
    | ReleaseTasks
)


def message_text(text: str) -> str:
    """Return what a NOTIFYJOB can carry of a text."""
    return _CONTROL.sub(" ", text)[:LONGEST_MESSAGE].strip()
