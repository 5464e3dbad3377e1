# SPDX-License-Identifier: Apache-2.0
"""Reply messages of WIKI, ``SC=0 RESPONSE=job 5 signalled``, and the events of a resource manager. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.hostlists import check_id, expand, folded, ranges
from koala_adapter.wiki.codec.words import Event, HostFormat, Status, Verb, WaitReason

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_TEXT: Final = 1000
"""Characters of a RESPONSE; Slurm cut at 127."""
NOT_RUNNABLE: Final = "Jobs not runable on selected nodes"
"""What Slurm answers, with status 0, to a JOBWILLRUN of a job that can never run there."""

DONE: Final = {
    Verb.STARTJOB: "started successfully",
    Verb.CANCELJOB: "cancelled successfully",
    Verb.SUSPENDJOB: "suspended successfully",
    Verb.RESUMEJOB: "resumed successfully",
    Verb.MODIFYJOB: "modified successfully",
    Verb.REQUEUEJOB: "requeued successfully",
    Verb.NOTIFYJOB: "notified successfully",
    Verb.SIGNALJOB: "signalled",
}
"""What is said of a job when the request was carried out."""

REASON_WORDS: Final = {
    WaitReason.NONE: "None",
    WaitReason.PRIORITY: "Priority",
    WaitReason.DEPENDENCY: "Dependency",
    WaitReason.RESOURCES: "Resources",
    WaitReason.PARTITION_NODE_LIMIT: "PartitionNodeLimit",
    WaitReason.PARTITION_TIME_LIMIT: "PartitionTimeLimit",
    WaitReason.PARTITION_DOWN: "PartitionDown",
    WaitReason.PARTITION_INACTIVE: "PartitionInactive",
    WaitReason.HELD: "JobHeldAdmin",
    WaitReason.BEGIN_TIME: "BeginTime",
    WaitReason.LICENSES: "Licenses",
    WaitReason.BAD_CONSTRAINTS: "BadConstraints",
    WaitReason.DEPENDENCY_NEVER: "DependencyNeverSatisfied",
}

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_STATUS: Final = re.compile(r"SC=\s*(?P<status>[+-]?[0-9]{1,9})", re.ASCII)
_RESPONSE: Final = re.compile(r"(?:RESPONSE|RSP)=")
_OLD_START_INFO: Final = re.compile(
    r"STARTINFO=(?P<job>[^\s:]+):(?P<tasks>[0-9]{1,9})@(?P<start>[0-9]{1,15}),(?P<nodes>\S*)", re.ASCII
)
_START_INFO: Final = re.compile(
    r"STARTINFO=(?P<job>\S+) TASKS=(?P<tasks>[0-9]{1,9}) STARTTIME=(?P<start>[0-9]{1,15}) NODES=(?P<nodes>\S*)"
    r"(?: PREEMPT=(?P<preempt>\S*))?",
    re.ASCII,
)
_EVENTS: Final = {f"{event:d}\0".encode(): event for event in Event}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply as far as all have the same form."""

    status: int
    text: str = ""
    """What follows RESPONSE=, for a person."""
    argument: str | None = None
    """What follows ARG= in the answer to a query; None when there is none."""

    def require(self) -> str:
        """Return the argument, or the text. Raises WikiError, with the peer's status and words, for a failure."""
        if self.status < 0:
            text = self.text or self.argument or "it does not say why"
            raise WikiError(text, status=self.status)
        return self.text if self.argument is None else self.argument


@dataclass(frozen=True, slots=True, kw_only=True)
class StartInfo:
    """The answer to a JOBWILLRUN: when and where the job could start."""

    job: str
    tasks: int
    start: int
    """Seconds since the epoch."""
    nodes: tuple[str, ...]
    preempt: tuple[str, ...] = ()
    old: bool = False
    """In the older form."""


def build_answer(status: int, text: str) -> bytes:
    """Return a reply that is no list: ``SC=0 RESPONSE=job 5 started successfully``."""
    cleaned = _CONTROL.sub(" ", text).strip()[:LONGEST_TEXT]
    return f"SC={int(status)} RESPONSE={cleaned}".encode()


def build_refusal(error: WikiError) -> bytes:
    """Return the reply to a request that could not be read or carried out."""
    return build_answer(Status.FAILURE if error.status is None else error.status, error.message)


def done(verb: Verb, job: str) -> str:
    """Return the text for a request on a job that was carried out."""
    return f"job {job} {DONE[verb]}"


def not_started(job: str, hosts: Sequence[str], reason: WaitReason) -> WikiError:
    """Return the refusal of a STARTJOB that cannot be done now, in Slurm's words."""
    where = ",".join(folded(dict.fromkeys(hosts)))
    return WikiError(
        f"Could not start job {job}({where}): {REASON_WORDS[reason]}", status=Status.NOT_STARTED - reason.value
    )


def build_initialized(port: int, hosts: HostFormat) -> bytes:
    """Return the answer to INITIALIZE: what holds from now on."""
    return build_answer(Status.SUCCESS, f"EPORT={port} USEHOSTEXP={hosts}")


def build_start_info(info: StartInfo | None) -> bytes:
    """Return the answer to JOBWILLRUN; None: the job can never run there. Raises WikiError."""
    if info is None:
        return f"SC=0 ARG={NOT_RUNNABLE}".encode()
    job, nodes = check_id(info.job), ranges(info.nodes)
    if info.old:
        return f"SC=0 ARG=STARTINFO={job}:{info.tasks}@{info.start},{nodes}".encode()
    preempt = f" PREEMPT={','.join(map(check_id, info.preempt))}" if info.preempt else ""
    return f"SC=0 ARG=STARTINFO={job} TASKS={info.tasks} STARTTIME={info.start} NODES={nodes}{preempt}".encode()


def parse_start_info(argument: str) -> StartInfo | None:
    """Return the answer to JOBWILLRUN from what follows ARG=; None: never. Raises WikiError for anything else."""
    if argument.startswith(NOT_RUNNABLE):
        return None
    for pattern in (_START_INFO, _OLD_START_INFO):
        found = pattern.match(argument)
        if found:
            preempt = found["preempt"] if pattern is _START_INFO else None
            return StartInfo(
                job=found["job"],
                tasks=int(found["tasks"]),
                start=int(found["start"]),
                nodes=expand(found["nodes"]),
                preempt=tuple(filter(None, (preempt or "").split(","))),
                old=pattern is _OLD_START_INFO,
            )
    raise WikiError(f"the answer to JOBWILLRUN cannot be understood: {argument[:80]!r}")


def parse_reply(message: bytes) -> Reply:
    """Return a reply. As Maui reads it: the first ``SC=`` and the first ``ARG=``. Raises WikiError without a status."""
    text = message.decode("utf-8", "surrogateescape")
    status = _STATUS.search(text)
    if not status:
        raise WikiError("the reply has no status code")
    response = _RESPONSE.search(text, status.end())
    argument = text.find("ARG=", status.end())
    if argument >= 0 and (response is None or argument < response.start()):
        return Reply(status=int(status["status"]), argument=text[argument + 4 :])
    return Reply(status=int(status["status"]), text=text[response.end() :] if response else "")


def build_event(event: Event) -> bytes:
    """Return what a resource manager writes to the event port: four digits and a NUL, without a frame."""
    return f"{event:d}\0".encode()


def parse_event(data: bytes) -> Event:
    """Return the event that came in at the event port. Raises WikiError."""
    event = _EVENTS.get(data[:5])
    if event is None:
        raise WikiError(f"{data[:20]!r} is no event")
    return event
