# SPDX-License-Identifier: Apache-2.0
"""Commands without a service: the journal replayed, clusters asked once, old jobs cleaned.

In this order: the temporary directory and daemons of local clusters, what the journal says, what the clusters answer,
and what a site tells and does by these. Only ending daemons and cleaning change anything; the other parts alter neither
the journal nor the LRMs nor a service that runs at the same time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.from_thread import start_blocking_portal

from koala_adapter import api, service
from koala_adapter.api.archive import with_kept
from koala_adapter.api.reporting import (
    BY_THEMSELVES,
    job_report,
    largest_of,
    negotiated,
    plan_report,
    takes_nothing,
)
from koala_adapter.api.statedirectory import (
    JOURNAL_NAME,
    LOG_NAME,
    ownership,
    prepare_directory,
    require_journal,
    require_not_cleaned,
)
from koala_adapter.driver.store import rebuilt
from koala_adapter.errors import JobNotFoundError, LrmError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.host.sockets import free_port
from koala_adapter.model import LOGICAL, ClusterName, InputFile, Job, JobId, LrmJobState
from koala_adapter.report.sitevalues import CleanReport, ClusterReport, NegotiationReport, PlanReport, SampleSubmission
from koala_adapter.report.values import JobReport, as_kept, by_number, in_order
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler.events import ClusterPolled, ClusterUnavailable, FilesFound, JobsForgotten, SlotsCounted
from koala_adapter.service.agents import ScriptMaker, sample_submissions
from koala_adapter.service.clusters import ClusterReading, read_cluster
from koala_adapter.service.information import KnownNetwork
from koala_adapter.service.journal import Journal, SetAside, sentences
from koala_adapter.service.listings import processors_held
from koala_adapter.service.opening import SiteHosts, close_lrm, make_lrm
from koala_adapter.service.reachability import connections_tried
from koala_adapter.service.replicas import Read, files_report, place_of, read_at, sizes_at
from koala_adapter.service.results import read_ledger
from koala_adapter.service.service import configuration
from koala_adapter.service.sweepfiles import recorded_progress
from koala_adapter.vjm import certificate
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.lrm import Capabilities, Lrm, PluginDefinition
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.report.selection import JobSelection
    from koala_adapter.scheduler.knownpolicies import Policies

    Plugins = Mapping[str, PluginDefinition]


# -- Local clusters in a temporary directory: make it, end all daemons ---------------------------------------

LONGEST_DIRECTORY = 60
"""Bytes of a temporary directory in which Unix sockets still fit, unix(7)."""
ENDING = 10.0
"""Seconds that a cluster's daemon may take to end."""


