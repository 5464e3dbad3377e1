# SPDX-License-Identifier: Apache-2.0
"""Nodes and jobs that a WIKI resource manager knows, from one listing to the next. Pure.

It remembers what a peer must still be told: jobs that have ended, nodes that have vanished, when each object changed.
Records are built when something changes and kept as bytes, so that a poll costs what is sent, and a delta what changed.
Its parts come first: failed starts, task lists, entries.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import WikiError
from koala_adapter.lrm.starts import Patience
from koala_adapter.model import OCCUPYING, WAITING, EndReason, LrmJob, LrmJobId, LrmJobState, Node, NodeState
from koala_adapter.wiki.codec.records import Prepared, build_job, build_node
from koala_adapter.wiki.codec.words import Dialect, HostFormat, check_id
from koala_adapter.wiki.reporting import (
    MOST_CLASSES,
    Host,
    ReportingRules,
    job_record,
    node_names,
    node_record,
    wire_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.lrm.listing import Listing


# -- Failed starts -------------------------------------------------------------------------------------------
# Jobs whose starts were refused or did not come about, and for how long each is kept from being offered again.
#
# After a refused start Maui leaves out the other starts of that iteration: a job that is refused again and again would
# keep all others waiting.

NO_ROOM_TRIES = 3
"""So often in a row a job may find its nodes taken meanwhile, which a peer that polls cannot always know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """Failed starts of one job: how many, the last reason, and until when the job is kept back."""

    failures: int
    reason: str
    until: float
    """It is not offered before."""


class Setbacks:
    """The failed starts of all jobs; times are of a monotonic clock."""

    def __init__(self) -> None:
        self._patience = Patience()
        self._known: dict[str, Setback] = {}

    def note(self, job: str, reason: str, now: float, *, refused: bool) -> Setback:
        """Record a failed start. ``refused``: the job was refused for itself, not because nodes were busy."""
        former = self._known.get(job)
        failures = 1 if former is None else former.failures + 1
        counted = failures if refused else failures - NO_ROOM_TRIES + 1
        pause = self._patience.after(counted, refused=refused) if counted > 0 else 0.0
        self._known[job] = found = Setback(failures=failures, reason=reason, until=now + pause)
        return found

    def of(self, job: str, now: float) -> Setback | None:
        """Return why a job is kept back from schedulers now; None when it is not."""
        found = self._known.get(job)
        return found if found is not None and now < found.until else None

    def forget(self, job: str) -> None:
        """Drop the failed starts of a job."""
        self._known.pop(job, None)


# -- Order of task lists -------------------------------------------------------------------------------------
# A running job's task list is in an order in which Maui must notice every change of its size.
#
# Maui compares the new list with the one it knows entry by entry, up to the length of the *new* list, and only looks
# further at the first difference (as seen): a list that shrinks to a beginning of itself keeps the freed nodes charged
# for ever. So new hosts come first, and a list that shrinks is turned until its first entry differs.


