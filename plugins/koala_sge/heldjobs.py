# SPDX-License-Identifier: Apache-2.0
"""Requests to Grid Engine, and its held jobs for an outside scheduler: their wishes, contexts and holds.

The listing of qstat tells neither where a held job may run nor whether its own user holds it.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError, LrmUnavailableError
from koala_adapter.lrm.drmaa.complaints import FailureKind, kind_of_text
from koala_adapter.model import ACTIVE, LrmJob, LrmJobId, LrmJobState
from koala_sge.listing import has_access_lists, listed_jobs, number_of, parse_limits, parse_xml, seconds_of, text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lxml.etree import _Element

    from koala_sge.listing import GridEngineCommands


# -- All that is told of single jobs -------------------------------------------------------------------------
# By ``qstat -xml -j``: contexts, reasons of error states, groups, accounts. The plain text of ``qstat -j`` is not read:
# a resource with a line break in its value would begin a record there.

USER_HOLD = "koala_user_hold"
"""Word in the context of a job, set by conf/sge_jsv.sh for one that its user held, too."""
ROOT = "detailed_job_info"
NO_ACCOUNT = "sge"
"""Account of jobs that were given none (qsub(1), -A)."""

LATEST = 10**11
"""Seconds since the epoch beyond which a number must be milliseconds."""

_NONE_KNOWN = re.compile(rb"(?:<\?xml[^>]*\?>)?\s*<unknown_jobs\b")
"""Beginning of the answer when none of the jobs is known; some releases print the rest of it as no XML."""
_ORIGIN = re.compile(r"^\S+ \S+ \[\d+:\d+\]: (?:error: )?")
"""Date, time, and [user:process] of the shepherd that complained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedJob:
    """Details of one job or array by ``qstat -j``."""

    user_hold: bool = False
    """Its user holds it, too."""
    error_reasons: Mapping[int, str] = field(default_factory=dict)
    """Why tasks are in error state, by their numbers; a job that is no array has task 1."""
    group: str = ""
    account: str = ""
    """The account of ``qsub -A``, or else the project of ``qsub -P``."""
    submitted_at: float | None = None


def parse_explained(raw: bytes) -> dict[str, ExplainedJob]:
    """Return what is told of each job that is known, by its number. Raises LrmUnavailableError."""
    if _NONE_KNOWN.match(raw):
        return {}
    root = parse_xml(raw, root=ROOT, source="qstat -j")
    return {
        number: _explained(element)
        for element in root.iterfind("djob_info/element")
        if (number := text_of(element, "JB_job_number"))
    }


def _explained(element: _Element) -> ExplainedJob:
    account = text_of(element, "JB_account")
    return ExplainedJob(
        user_hold=any(text_of(word, "VA_variable") == USER_HOLD for word in element.iterfind("JB_context/*")),
        error_reasons=_error_reasons(element),
        group=text_of(element, "JB_group"),
        account=account if account != NO_ACCOUNT else text_of(element, "JB_project"),
        submitted_at=_moment(text_of(element, "JB_submission_time")),
    )


def _moment(text: str) -> float | None:
    """Return seconds since the epoch; heirs of Grid Engine print milliseconds."""
    number = number_of(text)
    return (number / 1000 if number > LATEST else float(number)) or None


def _error_reasons(element: _Element) -> dict[int, str]:
    reasons: dict[int, str] = {}
    for task in element.iterfind("JB_ja_tasks/*"):
        told = [" ".join(_ORIGIN.sub("", text.text or "").split()) for text in task.iterfind(".//QIM_message")]
        if told:
            reasons[number_of(text_of(task, "JAT_task_number"), 1)] = told[0]
    return reasons


# -- What jobs ask of queue instances ------------------------------------------------------------------------
# And which instances have it, as Grid Engine itself says.