def temporary_directory(prefix: str) -> Path:
    """Make a private directory whose path is short enough for Unix sockets in it."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base if len(base) < LONGEST_DIRECTORY else "/tmp"))  # noqa: S108 - its own directory is private


async def everywhere(
    site: SiteConfig,
    plugins: Plugins,
    directory: Path,
    do: Callable[[str, Lrm], Awaitable[None]],
) -> None:
    """Run a coroutine for every cluster of a site at the same time. ``directory``: its state directory."""

    async def with_cluster(name: str) -> None:
        config = site.cluster(name)
        lrm, _ = make_lrm(config, plugins, directory, host=hosts.at(config.site))
        try:
            await lrm.start()
            await do(name, lrm)
        finally:
            await close_lrm(lrm)

    async with SiteHosts(site.sites, directory) as hosts, anyio.create_task_group() as tasks:
        for one in site.clusters:
            tasks.start_soon(with_cluster, one.name)


async def cancel_all(_name: str, lrm: Lrm) -> None:
    """Cancel all jobs of a cluster."""
    jobs = await lrm.jobs()
    await lrm.cancel([job.id for job in jobs if job.state is not LrmJobState.ENDED])


def end_daemons(state: Path) -> None:
    """Stop the daemons of local clusters in a state directory, and in those of sites below it."""
    for cluster in (*(state / "clusters").glob("*"), *(state / "there").glob("*/local/*")):
        end_daemon(cluster)


def end_daemon(directory: Path) -> None:
    """Stop the daemon of a local cluster and wait for its end."""
    with suppress(OSError, ValueError):
        pid = int((directory / "pid").read_text(encoding="ascii"))
        process = os.pidfd_open(pid)
        try:
            # A daemon that was killed leaves its id behind, which may be another process's by now.
            if os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(process, signal.SIGTERM)
                select.select([process], [], [], ENDING)
        finally:
            os.close(process)


# -- The journal, read and replayed --------------------------------------------------------------------------

NO_INSTANCE = "00000000"
"""Stands for the name that a state directory gets when its first service starts."""


@dataclass(slots=True, kw_only=True)
class JournalView:
    """State of a stopped service as its journal tells."""

    directory: Path
    scheduler: Scheduler = field(default_factory=Scheduler)
    instance: str = NO_INSTANCE
    port: int = 0
    """Where the control center listened last; 0: never."""
    clock: ServiceClock = field(default_factory=ServiceClock)
    network: KnownNetwork = field(default_factory=KnownNetwork)
    """What was observed of the network."""
    set_aside: tuple[SetAside, ...] = ()
    """Events on which the scheduler failed."""

    @property
    def now(self) -> float:
        """Present time by the service's clock."""
        return self.clock.now()

    @property
    def unfinished(self) -> list[JobId]:
        """Jobs without outcome, or with placeholders left."""
        jobs = self.scheduler.state.jobs.items()
        return [id_ for id_, record in jobs if not record.state.final or record.live]

    def defects(self) -> list[str]:
        """Return messages about recent events on which koala failed."""
        return sentences(self.set_aside, self.now)

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job. Raises JobNotFoundError."""
        if not (self.directory / JOURNAL_NAME).exists():
            self.scheduler.job(job_id)  # raises
        with Journal(self.directory / JOURNAL_NAME, read_only=True) as journal:
            return self._job(journal, job_id)

    def _job(self, journal: Journal, job_id: str) -> JobReport:
        text = journal.finished.report(job_id)
        kept = None if text is None else as_kept(adapter_of(JobReport).validate_json(text))
        try:
            record = self.scheduler.job(job_id)
        except JobNotFoundError:
            if kept is not None:
                return kept
            require_not_cleaned(journal, job_id, self.clock.offset)
            raise
        directory = self.directory / "jobs" / record.job.id
        return job_report(
            self.scheduler,
            record,
            now=self.now,
            wall_offset=self.clock.offset,
            output_directory=str(directory),
            trouble="" if kept is None else kept.trouble,
            negotiated=negotiated(journal.negotiations, record, self.now),
            files=read_ledger(directory),
            sweep=recorded_progress(self.directory / "jobs", record.job),
            concluded=record.state in BY_THEMSELVES and not record.live,
        )

    def negotiations(self, *, job_id: str = "", number: int = 0, limit: int = 50) -> list[NegotiationReport]:
        """Return the latest negotiations as the journal has them now; as `Client.negotiations`."""
        with Journal(self.directory / JOURNAL_NAME, read_only=True) as journal:
            return api.negotiation_reports(
                journal.negotiations,
                self.scheduler.state,
                job_id=job_id,
                number=number,
                limit=limit,
                wall_offset=self.clock.offset,
            )

    def jobs(self, limit: int, selection: JobSelection | None = None) -> list[JobReport]:
        """Return the latest jobs, or those of a selection, in order of submission."""
        if not (self.directory / JOURNAL_NAME).exists():
            return []
        with Journal(self.directory / JOURNAL_NAME, read_only=True) as journal:
            if selection is not None:
                live = [json.loads(self._job(journal, job_id).to_json()) for job_id in self.scheduler.state.jobs]
                return with_kept(self.directory / JOURNAL_NAME, live, selection, limit)
            kept = [adapter_of(JobReport).validate_json(text) for text in journal.finished.latest(limit)]
            reports = {report.id: as_kept(report) for report in kept}
            for job_id in sorted(self.scheduler.state.jobs, key=by_number)[-limit:]:
                reports[str(job_id)] = self._job(journal, job_id)
        return sorted(reports.values(), key=in_order)[-limit:]


def read_record(directory: Path, policies: Policies) -> JournalView:
    """Read the journal of a state directory; an empty record when there is none.

    Raises JournalError, and ConfigurationError when a policy that the journal needs is not among ``policies``.
    """
    if not (directory / JOURNAL_NAME).exists():
        return JournalView(directory=directory, scheduler=Scheduler(policies=policies))
    with Journal(directory / JOURNAL_NAME, read_only=True) as journal:
        scheduler = rebuilt(journal, partial(Scheduler, policies=policies))
        return JournalView(
            directory=directory,
            scheduler=scheduler,
            clock=ServiceClock(before=journal.clock_reading(), latest=scheduler.state.now),
            instance=journal.value("instance") or NO_INSTANCE,
            port=int(journal.value("port") or "0"),
            network=KnownNetwork.of(journal),
            set_aside=tuple(journal.events_set_aside()),
        )


# -- Clusters asked once -------------------------------------------------------------------------------------
# The answers are for a listing or a plan. Nothing is changed, neither in the journal nor in the LRMs.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAnswer:
    """Listing of a cluster, or the error that prevented it."""

    config: ClusterConfig
    version: str | None = None
    reading: ClusterReading | None = None
    trouble: str = ""
    """Why there is no reading."""
    requests: int = 0
    submission: str = ""
    obstacle: str = ""
    """Why nothing can be submitted, where that is known."""
    catalogue: Read | None = None
    untold: str = ""
    """Why its catalogue cannot be read."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of files with logical names that it has, of those that were asked for."""


