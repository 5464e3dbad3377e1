# SPDX-License-Identifier: Apache-2.0
"""One cluster as a record: as it was seen last, the counts of our placeholders there, and its history.

In order: what its record consists of, the record, and tables of records that have a cluster.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from koala_adapter.model import BatchKey, ClusterName, Component, JobId
from koala_adapter.scheduler.malleable.policies import Step
from koala_adapter.scheduler.parameters import ClusterParameters, absent
from koala_adapter.slots import PLAIN, Slot, SlotCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class ClusterStep:
    """A step of the malleability policy on a cluster."""

    step: Step
    awaited: int = 0
    """Messages of the present round that are not settled."""
    reason: str = ""
    """What the processors are for, for people."""
    value: int = 0
    """Processors that it began with."""
    withheld: int = 0
    """Processors that were free, too, and more than one step may give out."""
    lapsed: bool = False
    """An application could not answer in time: what is left over may be wanted."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Processors of a cluster that are owed to an application."""

    job_id: JobId
    change: int
    """Number of its change, which is PROMISED."""
    polled_at: float | None = None
    """When the cluster had last been looked at."""


# -- A job from outside koala in the queue of a cluster ------------------------------------------------------


@dataclass(slots=True)
class ForeignJob:
    """Waiting job of another user."""

    processors: int
    blocked_from: float | None = None
    """From when on it seems to wait for something else, because so many processors are idle; None: they are not."""


# -- One cluster: as last seen, and the claims on it ---------------------------------------------------------


@dataclass(slots=True)
class Wait:
    """Waiting time of one submission in its LRM's queue."""

    batch: BatchKey
    seconds: float
    """Until the latest of its placeholders that is held by now."""


WAITS_KEPT = 20
"""Entries of a waiting history: what was earlier says little of the load now."""


class SlotRoom(NamedTuple):
    """Numbers of slots of one shape on a cluster."""

    slot_processors: int
    """Processors of the cluster that one takes."""
    capacity: int | None
    """Most that could ever be ours; None while nothing was seen."""
    room: int
    """Further ones that may be submitted."""
    available: int
    """Those of them that would start at once, as far as the last poll tells."""
    load_free: int
    """Slots that no other user has, less all that we have or asked for; may be negative."""


CONNECTIONS_LAST = 86400.0
"""Seconds for which it counts whether nodes of two clusters were seen to connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Whether nodes of a cluster could connect to those of another one when it was tried last."""

    connects: bool
    seen_at: float


