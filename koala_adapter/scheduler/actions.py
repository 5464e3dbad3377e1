# SPDX-License-Identifier: Apache-2.0
"""Actions: everything that the scheduler can want done, as immutable values, and their collection during one event.

A driver (the service, the simulator, a test of failures) carries actions out and reports the results as events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from koala_adapter.model import BatchKey, ClusterName, InputFile, JobId, LrmJobId, PlaceholderId
from koala_adapter.outcome import JobOutcome
from koala_adapter.slots import PLAIN, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitPlaceholders:
    """Submit ``count`` placeholders to a cluster in one request, under the name ``batch``."""

    batch: BatchKey
    cluster: ClusterName
    count: int
    walltime: int
    """Seconds, to be asked from the LRM."""
    memory_mib: int = 0
    """Memory of each, where an application has asked for it; 0: what the site says of the cluster."""
    slot: Slot = PLAIN
    """What each of them is asked for."""
    reservation: str = ""
    """What the batch system calls the reservation that they run in; empty: in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPlaceholders:
    """End placeholders: release those whose agents listen, cancel the others through the LRM.

    ``force``: cancel all of them through the LRM, because telling them has not been enough.
    """

    cluster: ClusterName
    placeholders: tuple[PlaceholderId, ...]
    lrm_ids: tuple[LrmJobId | None, ...]
    """The LRM's ids in the same order, where known."""
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFiles:
    """Bring input files of a job to a cluster before its processors are wanted: StagingProgressed, then FilesStaged.

    What is there already is not sent. It is asked again after a restart, and when nothing was heard for long.
    """

    job_id: JobId
    cluster: ClusterName
    files: tuple[InputFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStaging:
    """End the transfer of input files of a job to a cluster, and let go of those that are there."""

    job_id: JobId
    cluster: ClusterName


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveProcessors:
    """Have a batch system reserve processors: ReservationMade or ReservationRefused. Doing it twice is harmless."""

    job_id: JobId
    name: str
    """Under which it is found again."""
    cluster: ClusterName
    count: int
    start_at: float
    seconds: float
    slot: Slot = PLAIN
    """What each placeholder needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReservation:
    """Remove a reservation of which nothing is used any more, if it is there."""

    name: str
    cluster: ClusterName
    handle: str
    """What the batch system calls it; empty: its answer did not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of an application and the placeholder it runs in."""

    rank: int
    component: str
    component_rank: int
    placeholder: PlaceholderId
    host: str
    address: str
    cluster: ClusterName
    """Where it runs: the pieces of a flexible component are on several clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """Turn the held placeholders of a job into its application. Doing it twice must be harmless."""

    job_id: JobId
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfChange:
    """Base of actions about a change of the size of a running application."""

    job_id: JobId
    component: str
    cluster: ClusterName
    number: int
    """Of the change; answers repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferProcessors(OfChange):
    """Offer ``processors`` further processors to a running malleable application; the answer is OfferAnswered.

    They are not there yet: those that it accepts are gathered while it keeps running.
    """

    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProcessors(OfChange):
    """Ask a running malleable application to give up ``processors``: OfferAnswered, then ProcessorsReleased.

    The number must be accommodated as far as the application's minimum allows.
    """

    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeProcessors(OfChange):
    """Turn stubs that are all held into processes of a running application, which takes them in: RankStarted for each.

    Doing it twice must be harmless.
    """

    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawOffer(OfChange):
    """Tell a running application that the processors it accepted cannot be had; it goes on as it is."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantProcessors:
    """Tell an application how many of the processors that it asked for (MoreRequested) it gets.

    They come by TakeProcessors, with the number given here.
    """

    job_id: JobId
    component: str
    number: int
    """Number of the change that follows; 0 when none does."""
    processors: int
    reason: str = ""
    """Why it is less than what was asked for."""
    agreement: str = ""
    """What the application calls the negotiation; empty: it does not negotiate."""
    rank: int | None = None
    """Rank of the process that asked."""
    countered: bool = False
    """These are offered: they are kept for it until it answers (OfferAnswered)."""
    memory_mib: int = 0
    """Memory that each comes with; 0: none was asked for, or it cannot be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlaceholderOutput:
    """Find out what a placeholder that never reported wrote, if its output can be read from here."""

    cluster: ClusterName
    placeholder: PlaceholderId
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """A run of a job is over, and another one may follow: what it has written is kept apart before that begins."""

    job_id: JobId
    number: int
    """Of the attempt, from 1."""
    outcome: JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """A job has its outcome; its last placeholders may still be ending."""

    job_id: JobId
    outcome: JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectOutcome:
    """The LRM told why a job ended whose agent could not know it, before the last of its placeholders was gone."""

    job_id: JobId
    outcome: JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRefusedAnswer:
    """Tell the operator that an answer of a site's own policy cannot be followed. Told once, until it is another."""

    reason: str


Action: TypeAlias = (
    SubmitPlaceholders
    | EndPlaceholders
    | StageFiles
    | StopStaging
    | ReserveProcessors
    | EndReservation
    | LaunchJob
    | OfferProcessors
    | RequestProcessors
    | TakeProcessors
    | WithdrawOffer
    | GrantProcessors
    | ReadPlaceholderOutput
    | EndAttempt
    | FinishJob
    | CorrectOutcome
    | ReportRefusedAnswer
)
"""All that the scheduler can want: ``carry_out`` of each effector knows every kind, as mypy checks."""

SizeAction: TypeAlias = OfferProcessors | RequestProcessors | TakeProcessors | WithdrawOffer | GrantProcessors
"""An action by which a running job changes its size."""


@dataclass(slots=True)
class Effects:
    """Collects the actions of one event, merging what can go out as one request."""

    _actions: list[Action] = field(default_factory=list)
    _ends: dict[tuple[ClusterName, bool], dict[PlaceholderId, LrmJobId | None]] = field(default_factory=dict)

    def add(self, action: Action) -> None:
        """Append an action; order is kept."""
        self._actions.append(action)

    def end(self, cluster: ClusterName, placeholder: PlaceholderId, lrm_id: LrmJobId | None, *, force: bool) -> None:
        """Ask for the end of one placeholder."""
        self._ends.setdefault((cluster, force), {})[placeholder] = lrm_id

    def actions(self) -> list[Action]:
        """Return everything collected, ends first: what is given back may be what the next submission needs."""
        ends: list[Action] = [
            EndPlaceholders(cluster=cluster, placeholders=tuple(ends), lrm_ids=tuple(ends.values()), force=force)
            for (cluster, force), ends in self._ends.items()
        ]
        return ends + self._actions
