# SPDX-License-Identifier: Apache-2.0
"""Which processors of the fake are free, and which of them a job gets: as Slurm does it, one node after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.slurm.state import Job, State, Store

LIST_IS_A_CHOICE_SINCE = (23, 11)
"""From here on a list of more nodes than a job needs says where it may start, before where it must."""


def used_processors(state: State, node: str) -> int:
    """Return the processors of a node that jobs have."""
    return sum(job.places.get(node, 0) for job in state.jobs if job.alive)


def free_processors(store: Store, state: State, node: str, reservation: str = "") -> int:
    """Return the processors of a node that a job can have, in a reservation or outside of all."""
    inside = {one.name: one.cores.get(node, 0) for one in state.reservations}
    if reservation:
        return inside[reservation] - _used_in(state, node, reservation)
    outside = used_processors(state, node) - sum(_used_in(state, node, name) for name in inside)
    return store.settings["nodes"][node] - sum(inside.values()) - outside


def _used_in(state: State, node: str, reservation: str) -> int:
    return sum(job.places.get(node, 0) for job in state.jobs if job.alive and job.reservation == reservation)


def place(store: Store, state: State, job: Job) -> dict[str, int] | None:
    """Return the processors on each node with which a job can start now; None when there are too few."""
    choice = store.release >= LIST_IS_A_CHOICE_SINCE and len(job.wanted) > job.nodes_low
    required = [] if choice else job.wanted
    others = job.wanted if choice else [name for name in store.settings["nodes"] if name not in required]
    low = max(job.nodes_low, len(required))
    high = job.nodes_high or len(store.settings["nodes"])
    return None if low > high else _fill(store, state, job, [*required, *others], low=low, high=high)


def _fill(store: Store, state: State, job: Job, nodes: Sequence[str], *, low: int, high: int) -> dict[str, int] | None:
    chosen: dict[str, int] = {}
    missing = job.processors
    for name in nodes:
        if len(chosen) == high or (missing == 0 and len(chosen) >= low):
            break
        kept = job.least * max(0, low - len(chosen) - 1)
        count = min(free_processors(store, state, name, job.reservation), missing - kept)
        if count >= job.least:
            chosen[name] = count
            missing -= count
    return chosen if missing == 0 and len(chosen) >= low else None
