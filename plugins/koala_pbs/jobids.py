# SPDX-License-Identifier: Apache-2.0
"""PBS job ids: ``123.server`` for a job, ``123[].server`` for an array, ``123[4].server`` for an element. Pure.

Every id of ours that goes onto a command line passes through here, so that it is an id and nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError
from koala_adapter.model import LrmJobId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUBMITTED = re.compile(r"[0-9]{1,12}(\[\])?(\.[A-Za-z0-9][A-Za-z0-9._-]*)?", re.ASCII)
"""What qsub prints."""

_ID = re.compile(
    r"(?P<number>[0-9]{1,12})(?:\[(?P<element>[0-9]{0,10})\])?(?P<server>(?:\.[A-Za-z0-9][A-Za-z0-9._-]*)?)", re.ASCII
)


def _match(job: str) -> re.Match[str]:
    match = _ID.fullmatch(job)
    if not match:
        raise LrmNotFoundError(f"{job!r} is no PBS job id", hint="PBS job ids look like 123.server or 123[4].server")
    return match


def checked(job: str) -> str:
    """Return ``job``. Raises LrmNotFoundError when it has not the form of a PBS job id, so no such job can exist."""
    _match(job)
    return job


def is_job_id(text: str) -> bool:
    """Tell whether a text has the form of an id of a job, an array or an element."""
    return _ID.fullmatch(text) is not None


def is_array(job: str) -> bool:
    """Tell whether an id is that of a whole array."""
    match = _ID.fullmatch(job)
    return bool(match and match["element"] == "")


def array_index(job: str) -> int | None:
    """Return the element number in an id; None when it names no array element."""
    match = _ID.fullmatch(job)
    return int(match["element"]) if match and match["element"] else None


def array_of(job: str) -> str:
    """Return the id of the array that an element belongs to; other ids as they are. Raises LrmNotFoundError."""
    match = _match(job)
    return job if match["element"] is None else f"{match['number']}[]{match['server']}"


def array_of_range(argument: str) -> str:
    """Return the id of the array of a range of elements (``123[1-4].server``); ids of jobs as they are."""
    number, opening, rest = argument.partition("[")
    return f"{number}[]{rest.partition(']')[2]}" if opening else argument


def server_in(job: str) -> str:
    """Return the server that gave a job its id; empty when the id does not say. Raises LrmNotFoundError."""
    return _match(job)["server"].removeprefix(".")


def element_ids(array: str, numbers: Iterable[int]) -> tuple[LrmJobId, ...]:
    """Return the ids of elements of an array."""
    match = _match(array)
    return tuple(LrmJobId(f"{match['number']}[{number}]{match['server']}") for number in numbers)


def compacted(jobs: Iterable[str], *, whole: Iterable[str] = ()) -> Iterator[str]:
    """Yield the fewest arguments that name these jobs: adjacent elements of an array as ``123[1-4].server``.

    ``whole``: arrays all of whose elements are named. qdel takes no lists of elements, only such ranges. Raises
    LrmNotFoundError for an id of wrong form.
    """
    arrays = set(whole)
    groups: dict[tuple[str, str], set[int]] = {}
    for job in jobs:
        match = _match(job)
        if match["element"]:
            groups.setdefault((match["number"], match["server"]), set()).add(int(match["element"]))
        else:
            yield job
    for (number, server), elements in groups.items():
        if f"{number}[]{server}" in arrays:
            yield f"{number}[]{server}"
        else:
            yield from (f"{number}[{text}]{server}" for text in _ranges(sorted(elements)))


def _ranges(numbers: list[int]) -> Iterator[str]:
    first = previous = numbers[0]
    for number in (*numbers[1:], None):
        if number is not None and number == previous + 1:
            previous = number
            continue
        yield str(first) if first == previous else f"{first}-{previous}"
        if number is not None:
            first = previous = number
