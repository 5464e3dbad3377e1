# SPDX-License-Identifier: Apache-2.0
"""What Grid Engine lists, as values: hosts, queues, jobs; and running its commands.

Reading comes first, from times and XML up to jobs; it does no I/O. The commands come last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from lxml import etree

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm.commands import CommandResult, CommandRunner, CommandSystem, ComplaintTable, complaints, utc
from koala_adapter.lrm.drmaa.complaints import (
    NOT_FOUND_PHRASES,
    REJECTED_PHRASES,
    UNAVAILABLE_PHRASES,
    FailureKind,
    kind_of_text,
)
from koala_adapter.lrm.drmaa.libraries import error_of
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeGpus, NodeState, Queue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lxml.etree import _Element

    from koala_sge.settings import SgeSettings


# -- Times and sizes -----------------------------------------------------------------------------------------
# As Grid Engine writes them (sge_types(1)).

_UNITS = {"": 1 / 2**20, "k": 1000 / 2**20, "K": 1 / 2**10, "m": 1e6 / 2**20, "M": 1.0}
_UNITS |= {"g": 1e9 / 2**20, "G": 2.0**10, "t": 1e12 / 2**20, "T": 2.0**20}


def seconds_of(text: str) -> int | None:
    """Return the seconds of ``3600``, ``1:00:00``, ``:5:`` or ``3600.000``; None for INFINITY and what is no time."""
    parts = text.strip().split(":")
    try:
        if len(parts) == 1:
            return int(float(parts[0]))
        hours, minutes, seconds = (int(part or 0) for part in parts)
    except (ValueError, OverflowError):
        return None
    return hours * 3600 + minutes * 60 + seconds


def mebibytes_of(text: str) -> int | None:
    """Return the MiB of ``23.5G``, ``476.6M`` or ``1024``; None for ``-`` and what is no size."""
    text = text.strip()
    number, unit = (text[:-1], text[-1]) if text and text[-1].isalpha() else (text, "")
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        return None


# -- XML -----------------------------------------------------------------------------------------------------
# No entities, no network, a bound on the size, and no exception but our own.

LARGEST_DOCUMENT = 256 * 1024 * 1024
"""Bytes; 100,000 jobs in one listing are about 60 MiB."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML 1.0 does not allow, but that Grid Engine prints where users put them."""
_REPLACEMENT = "\ufffd"


