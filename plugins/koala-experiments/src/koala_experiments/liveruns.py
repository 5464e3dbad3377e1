# SPDX-License-Identifier: Apache-2.0
"""Workloads run live for ``koala experiment``: a service in this process, clusters, jobs at their times.

In this order: the work of an application, its jobs and the server that hands out the work, a site file, what the
journal tells of the jobs, and the live run itself.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import shutil
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal
from rich.console import Console

from koala_adapter.api.offline import end_daemons, read_record, temporary_directory
from koala_adapter.api.statedirectory import ownership
from koala_adapter.cli.innerservice import inner_service, temporary_site
from koala_adapter.cli.session import Session
from koala_adapter.cli.terminal import Interrupts
from koala_adapter.errors import KoalaError, SimulationError
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import Component, InputFile, Job, JobId, JobKind, Retirement, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.python.localsite import local_site_text
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.service.journal import Journal
from koala_adapter.simulation.applications import JobResult, Outcome
from koala_adapter.simulation.platform import ClusterModel
from koala_adapter.sizes import PowerOfTwo
from koala_adapter.tasks.server import CONNECTION_FILE, TOKEN_BYTES, PullServer, listening_socket, node_files
from koala_adapter.vjm.certificate import load_or_create
from koala_experiments.framework import LiveOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.parameters import Approach
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.simulation.applications import SimulatedJob
    from koala_adapter.tasks.server import Puller
    from koala_experiments.framework import LiveRun


# -- Bag of work units ---------------------------------------------------------------------------------------
# The whole work of an application of the simulator is cut into units of equal size. On n workers a unit takes n times
# as long as the n-th execution time divided by the units, so that n workers that take one unit after the other need
# just the execution time on n processors, however poorly the application makes use of them.

SMALLEST = 0.1
"""Smallest part of a unit that is given out, unless less is left."""
NOTHING = 1e-9
"""What is left of many fractions is no work."""


class Bag:
    """Remaining work of one application, shared by its workers."""

    def __init__(self, times: Sequence[float], unit: float, *, at: int) -> None:
        """``times``: seconds of the whole work on 0, 1, 2 ... workers; more workers are as fast as the last number.

        ``unit``: seconds, at most, that one unit takes on ``at`` workers.
        """
        self._times = times
        self.units = max(1, ceil(times[at] * at / unit))
        self.left = float(self.units)
        """Units that nobody works on."""
        self._taken: dict[int, float] = {}
        """What each worker works on, in units."""
        self._workers: set[int] = set()

    @property
    def empty(self) -> bool:
        """Whether all work is done."""
        return self.left <= 0 and not self._taken

    def join(self, worker: int) -> None:
        """Add a worker."""
        self._workers.add(worker)

    def leave(self, worker: int) -> None:
        """Remove a worker; its unfinished unit returns to the bag."""
        self._workers.discard(worker)
        self.left += self._taken.pop(worker, 0.0)

    def take(self, worker: int) -> float | None:
        """Return the seconds of a worker's next unit; None when nothing is left to be taken now."""
        if self.left <= 0:
            return None
        count = min(max(1, len(self._workers)), len(self._times) - 1)
        share = min(1.0, self.left, max(SMALLEST, self.left / count))  # small ones last, so that all end together
        self.left -= share
        if self.left < NOTHING:
            self.left = 0.0
        self._taken[worker] = share
        return share * count * self._times[count] / self.units

    def done(self, worker: int, part: float) -> None:
        """Record that a worker has done a share (0 to 1) of its unit; the rest returns to the bag."""
        self.left += self._taken.pop(worker, 0.0) * (1.0 - min(1.0, max(0.0, part)))


# -- Jobs ----------------------------------------------------------------------------------------------------
# Jobs of a simulated workload as live ones: head elsewhere, workers that take units of work from it.

WORKER, CONTACT = "worker.py", "contact"
UNIT = 0.25
"""Seconds, at most, that a unit of work takes at a job's first size."""
WALLTIME = 24 * 3600
GRACE = 10
"""Seconds after which a worker that was asked to leave is killed; it leaves at once."""


def name_of(job: SimulatedJob) -> str:
    """Return the name under which a job of the workload is submitted."""
    return f"{job.application.name.lower()}-{job.number}"


def bag_of(job: SimulatedJob, pace: float) -> Bag:
    """Return the work of a job; ``pace``: seconds of its work per second."""
    times = [time * job.work / pace for time in job.application.times()]
    return Bag(times, UNIT, at=job.initial)


