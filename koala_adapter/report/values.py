# SPDX-License-Identifier: Apache-2.0
"""Plain values of jobs that people and programs are shown, with a stable JSON form. Pure.

In this order: progress of a sweep, output files of ranks, jobs. Clients read them without the code of the service. What
is shown of clusters, plans and negotiations is in :mod:`koala_adapter.report.sitevalues`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from koala_adapter.outcome import EndReason, JobKind, JobOutcome, JobState, TaskUsage
from koala_adapter.slots import PLAIN, Slot, ranks_of

# -- Progress of a sweep -------------------------------------------------------------------------------------

MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """Large input files of a job on their way to a cluster at another site."""

    cluster: str
    size: int
    """Bytes of all files."""
    missing: int
    """Bytes that have yet to arrive."""
    rate: float | None = None
    """Bytes a second; None: not known yet."""
    waits_for: str = ""
    """Why nothing goes at present."""

    @property
    def seconds_left(self) -> float | None:
        """When the files will probably be there; None: not known."""
        return self.missing / self.rate if self.rate else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """Numbers of a sweep's tasks by state."""

    total: int
    done: int
    failed: int
    """Those that have failed as often as they may."""
    running: int
    """Those that launchers are at."""
    first_failed: tuple[int, ...] = ()
    """Numbers of the first that have failed."""
    seconds_left: float | None = None
    """Estimated; None: not known."""
    directory: str = ""
    """Where ``results.jsonl`` and the output of the tasks are."""
    by_index: bool = False
    """Its tasks are called by their index, as those of an array, in place of their number from 0."""

    @property
    def over(self) -> bool:
        """Whether all tasks have ended."""
        return self.done + self.failed == self.total


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def where_output_is(progress: SweepProgress) -> str:
    """Return, for people, the place of the tasks' output."""
    task = progress.first_failed[0] if progress.first_failed else 0
    failed = ", which failed" if progress.first_failed else ""
    return (
        f"what its tasks print is in {progress.directory}/tasks, such as {task // 1000:03}/{task}.out and .err of task "
        f"{task}{failed}; {progress.directory}/results.jsonl tells what became of each"
    )


def end_in_words(progress: SweepProgress) -> str:
    """Return the result of an ended sweep in words."""
    if not progress.failed:
        return f"all {progress.total} tasks are done"
    named = ", ".join(map(str, progress.first_failed[:MOST_NAMED]))
    more = f" and {progress.failed - MOST_NAMED} more" if progress.failed > MOST_NAMED else ""
    noun = "task" if progress.failed == 1 else "tasks"
    return f"{progress.failed} of {progress.total} tasks failed: {noun} {named}{more}"


# -- Output files of ranks -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesReport:
    """Output files of a job's ranks, as ``COMPONENT/RANK: PATH``; of each kind only the first are named."""

    arrived: int = 0
    size: int = 0
    """Bytes of what has arrived."""
    refused: int = 0
    """Files that were wanted and did not arrive."""
    refusals: tuple[str, ...] = ()
    """Their names, each with the reason."""
    left: int = 0
    """Files that were not asked for, and are removed with the ranks' directories."""
    left_names: tuple[str, ...] = ()
    awaited: int = 0
    """Ranks not all of whose output files have arrived, or that never said so."""
    awaited_ranks: tuple[str, ...] = ()
    """``COMPONENT/RANK`` of the first of them."""


NO_FILES = FilesReport()


# -- Usage of a job ------------------------------------------------------------------------------------------

RANKS_LISTED = 16
"""Most ranks whose usage a report lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUsage:
    """Processor time, memory and bytes used by one rank."""

    rank: int
    component: str
    used: TaskUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """Processor time and memory that a job used of what it held.

    Agents tell of a rank when it ends: a rank that runs, or whose agent was lost, is not counted in. All attempts of
    the job are.
    """

    held_seconds: float
    """Processor seconds held: of each processor, from when its agent reported until it was given back."""
    held_before_launch_seconds: float
    """Those of them before the launch of the job, or of each attempt, while it waited for further processors."""
    used_seconds: float = 0.0
    """Processor time, in the program and in the kernel."""
    system_seconds: float = 0.0
    """That in the kernel."""
    memory_bytes: int = 0
    """Largest resident memory of a rank."""
    memory_rank: int | None = None
    """The rank that had it."""
    memory_asked_bytes: int = 0
    """What was asked for that rank by the key ``memory``, its part where ranks share a slot; 0: nothing."""
    read_bytes: int = 0
    """By all calls that read, whatever they read from: files, pipes, terminals."""
    written_bytes: int = 0
    gpu_seconds: float | None = None
    """Time for which GPUs were busy, estimated; None: not known."""
    measured: int = 0
    """Ranks whose usage is known."""
    uncounted: int = 0
    """Ranks that were launched, in each attempt, and whose usage is not known."""
    by_rank: tuple[RankUsage, ...] = ()
    """Of more than 16 ranks the 8 with the least and the 8 with the most processor time, in the order of that."""

    @property
    def share(self) -> float:
        """Processor time used over processor time held; 0 when none was held."""
        return self.used_seconds / self.held_seconds if self.held_seconds > 0 else 0.0


# -- Jobs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReport:
    """Placeholders that are held, or wait in their batch system for something other than free processors."""

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
    """Placement and processors of one component; times in seconds."""

    name: str
    command: tuple[str, ...]
    cluster: str | None
    processors: int
    """Ranks wanted: the placed number, or the minimum while nothing is placed."""
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
    slot: Slot = PLAIN
    """What each of its ranks needs there."""
    ranks_on: tuple[int, ...] = ()
    """Ranks, or before the launch held placeholders, on each of ``hosts``; empty: not known, as in older reports."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Host names, each with its number of ranks where several run there."""
        counts = self.ranks_on or (1,) * len(self.hosts)
        return tuple(f"{host} ({n})" if n > 1 else host for host, n in zip(self.hosts, counts, strict=True))


