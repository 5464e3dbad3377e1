# SPDX-License-Identifier: Apache-2.0
"""Request messages of WIKI, ``CMD=STARTJOB ARG=101 TASKLIST=n1:n1``, as a scheduler builds them. Pure.

Both sides of Slurm look for the parts by their names wherever they stand, so what is built never has such a name inside
of a value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.hostlists import check_host, check_id, check_tasks, compressed, plain, ranges
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
from koala_adapter.wiki.codec.words import VERBS, Dialect, HostFormat, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


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
