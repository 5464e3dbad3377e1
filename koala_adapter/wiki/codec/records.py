# SPDX-License-Identifier: Apache-2.0
"""Node and job records of WIKI: values, records, and whole listings, written and read. Pure.

A record is typed on one side and ``n1:STATE=Idle;CPROC=8;`` on the other. What is written harms no peer: STATE comes
first, every attribute ends with ``;``, none is empty, no value contains a separator, and Maui gets no name that it does
not know. What is read may be as careless as Slurm's and Maui's own: quoted, escaped, without the last ``;``, with octal
numbers, with unknown names.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.words import (
    LARGEST_UNSIGNED,
    Dialect,
    HostFormat,
    JobWord,
    NodeWord,
    check_host,
    check_id,
    check_tasks,
    compressed,
    expand,
    folded,
    plain,
    read_integer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


# -- Values of attributes ------------------------------------------------------------------------------------
# Each kind is written so that no peer is harmed, and read as Maui would read it.

LARGEST_NUMBER = (1 << 63) - 1
FLAG_BITS = (1 << 63) | (1 << 31)
"""Slurm's sched/wiki leaves the flag "for each processor" in RMEM; no node has 2 PiB of memory."""

_NOT_IN_WORD = re.compile(r'[\s:;#"\\=\x00-\x1f\x7f]')
_NOT_IN_NAME = re.compile(r'[\s:;#"\\=,\[\]\x00-\x1f\x7f]')
_NOT_IN_TEXT = re.compile(r'[:;#"\\\x00-\x1f\x7f]')
_NOT_IN_QUOTED_TEXT = re.compile(r'[;#"\\\x00-\x1f\x7f]')
_BASE_10 = re.compile(r"\s*(?P<number>[+-]?[0-9]{1,40})", re.ASCII)
_FLOAT = re.compile(r"\s*[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_CLASS = re.compile(r"\[([^\[\]:]*)(?::([^\[\]]*))?\]")


class Kind(Enum):
    """Notation of an attribute's value: number, word, text or list."""

    COUNT = "count"
    """Number, read as C does with base 0: ``0x10`` is 16, ``010`` is 8."""
    TIME = "time"
    """Decimal number: seconds since the epoch."""
    FLOAT = "float"
    WORD = "word"
    """One name: no separator of any kind."""
    TEXT = "text"
    """Free text, quoted in WIKI2."""
    NAMES = "names"
    """Names joined by ``:``."""
    TASKS = "tasks"
    """Host list with one entry for each task."""
    HOSTS = "hosts"
    """Host list of what a job may or may not use."""
    CLASSES = "classes"
    """``[name:count][name:count]``."""
    QUEUE = "queue"
    """Of a job: ``[name:count]…`` or a plain name, quoted in WIKI2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """Name of one attribute on the wire, the notation of its value, and the dialects that have it."""

    name: str
    kind: Kind
    synonym: str = ""
    """Another name by which some peers send it; read, never sent."""
    brief: bool = False
    """Part of the short form of a record: a scheduler needs it to decide."""
    dialects: frozenset[Dialect] = frozenset(Dialect)
    """Where it is sent; a record read may have it in any."""
    quoted_in: frozenset[Dialect] = frozenset({Dialect.WIKI2})
    """Where a TEXT is in quotation marks."""


class Count(NamedTuple):
    """A class (queue) of a node and how many tasks it takes."""

    name: str
    amount: int


Value = str | int | float | tuple[str, ...] | tuple[Count, ...]


# ---- writing --------------------------------------------------------------------------------------------------------


def writer(attribute: Attribute, dialect: Dialect, hosts: HostFormat) -> Callable[[Value], str]:
    """Return a function that writes an attribute as ``NAME=value;`` in a dialect, and nothing for an empty value."""
    quoted = dialect in attribute.quoted_in
    writers: dict[Kind, Callable[..., str]] = {
        Kind.COUNT: partial(_number, attribute.name),
        Kind.TIME: partial(_number, attribute.name),
        Kind.FLOAT: _float,
        Kind.WORD: clean_word,
        Kind.TEXT: partial(_text, dialect=dialect, quoted=quoted),
        Kind.NAMES: _names,
        Kind.TASKS: partial(_tasks, dialect=dialect, hosts=hosts),
        Kind.HOSTS: partial(_hosts, dialect=dialect, hosts=hosts),
        Kind.CLASSES: _classes,
        Kind.QUEUE: partial(_queue, dialect=dialect),
    }
    return partial(_named, f"{attribute.name}=", writers[attribute.kind])


def _named(prefix: str, write: Callable[[Value], str], value: Value) -> str:
    text = write(value)
    return f"{prefix}{text};" if text else ""


def _number(name: str, value: int) -> str:
    if not 0 <= value <= LARGEST_NUMBER:
        raise WikiError(f"{name} cannot be {value}: WIKI has numbers from 0 to 2^63-1")
    return str(int(value))


def _float(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ""


def clean_word(value: str) -> str:
    """Return a text as one word, with separators replaced."""
    return _NOT_IN_WORD.sub("_", _printable(value))


def _clean_name(value: str) -> str:
    return _NOT_IN_NAME.sub("_", _printable(value))


def clean_text(value: str, dialect: Dialect) -> str:
    """Return a text with all characters replaced that a reader of the dialect takes for separators."""
    pattern = _NOT_IN_TEXT if dialect is Dialect.WIKI else _NOT_IN_QUOTED_TEXT
    return pattern.sub("_", _printable(value)).strip()


def _printable(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _text(value: str, *, dialect: Dialect, quoted: bool) -> str:
    text = clean_text(value, dialect)
    return f'"{text}"' if quoted and text else text


def _names(values: Iterable[str]) -> str:
    return ":".join(filter(None, map(_clean_name, values)))


def _tasks(values: Sequence[str], *, dialect: Dialect, hosts: HostFormat) -> str:
    if dialect is Dialect.WIKI2 and hosts is not HostFormat.PLAIN:
        return compressed(values)
    if dialect is Dialect.WIKI:
        check_tasks(values)
    return plain(values)


def _hosts(values: Sequence[str], *, dialect: Dialect, hosts: HostFormat) -> str:
    short = dialect is Dialect.WIKI2 and hosts is not HostFormat.PLAIN and len(set(values)) == len(values)
    return ":".join(folded(map(check_host, values))) if short else _tasks(values, dialect=dialect, hosts=hosts)


def _classes(values: Iterable[Count]) -> str:
    return "".join(f"[{_clean_name(name)}:{_number(name, amount)}]" for name, amount in values if name)


def _queue(value: str, *, dialect: Dialect) -> str:
    if dialect is Dialect.WIKI2:
        return _text(value, dialect=dialect, quoted=True)
    named = read_classes(value) if value.startswith("[") else (Count(value, 1),)
    return _classes(named)


# ---- reading --------------------------------------------------------------------------------------------------------


def read(attribute: Attribute, text: str) -> Value | None:
    """Parse the value of an attribute as Maui does; None when it is missing."""
    value = text.strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return _READERS[attribute.kind](value) if value else None


def read_number(text: str) -> int | None:
    """Return the number at the beginning of a text, cut to the largest of C; None without one."""
    number = read_integer(text)
    return None if number is None else max(-LARGEST_NUMBER, min(number, LARGEST_UNSIGNED))


def read_time(text: str) -> int | None:
    """Return the decimal number at the beginning of a text; None without one."""
    found = _BASE_10.match(text)
    return max(-LARGEST_NUMBER, min(int(found["number"]), LARGEST_NUMBER)) if found else None


def _read_count(text: str) -> int | None:
    number = read_number(text)
    if number is None or number <= LARGEST_NUMBER:
        return number
    return number & LARGEST_NUMBER


def without_flags(number: int | None) -> int | None:
    """Return an amount of memory without the flag bits that Slurm's sched/wiki forgets in it."""
    return number & ~FLAG_BITS if number is not None and number > 0 else number


def _read_float(text: str) -> float | None:
    found = _FLOAT.match(text)
    value = float(found[0]) if found else math.inf
    return value if math.isfinite(value) else None


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^:\s]+", text))