def live_job(job: SimulatedJob, *, address: str, port: int, files: Sequence[Path], user: str) -> Job:
    """Return a job whose workers get units from the bag server; ``files``: what they need for that."""
    application = job.application
    low, high = (application.minimum, application.maximum) if job.malleable else (job.initial, job.initial)
    worker = Component(
        name="worker",
        command=("python3", WORKER, address, str(port), name_of(job)),
        minimum=low,
        maximum=high,
        initial=job.initial if job.malleable else None,
        input_files=tuple(InputFile(source=str(path), target=path.name) for path in files),
        sizes="power-of-two" if isinstance(application.acceptance, PowerOfTwo) else "any",
        retirement=Retirement(grace=GRACE),
    )
    return Job(
        id=JobId("0"),
        name=name_of(job),
        kind=JobKind.MALLEABLE if job.malleable else JobKind.RIGID,
        components=(worker,),
        walltime=WALLTIME,
        user=user,
        submitted_at=0.0,
        placement=job.placement,
        runner=RunnerName.WORKERS if job.malleable else RunnerName.RANKS,
    )


# -- Server of work units ------------------------------------------------------------------------------------
# Hands the work units of running applications out to their workers: the head, elsewhere, of all of them.

ASK_AGAIN = 0.05
"""Seconds after which a worker for which there was nothing to do asks again."""
OVER = -1.0
"""Seconds of a unit that says that there are no more."""
LONGEST_FRAME = 100


@dataclass(slots=True)
class _Worker:
    name: str
    """Of its bag."""
    number: int


class BagBoard:
    """Bags by name, as source of tasks for the task server."""

    def __init__(self, token: bytes) -> None:
        """``token``: secret that workers must present."""
        self.bags: dict[str, Bag] = {}
        self.joined_at: dict[tuple[str, int], float] = {}
        """When, by the time of day, the worker of each bag and rank was ready to work for the first time."""
        self.emptied_at: dict[str, float] = {}
        """When the work of each bag was done."""
        self.server = PullServer(self, token, largest_frame=LONGEST_FRAME)
        self._numbers = count(1)

    def came(self, puller: Puller) -> None:
        """Do nothing: a worker's first message names its bag and rank."""

    def heard(self, puller: Puller, frame: bytes) -> None:
        """Process a worker's message: its name, or the result of its unit."""
        word, _, number = frame.decode(errors="replace").partition(" ")
        worker = puller.work
        try:
            if not isinstance(worker, _Worker):
                self.joined_at.setdefault((word, int(number)), time.time())
                puller.work = worker = _Worker(word, next(self._numbers))
                self.bags[word].join(worker.number)
            else:
                self.bags[worker.name].done(worker.number, float(number))
                if word != "done":
                    return
        except (KeyError, ValueError):  # it says what no worker says
            puller.writer.transport.abort()
            return
        self.server.free(puller)

    def gone(self, puller: Puller) -> None:
        """Return the unit of a lost worker to its bag."""
        worker = puller.work
        if isinstance(worker, _Worker) and worker.name in self.bags:
            self.bags[worker.name].leave(worker.number)
            self._over(worker.name)

    def work_for(self, puller: Puller) -> bytes:
        """Return the seconds of a worker's next unit; a short pause when others have all; OVER at the end."""
        seconds: float | None = OVER
        if isinstance(worker := puller.work, _Worker):
            bag = self.bags[worker.name]
            seconds = bag.take(worker.number)
            if seconds is None:
                seconds = OVER if self._over(worker.name) else ASK_AGAIN
        return f"{seconds:.6f}".encode()

    def _over(self, name: str) -> bool:
        """Return whether a bag's work is done; record the time of it."""
        if self.bags[name].empty:
            self.emptied_at.setdefault(name, time.time())
        return name in self.emptied_at


class BagServer:
    """Task server for bags, in a thread of its own."""

    def __init__(self, address: str, directory: Path) -> None:
        """``address``: of this host. ``directory``: for certificate and workers' files."""
        self._certificate = load_or_create(directory)
        self._listening = listening_socket(address)
        self.port = int(self._listening.getsockname()[1])
        token = secrets.token_bytes(TOKEN_BYTES)
        self.board = BagBoard(token)
        contact = f"{self._certificate.fingerprint} {token.hex()}".encode()
        self.files = [directory / name for name in (WORKER, CONNECTION_FILE, CONTACT)]
        """What a worker needs: its program, the connection, and what it proves itself by."""
        texts = {**node_files("koala_experiments", "worker", WORKER), CONTACT: contact}
        for path in self.files:
            path.touch(mode=0o600)
            path.write_bytes(texts[path.name])

    async def begin(self) -> None:
        """Start accepting workers."""
        self.board.server.listen(self._listening, self._certificate, asyncio.get_running_loop())


@contextmanager
def bag_server(address: str, directory: Path) -> Iterator[BagServer]:
    """Run a server during the block."""
    with start_blocking_portal() as portal:
        server = BagServer(address, directory)
        portal.call(server.begin)
        try:
            yield server
        finally:
            portal.call(server.board.server.close)