async def ask_cluster(
    config: ClusterConfig,
    host: LrmHost,
    plugins: Plugins,
    directory: Path,
    *,
    prefix: str,
    timeout: float,
    files: Sequence[InputFile] = (),
) -> ClusterAnswer:
    """List a cluster's jobs and nodes once, and look for files with logical names; errors are in the result."""
    lrm, commands = make_lrm(config, plugins, directory, host=host)
    version: str | None = None
    try:
        with anyio.fail_after(timeout):
            await lrm.start()
            version = await lrm.version()
            reading = await read_cluster(config, lrm, name_prefix=prefix, user=commands.host.user, read_at=time.time())
            catalogue, untold = await _catalogue_of(config, commands.host)
        # Outside the limit: a file system that does not answer is no reason to have no listing.
        places = {} if catalogue is None else {one.source: place_of(one, catalogue.catalogue) for one in files}
        sizes = await sizes_at(commands.host, {source: place for source, place in places.items() if place})
    except LrmError as error:
        return ClusterAnswer(config=config, version=version, trouble=error.message, requests=commands.window.total)
    except TimeoutError:
        trouble = f"no answer within {timeout:g} s"
        return ClusterAnswer(config=config, version=version, trouble=trouble, requests=commands.window.total)
    finally:
        await close_lrm(lrm)
    return ClusterAnswer(
        config=config,
        version=version,
        reading=reading,
        requests=commands.window.total,
        submission=lrm.submission_way,
        obstacle=lrm.submission_obstacle,
        catalogue=catalogue,
        untold=untold,
        sizes=sizes,
    )


async def _catalogue_of(config: ClusterConfig, host: LrmHost) -> tuple[Read | None, str]:
    """Return the catalogue of a cluster, and why it cannot be read."""
    if config.catalogue is None:
        return None, ""
    try:
        return await read_at(host, config.catalogue), ""
    except LrmError as error:
        return None, error.message


async def ask_clusters(
    site: SiteConfig,
    plugins: Plugins,
    record: JournalView,
    *,
    timeout: float,
    tell: Callable[[str], None],
    files: Sequence[InputFile] = (),
) -> list[ClusterAnswer]:
    """List all enabled clusters at the same time and update the recorded scheduler.

    ``tell`` hears which clusters have not answered yet. ``files``: with logical names, of which the sizes are wanted.
    """
    waiting = [config.name for config in site.enabled_clusters]
    answers: dict[str, ClusterAnswer] = {}

    async def ask(config: ClusterConfig) -> None:
        prefix = f"koala-{record.instance}-"
        answers[config.name] = await ask_cluster(
            config, hosts.at(config.site), plugins, record.directory, prefix=prefix, timeout=timeout, files=files
        )
        waiting.remove(config.name)
        tell(", ".join(waiting))

    tell(", ".join(waiting))
    async with SiteHosts(site.sites, record.directory) as hosts, anyio.create_task_group() as tasks:
        for config in site.enabled_clusters:
            tasks.start_soon(ask, config)
    found = [answers[config.name] for config in site.enabled_clusters]
    able = {config.cluster_name: plugins[config.plugin].capabilities for config in site.enabled_clusters}
    _take_in(site, record, found, able)
    return found