def parse_xml(raw: bytes, *, root: str, source: str) -> _Element:
    r"""Return the root element of a document, which must be called ``root``.

    Grid Engine prints what users give it, such as requested resources and names of jobs to wait for, byte by byte.
    Bytes that are no UTF-8 become escapes such as ``\xff``, so that they change only the field in which they stand.

    Raises LrmUnavailableError when the document is too large, is not well formed, or is another one; then nothing is
    known.
    """
    hint = "the listing is asked for again; if this stays, report it with what the command prints"
    if len(raw) > LARGEST_DOCUMENT:
        message = f"{source} printed {len(raw)} bytes, more than the {LARGEST_DOCUMENT} that are read"
        raise LrmUnavailableError(message, hint=hint)
    parser = etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=True
    )
    text = _FORBIDDEN.sub(_REPLACEMENT, raw.decode("utf-8", "backslashreplace"))
    try:
        element = etree.fromstring(text.encode(), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        message = f"{source} printed no well-formed XML: {error}"
        raise LrmUnavailableError(message, hint=hint) from None
    if element.getroottree().docinfo.doctype:
        message = f"{source} printed a document type, which Grid Engine never does"
        raise LrmUnavailableError(message, hint=hint)
    if element.tag != root:
        message = f"{source} printed <{element.tag!s}>, not <{root}>"
        raise LrmUnavailableError(message, hint=hint)
    return element


def text_of(element: _Element, tag: str) -> str:
    """Return the stripped text of the first child of that name; empty when there is none."""
    return (element.findtext(tag) or "").strip()


def number_of(text: str, default: int = 0) -> int:
    """Return a whole number that may be written as ``3`` or ``3.000000``; ``default`` for anything else."""
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return default


# -- States of jobs and queues -------------------------------------------------------------------------------
# Grid Engine's letters (qstat(1)) in our words.

JOB_LETTERS = frozenset("dEhrRsStTNPwqz")

HOLD = frozenset("h")
WAITING = frozenset("q")

_TELLING = (
    (frozenset("z"), LrmJobState.ENDED),
    (frozenset("d"), LrmJobState.ENDING),
    (frozenset("E"), LrmJobState.HELD),
    (frozenset("sSTNP"), LrmJobState.SUSPENDED),
    (HOLD, LrmJobState.HELD),
    (WAITING, LrmJobState.QUEUED),
    (frozenset("t"), LrmJobState.STARTING),
    (frozenset("r"), LrmJobState.RUNNING),
)
"""The first row of which a letter is present decides."""

CLOSED_BY_ADMIN = frozenset("dDsSC")
"""Queue is disabled or suspended, by an operator, by its calendar or by another queue."""

CLOSED_BY_LOAD = frozenset("aA")
"""Queue is over a load or suspend threshold: it takes no jobs until the load falls."""

BROKEN = frozenset("uEoc")
"""Host not heard of, error state, orphaned, ambiguous configuration."""


def job_state(letters: str) -> LrmJobState:
    """Return the state of a job from its letters, such as ``hqw`` or ``dr``; UNKNOWN for letters that are not known.

    An error state (``Eqw``) is HELD: like a held job it does not start until its error state is cleared.
    """
    seen = set(letters)
    if not seen <= JOB_LETTERS:
        return LrmJobState.UNKNOWN
    for telling, state in _TELLING:
        # A hold on a running job (hr) counts when it is started again, not now.
        if seen & telling and not (state is LrmJobState.HELD and telling == HOLD and not seen & WAITING):
            return state
    return LrmJobState.UNKNOWN


def job_reason(letters: str) -> str:
    """Return why a job waits or ends, as far as its letters tell."""
    if "E" in letters:
        return f"error state {letters}: Grid Engine could not start it and will not try again"
    if "h" in letters and "q" in letters:
        return "held"
    return "deleted from Grid Engine" if "d" in letters else ""


def queue_instance_state(letters: str) -> NodeState:
    """Return what a queue instance can be used for, from the letters of its state (empty: all is well)."""
    seen = set(letters)
    if seen & BROKEN:
        return NodeState.DOWN
    if seen & (CLOSED_BY_ADMIN | CLOSED_BY_LOAD):
        return NodeState.DRAINING
    # P (preempted) and whatever a later version may add.
    return NodeState.UNKNOWN if seen else NodeState.UP


# -- Nodes ---------------------------------------------------------------------------------------------------
# From ``qhost -xml -q -F slots``. What counts are slots, because Grid Engine gives out nothing else: those of queue
# instances that run batch jobs, and, where the admin set them, those of the host as a whole.

GLOBAL = "global"
"""Pseudo host that holds settings for all."""

BATCH = "B"

_USABILITY = (NodeState.UP, NodeState.DRAINING, NodeState.UNKNOWN, NodeState.DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInstance:
    """A queue on a host."""

    queue: str
    kind: str
    """Letters: B batch, I interactive, P parallel."""
    slots: int
    slots_used: int
    slots_reserved: int
    letters: str

    @property
    def state(self) -> NodeState:
        """State of the queue instance: what it can be used for."""
        return queue_instance_state(self.letters)


SLOTS = "slots"
UNTOLD = ("gpus", "gpu_kind")
"""GPUs are complexes that each site names in its own way, and qhost tells what is left of them alone."""


def parse_left(raw: bytes, *, beside: Collection[str]) -> dict[str, tuple[str, int]]:
    """Return which complex hosts count, beside slots and those named, and how many they have left, by their names.

    Raises LrmUnavailableError.
    """
    return {
        host.get("name") or "": (value.get("name") or "", max(0, number_of((value.text or "").strip())))
        for host in parse_xml(raw, root="qhost", source="qhost").iterfind("host")
        for value in host.iterfind("resourcevalue")
        if value.get("name") not in {SLOTS, *beside} and (value.get("dominance") or "").startswith("h")
    }


def parse_nodes(
    raw: bytes,
    *,
    queue: str | None = None,
    by_queue: bool = False,
    features: Collection[str] = (),
    untold: tuple[str, ...] = (),
    gpus: Mapping[str, NodeGpus | None] | None = None,
) -> tuple[Node, ...]:
    """Return the nodes that run batch jobs, in ``queue`` if one is given. Raises LrmUnavailableError.

    ``by_queue``: each queue instance is a node, called QUEUE@HOST. ``features``: complexes that tell what a host is.
    ``untold``: as in Node, beside GPUs. ``gpus``: those of hosts that have any, or None for a host of which it is not
    known; None: of no host is it known.
    """
    root = parse_xml(raw, root="qhost", source="qhost")
    nodes = []
    for host in root.iterfind("host"):
        name = host.get("name") or ""
        if name == GLOBAL:
            continue
        found = None if gpus is None else gpus.get(name)
        silent = UNTOLD if gpus is None or (found is None and name in gpus) else ("gpu_kind",)
        told: dict[str, Any] = {"untold": (*silent, *untold), "gpus": () if found is None else (found,)}
        instances = _instances(host, queue)
        if by_queue:
            nodes += [replace(_node(host, (one,), features), name=f"{one.queue}@{name}", **told) for one in instances]
        elif instances:
            nodes.append(replace(_node(host, instances, features), **told))
    return tuple(nodes)


def _instances(host: _Element, queue: str | None) -> tuple[QueueInstance, ...]:
    return tuple(
        instance
        for instance in map(_instance, host.iterfind("queue"))
        if BATCH in instance.kind and queue in {None, instance.queue}
    )


def _node(host: _Element, instances: Sequence[QueueInstance], features: Collection[str]) -> Node:
    # A node is as usable as its most usable queue, and then only that one's slots count.
    state = min((instance.state for instance in instances), key=_USABILITY.index)
    usable = [instance for instance in instances if instance.state is state]
    processors, used = _slots(usable, _host_slots(host))
    values = {value.get("name"): (value.text or "").strip() for value in host.iterfind("hostvalue")}
    return Node(
        name=host.get("name") or "",
        state=state,
        processors=processors,
        processors_used=used,
        memory_mib=mebibytes_of(values.get("mem_total", "")),
        load=_load(values.get("load_avg", "")),
        features=tuple(name for name in _true_of(host) if name in features),
        queues=tuple(instance.queue for instance in instances),
        architecture=values.get("arch_string", ""),
        raw_state=",".join(dict.fromkeys(instance.letters for instance in instances if instance.letters)),
    )


def _true_of(host: _Element) -> Iterator[str]:
    """Yield the complexes of a host that are not 0: true, of those that say yes or no."""
    for value in host.iterfind("resourcevalue"):
        if number_of((value.text or "").strip()):
            yield value.get("name") or ""


def _slots(instances: Sequence[QueueInstance], host_free: int | None) -> tuple[int, int]:
    processors = sum(instance.slots for instance in instances)
    used = sum(instance.slots_used + instance.slots_reserved for instance in instances)
    if host_free is not None:
        # Jobs in other queues take from the host's slots too.
        used = max(used, processors - host_free)
    return processors, min(processors, used)


def _instance(element: _Element) -> QueueInstance:
    values = {value.get("name"): (value.text or "").strip() for value in element.iterfind("queuevalue")}
    return QueueInstance(
        queue=element.get("name") or "",
        kind=values.get("qtype_string", ""),
        slots=number_of(values.get("slots", "")),
        slots_used=number_of(values.get("slots_used", "")),
        slots_reserved=number_of(values.get("slots_resv", "")),
        letters=values.get("state_string", ""),
    )


def _host_slots(host: _Element) -> int | None:
    """Return the slots that the host as a whole has left; None when its admin set no such limit."""
    for value in host.iterfind("resourcevalue"):
        if value.get("name") == "slots" and (value.get("dominance") or "").startswith(("h", "g")):
            return max(0, number_of((value.text or "").strip()))
    return None


def _load(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# -- Queues --------------------------------------------------------------------------------------------------
# Cluster queues from ``qstat -xml -g c``, and their walltime limits from ``qconf -sq '*'``.

LIMITS = ("s_rt", "h_rt")
"""Soft and hard limit of the run time (queue_conf(5)); the soft one already ends a job that does not catch SIGUSR1."""

ACCESS_LISTS = frozenset({"user_lists", "xuser_lists"})

_OVERRIDE = re.compile(r"\[[^=\]]+=([^\]]*)\]")


def parse_queues(raw: bytes, limits: Mapping[str, int | None], *, default: str | None) -> tuple[Queue, ...]:
    """Return cluster queues; ``limits`` as from :func:`parse_limits`. Raises LrmUnavailableError."""
    root = parse_xml(raw, root="job_info", source="qstat -g c")
    summaries = list(root.iterfind("cluster_queue_summary"))
    names = [text_of(summary, "name") for summary in summaries]
    preferred = default or (names[0] if len(names) == 1 else None)
    queues = []
    for name, summary in zip(names, summaries, strict=True):
        total, closed = (number_of(text_of(summary, tag)) for tag in ("total", "manual_intervention"))
        queues.append(
            Queue(
                name=name,
                up=total > closed,
                processors=total,
                walltime_limit=limits.get(name),
                default=name == preferred,
            )
        )
    return tuple(queues)


def parse_limits(text: str, *, names: Collection[str] = LIMITS) -> dict[str, int | None]:
    """Return the walltime limit of each queue in seconds; None where there is none. ``names`` of those that count.

    Where hosts differ it is the longest: a job within it can run somewhere.
    """
    limits: dict[str, int | None] = {}
    name = ""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, value = line.strip().partition(" ")
        if word == "qname":
            name = value.strip()
            limits[name] = None
        elif word in names and name:
            limit, known = _longest(value), limits[name]
            if limit is not None:
                limits[name] = limit if known is None else min(known, limit)
    return limits


def _longest(value: str) -> int | None:
    common = value.strip().partition(",")[0]
    values = [seconds_of(text) for text in (common, *_OVERRIDE.findall(value))]
    return None if None in values else max((limit for limit in values if limit is not None), default=None)


def has_access_lists(text: str) -> bool:
    """Tell whether any queue, of ``qconf -sq '*'``, may be used by some users only."""
    lines = (line.split(None, 1) for line in text.replace("\\\n", " ").splitlines())
    return any(len(words) > 1 and words[0] in ACCESS_LISTS and words[1].strip() != "NONE" for words in lines)


# -- Jobs ----------------------------------------------------------------------------------------------------
# From ``qstat -xml -r -u '*'``.

LONGEST_EXPANSION = 10_000
"""Waiting tasks of one array that are listed singly; what a user submits beyond that is one entry for all."""

_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?")


def parse_jobs(raw: bytes, *, by_queue: bool = False, gpu: str = "") -> tuple[LrmJob, ...]:
    """Return jobs, array tasks singly. Raises LrmUnavailableError.

    ``gpu``: the complex by which jobs ask for GPUs; empty: it is not known.

    Times are read as UTC: the command must run with TZ=UTC. A job listed twice (it moved while it was listed) counts
    once, as it was seen last.
    """
    jobs: dict[LrmJobId, LrmJob] = {}
    for element in listed_jobs(raw):
        name = text_of(element, "full_job_name") or text_of(element, "JB_name")
        gpus = 0 if place_of(element)[1] else _requested(element, gpu)
        found = _jobs(element, name, by_queue=by_queue)
        jobs.update((job.id, replace(job, gpus_per_node=gpus) if gpus else job) for job in found)
    return tuple(jobs.values())


def _requested(element: _Element, name: str) -> int:
    """Return how many of a complex a job asks for; 0 of none."""
    requests = (one for one in element.iterfind("hard_request") if name and one.get("name") == name)
    return max((number_of((one.text or "").strip()) for one in requests), default=0)


def listed_jobs(raw: bytes) -> tuple[_Element, ...]:
    """Return the elements of the jobs that qstat listed. Raises LrmUnavailableError when it listed something else."""
    root = parse_xml(raw, root="job_info", source="qstat")
    jobs = tuple(root.iter("job_list"))
    if not jobs and root.find("queue_info") is None and root.find("job_info") is None:
        message = "qstat printed a document that lists no jobs, but something else"
        hint = "look for -g or another option in SGE_ROOT/CELL/common/sge_qstat and ~/.sge_qstat, and take it out"
        raise LrmUnavailableError(message, hint=hint)
    return jobs


def place_of(element: _Element) -> tuple[str, str]:
    """Return queue and host of a job; with -f or -F in a file of defaults, the queue instance encloses the job."""
    parent = element.getparent()
    enclosing = text_of(parent, "name") if parent is not None and parent.tag == "Queue-List" else ""
    queue, _, host = (text_of(element, "queue_name") or enclosing).partition("@")
    return queue, host


def _jobs(element: _Element, name: str, *, by_queue: bool) -> Iterator[LrmJob]:
    number, tasks, slots = (text_of(element, tag) for tag in ("JB_job_number", "tasks", "slots"))
    processors = max(1, number_of(slots, 1))
    if not number:
        return
    if not tasks:
        yield _job(element, name, LrmJobId(number), None, processors, by_queue=by_queue)
        return
    ranges = task_ranges(tasks)
    count = sum(map(len, ranges))
    if count > LONGEST_EXPANSION:
        yield _job(element, name, LrmJobId(number), None, processors * count, by_queue=by_queue)
        return
    for index in chain.from_iterable(ranges):
        yield _job(element, name, LrmJobId(f"{number}.{index}"), index, processors, by_queue=by_queue)


def task_ranges(text: str) -> tuple[range, ...]:
    """Return the task numbers of a list such as ``1,4-9:1,12-20:2``; pieces that are no range are left out."""
    matches = (_RANGE.fullmatch(piece.strip()) for piece in text.split(","))
    return tuple(
        range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1))) for match in matches if match
    )


