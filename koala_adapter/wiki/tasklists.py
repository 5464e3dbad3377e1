# SPDX-License-Identifier: Apache-2.0
"""The order of a running job's task list, in which Maui must notice every change of its size. Pure.

Maui compares the new list with the one it knows entry by entry, up to the length of the *new* list, and only looks
further at the first difference (WIKI.md 6.4, seen): a list that shrinks to a beginning of itself keeps the freed nodes
charged for ever. So new hosts come first, and a list that shrinks is turned until its first entry differs.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def next_task_list(before: Sequence[str], counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the list to report next for a job that has ``counts`` tasks on each host, and was reported ``before``.

    Equal hosts are adjacent. The same counts give the same list again. Where all that is left lies on one host no order
    makes a difference, and Maui cannot notice.
    """
    counts = {host: count for host, count in counts.items() if count > 0}
    known = list(dict.fromkeys(before))
    old = {host: before.count(host) for host in known}
    if old == counts:
        return tuple(before)
    new = [host for host in counts if counts[host] > old.get(host, 0)]
    kept = [host for host in known if host in counts and host not in new]
    order = new + kept
    listed = _written(order, counts)
    if _is_beginning(listed, before):
        turned = order[1:] + order[:1]
        listed = _written(turned, counts)
    return listed


def _written(order: Sequence[str], counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(host for host in order for _ in range(counts[host]))


def _is_beginning(listed: Sequence[str], before: Sequence[str]) -> bool:
    return len(listed) <= len(before) and tuple(before[: len(listed)]) == tuple(listed)


def host_counts(tasks: Sequence[str]) -> dict[str, int]:
    """Return the number of tasks on each host, in order of first appearance."""
    counts: dict[str, int] = {}
    for host, same in groupby(tasks):
        counts[host] = counts.get(host, 0) + len(list(same))
    return counts