def _read_tasks(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except WikiError:
        # Maui, too, takes what it does not understand for the name of a host that does not exist.
        return tuple(filter(None, text.split(":")))


def read_classes(text: str) -> tuple[Count, ...]:
    """Return the pairs of ``[name:count][name:count]``; without a count it is 1."""
    return tuple(
        Count(name, amount if (amount := read_time(number) if number else 1) is not None else 1)
        for name, number in _CLASS.findall(text)
        if name
    )


def _read_queue(text: str) -> str:
    named = read_classes(text)
    return named[0].name if len(named) == 1 and named[0].amount == 1 else text


_READERS: Mapping[Kind, Callable[[str], Value | None]] = {
    Kind.COUNT: _read_count,
    Kind.TIME: read_time,
    Kind.FLOAT: _read_float,
    Kind.WORD: str,
    Kind.TEXT: str,
    Kind.NAMES: _read_names,
    Kind.TASKS: _read_tasks,
    Kind.HOSTS: _read_tasks,
    Kind.CLASSES: read_classes,
    Kind.QUEUE: _read_queue,
}


# -- Records -------------------------------------------------------------------------------------------------
# Each field says what its attribute is called on the wire. Attributes are written in the order of the fields, but for
# some of a job that Maui gets.

_ONE: Final = frozenset({Dialect.WIKI})
_TWO: Final = frozenset({Dialect.WIKI2})
_NUMBERS: Final = frozenset({Kind.COUNT, Kind.TIME, Kind.FLOAT})
_LISTS: Final = frozenset({Kind.NAMES, Kind.TASKS, Kind.HOSTS, Kind.CLASSES})


def _sent_as(name: str, kind: Kind, **details: Any) -> Any:  # noqa: ANN401 - of any type that a field has
    """Return a field of a record that is sent as an attribute; ``details``: of `Attribute`."""
    absent = None if kind in _NUMBERS else () if kind in _LISTS else ""
    return field(default=absent, metadata={"attribute": Attribute(name=name, kind=kind, **details)})


def attributes(record: type) -> dict[str, Attribute]:
    """Return the attribute of each field of a kind of records, in their order."""
    return {one.name: one.metadata["attribute"] for one in fields(record) if one.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node as a resource manager reports it. None, "" and (): not reported. Memory and disk are in MB."""

    name: str
    state: str = _sent_as("STATE", Kind.WORD, brief=True)
    """A `NodeWord`, or whatever word a peer sent."""
    updated_at: int | None = _sent_as("UPDATETIME", Kind.TIME)
    load: float | None = _sent_as("CPULOAD", Kind.FLOAT)
    reason: str = _sent_as("CAT", Kind.TEXT, dialects=_TWO)
    """Why it is down or drained (CAT; WIKI2)."""
    classes: tuple[Count, ...] = _sent_as("CCLASS", Kind.CLASSES, brief=True)
    """Queues it serves, with the tasks each may have there. Maui also needs `classes_free`."""
    classes_free: tuple[Count, ...] = _sent_as("ACLASS", Kind.CLASSES, brief=True, dialects=_ONE)
    """When not given, what is sent to Maui is `classes`: it takes a missing ACLASS for "no room"."""
    architecture: str = _sent_as("ARCH", Kind.WORD)
    operating_system: str = _sent_as("OS", Kind.WORD)
    features: tuple[str, ...] = _sent_as("FEATURE", Kind.NAMES, synonym="FEATURES", brief=True)
    """Slurm's sched/wiki misspells the name; Maui matches by prefix and so never noticed."""
    partition: str = _sent_as("PARTITION", Kind.WORD, brief=True)
    memory: int | None = _sent_as("CMEMORY", Kind.COUNT, brief=True)
    memory_free: int | None = _sent_as("AMEMORY", Kind.COUNT)
    disk: int | None = _sent_as("CDISK", Kind.COUNT)
    processors: int | None = _sent_as("CPROC", Kind.COUNT, brief=True)
    processors_free: int | None = _sent_as("APROC", Kind.COUNT, brief=True)
    """Maui believes it as it is, and does not subtract its own running jobs; without it, it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as a resource manager reports it. None, "" and (): not reported. Memory is in MB.

    Points in time are seconds since the epoch, spans are seconds.
    """

    id: str
    state: str = _sent_as("STATE", Kind.WORD, brief=True)
    """A `JobWord`, or whatever word a peer sent."""
    exit_code: int | None = _sent_as("EXITCODE", Kind.COUNT, dialects=_TWO)
    features: tuple[str, ...] = _sent_as("RFEATURES", Kind.NAMES, brief=True)
    """All of them must be on its nodes."""
    host_list: tuple[str, ...] = _sent_as("HOSTLIST", Kind.HOSTS, brief=True)
    """Hosts it must use, one entry for each task slot."""
    excluded_hosts: tuple[str, ...] = _sent_as("EXCLUDE_HOSTLIST", Kind.HOSTS, brief=True, dialects=_TWO)
    eligible_at: int | None = _sent_as("STARTDATE", Kind.TIME, brief=True)
    task_list: tuple[str, ...] = _sent_as("TASKLIST", Kind.TASKS, brief=True)
    """Hosts on which it runs, one entry for each task."""
    rejection: str = _sent_as("REJMESSAGE", Kind.TEXT, quoted_in=frozenset(Dialect))
    directory: str = _sent_as("IWD", Kind.TEXT)
    executable: str = _sent_as("EXEC", Kind.TEXT)
    updated_at: int | None = _sent_as("UPDATETIME", Kind.TIME)
    walltime: int | None = _sent_as("WCLIMIT", Kind.COUNT, brief=True)
    """Seconds. Without it Maui assumes 100 days."""
    tasks: int | None = _sent_as("TASKS", Kind.COUNT, brief=True)
    nodes: int | None = _sent_as("NODES", Kind.COUNT, brief=True)
    """Exactly so many; not reported: any number."""
    tasks_per_node: int | None = _sent_as("TASKPERNODE", Kind.COUNT, brief=True, dialects=_ONE)
    processors_per_task: int | None = _sent_as("DPROCS", Kind.COUNT, brief=True)
    queued_at: int | None = _sent_as("QUEUETIME", Kind.TIME, brief=True)
    started_at: int | None = _sent_as("STARTTIME", Kind.TIME, brief=True)
    """0 while it waits."""
    partitions: tuple[str, ...] = _sent_as("PARTITIONMASK", Kind.NAMES, brief=True, dialects=_ONE)
    """Partitions of nodes that it may use; a name that no node has keeps it waiting for ever."""
    memory_per_task: int | None = _sent_as("DMEM", Kind.COUNT, brief=True, dialects=_ONE)
    queue: str = _sent_as("RCLASS", Kind.QUEUE, brief=True)
    """Class (Maui) or partition (Slurm). More than one, or with counts: as on the wire, ``[a:2][b:1]``."""
    memory: int | None = _sent_as("RMEM", Kind.COUNT, brief=True)
    """That a node must have configured."""
    comment: str = _sent_as("COMMENT", Kind.TEXT)
    completed_at: int | None = _sent_as("COMPLETETIME", Kind.TIME, synonym="COMPLETIONTIME", brief=True)
    """The document has another name than the code of Maui."""
    suspended_for: int | None = _sent_as("SUSPENDTIME", Kind.COUNT)
    account: str = _sent_as("ACCOUNT", Kind.TEXT)
    name: str = _sent_as("NAME", Kind.TEXT, dialects=_TWO)
    """Never sent to Maui, where it overwrites the job's id."""
    user: str = _sent_as("UNAME", Kind.WORD, brief=True)
    group: str = _sent_as("GNAME", Kind.WORD, brief=True)


# ---- writing --------------------------------------------------------------------------------------------------------

Plan = tuple[tuple[str, "Callable[[Value], str]"], ...]
"""How a record is written: the fields in their order, each with what writes its attribute."""

_NODE_WORDS: Final = frozenset(map(str, NodeWord))
_JOB_WORDS: Final = frozenset(map(str, JobWord))
_FIRST_FOR_MAUI: Final = ("STATE", "TASKLIST", "HOSTLIST", "STARTDATE", "RFEATURES")
_LAST_FOR_MAUI: Final = ("RCLASS", "COMMENT", "UNAME", "GNAME")
"""Attributes of a job that stand before, and after, all others in WIKI, as Slurm has them."""


def build_node(record: NodeRecord, dialect: Dialect, *, brief: bool = False) -> bytes:
    """Return the record of one node. ``brief``: only what a scheduler needs to decide. Raises WikiError."""
    if record.state not in _NODE_WORDS:
        raise WikiError(f"a node cannot be {record.state!r}", hint=f"allowed: {', '.join(NodeWord)}")
    if dialect is Dialect.WIKI and record.classes and not record.classes_free:
        record = replace(record, classes_free=record.classes)
    return _assemble(check_host(record.name), record, _plan(NodeRecord, dialect, HostFormat.PLAIN, brief))


def build_job(
    record: JobRecord, dialect: Dialect, *, hosts: HostFormat = HostFormat.PLAIN, brief: bool = False
) -> bytes:
    """Return the record of one job. ``brief``: only what a scheduler needs to decide.

    Raises WikiError for what cannot be sent: an id or host name with separators, a state that Maui does not know, a
    task list that Maui has no room for; and, to Maui, a job without user or number of tasks, which it would defer.
    """
    if record.state not in _JOB_WORDS:
        raise WikiError(f"a job cannot be {record.state!r}", hint=f"allowed: {', '.join(JobWord)}")
    if dialect is Dialect.WIKI and (not record.user or record.tasks is None):
        raise WikiError(f"job {record.id!r} needs a user and a number of tasks, or Maui defers it")
    return _assemble(check_id(record.id), record, _plan(JobRecord, dialect, hosts, brief))


def _assemble(name: str, record: NodeRecord | JobRecord, plan: Plan) -> bytes:
    values = ((getattr(record, attribute), write) for attribute, write in plan)
    written = (write(value) for value, write in values if value not in (None, "", ()))
    return f"{name}:{''.join(written)}".encode()


@cache
def _plan(record: type, dialect: Dialect, hosts: HostFormat, brief: bool) -> Plan:  # noqa: FBT001 - a key of the cache
    """Return how records are written: the fields in the order of the dialect, each with what writes its attribute."""
    written = [
        (name, attribute)
        for name, attribute in attributes(record).items()
        if dialect in attribute.dialects and (attribute.brief or not brief)
    ]
    if record is JobRecord and dialect is Dialect.WIKI:
        order = {name: place for place, name in enumerate((*_FIRST_FOR_MAUI, "", *_LAST_FOR_MAUI))}
        written.sort(key=lambda item: order.get(item[1].name, order[""]))
    return tuple((name, writer(attribute, dialect, hosts)) for name, attribute in written)


# -- Listings ------------------------------------------------------------------------------------------------
# The records of a whole reply, ``ARG=2#n1:STATE=Idle;#n2:STATE=Idle;``: put together, made to fit, and taken apart.

Record = TypeVar("Record", NodeRecord, JobRecord)

NO_RECORD: Final = "(null)"
"""What Slurm sends, and counts, for a job that does not exist."""
LONGEST_NAME: Final = 256
"""Characters of an id that is believed; a longer one is no id."""

_NEXT_RECORD: Final = re.compile(r"(?<!\\)#(?=[^\s:;#\"=]{1,256}:[A-Z][A-Z0-9_]*=|\(null\)|\Z)")
_OUTSIDE_QUOTES: Final = re.compile(r'(?:[^#"\\]|\\.|"(?:[^"\\]|\\.)*")+', re.DOTALL)
_ATTRIBUTE: Final = re.compile(
    r'(?P<name>[A-Z][A-Z0-9_]*)=(?:"(?P<quoted>.*?)"(?=;+(?:[A-Z][A-Z0-9_]*=|\Z)|\Z)'
    r"|(?P<bare>(?:\\.|[^\\])*?)(?=;+(?:[A-Z][A-Z0-9_]*=|\Z)|\Z));*",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


# ---- putting together -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One record as bytes, complete and in brief, so that it is built once and sent many times."""

    full: bytes
    brief: bytes
    finished: bool = False
    """It reports the end of a job: the first that is left out when there is no room."""


def join_records(records: Sequence[bytes]) -> bytes:
    """Return the message of a successful GETNODES or GETJOBS."""
    return b"SC=0 ARG=%d#%b" % (len(records), b"#".join(records))


def fit_records(records: Sequence[Prepared], *, limit: int) -> list[bytes]:
    """Return the records that fit into a message of ``limit`` bytes, shortened or left out where need be.

    What goes first, each only as far as needed and from the beginning of the list: the optional attributes of finished
    jobs, finished jobs altogether, the optional attributes of the others. Raises WikiError when it still is too much.
    """
    excess = sum(len(record.full) for record in records) + len(records) + len("SC=0 ARG=#") + 20 - limit
    chosen: list[bytes | None] = [record.full for record in records]
    for finished, drop in ((True, False), (True, True), (False, False)):
        for index, record in enumerate(records):
            if excess <= 0:
                return [text for text in chosen if text is not None]
            text = chosen[index]
            if record.finished is finished and text is not None:
                chosen[index] = None if drop else min(record.brief, text, key=len)
                excess -= len(text) + 1 if drop else len(text) - len(chosen[index] or b"")
    if excess > 0:
        raise WikiError(f"{len(records)} records are {excess} bytes too many for a reply of {limit} bytes")
    return [text for text in chosen if text is not None]


# ---- taking apart ---------------------------------------------------------------------------------------------------


def parse_nodes(argument: str) -> tuple[NodeRecord, ...]:
    """Return the nodes of a GETNODES reply (what follows ``ARG=``); ``n[1-3]:…`` becomes three. Raises WikiError."""
    nodes: list[NodeRecord] = []
    for node in _parse(argument, NodeRecord, "name"):
        names = expand(node.name) if "[" in node.name else (node.name,)
        nodes += [node] if names == (node.name,) else [replace(node, name=name) for name in names]
    return tuple(nodes)


def parse_jobs(argument: str) -> tuple[JobRecord, ...]:
    """Return the jobs of a GETJOBS reply (what follows ``ARG=``). Records ``(null)`` are left out. Raises WikiError."""
    return tuple(_parse(argument, JobRecord, "id"))


def _parse(argument: str, kind: type[Record], key: str) -> list[Record]:
    known = {
        word: (name, attribute)
        for name, attribute in attributes(kind).items()
        for word in {attribute.name, attribute.synonym} - {""}
    }
    records: list[Record] = []
    for text in split_records(argument):
        id_, colon, rest = text.partition(":")
        if colon and id_ and len(id_) <= LONGEST_NAME:
            records.append(kind(**{**_values(rest, known), key: id_}))
    return records


def split_records(argument: str) -> list[str]:
    """Return the texts between the ``#``, at most as many as announced. Raises WikiError without a number of records.

    When the number does not agree, a comment may contain ``#``: then only what is outside of quotes separates, or, if
    that does not agree either, what is followed by the beginning of a record.
    """
    count_text, _, rest = argument.partition("#")
    count = read_number(count_text)
    if count is None:
        raise WikiError(f"a list begins with its number of records, not with {argument[:40]!r}")
    if count <= 0 or not rest:
        return []
    texts = rest.split("#")
    if len(texts) != count:
        texts = [text for text in _OUTSIDE_QUOTES.findall(rest) if text]
    if len(texts) != count:
        texts = [text for text in _NEXT_RECORD.split(rest) if text]
    return [text for text in texts[:count] if text and text != NO_RECORD]


def _values(rest: str, known: Mapping[str, tuple[str, Attribute]]) -> dict[str, Any]:
    """Return the fields of a record by name. Quotes and escapes are handled as Maui does; unknown names are left out.

    ``known``: fields and attributes by their names on the wire.
    """
    values: dict[str, Any] = {}
    for found in _ATTRIBUTE.finditer(rest):
        if found["name"] not in known:
            continue
        name, attribute = known[found["name"]]
        quoted = found["quoted"]
        value = read(attribute, _ESCAPE.sub(r"\1", found["bare"] if quoted is None else quoted))
        if name == "memory" and isinstance(value, int):
            value = without_flags(value)
        if value is not None:
            values[name] = value
    return values
