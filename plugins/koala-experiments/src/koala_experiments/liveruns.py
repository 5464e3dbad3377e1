# SPDX-License-Identifier: Apache-2.0
"""What the journal of a live run tells of its jobs, by replaying it: the same figures as the simulator gives. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.outcome import JobState
from koala_adapter.simulation.simulated_jobs import JobResult, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import Claim, JobRecord
    from koala_adapter.simulation.simulated_jobs import SimulatedJob


@dataclass(slots=True)
class _Course:
    """One job so far; times by the service clock."""

    job: SimulatedJob
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    clusters: tuple[str, ...] = ()
    size: int = 0
    since: float = 0.0
    area: float = 0.0
    largest: int = 0
    grown: int = 0
    shrunk: int = 0
    steps: list[tuple[float, int]] = field(default_factory=list)

    def resize(self, size: int, now: float) -> None:
        """Note the size from now on."""
        self.steps.append((now, size))
        self.area += self.size * (now - self.since)
        if self.size and size:
            self.grown += size > self.size
            self.shrunk += size < self.size
        self.size, self.since, self.largest = size, now, max(self.largest, size)


class JournalRecord:
    """Follows the jobs of a workload through the events of a journal."""

    def __init__(self, jobs: Mapping[str, SimulatedJob], *, scheduler: Scheduler | None = None) -> None:
        """``jobs``: by the names under which they were submitted. ``scheduler``: in the state before the events."""
        self._jobs = jobs
        self._scheduler = scheduler or Scheduler()
        self._courses: dict[JobId, _Course] = {}
        self._submitted: dict[str, float] = {}
        self._held: set[PlaceholderId] = set()
        self._ending: dict[PlaceholderId, float] = {}
        self.held_after: list[float] = []
        """Seconds from the submission of each placeholder until it was held."""
        self.launched_at: dict[tuple[str, int], float] = {}
        """When the process of each job and rank was launched."""
        self.free_after: list[float] = []
        """Seconds from the end that each placeholder was told until it was known to be gone."""
        self.used: list[tuple[float, int]] = []
        """Time, and placeholders of all jobs that were not known to be gone from then on."""
        self.messages: list[tuple[float, int, int]] = []
        """Time, offers and requests sent then."""

    def read(self, events: Iterable[Event]) -> None:
        """Take in events, in their order."""
        for event in events:
            self._before(event)
            for action in self._scheduler.handle(event):
                self._note_action(action, event.time)
            self._after(event)

    def _before(self, event: Event) -> None:
        now = event.time
        match event:
            case ev.JobSubmitted(job=job) if job.name in self._jobs:
                self._courses[job.id] = _Course(job=self._jobs[job.name], submitted_at=now)
            case ev.PlaceholderHeld(placeholder=id_) if id_.batch in self._submitted and id_ not in self._held:
                self._held.add(id_)
                self.held_after.append(now - self._submitted[id_.batch])
            case ev.PlaceholderEnded(placeholder=id_) if id_ in self._ending:
                self.free_after.append(now - self._ending.pop(id_))

    def _note_action(self, action: Action, now: float) -> None:
        match action:
            case act.SubmitPlaceholders():
                self._submitted[action.batch] = now
            case act.EndPlaceholders():
                for id_ in action.placeholders:
                    self._ending.setdefault(id_, now)
            case act.LaunchJob() | act.TakeProcessors():
                name = self._scheduler.job(action.job_id).job.name
                self.launched_at.update(((name, rank.rank), now) for rank in action.ranks)
            case act.OfferProcessors():
                self.messages.append((now, 1, 0))
            case act.RequestProcessors():
                self.messages.append((now, 0, 1))

    def _after(self, event: Event) -> None:
        now, state = event.time, self._scheduler.state
        for id_, course in self._courses.items():
            record = state.jobs.get(id_)
            if record is None or course.ended_at is not None:
                continue
            if course.started_at is None and record.launched_at is not None:
                course.started_at = course.since = now
                course.clusters = tuple(str(one.cluster) for one in record.claims if one.cluster)
            if course.started_at is not None:
                over = record.state.final
                size = 0 if over else _size(record)
                if size != course.size:
                    course.resize(size, now)
                course.ended_at = now if over else None
        used = len(state.placeholders)
        if not self.used or self.used[-1][1] != used:
            self.used.append((now, used))

    def computes_after(self, joined_at: Mapping[tuple[str, int], float]) -> list[float]:
        """Return the seconds from the launch of each process until it was ready to work."""
        return [max(0.0, at - self.launched_at[one]) for one, at in joined_at.items() if one in self.launched_at]

    def known_after(self, emptied_at: Mapping[str, float]) -> list[float]:
        """Return the seconds from the end of the work of each job until the scheduler knew that it had ended."""
        names = {self._scheduler.job(id_).job.name: one.ended_at for id_, one in self._courses.items()}
        ends = ((at, names.get(name)) for name, at in emptied_at.items())
        return [max(0.0, end - at) for at, end in ends if end is not None]

    # ---- what came out ----------------------------------------------------------------------------------------------

    @property
    def begin(self) -> float:
        """When the first job was submitted."""
        return min(one.submitted_at for one in self._courses.values())

    def outcome(self, pace: float) -> Outcome:
        """Return the same in the times of the workload, which begin with the first submission."""
        at = _scaled(self.begin, pace)
        found = Outcome(
            jobs=[_result(one, at) for one in self._courses.values() if one.ended_at is not None],
            used=[(at(time), used, 0) for time, used in self.used if time >= self.begin],
            messages=[(at(time), grown, shrunk) for time, grown, shrunk in self.messages],
            grow_messages=sum(grown for _, grown, _ in self.messages),
            shrink_messages=sum(shrunk for _, _, shrunk in self.messages),
        )
        found.unfinished = len(self._jobs) - len(found.jobs)
        found.ended_at = max((one.ended_at for one in found.jobs), default=0.0)
        return found

    def sizes(self, pace: float) -> dict[int, list[tuple[float, int]]]:
        """Return, by the number of each job, when it had how many processors from then on; 0 at its end."""
        at = _scaled(self.begin, pace)
        return {one.job.number: [(at(time), size) for time, size in one.steps] for one in self._courses.values()}

    @property
    def failed(self) -> list[str]:
        """What became of the jobs that did not complete, in words."""
        records = [record for id_, record in self._scheduler.state.jobs.items() if id_ in self._courses]
        return [f"{record.job.name} {_words(record)}" for record in records if _not_well(record)]


def _words(record: JobRecord) -> str:
    outcome = record.outcome
    if outcome is None:
        return record.state.value
    said = f", {outcome.detail}" if outcome.detail else ""
    return f"{outcome.state.value} ({outcome.reason.value}, exit code {outcome.exit_code}{said})"


def _size(record: JobRecord) -> int:
    """Return the processors of a job once what it has agreed to is done."""
    return sum(claim.processors + _agreed(claim) for claim in record.claims)


def _agreed(claim: Claim) -> int:
    change = claim.change
    if change is not None and change.phase is ChangePhase.GATHERING:
        return change.accepted
    return -claim.leaving if change is not None and change.phase is ChangePhase.RELEASING else 0


def _scaled(begin: float, pace: float) -> Callable[[float], float]:
    return lambda time: (time - begin) * pace


def _not_well(record: JobRecord) -> bool:
    return record.state.final and record.state is not JobState.COMPLETED


def _result(course: _Course, at: Callable[[float], float]) -> JobResult:
    started = course.submitted_at if course.started_at is None else course.started_at
    ended = started if course.ended_at is None else course.ended_at
    seconds = ended - started
    return JobResult(
        job=replace(course.job, submitted_at=at(course.submitted_at)),
        started_at=at(started),
        ended_at=at(ended),
        clusters=course.clusters,
        average_processors=course.area / seconds if seconds > 0 else float(course.largest),
        maximum_processors=course.largest,
        grown=course.grown,
        shrunk=course.shrunk,
        restarts=0,
    )


def mean(seconds: list[float], pace: float) -> float:
    """Return the mean in the time of the workload; 0 of nothing."""
    return fmean(seconds) * pace if seconds else 0.0
