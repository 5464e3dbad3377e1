# SPDX-License-Identifier: Apache-2.0
"""Requests and replies of WIKI: as values, as a scheduler and as a manager write and read them. Pure.

Its ``__all__`` has the names of the whole codec, those of the other modules included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import (
    HEADER_SIZE,
    LARGEST_SIZE,
    MAUI_LARGEST_SIZE,
    REPLY_SKEW,
    REQUEST_SKEW,
    Envelope,
    FrameReader,
    Key,
    checksum,
    open_reply,
    open_request,
    read_key,
    read_size,
    seal,
    signature_size,
)
from koala_adapter.wiki.codec.records import (
    Count,
    JobRecord,
    NodeRecord,
    Prepared,
    build_job,
    build_node,
    build_nodes,
    fit_records,
    join_records,
    parse_jobs,
    parse_nodes,
)
from koala_adapter.wiki.codec.words import (
    ACTIVE_WORDS,
    DRAIN_WORD,
    END_WORDS,
    SIGNALS,
    VERBS,
    CancelType,
    Dialect,
    Event,
    HostFormat,
    JobWord,
    NodeWord,
    Status,
    Verb,
    WaitReason,
    check_host,
    check_id,
    check_tasks,
    compressed,
    expand,
    folded,
    plain,
    ranges,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

__all__ = [
    "ACTIVE_WORDS",
    "DRAIN_WORD",
    "END_WORDS",
    "HEADER_SIZE",
    "LARGEST_SIZE",
    "MAUI_LARGEST_SIZE",
    "REPLY_SKEW",
    "REQUEST_SKEW",
    "SIGNALS",
    "VERBS",
    "CancelJob",
    "CancelType",
    "Count",
    "Dialect",
    "Envelope",
    "Event",
    "FrameReader",
    "GetJobs",
    "GetNodes",
    "HostFormat",
    "Initialize",
    "JobRecord",
    "JobWord",
    "Key",
    "ModifyJob",
    "NodeRecord",
    "NodeWord",
    "NotifyJob",
    "Prepared",
    "Reply",
    "Request",
    "RequeueJob",
    "ResumeJob",
    "SignalJob",
    "StartInfo",
    "StartJob",
    "Status",
    "SuspendJob",
    "Verb",
    "WaitReason",
    "WikiError",
    "WillRun",
    "build_answer",
    "build_event",
    "build_initialized",
    "build_job",
    "build_node",
    "build_nodes",
    "build_refusal",
    "build_request",
    "build_start_info",
    "check_host",
    "check_id",
    "checksum",
    "compressed",
    "done",
    "expand",
    "fit_records",
    "join_records",
    "not_started",
    "open_reply",
    "open_request",
    "parse_event",
    "parse_jobs",
    "parse_nodes",
    "parse_reply",
    "parse_request",
    "parse_start_info",
    "plain",
    "ranges",
    "read_key",
    "read_signal",
    "read_size",
    "seal",
    "signature_size",
]


# -- Requests as values --------------------------------------------------------------------------------------
# One class for each verb.

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
)


def message_text(text: str) -> str:
    """Return what a NOTIFYJOB can carry of a text."""
    return _CONTROL.sub(" ", text)[:LONGEST_MESSAGE].strip()


# -- Requests as a scheduler builds them ---------------------------------------------------------------------
# Messages such as ``CMD=STARTJOB ARG=101 TASKLIST=n1:n1``.
#
# Both sides of Slurm look for the parts by their names wherever they stand, so what is built never has such a name
# inside of a value.

CHANGEABLE: Final = {
    Dialect.WIKI: frozenset({"BANK", "DEPEND", "HOSTLIST", "NODES", "PARTITION", "TIMELIMIT"}),
    Dialect.WIKI2: frozenset(
        {"BANK", "DEPEND", "HOSTLIST", "NODES", "PARTITION", "TIMELIMIT"}
        | {"COMMENT", "GRES", "JOBNAME", "MINSTARTTIME", "RFEATURES", "VARIABLELIST", "WCKEY"}
    ),
}
"""What MODIFYJOB can change."""

_NOT_IN_CHANGE: Final = re.compile(r"[\s\"'\x00-\x1f\x7f\ud800-\udfff]")
_NOT_IN_COMMENT: Final = re.compile(r"[\"'=;#\\\x00-\x1f\x7f\ud800-\udfff]")


def build_request(request: Request, dialect: Dialect, *, hosts: HostFormat = HostFormat.PLAIN) -> bytes:
    """Return the message of a request. Raises WikiError for what the dialect does not have, or cannot say safely."""
    if request.verb not in VERBS[dialect]:
        raise WikiError(f"{request.verb} does not exist in the dialect {dialect}")
    return f"CMD={request.verb} ARG={_BUILDERS[request.verb](request, dialect, hosts)}".encode()


def _build_list(request: GetNodes, _dialect: Dialect, _hosts: HostFormat) -> str:
    if request.names is None:
        return f"{_at_least_zero(request.since)}:{ALL}"
    return f"{_at_least_zero(request.since)}:{_wanted(map(check_host, request.names))}"


def _build_job_list(request: GetJobs, _dialect: Dialect, _hosts: HostFormat) -> str:
    if request.ids is None:
        return f"{_at_least_zero(request.since)}:{ALL}"
    return f"{_at_least_zero(request.since)}:{_wanted(map(check_id, request.ids))}"


def _wanted(names: Iterable[str]) -> str:
    listed = list(names)
    if listed[:1] == [ALL]:
        raise WikiError(f"a list cannot begin with {ALL!r}: that means all of them")
    return ":".join(listed)


def _build_start(request: StartJob, dialect: Dialect, hosts: HostFormat) -> str:
    if dialect is Dialect.WIKI2 and hosts is not HostFormat.PLAIN:
        tasks = compressed(request.tasks)
    else:
        check_tasks(request.tasks)
        tasks = plain(request.tasks)
    return f"{check_id(request.job)} TASKLIST={tasks}{_comment(request.comment, dialect)}"


def _build_cancel(request: CancelJob, _dialect: Dialect, _hosts: HostFormat) -> str:
    # Also to sched/wiki, which passes over what it does not know.
    return f"{check_id(request.job)} TYPE={request.type}{_comment(request.comment, Dialect.WIKI2)}"


def _build_plain(request: SuspendJob | ResumeJob | RequeueJob, _dialect: Dialect, _hosts: HostFormat) -> str:
    return check_id(request.job)


def _build_modify(request: ModifyJob, dialect: Dialect, _hosts: HostFormat) -> str:
    names = [name for name, _ in request.changes]
    unknown = [name for name in names if name not in CHANGEABLE[dialect]]
    if unknown or not names or len(set(names)) < len(names):
        raise WikiError(f"MODIFYJOB cannot change {', '.join(unknown) or 'nothing, or one thing twice'}")
    if dialect is Dialect.WIKI and "HOSTLIST" in names and "BANK" not in names:
        raise WikiError("MODIFYJOB with HOSTLIST and without BANK kills a slurmctld with sched/wiki: it is not sent")
    order = sorted(request.changes, key=lambda change: (change[0] == "VARIABLELIST", change[0] != "BANK"))
    return " ".join((check_id(request.job), *(f"{name}={_change(name, value)}" for name, value in order)))


def _change(name: str, value: str) -> str:
    if name in {"COMMENT", "JOBNAME"}:
        return f'"{_NOT_IN_COMMENT.sub("_", value)[:LONGEST_COMMENT]}"'
    text = _NOT_IN_CHANGE.sub("_", value)
    if name != "VARIABLELIST" and "=" in text:
        raise WikiError(f"{name} cannot be {value!r}: what follows '=' would be taken for another name")
    return text


def _build_signal(request: SignalJob, _dialect: Dialect, _hosts: HostFormat) -> str:
    if not 1 <= request.signal <= HIGHEST_NUMBER:
        raise WikiError(f"{request.signal} is no signal")
    return f"{check_id(request.job)} VALUE={request.signal}"


def _build_notify(request: NotifyJob, _dialect: Dialect, _hosts: HostFormat) -> str:
    return f"{check_id(request.job)} MSG={message_text(request.message)}"


def _build_initialize(request: Initialize, _dialect: Dialect, _hosts: HostFormat) -> str:
    if request.event_port is not None and not 0 <= request.event_port <= HIGHEST_PORT:
        raise WikiError(f"{request.event_port} is no port")
    port = [] if request.event_port is None else [f"EPORT={request.event_port}"]
    form = [] if request.hosts is None else [f"USEHOSTEXP={request.hosts}"]
    return " ".join(port + form)


def _build_will_run(request: WillRun, _dialect: Dialect, _hosts: HostFormat) -> str:
    job, nodes = check_id(request.job), ranges(request.nodes)
    time = "" if request.not_before is None else str(_at_least_zero(request.not_before))
    if request.old:
        return f"JOBID={job}{'@' if time else ''}{time},{nodes}"
    preempt = f" PREEMPT={','.join(map(check_id, request.preempt))}" if request.preempt else ""
    return f"{job} {f'STARTTIME={time} ' if time else ''}NODES={nodes}{preempt}"


def _at_least_zero(number: int) -> int:
    if number < 0:
        raise WikiError(f"{number} cannot be sent: it is negative")
    return number


def _comment(text: str, dialect: Dialect) -> str:
    # Maui's dialect has no comments here, and reads on to the end of the line.
    cleaned = _NOT_IN_COMMENT.sub("_", text)[:LONGEST_COMMENT].strip()
    return f' COMMENT="{cleaned}"' if cleaned and dialect is Dialect.WIKI2 else ""


_BUILDERS: Final[Mapping[Verb, Callable[..., str]]] = {
    Verb.GETNODES: _build_list,
    Verb.GETJOBS: _build_job_list,
    Verb.STARTJOB: _build_start,
    Verb.CANCELJOB: _build_cancel,
    Verb.SUSPENDJOB: _build_plain,
    Verb.RESUMEJOB: _build_plain,
    Verb.MODIFYJOB: _build_modify,
    Verb.REQUEUEJOB: _build_plain,
    Verb.SIGNALJOB: _build_signal,
    Verb.NOTIFYJOB: _build_notify,
    Verb.INITIALIZE: _build_initialize,
    Verb.JOBWILLRUN: _build_will_run,
}


# -- Requests as a resource manager reads them ---------------------------------------------------------------
# What cannot be read is refused with the status and the words that Slurm had for it.

_WITH_EQUALS_SIGN: Final = frozenset({Verb.MODIFYJOB, Verb.SIGNALJOB, Verb.NOTIFYJOB, Verb.INITIALIZE})
"""Slurm says of these that they lack ``ARG=``, of the others that they lack ``ARG``."""

_SINCE: Final = re.compile(r"\s*(?P<since>[+-]?[0-9]{0,19}):", re.ASCII)
_CHANGE: Final = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s;]*)", re.ASCII)
_COMMENT: Final = re.compile(r"\bCOMMENT=(?P<value>\"[^\"]*\"|'[^']*'|\S*)")
_OLD_WILL_RUN: Final = re.compile(r"JOBID=(?P<job>[^\s@,]+)(?:@(?P<time>[0-9]{1,15}))?,(?P<nodes>\S*)", re.ASCII)


def parse_request(message: bytes, dialect: Dialect, *, verbs: Collection[Verb] | None = None) -> Request:
    """Return the request in a message. ``verbs``: those that are understood; None means all of the dialect.

    Raises WikiError whose status and message are the answer to give: Slurm's, for everything that it refused itself.
    Job ids are any word, where Slurm only knew numbers.
    """
    text = message.decode("utf-8", "surrogateescape")
    _, command, rest = text.partition("CMD=")
    if not command:
        raise _bad("request lacks CMD")
    # By prefix, as Slurm does; no verb is the beginning of another.
    verb = next((verb for verb in (VERBS[dialect] if verbs is None else verbs) if rest.startswith(verb)), None)
    if verb is None:
        raise _bad("unsupported request type")
    _, found, argument = rest[len(verb) :].partition("ARG=")
    if not found:
        raise _bad(f"{verb} lacks ARG{'=' if verb in _WITH_EQUALS_SIGN else ''}")
    return _PARSERS[verb](argument, verb, dialect)


def read_signal(text: str) -> int | None:
    """Return the number of a signal given as ``10``, ``USR1`` or ``sigusr1``; None when it is none."""
    if text.isascii() and text.isdigit():
        number = int(text[:6])
        return number if 1 <= number <= HIGHEST_NUMBER else None
    return SIGNALS.get(text.upper().removeprefix("SIG"))


def _bad(text: str) -> WikiError:
    return WikiError(text, status=Status.BAD_REQUEST)


def _id(text: str, refusal: str = "Invalid ARG value") -> str:
    try:
        return check_id(text)
    except WikiError as error:
        raise _bad(refusal) from error


def _job(argument: str, *, more: bool = False) -> tuple[str, str]:
    """Return the job id that an argument begins with, and what follows; ``more``: something must follow."""
    found = re.match(r"(\S*)(\s?)", argument)
    job, blank = (found[1], found[2]) if found else ("", "")
    if more and not blank:
        raise _bad("Invalid ARG value")
    return _id(job), argument[len(job) :]


def _hosts(text: str, refusal: str) -> tuple[str, ...]:
    try:
        hosts = expand(text)
        for host in dict.fromkeys(hosts):
            check_host(host)
    except WikiError as error:
        raise _bad(refusal) from error
    return hosts


def _value(text: str, name: str) -> str | None:
    """Return the word after ``NAME=``, None when the name does not occur."""
    found = re.search(rf"\b{name}=(\S*)", text)
    return found[1] if found else None


def _first_word(text: str) -> str:
    return (text.split(None, 1) or [""])[0]


def _parse_list(argument: str, verb: Verb, _dialect: Dialect) -> GetNodes | GetJobs:
    found = _SINCE.match(argument)
    if not found:
        raise _bad("Invalid ARG value")
    since = int(found["since"]) if found["since"] not in {"", "+", "-"} else 0
    wanted = _first_word(argument[found.end() :])
    everything = wanted.split(":", 1)[0] == ALL
    if verb is Verb.GETNODES:
        return GetNodes(since=max(0, since), names=None if everything else _hosts(wanted, "Invalid ARG value"))
    ids = None if everything else tuple(_id(word) for word in wanted.split(":") if word)
    return GetJobs(since=max(0, since), ids=ids)


def _parse_start(argument: str, _verb: Verb, dialect: Dialect) -> StartJob:
    job, rest = _job(argument, more=True)
    tasks = _value(rest, "TASKLIST")
    if tasks is None:
        raise _bad("STARTJOB lacks TASKLIST")
    hosts = _hosts(tasks, "STARTJOB TASKLIST is invalid")
    if tasks and not hosts:
        raise _bad("STARTJOB TASKLIST is invalid")
    return StartJob(job=job, tasks=hosts, comment=_read_comment(rest, dialect))


def _read_comment(rest: str, dialect: Dialect) -> str:
    found = _COMMENT.search(rest) if dialect is Dialect.WIKI2 else None
    return _unquoted(found["value"])[:LONGEST_COMMENT] if found else ""


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _parse_cancel(argument: str, _verb: Verb, dialect: Dialect) -> CancelJob:
    job, rest = _job(argument, more=True)
    word = _value(rest, "TYPE")
    if word is None and dialect is Dialect.WIKI2:
        raise _bad("No TYPE value")
    try:
        kind = CancelType.ADMIN if word is None else CancelType(word)
    except ValueError as error:
        raise _bad("Invalid TYPE value") from error
    return CancelJob(job=job, type=kind, comment=_read_comment(rest, Dialect.WIKI2))


def _parse_plain(argument: str, verb: Verb, _dialect: Dialect) -> Request:
    job, _ = _job(argument)
    kinds: dict[Verb, Callable[..., Request]] = {
        Verb.SUSPENDJOB: SuspendJob,
        Verb.RESUMEJOB: ResumeJob,
        Verb.REQUEUEJOB: RequeueJob,
    }
    return kinds[verb](job=job)


def _parse_modify(argument: str, _verb: Verb, _dialect: Dialect) -> ModifyJob:
    job, rest = _job(argument)
    changes = tuple((found["name"], _unquoted(found["value"])) for found in _CHANGE.finditer(rest))
    return ModifyJob(job=job, changes=changes)


def _parse_signal(argument: str, _verb: Verb, _dialect: Dialect) -> SignalJob:
    job, rest = _job(argument)
    word = _value(rest, "VALUE")
    if word is None:
        raise _bad("SIGNALJOB lacks VALUE=")
    number = read_signal(word)
    if number is None:
        raise _bad("SIGNALJOB has invalid signal value")
    return SignalJob(job=job, signal=number)


def _parse_notify(argument: str, _verb: Verb, _dialect: Dialect) -> NotifyJob:
    job, rest = _job(argument)
    _, found, text = rest.partition("MSG=")
    if not found:
        raise _bad("NOTIFYJOB lacks MSG=")
    return NotifyJob(job=job, message=message_text(text))


def _parse_initialize(argument: str, _verb: Verb, _dialect: Dialect) -> Initialize:
    port, form = _value(argument, "EPORT"), _value(argument, "USEHOSTEXP")
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) and int(port) <= HIGHEST_PORT):
        raise _bad("INITIALIZE has invalid EPORT")
    try:
        hosts = None if form is None else HostFormat(form)
    except ValueError as error:
        raise _bad("INITIALIZE has invalid USEHOSTEXP") from error
    return Initialize(event_port=None if port is None else int(port), hosts=hosts)


def _parse_will_run(argument: str, _verb: Verb, _dialect: Dialect) -> WillRun:
    if argument.startswith("JOBID="):
        found = _OLD_WILL_RUN.match(argument)
        if not found:
            raise _bad("Invalid ARG value")
        time = None if found["time"] is None else int(found["time"])
        nodes = _hosts(found["nodes"], "Invalid NODES value")
        return WillRun(job=_id(found["job"]), nodes=nodes, not_before=time, old=True)
    job, rest = _job(argument)
    start, listed, preempt = (_value(rest, name) for name in ("STARTTIME", "NODES", "PREEMPT"))
    if start is not None and not re.fullmatch(r"[0-9]{1,15}", start, re.ASCII):
        raise _bad("Invalid STARTTIME value")
    if listed is None:
        raise _bad("Missing NODES value")
    return WillRun(
        job=job,
        nodes=_hosts(listed, "Invalid NODES value"),
        not_before=None if start is None else int(start),
        preempt=tuple(_id(word, "Invalid PREEMPT value") for word in (preempt or "").split(",") if word),
    )


_PARSERS: Final[Mapping[Verb, Callable[[str, Verb, Dialect], Request]]] = {
    Verb.GETNODES: _parse_list,
    Verb.GETJOBS: _parse_list,
    Verb.STARTJOB: _parse_start,
    Verb.CANCELJOB: _parse_cancel,
    Verb.SUSPENDJOB: _parse_plain,
    Verb.RESUMEJOB: _parse_plain,
    Verb.MODIFYJOB: _parse_modify,
    Verb.REQUEUEJOB: _parse_plain,
    Verb.SIGNALJOB: _parse_signal,
    Verb.NOTIFYJOB: _parse_notify,
    Verb.INITIALIZE: _parse_initialize,
    Verb.JOBWILLRUN: _parse_will_run,
}


# -- Replies and events --------------------------------------------------------------------------------------
# Replies such as ``SC=0 RESPONSE=job 5 signalled``, built and read, and the events of a resource manager.

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

_CONTROL_RUN: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
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
    cleaned = _CONTROL_RUN.sub(" ", text).strip()[:LONGEST_TEXT]
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