def _places(answer: ClusterAnswer, job: Job) -> dict[str, str]:
    """Return where a cluster has input files of a job, by their sources."""
    read = answer.catalogue
    places = {} if read is None else {file.source: place_of(file, read.catalogue) for file in job.input_files}
    return {source: place for source, place in places.items() if place is not None}


def tell_of(record: JournalView, answers: Sequence[ClusterAnswer], job: Job) -> None:
    """Tell the scheduler of a record what a job is to be placed by: slots of its shapes, and its files."""
    found = {answer.config.cluster_name: _places(answer, job) for answer in answers}
    named = {source for places in found.values() for source in places if source.startswith(LOGICAL)}
    sizes = {source: size for answer in answers for source, size in answer.sizes.items()}
    for answer in answers:
        name = answer.config.cluster_name
        if name in record.scheduler.state.clusters:
            stages = record.scheduler.state.clusters[name].parameters.stages
            brought = tuple((source, sizes.get(source)) for source in sorted(named - found[name].keys()) if stages)
            record.scheduler.handle(
                FilesFound(time=record.now, cluster=name, found=tuple(found[name].items()), bringable=brought)
            )
        shapes = job.shapes_on(name)
        if answer.reading is not None and shapes:
            counts = answer.reading.count(shapes)
            record.scheduler.handle(SlotsCounted(time=record.now, cluster=name, slots=counts))


def _take_in(
    site: SiteConfig,
    record: JournalView,
    answers: list[ClusterAnswer],
    capabilities: Mapping[ClusterName, Capabilities],
) -> None:
    now = record.now
    record.scheduler.handle(configuration(site, record.instance, now, capabilities))
    for tried in connections_tried(record.directory, now):
        record.scheduler.handle(tried)
    for answer in answers:
        cluster, reading = answer.config.cluster_name, answer.reading
        if reading is None:
            record.scheduler.handle(ClusterUnavailable(time=now, cluster=cluster, reason=answer.trouble))
        else:
            record.scheduler.handle(
                ClusterPolled(
                    time=now,
                    cluster=cluster,
                    processors=reading.processors,
                    idle=reading.idle,
                    ours=processors_held(reading.jobs, record.scheduler.state),
                )
            )


def answer_report(record: JournalView, answer: ClusterAnswer, site: SiteConfig | None = None) -> ClusterReport:
    """Return the report of a cluster that was listed once."""
    known = record.scheduler.state.clusters[answer.config.cluster_name]
    reading = answer.reading
    # Some batch systems go on listing jobs that have ended.
    states = [] if reading is None else [job.state for job in reading.jobs if job.state is not LrmJobState.ENDED]
    down = 0 if reading is None else reading.down
    return ClusterReport(
        name=answer.config.name,
        plugin=answer.config.plugin,
        lrm=answer.version,
        closed=f"out of reach: {answer.trouble}" if reading is None else takes_nothing(answer.obstacle),
        processors=None if reading is None else reading.processors,
        idle=None if reading is None else reading.idle,
        others=None if reading is None else max(0, reading.processors - reading.idle - reading.ours - down),
        threshold=answer.config.parameters.threshold,
        placeholders=len(states),
        placeholders_queued=sum(state in {LrmJobState.QUEUED, LrmJobState.HELD} for state in states),
        available=known.available if reading is not None else 0,
        polled_at=None if reading is None else reading.read_at,
        requests=answer.requests,
        largest_requests_per_minute=answer.requests,
        requests_per_minute=answer.config.requests_per_minute,
        requests_last_minute=answer.requests,
        down=down,
        submission=answer.submission,
        network=record.network.report(
            answer.config, site, record.scheduler.state, now=record.now, wall_offset=record.clock.offset
        ),
        files=files_report(answer.config, answer.catalogue, answer.untold),
        **({} if reading is None else largest_of(reading)),
    )


# -- Answers without a service -------------------------------------------------------------------------------

ASKING = 60.0
"""Seconds that a cluster may take to answer."""


