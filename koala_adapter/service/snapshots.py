# SPDX-License-Identifier: Apache-2.0
"""The scheduler's state in pieces: a head, and rows of records, each small enough to be written while others wait.

Version 0.1 wrote all of it as one text; that is read, too.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from koala_adapter.adapters import adapter_of
from koala_adapter.scheduler.clusterrecord import ClusterRecord
from koala_adapter.scheduler.records import BatchRecord, JobRecord, PlaceholderRecord, State
from koala_adapter.service.firstversion import timers_in_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GROUP = 250
"""Records in a row of a snapshot: some milliseconds' work."""
_PARTS: dict[str, Any] = {
    "jobs": list[JobRecord],
    "placeholders": list[PlaceholderRecord],
    "batches": list[BatchRecord],
    "clusters": list[ClusterRecord],
}
"""Fields of the state that may be long, as their groups are written."""


@cache
def _group(part: str) -> TypeAdapter[list[Any]]:
    return TypeAdapter(_PARTS[part])


def head(state: State) -> str:
    """Return what is left of a state without the parts that are in rows."""
    return adapter_of(State).dump_json(state, exclude=set(_PARTS)).decode()


def rows(state: State) -> Iterator[tuple[str, str]]:
    """Yield the other parts group by group, each with its name. The state must not change meanwhile."""
    for part in _PARTS:
        records = iter(getattr(state, part).values())
        while group := list(islice(records, GROUP)):
            yield part, _group(part).dump_json(group).decode()


def restored(body: str, stored: Iterable[tuple[str, str]]) -> State:
    """Return a state from its head, or from all of it as version 0.1 wrote it, and its rows. Raises ValueError."""
    state = adapter_of(State).validate_json(timers_in_records(body))
    for part, group in stored:
        for record in _group(part).validate_json(group):
            _put(state, record)
    return state


def _put(state: State, record: JobRecord | PlaceholderRecord | BatchRecord | ClusterRecord) -> None:
    match record:
        case JobRecord():
            state.jobs[record.job.id] = record
        case PlaceholderRecord():
            state.placeholders[record.id] = record
        case BatchRecord():
            state.batches[record.key] = record
        case ClusterRecord():
            state.clusters[record.parameters.name] = record
