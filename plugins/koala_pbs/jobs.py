# SPDX-License-Identifier: Apache-2.0
"""What PBS lists, as values: entries of its JSON, nodes, the chunks that jobs ask for, jobs.

No part of this does I/O.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from koala_adapter.errors import LrmRejectedError
from koala_adapter.model import WAITING, EndReason, LrmJob, LrmJobId, LrmJobState, Node, NodeGpus
from koala_pbs.words import (
    EXCLUSIVE,
    MOVED,
    MOVED_LETTER,
    array_index,
    array_of,
    hold_owner,
    is_array,
    is_job_id,
    job_end,
    job_state,
    mebibytes_of,
    moment_of,
    node_state,
    number_of,
    seconds_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


# -- Entries of JSON that often is none ----------------------------------------------------------------------
# What qstat and pbsnodes print as JSON. Values come as text, whatever PBS takes them for: 23.06 prints a job called 1e5
# as the number 100000.0, and 007 as a number that JSON does not have. Older releases leave quotes and backslashes in
# values as they are, and put an attribute there twice. So what is no JSON is read line by line: all releases print each
# attribute on a line of its own, and the indentation tells where an entry begins. An entry that is there twice, or
# cannot be read, is refused by its name: then nothing is believed.

Attributes: TypeAlias = "Mapping[str, str | Mapping[str, str]]"
"""The attributes of one job, node or queue; resources and variables are mappings themselves."""

Entries: TypeAlias = "Mapping[str, Attributes]"
"""Those of a section, by the names of jobs, nodes or queues."""

Reader: TypeAlias = "Callable[[str, str], Entries]"
"""Returns the entries of a section of what was printed: :func:`read_entries`, or another with its words and errors."""

_OPENING = re.compile(r'(?P<indent>[ \t]*)"(?P<name>.+)"[ \t]*:[ \t]*\{[ \t]*(?P<closed>\}?),?[ \t\r]*')
_CLOSING = re.compile(r"(?P<indent>[ \t]*)\},?[ \t\r]*")
_PAIR = re.compile(r'(?P<indent>[ \t]*)"(?P<name>[^"]+)"[ \t]*:[ \t]*(?P<value>.*?),?[ \t\r]*')
_ESCAPED = re.compile(r'\\(["\\/])')


def read_entries(text: str, section: str) -> dict[str, Attributes]:
    """Return the entries of a section, such as the jobs in "Jobs"; none when there is no such section.

    Raises ValueError for what is no such document at all, and for an entry, which is named, that cannot be read.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError("there is no object")
    try:
        document = json.loads(
            text[start:], strict=False, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_once
        )
    except (ValueError, RecursionError):
        return _read_lines(text[start:].split("\n"), section)
    if not isinstance(document, dict):
        raise ValueError("there is no object")  # noqa: TRY004 - what is printed has no type of ours
    entries = document.get(section, {})
    if not isinstance(entries, dict):
        raise ValueError(f"{section} is {str(entries)[:40]!r}")  # noqa: TRY004 - what is printed has no type of ours
    return {str(name): _attributes(name, entry) for name, entry in entries.items()}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        # The same job or node twice: one of the two is not what it says.
        if name in found and isinstance(value, dict) and "Resource_List" in value:
            raise ValueError(f"{name} is there twice")
        found[name] = value
    return found


def _attributes(name: object, entry: object) -> Attributes:
    if not isinstance(entry, dict):
        raise ValueError(f"{name} is {str(entry)[:40]!r}")  # noqa: TRY004 - what is printed has no type of ours
    return {
        key: {inner: _text(one) for inner, one in value.items()} if isinstance(value, dict) else _text(value)
        for key, value in entry.items()
    }


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def value_of(attributes: Attributes, name: str) -> str:
    """Return an attribute as text; empty when it is not there, or is a mapping."""
    value = attributes.get(name, "")
    return value if isinstance(value, str) else ""


def mapping_of(attributes: Attributes, name: str) -> Mapping[str, str]:
    """Return an attribute that is a mapping; empty when it is not there, or is none."""
    value = attributes.get(name, {})
    return {} if isinstance(value, str) else value


# ---- what is no JSON ------------------------------------------------------------------------------------------------


def _read_lines(lines: Iterable[str], section: str) -> dict[str, Attributes]:
    entries: dict[str, Attributes] = {}
    for name, block in _blocks(lines, section):
        if name in entries:
            raise ValueError(f"{name} is there twice")
        entries[name] = _block_attributes(block)
    return entries


