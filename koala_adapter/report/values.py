# SPDX-License-Identifier: Apache-2.0
"""Plain values that people and programs are shown, with a stable JSON form. Pure.

In this order: progress of a sweep, output files of ranks, cleaning, sample submissions, jobs, clusters and plans, and
negotiations. Clients read them without the code of the service.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from koala_adapter.model import JobKind
from koala_adapter.outcome import (
    JobOutcome,  # noqa: TC001 - read at run time
    JobState,  # noqa: TC001 - read at run time
)

# -- Progress of a sweep -------------------------------------------------------------------------------------

MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """The tasks of a sweep, counted."""

    total: int
    done: int
    failed: int
    """Those that have failed as often as they may."""
    running: int
    """Those that launchers are at."""
    first_failed: tuple[int, ...] = ()
    """Numbers of the first that have failed."""
    seconds_left: float | None = None
    """Estimated; None: nobody can tell."""
    directory: str = ""
    """Where ``results.jsonl`` and the output of the tasks are."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done."""
        return self.done + self.failed == self.total


def where_output_is(progress: SweepProgress) -> str:
    """Return, for people, where to find what the tasks have printed."""
    task = progress.first_failed[0] if progress.first_failed else 0
    failed = ", which failed" if progress.first_failed else ""
    return (
        f"what its tasks print is in {progress.directory}/tasks, such as {task // 1000:03}/{task}.out and .err of task "
        f"{task}{failed}; {progress.directory}/results.jsonl tells what became of each"
    )


def said(progress: SweepProgress) -> str:
    """Return how a sweep has ended, in words."""
    if not progress.failed:
        return f"all {progress.total} tasks are done"
    named = ", ".join(map(str, progress.first_failed[:MOST_NAMED]))
    more = f" and {progress.failed - MOST_NAMED} more" if progress.failed > MOST_NAMED else ""
    noun = "task" if progress.failed == 1 else "tasks"
    return f"{progress.failed} of {progress.total} tasks failed: {noun} {named}{more}"


# -- Output files of ranks -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesReport:
    """The files of a job's ranks. Names are ``COMPONENT/RANK: PATH``; of each sort only the first ones are named."""

    arrived: int = 0
    size: int = 0
    """Bytes of what has arrived."""
    refused: int = 0
    """Files that were wanted and did not arrive."""
    refusals: tuple[str, ...] = ()
    """Their names, each with the reason."""
    left: int = 0
    """Files that nobody asked for, and that are gone with the ranks' directories."""
    left_names: tuple[str, ...] = ()
    awaited: int = 0
    """Ranks not all of whose output files have arrived, or that never said so."""
    awaited_ranks: tuple[str, ...] = ()
    """``COMPONENT/RANK`` of the first of them."""


NO_FILES = FilesReport()


# -- What ``koala clean`` removed, or would remove -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Things of one sort."""

    what: str
    """``directories``, ``reports``, ``request windows``, ``words of placeholders`` or ``logs``."""
    number: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """What was removed, and what was spared."""

    dry_run: bool
    """Nothing was removed: this is what would be."""
    older: float
    """Seconds since the end of the youngest job of which anything is removed, at least."""
    jobs: tuple[str, ...]
    """Ids of the jobs of which nothing is left but their number, in the order of their ends."""
    removed: tuple[Removed, ...]
    unfinished: int
    """Jobs that are spared because they have not ended, or something of them is left in a batch system."""
    newer: int
    """Jobs that are spared because they ended later than that."""
    continued: tuple[str, ...] = ()
    """Jobs that are spared because a spared one goes on with their sweep."""
    trouble: tuple[str, ...] = ()
    """What could not be removed, and why."""

    @property
    def size(self) -> int:
        """Bytes of all that is removed."""
        return sum(one.size for one in self.removed)


# -- Sample submissions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSubmission:
    """What would be sent for one component, as ``koala script`` shows it."""

    component: str
    command: tuple[str, ...]
    environment: dict[str, str]
    """Added to the small environment that commands get."""
    script: str
    note: str