# -- Site file of local clusters -----------------------------------------------------------------------------
# The clusters are started for one experiment.

SCHEDULER = {"placeholder_life": 60, "backoff": 1, "reuse": False, "maximum_tries": 1_000_000}
"""Placeholders are not handed from job to job, as in the simulator, and nothing is given up for long."""
CLUSTER = {"poll_interval": 0.3, "requests_per_minute": 3000}


def site_text(clusters: Sequence[ClusterModel], approach: Approach, malleability: str, directory: Path) -> str:
    """Return the text of a site file. ``directory``: for placeholders' output."""
    processors = {one.name: one.processors for one in clusters}
    scheduler = {**SCHEDULER, "approach": approach.value, "malleability": malleability}
    return local_site_text(directory, processors, scheduler, CLUSTER)


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


def mean(seconds: list[float], pace: float) -> float:
    """Return the mean duration in workload time; 0 without values."""
    return fmean(seconds) * pace if seconds else 0.0


# -- The live run --------------------------------------------------------------------------------------------

PREFIX = "koala-live-"
LOOK = 0.25
"""Seconds between two looks at the jobs."""
ENDING = 60.0
"""Seconds within which jobs that are cancelled on the clusters of a site must have ended."""
SEEN = 60.0
"""Seconds within which each cluster must have answered."""
NEVER = 10**9
"""Events after which a snapshot is taken: the journal of a run is read as a whole."""


def run_live(run: LiveRun, ended: Callable[[int], None]) -> LiveOutcome:
    """Run a workload on live clusters. Raises KoalaError."""
    return carried_out(run, lambda running: _by_the_clock(running, ended))


def carried_out(run: LiveRun, work: Callable[[RunningService], None]) -> LiveOutcome:
    """Return the outcome of a run; ``work`` submits its jobs and follows them to their ends.

    Whatever comes between, the jobs that it submitted are cancelled first. Raises KoalaError.
    """
    with Interrupts() as interrupts, _site(run, interrupts) as session:
        session.progress = Console(file=io.StringIO())  # how far the experiment is shown moves on the terminal already
        with (
            ownership(session.directory, "koala experiment"),
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


@contextmanager
def _site(run: LiveRun, interrupts: Interrupts) -> Iterator[Session]:
    """Yield a session on a run's clusters, with a temporary state directory."""
    if not run.site:
        files = partial(_local, run)
        with temporary_site(interrupts, files, prefix=PREFIX) as session:
            yield session
        return
    session = Session(site_option=Path(run.site), state_option=temporary_directory(PREFIX))
    session.here.config = _steered(session.site, run)
    try:
        yield session
    finally:
        with interrupts.deferred():
            remove_session(session)


def _steered(site: SiteConfig, run: LiveRun) -> SiteConfig:
    """Return a site with a run's approach and malleability policy."""
    how = {"approach": run.approach, "malleability": run.malleability}
    scheduler = site.scheduler.model_copy(update=how)
    clusters = tuple(one.model_copy(update={"malleability": None}) for one in site.clusters)
    return site.model_copy(update={"scheduler": scheduler, "clusters": clusters})


def remove_session(session: Session) -> None:
    """Remove the state directory, unless placeholders are left that `koala reap` must find."""
    if read_record(session.directory, session.policies).unfinished:
        return
    end_daemons(session.directory)
    shutil.rmtree(session.directory, ignore_errors=True)


def _local(run: LiveRun, directory: Path) -> Mapping[str, str]:
    return {"site.toml": site_text(run.clusters, run.approach, run.malleability, directory)}


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


def _by_the_clock(running: RunningService, ended: Callable[[int], None]) -> None:
    """Submit a run's jobs at their times; return when all have ended."""
    run, begin = running.run, time.monotonic()
    for job in run.jobs:
        running.follow(ended, until=begin + job.submitted_at / run.pace)
        running.submit(job, bag_of(job, run.pace))
    running.follow(ended, until=None)


def _outcome(run: LiveRun, directory: Path, clusters: Sequence[ClusterModel], bags: BagBoard) -> LiveOutcome:
    record = JournalRecord({name_of(job): job for job in run.jobs})
    with closing(Journal(directory / "journal.sqlite", read_only=True)) as journal:
        record.read(event for _, event in journal.recover()[1])
    if record.failed:
        raise SimulationError(f"jobs of the live run failed: {', '.join(record.failed)}", hint="see `koala check`")
    return LiveOutcome(
        outcome=record.outcome(run.pace),
        clusters=clusters,
        sizes=record.sizes(run.pace),
        held_after=mean(record.held_after, run.pace),
        computes_after=mean(record.computes_after(bags.joined_at), run.pace),
        known_after=mean(record.known_after(bags.emptied_at), run.pace),
        free_after=mean(record.free_after, run.pace),
    )
