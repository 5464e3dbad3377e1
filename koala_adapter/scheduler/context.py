# SPDX-License-Identifier: Apache-2.0
"""What the chapters of the scheduler share while one event is handled: numbers, pauses, state and views.

In order: the numbers in the names of submissions, the lengths of life cycles and back-offs, the context of an event
(state, queue, collected actions), and the views of clusters for placement policies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from koala_adapter.outcome import NOT_SEEN, JobOutcome
from koala_adapter.scheduler.actions import Effects
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacedComponent
from koala_adapter.scheduler.states import Ledger, Roster, initial_size
from koala_adapter.slots import PLAIN, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from koala_adapter.model import BatchKey, ClusterName, Component
    from koala_adapter.scheduler.claiming.queue import PlacementQueue
    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.parameters import Parameters
    from koala_adapter.scheduler.records import BatchRecord, Claim, JobRecord, PlaceholderRecord, State
    from koala_adapter.scheduler.timers import TimerKind
    from koala_adapter.scheduler.timetable import Timetable


# -- Numbers of submissions, none of which is given twice ----------------------------------------------------
# A number is more than a count: the batch system knows the submission by it. So the journal keeps what each number was
# given to. A replay that leaves an event out, and so comes to other submissions than were made, finds the same number
# for the same submission and a new number for any other.


class RecordedBatches:
    """Submissions of a replayed journal with their numbers, each returned once."""

    def __init__(self, batches: Iterable[BatchRecord] = (), *, after: int = 0) -> None:
        """``after``: numbers up to this one belong to what was there before the replay."""
        self.largest = after
        """The largest number that was handed out."""
        self._waiting: dict[tuple[object, ...], deque[int]] = {}
        for batch in batches:
            number = batch_number(batch.key)
            if number > after:
                self._waiting.setdefault(batch.contents, deque()).append(number)
                self.largest = max(self.largest, number)

    def number_of(self, contents: tuple[object, ...]) -> int | None:
        """Return the recorded number of a submission; None when there is none."""
        numbers = self._waiting.get(contents)
        return numbers.popleft() if numbers else None


def batch_number(key: BatchKey) -> int:
    """Return the number in a submission's name; 0 for names that are not koala's."""
    number = key.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0


# -- Deterministic jitter of life cycles and back-offs -------------------------------------------------------
# Two co-allocators that each hold what the other needs know nothing of each other (Xing 2009). Both assume a deadlock,
# and one of them must give its part back early enough for the other to get it before its own time is over: the batch
# system has to see the end and start what waits, and the agent there has to report. So lives differ by whole gaps of
# that length, as do the slots in which stations on a shared wire try again. Two instances that drew the same gap most
# likely draw different ones after the next failure. Nothing here is random: the same history gives the same number,
# otherwise a replay would decide differently.

SHORTEST_PAUSE = 1.0
"""Seconds between two looks at the same thing, at least: a setting of 0 must not make the scheduler spin."""
SHORTEST_GAP, LONGEST_GAP = 5.0, 60.0
"""Seconds between two lives: a batch system hands on what was given back within this."""
LONGEST_SPREAD = 240.0
"""Seconds between the shortest and the longest life, at most."""
FEWEST_LIVES = 3
"""Different lives, at least: two that drew the same have others with two chances in three."""
LONGEST_GRACE = 30.0
"""Seconds that are added to a life whose missing placeholders begin to start, at most."""


def life(record: JobRecord, parameters: Parameters) -> float:
    """Return how long the first held placeholders of a claim wait for the others, in seconds."""
    longest = parameters.placeholder_life - grace(parameters)
    gap = min(max(longest / 4, min(SHORTEST_GAP, longest * 3 / 8)), LONGEST_GAP)
    lives = max(FEWEST_LIVES, 1 + int(min(longest / 2, LONGEST_SPREAD) / gap)) if gap > 0.0 else 1
    return longest - gap * int(_digest(record, parameters) * lives)


def grace(parameters: Parameters) -> float:
    """Return the seconds by which a life is extended once when placeholders start at its end."""
    return min(parameters.placeholder_life / 8, LONGEST_GRACE)


def backoff(record: JobRecord, parameters: Parameters) -> float:
    """Return the pause after a failed claim: doubling, bounded and different for each job and instance."""
    first, longest = parameters.backoff, parameters.longest_backoff
    doubled = first * 2.0 ** min(max(0, record.failed_claims - 1), 30)
    shortest = max(first, min(doubled, longest / 2))  # where the bound is reached they still differ
    return max(SHORTEST_PAUSE, min(longest, shortest * (1 + _digest(record, parameters))))


def _digest(record: JobRecord, parameters: Parameters) -> float:
    """Return a number in [0, 1) derived from instance, job and try.

    A CRC would not do: those of two instances differ by the same bits after every try.
    """
    digest = sha256(f"{parameters.instance}/{record.job.id}/{record.failed_claims}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2.0**48


NOT_COUNTED = "not looked at for such slots yet"
"""Why nothing is placed on a cluster whose next poll will tell how many slots of a shape it has."""


# -- The context of one event, and the views of clusters -----------------------------------------------------

if TYPE_CHECKING:
    Handlers: TypeAlias = Mapping[type[Event], Callable[["Context", Any], None]]
    """What takes in an event of each kind; each chapter has such a table at its end."""
    JobTimers: TypeAlias = Mapping[TimerKind, Callable[["Context", JobRecord], None]]
    PlaceholderTimers: TypeAlias = Mapping[TimerKind, Callable[["Context", PlaceholderRecord], None]]


@dataclass(slots=True)
class Context:
    """State, queue and collected actions while an event is handled."""

    ledger: Ledger
    timetable: Timetable
    queue: PlacementQueue
    now: float
    policies: Policies = OWN
    effects: Effects = field(default_factory=Effects)
    outcomes: list[tuple[JobRecord, JobOutcome]] = field(default_factory=list)
    """Jobs found to have ended, to be finished once the event's own handling is through."""
    scan_wanted: bool = False
    """Something changed that may let a waiting job be placed."""
    polled: ClusterName | None = None
    """The cluster that the event is a reading of."""
    roster: Roster = field(default_factory=Roster)
    """Running malleable jobs."""
    recorded: RecordedBatches | None = None
    """What was submitted when this event was handled for the first time, and later; None: this is the first time."""
    lost_stubs: list[PlaceholderRecord] = field(default_factory=list)
    """Placeholders gathered for growing jobs that are gone or going, to be dealt with once the event's own handling is
    through."""
    never_arrived: set[BatchKey] = field(default_factory=set)
    """Submissions that did not arrive, as the event tells: they were not refused, and another one may arrive."""
    state: State = field(init=False)
    """What the ledger keeps: everybody reads it."""

    def __post_init__(self) -> None:
        """Read what the ledger writes."""
        self.state = self.ledger.state

    def batch_number(self, contents: tuple[object, ...]) -> int:
        """Return the number of a submission: its recorded one, or a new one."""
        state, largest, number = self.state, 0, None
        if self.recorded is not None:
            largest, number = self.recorded.largest, self.recorded.number_of(contents)
        if number is None:
            number = max(state.batches_made, largest) + 1
        state.batches_made = max(state.batches_made, number)
        return number

    def view(self, cluster: ClusterRecord, slot: Slot = PLAIN) -> ClusterView:
        """Return a placement policy's view of a cluster, in slots of a shape."""
        room, counted = cluster.room_for(slot), slot == PLAIN or cluster.has_counted(slot)
        return ClusterView(
            name=cluster.parameters.name,
            capacity=room.capacity if counted else None,
            in_flight=cluster.parameters.placeholders_in_flight,
            room=room.room,
            available=room.available,
            load_free=room.load_free,
            walltime_limit=cluster.parameters.walltime_limit,
            closed=closed_reason(cluster, self.now) or (None if counted else NOT_COUNTED),
            files=cluster.parameters.files,
            found=MappingProxyType(cluster.found),
            bringable=MappingProxyType(cluster.bringable),
            here=cluster.parameters.here,
            bandwidth=cluster.bandwidth,
            bandwidth_from=(*cluster.parameters.bandwidth_from, *cluster.observed_bandwidth_from.items()),
            expected_wait=self.state.expected_wait(cluster, self.now),
            software=cluster.parameters.software,
            container_runtime=cluster.parameters.container_runtime,
            slot_processors=room.slot_processors,
            lack="" if slot == PLAIN else lack_of(cluster, slot),
        )

    def slot_processors(self, record: JobRecord, component: str, cluster: ClusterName) -> int:
        """Return how many processors a component's slot takes on a cluster."""
        return self.state.clusters[cluster].processors_of(record.job.component(component).slot_on(cluster))

    def views(self) -> Views:
        """Return the views of all clusters of the site."""
        return Views(self, (name for name, one in self.state.clusters.items() if one.configured))

    def request(self, record: JobRecord, claim: Claim) -> ComponentRequest:
        """Return a claim as a request to a placement policy."""
        return self._request(record, record.component_of(claim), claim)

    def _request(self, record: JobRecord, component: Component, claim: Claim) -> ComponentRequest:
        if record.job.kind.varies:
            component = replace(component, maximum=initial_size(component))
        return ComponentRequest(
            component=component,
            walltime=record.job.walltime + self.margin(),
            excluded=frozenset(claim.excluded),
            splittable=self.policies.may_split(record.job, component),
        )

    def margin(self) -> int:
        """Return the seconds asked from an LRM on top of a job's walltime, at least."""
        return int(self.state.parameters.launch_margin)

    def requests(self, record: JobRecord) -> list[ComponentRequest]:
        """Return the requests of all components of a job."""
        return [self._request(record, component, claim) for component, claim in record.components()]


