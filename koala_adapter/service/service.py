# SPDX-License-Identifier: Apache-2.0
"""The service: drives the pure scheduler against real clusters, real agents and the real clock.

Every event is journaled before the scheduler sees it, and what the scheduler wants is done after that. A restart
replays the journal, and then compares with what the LRMs and the agents say. All times are those of the service clock.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JobRefusedError, JournalBlockedError, KoalaError, ServiceUnavailableError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.model import ClusterName, JobId
from koala_adapter.plugin.commands import login_name
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.policies import OWN, Policies
from koala_adapter.service.applications import Applications
from koala_adapter.service.clusterdriver import ClusterDriver, Surroundings, make_lrm
from koala_adapter.service.eventqueue import EventQueue
from koala_adapter.service.journal import Journal
from koala_adapter.service.reception import Reception
from koala_adapter.service.recovery import require_policies
from koala_adapter.service.resultstore import ResultStore
from koala_adapter.service.siteparameters import configuration
from koala_adapter.service.submissions import (
    ScriptMaker,
    last_words,
    leave_token,
    tidy_words,
    token_path,
    words_directory,
    words_paths,
)
from koala_adapter.vjm import credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.host.clock import HostClocks
    from koala_adapter.model import Job, PlaceholderId
    from koala_adapter.plugin import PluginDefinition
    from koala_adapter.scheduler.records import State

SNAPSHOT_INTERVAL = 5000
"""Events between two snapshots of the scheduler's state."""
LONGEST_WAIT = 60.0
"""Seconds after which the clock is looked at again: a wait does not count the time for which the machine sleeps."""
FIRST_ANSWERS = 2.0
"""Seconds within which a cluster that is well has answered for the first time; one that hangs must not keep the others
waiting."""

log = structlog.get_logger()


