# SPDX-License-Identifier: Apache-2.0
"""Workloads run live for ``koala experiment``: a service in this process, clusters, jobs at their times.

In this order: what the journal tells of its jobs, the clusters, and the run itself.
"""

from __future__ import annotations

import io
import shutil
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from koala_adapter.api.offline import end_daemons, read_record, temporary_directory
from koala_adapter.api.statedirectory import ownership
from koala_adapter.cli.innerservice import inner_service
from koala_adapter.cli.session import Session
from koala_adapter.cli.terminal import Interrupts
from koala_adapter.errors import KoalaError, SimulationError
from koala_adapter.lrm.commands import login_name
from koala_adapter.outcome import JobState
from koala_adapter.python.localsite import local_site_text, temporary_site
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.service.journal import Journal
from koala_adapter.simulation.applications import JobResult, Outcome
from koala_adapter.simulation.platform import ClusterModel
from koala_experiments.bags import bag_of, bag_server, live_job, name_of
from koala_experiments.framework import LiveOutcome, mean_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.parameters import Approach
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.simulation.applications import SimulatedJob
    from koala_experiments.bags import Bag, BagBoard, BagServer
    from koala_experiments.framework import LiveRun


# -- Record of a live run ------------------------------------------------------------------------------------
# What the journal tells of the jobs, by replaying it: the same figures as the simulator gives.


@dataclass(slots=True)
class _Course:
    """Course of one job; times by the service clock."""

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
        """Record a size."""
        self.steps.append((now, size))
        self.area += self.size * (now - self.since)
        if self.size and size:
            self.grown += size > self.size
            self.shrunk += size < self.size
        self.size, self.since, self.largest = size, now, max(self.largest, size)


class JournalRecord:
    """Courses of a workload's jobs, read from events of the journal."""

    def __init__(self, jobs: Mapping[str, SimulatedJob]) -> None:
        """``jobs``: by name."""
        self._jobs = jobs
        self._scheduler = Scheduler()
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
        """Process events in order."""
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
        """Return the seconds from each process's launch until it was ready to work."""
        return [max(0.0, at - self.launched_at[one]) for one, at in joined_at.items() if one in self.launched_at]

    def known_after(self, emptied_at: Mapping[str, float]) -> list[float]:
        """Return the seconds from the end of each job's work until the scheduler knew of it."""
        names = {self._scheduler.job(id_).job.name: one.ended_at for id_, one in self._courses.items()}
        ends = ((at, names.get(name)) for name, at in emptied_at.items())
        return [max(0.0, end - at) for at, end in ends if end is not None]

    # ---- what came out ----------------------------------------------------------------------------------------------

    @property
    def begin(self) -> float:
        """Time of the first submission."""
        return min(one.submitted_at for one in self._courses.values())

    def outcome(self, pace: float) -> Outcome:
        """Return the outcome in workload time, which begins with the first submission."""
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
        """Return each job's (time, processors) at every change; 0 at its end."""
        at = _scaled(self.begin, pace)
        return {one.job.number: [(at(time), size) for time, size in one.steps] for one in self._courses.values()}

    @property
    def failed(self) -> list[str]:
        """Sentences about jobs that did not complete."""
        records = [record for id_, record in self._scheduler.state.jobs.items() if id_ in self._courses]
        return [f"{record.job.name} {_words(record)}" for record in records if _not_well(record)]


def _words(record: JobRecord) -> str:
    outcome = record.outcome
    if outcome is None:
        return record.state.value
    said = f", {outcome.detail}" if outcome.detail else ""
    return f"{outcome.state.value} ({outcome.reason.value}, exit code {outcome.exit_code}{said})"


def _size(record: JobRecord) -> int:
    """Return a job's processors after its agreed changes."""
    changes = record.changes.values()
    more = sum(change.accepted for change in changes if change.phase is ChangePhase.GATHERING)
    less = sum(change.accepted - change.done for change in changes if change.phase is ChangePhase.RELEASING)
    return sum(claim.processors for claim in record.claims) + more - less


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


# -- Clusters of an experiment -------------------------------------------------------------------------------
# Those of a site file, or local ones that are started for it.

SCHEDULER = {"placeholder_life": 60, "backoff": 1, "reuse": False, "maximum_tries": 1_000_000}
"""Placeholders are not handed from job to job, as in the simulator, and nothing is given up for long."""
CLUSTER = {"poll_interval": 0.3, "requests_per_minute": 3000}
PREFIX = "koala-live-"
SEEN = 60.0
"""Seconds within which each cluster must have answered."""


def site_text(clusters: Sequence[ClusterModel], approach: Approach, malleability: str, directory: Path) -> str:
    """Return the text of a site file. ``directory``: for placeholders' output."""
    processors = {one.name: one.processors for one in clusters}
    scheduler = {**SCHEDULER, "approach": approach.value, "malleability": malleability}
    return local_site_text(directory, processors, scheduler, CLUSTER)


@contextmanager
def live_session(
    site: str, clusters: Sequence[ClusterModel], approach: Approach, malleability: str
) -> Iterator[tuple[Session, Interrupts]]:
    """Yield a session with these policies on the clusters of a site file, with a temporary state directory.

    ``site``: path of the site file; empty: local ``clusters`` are started for the session.
    """
    with Interrupts() as interrupts, _on_clusters(interrupts, site, clusters, approach, malleability) as session:
        session.progress = Console(file=io.StringIO())  # how far the experiment is shown moves on the terminal already
        with ownership(session.directory, "koala experiment"):
            yield session, interrupts