class WithoutService:
    """What a site answers while no service runs: from its journal, and from the batch systems themselves."""

    def __init__(self, directory: Path, policies: Policies) -> None:
        """``directory``: the state directory, there or not."""
        self._directory = directory
        self._policies = policies

    def recorded(self) -> JournalView:
        """Return what the journal says. Raises ServiceUnavailableError when there has never been a service."""
        require_journal(self._directory)
        return read_record(self._directory, self._policies)

    def plan(self, site: SiteConfig, plugins: Plugins, job: Job, tell: Callable[[str], None]) -> PlanReport:
        """Return where a job would go now. ``tell`` gets the names of clusters that have not answered yet."""
        record, answers = self._asked(site, plugins, tell, [file for file in job.input_files if file.logical])
        tell_of(record, answers, job)
        return plan_report(record.scheduler, job, now=record.now)

    def clusters(self, site: SiteConfig, plugins: Plugins, tell: Callable[[str], None]) -> list[ClusterReport]:
        """Return the clusters as they answer now. ``tell`` gets the names of those that have not answered yet."""
        record, answers = self._asked(site, plugins, tell)
        return [answer_report(record, answer, site) for answer in answers]

    def script(self, site: SiteConfig, plugins: Plugins, job: Job, cluster: str) -> tuple[list[SampleSubmission], str]:
        """Return the submissions as the next service would make them, and what in them is not certain yet.

        Raises LrmRejectedError when the cluster's directives cannot be applied.
        """
        config, record = site.cluster(cluster), self._record()
        own = certificate.load_or_create(self._directory / "certificate")
        port = site.control_center.port or record.port or free_port()
        scripts = ScriptMaker(site=site, port=port, fingerprint=own.fingerprint, directory=self._directory)
        host = SiteHosts(site.sites, self._directory).at(config.site)
        lrm, _ = make_lrm(config, plugins, self._directory, host=host)
        samples = sample_submissions(scripts, job, config, lrm, record.instance)
        if record.instance != NO_INSTANCE:
            return samples, ""
        first = f"the first one replaces {NO_INSTANCE} in the names, and may choose another port"
        return samples, f"No service has run here yet: {first}."

    def clean(self, older: float, *, dry_run: bool) -> CleanReport:
        """Remove what is left of jobs that ended more than ``older`` seconds ago, or only tell.

        Raises ServiceUnavailableError when there has never been a service, ServiceRunningError when another process
        owns the directory, and ConfigurationError and JournalError as for :func:`read_record`.
        """
        if dry_run:
            return self._clean(older, dry_run=True)
        self.recorded()  # before anything is made here
        with ownership(self._directory, "koala clean", way_out="try again in a moment"):
            return self._clean(older, dry_run=False)

    def _clean(self, older: float, *, dry_run: bool) -> CleanReport:
        record, directory = self.recorded(), self._directory
        state = record.scheduler.state
        log = directory / LOG_NAME
        with Journal(directory / JOURNAL_NAME, read_only=dry_run) as journal:
            cleaning = service.Cleaning(directory, journal, state, older=older, now=record.now, log=log)
            seen = cleaning.look(cleaning.known())
            chosen = cleaning.choose(seen, {id_: sweep for part in cleaning.later() for id_, sweep in part.items()})
            if dry_run:
                return cleaning.remove(chosen, dry_run=True)

            def forget(job_ids: tuple[JobId, ...]) -> None:
                # As of the latest event: what is due meanwhile is for the next service to see to, which can act on it.
                journal.append(JobsForgotten(time=state.now or 0.0, job_ids=job_ids))

            closed_well = journal.closed_well
            cleaning.give_up(chosen, forget)
            if closed_well:
                journal.leave_closing_note(record.unfinished)
            return cleaning.remove(chosen, dry_run=False)

    def _record(self) -> JournalView:
        prepare_directory(self._directory)
        return read_record(self._directory, self._policies)

    def _asked(
        self, site: SiteConfig, plugins: Plugins, tell: Callable[[str], None], files: Sequence[InputFile] = ()
    ) -> tuple[JournalView, Sequence[ClusterAnswer]]:
        """Return the record, with what the clusters have answered taken in, and these answers."""
        record = self._record()
        ask = partial(ask_clusters, site, plugins, record, timeout=ASKING, tell=tell, files=files)
        with start_blocking_portal() as portal:  # in a thread: the caller may have an event loop running in this one
            return record, portal.call(ask)