class Service:
    """One user's koala: the queue, its clusters and its control center. Owns the state directory while it runs."""

    def __init__(
        self,
        site: SiteConfig,
        plugins: Mapping[str, PluginDefinition],
        directory: Path,
        *,
        clocks: HostClocks | None = None,
        policies: Policies = OWN,
    ) -> None:
        """``directory``: private (0700), locked by the caller. Nothing is started before :meth:`run`.

        ``clocks``: None: those of this machine. Raises ConfigurationError, with nothing changed, when a policy that the
        journal needs is not among ``policies``.
        """
        self.site = site
        self.directory = directory
        self.journal = Journal(directory / "journal.sqlite")
        self._since_snapshot = 0
        self._with_secrets = set(self.journal.batches_with_secrets())
        self.scheduler = self._recovered(policies)
        self.clock = ServiceClock(clocks, before=self.journal.clock_reading(), latest=self.scheduler.state.now)
        self.journal.note_clock(self.clock.reading())
        self._queue = EventQueue(self.journal, handle=self._take_in, act_on=self._act, settled=self._tell)
        self.changed = anyio.Event()
        """Set (and replaced) whenever something changed that a report may show."""
        self.applications = Applications(
            directory / "jobs",
            state=lambda: self.scheduler.state,
            clock=self.now,
            report=self.post,
            store=ResultStore(
                per_rank=site.control_center.output_files_per_rank_mib * 1024**2,
                per_job=site.control_center.output_files_per_job_mib * 1024**2,
            ),
        )
        self.clusters: dict[ClusterName, ClusterDriver] = {}
        self.reception = Reception(
            directory / "certificate",
            journal=self.journal,
            state=lambda: self.scheduler.state,
            clock=self.now,
            report=self.post,
            applications=self.applications,
            clusters=self.clusters,
            tell=self._tell,
        )
        self.clusters.update({config.cluster_name: self._driver(config.name, plugins) for config in site.clusters})
        self._scripts: ScriptMaker | None = None
        self._on_finished: Callable[[JobId], str] | None = None
        self._ending = {id_ for id_, record in self.state.jobs.items() if record.state.final and record.live}
        """Jobs with an outcome whose placeholders are not all gone."""

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self.scheduler.state

    @property
    def instance(self) -> str:
        """Short random name of this state directory; part of every LRM job name of ours."""
        found = self.journal.value("instance")
        if found is None:
            found = secrets.token_hex(4)
            self.journal.set_value("instance", found)
        return found

    def now(self) -> float:
        """Return the time by the service clock."""
        return self.clock.now()

    @property
    def trouble(self) -> str:
        """Why the journal cannot be written at present, and so nothing is decided; empty while it can."""
        return self._queue.trouble

    def _recovered(self, policies: Policies) -> Scheduler:
        state, found = self.journal.recover()
        events = list(found)
        require_policies(state, events, policies)
        scheduler = Scheduler(state, policies)
        for event in events:
            self._handle(scheduler, event)
        return scheduler

    def _driver(self, name: str, plugins: Mapping[str, PluginDefinition]) -> ClusterDriver:
        config = self.site.cluster(name)
        lrm, commands = make_lrm(config, plugins, self.directory)
        surroundings = Surroundings(
            state=lambda: self.scheduler.state,
            clock=self.now,
            report=self.post,
            in_contact=self.reception.in_contact,
            halted=lambda: bool(self.trouble),
            name_prefix=f"koala-{self.instance}-",
            user=login_name(),
        )
        return ClusterDriver(config, lrm, commands, surroundings)

    # ---- events and actions ---------------------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Journal an event, let the scheduler handle it, and have its actions done; later, if that cannot be now."""
        self._queue.post(event)

    def _tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def _take_in(self, event: ev.Event, number: int) -> list[act.Action]:
        actions = self._handle(self.scheduler, event)
        if isinstance(event, ev.PlaceholderEnded):
            # Its LRM may have given up the node while the agent goes on there, such as when slurmd died.
            self.reception.release(event.placeholder)
        self._close_over()
        self._since_snapshot += 1
        if self._since_snapshot >= SNAPSHOT_INTERVAL:
            self._snapshot(number)
        self._watch_time_of_day()
        return actions

    def _watch_time_of_day(self) -> None:
        """Note it when somebody sets the time of day, or the next boot would take that for time that has passed."""
        step = self.clock.step()
        if step:
            log.warning("the time of day of this machine was set", seconds=round(step, 1))
            with suppress(JournalBlockedError):
                self.journal.note_clock(self.clock.reading())

    @staticmethod
    def _handle(scheduler: Scheduler, event: ev.Event) -> list[act.Action]:
        """Let the scheduler handle an event; a defect in it costs that event, not the service and all its jobs."""
        try:
            return scheduler.handle(event)
        except Exception:
            log.exception("the scheduler failed on an event", event_type=type(event).__name__)
            return []

    def _snapshot(self, number: int) -> None:
        self._since_snapshot = 0
        try:
            self.journal.snapshot(self.scheduler.state, number)
        except JournalBlockedError as error:  # the events are there; the next restart only takes longer
            log.warning("no snapshot was taken", error=error.message)

    def _act(self, action: act.Action) -> None:
        match action:
            case act.SubmitPlaceholders():
                self._submit(action)
            case act.EndPlaceholders():
                self._end(action)
            case act.LaunchJob():
                self.applications.launch(action.job_id)
            case act.ReadPlaceholderOutput():
                self._read_output(action)
            case act.JobFinished():
                self._finished(action)
            case act.OutcomeCorrected():
                log.info("job ended otherwise", job=action.job_id, detail=action.outcome.detail)
                self._archive(action.job_id)

    def _submit(self, action: act.SubmitPlaceholders) -> None:
        driver = self.clusters[action.cluster]
        token = credentials.new_token()
        self.journal.set_token(action.batch, token)
        self._with_secrets.add(action.batch)
        if self._scripts is None:
            return
        try:
            path = token_path(driver.config, action.batch)
            if path is not None:
                leave_token(path, token)
            driver.submit(self._scripts.submission(action, driver.config, driver.lrm, token))
        except (OSError, KoalaError) as error:
            self.post(ev.BatchRejected(time=self.now(), batch=action.batch, reason=str(error)))

    def _end(self, action: act.EndPlaceholders) -> None:
        driver = self.clusters.get(action.cluster)
        to_cancel = []
        for placeholder, lrm_id in zip(action.placeholders, action.lrm_ids, strict=True):
            told = self.reception.release(placeholder)
            if action.force:
                goes_by_itself = self.applications.files_under_way(placeholder)
            else:
                goes_by_itself = told or self._has_more_to_say(placeholder)
            if lrm_id and not goes_by_itself:
                to_cancel.append(lrm_id)
        if driver is not None:
            driver.cancel(to_cancel)
            driver.poller.poll_soon()

    def _has_more_to_say(self, placeholder: PlaceholderId) -> bool:
        """Tell whether an agent that is out of contact keeps output that is still wanted.

        It is then told to end when it comes back, or cancelled when that takes longer than the scheduler's patience.
        """
        record = self.state.placeholders.get(placeholder)
        if record is None or record.silent_since is None:
            return False
        job = self.state.jobs[record.job_id]
        return job.launched_at is not None and job.state is not JobState.CANCELLED

    def _read_output(self, action: act.ReadPlaceholderOutput) -> None:
        driver = self.clusters.get(action.cluster)
        if driver is None:
            return
        paths = words_paths(words_directory(driver.config, self.directory), action.placeholder)
        said = next(filter(None, map(last_words, paths)), "")
        text = said or f"nothing that can be read from here (look at {paths[0]} on its node, if it has that directory)"
        log.warning(
            "placeholder did not report", cluster=action.cluster, placeholder=str(action.placeholder), wrote=text
        )
        self.post(ev.PlaceholderSaid(time=self.now(), cluster=action.cluster, job_id=action.job_id, text=text))

    def _finished(self, action: act.JobFinished) -> None:
        outcome = action.outcome
        log.info("job ended", job=action.job_id, state=outcome.state.value, detail=outcome.detail)
        self.applications.forget(action.job_id)
        self._ending.add(action.job_id)
        self._archive(action.job_id)

    def _archive(self, job_id: JobId) -> None:
        if self._on_finished is not None:
            finished_at = self.state.jobs[job_id].finished_at or self.now()
            self.journal.archive(job_id, finished_at, self._on_finished(job_id))

    def _close_over(self) -> None:
        """Archive once more what is over: until its last placeholder was gone, files of its ranks have come in."""
        for job_id in [id_ for id_ in self._ending if id_ not in self.state.jobs or not self.state.jobs[id_].live]:
            self._ending.discard(job_id)
            if job_id in self.state.jobs:
                self._archive(job_id)
            self.applications.results.forget(self.applications.directory / job_id)

    # ---- what users ask -------------------------------------------------------------------------------------------

    def archive_with(self, make_report: Callable[[JobId], str]) -> None:
        """Have reports of finished jobs (JSON) made by ``make_report`` and kept, also of those before a kill."""
        self._on_finished = make_report
        for job_id, record in self.state.jobs.items():
            if record.state.final and self.journal.archived(job_id) is None:
                self._archive(job_id)

    def submit(self, make_job: Callable[[JobId, float], Job]) -> JobId:
        """Enter a job into the queue; ``make_job`` gets its id and time. Returns once it is on disk.

        Raises JobRefusedError when its input files cannot be kept or its placement policy is not here, and
        JournalBlockedError when the journal cannot be written: then there is no such job.
        """
        self._queue.require_journal()
        job = make_job(self._new_job_id(), self.now())
        if job.placement not in self.scheduler.policies.placement_names:
            known = ", ".join(sorted(self.scheduler.policies.placement_names))
            message = f"the service has no placement policy {job.placement!r}; it has {known}"
            raise JobRefusedError(message, hint="restart it if the policy has been installed meanwhile")
        try:
            self.applications.keep_input(job)
        except OSError as error:
            raise JobRefusedError(
                f"input file {error.filename}: {error.strerror}", hint="check the job file"
            ) from error
        try:
            self._queue.enter(ev.JobSubmitted(time=self.now(), job=job))
        except JournalBlockedError:
            self.applications.forget(job.id)
            raise
        for driver in self.clusters.values():
            driver.poller.active = True
            driver.poller.poll_soon()
        return job.id

    def _new_job_id(self) -> JobId:
        try:
            return JobId(str(self.journal.next_job_number()))
        except JournalBlockedError as error:
            self._queue.halt(error)
            raise

    def cancel(self, job_id: str) -> None:
        """Cancel a job. Raises JobNotFoundError; a job that has ended already is left as it is.

        Raises JournalBlockedError when the journal cannot be written: then the job goes on.
        """
        record = self.scheduler.job(job_id)
        self._queue.enter(ev.CancelRequested(time=self.now(), job_id=record.job.id))

    @property
    def scripts(self) -> ScriptMaker:
        """What makes the submissions. Raises ServiceUnavailableError before the control center listens."""
        if self._scripts is None:
            raise ServiceUnavailableError("the service is still starting", hint="try again in a moment")
        return self._scripts

    @property
    def busy(self) -> bool:
        """Tell whether anything is unfinished."""
        return any(not record.state.final or record.live for record in self.state.jobs.values())

    @property
    def unfinished(self) -> list[JobId]:
        """Jobs that have no outcome yet or whose placeholders are not all gone."""
        return [id_ for id_, record in self.state.jobs.items() if not record.state.final or record.live]

    # ---- running --------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        ``task_status`` is told once the control center listens and the LRMs have had time to answer.
        """
        try:
            async with anyio.create_task_group() as tasks:
                port = await self.reception.open(tasks, self.site.control_center)
                fingerprint = self.reception.fingerprint
                self._scripts = ScriptMaker(
                    site=self.site, port=port, fingerprint=fingerprint, directory=self.directory
                )
                self.post(configuration(self.site, self.instance, self.now()))
                self._after_restart()
                await self._start_clusters(tasks)
                tasks.start_soon(self._queue.keep_trying, self._resumed)
                tasks.start_soon(self._keep_time)
                tasks.start_soon(self._tidy)
                task_status.started()
        finally:
            self.journal.close()

    async def _start_clusters(self, tasks: TaskGroup) -> None:
        """Drive the clusters within ``tasks``; return when all have been tried, or those that hang are late.

        A cluster that is not enabled is left alone, unless something of ours is still there.
        """
        left_there = {record.parameters.name for record in self.state.clusters.values() if record.managed}
        wanted = [one for one in self.clusters.values() if one.config.enabled or one.name in left_there]
        tried = anyio.Event()
        untried = {driver.name for driver in wanted}

        async def start(driver: ClusterDriver) -> None:
            await tasks.start(driver.run)
            untried.discard(driver.name)
            if not untried:
                tried.set()

        for driver in wanted:
            tasks.start_soon(start, driver)
        with anyio.move_on_after(FIRST_ANSWERS):
            await tried.wait()
        if untried:
            log.warning("clusters that have not answered yet are not waited for", clusters=sorted(untried))

    def _after_restart(self) -> None:
        """Doubt what only the former process knew: submissions under way, and agents that have yet to come back."""
        now = self.now()
        for batch in list(self.state.batches.values()):
            if batch.lrm_ids is None and batch.key not in self._just_submitted():
                self.post(ev.BatchUncertain(time=now, batch=batch.key, reason="the service was restarted meanwhile"))
        for placeholder in list(self.state.placeholders.values()):
            if placeholder.host and placeholder.state is not PlaceholderState.ENDING:
                detail = "the service was restarted"
                self.post(ev.PlaceholderSilent(time=now, placeholder=placeholder.id, detail=detail))

    def _just_submitted(self) -> set[str]:
        return {key for driver in self.clusters.values() for key in driver.under_way}

    def _resumed(self) -> None:
        """The journal can be written again: look at what happened on the clusters meanwhile."""
        self._tell()
        for driver in self.clusters.values():
            driver.poller.poll_soon()

    async def _keep_time(self) -> None:
        while True:
            at = None if self.trouble else self.scheduler.next_wakeup
            changed = self.changed
            self._watch_time_of_day()
            if at is not None and at <= self.now():
                self.post(ev.TimeReached(time=self.now()))
                await anyio.lowlevel.checkpoint()
                continue
            with anyio.move_on_after(LONGEST_WAIT if at is None else min(LONGEST_WAIT, max(0.0, at - self.now()))):
                await changed.wait()

    async def _tidy(self) -> None:
        """Poll less while nothing is unfinished; drop the secrets of submissions that are over."""
        while True:
            await self.changed.wait()
            active = self.busy
            for driver in self.clusters.values():
                driver.poller.active = active
            if len(self._with_secrets) > len(self.state.batches) and not self.trouble:
                with suppress(JournalBlockedError):  # at the next change
                    self._forget_secrets()

    def _forget_secrets(self) -> None:
        for batch in [key for key in self._with_secrets if key not in self.state.batches]:
            self.journal.forget_batch(batch)
            self._with_secrets.discard(batch)
            for driver in self.clusters.values():
                driver.forget(batch)
                with suppress(OSError):
                    tidy_words(words_directory(driver.config, self.directory), batch)