WALLTIMES = frozenset({"h_rt", "s_rt"})
_INSTANCE = re.compile(r"[^\s@]+@\S+")
ANY_QUEUE = "*"
PLAIN_QUEUE = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
"""The name of one cluster queue, and no pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The hard requests of one job, as qselect takes them."""

    user: str = ""
    resources: tuple[tuple[str, str], ...] = ()
    queues: tuple[str, ...] = ()
    """Names or patterns of queues, of which any will do; empty: all."""
    master_queues: tuple[str, ...] = ()
    environment: str = ""
    """Of a parallel job."""
    walltime: int | None = None

    @property
    def selected(self) -> Wishes:
        """Return the requests without the walltime, as qselect is asked with them."""
        kept = tuple((name, value) for name, value in self.resources if name not in WALLTIMES)
        return replace(self, resources=kept, walltime=None)

    @property
    def in_words(self) -> str:
        """Return the requests as qsub options."""
        resources = ",".join(f"{name}={value}" for name, value in self.resources)
        given = (
            ("-l", resources),
            ("-q", ",".join(self.queues)),
            ("-masterq", ",".join(self.master_queues)),
            ("-pe", self.environment),
        )
        return " ".join(f"{option} {value}" for option, value in given if value)


def parse_wishes(raw: bytes) -> dict[str, Wishes]:
    """Return what each job of ``qstat -xml -r`` asks for, by its number. Raises LrmUnavailableError."""
    return {text_of(element, "JB_job_number"): _wishes(element) for element in listed_jobs(raw)}


def _wishes(element: _Element) -> Wishes:
    resources = {request.get("name") or "": _text(request) for request in element.iterfind("hard_request")}
    environment = element.find("requested_pe")
    return Wishes(
        walltime=seconds_of(resources.get("h_rt", "")),
        user=text_of(element, "JB_owner"),
        resources=tuple(sorted(resources.items())),
        queues=_texts(element, "hard_req_queue"),
        master_queues=_texts(element, "master_hard_req_queue"),
        environment="" if environment is None else environment.get("name") or "",
    )


def _texts(element: _Element, tag: str) -> tuple[str, ...]:
    return tuple(sorted(filter(None, map(_text, element.iterfind(tag)))))


def _text(element: _Element) -> str:
    return (element.text or "").strip()


def parse_instances(text: str) -> frozenset[str]:
    """Return the queue instances that qselect printed."""
    return frozenset(line.strip() for line in text.splitlines() if _INSTANCE.fullmatch(line.strip()))


def nodes_of(instances: Iterable[str], *, by_queue: bool) -> frozenset[str]:
    """Return the nodes on which queue instances are."""
    return frozenset(name if by_queue else name.partition("@")[2] for name in instances)


def instances_on(node: str, instances: Collection[str], *, by_queue: bool) -> tuple[str, ...]:
    """Return the instances of one node."""
    return tuple(sorted(name for name in instances if node in nodes_of([name], by_queue=by_queue)))


# -- Command lines -------------------------------------------------------------------------------------------

LARGEST_EXPLANATION = 200
"""Jobs asked for in one request for all about them."""

UNFINISHED = ("-s", "prs")
"""Jobs that wait, run or are suspended, whatever a file of defaults asks for."""
SINGLY = ("-g", "d")
"""Each task by itself: in place of another ``-g`` in a file of defaults, such as one that lists queues only."""

LIST_SLOTS = ("qstat", "-xml", "-g", "t", "-r", *UNFINISHED, "-u", "*")
"""All jobs of all users, with a row for each slot of a parallel job."""
LIST_QUEUES = ("qstat", "-xml", "-g", "c")
"""All cluster queues with their slots."""
SHOW_QUEUES = ("qconf", "-sq", "*")
"""Configuration of all cluster queues."""
SHOW_CONFIGURATION = ("qconf", "-sconf")
SHOW_VERSION = ("qstat", "-help")
"""Usage, whose first line is the version; does not ask the qmaster."""
TRIGGER_SCHEDULER = ("qconf", "-tsm")
"""Run the scheduler now; a refusal is printed with exit code 0 (seen with 8.1.9)."""