# -- Jobs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReport:
    """Placeholders that are in hold in their batch system, or wait there for something else than free processors."""

    holder: str
    """``user`` (or a submission hook in the user's name), ``operator``, ``system`` or ``unknown``."""
    reason: str
    """The batch system's own word."""
    placeholders: int
    since: float
    """When the first of them was seen so."""
    in_hold: bool = True
    """False: they are queued, and a limit, the site or other jobs keep them waiting; ``holder`` is ``unknown`` then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChangeReport:
    """A change of the size of a component while the job ran."""

    at: float
    """Seconds since the epoch, by people's clocks."""
    component: str
    cluster: str
    before: int
    """Processors that it had on this cluster."""
    after: int
    reason: str
    waited: float = 0.0
    """Seconds for which the placeholders of a growth were waited for; 0 where it has become smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentReport:
    """Where one component is and what it holds; times in seconds."""

    name: str
    command: tuple[str, ...]
    cluster: str | None
    processors: int
    """Wanted: the placed number, or the minimum while nothing is placed."""
    held: int
    queued: int
    """Placeholders that wait in the LRM's queue, or whose submission the LRM has not answered yet."""
    lrm_ids: tuple[str, ...]
    hosts: tuple[str, ...]
    first_rank: int | None
    waited: float | None
    """From the submission of the first placeholder until the last one was held, or until now."""
    holds: tuple[HoldReport, ...] = ()
    """Those of the queued placeholders that are in hold there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job as ``koala status`` shows it."""

    id: str
    name: str
    kind: str
    state: JobState
    user: str
    priority: int
    walltime: int
    submitted_at: float
    launched_at: float | None
    finished_at: float | None
    reported_at: float
    queue_position: int | None
    tries: int
    hand_backs: int
    components: tuple[ComponentReport, ...]
    outcome: JobOutcome | None
    explanation: str
    placeholders_left: int
    """Placeholders that are not gone yet; a job is over when this is 0 and ``outcome`` is set."""
    output_directory: str
    trouble: str = ""
    """What keeps koala itself from going on, such as output or a journal that cannot be written; part of
    ``explanation``, too."""
    files: FilesReport = NO_FILES
    """Files that the ranks left."""
    size_changes: tuple[SizeChangeReport, ...] = ()
    """The latest changes of the size of a malleable job, oldest first."""
    sweep: SweepProgress | None = None
    """How far a sweep is."""
    concluded: bool = False
    """Its processes have ended by themselves, and all that they leave has come; its placeholders may go on a little."""

    def size_at_last(self, component: str, cluster: str) -> int:
        """Return the processors that a component has on a cluster, or had at the end, when its workers had left."""
        if self.state.final:
            for change in reversed(self.size_changes):
                if (change.component, change.cluster) == (component, cluster):
                    return change.after
        return sum(one.processors for one in self.components if (one.name, one.cluster) == (component, cluster))

    @property
    def over(self) -> bool:
        """True when the job has its outcome and nothing of it is left in any LRM."""
        return self.outcome is not None and self.placeholders_left == 0

    def processes(self, component: str | None = None, rank: int | None = None) -> int:
        """Return how many processes it has: in all, of one component, or of one rank of each component.

        A malleable job counts as having several: it may have had them, or get them yet.
        """
        if self.kind == JobKind.MALLEABLE:
            names = {one.name for one in self.components if component in (None, one.name)}
            return len(names) if rank is not None else max(2, len(names))
        sizes: dict[str, int] = {}
        for one in self.components:  # pieces of a component on several clusters have its name
            sizes[one.name] = sizes.get(one.name, 0) + one.processors
        chosen = [size for name, size in sizes.items() if component in (None, name)]
        return sum(chosen) if rank is None else sum(rank < size for size in chosen)

    def to_json(self) -> str:
        """Return the JSON form."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))


def in_order(report: JobReport) -> tuple[int, str]:
    """Return what sorts reports by submission, whatever was done to the time of day between two jobs."""
    return by_number(report.id)


def by_number(job_id: str) -> tuple[int, str]:
    """Return what sorts the ids of jobs by submission."""
    return (int(job_id) if job_id.isdecimal() else 0, job_id)


def of_the_past(report: JobReport) -> JobReport:
    """Return the report kept at a job's end as it is true now: the scheduler forgot the job, so nothing is left."""
    return replace(report, placeholders_left=0)


# -- Clusters and plans --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """A cluster as ``koala clusters`` shows it."""

    name: str
    plugin: str
    lrm: str | None
    closed: str | None
    """Why nothing is placed there at present; None: open."""
    processors: int | None
    idle: int | None
    others: int | None
    """Processors that jobs of others occupy."""
    threshold: int
    placeholders: int
    """All of ours that have not ended."""
    placeholders_queued: int
    available: int
    polled_at: float | None
    requests: int
    """Requests to the LRM since the service started."""
    largest_requests_per_minute: int
    requests_per_minute: int
    """The bound on them."""
    requests_last_minute: int = 0
    """Those of the last 60 seconds, those of other processes of this user included."""
    others_waiting: int = 0
    """Processors that others want who wait in its queue; looked for where running malleable jobs shrink for them."""
    down: int = 0
    """Processors that nobody has and nobody could get, as their nodes are not up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedComponent:
    """Where a component would go."""

    component: str
    cluster: str
    processors: int
    idle: int
    """Processors that a claim would get there at once; what is beyond them waits in the queue of the LRM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """Where a job would go now, as ``koala plan`` shows it."""

    result: str
    """``placed``, ``insufficient`` (not now) or ``infeasible`` (never)."""
    reason: str
    """Why it is not placed; empty when it is."""
    components: tuple[PlannedComponent, ...]
    closed: dict[str, str]
    """Clusters on which nothing is placed at present, and why."""


# -- Negotiations --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationMessageReport:
    """One message of a negotiation."""

    at: float
    sender: str
    """``koala`` or ``application``."""
    status: str
    """``NT_NEGOTIATION`` (an offer), ``NT_ACCEPTED`` and so on, as in the template."""
    processors: int
    """That it is about; 0: none."""
    reason: str
    template: str
    """The template as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationReport:
    """A negotiation as ``koala negotiations`` shows it."""

    number: int
    job_id: str
    component: str
    rank: int
    """Of the process that negotiated."""
    agreement_id: str
    initiator: str
    """``koala`` or ``application``."""
    direction: str
    """``grow`` or ``shrink``."""
    mandatory: bool
    asked: int
    """Processors in the first offer."""
    standing: int
    """Processors in the last offer, and then in the agreement."""
    state: str
    """``offered``, ``accepted``, ``agreed``, ``done``, ``rejected``, ``withdrawn``, ``expired``, ``broken`` or
    ``over`` (its job ended first)."""
    by: str
    """Who said what made it so: ``koala`` or ``application``."""
    reason: str
    """Why it is less, or why it ended; may be empty."""
    summary: str
    """All of it in one sentence."""
    began_at: float
    latest_at: float
    messages: tuple[NegotiationMessageReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationAccess:
    """How a program gets to negotiate for a job, once."""

    host: str
    port: int
    token: str
    """Shown in the first frame of the connection."""
