# SPDX-License-Identifier: Apache-2.0
"""Values of attributes: how each kind is written so that no peer is harmed, and read as Maui would read it. Pure."""

from __future__ import annotations

import math
import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.hostlists import check_host, check_tasks, compressed, expand, folded, plain
from koala_adapter.wiki.codec.words import Dialect, HostFormat, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.wiki.codec.words import Attribute

LARGEST_NUMBER = (1 << 63) - 1
FLAG_BITS = (1 << 63) | (1 << 31)
"""Slurm's sched/wiki leaves the flag "for each processor" in RMEM; no node has 2 PiB of memory."""

_NOT_IN_WORD = re.compile(r'[\s:;#"\\=\x00-\x1f\x7f]')
_NOT_IN_NAME = re.compile(r'[\s:;#"\\=,\[\]\x00-\x1f\x7f]')
_NOT_IN_COMPARISON = re.compile(r"[^<>=]")
_NOT_IN_TEXT = re.compile(r'[:;#"\\\x00-\x1f\x7f]')
_NOT_IN_QUOTED_TEXT = re.compile(r'[;#"\\\x00-\x1f\x7f]')
_BASE_0 = re.compile(
    r"\s*(?P<sign>[+-]?)(?:0[xX](?P<hexadecimal>[0-9a-fA-F]{1,32})|(?P<octal>0[0-7]{0,40})|(?P<decimal>[0-9]{1,40}))",
    re.ASCII,
)
_BASE_10 = re.compile(r"\s*(?P<number>[+-]?[0-9]{1,40})", re.ASCII)
_FLOAT = re.compile(r"\s*[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_CLASS = re.compile(r"\[([^\[\]:]*)(?::([^\[\]]*))?\]")
_LONGEST_QUICK_NUMBER = 18


class Count(NamedTuple):
    """A class (queue) of a node and how many tasks it takes; or a resource and how many there are."""

    name: str
    amount: int


Value = str | int | float | tuple[str, ...] | tuple[Count, ...]


# -- writing ------------------------------------------------------------------------------------------------------


def writer(attribute: Attribute, dialect: Dialect, hosts: HostFormat) -> Callable[[Value], str]:
    """Return what writes an attribute in a dialect, as ``NAME=value;``, or as nothing when the value is empty."""
    quoted = dialect in attribute.quoted_in
    writers: dict[Kind, Callable[..., str]] = {
        Kind.COUNT: partial(_number, attribute.name),
        Kind.FLOAT: _float,
        Kind.WORD: _comparison if attribute.name.endswith("CMP") else clean_word,
        Kind.TEXT: partial(_text, dialect=dialect, quoted=quoted),
        Kind.NAMES: _names,
        Kind.TASKS: partial(_tasks, dialect=dialect, hosts=hosts),
        Kind.HOSTS: partial(_hosts, dialect=dialect, hosts=hosts),
        Kind.CLASSES: _classes,
        Kind.QUEUE: partial(_queue, dialect=dialect),
        Kind.RESOURCES: _resources,
    }
    if attribute.kind is Kind.TIME:
        return partial(_time, f"{attribute.name}=")
    write = partial(_named, f"{attribute.name}=", writers[attribute.kind])
    # The values of most kinds repeat from record to record, and all are immutable.
    return write if attribute.kind in {Kind.TASKS, Kind.HOSTS} else lru_cache(maxsize=1024)(write)


def _named(prefix: str, write: Callable[[Value], str], value: Value) -> str:
    text = write(value)
    return f"{prefix}{text};" if text else ""


def _time(prefix: str, value: int) -> str:
    if 0 <= value <= LARGEST_NUMBER:
        return f"{prefix}{value:d};"
    raise WikiError(f"{prefix} cannot be {value}: WIKI has numbers from 0 to 2^63-1")


def _number(name: str, value: int) -> str:
    if not 0 <= value <= LARGEST_NUMBER:
        raise WikiError(f"{name} cannot be {value}: WIKI has numbers from 0 to 2^63-1")
    return str(int(value))


def _float(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ""


@lru_cache(maxsize=4096)
def clean_word(value: str) -> str:
    """Return one word: whatever would separate it is replaced."""
    return _NOT_IN_WORD.sub("_", _printable(value))


@lru_cache(maxsize=4096)
def _clean_name(value: str) -> str:
    return _NOT_IN_NAME.sub("_", _printable(value))


def clean_text(value: str, dialect: Dialect) -> str:
    """Return free text without anything that a reader of the dialect could take for a separator."""
    pattern = _NOT_IN_TEXT if dialect is Dialect.WIKI else _NOT_IN_QUOTED_TEXT
    return pattern.sub("_", _printable(value)).strip()


def _printable(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _comparison(value: str) -> str:
    return _NOT_IN_COMPARISON.sub("", value)


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
        return f'"{clean_text(value, dialect)}"'
    named = read_classes(value) if value.startswith("[") else (Count(value, 1),)
    return _classes(named)


def _resources(values: Iterable[Count]) -> str:
    return ",".join(f"{_clean_name(name)}:{_number(name, amount)}" for name, amount in values if name)


# -- reading ------------------------------------------------------------------------------------------------------


def read(attribute: Attribute, text: str) -> Value | None:
    """Return the value of an attribute as Maui would read it; None when there is none."""
    value = text.strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return _READERS[attribute.kind](value) if value else None


def read_number(text: str) -> int | None:
    """Return the number at the beginning of a text, as ``strtol(text, NULL, 0)`` reads it; None without one."""
    if len(text) <= _LONGEST_QUICK_NUMBER and text.isascii() and text.isdigit() and (text[0] != "0" or text == "0"):
        return int(text)
    found = _BASE_0.match(text)
    if not found:
        return None
    digits, base = next(
        (found[name], base) for name, base in (("hexadecimal", 16), ("octal", 8), ("decimal", 10)) if found[name]
    )
    number = int(digits, base) * (-1 if found["sign"] == "-" else 1)
    return max(-LARGEST_NUMBER, min(number, (1 << 64) - 1))


def read_time(text: str) -> int | None:
    """Return the decimal number at the beginning of a text; None without one."""
    if len(text) <= _LONGEST_QUICK_NUMBER and text.isascii() and text.isdigit():
        return int(text)
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


def _read_resources(text: str) -> tuple[Count, ...]:
    pairs = (item.partition(":") for item in text.split(","))
    return tuple(Count(name, read_time(number) or 0) for name, _, number in pairs if name)


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
    Kind.RESOURCES: _read_resources,
}
