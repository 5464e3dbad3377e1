# SPDX-License-Identifier: Apache-2.0
"""Request messages of WIKI, ``CMD=STARTJOB ARG=101 TASKLIST=n1:n1``, built for a scheduler and read for a manager.

Both sides of Slurm look for the parts by their names wherever they stand, so what is built never has such a name inside
of a value. What cannot be read is refused with the status and the words that Slurm had for it. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.hostlists import check_host, check_id, check_tasks, compressed, expand, plain, ranges
from koala_adapter.wiki.codec.requests import (
    AddTasks,
    CancelJob,
    GetJobs,
    GetNodes,
    Initialize,
    ModifyJob,
    NotifyJob,
    ReleaseTasks,
    Request,
    RequeueJob,
    ResumeJob,
    SignalJob,
    StartJob,
    SuspendJob,
    WillRun,
)
from koala_adapter.wiki.codec.words import SIGNALS, VERBS, CancelType, Dialect, HostFormat, Status, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

ALL: Final = "ALL"
DEFAULT_CLASS: Final = "DEFAULT"
"""A word that may stand before the hosts or tasks of JOBADDTASK and its kin: the class of tasks."""
LONGEST_COMMENT: Final = 512
HIGHEST_NUMBER: Final = 65_535
"""That SIGNALJOB may carry; whether there is such a signal, whoever is to send it finds."""
HIGHEST_PORT: Final = 65535
LONGEST_MESSAGE: Final = 4096
"""Characters of a NOTIFYJOB."""

CHANGEABLE: Final = {
    Dialect.WIKI: frozenset({"BANK", "DEPEND", "HOSTLIST", "NODES", "PARTITION", "TIMELIMIT"}),
    Dialect.WIKI2: frozenset(
        {"BANK", "DEPEND", "HOSTLIST", "NODES", "PARTITION", "TIMELIMIT"}
        | {"COMMENT", "GRES", "JOBNAME", "MINSTARTTIME", "RFEATURES", "VARIABLELIST", "WCKEY"}
    ),
}
"""What MODIFYJOB can change."""

_WITH_EQUALS_SIGN: Final = frozenset({Verb.MODIFYJOB, Verb.SIGNALJOB, Verb.NOTIFYJOB, Verb.INITIALIZE})
"""Slurm says of these that they lack ``ARG=``, of the others that they lack ``ARG``."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NOT_IN_CHANGE: Final = re.compile(r"[\s\"'\x00-\x1f\x7f\ud800-\udfff]")
_NOT_IN_COMMENT: Final = re.compile(r"[\"'=;#\\\x00-\x1f\x7f\ud800-\udfff]")
_SINCE: Final = re.compile(r"\s*(?P<since>[+-]?[0-9]{0,19}):", re.ASCII)
_CHANGE: Final = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>\"[^\"]*\"|'[^']*'|\S*)", re.ASCII)
_COMMENT: Final = re.compile(r"\bCOMMENT=(?P<value>\"[^\"]*\"|'[^']*'|\S*)")
_OLD_WILL_RUN: Final = re.compile(r"JOBID=(?P<job>[^\s@,]+)(?:@(?P<time>[0-9]{1,15}))?,(?P<nodes>\S*)", re.ASCII)


# -- building -----------------------------------------------------------------------------------------------------


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
    return f"{check_id(request.job)} MSG={_message(request.message)}"


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


def _build_add(request: AddTasks, _dialect: Dialect, _hosts: HostFormat) -> str:
    return " ".join((check_id(request.job), *map(check_host, request.hosts)))


def _build_release(request: ReleaseTasks, _dialect: Dialect, _hosts: HostFormat) -> str:
    return " ".join((check_id(request.job), *(str(_at_least_zero(task)) for task in request.tasks)))


def _at_least_zero(number: int) -> int:
    if number < 0:
        raise WikiError(f"{number} cannot be sent: it is negative")
    return number


def _comment(text: str, dialect: Dialect) -> str:
    # Maui's dialect has no comments here, and reads on to the end of the line.
    cleaned = _NOT_IN_COMMENT.sub("_", text)[:LONGEST_COMMENT].strip()
    return f' COMMENT="{cleaned}"' if cleaned and dialect is Dialect.WIKI2 else ""


def _message(text: str) -> str:
    return _CONTROL.sub(" ", text)[:LONGEST_MESSAGE].strip()


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
    Verb.JOBADDTASK: _build_add,
    Verb.JOBRELEASETASK: _build_release,
    Verb.JOBREMOVETASK: _build_release,
}


# -- reading ------------------------------------------------------------------------------------------------------


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
    return NotifyJob(job=job, message=_message(text))


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


def _parse_tasks(argument: str, verb: Verb, _dialect: Dialect) -> AddTasks | ReleaseTasks:
    job, rest = _job(argument)
    words = rest.split()
    if words[:1] == [DEFAULT_CLASS]:
        words = words[1:]
    if not words:
        raise _bad("Invalid ARG value")
    if verb is Verb.JOBADDTASK:
        return AddTasks(job=job, hosts=tuple(host for word in words for host in _hosts(word, "Invalid ARG value")))
    if not all(re.fullmatch(r"[0-9]{1,9}", word, re.ASCII) for word in words):
        raise _bad("Invalid ARG value")
    return ReleaseTasks(job=job, tasks=tuple(map(int, words)), verb=verb)


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
    Verb.JOBADDTASK: _parse_tasks,
    Verb.JOBRELEASETASK: _parse_tasks,
    Verb.JOBREMOVETASK: _parse_tasks,
}