def _job(element: _Element, name: str, id_: LrmJobId, index: int | None, processors: int, *, by_queue: bool) -> LrmJob:
    letters = text_of(element, "state")
    state = job_state(letters)
    queue, host = place_of(element)
    node = f"{queue}@{host}" if by_queue else host
    # JAT_start_time is also set while a task is being transferred, and stays after a restart.
    started = moment_of(text_of(element, "JAT_start_time")) if host else None
    limit = _walltime(element)
    return LrmJob(
        id=id_,
        name=name,
        state=state,
        user=text_of(element, "JB_owner"),
        processors=processors,
        array_index=index,
        nodes=(node,) if host else (),
        queue=queue or text_of(element, "hard_req_queue").partition("@")[0],
        reason=job_reason(letters),
        end=EndReason.CANCELLED if state is LrmJobState.ENDING else None,
        submitted_at=moment_of(text_of(element, "JB_submission_time")),
        started_at=started,
        ends_at=started + limit if started is not None and limit is not None else None,
        raw_state=letters,
        walltime=limit,
        dependent=element.find("predecessor_jobs") is not None and not host,
        # The letters do not tell whose hold it is; that of our own submission defaults is the owner's.
        hold=_hold_owner(letters) if state is LrmJobState.HELD else None,
        requeues=int("R" in letters),
        layout=((node, processors),) if host and state is not LrmJobState.HELD else (),
    )


