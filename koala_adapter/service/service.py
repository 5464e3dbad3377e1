# SPDX-License-Identifier: Apache-2.0
"""The service: drives the pure scheduler against real clusters, real agents and the real clock.

Every event is journaled before the scheduler sees it, and what the scheduler wants is done after that. A restart
replays the journal, and then compares with what the LRMs and the agents say. All times are those of the service clock.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from koala_adapter.driver.loop import SNAPSHOT_INTERVAL, EventLoop
from koala_adapter.driver.recovery import doubts, rebuilt, tellers
from koala_adapter.dynaco.sizerules import SizeRules
from koala_adapter.errors import JournalBlockedError, KoalaError, ServiceUnavailableError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.model import JobId
from koala_adapter.plugin.commands import login_name
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.service.applications import Applications
from koala_adapter.service.archive import Archive
from koala_adapter.service.askingagain import AskingAgain
from koala_adapter.service.clusterdriver import ClusterDriver, DriverContext, make_lrm
from koala_adapter.service.driverstart import drivers_needed, start_drivers
from koala_adapter.service.journal import Journal
from koala_adapter.service.liveeffector import LiveEffector
from koala_adapter.service.neededpolicies import WithPolicies, check_policies
from koala_adapter.service.reception import Reception
from koala_adapter.service.resizing import resizable
from koala_adapter.service.resultstore import ResultStore
from koala_adapter.service.scriptmaker import ScriptMaker
from koala_adapter.service.servicemeter import ServiceMeter
from koala_adapter.service.siteparameters import configuration
from koala_adapter.service.sizechanges import SizeChanges
from koala_adapter.service.sizesurroundings import Surroundings
from koala_adapter.service.sweeps import Sweeps
from koala_adapter.service.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskStatus

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.host.clock import HostClocks
    from koala_adapter.model import ClusterName, Job, PlaceholderId
    from koala_adapter.plugin import PluginDefinition
    from koala_adapter.scheduler.records import State
    from koala_adapter.vjm.channel import Launch, Signal


class Service:
    """One user's koala: the queue, its clusters and its control center. Owns the state directory while it runs."""

    def __init__(
        self,
        site: SiteConfig,
        plugins: Mapping[str, PluginDefinition],
        directory: Path,
        *,
        make_report: Callable[[Service, JobId], str],
        clocks: HostClocks | None = None,
        policies: Policies = OWN,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
    ) -> None:
        """``directory``: private (0700), locked by the caller. Nothing is started before :meth:`run`.

        ``make_report`` makes the report (JSON) of a job that is kept when it has ended. ``clocks``: None: those of this
        machine. ``snapshot_interval``: events after which a snapshot stands for them. Raises ConfigurationError, with
        nothing changed, when a policy that the journal needs is not among ``policies``.
        """
        self.site = site
        self.directory = directory
        self.journal = Journal(directory / "journal.sqlite")
        make_scheduler = partial(Scheduler, policies=policies)
        scheduler = rebuilt(WithPolicies(self.journal, policies), make_scheduler)
        self.clock = ServiceClock(clocks, before=self.journal.clock_reading(), latest=scheduler.state.now)
        self.journal.note_clock(self.clock.reading())
        self._failed = anyio.Event()
        self._failure: KoalaError | None = None
        self.changed = anyio.Event()
        """Set (and replaced) whenever something changed that a report may show."""
        self.sweeps = Sweeps(
            directory, site, state=lambda: self.state, clock=self.now, report=self.post, tell=self.settled
        )
        self.applications = self._new_applications()
        self._size_rules = SizeRules(policies.sizes)
        around = Surroundings(
            listen=site.control_center.negotiation_listen,
            applications=self.applications,
            store=self.journal.negotiations,
            state=lambda: self.state,
            clock=self.now,
            report=self.post,
            tell=self._tell_application,
            rules=self._size_rules,
        )
        self.sizes = SizeChanges(around)
        self.meter = ServiceMeter(lambda: self.state, trouble=lambda: self.trouble)
        self.clusters = {config.cluster_name: self._new_driver(config, plugins) for config in site.clusters}
        self.reception = self._new_reception()
        self._asking_again = AskingAgain(clock=self.now, disconnect=self.reception.disconnect)
        self.archive = Archive(
            self.journal,
            state=lambda: self.state,
            applications=self.applications,
            make_report=partial(make_report, self),
            ending=(id_ for id_, record in scheduler.state.jobs.items() if record.state.final and record.live),
        )
        self._effector = self._new_effector()
        self._loop = EventLoop(
            scheduler,
            self.journal,
            self._effector,
            self,
            make=make_scheduler,
            snapshot_interval=snapshot_interval,
            since_snapshot=self.journal.events_since_snapshot(),
        )
        self._upkeep = Upkeep(
            directory,
            loop=self._loop,
            journal=self.journal,
            clock=self.clock,
            clusters=self.clusters,
            effector=self._effector,
            changed=lambda: self.changed,
            tell=self.settled,
        )

    # ---- its parts: what they ask of it and of each other is asked once all are made ------------------------------

    def _new_applications(self) -> Applications:
        settings = self.site.control_center
        store = ResultStore(
            per_rank=settings.output_files_per_rank_mib * 1024**2, per_job=settings.output_files_per_job_mib * 1024**2
        )
        return Applications(
            self.directory / "jobs",
            state=lambda: self.state,
            clock=self.now,
            report=self.post,
            launch=self._launch,
            signal=self._signal,
            store=store,
            sweeps=self.sweeps,
        )

    def _new_driver(self, config: ClusterConfig, plugins: Mapping[str, PluginDefinition]) -> ClusterDriver:
        lrm, commands = make_lrm(config, plugins, self.directory)
        self.meter.watch(config.name, commands)
        surroundings = DriverContext(
            state=lambda: self.state,
            clock=self.now,
            report=self.post,
            in_contact=self._in_contact,
            others_matter=self._others_matter,
            holding=lambda: self._loop.holding,
            busy=lambda: self.busy,
            growth_waits=self._growth_waits,
            name_prefix=f"koala-{self.instance}-",
            user=login_name(),
        )
        return ClusterDriver(config, lrm, commands, surroundings)

    def _others_matter(self, cluster: ClusterName) -> bool:
        return self.scheduler.shrinks_for_others(cluster)

    def _growth_waits(self, cluster: ClusterName) -> bool:
        return self.scheduler.growth_waits(cluster)

    def _launch(self, placeholder: PlaceholderId, launch: Launch) -> bool:
        return self.reception.launch(placeholder, launch)

    def _signal(self, placeholder: PlaceholderId, signal: Signal) -> bool:
        return self.reception.signal(placeholder, signal)

    def _tell_application(self, placeholder: PlaceholderId, task: str, frame: bytes) -> bool:
        return self.reception.tell_application(placeholder, task, frame)

    def _in_contact(self, placeholder: PlaceholderId) -> bool:
        return self.reception.in_contact(placeholder)

    def _new_reception(self) -> Reception:
        return Reception(
            self.directory / "certificate",
            self.site,
            journal=self.journal,
            state=lambda: self.state,
            clock=self.now,
            report=self.post,
            applications=self.applications,
            clusters=self.clusters,
            tell=self.settled,
        )

    def _new_effector(self) -> LiveEffector:
        return LiveEffector(
            self.directory,
            journal=self.journal,
            state=lambda: self.state,
            clock=self.now,
            report=self.post,
            clusters=self.clusters,
            reception=self.reception,
            applications=self.applications,
            resizing=lambda: self.sizes.resizing,
            archive=self.archive,
            meter=self.meter,
            scripts=lambda: self._scripts,
        )

    @property
    def scheduler(self) -> Scheduler:
        """What decides. Another one after an event was set aside: not to be kept."""
        return self._loop.scheduler

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self.scheduler.state

    @property
    def instance(self) -> str:
        """Short random name of this state directory; part of every LRM job name of ours."""
        return self.journal.instance()

    def now(self) -> float:
        """Return the time by the service clock."""
        return self.clock.now()

    @property
    def trouble(self) -> str:
        """Why the journal cannot be written at present, and so nothing is decided; empty while it can."""
        return self._loop.trouble

    # ---- what becomes of events -----------------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Journal an event, let the scheduler handle it, and have its actions done; later, if that cannot be now."""
        self._loop.post(event)

    def handled(self, event: ev.Event) -> None:
        """See LoopOwner."""
        if isinstance(event, ev.PlaceholderEnded):
            # Its LRM may have given up the node while the agent goes on there, such as when slurmd died.
            self.reception.release(event.placeholder)
        self.meter.handled(event)
        self.sizes.follow(self._loop.scheduler.touched(event))
        self.archive.close_over()
        self._upkeep.watch_time_of_day()

    def settled(self) -> None:
        """See LoopOwner."""
        self.changed.set()
        self.changed = anyio.Event()

    def halted(self) -> None:
        """See LoopOwner."""
        self._upkeep.halted()

    def snapshot_begun(self) -> None:
        """See LoopOwner."""
        self._upkeep.snapshot_begun()

    def state_rebuilt(self, set_aside: Sequence[ev.Event]) -> None:
        """Have told again what is not known any more; as after a restart, if the state is another one than it was."""
        self.meter.set_aside(len(set_aside))
        if len(set_aside) > 1:
            self.reception.disconnect_all("events were set aside: tell again how things stand")
        else:
            self._asking_again.ask(set_aside[0], tellers(self.state, set_aside[0]))
        self._doubt("an event was set aside", in_contact=self._in_contact)
        self.sizes.follow(self.state.jobs)

    def failed(self, error: KoalaError) -> None:
        """See LoopOwner."""
        self._failure = error
        self._failed.set()

    # ---- what users ask -------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Return when a user's wish can be taken in at once: not while a snapshot is being written."""
        while self._loop.in_snapshot:
            await self.changed.wait()

    def submit(self, make_job: Callable[[JobId, float], Job]) -> JobId:
        """Enter a job into the queue; ``make_job`` gets its id and time. Returns once it is on disk.

        Raises JobRefusedError when its input files cannot be kept or its placement policy is not here,
        JournalBlockedError when the journal cannot be written, and DefectError when koala failed on it: then there is
        no such job.
        """
        self._loop.require_journal()
        job = make_job(self._new_job_id(), self.now())
        check_policies(job, self.scheduler.policies, self._size_rules)
        self.applications.keep_input(job)
        try:
            self._loop.enter(ev.JobSubmitted(time=self.now(), job=job))
        except KoalaError:
            self.applications.forget(job.id)
            raise
        for driver in self.clusters.values():
            driver.poller.poll_soon()
        return job.id

    def _new_job_id(self) -> JobId:
        try:
            return JobId(str(self.journal.next_job_number()))
        except JournalBlockedError as error:
            self._loop.halt(error)
            raise

    def cancel(self, job_id: str) -> None:
        """Cancel a job. Raises JobNotFoundError; a job that has ended already is left as it is.

        Raises JournalBlockedError when the journal cannot be written, DefectError when koala failed on it: then the
        job goes on.
        """
        record = self.scheduler.job(job_id)
        self._loop.enter(ev.CancelRequested(time=self.now(), job_id=record.job.id))

    def forget(self, job_ids: tuple[JobId, ...]) -> None:
        """Drop the records of jobs that are over. Raises JournalBlockedError and DefectError: then nothing changed."""
        self._loop.enter(ev.JobsForgotten(time=self.now(), job_ids=job_ids))

    def resize(self, job_id: str, component: str, processors: int) -> None:
        """Have a component of a malleable job brought to a size, as far as processors can be had.

        ``component``: empty for the only one that can change. Raises JobNotFoundError; JobRefusedError for a size that
        the component cannot have; JournalBlockedError and DefectError as :meth:`cancel` does.
        """
        record = self.scheduler.job(job_id)
        found = resizable(record, component, processors, self._size_rules)
        wanted = ev.SizeWanted(time=self.now(), job_id=record.job.id, component=found, processors=processors)
        self._loop.enter(wanted)
        for driver in self.clusters.values():
            driver.poller.poll_soon()

    @property
    def _scripts(self) -> ScriptMaker | None:
        port, fingerprint = self.reception.port, self.reception.fingerprint
        if port is None:
            return None
        return ScriptMaker(site=self.site, port=port, fingerprint=fingerprint, directory=self.directory)

    @property
    def scripts(self) -> ScriptMaker:
        """What makes the submissions. Raises ServiceUnavailableError before the control center listens."""
        scripts = self._scripts
        if scripts is None:
            raise ServiceUnavailableError("the service is still starting", hint="try again in a moment")
        return scripts

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
                self.archive.catch_up()
                self.sizes.start(tasks)  # before agents are heard
                await self.reception.open(tasks)
                self.post(configuration(self.site, self.instance, self.now()))
                self._doubt("the service was restarted")
                self.sizes.resume()
                await start_drivers(drivers_needed(self.clusters.values(), self.state), tasks)
                tasks.start_soon(self._stop_when_failed)
                tasks.start_soon(self._asking_again.run)
                self._upkeep.start(tasks)
                tasks.start_soon(self.sweeps.run)
                task_status.started()
        finally:
            with suppress(JournalBlockedError):
                if self._loop.conclude():
                    self.archive.conclude(self.unfinished)
            self.journal.close()

    def _doubt(self, why: str, in_contact: Callable[[PlaceholderId], bool] = lambda _: False) -> None:
        under_way = {key for driver in self.clusters.values() for key in driver.judge.under_way}
        for event in doubts(self.state, now=self.now(), why=why, under_way=under_way, in_contact=in_contact):
            self.post(event)

    async def _stop_when_failed(self) -> None:
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure
