# SPDX-License-Identifier: Apache-2.0
"""Records by their keys, and by cluster: what is asked of one cluster costs nothing for what is on the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import ClusterName


class OnCluster(Protocol):
    """A record of something that is on one cluster and stays there."""

    @property
    def cluster(self) -> ClusterName:
        """Where it is."""


Key = TypeVar("Key")
Record = TypeVar("Record", bound=OnCluster)


class ClusterTable(dict[Key, Record]):
    """A table that also knows its records by their cluster. Entries are set and deleted one by one."""

    __slots__ = ("_clusters",)

    def __init__(self, entries: Iterable[tuple[Key, Record]] = ()) -> None:
        """Hold these entries."""
        super().__init__()
        self._clusters: dict[ClusterName, dict[Key, Record]] = {}
        for key, record in entries:
            self[key] = record

    def on(self, cluster: ClusterName) -> Mapping[Key, Record]:
        """Return the records of a cluster, in the order in which they came."""
        return self._clusters.get(cluster, {})

    def __setitem__(self, key: Key, record: Record) -> None:
        """Add or replace a record."""
        super().__setitem__(key, record)
        self._clusters.setdefault(record.cluster, {})[key] = record

    def __delitem__(self, key: Key) -> None:
        """Remove a record. Raises KeyError."""
        cluster = self[key].cluster
        super().__delitem__(key)
        there = self._clusters[cluster]
        del there[key]
        if not there:
            del self._clusters[cluster]