def list_nodes(complexes: Sequence[str] = ()) -> tuple[str, ...]:
    """All hosts with their queues, the slots that the hosts have left, and their values of these complexes."""
    return ("qhost", "-xml", "-q", "-F", ",".join(("slots", *complexes)))


def list_jobs(*, singly: bool = False) -> tuple[str, ...]:
    """All jobs of all users, with whole names and requested walltimes. ``singly``: each waiting task in a row."""
    return ("qstat", "-xml", "-r", *UNFINISHED, *(SINGLY if singly else ()), "-u", "*")


def list_held(user: str, kind: str, *, singly: bool = False) -> tuple[str, ...]:
    """Return the request for a user's jobs, or all users' (``*``), in hold of a kind.

    It is ``u`` of the user, ``o`` of an operator, ``s`` of the system (a manager).
    """
    return ("qstat", "-xml", *(SINGLY if singly else ()), "-u", user, "-s", f"h{kind}")


def explain_jobs(numbers: Iterable[str]) -> tuple[str, ...]:
    """All about these jobs, with their contexts and the reasons of error states."""
    return ("qstat", "-xml", "-j", ",".join(numbers))


def verify(number: str) -> tuple[str, ...]:
    """Ask whether a job could run if nothing else did (qalter(1), -w); nothing is changed."""
    return ("qalter", "-w", "v", number)


_VERDICT = re.compile(r"^verification: no suitable queues", re.MULTILINE)
_OF_JOB = re.compile(r"^Job [0-9]+ (?:\([^\n]*?\) )?", re.ASCII)


def why_never(said: str) -> str:
    """Return why a job would never run as things are, of what `verify` printed; empty when it would, or is gone."""
    if _VERDICT.search(said) is None:
        return ""
    first = said.partition("\n")[0].strip()
    return "no suitable queues" if first.startswith("verification:") else _OF_JOB.sub("", first)


def select_instances(wishes: Wishes, queues: Sequence[str]) -> tuple[str, ...]:
    """Queue instances, in these queues, that have what a job asks for; whether they are free now does not matter."""
    given = (
        ("-l", ",".join(f"{name}={value}" for name, value in wishes.resources)),
        ("-pe", wishes.environment),
        ("-q", ",".join(queues)),
        ("-U", wishes.user),
    )
    return ("qselect", *(word for pair in given if pair[1] for word in pair))


def pin(number: str, queues: Sequence[str]) -> tuple[str, ...]:
    """Let a job start in these queues or queue instances only; none: in any. Works on whole jobs, not on tasks."""
    return ("qalter", "-q", ",".join(queues) or ANY_QUEUE, number)


def job_number(id_: LrmJobId) -> str:
    """Return the job of a task id such as ``123.4``. Raises LrmNotFoundError for what is no id of Grid Engine."""
    number = id_.partition(".")[0]
    if not number.isdigit():
        message = f"{id_!r} is no job id of Grid Engine"
        raise LrmNotFoundError(message, hint="ids are numbers, tasks of an array are NUMBER.TASK")
    return number


# -- Holds of a submission verifier and of users -------------------------------------------------------------
# Grid Engine has one bit for the hold of a submission verifier and for that of the user; the context tells them apart.


def possibly_hook_holds(jobs: Iterable[LrmJob], in_user_hold: Collection[str]) -> list[LrmJob]:
    """Return jobs with the hold of a verifier: waiting ones and those that would wait again."""
    return [
        job
        for job in jobs
        if (job.state is LrmJobState.HELD and job.id in in_user_hold) or (job.state in ACTIVE and "h" in job.raw_state)
    ]