def _hold_owner(letters: str) -> HoldOwner:
    return HoldOwner.SYSTEM if "E" in letters else HoldOwner.USER


def parse_layouts(raw: bytes, *, by_queue: bool = False) -> dict[LrmJobId, tuple[tuple[str, int], ...]]:
    """Return where the slots of running jobs are, of ``qstat -xml -g t``, which has a row for each slot.

    Where the first task of a parallel job takes no slot, its row is one too many (sge_pe(5), job_is_first_task).
    """
    counts: dict[LrmJobId, dict[str, int]] = {}
    masters: dict[LrmJobId, tuple[str, int]] = {}
    for element in listed_jobs(raw):
        queue, host = place_of(element)
        if not host:
            continue
        number, task = text_of(element, "JB_job_number"), text_of(element, "tasks")
        job, node = LrmJobId(f"{number}.{task}" if task else number), f"{queue}@{host}" if by_queue else host
        places = counts.setdefault(job, {})
        places[node] = places.get(node, 0) + 1
        if text_of(element, "master") == "MASTER":
            masters[job] = (node, number_of(text_of(element, "granted_pe"), 1))
    for job, (node, slots) in masters.items():
        if sum(counts[job].values()) == slots + 1:
            counts[job][node] -= 1
    return {job: tuple((node, count) for node, count in places.items() if count) for job, places in counts.items()}