@contextmanager
def _on_clusters(
    interrupts: Interrupts, site: str, clusters: Sequence[ClusterModel], approach: Approach, malleability: str
) -> Iterator[Session]:
    if not site:

        def files(directory: Path) -> Mapping[str, str]:
            return {"site.toml": site_text(clusters, approach, malleability, directory)}

        with temporary_site(files, prefix=PREFIX, undisturbed=interrupts.deferred) as there:
            yield Session(site_option=there.file, state_option=there.directory)
        return
    session = Session(site_option=Path(site), state_option=temporary_directory(PREFIX))
    policies = {"approach": approach, "malleability": malleability}
    session.here.config = session.site.model_copy(
        update={
            "scheduler": session.site.scheduler.model_copy(update=policies),
            "clusters": tuple(one.model_copy(update={"malleability": None}) for one in session.site.clusters),
        }
    )
    try:
        yield session
    finally:
        with interrupts.deferred():
            if not read_record(session.directory, session.policies).unfinished:  # else `koala reap` must find it
                end_daemons(session.directory)
                shutil.rmtree(session.directory, ignore_errors=True)


# -- The live run --------------------------------------------------------------------------------------------

LOOK = 0.25
"""Seconds between two looks at the jobs."""
ENDING = 60.0
"""Seconds within which jobs that are cancelled on the clusters of a site must have ended."""
NEVER = 10**9
"""Events after which a snapshot is taken: the journal of a run is read as a whole."""


def run_live(run: LiveRun, ended: Callable[[int], None]) -> LiveOutcome:
    """Run a workload on live clusters; ``ended`` is called with the number of ended jobs. Raises KoalaError."""

    def by_the_clock(running: RunningService) -> None:
        begin = time.monotonic()
        for job in run.jobs:
            running.follow(ended, until=begin + job.submitted_at / run.pace)
            running.submit(job, bag_of(job, run.pace))
        running.follow(ended, until=None)

    return carried_out(run, by_the_clock)


def carried_out(run: LiveRun, work: Callable[[RunningService], None]) -> LiveOutcome:
    """Return the outcome of a run; ``work`` submits its jobs and follows them to their ends.

    Whatever comes between, the jobs that it submitted are cancelled first. Raises KoalaError.
    """
    with live_session(run.site, run.clusters, run.approach, run.malleability) as (session, interrupts):
        with (
            bag_server(session.site.control_center.listen, session.directory / "bags") as bags,
            inner_service(session, interrupts, snapshot_interval=NEVER),
        ):
            clusters = _clusters(run, session)
            running = RunningService(run, session, bags)
            try:
                work(running)
            except BaseException:
                with interrupts.deferred():
                    running.cancel()
                raise
        return _outcome(run, session.directory, clusters, bags.board)


def _clusters(run: LiveRun, session: Session) -> Sequence[ClusterModel]:
    """Return the clusters of a run: local ones, or the idle part of a site's clusters."""
    if not run.site:
        return run.clusters
    session.client.wait_until_seen(SEEN)
    open_ones = [one for one in session.client.clusters() if one.closed is None]
    usable = [(one, (one.processors or 0) - (one.others or 0) - one.down) for one in open_ones]
    found = [
        ClusterModel(name=one.name, nodes=processors, threshold=one.threshold)
        for one, processors in usable
        if processors > one.threshold
    ]
    if not found:
        raise SimulationError(f"{run.site}: no cluster has a free processor", hint="see `koala clusters`")
    return found


@dataclass(slots=True)
class RunningService:
    """Client of a run's service, for submitting and following jobs."""

    run: LiveRun
    session: Session
    bags: BagServer
    submitted: list[str] = field(default_factory=list)

    def submit(self, job: SimulatedJob, bag: Bag) -> str:
        """Submit a job whose workers share a bag; return its id."""
        self.bags.board.bags[name_of(job)] = bag
        live = live_job(
            job,
            address=self.session.site.control_center.node_address,
            port=self.bags.port,
            files=self.bags.files,
            user=login_name(),
        )
        self.submitted.append(self.session.client.submit(live))
        return self.submitted[-1]

    def follow(self, ended: Callable[[int], None], *, until: float | None) -> bool:
        """Report ended jobs until all have ended or a time has come; return whether all have."""
        while True:
            reports = self.session.client.jobs(max(1, len(self.submitted)))
            over = sum(one.over for one in reports)
            ended(over)
            if until is None and over == len(self.submitted):
                return True
            left = LOOK if until is None else min(LOOK, until - time.monotonic())
            if left <= 0:
                return over == len(self.submitted)
            time.sleep(left)

    def cancel(self) -> None:
        """Cancel all jobs and wait for their ends. Raises KoalaError when they do not end."""
        for job_id in self.submitted:
            self.session.client.cancel(job_id)
        if not self.follow(lambda _ended: None, until=time.monotonic() + ENDING):
            where = f"--site {self.run.site} --state {self.session.directory}"
            raise KoalaError("jobs of the experiment have not ended", hint=f"see `koala {where} reap`") from None


def _outcome(run: LiveRun, directory: Path, clusters: Sequence[ClusterModel], bags: BagBoard) -> LiveOutcome:
    record = JournalRecord({name_of(job): job for job in run.jobs})
    with closing(Journal(directory / "journal.sqlite", read_only=True)) as journal:
        record.read(event for _, event in journal.recover()[1])
    if record.failed:
        raise SimulationError(f"jobs of the live run failed: {', '.join(record.failed)}", hint="see `koala check`")

    def mean(seconds: list[float]) -> float:
        """Return the mean in workload time; 0 without values."""
        return (mean_of(seconds) or 0.0) * run.pace

    return LiveOutcome(
        outcome=record.outcome(run.pace),
        clusters=clusters,
        sizes=record.sizes(run.pace),
        held_after=mean(record.held_after),
        computes_after=mean(record.computes_after(bags.joined_at)),
        known_after=mean(record.known_after(bags.emptied_at)),
        free_after=mean(record.free_after),
    )
