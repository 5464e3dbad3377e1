# SPDX-License-Identifier: Apache-2.0
"""Which processors of the fake are free, and where the chunks of a job go."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.fakes.pbs.state import ALIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fakes.pbs.state import Job, State, Store

_SELECT = re.compile(r"\d+(:[a-z_]+=[^:+]+)*(\+\d+(:[a-z_]+=[^:+]+)*)*")


def is_selection(text: str) -> bool:
    """Tell whether a text is one that the server takes."""
    return bool(_SELECT.fullmatch(text))


def chunks_of(select: str) -> list[dict[str, str]]:
    """Return the resources of each chunk."""
    found: list[dict[str, str]] = []
    for part in select.split("+"):
        count, *words = part.split(":")
        found += [dict(word.split("=", 1) for word in words)] * int(count)
    return found


def processors_of(select: str) -> int:
    """Return all processors of a selection."""
    return sum(int(chunk.get("ncpus", "1")) for chunk in chunks_of(select))


def places_of(exec_vnode: str) -> dict[str, int]:
    """Return the processors on each vnode of an exec_vnode."""
    counts: dict[str, int] = {}
    for part in exec_vnode.replace("(", "").replace(")", "").split("+"):
        name, *words = part.split(":")
        if name:
            counts[name] = counts.get(name, 0) + int(dict(word.split("=", 1) for word in words).get("ncpus", "1"))
    return counts


def used_processors(state: State, vnode: str) -> int:
    """Return the processors of a vnode that jobs have; those of suspended ones are given back."""
    return sum(
        places_of(job.exec_vnode).get(vnode, 0) for job in state.jobs if job.letter in ALIVE and job.letter != "S"
    )


def place(store: Store, state: State, job: Job) -> str | None:
    """Return the exec_vnode with which a job can start now; None when there is no room."""
    free: Mapping[str, int] = store.settings["nodes"]
    left = {name: count - used_processors(state, name) for name, count in free.items() if name not in state.offline}
    parts = []
    before: set[str] = set()
    for chunk in chunks_of(job.select):
        count = int(chunk.get("ncpus", "1"))
        allowed = [name for name in left if chunk.get("vnode", name) == name]
        if "scatter" in job.place:
            allowed = [name for name in allowed if name not in before]
        elif "pack" in job.place and before:
            allowed = [name for name in allowed if name in before]
        name = next((name for name in allowed if left[name] >= count), None)
        if name is None:
            return None
        left[name] -= count
        before.add(name)
        parts.append(f"({name}:ncpus={count})")
    return "+".join(parts)