def _blocks(lines: Iterable[str], section: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the entries of a section with their lines. Raises ValueError when the last one is cut short."""
    within, indent, name, block = False, "", "", list[str]()
    for line in lines:
        opened, closed = _OPENING.fullmatch(line), _CLOSING.fullmatch(line)
        if not within:
            within = bool(opened and opened["name"] == section and not opened["closed"])
            outer = opened["indent"] if opened else ""
        elif not name and opened:
            name, indent, block = opened["name"], opened["indent"], []
            if opened["closed"]:
                yield name, block
                name = ""
        elif name and closed and closed["indent"] == indent:
            yield name, block
            name = ""
        elif name:
            block.append(line)
        elif closed and closed["indent"] == outer:
            return
    if name or within:
        raise ValueError(f"{name or section} is cut short")
    raise ValueError(f"it is no JSON, and has no {section}")


def _block_attributes(block: list[str]) -> Attributes:
    attributes: dict[str, str | Mapping[str, str]] = {}
    inner: dict[str, str] | None = None
    depth = ""
    for line in block:
        opened, closed, pair = _OPENING.fullmatch(line), _CLOSING.fullmatch(line), _PAIR.fullmatch(line)
        if inner is None and opened:
            depth, fresh = opened["indent"], dict[str, str]()
            attributes[opened["name"]] = fresh
            inner = None if opened["closed"] else fresh
        elif inner is not None and closed and closed["indent"] == depth:
            inner = None
        elif pair and inner is not None:
            inner.setdefault(pair["name"], _bare(pair["value"]))
        elif pair:
            attributes.setdefault(pair["name"], _bare(pair["value"]))
    return attributes


def _bare(value: str) -> str:
    if value.startswith("["):
        return ",".join(part.strip().strip('"') for part in value.strip("[]").split(",") if part.strip())
    if len(value) > 1 and value.startswith('"') and value.endswith('"'):
        value = value[1:-1]
    return _ESCAPED.sub(r"\1", value)


# -- Nodes ---------------------------------------------------------------------------------------------------
# From ``pbsnodes -a -v -F json``: the vnodes, because without ``-v`` those of one host are added up.


def parse_nodes(entries: Entries, *, queues: Collection[str] = ()) -> tuple[Node, ...]:
    """Return the vnodes that have processors. Raises ValueError.

    ``queues``: all execution queues. One that has vnodes of its own uses no others, and these serve no other queue.
    """
    owned = {name: _queues(attributes) for name, attributes in entries.items()}
    others = _others(owned, queues)
    nodes = (_node(name, attributes, owned[name] or others) for name, attributes in entries.items())
    # The vnode that stands for the host where that is divided into several has none.
    return tuple(node for node in nodes if node.processors)


def _others(owned: Mapping[str, tuple[str, ...]], queues: Collection[str]) -> tuple[str, ...]:
    taken = {name for names in owned.values() for name in names}
    return tuple(name for name in queues if name not in taken) if taken else ()


def _queues(attributes: Attributes) -> tuple[str, ...]:
    queue = value_of(attributes, "queue")
    return (queue,) if queue else ()


def _node(name: str, attributes: Attributes, queues: tuple[str, ...]) -> Node:
    available, assigned = (mapping_of(attributes, f"resources_{word}") for word in ("available", "assigned"))
    word = value_of(attributes, "state")
    processors, gpus = number_of(available.get("ncpus", "0")), number_of(available.get("ngpus", "0"))
    # It has no key for what is not assigned at all.
    used = processors if set(word.split(",")) & EXCLUSIVE else number_of(assigned.get("ncpus", "0"))
    return Node(
        name=name,
        state=node_state(word),
        processors=processors,
        processors_used=used,
        memory_mib=mebibytes_of(available.get("mem", "")) or None,
        queues=queues,
        raw_state=word,
        reason=value_of(attributes, "comment"),
        architecture=available.get("arch", ""),
        memory_used_mib=mebibytes_of(assigned.get("mem", "0kb")),
        features=_features(available),
        # Sites tell kinds apart by other resources.
        untold=("gpu_kind",),
        gpus=(NodeGpus(kind="", count=gpus, used=number_of(assigned.get("ngpus", "0"))),) if gpus else (),
    )


def _features(available: Mapping[str, str]) -> tuple[str, ...]:
    """Return the true boolean resources and the words of the others of a vnode."""
    found: set[str] = set()
    for name, value in available.items():
        if value.lower() == "true":
            found.add(name)
        elif value.lower() != "false" and name not in PLACES and not CONSUMABLE.fullmatch(value):
            found |= {word.strip() for word in value.split(",") if word.strip()}
    return tuple(sorted(found))


# -- Chunks --------------------------------------------------------------------------------------------------
# What a job asks for in chunks (``-l select=2:ncpus=4:mem=1gb``), where it may go, and where it runs.
#
# Processors of one chunk stay together; chunks are what can be put on one vnode or another (pbs_resources(7B)).

LARGEST_SELECTION = 100_000
"""Chunks of one job: more is nonsense, and would fill the memory."""

_PARTS = {"+": re.compile(r'(?:"[^"]*"|\'[^\']*\'|[^+"\'])+'), ":": re.compile(r'(?:"[^"]*"|\'[^\']*\'|[^:"\'])+')}
CONSUMABLE = re.compile(r"[0-9]+(?:\.[0-9]+)?[kmgtp]?[bw]?", re.ASCII | re.IGNORECASE)
_VNODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]*", re.ASCII)
PLACES = frozenset({"vnode", "host"})
NOT_CONSUMED = frozenset({"mpiprocs", "ompthreads", *PLACES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One chunk; those of a selection are listed singly."""

    processors: int
    resources: tuple[tuple[str, str], ...]
    """All resources in their order, ``ncpus`` among them where the job names it."""

    def value(self, name: str) -> str:
        """Return the value of a resource; empty when it is not asked for."""
        return next((value for key, value in self.resources if key == name), "")

    @property
    def vnode(self) -> str:
        """The vnode or host that it must be on; empty: any."""
        return self.value("vnode") or self.value("host")

    def on(self, vnode: str) -> str:
        """Return one such chunk tied to a vnode."""
        pairs = (f"{name}={value}" for name, value in self.resources if name not in PLACES)
        return ":".join(("1", *pairs, f"vnode={vnode}"))

    def taken_from(self, vnode: str) -> str:
        """Return the resources that the chunk takes of a vnode, for ``qrun -H``."""
        used = (
            f"{name}={value}"
            for name, value in self.resources
            if name not in {"ncpus", *NOT_CONSUMED} and CONSUMABLE.fullmatch(value)
        )
        return f"({':'.join((vnode, f'ncpus={self.processors}', *used))})"


def parse_select(text: str) -> tuple[Chunk, ...]:
    """Return the chunks of ``2:ncpus=4:mem=1gb+1:ncpus=2``, each singly. Raises ValueError."""
    chunks: list[Chunk] = []
    for part in _PARTS["+"].findall(text):
        words = _PARTS[":"].findall(part)
        count = int(words.pop(0)) if words and words[0].isdecimal() else 1
        pairs = tuple((name, value) for name, _, value in (word.partition("=") for word in words))
        ncpus = dict(pairs).get("ncpus", "1")
        chunk = Chunk(processors=number_of(ncpus, 1), resources=pairs)
        if count + len(chunks) > LARGEST_SELECTION:
            raise ValueError(f"select={text[:60]} has too many chunks")
        chunks += [chunk] * count
    return tuple(chunks)


def placement_of(place: str) -> str:
    """Return how chunks are arranged: ``free``, ``pack``, ``scatter`` or ``vscatter``."""
    words = place.split(":")
    return next((word for word in ("pack", "vscatter", "scatter") if word in words), "free")


def parse_exec_vnode(text: str) -> tuple[tuple[str, int], ...]:
    """Return vnodes with their processors of ``(n3:ncpus=2)+(n4:ncpus=1)``, or of the form that ``qrun -H`` leaves."""
    found: dict[str, int] = {}
    for part in text.replace("(", "").replace(")", "").split("+"):
        name, *resources = part.split(":")
        processors = dict(word.partition("=")[::2] for word in resources).get("ncpus", "0")
        if name:
            found[name] = found.get(name, 0) + number_of(processors)
    return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Chunks and the vnodes that they are to run on, in the order of the job's chunks."""

    pairs: tuple[tuple[Chunk, str], ...]

    @property
    def select(self) -> str:
        """The selection that ties the job to them."""
        return "+".join(_merged([chunk.on(vnode) for chunk, vnode in self.pairs]))

    @property
    def destination(self) -> str:
        """Return chunks and vnodes as ``qrun -H`` takes them."""
        return "+".join(chunk.taken_from(vnode) for chunk, vnode in self.pairs)

    @property
    def hosts(self) -> str:
        """Return hosts and processors as Torque's ``qrun -H`` takes them: ``n1:ppn=2+n2:ppn=1``."""
        return "+".join(f"{node}:ppn={count}" for node, count in self.processors.items())

    @property
    def processors(self) -> Mapping[str, int]:
        """Processors on each vnode."""
        counts: dict[str, int] = {}
        for chunk, vnode in self.pairs:
            counts[vnode] = counts.get(vnode, 0) + chunk.processors
        return counts


def _merged(parts: Sequence[str]) -> Iterator[str]:
    """Yield equal neighbours as one chunk with a count."""
    count = 0
    for number, part in enumerate(parts):
        count += 1
        if number + 1 == len(parts) or parts[number + 1] != part:
            yield f"{count}{part[1:]}"
            count = 0


def tied_place(place: str) -> str:
    """Return the placement of a job tied to vnodes: free, with its former sharing."""
    return ":".join(("free", *(word for word in place.split(":") if word in {"excl", "exclhost", "shared"})))


def assign(job: str, select: str, nodes: Sequence[str]) -> Assignment:
    """Assign a job's chunks to nodes, given with one entry for each processor.

    Raises LrmRejectedError when its chunks cannot be divided so.
    """
    for node in nodes:
        if not _VNODE.fullmatch(node):
            raise LrmRejectedError(f"{node!r} is no node name", hint="name vnodes that pbsnodes -av shows")
    counts = Counter(nodes)
    try:
        chunks = parse_select(select)
    except ValueError as error:
        raise LrmRejectedError(f"job {job}: {error}") from error
    chosen = _divide(chunks, counts)
    if chosen is None:
        wanted = f"{len(chunks)} chunks of {', '.join(sorted({str(one.processors) for one in chunks}))} processors"
        given = ", ".join(f"{count} on {node}" for node, count in counts.items()) or "none"
        message = f"job {job} asks for {wanted}, which cannot be divided as {given}"
        raise LrmRejectedError(message, hint="the processors of one chunk (select) stay together")
    return Assignment(pairs=tuple(zip(chunks, chosen, strict=True)))


TRIES = 10_000
"""Places for chunks of different sizes that are tried before a division is given up."""


def _divide(chunks: Sequence[Chunk], counts: Mapping[str, int]) -> list[str] | None:
    """Return a vnode for each chunk such that all processors are used; None when none is found."""
    if sum(chunk.processors for chunk in chunks) != sum(counts.values()) or not chunks:
        return None
    # Those that insist on a place first, then the largest: the rest fits around them.
    order = sorted(range(len(chunks)), key=lambda number: (not chunks[number].vnode, -chunks[number].processors))
    left, chosen, begun = dict(counts), [""] * len(chunks), list(counts)
    tries = 0
    stack: list[tuple[int, Iterator[str]]] = []
    position = 0
    while position < len(order):
        if len(stack) == position:
            stack.append((position, iter(begun)))
        chunk = chunks[order[position]]
        for vnode in stack[position][1]:
            if left[vnode] >= chunk.processors and chunk.vnode in {"", vnode}:
                left[vnode] -= chunk.processors
                chosen[order[position]] = vnode
                position += 1
                break
        else:
            stack.pop()
            position -= 1
            tries += 1
            if position < 0 or tries > TRIES:
                return None
            left[chosen[order[position]]] += chunks[order[position]].processors
    return chosen


# -- Jobs ----------------------------------------------------------------------------------------------------
# From ``qstat -t -f -F json``. An element that waits, or was ended before it ran, is printed with the attributes of its
# array: what it says of holds and ends is the array's.

INDEX_VARIABLE = "PBS_ARRAY_INDEX"
"""Set by PBS for elements of arrays, and by us for single placeholders."""

_HAS_PROCESSORS = frozenset({LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING})
_DEPENDS = ("after", "on:", "runone:", "syncwith:")


def parse_jobs(listed: Entries) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing, elements of arrays singly.

    Raises ValueError for a job without name or state, and where no id is one. A job with another attribute that cannot
    be read is UNKNOWN, and says why: what one user gives PBS hides no other's jobs. A record whose id has not the form
    of one is left out: no command could name its job.
    """
    entries = {id_: attributes for id_, attributes in listed.items() if is_job_id(id_)}
    if listed and not entries:
        raise ValueError(f"{next(iter(listed))[:60]!r} is no job id")
    return tuple(
        _named(id_, attributes, entries.get(array_of(id_), {}))
        for id_, attributes in entries.items()
        if not is_array(id_)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a job asks for in chunks, and its holds: of one that is tied to vnodes, what PBS was told for that."""

    select: str
    place: str
    holds: str
    """Kinds of hold that it is in."""


def parse_requests(listed: Entries) -> dict[str, JobRequest]:
    """Return the request of each job, and array, of a listing."""
    found = {}
    for id_, attributes in listed.items():
        wanted = mapping_of(attributes, "Resource_List")
        select, place = wanted.get("select", ""), wanted.get("place", "")
        found[id_] = JobRequest(select=select, place=place, holds=value_of(attributes, "Hold_Types"))
    return found


def parse_selections(listed: Entries) -> dict[str, str]:
    """Return what each job of a listing asks for in chunks, with what its queue and server add."""
    return {
        id_: value_of(attributes, "schedselect") or mapping_of(attributes, "Resource_List").get("select", "")
        for id_, attributes in listed.items()
    }


def parse_held_by_operator(listed: Entries) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing that are not over and have an operator's hold. Raises ValueError.

    Of an array they are its elements, which have the holds of their array.
    """
    holds = {id_: request.holds for id_, request in parse_requests(listed).items()}
    found = []
    for job in parse_jobs(listed):
        own = holds.get(array_of(job.id), "") or holds.get(job.id, "")
        if job.state is not LrmJobState.ENDED and own != "n" and "o" in own:
            found.append(job)
    return tuple(found)


def _named(id_: str, attributes: Attributes, parent: Attributes) -> LrmJob:
    if missing := next((name for name in ("Job_Name", "job_state") if not value_of(attributes, name)), ""):
        raise ValueError(f"job {id_} cannot be read: it has no {missing}")
    try:
        return _job(id_, attributes, parent)
    except (ValueError, KeyError, TypeError) as error:
        return _unreadable(id_, attributes, f"its listing cannot be read ({type(error).__name__}: {error})")


def _unreadable(id_: str, attributes: Attributes, reason: str) -> LrmJob:
    return LrmJob(
        id=LrmJobId(id_),
        name=value_of(attributes, "Job_Name"),
        state=LrmJobState.UNKNOWN,
        user=value_of(attributes, "euser") or value_of(attributes, "Job_Owner").partition("@")[0],
        processors=1,
        array_index=array_index(id_),
        reason=reason,
    )


def _job(id_: str, attributes: Attributes, parent: Attributes) -> LrmJob:
    letter, substate = value_of(attributes, "job_state"), value_of(attributes, "substate")
    left = letter == MOVED_LETTER and substate == MOVED
    index = array_index(id_)
    # With an array_index of its own it has begun, and tells of itself.
    is_shadow = index is not None and "array_index" not in attributes
    holds = value_of(parent, "Hold_Types") if parent else value_of(attributes, "Hold_Types")
    state, dependent = _state(letter, holds, attributes)
    wanted, variables = mapping_of(attributes, "Resource_List"), mapping_of(attributes, "Variable_List")
    chunks = parse_select(wanted.get("select", ""))
    layout = () if state in WAITING or is_shadow else parse_exec_vnode(value_of(attributes, "exec_vnode"))
    begun = state not in WAITING and not is_shadow
    started = moment_of(value_of(attributes, "stime")) if begun else None
    walltime = seconds_of(wanted.get("walltime", ""))
    status = value_of(attributes, "Exit_status")
    ended = state is LrmJobState.ENDED
    end, code, signal = (
        job_end(number_of(status) if status else None, substate) if ended and not is_shadow else (None, None, None)
    )
    if left:
        end, code, signal = EndReason.LOST, None, None
    processors = number_of(wanted.get("ncpus", ""), 0) or sum(chunk.processors for chunk in chunks) or 1
    return LrmJob(
        id=LrmJobId(id_),
        name=value_of(attributes, "Job_Name"),
        state=state,
        user=value_of(attributes, "euser") or value_of(attributes, "Job_Owner").partition("@")[0],
        processors=processors,
        array_index=index if index is not None else _given_index(variables),
        nodes=tuple(name for name, _ in layout),
        queue=value_of(attributes, "queue"),
        reason=_moved_to(attributes) if left else _reason(letter, holds, attributes),
        end=end,
        exit_code=code,
        signal=signal,
        submitted_at=moment_of(value_of(attributes, "ctime")),
        started_at=started,
        ends_at=_ends_at(attributes, state, started, walltime),
        raw_state=f"{letter} {substate}".strip(),
        walltime=walltime,
        eligible_at=moment_of(value_of(attributes, "Execution_Time")),
        dependent=dependent,
        blocked=state is LrmJobState.QUEUED and _waits_for_more(value_of(attributes, "comment")),
        kept=state is LrmJobState.QUEUED and _LASTS.match(value_of(attributes, "comment")) is not None,
        hold=hold_owner(holds) if state is LrmJobState.HELD else None,
        layout=layout if state in _HAS_PROCESSORS else (),
        group=value_of(attributes, "egroup"),
        account=value_of(attributes, "Account_Name"),
        working_directory=variables.get("PBS_O_WORKDIR", ""),
        requeues=max(0, number_of(value_of(attributes, "run_count")) - begun) if not is_shadow else 0,
        **_shape(chunks, wanted.get("place", "")),
    )


def _state(letter: str, holds: str, attributes: Attributes) -> tuple[LrmJobState, bool]:
    """Return the state of a job, and whether it waits for others."""
    state = job_state(letter)
    dependent = any(part.strip().startswith(_DEPENDS) for part in value_of(attributes, "depend").split(","))
    if letter == "Q" and hold_owner(holds) is not None:
        return LrmJobState.HELD, dependent
    if letter == "H" and dependent and holds == "s":
        # PBS lets it go by itself.
        return LrmJobState.QUEUED, dependent
    return state, dependent and state in WAITING


def _shape(chunks: tuple[Chunk, ...], place: str) -> dict[str, Any]:
    """Return how a job's processors may be divided over nodes."""
    if not chunks:
        return {}
    sizes = {chunk.processors for chunk in chunks}
    least, most = 1, len(chunks)
    arrangement = placement_of(place)
    if arrangement == "pack":
        most = 1
    elif arrangement in {"scatter", "vscatter"}:
        least = most
    each = sizes.pop() if len(sizes) == 1 else 1
    memory = [mebibytes_of(chunk.value("mem")) or 0 for chunk in chunks]
    per_processor = max(-(-size // max(1, chunk.processors)) for size, chunk in zip(memory, chunks, strict=True))
    return {
        "processors_per_task": max(1, each),
        "nodes_wanted": most if least == most else None,
        "nodes_least": least,
        "nodes_most": most,
        "tasks_per_node": 1 if arrangement in {"scatter", "vscatter"} else None,
        "memory_per_processor_mib": per_processor or None,
        "requested_nodes": tuple(dict.fromkeys(chunk.vnode for chunk in chunks if chunk.vnode)),
    }


def _ends_at(attributes: Attributes, state: LrmJobState, started: float | None, walltime: int | None) -> float | None:
    if state is LrmJobState.ENDED:
        return moment_of(value_of(attributes, "obittime")) or moment_of(value_of(attributes, "history_timestamp"))
    return started + walltime if started is not None and walltime is not None else None


def _moved_to(attributes: Attributes) -> str:
    queue, _, server = value_of(attributes, "queue").partition("@")
    place = f"{queue}@{server or value_of(attributes, 'server')}"
    return f"PBS has moved it to {place}; koala does not follow jobs to other servers"


def _reason(letter: str, holds: str, attributes: Attributes) -> str:
    return value_of(attributes, "comment").strip() or (f"held ({holds})" if letter == "H" else "")


_NEVER = "Can Never Run"
_LASTS = re.compile(
    rf"{_NEVER}|Not Running: (?:queue not started|queue is not an execution queue|job would cross dedicated time)",
    re.IGNORECASE,
)
"""What the scheduler says of a job that only the site, or another request, lets start."""
_TAKEN = re.compile(
    r"insufficient amount of resource:|not enough free nodes|no available resources on nodes|"
    r"job would conflict with reservation or top job|job would break strict sorted order|"
    r"(?:host|placement) set \S+ has too few free resources|"
    r"job is requesting an exclusive node and node is in use|draining system to allow starving job",
    re.IGNORECASE,
)
"""What the scheduler says of a job that waits for what others have, or for those before it."""


def _waits_for_more(comment: str) -> bool:
    """Tell whether a job waits for something else than free processors, of the scheduler's comment."""
    if not comment.startswith(("Not Running", _NEVER)):
        return False
    # Of several reasons, the last words of the first are numbers (R: 2 A: 1 T: 8).
    return comment.startswith(_NEVER) or not _TAKEN.match(comment.partition(":")[2].strip())


def _given_index(variables: Mapping[str, str]) -> int | None:
    text = variables.get(INDEX_VARIABLE, "")
    return int(text) if text.isdecimal() else None