def next_task_list(before: Sequence[str], counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the task list to report for a job with ``counts`` tasks on each host, given the last reported list.

    Equal hosts are adjacent. The same counts give the same list again. Where all that is left lies on one host no order
    makes a difference, and Maui cannot notice.
    """
    counts = {host: count for host, count in counts.items() if count > 0}
    known = list(dict.fromkeys(before))
    old = {host: before.count(host) for host in known}
    if old == counts:
        return tuple(before)
    new = [host for host in counts if counts[host] > old.get(host, 0)]
    kept = [host for host in known if host in counts and host not in new]
    order = new + kept
    listed = _written(order, counts)
    if _is_beginning(listed, before):
        turned = order[1:] + order[:1]
        listed = _written(turned, counts)
    return listed


def _written(order: Sequence[str], counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(host for host in order for _ in range(counts[host]))


def _is_beginning(listed: Sequence[str], before: Sequence[str]) -> bool:
    return len(listed) <= len(before) and tuple(before[: len(listed)]) == tuple(listed)


def host_counts(tasks: Sequence[str]) -> dict[str, int]:
    """Return the number of tasks on each host, in order of first appearance."""
    counts: dict[str, int] = {}
    for host, same in groupby(tasks):
        counts[host] = counts.get(host, 0) + len(list(same))
    return counts


# -- Entries -------------------------------------------------------------------------------------------------
# What is kept of each node and job, and of what was promised to a peer.

Entry = TypeVar("Entry", "NodeEntry", "JobEntry")


@dataclass(slots=True, kw_only=True)
class NodeEntry:
    """Last known state of a node, and when it changed."""

    name: str
    node: Node
    used: int
    hidden: int
    """Of these, used by no job that is listed."""
    changed_at: int
    record: Prepared


@dataclass(slots=True, kw_only=True)
class JobEntry:
    """Last known state of a job, and when it changed."""

    job: LrmJob
    listed: LrmJob | None
    """As it stood in the listing; None when it was not there any more."""
    changed_at: int
    record: Prepared
    tasks: tuple[str, ...] = ()
    """Its task list as last reported."""
    ended_at: float | None = None
    """Monotonic time at which it was first seen to have ended."""
    polls: int = 0
    """Full listings that have told of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """State of a job that was told to a scheduler and is kept up until the batch system shows it, or for a time."""

    until: float
    """Monotonic time."""
    nodes: tuple[str, ...] = ()
    """Where it starts: one entry for each processor."""
    cancelled: bool = False


def as_ended(job: LrmJob, now: float) -> LrmJob:
    """Return a job that disappeared from listings as an ended one: completed if it ran, else removed."""
    end = EndReason.CANCELLED if job.state in WAITING else job.end
    return replace(job, state=LrmJobState.ENDED, end=end, ends_at=now, hold=None)


def _with_what_was_known(job: LrmJob, before: LrmJob) -> LrmJob:
    """Return a job with fields that its batch system lists only while it waits (Grid Engine: submission time)."""
    began, submitted = job.started_at, job.submitted_at
    if before.submitted_at is not None and (submitted is None or (began is not None and submitted > began)):
        job = replace(job, submitted_at=before.submitted_at)
    if (before.group and not job.group) or (before.account and not job.account):
        job = replace(job, group=job.group or before.group, account=job.account or before.account)
    return job


def _place_in_listing(entry: JobEntry) -> tuple[int, float, int, str]:
    """Sort key of jobs in a full listing: ended, running, then waiting by age."""
    job = entry.job
    part = 0 if entry.ended_at is not None else 1 if job.state in OCCUPYING else 2
    return part, job.submitted_at or 0.0, len(job.id), job.id


def chosen(
    entries: dict[str, Entry], names: Sequence[str] | None, since: int, record: Callable[[Entry], Prepared]
) -> list[Prepared]:
    """Return records changed since a time, of ``names`` or of all; entries are in order of change."""
    if names is not None:
        wanted: Iterator[Entry] = (entries[name] for name in dict.fromkeys(names) if name in entries)
        return [record(entry) for entry in wanted if entry.changed_at >= since]
    found: list[Prepared] = []
    for entry in reversed(entries.values()):
        if entry.changed_at < since:
            break
        found.append(record(entry))
    found.reverse()
    return found


# -- The inventory -------------------------------------------------------------------------------------------

POLLS_NEEDED = 2
"""Full listings of jobs that must have told of an end before it is forgotten."""
SETBACK = "its last start failed"
"""Beginning of what is told of a job that is kept back; a scheduler may start it all the same."""
LONGEST_MEMORY = 20
"""Times the retention after which an end is forgotten even if no scheduler has asked."""


class Inventory:
    """Nodes and jobs of all batch systems that one server serves, with the times of their changes."""

    def __init__(self, words: ReportingRules, *, retention: float) -> None:
        """``retention``: seconds that the end of a job is reported, at least."""
        self.words = words
        self.hosts = HostFormat.PLAIN
        self._retention = retention
        self._names: dict[str, str] = {}
        """Name on the wire by the batch system's own."""
        self.nodes: dict[str, NodeEntry] = {}
        self.jobs: dict[str, JobEntry] = {}
        """Both in the order of their last change, the latest at the end."""
        self._shown: dict[str, LrmJob] = {}
        """The jobs of the latest listing, as they stand there."""
        self.offered: tuple[Host, ...] = ()
        """The nodes on which jobs are offered."""
        self._turns: dict[str, str] = {}
        """The element of each array that may be started next; empty: none."""
        self._promises: dict[str, Promise] = {}
        self.setbacks = Setbacks()
        self.refused: dict[str, str] = {}
        """Jobs that cannot be reported, and why."""
        self.ready = False
        self._steady = 0.0
        """Monotonic time of the last listing."""
        self._stamp = 0
        """The time of the last change as peers are told it: never earlier than one they were told before."""

    # -- looking ------------------------------------------------------------------------------------------------------

    def job(self, id_: str) -> LrmJob | None:
        """Return a known job, ended or not. Jobs recorded by `end_unknown` are not known."""
        entry = self.jobs.get(id_)
        return entry.job if entry and entry.job.user else None

    def used(self, name: str) -> int:
        """Return how many processors of a node are in use, promised ones included."""
        return self.nodes[name].used

    def node_records(self, names: Sequence[str] | None, since: int) -> list[Prepared]:
        """Return the records of these nodes (None: all) that changed at or after ``since``; unknown ones left out."""
        return chosen(self.nodes, names, since, lambda entry: entry.record)

    def job_records(self, ids: Sequence[str] | None, since: int) -> list[Prepared]:
        """Return the records of these jobs (None: all) that changed at or after ``since``; unknown ones are left out.

        Asking for all counts as telling of every end. All jobs come in an order in which a scheduler may take them:
        Maui starts jobs of equal priority as they are listed, and gives the places of ended ones to others.
        """
        if ids is None:
            for entry in reversed(self.jobs.values()):
                if entry.changed_at < since:
                    break
                entry.polls += 1
            if since <= 0:
                return [entry.record for entry in sorted(self.jobs.values(), key=_place_in_listing)]
        return chosen(self.jobs, ids, since, lambda entry: entry.record)

    # -- learning -----------------------------------------------------------------------------------------------------

    def recall(self, jobs: Iterable[LrmJob], now: float) -> None:
        """Add jobs that an earlier server saw running; those missing from the first listing are reported as ended."""
        self._advance(now)
        for job in jobs:
            self._store(str(job.id), job, listed=None)

    def end_unknown(self, id_: str) -> None:
        """Report a job as ended that no listing has and a scheduler believes to exist."""
        job = LrmJob(id=LrmJobId(id_), name="", state=LrmJobState.HELD, user="", processors=1)
        self._store(id_, as_ended(job, float(self._stamp)), listed=None)

    def _advance(self, now: float) -> None:
        """Set the time stamp for changes made now; it never goes back.

        Peers ask for what changed since a time that we told them: when the clock is set back, they miss nothing.
        """
        self._stamp = max(self._stamp, int(now))

    def active(self) -> list[LrmJob]:
        """Return the running jobs."""
        return [entry.job for entry in self.jobs.values() if entry.job.state in OCCUPYING]

    def unreported(self) -> list[LrmJob]:
        """Return the running jobs and those whose end schedulers have not been told for long enough."""
        entries = self.jobs.values()
        over = [entry.job for entry in entries if entry.ended_at is not None and entry.polls < POLLS_NEEDED]
        return [*self.active(), *over]

    def promise(self, id_: str, promise: Promise) -> None:
        """Report a job in a state that the batch system does not show yet; its processors count as used from now on."""
        self._promises[id_] = promise
        shown = self._shown.get(id_)
        if shown is not None and shown.state in WAITING:
            self._tell(id_, shown)
            self._take(promise.nodes, 1)

    def extend(self, id_: str, until: float) -> None:
        """Extend a promise to the time ``until``."""
        if id_ in self._promises:
            self._promises[id_] = replace(self._promises[id_], until=until)

    def withdraw(self, id_: str) -> bool:
        """Drop a promise that was not kept, so that the listed state is reported; return False when there was none."""
        promise = self._promises.pop(id_, None)
        shown = self._shown.get(id_)
        if promise is not None and shown is not None and shown.state in WAITING:
            self._tell(id_, shown)
            self._take(promise.nodes, -1)
        return promise is not None

    def _tell(self, id_: str, shown: LrmJob) -> None:
        told = self._as_told(shown)
        self._store(id_, told, listed=told)

    def _take(self, nodes: Sequence[str], sign: int) -> None:
        for node, count in Counter(nodes).items():
            known = self.nodes.get(self._names.get(node, ""))
            if known is not None:
                self._store_node(known.name, known.node, used=known.used + sign * count, hidden=known.hidden)

    def set_back(self, id_: str, reason: str, *, refused: bool) -> Setback:
        """Record a failed start; the job is reported as held while it is kept back."""
        found = self.setbacks.note(id_, reason, self._steady, refused=refused)
        shown = self._shown.get(id_)
        if shown is not None:
            self._tell(id_, shown)
        return found

    def report_tasks(self, id_: str, tasks: Sequence[str]) -> None:
        """Report the tasks of a running job in the order in which the scheduler gave them."""
        entry = self.jobs.get(id_)
        if entry and tasks and entry.job.state in OCCUPYING and host_counts(tasks) == host_counts(entry.tasks):
            entry.tasks = tuple(tasks)
            entry.record = self._prepared(entry.job, entry.tasks, entry.changed_at)

    def learn(self, listing: Listing, now: float, *, steady: float) -> bool:
        """Update nodes and jobs from a listing; return True when a job appeared, started or ended.

        ``now``: the time of day; ``steady``: the monotonic time, by which is counted how long something is so.
        """
        self._advance(now)
        self._steady = steady
        self._names = node_names((node.name for node in listing.nodes), self._names)
        offered = tuple(Host.of(self._names[node.name], node) for node in listing.nodes)
        moved_hosts, self.offered = offered != self.offered, offered
        self._shown = {str(job.id): job for job in listing.jobs}
        self._keep_promises(listing.jobs)
        self._turns = self._next_elements(listing.jobs) if self.words.one_by_one else {}
        jobs = {str(job.id): self._as_told(job) for job in listing.jobs}
        queues = {queue for node in listing.nodes for queue in node.queues}
        if self.words.dialect is Dialect.WIKI:
            self.words = replace(self.words, classes=len(queues) <= MOST_CLASSES)
        moved = self._learn_jobs(jobs, now)
        if moved_hosts:
            for id_, job in jobs.items():
                if job.state in WAITING:
                    self._store(id_, job, listed=job)
        self._learn_nodes(listing.nodes)
        self.ready = True
        return moved

    def _keep_promises(self, jobs: Iterable[LrmJob]) -> None:
        shown = {str(job.id): job.state for job in jobs}
        for id_, promise in list(self._promises.items()):
            over = shown.get(id_, LrmJobState.ENDED) is LrmJobState.ENDED
            kept = over if promise.cancelled else shown.get(id_) not in WAITING
            if kept or self._steady > promise.until:
                del self._promises[id_]

    def _as_told(self, job: LrmJob) -> LrmJob:
        if job.state not in WAITING:
            self.setbacks.forget(str(job.id))
            return job
        promise = self._promises.get(str(job.id))
        if promise is None:
            if job.array is not None and self._turns.get(job.array, str(job.id)) != str(job.id):
                return replace(job, obstacle="the elements of its array are started one after the other")
            if job.requeues and job.eligible_at is not None and job.eligible_at > self._stamp:
                return replace(job, obstacle=f"it was queued again, and cannot start before {int(job.eligible_at)}")
            setback = self.setbacks.of(str(job.id), self._steady)
            return job if setback is None else replace(job, obstacle=f"{SETBACK}: {setback.reason}")
        if promise.cancelled:
            return replace(job, state=LrmJobState.ENDED, end=EndReason.CANCELLED, hold=None)
        layout = tuple(host_counts(promise.nodes).items())
        return replace(job, state=LrmJobState.STARTING, layout=layout, hold=None)

    def _next_elements(self, jobs: Iterable[LrmJob]) -> dict[str, str]:
        """Return the next startable element of each job array: none while another element is being started."""
        turns: dict[str, str] = {}
        for job in jobs:
            if job.array is None or job.state not in WAITING:
                continue
            promise = self._promises.get(str(job.id))
            if job.state is LrmJobState.QUEUED or (promise is not None and not promise.cancelled):
                turns[job.array] = ""
            elif self.setbacks.of(str(job.id), self._steady) is None:
                turns.setdefault(job.array, str(job.id))
        return turns

    def _learn_jobs(self, jobs: Mapping[str, LrmJob], now: float) -> bool:
        moved = False
        for id_, job in jobs.items():
            known = self.jobs.get(id_)
            if known is None and job.state is LrmJobState.ENDED and self._is_past(job, now):
                continue
            if known is None or known.listed != job:
                moved |= known is None or known.job.state is not job.state
                self._store(id_, job, listed=job)
        for id_, entry in list(self.jobs.items()):
            if id_ not in jobs and entry.ended_at is None:
                moved = True
                self._store(id_, as_ended(entry.job, now), listed=None)
            elif entry.ended_at is not None and self._is_told(entry):
                del self.jobs[id_]
        for id_ in [id_ for id_ in self.refused if id_ not in jobs]:
            del self.refused[id_]
        return moved

    def _is_past(self, job: LrmJob, now: float) -> bool:
        return job.ends_at is not None and job.ends_at + self._retention < now

    def _is_told(self, entry: JobEntry) -> bool:
        age = 0.0 if entry.ended_at is None else self._steady - entry.ended_at
        return age > self._retention and (entry.polls >= POLLS_NEEDED or age > LONGEST_MEMORY * self._retention)

    def _store(self, id_: str, job: LrmJob, *, listed: LrmJob | None) -> None:
        known = self.jobs.pop(id_, None)
        before = known.tasks if known else ()
        if known and job.state is LrmJobState.ENDING and not job.layout:
            job = replace(job, layout=known.job.layout)
        if known and known.job.user == job.user:
            job = _with_what_was_known(job, known.job)
        if known and job.state is LrmJobState.UNKNOWN:
            job = replace(job, state=known.job.state, layout=known.job.layout, hold=known.job.hold)
        tasks = next_task_list(before, self._task_counts(job)) if job.state in OCCUPYING else before
        try:
            check_id(id_)
            record = self._prepared(job, tasks, self._stamp)
        except WikiError as error:
            self.refused[id_] = error.message
            return
        over = job.state is LrmJobState.ENDED
        ended_at = (known.ended_at if known and known.ended_at is not None else self._steady) if over else None
        polls = known.polls if known and known.ended_at is not None and over else 0
        self.jobs[id_] = JobEntry(
            job=job, listed=listed, changed_at=self._stamp, record=record, tasks=tasks, ended_at=ended_at, polls=polls
        )

    def _task_counts(self, job: LrmJob) -> dict[str, int]:
        each = job.processors_per_task
        return {self._names.get(node) or wire_name(node): max(1, processors // each) for node, processors in job.layout}

    def _prepared(self, job: LrmJob, tasks: tuple[str, ...], now: int) -> Prepared:
        record = job_record(job, hosts=self.offered, tasks=tasks, words=self.words, changed_at=now)
        full = build_job(record, self.words.dialect, hosts=self.hosts)
        brief = build_job(record, self.words.dialect, hosts=self.hosts, brief=True)
        return Prepared(full=full, brief=brief, finished=job.state is LrmJobState.ENDED)

    def _learn_nodes(self, nodes: Sequence[Node]) -> None:
        counted: dict[str, int] = {}
        for entry in self.jobs.values():
            if entry.job.state in OCCUPYING and entry.job.state is not LrmJobState.SUSPENDED:
                for where, processors in entry.job.layout:
                    counted[where] = counted.get(where, 0) + processors
        for node in nodes:
            visible = counted.get(node.name, 0)
            used = max(node.processors_used, visible)
            self._store_node(self._names[node.name], node, used=used, hidden=used - visible)
        here = {node.name for node in nodes}
        for name, known in list(self.nodes.items()):
            if known.node.name not in here:
                gone = replace(known.node, state=NodeState.DOWN, reason="no longer listed", load=None)
                self._store_node(name, gone, used=known.used, hidden=0)

    def _store_node(self, name: str, node: Node, *, used: int, hidden: int) -> None:
        known = self.nodes.get(name)
        if known and known.used == used and known.node == node:
            known.hidden = hidden
            return
        # A load that moves is no change that anybody asks for.
        quiet = known is not None and known.used == used and replace(known.node, load=node.load) == node
        changed_at = known.changed_at if known and quiet else self._stamp
        record = node_record(name, node, used=used, hidden=hidden, words=self.words, changed_at=changed_at)
        full = build_node(record, self.words.dialect)
        brief = build_node(record, self.words.dialect, brief=True)
        entry = NodeEntry(
            name=name,
            node=node,
            used=used,
            hidden=hidden,
            changed_at=changed_at,
            record=Prepared(full=full, brief=brief),
        )
        if not quiet:
            self.nodes.pop(name, None)
        self.nodes[name] = entry

    def set_hosts(self, hosts: HostFormat, now: float) -> None:
        """Set the form in which host lists are written from now on (WIKI2)."""
        self.hosts = hosts
        self._advance(now)
        for entry in self.jobs.values():
            entry.record = self._prepared(entry.job, entry.tasks, self._stamp)
