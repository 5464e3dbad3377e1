# SPDX-License-Identifier: Apache-2.0
"""Request messages of WIKI, as a manager reads them. Pure.

What cannot be read is refused with the status and the words that Slurm had for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.hostlists import check_host, check_id, expand
from koala_adapter.wiki.codec.requests import (
    ALL,
    HIGHEST_NUMBER,
    HIGHEST_PORT,
    LONGEST_COMMENT,
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
    message_text,
)
from koala_adapter.wiki.codec.words import SIGNALS, VERBS, CancelType, Dialect, HostFormat, Status, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

DEFAULT_CLASS: Final = "DEFAULT"
"""A word that may stand before the hosts or tasks of JOBADDTASK and its kin: the class of tasks."""
_WITH_EQUALS_SIGN: Final = frozenset({Verb.MODIFYJOB, Verb.SIGNALJOB, Verb.NOTIFYJOB, Verb.INITIALIZE})
"""Slurm says of these that they lack ``ARG=``, of the others that they lack ``ARG``."""

_SINCE: Final = re.compile(r"\s*(?P<since>[+-]?[0-9]{0,19}):", re.ASCII)
_CHANGE: Final = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>\"[^\"]*\"|'[^']*'|\S*)", re.ASCII)
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