def without_users(jobs: Iterable[LrmJob], explained: Mapping[str, ExplainedJob]) -> tuple[LrmJob, ...]:
    """Return jobs without those that their users hold, or may hold.

    ``explained``: what is known, by the numbers of jobs.
    """
    free = {number for number, job in explained.items() if not job.user_hold}
    return tuple(job for job in jobs if job.id.partition(".")[0] in free)


# -- What is known of the held jobs --------------------------------------------------------------------------
# Grid Engine itself is asked which queue instances have what a job asks for (qselect), once for all jobs that ask for
# the same; and once for each job what stands in its context.

SELECTIONS_KEPT = 60.0
"""Seconds for which it is believed which queue instances have something: load values are among what is asked for."""
OLD_SELECTIONS = 2
"""Asked for again with one listing; the others follow with the next ones."""
SELECTIONS_AT_ONCE = 8
"""Requests for selections with one listing."""
REQUESTS_FOR_ALL = 2 + SELECTIONS_AT_ONCE
"""Requests that :meth:`HeldJobs.described` makes at most: explanations, queues, selections."""
SELECTING = 1.0
"""Seconds after which a listing waits for no further ones."""
USER_HOLDS = "its user holds it"
NOT_ASKED_YET = "it is being asked where it may run"


class HeldJobs:
    """Cached knowledge of a cell's held jobs."""

    def __init__(self, commands: GridEngineCommands, *, by_queue: bool) -> None:
        """``by_queue``: nodes are queue instances, not hosts."""
        self._commands = commands
        self._by_queue = by_queue
        self._explained: dict[str, ExplainedJob] = {}
        """What is told of each job, by its number."""
        self._asked_in_hold: set[str] = set()
        """Numbers of the jobs of which that was told while they were in hold."""
        self._wishes: Mapping[str, Wishes] = {}
        """By job number."""
        self._selected: dict[Wishes, tuple[float, frozenset[str]]] = {}
        """When it was asked which queue instances have what is asked for, and which."""
        self._limits: Mapping[str, int | None] = {}
        """Walltimes of the queues."""
        self._of_users = False
        """There are queues that are closed to some users."""
        self._queues_asked_at: float | None = None

    async def described(self, listing: bytes, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Return jobs with the details known of them; held ones with the nodes on which they may run.

        What is not told yet is asked with the next listings. Raises LrmError.
        """
        held = {job_number(job.id) for job in jobs if job.state is LrmJobState.HELD}
        await self._ask_explanations({job_number(job.id) for job in jobs}, held)
        told = [self._told(job) for job in jobs]
        if not held:
            self._wishes = {}
            return told
        wishes = {number: wish for number, wish in parse_wishes(listing).items() if number in held}
        await self._ask_queues()
        self._wishes = {number: wish if self._of_users else replace(wish, user="") for number, wish in wishes.items()}
        await self._ask_selections(tuple(dict.fromkeys([Wishes(), *(wish.selected for wish in self._wishes.values())])))
        return [self._described(job) if job.state is LrmJobState.HELD else job for job in told]

    def _told(self, job: LrmJob) -> LrmJob:
        told = self._explained.get(job_number(job.id))
        if told is None:
            return job
        # The listing of a running job has its start in place of its submission.
        submitted = told.submitted_at or job.submitted_at
        return replace(job, group=told.group, account=told.account, submitted_at=submitted)

    def queues(self, job: LrmJobId) -> tuple[str, ...] | None:
        """Return the queues that a held job asks for; empty: any, None: unknown."""
        wishes = self._wishes.get(job_number(job))
        return None if wishes is None else wishes.queues

    def instances(self, job: LrmJobId, node: str) -> tuple[str, ...] | None:
        """Return the queue instances of a node that a job may have; None when that is not known."""
        found = self._instances(job_number(job))
        return None if found is None else instances_on(node, found, by_queue=self._by_queue)

    async def _ask_explanations(self, numbers: set[str], held: set[str]) -> None:
        self._explained = {number: known for number, known in self._explained.items() if number in numbers}
        # A hold of its user may be taken back; that of a job that waits again was not asked for.
        self._asked_in_hold &= held
        first = {number for number in held if number not in self._asked_in_hold or self._explained[number].user_hold}
        others = numbers - self._explained.keys() - first
        asked = [*sorted(first, key=int), *sorted(others, key=int)][:LARGEST_EXPLANATION]
        if not asked:
            return
        try:
            explained = parse_explained(await self._commands.document(explain_jobs(asked)))
        except LrmUnavailableError:
            # It is asked again with the next listing; until then those in hold are not started.
            return
        self._explained.update(explained)
        self._asked_in_hold |= explained.keys() & held

    async def _ask_queues(self) -> None:
        now = time.monotonic()
        if self._queues_asked_at is None or now > self._queues_asked_at + SELECTIONS_KEPT:
            shown = await self._commands.run(SHOW_QUEUES)
            if not shown.stderr.strip():
                self._limits = parse_limits(shown.text, names=("h_rt",))
                self._of_users = has_access_lists(shown.text)
                self._queues_asked_at = now

    async def _ask_selections(self, wanted: Sequence[Wishes]) -> None:
        now = time.monotonic()
        self._selected = {wish: known for wish, known in self._selected.items() if wish in wanted}
        times = {wish: at for wish, (at, _) in self._selected.items()}
        new = [wish for wish in wanted if wish not in times]
        old = sorted((wish for wish, at in times.items() if now > at + SELECTIONS_KEPT), key=lambda wish: times[wish])
        left = SELECTIONS_AT_ONCE
        for wish in (*new, *old[:OLD_SELECTIONS]):
            left -= 2 if wish.master_queues else 1
            if left < 0:
                break
            found = await self._selection(wish)
            if found is not None:
                self._selected[wish] = now, found
            if time.monotonic() > now + SELECTING:
                break

    async def _selection(self, wishes: Wishes) -> frozenset[str] | None:
        """Return the queue instances that Grid Engine selects for requests; None when it does not answer."""
        found: list[frozenset[str]] = []
        # The first task of a parallel job is on the same node as all others: a start is on one node.
        for queues in (wishes.queues, wishes.master_queues) if wishes.master_queues else (wishes.queues,):
            result = await self._commands.run(select_instances(wishes, queues))
            # What the cell does not know, nothing has.
            if result.stderr.strip() and kind_of_text(result.complaint) is FailureKind.UNAVAILABLE:
                return None
            found.append(parse_instances(result.text))
        return found[0].intersection(*found)

    def _instances(self, number: str) -> frozenset[str] | None:
        """Return the queue instances that a job may have; None when that is not known."""
        wishes = self._wishes.get(number)
        if wishes is None or wishes.selected not in self._selected:
            return None
        found = self._selected[wishes.selected][1]
        limits = {name: self._limits.get(name.partition("@")[0]) for name in found}
        return frozenset(name for name, limit in limits.items() if limit is None or (wishes.walltime or 0) <= limit)

    def _described(self, job: LrmJob) -> LrmJob:
        number = job_number(job.id)
        wishes, found = self._wishes.get(number, Wishes()), self._instances(number)
        known = self._explained.get(number) if number in self._asked_in_hold else None
        plain = len(wishes.queues) == 1 and PLAIN_QUEUE.fullmatch(wishes.queues[0])
        job = replace(job, queue=wishes.queues[0] if plain else "")
        if known is not None and known.user_hold:
            return replace(job, obstacle=USER_HOLDS)
        if known is None or found is None:
            return replace(job, obstacle=NOT_ASKED_YET)
        if not found:
            return replace(job, obstacle=f"no queue instance has what it asks for ({wishes.in_words})")
        everywhere = found == self._selected.get(Wishes(), (0.0, frozenset()))[1]
        possible = None if everywhere else tuple(sorted(nodes_of(found, by_queue=self._by_queue)))
        return replace(job, possible_nodes=possible)
