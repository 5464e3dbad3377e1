# SPDX-License-Identifier: Apache-2.0
"""What a WIKI resource manager keeps of each node and job, and of what it has promised. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.model import EndReason, LrmJob, LrmJobState
from koala_adapter.wiki.recordbuilder import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from koala_adapter.model import Node
    from koala_adapter.wiki.codec.listings import Prepared
    from koala_adapter.wiki.sources import Place

Entry = TypeVar("Entry", "NodeEntry", "JobEntry")


@dataclass(slots=True, kw_only=True)
class NodeEntry:
    """A node as it was last seen."""

    name: str
    place: Place
    node: Node
    used: int
    hidden: int
    """Of these, used by nobody whose job is listed."""
    changed_at: int
    record: Prepared


@dataclass(slots=True, kw_only=True)
class JobEntry:
    """A job as it was last seen."""

    job: LrmJob
    listed: LrmJob | None
    """As it stood in the listing; None when it was not there any more."""
    changed_at: int
    record: Prepared
    tasks: tuple[str, ...] = ()
    """Its task list as last reported."""
    ended_at: float | None = None
    """When it was first seen to have ended, by the clock that nobody sets."""
    polls: int = 0
    """Full listings that have told of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a peer was told of a job, and must see until the LRM shows it, or for so long."""

    until: float
    """By the clock that nobody sets."""
    places: tuple[Place, ...] = ()
    """Where it starts."""
    cancelled: bool = False


def array_of(job: LrmJob) -> str:
    """Return what the elements of an array have in common in their ids."""
    return job.id.rstrip("0123456789")


def vanished(job: LrmJob, now: float) -> LrmJob:
    """Return the job as ended: how, the LRM does not say any more; one that never ran was removed."""
    end = EndReason.CANCELLED if job.state in WAITING else job.end
    return replace(job, state=LrmJobState.ENDED, end=end, ends_at=now, hold=None)


def chosen(
    entries: dict[str, Entry], names: Sequence[str] | None, since: int, record: Callable[[Entry], Prepared]
) -> list[Prepared]:
    """Return the records of those called ``names``, or of all, that have changed since; entries are in that order."""
    if names is not None:
        wanted: Iterator[Entry] = (entries[name] for name in dict.fromkeys(names) if name in entries)
        return [record(entry) for entry in wanted if entry.changed_at >= since]
    found: list[Prepared] = []
    for entry in reversed(entries.values()):
        if entry.changed_at < since:
            break
        found.append(record(entry))
    found.reverse()
    return found
