# SPDX-License-Identifier: Apache-2.0
"""Slurm job ids: 123 for a job, 123_4 for an array element, 123_[1-4,7] for several elements in one argument.

Every id of ours that goes onto a command line passes through here, so that it is an id and nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError
from koala_adapter.model import LrmJobId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import LrmJob

_ID = re.compile(r"(?P<job>[0-9]{1,10})(?:_(?P<element>[0-9]{1,10})|\+[0-9]{1,5})?", re.ASCII)

_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?", re.ASCII)

MAXIMUM_ELEMENTS = 5_000_000
"""No array is larger (slurm.conf(5), MaxArraySize); more in a listing is nonsense, and would fill the memory."""

ARGUMENTS_PER_COMMAND = 200
ELEMENTS_PER_ARGUMENT = 500
"""Ranges of elements in one argument: keeps an argument below 12 KB."""


def array_ids(job: str, count: int) -> tuple[LrmJobId, ...]:
    """Return the ids of elements 1 to ``count`` of an array."""
    return tuple(LrmJobId(f"{job}_{index}") for index in range(1, count + 1))


def array_index(job: str) -> int | None:
    """Return the element number in an id; None when it names no array element."""
    match = _ID.fullmatch(job)
    return int(match["element"]) if match and match["element"] else None


def waiting_elements(text: str) -> tuple[int, ...]:
    """Return the numbers in ``1-4,7,10-20:5%2``, as squeue writes the elements of an array that wait together.

    Raises ValueError for anything else, such as a list that was cut short.
    """
    numbers: list[range] = []
    for item in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(item)
        if not match or match[3] == "0":
            raise ValueError(f"array elements {text[:100]!r} cannot be read")
        numbers.append(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    if sum(map(len, numbers)) > MAXIMUM_ELEMENTS:
        raise ValueError(f"array elements {text[:100]!r} are too many")
    return tuple(number for part in numbers for number in part)


def checked(job: str) -> str:
    """Return ``job``. Raises LrmNotFoundError when it has not the form of a Slurm job id, so no such job can exist."""
    if not _ID.fullmatch(job):
        raise LrmNotFoundError(f"{job!r} is no Slurm job id", hint="Slurm job ids look like 123 or 123_4")
    return job


def compacted(jobs: Iterable[str], sizes: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """Return the fewest arguments that name exactly these jobs, in order of first appearance.

    Elements of one array share an argument (``123_[1-3,7]``). With ``sizes`` (elements of each array that is known
    whole) an array of which every element is named becomes its bare id, which Slurm handles as one request. Raises
    LrmNotFoundError for an id of wrong form.
    """
    groups: dict[str, set[int]] = {}
    whole = {job: size for job, size in (sizes or {}).items() if size > 0}
    bare: set[str] = set()
    for job in jobs:
        match = _ID.fullmatch(checked(job))
        if match and match["element"]:
            groups.setdefault(match["job"], set()).add(int(match["element"]))
        else:
            groups.setdefault(job, set())
            bare.add(job)
    bare |= {job for job, size in whole.items() if groups.get(job) == set(range(1, size + 1))}
    return tuple(
        argument
        for job, elements in groups.items()
        for argument in ([job] if job in bare else _arguments(job, elements))
    )


def _arguments(job: str, elements: set[int]) -> Iterator[str]:
    ranges = list(_ranges(sorted(elements)))
    for start in range(0, len(ranges), ELEMENTS_PER_ARGUMENT):
        part = ranges[start : start + ELEMENTS_PER_ARGUMENT]
        single = len(part) == 1 and "-" not in part[0]
        yield f"{job}_{part[0]}" if single else f"{job}_[{','.join(part)}]"


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    first = previous = numbers[0]
    for number in (*numbers[1:], None):
        if number is not None and number == previous + 1:
            previous = number
            continue
        yield str(first) if first == previous else f"{first}-{previous}"
        if number is not None:
            first = previous = number


def turn(job: LrmJob) -> tuple[int, int]:
    """Return what brings jobs into the order of their numbers."""
    number = job.id.partition("_")[0].partition("+")[0]
    return int(number), job.array_index or 0
