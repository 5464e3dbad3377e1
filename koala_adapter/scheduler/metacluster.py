# SPDX-License-Identifier: Apache-2.0
"""The upper of Metacluster's two levels: which cluster a job goes to. Pure.

Gergel, Kustikova and Senin (2011): of the clusters that satisfy the requirements of a job take the least loaded; the
cluster's own queue, under FCFS or simple backfill, decides the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def least_loaded(loads: Sequence[int], sizes: Sequence[int], processors: int) -> int:
    """Return the index of the least loaded cluster that is large enough; among equals the larger, then the first.

    ``loads``: processors that the jobs of each cluster need, running or waiting; ``sizes``: processors of each. The
    load is the one over the other, so it exceeds 1 where jobs wait. Raises ValueError when no cluster is large enough.
    """
    suitable = [index for index, size in enumerate(sizes) if size >= processors]
    return min(suitable, key=lambda index: (loads[index] / sizes[index], -sizes[index]))