class Views(Mapping["ClusterName", ClusterView]):
    """Lazy views of clusters: of a thousand, few are needed.

    They are counted in slots of one component; :meth:`of` gives those of another one. What is taken from one is taken
    from all of them.
    """

    __slots__ = ("_component", "_context", "_emptied", "_family", "_made", "_names", "_taken")

    def __init__(
        self,
        context: Context,
        names: Iterable[ClusterName],
        *,
        component: Component | None = None,
        taken: dict[ClusterName, int] | None = None,
        emptied: bool = False,
    ) -> None:
        """``component``: views count its slots; None: single processors.

        ``taken``: processors that are left out. ``emptied``: as if nothing of koala's was there.
        """
        self._context = context
        self._names = dict.fromkeys(names)
        self._component = component
        self._taken = {} if taken is None else taken
        self._emptied = emptied
        self._family: dict[tuple[Slot, tuple[tuple[ClusterName, Slot], ...]], Views] = {}
        self._made: dict[ClusterName, ClusterView] = {}

    def of(self, component: Component) -> Views:
        """Return the views counted in slots of a component."""
        if component.slot == PLAIN and not component.slots:
            return self
        key = component.slot, component.slots
        if key not in self._family:
            self._family[key] = Views(
                self._context, self._names, component=component, taken=self._taken, emptied=self._emptied
            )
        return self._family[key]

    def taken(self, name: ClusterName) -> int:
        """Return how many processors of a cluster are subtracted."""
        return self._taken.get(name, 0)

    def take(self, name: ClusterName, processors: int) -> None:
        """Subtract further processors of a cluster."""
        self._taken[name] = self.taken(name) + processors
        self.refresh(name)

    def refresh(self, name: ClusterName) -> None:
        """Drop the cached view of a cluster where something was placed."""
        self._made.pop(name, None)
        for views in self._family.values():
            views.refresh(name)

    def drop(self, name: ClusterName) -> None:
        """Remove a cluster from the views."""
        self._names.pop(name, None)
        self._made.pop(name, None)
        for views in self._family.values():
            views.drop(name)

    def only(self, names: Iterable[ClusterName]) -> Views:
        """Return views of some of the clusters."""
        kept = set(names)
        return Views(
            self._context,
            (name for name in self._names if name in kept),
            component=self._component,
            taken=dict(self._taken),
            emptied=self._emptied,
        )

    def less(self, placed: Iterable[tuple[Component, PlacedComponent]]) -> Views:
        """Return views without the processors of a placement."""
        views = Views(self._context, self._names, taken=dict(self._taken), emptied=self._emptied)
        for component, part in placed:
            views.take(part.cluster, part.processors * self.of(component)[part.cluster].slot_processors)
        return views

    def __getitem__(self, name: ClusterName) -> ClusterView:
        """Return the view of a cluster. Raises KeyError when it is not among them."""
        view = self._made.get(name)
        if view is None:
            if name not in self._names:
                raise KeyError(name)
            slot = PLAIN if self._component is None else self._component.slot_on(name)
            view = self._context.view(self._context.state.clusters[name], slot)
            if self._emptied:
                most = min(view.capacity or 0, view.in_flight or 0)
                view = replace(view, room=most, available=0, load_free=view.room)
            view = self._made[name] = _less(view, self.taken(name))
        return view

    def __iter__(self) -> Iterator[ClusterName]:
        """Yield the names in the order of the site file."""
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def _less(view: ClusterView, processors: int) -> ClusterView:
    """Return a view with processors subtracted."""
    if processors <= 0:
        return view
    slots = -(-processors // view.slot_processors)
    return replace(
        view, room=view.room - slots, available=max(0, view.available - slots), load_free=view.load_free - slots
    )


def lack_of(cluster: ClusterRecord, slot: Slot) -> str:
    """Return why a cluster can never have a slot; empty when it can."""
    known = cluster.parameters.slot_keys
    unknown = () if known is None else slot.beyond(frozenset(known))
    if unknown:
        return f"its batch system cannot be asked for {' or '.join(unknown)} by what the site file says"
    return cluster.count_of(slot).lack if not slot.is_plain else ""


def closed_reason(cluster: ClusterRecord, now: float) -> str | None:
    """Return why a cluster is closed for placement; None when it is open."""
    if not cluster.configured:
        return "no longer in the site file"
    if cluster.unavailable is not None:
        return f"out of reach: {cluster.unavailable}"
    if cluster.processors is None:
        return NOT_SEEN
    if not cluster.listed:
        return "its batch system lists no processors"
    if cluster.paused_until is not None and now < cluster.paused_until:
        return f"paused for another {cluster.paused_until - now:.0f} s: {cluster.pause_reason}"
    return None
