# SPDX-License-Identifier: Apache-2.0
"""Host and task lists of WIKI: plain (``n1:n1:n2``), compressed (``n[1-2]*2:n3*1``), with ranges and commas.

A task list has one entry for each task; equal hosts are adjacent. Maui understands only the plain form. Pure.
"""

from __future__ import annotations

import re
from itertools import groupby, product
from typing import TYPE_CHECKING

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.words import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LONGEST_ID = 63
"""Bytes of a node name or job id that Maui stores."""
MOST_HOSTS = 200_000
"""A list that claims more entries is nonsense, and would otherwise fill the memory."""
LONGEST_TASK_LIST = 65_000
"""Bytes: Maui has buffers of 64 KiB for an attribute, and for the STARTJOB that repeats the list."""
MOST_TASKS = 8192
"""Tasks of one job that Maui has room for; it does not check."""
MOST_NODES_OF_JOB = 1024
"""Nodes of one job that Maui has room for."""

_NOT_IN_ID = re.compile(r'[\s:;#"\'\\=,@\x00-\x1f\x7f\ud800-\udfff]')
_NOT_IN_HOST = re.compile(r'[\s:;#"\'\\=,@*\[\]()\x00-\x1f\x7f\ud800-\udfff]')
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?", re.ASCII)
_REPEATED = re.compile(r"(?P<hosts>.*?)(?:\*(?P<times>[0-9]{1,9}))?", re.ASCII | re.DOTALL)
_NUMBERED = re.compile(r"(?P<prefix>.*?)(?P<number>[0-9]{1,9})", re.ASCII | re.DOTALL)


def check_id(text: str) -> str:
    """Return a job id that may go into a message. Raises WikiError: it cannot be replaced, it names something."""
    return _check(text, _NOT_IN_ID, "job id")


def check_host(text: str) -> str:
    """Return a node name that may go into a message. Raises WikiError."""
    return _check(text, _NOT_IN_HOST, "node name")


def _check(text: str, forbidden: re.Pattern[str], what: str) -> str:
    if not text or forbidden.search(text) or (len(text) > LONGEST_ID // 4 and len(text.encode()) > LONGEST_ID):
        raise WikiError(
            f"{text[:80]!r} cannot be a {what} in WIKI",
            hint=f"at most {LONGEST_ID} bytes, without separators, quotes and blanks",
        )
    return text


def check_tasks(hosts: Sequence[str]) -> None:
    """Raise WikiError when a task list has more entries, nodes or bytes than Maui has room for."""
    size = sum(map(len, hosts)) + len(hosts)
    if len(hosts) > MOST_TASKS or size > LONGEST_TASK_LIST or len(set(hosts)) > MOST_NODES_OF_JOB:
        raise WikiError(
            f"a task list of {len(hosts)} tasks on {len(set(hosts))} nodes ({size} bytes) is too large for Maui",
            hint=f"at most {MOST_TASKS} tasks, {MOST_NODES_OF_JOB} nodes, {LONGEST_TASK_LIST} bytes",
        )


def plain(hosts: Iterable[str]) -> str:
    """Return the list as ``n1:n1:n2``. Raises WikiError for a name that cannot be written."""
    listed = list(hosts)
    for host in dict.fromkeys(listed):
        check_host(host)
    return ":".join(listed)


def compressed(hosts: Iterable[str]) -> str:
    """Return the list as ``n[1-2]*2:n3*1``, in the same order. Only for WIKI2. Raises WikiError."""
    counted = [(check_host(host), len(list(same))) for host, same in groupby(hosts)]
    items = []
    for times, group in groupby(counted, key=lambda pair: pair[1]):
        items += [f"{part}*{times}" for part in folded([host for host, _ in group])]
    return ":".join(items)


def ranges(hosts: Iterable[str]) -> str:
    """Return the list as ``n[1-3,5],m1``, in the same order: node lists of JOBWILLRUN. Raises WikiError."""
    return ",".join(folded([check_host(host) for host in hosts]))


def folded(hosts: Iterable[str]) -> list[str]:
    """Return expressions such as ``n[1-3,5]`` that together list the hosts in the same order."""
    parts: list[str] = []
    for prefix, numbers in _ascending_runs(hosts):
        if len(numbers) < 2:  # noqa: PLR2004 - one host needs no brackets
            parts.append(prefix + "".join(numbers))
            continue
        parts.append(f"{prefix}[{','.join(_spans(numbers))}]")
    return parts


def _ascending_runs(hosts: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    prefix, numbers = "", list[str]()
    for host in hosts:
        match = _NUMBERED.fullmatch(host)
        if match and numbers and match["prefix"] == prefix and int(match["number"]) > int(numbers[-1]):
            numbers.append(match["number"])
            continue
        if prefix or numbers:
            yield prefix, numbers
        prefix, numbers = (match["prefix"], [match["number"]]) if match else (host, [])
    if prefix or numbers:
        yield prefix, numbers


def _spans(numbers: Sequence[str]) -> Iterator[str]:
    first = last = numbers[0]
    for number in numbers[1:]:
        # A range repeats the width of its first number.
        if number == str(int(last) + 1).zfill(len(first)):
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number
    yield first if first == last else f"{first}-{last}"


def expand(text: str, *, limit: int = MOST_HOSTS) -> tuple[str, ...]:
    """Return the hosts of a list in any of the forms, one entry for each task; empty entries are left out.

    Raises WikiError (status -300) when it cannot be understood or has more than ``limit`` entries.
    """
    if not any(character in text for character in "*[],"):
        plainly = tuple(filter(None, text.split(":")))
        if len(plainly) > limit:
            raise WikiError(f"a host list of {len(plainly)} entries is too long", status=Status.BAD_REQUEST)
        return plainly
    hosts: list[str] = []
    for item in _split(text, ":"):
        match = _REPEATED.fullmatch(item)
        if not match or "*" in match["hosts"]:
            raise _not_understood(text)
        times = int(match["times"] or 1)
        for part in _split(match["hosts"], ","):
            for host in _expand_part(part, limit):
                if len(hosts) + times > limit:
                    raise WikiError("a host list is too long", status=Status.BAD_REQUEST)
                hosts += [host] * times
    return tuple(hosts)


def _not_understood(text: str) -> WikiError:
    return WikiError(f"a host list cannot be understood: {text[:80]!r}", status=Status.BAD_REQUEST)


def _split(text: str, separator: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == separator and depth == 0:
            if position > start:
                yield text[start:position]
            start = position + 1
    if start < len(text):
        yield text[start:]


def _expand_part(part: str, limit: int) -> Iterable[str]:
    if "[" not in part and "]" not in part:
        return (part,)
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    if any("[" in piece or "]" in piece for piece in pieces):
        raise _not_understood(part)
    choices = [[piece] if index % 2 == 0 else _numbers(piece, limit) for index, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
        if total > limit:
            raise WikiError("a host list is too long", status=Status.BAD_REQUEST)
    return ("".join(names) for names in product(*choices))


def _numbers(piece: str, limit: int) -> list[str]:
    numbers: list[str] = []
    for item in piece.split(","):
        match = _RANGE.fullmatch(item)
        if not match:
            raise _not_understood(f"[{piece}]")
        first, last = match["first"], match["last"] or match["first"]
        if int(last) < int(first) or len(numbers) + int(last) - int(first) >= limit:
            raise _not_understood(f"[{piece}]")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