ATTEMPTS = "_attempts"
"""Directory below that of a job's output: what its attempt N has left is below ``N``. No component has such a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """An earlier attempt of a job that was started again."""

    number: int
    """From 1."""
    launched_at: float
    ended_at: float
    clusters: tuple[str, ...]
    outcome: JobOutcome
    """How it ended."""
    goes_on: bool = False
    """The job was to go on from the state that this run has saved: its end is no failure."""

    @property
    def end(self) -> str:
        """The end of the attempt, in a few words."""
        if not self.goes_on:
            return self.outcome.state.value
        return "walltime over, goes on" if self.outcome.reason is EndReason.WALLTIME else "saved its state, goes on"


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
    attempts: tuple[AttemptReport, ...] = ()
    """The latest of its runs that were not its last, oldest first."""
    sweep: SweepProgress | None = None
    """How far a sweep is."""
    transfers: tuple[TransferReport, ...] = ()
    """Large input files that are on their way to other sites."""
    concluded: bool = False
    """Its processes have ended by themselves, and all that they leave has come; its placeholders may go on a little."""
    usage: UsageReport | None = None
    """What it has used; None while it has held no processor."""

    def size_at_last(self, component: str, cluster: str) -> int:
        """Return the processors of a component on a cluster, or those it had last when its workers have left."""
        if self.state.final:
            for change in reversed(self.size_changes):
                if (change.component, change.cluster) == (component, cluster):
                    return change.after
        return sum(one.processors for one in self.components if (one.name, one.cluster) == (component, cluster))

    @property
    def over(self) -> bool:
        """True when the job has its outcome and nothing of it is left in any LRM."""
        return self.outcome is not None and self.placeholders_left == 0

    @property
    def slots(self) -> str:
        """Resources of each rank in words; empty when each needs only one processor."""
        needed = [one for one in self.components if not one.slot.is_plain]
        if len(self.components) == 1:
            return "".join(ranks_of(one.processors, one.slot) for one in needed)
        return "; ".join(f"{one.name}: {ranks_of(one.processors, one.slot)}" for one in needed)

    def processes(self, component: str | None = None, rank: int | None = None) -> int:
        """Return the number of processes: of the job, of a component, or of one rank of every component.

        One whose size varies counts as having several: it may have had them, or get them yet.
        """
        if self.kind in {JobKind.MALLEABLE, JobKind.EVOLVING}:
            names = {one.name for one in self.components if component in (None, one.name)}
            return len(names) if rank is not None else max(2, len(names))
        sizes: dict[str, int] = {}
        for one in self.components:  # pieces of a component on several clusters have its name
            sizes[one.name] = sizes.get(one.name, 0) + one.processors * one.slot.ranks
        chosen = [size for name, size in sizes.items() if component in (None, name)]
        return sum(chosen) if rank is None else sum(rank < size for size in chosen)

    def to_json(self) -> str:
        """Return the JSON form."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))


def run_time(report: JobReport) -> float | None:
    """Return the seconds from launch to the end, or until now."""
    if report.launched_at is None:
        return None
    return (report.finished_at or report.reported_at) - report.launched_at


def waiting_time(report: JobReport) -> float:
    """Return the seconds from submission to launch, or until now, without those of earlier attempts."""
    until = report.launched_at or report.finished_at or report.reported_at
    return until - report.submitted_at - sum(one.ended_at - one.launched_at for one in report.attempts)


def in_order(report: JobReport) -> tuple[int, str]:
    """Sort key: order of submission, even when the time of day was set back between two jobs."""
    return by_number(report.id)


def by_number(job_id: str) -> tuple[int, str]:
    """Sort key: order of submission by job id."""
    return (int(job_id) if job_id.isdecimal() else 0, job_id)


def as_kept(report: JobReport) -> JobReport:
    """Return a kept report of an ended job without what has gone since, such as its placeholders."""
    return replace(report, placeholders_left=0)
