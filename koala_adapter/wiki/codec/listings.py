# SPDX-License-Identifier: Apache-2.0
"""The records of a whole reply, ``ARG=2#n1:STATE=Idle;#n2:STATE=Idle;``: put together, made to fit, and taken apart.

Both ways are written for 100,000 jobs a second: records may be kept as bytes and only changed ones built again, and a
reader looks at each different ``NAME=value`` once. Pure.
"""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.hostlists import expand
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord
from koala_adapter.wiki.codec.values import Value, read, read_number, without_flags
from koala_adapter.wiki.codec.words import (
    DOCUMENT_SYNONYMS,
    JOB_ATTRIBUTES,
    NODE_ATTRIBUTES,
    NODE_SYNONYMS,
    Attribute,
    Kind,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Record = TypeVar("Record", NodeRecord, JobRecord)

NO_RECORD: Final = "(null)"
"""What Slurm sends, and counts, for a job that does not exist."""
LONG_LIST: Final = 5000
"""Records from which on the search for garbage pauses: it would look at all of them again and again, for nothing."""
LONGEST_NAME: Final = 256
"""Characters of an id that is believed; a longer one is no id."""

_NODES: Final = {attribute.name: attribute for attribute in NODE_ATTRIBUTES}
_JOBS: Final = {attribute.name: attribute for attribute in JOB_ATTRIBUTES}
_NODES.update({wrong: _NODES[right] for wrong, right in NODE_SYNONYMS.items()})
_JOBS.update({wrong: _JOBS[right] for wrong, right in DOCUMENT_SYNONYMS.items()})

_NEXT_RECORD: Final = re.compile(r"(?<!\\)#(?=[^\s:;#\"=]{1,256}:[A-Z][A-Z0-9_]*=|\(null\)|\Z)")
_ATTRIBUTE: Final = re.compile(
    r'(?P<name>[A-Z][A-Z0-9_]*)=(?:"(?P<quoted>.*?)"(?=;+(?:[A-Z][A-Z0-9_]*=|\Z)|\Z)'
    r"|(?P<bare>(?:\\.|[^\\])*?)(?=;+(?:[A-Z][A-Z0-9_]*=|\Z)|\Z));*",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_TIMES: Final = frozenset(item.field for item in (*NODE_ATTRIBUTES, *JOB_ATTRIBUTES) if item.kind is Kind.TIME)
_UNCLEAR: Final = ("", None)
"""What stands in the table of seen attributes for one that cannot be told from its text alone."""


# -- putting together ---------------------------------------------------------------------------------------------


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
    """Return the records for a message of at most ``limit`` bytes, as completely as there is room.

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


# -- taking apart -------------------------------------------------------------------------------------------------


def parse_nodes(argument: str) -> tuple[NodeRecord, ...]:
    """Return the nodes of a GETNODES reply (what follows ``ARG=``); ``n[1-3]:…`` becomes three. Raises WikiError."""
    nodes: list[NodeRecord] = []
    for node in _parse(argument, NodeRecord, "name", _NODES):
        names = expand(node.name) if "[" in node.name else (node.name,)
        nodes += [node] if names == (node.name,) else [replace(node, name=name) for name in names]
    return tuple(nodes)


def parse_jobs(argument: str) -> tuple[JobRecord, ...]:
    """Return the jobs of a GETJOBS reply (what follows ``ARG=``). Records ``(null)`` are left out. Raises WikiError."""
    return tuple(_parse(argument, JobRecord, "id", _JOBS))


def _parse(argument: str, kind: type[Record], key: str, table: Mapping[str, Attribute]) -> list[Record]:
    texts = split_records(argument)
    collecting = len(texts) >= LONG_LIST and gc.isenabled()
    if collecting:
        gc.disable()
    try:
        return _read(texts, kind, key, table)
    finally:
        if collecting:
            gc.enable()


def _read(texts: Sequence[str], kind: type[Record], key: str, table: Mapping[str, Attribute]) -> list[Record]:
    seen: dict[str, tuple[str, Value | None]] = {}
    records: list[Record] = []
    for text in texts:
        id_, colon, rest = text.partition(":")
        if not colon or not id_ or len(id_) > LONGEST_NAME:
            continue
        values: dict[str, object] = {}
        for item in rest.split(";"):
            known = seen.get(item)
            if known is None:
                known = _attribute(item, table)
                if known[0] not in _TIMES:  # they rarely repeat
                    seen[item] = known
            name, value = known
            if value is not None:
                values[name] = value
            elif not name and item:
                values = _carefully(rest, table)
                break
        values[key] = id_
        record = object.__new__(kind)
        object.__setattr__(record, "__dict__", values)
        records.append(record)
    return records


def split_records(argument: str) -> list[str]:
    """Return the texts between the ``#``, at most as many as announced. Raises WikiError without a number of records.

    When the number does not agree, a comment may contain ``#``: then only what is followed by the beginning of a
    record separates.
    """
    count_text, _, rest = argument.partition("#")
    count = read_number(count_text)
    if count is None:
        raise WikiError(f"a list begins with its number of records, not with {argument[:40]!r}")
    if count <= 0 or not rest:
        return []
    texts = rest.split("#")
    if len(texts) != count:
        texts = [text for text in _NEXT_RECORD.split(rest) if text]
    return [text for text in texts[:count] if text and text != NO_RECORD]


def _attribute(item: str, table: Mapping[str, Attribute]) -> tuple[str, Value | None]:
    """Return field and value of an attribute that stands for itself, or _UNCLEAR when its neighbours are needed."""
    name, equals, text = item.partition("=")
    attribute = table.get(name)
    if not equals or attribute is None or "\\" in text or ('"' in text and not _is_quoted(text)):
        return _UNCLEAR
    return _value(attribute, text)


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]


def _value(attribute: Attribute, text: str) -> tuple[str, Value | None]:
    value = read(attribute, text)
    if attribute.field == "memory" and isinstance(value, int):
        value = without_flags(value)
    return attribute.field, value


def _carefully(rest: str, table: Mapping[str, Attribute]) -> dict[str, object]:
    """Read a record with quotes, escapes, unknown names, or separators inside of values."""
    values: dict[str, object] = {}
    extra: list[tuple[str, str]] = []
    for found in _ATTRIBUTE.finditer(rest):
        quoted = found["quoted"]
        text = _ESCAPE.sub(r"\1", found["bare"] if quoted is None else quoted)
        attribute = table.get(found["name"])
        if attribute is None:
            extra.append((found["name"], text))
            continue
        field, value = _value(attribute, text)
        if value is not None:
            values[field] = value
    if extra:
        values["extra"] = tuple(extra)
    return values
