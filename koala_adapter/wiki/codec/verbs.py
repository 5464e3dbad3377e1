# SPDX-License-Identifier: Apache-2.0
"""Requests and replies of WIKI: each verb as a class that writes and reads its argument, and the answers. Pure."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.words import (
    SIGNALS,
    CancelType,
    Dialect,
    Event,
    HostFormat,
    Status,
    WaitReason,
    check_host,
    check_id,
    check_tasks,
    expand,
    folded,
    plain,
    ranges,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# -- Requests ------------------------------------------------------------------------------------------------
# Messages such as ``CMD=STARTJOB ARG=101 TASKLIST=n1:n1``, as a scheduler builds and a resource manager reads them.
#
# Both sides of Slurm look for the parts by their names wherever they stand, so what is built never has such a name
# inside of a value. What cannot be read is refused with the status and the words that Slurm had for it.

ALL: Final = "ALL"
LONGEST_COMMENT: Final = 512
HIGHEST_NUMBER: Final = 65_535
"""That SIGNALJOB may carry; the receiver finds whether there is such a signal."""
HIGHEST_PORT: Final = 65535
WIKI2_ONLY: Final = frozenset({Dialect.WIKI2})
LONGEST_MESSAGE: Final = 4096
"""Characters of a NOTIFYJOB."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NOT_IN_CHANGE: Final = re.compile(r"[\s\"'\x00-\x1f\x7f\ud800-\udfff]")
_NOT_IN_COMMENT: Final = re.compile(r"[\"'=;#\\\x00-\x1f\x7f\ud800-\udfff]")
_SINCE: Final = re.compile(r"\s*(?P<since>[+-]?[0-9]{0,19}):", re.ASCII)
_CHANGE: Final = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s;]*)", re.ASCII)
_COMMENT: Final = re.compile(r"\bCOMMENT=(?P<value>\"[^\"]*\"|'[^']*'|\S*)")
_OLD_WILL_RUN: Final = re.compile(r"JOBID=(?P<job>[^\s@,]+)(?:@(?P<time>[0-9]{1,15}))?,(?P<nodes>\S*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(ABC):
    """A request: a verb and its argument."""

    verb: ClassVar[str]
    dialects: ClassVar[frozenset[Dialect]] = frozenset(Dialect)
    """In which a resource manager understands the verb."""
    equals_sign: ClassVar[bool] = False
    """Slurm says of a message without its argument that it lacks ``ARG=``; of the other verbs that it lacks ``ARG``."""

    @abstractmethod
    def argument(self, dialect: Dialect) -> str:
        """Return the text after ``ARG=``. Raises WikiError for a value that cannot be written."""

    @classmethod
    @abstractmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse the text after ``ARG=``. Raises WikiError with the status and text of the refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNodes(Request):
    """List nodes: those called ``names``, or all when None; in full only what changed after ``since`` (0: all)."""

    verb = "GETNODES"
    since: int = 0
    names: tuple[str, ...] | None = None

    def argument(self, dialect: Dialect) -> str:
        """``0:ALL`` or ``1700000000:n1:n2``."""
        return _listing(self.since, None if self.names is None else map(check_host, self.names))

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse names and host expressions such as ``n[1-3]``."""
        since, wanted = _read_listing(argument)
        return cls(since=since, names=None if wanted is None else _hosts(wanted, "Invalid ARG value"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJobs(Request):
    """List jobs: those of ``ids``, or all when None; in full only what changed after ``since`` (0: all)."""

    verb = "GETJOBS"
    since: int = 0
    ids: tuple[str, ...] | None = None

    def argument(self, dialect: Dialect) -> str:
        """``0:ALL`` or ``1700000000:101:102``."""
        return _listing(self.since, None if self.ids is None else map(check_id, self.ids))

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse job ids; any word is accepted."""
        since, wanted = _read_listing(argument)
        return cls(since=since, ids=None if wanted is None else tuple(_id(word) for word in wanted.split(":") if word))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest(Request):
    """A request that does something with a job; its argument is the id of the job, unless a verb has more."""

    done: ClassVar[str]
    """What is said of the job when the request was carried out."""
    job: str

    @property
    def response(self) -> str:
        """Text of the answer when the request was carried out."""
        return f"job {self.job} {self.done}"

    def argument(self, dialect: Dialect) -> str:
        """``101``."""
        return check_id(self.job)

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse the job id; anything after it is ignored."""
        return cls(job=_job(argument)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob(JobRequest):
    """Start a job on exactly these hosts."""

    verb = "STARTJOB"
    done = "started successfully"
    tasks: tuple[str, ...]
    """One host for each task; empty: the resource manager chooses."""
    comment: str = ""

    def argument(self, dialect: Dialect) -> str:
        """``101 TASKLIST=n1:n1``."""
        check_tasks(self.tasks)
        return f"{check_id(self.job)} TASKLIST={plain(self.tasks)}{_comment(self.comment, dialect)}"

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse job id and TASKLIST, which must be present and may be empty."""
        job, rest = _job(argument, more=True)
        tasks = _value(rest, "TASKLIST")
        if tasks is None:
            raise _bad("STARTJOB lacks TASKLIST")
        hosts = _hosts(tasks, "STARTJOB TASKLIST is invalid")
        if tasks and not hosts:
            raise _bad("STARTJOB TASKLIST is invalid")
        return cls(job=job, tasks=hosts, comment=_read_comment(rest, dialect))


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob(JobRequest):
    """End a job."""

    verb = "CANCELJOB"
    done = "cancelled successfully"
    type: CancelType = CancelType.ADMIN
    comment: str = ""

    def argument(self, dialect: Dialect) -> str:
        """``101 TYPE=ADMIN``; the first dialect ignores a comment after it."""
        return f"{check_id(self.job)} TYPE={self.type}{_comment(self.comment, Dialect.WIKI2)}"

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse job id and TYPE; TYPE is required in the second dialect only."""
        job, rest = _job(argument, more=True)
        word = _value(rest, "TYPE")
        if word is None and dialect is Dialect.WIKI2:
            raise _bad("No TYPE value")
        try:
            kind = CancelType.ADMIN if word is None else CancelType(word)
        except ValueError as error:
            raise _bad("Invalid TYPE value") from error
        return cls(job=job, type=kind, comment=_read_comment(rest, Dialect.WIKI2))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendJob(JobRequest):
    """Stop the processes of a running job for now."""

    verb = "SUSPENDJOB"
    done = "suspended successfully"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob(JobRequest):
    """Let a suspended job go on."""

    verb = "RESUMEJOB"
    done = "resumed successfully"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueJob(JobRequest):
    """Put a running job back into the queue."""

    verb = "REQUEUEJOB"
    dialects = WIKI2_ONLY
    done = "requeued successfully"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyJob(JobRequest):
    """Change attributes of a job. TIMELIMIT is in minutes, unlike WCLIMIT of a record."""

    verb = "MODIFYJOB"
    done = "modified successfully"
    equals_sign = True
    changeable: ClassVar[Mapping[Dialect, frozenset[str]]] = {
        Dialect.WIKI: frozenset({"BANK", "DEPEND", "HOSTLIST", "NODES", "PARTITION", "TIMELIMIT"}),
        Dialect.WIKI2: frozenset(
            {"BANK", "DEPEND", "HOSTLIST", "NODES", "PARTITION", "TIMELIMIT"}
            | {"COMMENT", "GRES", "JOBNAME", "MINSTARTTIME", "RFEATURES", "VARIABLELIST", "WCKEY"}
        ),
    }
    changes: tuple[tuple[str, str], ...]
    """Pairs (name, value) such as ``("TIMELIMIT", "20")``."""

    def argument(self, dialect: Dialect) -> str:
        """``101 BANK=bio TIMELIMIT=20``: BANK first, VARIABLELIST last."""
        names = [name for name, _ in self.changes]
        unknown = [name for name in names if name not in self.changeable[dialect]]
        if unknown or not names or len(set(names)) < len(names):
            raise WikiError(f"MODIFYJOB cannot change {', '.join(unknown) or 'nothing, or one thing twice'}")
        if dialect is Dialect.WIKI and "HOSTLIST" in names and "BANK" not in names:
            raise WikiError(
                "MODIFYJOB with HOSTLIST and without BANK kills a slurmctld with sched/wiki: it is not sent"
            )
        order = sorted(self.changes, key=lambda change: (change[0] == "VARIABLELIST", change[0] != "BANK"))
        return " ".join((check_id(self.job), *(f"{name}={_change(name, value)}" for name, value in order)))

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse the job id and all NAME=VALUE pairs in any order."""
        job, rest = _job(argument)
        changes = tuple((found["name"], _unquoted(found["value"])) for found in _CHANGE.finditer(rest))
        return cls(job=job, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalJob(JobRequest):
    """Send a signal to a running job."""

    verb = "SIGNALJOB"
    dialects = WIKI2_ONLY
    done = "signalled"
    equals_sign = True
    signal: int

    def argument(self, dialect: Dialect) -> str:
        """``101 VALUE=10``."""
        if not 1 <= self.signal <= HIGHEST_NUMBER:
            raise WikiError(f"{self.signal} is no signal")
        return f"{check_id(self.job)} VALUE={self.signal}"

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse the job id and the signal, a number or a name."""
        job, rest = _job(argument)
        word = _value(rest, "VALUE")
        if word is None:
            raise _bad("SIGNALJOB lacks VALUE=")
        number = read_signal(word)
        if number is None:
            raise _bad("SIGNALJOB has invalid signal value")
        return cls(job=job, signal=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyJob(JobRequest):
    """Send a message to the user of a job."""

    verb = "NOTIFYJOB"
    dialects = WIKI2_ONLY
    done = "notified successfully"
    equals_sign = True
    message: str

    def argument(self, dialect: Dialect) -> str:
        """``101 MSG=the disk is full``."""
        return f"{check_id(self.job)} MSG={_message(self.message)}"

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse the job id; everything after ``MSG=`` is the message."""
        job, rest = _job(argument)
        _, found, text = rest.partition("MSG=")
        if not found:
            raise _bad("NOTIFYJOB lacks MSG=")
        return cls(job=job, message=_message(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize(Request):
    """Set the port that gets events (0: none) and the form of host lists; None leaves it as it is."""

    verb = "INITIALIZE"
    dialects = WIKI2_ONLY
    equals_sign = True
    event_port: int | None = None
    hosts: HostFormat | None = None

    def argument(self, dialect: Dialect) -> str:
        """``EPORT=15017 USEHOSTEXP=F``."""
        if self.event_port is not None and not 0 <= self.event_port <= HIGHEST_PORT:
            raise WikiError(f"{self.event_port} is no port")
        port = [] if self.event_port is None else [f"EPORT={self.event_port}"]
        form = [] if self.hosts is None else [f"USEHOSTEXP={self.hosts}"]
        return " ".join(port + form)

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse port and host format; a missing one is None."""
        port, form = _value(argument, "EPORT"), _value(argument, "USEHOSTEXP")
        if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) and int(port) <= HIGHEST_PORT):
            raise _bad("INITIALIZE has invalid EPORT")
        try:
            hosts = None if form is None else HostFormat(form)
        except ValueError as error:
            raise _bad("INITIALIZE has invalid USEHOSTEXP") from error
        return cls(event_port=None if port is None else int(port), hosts=hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WillRun(Request):
    """Ask when and where a job could start on some of these nodes."""

    verb = "JOBWILLRUN"
    dialects = WIKI2_ONLY
    job: str
    nodes: tuple[str, ...] = ()
    not_before: int | None = None
    """Seconds since the epoch."""
    preempt: tuple[str, ...] = ()
    """Jobs that may be taken to be gone."""
    old: bool = False
    """In the older form, ``JOBID=5@TIME,NODES``; it is answered in the older form."""

    def argument(self, dialect: Dialect) -> str:
        """``101 STARTTIME=1700000000 NODES=n[1-4] PREEMPT=99``."""
        job, nodes = check_id(self.job), ranges(self.nodes)
        time = "" if self.not_before is None else str(_at_least_zero(self.not_before))
        if self.old:
            return f"JOBID={job}{'@' if time else ''}{time},{nodes}"
        preempt = f" PREEMPT={','.join(map(check_id, self.preempt))}" if self.preempt else ""
        return f"{job} {f'STARTTIME={time} ' if time else ''}NODES={nodes}{preempt}"

    @classmethod
    def read(cls, argument: str, dialect: Dialect) -> Self:
        """Parse the request in the forms of Moab and of Slurm's documentation."""
        if argument.startswith("JOBID="):
            found = _OLD_WILL_RUN.match(argument)
            if not found:
                raise _bad("Invalid ARG value")
            time = None if found["time"] is None else int(found["time"])
            nodes = _hosts(found["nodes"], "Invalid NODES value")
            return cls(job=_id(found["job"]), nodes=nodes, not_before=time, old=True)
        job, rest = _job(argument)
        start, listed, preempt = (_value(rest, name) for name in ("STARTTIME", "NODES", "PREEMPT"))
        if start is not None and not re.fullmatch(r"[0-9]{1,15}", start, re.ASCII):
            raise _bad("Invalid STARTTIME value")
        if listed is None:
            raise _bad("Missing NODES value")
        return cls(
            job=job,
            nodes=_hosts(listed, "Invalid NODES value"),
            not_before=None if start is None else int(start),
            preempt=tuple(_id(word, "Invalid PREEMPT value") for word in (preempt or "").split(",") if word),
        )


REQUESTS: Final[Sequence[type[Request]]] = (
    *(GetNodes, GetJobs, StartJob, CancelJob, SuspendJob, ResumeJob, RequeueJob),
    *(ModifyJob, SignalJob, NotifyJob, Initialize, WillRun),
)


def build_request(request: Request, dialect: Dialect) -> bytes:
    """Return the message of a request. Raises WikiError for what the dialect does not have, or cannot say safely."""
    if dialect not in request.dialects:
        raise WikiError(f"{request.verb} does not exist in the dialect {dialect}")
    return f"CMD={request.verb} ARG={request.argument(dialect)}".encode()


def parse_request(message: bytes, dialect: Dialect) -> Request:
    """Return the request in a message.

    Raises WikiError whose status and message are the answer to give: Slurm's, for everything that it refused itself.
    Job ids are any word, where Slurm only knew numbers.
    """
    text = message.decode("utf-8", "surrogateescape")
    _, command, rest = text.partition("CMD=")
    if not command:
        raise _bad("request lacks CMD")
    # By prefix, as Slurm does; no verb is the beginning of another.
    kind = next((one for one in REQUESTS if dialect in one.dialects and rest.startswith(one.verb)), None)
    if kind is None:
        raise _bad("unsupported request type")
    _, found, argument = rest[len(kind.verb) :].partition("ARG=")
    if not found:
        raise _bad(f"{kind.verb} lacks ARG{'=' if kind.equals_sign else ''}")
    return kind.read(argument, dialect)


def read_signal(text: str) -> int | None:
    """Return the number of a signal given as ``10``, ``USR1`` or ``sigusr1``; None when it is none."""
    if text.isascii() and text.isdigit():
        number = int(text[:6])
        return number if 1 <= number <= HIGHEST_NUMBER else None
    return SIGNALS.get(text.upper().removeprefix("SIG"))


# -- Parts of arguments --------------------------------------------------------------------------------------


def _listing(since: int, names: Iterable[str] | None) -> str:
    listed = [ALL] if names is None else list(names)
    if names is not None and listed[:1] == [ALL]:
        raise WikiError(f"a list cannot begin with {ALL!r}: that means all of them")
    return f"{_at_least_zero(since)}:{':'.join(listed)}"


def _read_listing(argument: str) -> tuple[int, str | None]:
    """Return the time of a listing, and the names that are wanted; None: all."""
    found = _SINCE.match(argument)
    if not found:
        raise _bad("Invalid ARG value")
    since = int(found["since"]) if found["since"] not in {"", "+", "-"} else 0
    wanted = (argument[found.end() :].split(None, 1) or [""])[0]
    return max(0, since), None if wanted.split(":", 1)[0] == ALL else wanted


def _change(name: str, value: str) -> str:
    if name in {"COMMENT", "JOBNAME"}:
        return f'"{_NOT_IN_COMMENT.sub("_", value)[:LONGEST_COMMENT]}"'
    text = _NOT_IN_CHANGE.sub("_", value)
    if name != "VARIABLELIST" and "=" in text:
        raise WikiError(f"{name} cannot be {value!r}: what follows '=' would be taken for another name")
    return text


def _message(text: str) -> str:
    return _CONTROL.sub(" ", text)[:LONGEST_MESSAGE].strip()


def _at_least_zero(number: int) -> int:
    if number < 0:
        raise WikiError(f"{number} cannot be sent: it is negative")
    return number


def _comment(text: str, dialect: Dialect) -> str:
    # Maui's dialect has no comments here, and reads on to the end of the line.
    cleaned = _NOT_IN_COMMENT.sub("_", text)[:LONGEST_COMMENT].strip()
    return f' COMMENT="{cleaned}"' if cleaned and dialect is Dialect.WIKI2 else ""


def _read_comment(rest: str, dialect: Dialect) -> str:
    found = _COMMENT.search(rest) if dialect is Dialect.WIKI2 else None
    return _unquoted(found["value"])[:LONGEST_COMMENT] if found else ""


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _value(text: str, name: str) -> str | None:
    """Return the word after ``NAME=``; None when NAME is not in the text."""
    found = re.search(rf"\b{name}=(\S*)", text)
    return found[1] if found else None


def _job(argument: str, *, more: bool = False) -> tuple[str, str]:
    """Split an argument into job id and rest; ``more``: a rest is required."""
    found = re.match(r"(\S*)(\s?)", argument)
    job, blank = (found[1], found[2]) if found else ("", "")
    if more and not blank:
        raise _bad("Invalid ARG value")
    return _id(job), argument[len(job) :]


def _id(text: str, refusal: str = "Invalid ARG value") -> str:
    try:
        return check_id(text)
    except WikiError as error:
        raise _bad(refusal) from error


def _hosts(text: str, refusal: str) -> tuple[str, ...]:
    try:
        hosts = expand(text)
        for host in dict.fromkeys(hosts):
            check_host(host)
    except WikiError as error:
        raise _bad(refusal) from error
    return hosts


def _bad(text: str) -> WikiError:
    return WikiError(text, status=Status.BAD_REQUEST)


# -- Replies and events --------------------------------------------------------------------------------------
# Replies such as ``SC=0 RESPONSE=job 5 signalled``, built and read, and the events of a resource manager.

LONGEST_TEXT: Final = 1000
"""Characters of a RESPONSE; Slurm cut at 127."""
NOT_RUNNABLE: Final = "Jobs not runable on selected nodes"
"""What Slurm answers, with status 0, to a JOBWILLRUN of a job that can never run there."""

_CONTROL_RUN: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_STATUS: Final = re.compile(r"SC=\s*(?P<status>[+-]?[0-9]{1,9})", re.ASCII)
_RESPONSE: Final = re.compile(r"(?:RESPONSE|RSP)=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Status, text and argument of a reply."""

    status: int
    text: str = ""
    """What follows RESPONSE=, for a person."""
    argument: str | None = None
    """What follows ARG= in the answer to a query; None when there is none."""

    def require(self) -> str:
        """Return the argument or text of a successful reply. Raises WikiError with status and text of a failed one."""
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


def not_started(job: str, hosts: Sequence[str], reason: WaitReason, why: str) -> WikiError:
    """Return the refusal of a STARTJOB that cannot be done now, in Slurm's words; ``why``: for the administrator."""
    where = ",".join(folded(dict.fromkeys(hosts)))
    said = f"Could not start job {job}({where}): {reason.word}"
    return WikiError(f"{said}: {why}" if why else said, status=reason.status)


def build_initialized(port: int, hosts: HostFormat) -> bytes:
    """Return the reply to INITIALIZE: the settings in force."""
    return build_answer(Status.SUCCESS, f"EPORT={port} USEHOSTEXP={hosts}")


def build_start_info(info: StartInfo | None) -> bytes:
    """Return the reply to JOBWILLRUN; ``info`` None: the job can never run there. Raises WikiError."""
    if info is None:
        return f"SC=0 ARG={NOT_RUNNABLE}".encode()
    job, nodes = check_id(info.job), ranges(info.nodes)
    if info.old:
        return f"SC=0 ARG=STARTINFO={job}:{info.tasks}@{info.start},{nodes}".encode()
    preempt = f" PREEMPT={','.join(map(check_id, info.preempt))}" if info.preempt else ""
    return f"SC=0 ARG=STARTINFO={job} TASKS={info.tasks} STARTTIME={info.start} NODES={nodes}{preempt}".encode()


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
