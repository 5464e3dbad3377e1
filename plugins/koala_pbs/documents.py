# SPDX-License-Identifier: Apache-2.0
"""Reading what qstat and pbsnodes print as JSON, which often is none. Pure.

Values come as text, whatever PBS takes them for: 23.06 prints a job called 1e5 as the number 100000.0, and 007 as a
number that JSON does not have. Older releases leave quotes and backslashes in values as they are, and put an attribute
there twice. So what is no JSON is read line by line: all releases print each attribute on a line of its own, and the
indentation tells where an entry begins. An entry that is there twice, or cannot be read, is refused by its name: then
nothing is believed.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Attributes: TypeAlias = "Mapping[str, str | Mapping[str, str]]"
"""The attributes of one job, node or queue; resources and variables are mappings themselves."""

Reader: TypeAlias = "Callable[[str, str], dict[str, Attributes]]"
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


# -- what is no JSON -------------------------------------------------------------------------------------------------


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