@dataclass(slots=True)
class ClusterRecord:
    """State of a cluster: last poll, our placeholders, history."""

    parameters: ClusterParameters
    processors: int | None = None
    """None until a poll has shown some."""
    largest: int | None = None
    """Yardstick of what can *never* run there: falls to the most that was seen in an hour, as one reading may err."""
    smaller_since: float | None = None
    """Since when fewer than ``largest`` are seen."""
    largest_since: int = 0
    """The most that was seen since then."""
    listed: bool = True
    """False while the LRM answers but lists no processors at all, which is never the truth."""
    idle: int = 0
    ours_polled: int = 0
    slots: list[SlotCount] = field(default_factory=list)
    """Counts of the slots of other shapes than one processor that jobs need."""
    ours_left: bool = False
    """The last poll showed fewer of ours than the one before. The LRM lists jobs before nodes: a job that it listed as
    waiting may have started on the processors that came free."""
    polled_at: float | None = None
    first_look_until: float | None = None
    """How long its first poll is waited for before jobs are queued elsewhere; None: it is not waited for."""
    unavailable: str | None = None
    paused_until: float | None = None
    pause_reason: str = ""
    missing_in_a_row: int = 0
    configured: bool = True
    """False once the site file no longer lists the cluster; its placeholders are still followed."""
    managed: int = 0
    """Processors of our placeholders that have not ended, queued ones included."""
    queued: int = 0
    """Placeholders that wait in the LRM's queue (or are on their way there)."""
    processors_queued: int = 0
    """Processors of those."""
    pending: dict[BatchKey, int] = field(default_factory=dict)
    """Queued placeholders by submission, oldest first."""
    ending: int = 0
    """Processors of placeholders that are on their way out: they come free soon."""
    offered: int = 0
    """Processors that are offered or promised to running jobs, so that no other job is placed on them."""
    gathering: int = 0
    """Processors of placeholders submitted for running jobs that grow and have not taken them in yet."""
    observed_bandwidth: float | None = None
    """MiB/s from this host, as they were observed; None: not known."""
    observed_bandwidth_from: dict[ClusterName, float] = field(default_factory=dict)
    """MiB/s from clusters at other sites, where files come directly."""
    connections: dict[ClusterName, Connection] = field(default_factory=dict)
    """Whether its nodes connect to those of other clusters, as far as that was tried."""
    found: dict[str, str] = field(default_factory=dict)
    """Sources of input files that it has, beside those that the site file states, with their paths there."""
    bringable: dict[str, int | None] = field(default_factory=dict)
    """Logical names of input files that it lacks and that can be brought to it, with their bytes if known."""
    refused_answer: str = ""
    """Why the latest answer of its malleability policy, one of the site's own, is not followed; empty when it is."""
    step: ClusterStep | None = None
    """Growing or shrinking of its malleable jobs that is under way."""
    promises: list[Promise] = field(default_factory=list)
    """Applications that insist on more processors, in the order of their requests."""
    unwanted: int | None = None
    """Free processors that no running job would take when they were offered last; None: something has changed since."""
    no_growth_before: float | None = None
    """Pause after processors for growing could not be had, or running jobs were shrunk."""
    balanced_until: float | None = None
    """Until when running jobs are not balanced again (equipartition) while they are the same ``balanced`` ones."""
    balanced: int = 0
    """Number of malleable jobs that ran when they were balanced last."""
    no_shrink_before: float | None = None
    """Pause after running jobs gave up less than they were asked for, or have grown."""
    fruitless_shrinks: int = 0
    """Steps in a row that were to shrink running jobs and freed nothing, while their sizes were the same."""
    fruitless_sizes: list[int] = field(default_factory=list)
    """These sizes, in the order of the start of the jobs."""
    fruitless_until: float | None = None
    """Until when running jobs of these sizes are not asked again."""
    others_waiting: list[ForeignJob] = field(default_factory=list)
    """Jobs of others that wait in its queue, in that order, as far as running malleable jobs are shrunk for them."""
    waits: list[Wait] = field(default_factory=list)
    """Waiting history, oldest first, bounded."""

    @property
    def name(self) -> ClusterName:
        """Its name in the site file."""
        return self.parameters.name

    @property
    def place(self) -> str:
        """Site that it is at, else its own name: what people are told of where files come from."""
        return self.parameters.site or self.name

    def lacks(self, component: Component) -> str | None:
        """Return what it lacks for the ranks of a component now, files included; None when nothing."""
        return self.parameters.lacks(component) or absent(component, self.found, {})

    @property
    def bandwidth(self) -> float | None:
        """MiB/s from this host: what the site file states, else what was observed; None: not known."""
        stated = self.parameters.bandwidth
        return self.observed_bandwidth if stated is None else stated

    @property
    def mean_wait(self) -> float | None:
        """Mean of the waiting history, in seconds; None: nothing is known."""
        return sum(wait.seconds for wait in self.waits) / len(self.waits) if self.waits else None

    @property
    def capacity(self) -> int:
        """Most placeholders that koala may have there, without the threshold left to local users."""
        return max(0, (self.processors or 0) - self.parameters.threshold)

    @property
    def largest_capacity(self) -> int | None:
        """Most placeholders that were ever possible there; None before the first poll."""
        return None if self.largest is None else max(0, self.largest - self.parameters.threshold)

    def has_counted(self, slot: Slot) -> bool:
        """Return whether slots of a shape were counted.

        A cluster whose polls count none, such as a simulated one, has as many as its processors allow.
        """
        shape = slot.shape
        return not self.parameters.counts_slots or shape == PLAIN or any(one.slot == shape for one in self.slots)

    def count_of(self, slot: Slot) -> SlotCount:
        """Return the counted slots of a shape.

        Where nodes were not looked at for it, it is that of as many processors anywhere.
        """
        shape = slot.shape
        for count in self.slots:
            if count.slot == shape:
                return count
        each = shape.threads
        return SlotCount(slot=shape, most=(self.largest or 0) // each, idle=self.idle // each, processors=each)

    def processors_of(self, slot: Slot) -> int:
        """Return the processors of the cluster that one slot takes."""
        return 1 if slot == PLAIN else self.count_of(slot).processors

    def room_for(self, slot: Slot) -> SlotRoom:
        """Return the room for slots of a shape, in the number of such slots."""
        if slot == PLAIN or slot.is_plain:
            return SlotRoom(1, self.largest_capacity, self.room, self.available, self.load_free)
        count = self.count_of(slot)
        each, in_flight = count.processors, self.parameters.placeholders_in_flight - self.queued
        taken = self.managed - self.ours_polled + self.offered
        if count.other_queue:  # the processors that are counted are those of another queue
            room = min(count.most - -(-self.managed // each), in_flight)
            free = count.idle - self.queued
            return SlotRoom(each, count.most, room, max(0, min(room, free)), free)
        ever = None if self.largest_capacity is None else min(self.largest_capacity // each, count.most)
        room = min((self.capacity - self.managed - self.offered) // each, in_flight - -(-self.offered // each))
        room = min(room, count.most)
        free = min(self.load_free // each, count.idle - -(-taken // each))
        return SlotRoom(each, ever, room, max(0, min(room, free)), free)

    @property
    def room(self) -> int:
        """Number of placeholders that may still be submitted, without processors that are on offer."""
        return min(self.capacity - self.managed, self.parameters.placeholders_in_flight - self.queued) - self.offered

    @property
    def load_free(self) -> int:
        """Processors not used by others minus all that koala has or asked for; may be negative."""
        return self.idle + self.ours_polled - self.managed - self.offered

    @property
    def available(self) -> int:
        """Processors that a new claim would get at once, by the last poll."""
        return max(0, min(self.room, self.load_free))


# -- Tables by key and by cluster ----------------------------------------------------------------------------
# A question about one cluster costs nothing for the records of the other clusters.


class OnCluster(Protocol):
    """A record with a fixed cluster (protocol)."""

    @property
    def cluster(self) -> ClusterName:
        """The cluster."""


Key = TypeVar("Key")
Record = TypeVar("Record", bound=OnCluster)


class ClusterTable(dict[Key, Record]):
    """Table of records that are also indexed by cluster."""

    __slots__ = ("_clusters",)

    def __init__(self, entries: Iterable[tuple[Key, Record]] = ()) -> None:
        super().__init__()
        self._clusters: dict[ClusterName, dict[Key, Record]] = {}
        for key, record in entries:
            self[key] = record

    def on(self, cluster: ClusterName) -> Mapping[Key, Record]:
        """Return the records of a cluster, in the order in which they came."""
        return self._clusters.get(cluster, {})

    def __setitem__(self, key: Key, record: Record) -> None:
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

    # Those of dict would leave the records by cluster as they are; these set and delete entries one by one.
    popitem = MutableMapping.popitem
    clear = MutableMapping.clear
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault

    def pop(self, key: Key, *default: Any) -> Any:  # noqa: ANN401 - as of dict
        """Remove a record and return it; where there is none, return the default or raise KeyError."""
        if default and key not in self:
            return default[0]
        record = self[key]
        del self[key]
        return record

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc] # noqa: ANN401 - what dict takes
        self.update(other)
        return self