def with_layout(job: LrmJob, layout: tuple[tuple[str, int], ...] | None) -> LrmJob:
    """Return a running job on the nodes of its layout; as it is when that is not known."""
    return replace(job, layout=layout, nodes=tuple(node for node, _ in layout)) if layout else job


def _walltime(element: _Element) -> int | None:
    limits = [
        seconds_of((request.text or "").strip())
        for request in element.iterfind("hard_request")
        if request.get("name") in {"h_rt", "s_rt"}
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def moment_of(text: str) -> float | None:
    """Return seconds since the epoch of ``2026-11-21T11:04:38`` in UTC; None for anything else."""
    return utc(text[:19], "%Y-%m-%dT%H:%M:%S")


# -- Running the commands ------------------------------------------------------------------------------------
# Their exit status says nothing: a refused qconf -tsm exits with 0.

# On Debian, each command of Grid Engine in /usr/bin is a script that finds out the machine's architecture, with thirty
# processes and a compiler, then sets SGE_ROOT and SGE_CELL where they are missing, and becomes the program. We set
# these ourselves, and ask often: qstat itself takes a tenth of the processor time.
WRAPPER = "gridengine-wrapper"
PROGRAMS = "/usr/lib/gridengine"

COMPLAINTS = ComplaintTable(
    system="Grid Engine",
    known=(
        *complaints(LrmUnavailableError, dict.fromkeys(UNAVAILABLE_PHRASES, "it is asked again later")),
        *complaints(LrmNotFoundError, dict.fromkeys(NOT_FOUND_PHRASES, "it has ended, or never was")),
        *complaints(LrmRejectedError, dict.fromkeys(REJECTED_PHRASES, "")),
    ),
)
"""Phrases of refusals, in the order in which DRMAA's classification looks for them."""


class GridEngineCommands(CommandSystem):
    """The commands of one cell."""

    def __init__(self, runner: CommandRunner, settings: SgeSettings) -> None:
        super().__init__(
            runner,
            COMPLAINTS,
            directory=settings.bin_directory,
            environment=settings.variables(),
            timeout=settings.request_timeout,
        )

    async def pass_by_wrapper(self, programs: str = PROGRAMS) -> None:
        """Take the programs themselves where the commands in PATH are Debian's wrapper, unless a directory is given."""
        if self._directory is not None:
            return
        found = (await self.host.programs(("qstat",))).get("qstat", "")
        wrapped = found and PurePath(await self.host.resolved(found)).name == WRAPPER
        if wrapped and await self.host.resolved(f"{programs}/qstat"):
            self._directory = Path(programs)

    async def document(self, command: Sequence[str]) -> bytes:
        """Return what a listing command printed. Raises what its complaint means when it printed nothing."""
        result = await self.run(command)
        if result.stdout.strip():
            return result.stdout
        complaint = result.complaint or f"exit code {result.returncode} and no output"
        raise error_of(kind_of_text(complaint), f"{result.argv[0]}: {complaint}")

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:  # noqa: ARG002 - the program says it
        """Return the error of a change, by the text alone, in the words of DRMAA's classification."""
        complaint = result.complaint
        kind = kind_of_text(complaint, FailureKind.UNSUPPORTED)
        if kind is not FailureKind.UNSUPPORTED:
            return error_of(kind, f"{result.argv[0]}: {complaint}")
        return error_of(FailureKind.UNAVAILABLE, f"{result.argv[0]}: {complaint}") if result.returncode else None


def first_line(text: str) -> str:
    """Return the first line of what ``qstat -help`` prints, the version. Raises LrmUnavailableError."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise LrmUnavailableError("qstat -help prints nothing", hint="is bin_directory that of Grid Engine's commands?")
    return lines[0]
