# SPDX-License-Identifier: Apache-2.0
"""The service: drives the pure scheduler against real clusters, real agents and the real clock.

In this order: the scheduler's configuration from a site file, the policies of new jobs, the start of cluster drivers,
and the service itself.

Every event is journaled before the scheduler sees it; what the scheduler wants is done after that. A restart replays
the journal, and then compares with what LRMs and agents report. All times are those of the service clock.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.driver.loop import SNAPSHOT_INTERVAL, EventLoop
from koala_adapter.driver.store import doubts, rebuilt, tellers
from koala_adapter.errors import JobRefusedError, JournalBlockedError, KoalaError, ServiceUnavailableError
from koala_adapter.host.clock import HostClocks, ServiceClock
from koala_adapter.host.containment import contained
from koala_adapter.lrm.contract import expressible
from koala_adapter.model import ClusterName, Job, JobId, PlaceholderId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming.waiting import WORDS, fulfils
from koala_adapter.scheduler.events import ClusterUnavailable, Configured
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.service.agents import LiveEffector, Reception, ScriptMaker
from koala_adapter.service.applications import Applications, Archive
from koala_adapter.service.clusters import ClusterDriver
from koala_adapter.service.core import Core
from koala_adapter.service.information import Information
from koala_adapter.service.journal import Journal
from koala_adapter.service.meter import ServiceMeter
from koala_adapter.service.notices import Notices
from koala_adapter.service.opening import SiteHosts, make_lrm
from koala_adapter.service.replicas import Replicas
from koala_adapter.service.sizes import SizeChanges, resizable
from koala_adapter.service.sweeps import Sweeps
from koala_adapter.service.upkeep import AskingAgain, Upkeep
from koala_adapter.sizes import SizeRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.lrm import Capabilities, PluginDefinition
    from koala_adapter.scheduler.parameters import ClusterParameters
    from koala_adapter.scheduler.records import State


OBSTACLE_SECONDS = 10.0
"""How long a client that submits a job waits until what is wrong with clusters was looked at again."""


# -- Configuration of the scheduler from a site file ---------------------------------------------------------


def configuration(
    site: SiteConfig, instance: str, now: float, capabilities: Mapping[ClusterName, Capabilities]
) -> Configured:
    """Return the event that configures the scheduler for a site.

    ``capabilities``: what the plugins can do; a cluster that is not there can be asked for any slot.
    """
    parameters = replace(site.parameters, instance=instance)

    def of(config: ClusterConfig) -> ClusterParameters:
        able = capabilities.get(config.cluster_name)
        keys = None if able is None else tuple(sorted(expressible(able, config.changes)))
        remote = site.remote_site(config)
        lease = None if remote is None else remote.lease
        return replace(
            config.parameters,
            slot_keys=keys,
            counts_slots=True,
            reserves=None if able is None else able.reserve,
            site=config.site or "",
            here=config.site is None,
            stages=site.cache_bound(config) > 0,
            site_lease=lease,
        )

    clusters = tuple(of(config) for config in site.enabled_clusters)
    return Configured(time=now, parameters=parameters, clusters=clusters)


def check_policies(job: Job, policies: Policies, rules: SizeRules) -> None:
    """Raise JobRefusedError when a policy or size rule of a new job is not installed."""
    if job.placement not in policies.placement:
        known = ", ".join(sorted(policies.placement))
        message = f"the service has no placement policy {job.placement!r}; it has {known}"
        raise JobRefusedError(message, hint="restart it if the policy has been installed meanwhile")
    for component in job.components:
        if not rules.known(component.sizes):
            message = f"component {component.name!r}: the service has no rule {component.sizes!r} for sizes"
            raise JobRefusedError(message, hint="restart it if the rule has been installed meanwhile")


# -- Start of the cluster drivers ----------------------------------------------------------------------------
# A cluster that is not enabled is driven only while placeholders of ours are there.

FIRST_ANSWERS = 2.0
"""Seconds within which a cluster that is well has answered for the first time; one that hangs must not keep the others
waiting."""

log = structlog.get_logger()


async def start_drivers(drivers: Sequence[ClusterDriver], tasks: TaskGroup) -> None:
    """Start cluster drivers within ``tasks``; return when all have tried their cluster, or are late."""
    tried = anyio.Event()
    untried = {driver.name for driver in drivers}

    async def start(driver: ClusterDriver) -> None:
        await tasks.start(driver.run)
        untried.discard(driver.name)
        if not untried:
            tried.set()

    for driver in drivers:
        tasks.start_soon(start, driver)
    with anyio.move_on_after(FIRST_ANSWERS):
        await tried.wait()
    if untried:
        log.warning("clusters that have not answered yet are not waited for", clusters=sorted(untried))


# -- The service ---------------------------------------------------------------------------------------------


def largest_job_number(jobs_directory: Path) -> int:
    """Return the largest job number with files; 0: there are none. Raises OSError."""
    try:
        with os.scandir(jobs_directory) as entries:
            return max((int(one.name) for one in entries if one.name.isdecimal() and one.name.isascii()), default=0)
    except FileNotFoundError:
        return 0


class Service:
    """One user's koala: the queue, its clusters and its control center. Owns the state directory while it runs."""

    def __init__(  # noqa: PLR0913 - all that a service can be told
        self,
        site: SiteConfig,
        plugins: Mapping[str, PluginDefinition],
        directory: Path,
        *,
        make_report: Callable[[Service, JobId], str],
        clocks: HostClocks | None = None,
        policies: Policies = OWN,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
        journal_patience: float | None = None,
        settings_trusted: float = 0.0,
    ) -> None:
        """``directory``: private (0700), locked by the caller. Nothing is started before :meth:`run`.

        ``make_report`` makes the report (JSON) of a job that is kept when it has ended. ``clocks``: None: those of this
        machine. ``snapshot_interval``: events after which a snapshot stands for them. ``journal_patience``: seconds
        after which it ends, by a JournalBlockedError, where the journal cannot be written and no application runs;
        None: it waits. ``settings_trusted``: as ``trusted`` of :func:`make_lrm`. Raises ConfigurationError, with
        nothing changed, when a policy that the journal needs is not among ``policies``.
        """
        self.site = site
        self.directory = directory
        self.journal = Journal(directory / "journal.sqlite")
        with ExitStack() as failing:  # :meth:`run` closes the journal; a service that cannot be made does so here
            failing.callback(self.journal.close)
            largest = largest_job_number(directory / "jobs")
            if self.journal.skip_job_numbers(largest):
                log.warning(
                    "the journal lacks jobs whose files are there; new numbers begin after them", largest=largest
                )
            make_scheduler = partial(Scheduler, policies=policies)
            scheduler = rebuilt(self.journal, make_scheduler)
            self.clock = ServiceClock(clocks, before=self.journal.clock_reading(), latest=scheduler.state.now)
            self.journal.note_clock(self.clock.reading())
            self._failed = anyio.Event()
            self._failure: KoalaError | None = None
            core = self.core = Core(site, directory, self.journal, self.clock, SizeRules(policies.sizes))
            self.meter = ServiceMeter(core)
            self.sweeps = Sweeps(core)
            self.information = Information(core)
            self.applications = Applications(core, self.information, self.sweeps)
            self.applications.inputs.tidy()
            self.sizes = SizeChanges(core, self.applications)
            self._hosts = SiteHosts(self.site.sites, self.directory, lasting=True)
            self.clusters = {
                config.cluster_name: self._new_driver(config, plugins, settings_trusted) for config in site.clusters
            }
            self.reception = Reception(core, self.applications, self.clusters)
            self._asking_again = AskingAgain(core)
            self.archive = Archive(core, self.applications, partial(make_report, self))
            self.notices = Notices(core)
            self.replicas = Replicas(core, self.applications.stager)
            self._effector = LiveEffector(
                core=core,
                clusters=self.clusters,
                reception=self.reception,
                applications=self.applications,
                sizes=self.sizes,
                archive=self.archive,
                meter=self.meter,
                notices=self.notices,
            )
            self._loop = core.loop = EventLoop(
                scheduler,
                self.journal,
                self._effector,
                self,
                make=make_scheduler,
                snapshot_interval=snapshot_interval,
                since_snapshot=self.journal.events_since_snapshot(),
            )
            self._upkeep = Upkeep(core, self.clusters, self._effector, journal_patience=journal_patience)
            failing.pop_all()

    def _new_driver(
        self, config: ClusterConfig, plugins: Mapping[str, PluginDefinition], settings_trusted: float
    ) -> ClusterDriver:
        host = self._hosts.at(config.site)
        lrm, commands = make_lrm(config, plugins, self.directory, host=host, trusted=settings_trusted)
        self.core.lrm_hosts[config.name] = commands.host
        self.meter.watch(config.name, commands)
        return ClusterDriver(self.core, config, lrm, commands)

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self.core.state

    @property
    def sites_away(self) -> list[str]:
        """Why sites cannot be reached at present, a sentence for each of them."""
        return [host.trouble for host in self._hosts if host.trouble]

    def now(self) -> float:
        """Return the time by the service clock."""
        return self.clock.now()

    # ---- what becomes of events -----------------------------------------------------------------------------------

    def handled(self, event: ev.Event) -> None:
        """Follow up a handled event: metrics, sizes of jobs, final reports."""
        if isinstance(event, ev.PlaceholderEnded):
            # Its LRM may have given up the node while the agent goes on there, such as when slurmd died.
            self.reception.release(event.placeholder)
        with contained("taking note of an event", event_type=type(event).__name__):
            self.meter.handled(event)
            self.sizes.follow(self._loop.scheduler.touched(event))
        self.archive.close_over()
        self._upkeep.watch_time_of_day()

    def settled(self) -> None:
        """Wake the requests that wait for changes."""
        self.core.note_change()

    def halted(self) -> None:
        """Try the journal from now on until it can be written."""
        self._upkeep.halted.set()

    def snapshot_begun(self) -> None:
        """Write a snapshot group by group."""
        self._upkeep.snapshot_begun.set()

    def state_rebuilt(self, set_aside: Sequence[ev.Event]) -> None:
        """Ask agents and clusters again for what is no longer known, as events were set aside."""
        self.meter.set_aside(len(set_aside))
        if len(set_aside) > 1:
            self.core.center.disconnect_all("events were set aside: tell again how things stand")
        else:
            self._asking_again.ask(set_aside[0], tellers(self.state, set_aside[0]))
        self._doubt("an event was set aside", in_contact=self.core.in_contact)
        for driver in self.clusters.values():
            driver.reservations.remove_unowned()
        self.sizes.follow(self.state.jobs)

    def failed(self, error: KoalaError) -> None:
        """End the service, as the state cannot be rebuilt."""
        self._failure = error
        self._failed.set()

    # ---- what users ask -------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until requests can be handled: not during a snapshot."""
        while self._loop.in_snapshot:
            await self.core.changed.wait()

    async def look_for_obstacles(self) -> None:
        """Find out whether submissions still fail for the reasons that clusters are known to have, if any.

        After a start, catalogues of files are waited for, too.
        """
        with anyio.move_on_after(OBSTACLE_SECONDS):
            await self.replicas.ready()
            for driver in self.clusters.values():
                await driver.look_for_obstacle()

    async def take_in_files(self, job: Job, submission: str) -> None:
        """Copy the large input files of a job that is about to be submitted, unless it was: that may take long."""
        if self._submitted(submission) is None:
            await self.replicas.learn(job.input_files)
            await self.applications.inputs.take_in(job)

    def _require_able(self, job: Job) -> None:
        """Raise JobRefusedError if submissions are known to fail on every cluster of a component."""
        obstacles = {name: driver.lrm.submission_obstacle for name, driver in self.clusters.items()}
        for component in job.components:
            asked = [component.cluster] if component.cluster in obstacles else list(obstacles)
            if asked and all(obstacles[name] for name in asked):
                said = "; ".join(f"{name}: {obstacles[name]}" for name in asked)
                raise JobRefusedError(f"nothing can be submitted for component {component.name!r}: {said}")

    def submit(self, make_job: Callable[[JobId, float], Job], *, submission: str = "") -> JobId:
        """Enter a job into the queue; ``make_job`` gets its id and time. Returns once it is on disk.

        ``submission``: a name by which the client sends this submission again when it got no answer; the job that it
        became is returned then. Raises JobRefusedError when its input files cannot be kept, its placement policy is not
        here or no cluster takes submissions for it, JournalBlockedError when the journal cannot be written, and
        DefectError when koala failed on it: then there is no such job.
        """
        earlier = self._submitted(submission)
        if earlier is not None:
            return earlier
        self._loop.require_journal()
        job = self._after_known(make_job(self._new_job_id(), self.now()))
        check_policies(job, self.core.scheduler.policies, self.core.size_rules)
        self._require_able(job)
        self.applications.keep_input(job)
        try:
            self._note_submission(submission, job.id)
            self.tell_of(job)
            self.replicas.require(job)
            self._loop.enter(ev.JobSubmitted(time=self.now(), job=job))
        except KoalaError:
            self.applications.forget(job.id)
            raise
        for driver in self._drivers(component.cluster for component in job.components):
            driver.poller.refresh()
        return job.id

    def _after_known(self, job: Job) -> Job:
        """Return a job whose dependencies are ids of unfinished jobs.

        Raises JobRefusedError for a job that is not known, or that has ended otherwise than was asked for.
        """
        awaited = []
        for after in job.after:
            called = (one for one in reversed(self.state.jobs.values()) if one.job.name == after.job)
            latest = next((one for one in called if one.job.user == job.user), None)
            record = self.state.jobs.get(after.job) or latest
            if record is not None:
                awaited.append(replace(after, job=record.job.id))
                continue
            ended = (self.journal.finished.outcome(after.job) or {}).get("state")
            if ended is None:
                message = f"it is to start after job {after.job!r}, which there is not"
                raise JobRefusedError(message, hint="give the id, or the name, of a job that `koala status` lists")
            if not fulfils(JobState(str(ended)), after.end):
                message = f"it is to start only after job {after.job} had {WORDS[after.end]}, and that is {ended}"
                raise JobRefusedError(message, hint=f"{after.job}:any does not ask how it ended")
        return replace(job, after=tuple(awaited))

    def tell_of(self, job: Job) -> None:
        """Tell the scheduler slots and files that a job's placement needs."""
        for found in self.replicas.found(job):
            self._loop.enter(found)
        for driver in self.clusters.values():
            if driver.name not in self.state.clusters:
                continue  # not enabled in the site file
            if (counted := driver.slots_counted(job)) is not None:
                self._loop.enter(counted)

    def _submitted(self, submission: str) -> JobId | None:
        """Return the job of a submission; None: unknown, or not journaled before a kill."""
        job_id = self.journal.submitted(submission) if submission else None
        if job_id is None or job_id in self.state.jobs:
            return job_id
        kept = self.journal.finished
        return job_id if kept.report(job_id) or kept.cleaned_at(job_id) is not None else None

    def _note_submission(self, submission: str, job_id: JobId) -> None:
        try:
            if submission:
                self.journal.note_submission(submission, job_id)
        except JournalBlockedError as error:
            self._loop.halt(error)
            raise

    def _new_job_id(self) -> JobId:
        try:
            return JobId(str(self.journal.next_job_number()))
        except JournalBlockedError as error:
            self._loop.halt(error)
            raise

    def cancel(self, job_id: str) -> None:
        """Cancel a job; no effect on one that has ended. Raises JobNotFoundError.

        Raises JournalBlockedError when the journal cannot be written, DefectError when koala failed on it: then the
        job goes on.
        """
        record = self.core.scheduler.job(job_id)
        self._loop.enter(ev.CancelRequested(time=self.now(), job_id=record.job.id))

    def forget(self, job_ids: tuple[JobId, ...]) -> None:
        """Drop the records of jobs that are over. Raises JournalBlockedError and DefectError: then nothing changed."""
        self._loop.enter(ev.JobsForgotten(time=self.now(), job_ids=job_ids))

    def resize(self, job_id: str, component: str, processors: int) -> None:
        """Set the wanted size of a malleable job's component.

        ``component``: empty for the only one that can change. Raises JobNotFoundError; JobRefusedError for a size that
        the component cannot have; JournalBlockedError and DefectError as :meth:`cancel` does.
        """
        record = self.core.scheduler.job(job_id)
        found = resizable(record, component, processors, self.core.size_rules)
        wanted = ev.SizeWanted(time=self.now(), job_id=record.job.id, component=found, processors=processors)
        self._loop.enter(wanted)
        for driver in self._drivers(claim.cluster for claim in record.claims if claim.component == found):
            driver.poller.poll_soon()

    def _drivers(self, names: Iterable[ClusterName | None]) -> list[ClusterDriver]:
        """Return the drivers of some clusters; all of them where one is None."""
        wanted = set(names)
        return [driver for name, driver in self.clusters.items() if None in wanted or name in wanted]

    @property
    def scripts(self) -> ScriptMaker:
        """Maker of submissions. Raises ServiceUnavailableError before the control center listens."""
        scripts = self.reception.scripts
        if scripts is None:
            raise ServiceUnavailableError("the service is still starting", hint="try again in a moment")
        return scripts

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
                self.archive.catch_up()
                self.sizes.start(tasks)  # before agents are heard
                await self.reception.open(tasks)
                for host in self._hosts:
                    host.relay_agents_to(self.site.control_center.address_here, self.reception.port or 0)
                self.applications.stager.start(tasks, self.core.lrm_hosts)
                for name, record in self.state.clusters.items():
                    if record.polled_at is not None:  # by an earlier service: it may not be connected yet
                        reason = "it has not answered yet"
                        self._loop.post(ClusterUnavailable(time=self.now(), cluster=name, reason=reason, awaited=True))
                instance = self.journal.instance()
                self._loop.post(configuration(self.site, instance, self.now(), {}))
                self._doubt("the service was restarted")
                self.sizes.resume()
                left_there = {name for name, record in self.state.clusters.items() if record.managed}
                needed = [one for one in self.clusters.values() if one.config.enabled or one.name in left_there]
                await start_drivers(needed, tasks)
                # Some plugins learn from their batch system for what it can be asked: what they say before it has
                # answered would refuse jobs for ever. One that answers later refuses submissions by itself.
                answered = [one for one in self.clusters.values() if one.version is not None]
                capabilities = {one.name: one.lrm.capabilities for one in answered}
                self._loop.post(configuration(self.site, instance, self.now(), capabilities))
                tasks.start_soon(self._stop_when_failed)
                tasks.start_soon(self._asking_again.run)
                self._upkeep.start(tasks)
                tasks.start_soon(self.sweeps.run)
                tasks.start_soon(self.notices.run)
                tasks.start_soon(self.information.run)
                tasks.start_soon(self.reception.reachability.run)
                tasks.start_soon(self.replicas.run)
                task_status.started()
        finally:
            needing = (one for one in self.state.placeholders.values() if one.state is not PlaceholderState.ENDING)
            on = {one.cluster for one in needing}
            await self._hosts.close(in_use={str(one.config.site) for one in self.clusters.values() if one.name in on})
            try:
                with suppress(JournalBlockedError):
                    if self._loop.conclude():
                        self.archive.conclude(self.unfinished)
            finally:
                self.journal.close()

    def _doubt(self, why: str, in_contact: Callable[[PlaceholderId], bool] = lambda _: False) -> None:
        under_way = {key for driver in self.clusters.values() for key in driver.judge.under_way}
        for event in doubts(self.state, now=self.now(), why=why, under_way=under_way, in_contact=in_contact):
            self._loop.post(event)

    async def _stop_when_failed(self) -> None:
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure
