# SPDX-License-Identifier: Apache-2.0
"""Agents of a service: submissions with one-time tokens, the control center, actions on placeholders.

In this order: the job script and token of a submission and the output that a placeholder leaves, the control center
that admits agents and turns their messages into events, and the effector that carries out the scheduler's actions on
clusters and agents.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

import anyio
import structlog

from koala_adapter.errors import ConfigurationError, KoalaError, LrmUnreachableError
from koala_adapter.host.containment import contained, report_defect, report_refused
from koala_adapter.host.privatedirectory import make_directory
from koala_adapter.host.sockets import lasting_ports
from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey, ClusterName, Component, Job, PlaceholderId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.report.sitevalues import SampleSubmission
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming.claims import life_at_once
from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest
from koala_adapter.service.opening import token_path, words_directory
from koala_adapter.service.reachability import Reachability
from koala_adapter.vjm import certificate, channel
from koala_adapter.vjm.center import ControlCenter
from koala_adapter.vjm.jobscript import AgentConfig, render_job_script
from koala_adapter.vjm.listener import AgentDisconnected, AgentListener, AgentRefused, AgentRegistered

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.lrm import Lrm
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.service.applications import Applications, Archive
    from koala_adapter.service.clusters import ClusterDriver
    from koala_adapter.service.core import Core
    from koala_adapter.service.meter import ServiceMeter
    from koala_adapter.service.notices import Notices
    from koala_adapter.service.sizes import SizeChanges
    from koala_adapter.vjm.listener import AgentEvent, PlaceholderMessage


# -- Job scripts, one-time tokens and the output of placeholders ---------------------------------------------
# A token is written so that no other user can read it; the journal keeps only its hash.

SAMPLE_TOKEN = "THE-ONE-TIME-TOKEN-GOES-HERE"  # noqa: S105 - stands where a token would be, in what people are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptMaker:
    """Makes the submissions of one service: knows where its control center is and how it proves itself."""

    site: SiteConfig
    port: int
    fingerprint: str
    """SHA-256 of the control center's certificate, as agents pin it."""
    directory: Path
    """The state directory."""

    def submission(
        self,
        action: act.SubmitPlaceholders,
        config: ClusterConfig,
        lrm: Lrm,
        token: str,
        *,
        door: tuple[str, int] | None = None,
    ) -> Submission:
        """Return the submission for an action of the scheduler.

        ``door``: address and port by which agents reach the control center; None: its own.
        """
        host, port = door or (config.site or self.site.node_address(config), self.port)
        token_file = token_path(config, action.batch)
        agent = AgentConfig(
            batch=action.batch,
            token=None if token_file else token,
            token_file=None if token_file is None else str(token_file),
            host=host,
            port=port,
            fingerprint=self.fingerprint,
            lease=self.site.lease(config),
            walltime=float(action.walltime),
            await_suspended=self.site.parameters.await_suspended,
        )
        words = words_directory(config, self.directory)
        script = render_job_script(
            agent=agent,
            array_index_variable=lrm.array_index_variable,
            job_id_variable=lrm.job_id_variable,
            words_directory=str(words) if config.site is None or config.output_directory else None,
        )
        return Submission(
            key=action.batch,
            count=action.count,
            script=script,
            walltime=action.walltime,
            queue=action.slot.queue or config.queue,
            memory_mib=action.memory_mib or action.slot.memory_mib or config.memory_mib,
            slot=action.slot,
            reservation=action.reservation or None,
        )


def sample_submissions(
    scripts: ScriptMaker, job: Job, config: ClusterConfig, lrm: Lrm, instance: str
) -> list[SampleSubmission]:
    """Return exactly what would be submitted for a job to a cluster, with another text in the place of the token.

    Components that never go there are left out. Raises ConfigurationError when all of them are, and LrmRejectedError
    when the cluster's directives cannot be applied.
    """
    parameters = scripts.site.parameters
    never = {one.name: _never(one, config, int(job.walltime + parameters.launch_margin)) for one in job.components}
    if all(never.values()):
        said = "; ".join(f"component {name!r}: {why}" for name, why in never.items())
        raise ConfigurationError(f"nothing of this job is ever submitted to {config.name}: {said}")
    # As long as a job asks for that can start at once; one that waits asks for more, up to placeholder_life.
    life = life_at_once(parameters, sum(component.minimum for component in job.components))
    walltime = int(job.walltime + parameters.launch_margin + life)
    if (limit := config.parameters.walltime_limit) is not None:
        walltime = min(walltime, limit)
    samples = []
    for number, component in enumerate(job.components, start=1):
        if never[component.name] is not None:
            continue
        action = act.SubmitPlaceholders(
            batch=BatchKey(f"koala-{instance}-{number}"),
            cluster=ClusterName(config.name),
            count=component.minimum,
            walltime=walltime,
            slot=component.slot_on(ClusterName(config.name)),
        )
        shown = lrm.render(scripts.submission(action, config, lrm, SAMPLE_TOKEN))
        samples.append(
            SampleSubmission(
                component=component.name,
                command=shown.command,
                environment=dict(shown.environment),
                script=shown.script,
                note=shown.note,
                call=shown.call,
                ranks=action.count,
                slot=action.slot,
            )
        )
    return samples


def _never(component: Component, config: ClusterConfig, walltime: int) -> str | None:
    """Return why the site file keeps a component from a cluster; None when it does not. Nodes are not considered."""
    parameters = config.parameters
    view = ClusterView(
        name=parameters.name,
        capacity=None,
        room=0,
        available=0,
        load_free=0,
        walltime_limit=parameters.walltime_limit,
        software=parameters.software,
        container_runtime=parameters.container_runtime,
    )
    return ComponentRequest(component=component, walltime=walltime).never(view)


def leave_token(path: Path, token: str) -> None:
    """Write a token that only its owner can read. Raises OSError."""
    make_directory(path.parent)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)


def words_paths(directory: Path, placeholder: PlaceholderId) -> tuple[Path, ...]:
    """Return possible paths of a placeholder's own output: in the directory or, where others can write, one below."""
    name = f"{placeholder}.out"
    return directory / name, directory / str(placeholder) / name


def tidy_words(directory: Path, batch: BatchKey) -> None:
    """Remove empty output files of a submission's placeholders. Raises OSError."""
    for path in directory.glob(f"{batch}.*.out"):
        if not path.lstat().st_size:
            path.unlink(missing_ok=True)


def last_words(path: Path, *, most: int = 500) -> str:
    """Return the end of a placeholder's own output as one line; empty when it is not readable or not ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return ""
        file.seek(max(0, status.st_size - most))
        lines = file.read(most).decode("utf-8", "replace").splitlines()
    return " / ".join(line.strip() for line in lines if line.strip())


# -- Control center: admit agents, report what they say ------------------------------------------------------
# Only agents of placeholders that the scheduler wants are admitted.

AGENT_LEAVES = 2.0
"""Seconds after the release of placeholders for which the batch system is not asked: agents say when they end."""
JOB_ENDS = 0.5
"""Seconds that the batch system is given to notice the end of a placeholder before it is asked."""
RELEASE_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL when an application is ended."""
PORT_PATIENCE = 60.0
PORT_PAUSE = 2.0

log = structlog.get_logger()


class Reception(AgentListener):
    """Runs the control center of a service: accepts agents of wanted placeholders, and reports what becomes of them."""

    def __init__(self, core: Core, applications: Applications, clusters: Mapping[ClusterName, ClusterDriver]) -> None:
        """Make the control center of ``core``. Nothing listens before :meth:`open`."""
        self._core = core
        self._certificate = certificate.load_or_create(core.directory / "certificate")
        self._journal = core.journal
        self._applications = applications
        self._clusters = clusters
        self._settings = core.site.control_center
        core.center = self._center = ControlCenter(
            self,
            applications,
            certificate.server_context(self._certificate),
            lease=core.site.parameters.lease,
            heartbeat=self._settings.heartbeat,
            host=self._settings.address_here,
        )
        self.reachability = Reachability(core)
        self.port: int | None = None
        """Where agents find it; None before it listens."""

    @property
    def scripts(self) -> ScriptMaker | None:
        """Maker of submissions; None before the control center listens."""
        if self.port is None:
            return None
        core, fingerprint = self._core, self._certificate.fingerprint
        return ScriptMaker(site=core.site, port=self.port, fingerprint=fingerprint, directory=core.directory)

    def release(self, placeholder: PlaceholderId) -> bool:
        """Tell an agent to end. False when it is not connected."""
        return self._center.tell(placeholder, channel.Release(grace=RELEASE_GRACE))

    async def open(self, tasks: TaskGroup) -> None:
        """Start listening within ``tasks``. Raises ConfigurationError."""
        self._applications.relays.open(tasks)
        self.port = await self._bind(tasks)
        self._journal.set_value("port", str(self.port))

    async def _bind(self, tasks: TaskGroup) -> int:
        """Listen at the former port if agents expect it; without agents, at any port if that one is taken."""
        settings = self._settings
        kept = int(self._journal.value("port") or "0")
        if settings.port or (kept and self._core.state.placeholders):
            return await self._insist(tasks, settings.listen, settings.port or kept)
        likely = lasting_ports()
        for port in (kept, *likely) if kept else likely:
            with suppress(ConfigurationError):
                return int(await tasks.start(self._center.serve, settings.listen, port))
        return int(await tasks.start(self._center.serve, settings.listen, 0))

    async def _insist(self, tasks: TaskGroup, host: str, port: int) -> int:
        """Listen at a port; while agents expect it, wait until it is free."""
        until = anyio.current_time() + (PORT_PATIENCE if self._core.state.placeholders else 0)
        while True:
            try:
                return int(await tasks.start(self._center.serve, host, port))
            except ConfigurationError as error:
                if anyio.current_time() >= until:
                    raise
                log.warning("agents expect us on a port that is taken", port=port, error=error.message)
            await anyio.sleep(PORT_PAUSE)

    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        expected = self._journal.token_hash(placeholder.batch)
        known = placeholder in self._core.state.placeholders
        return expected is not None and known and certificate.matches(token, expected)

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        return self._journal.bound_session(placeholder)

    def lease_of(self, placeholder: PlaceholderId) -> float | None:
        record = self._core.state.placeholders.get(placeholder)
        return None if record is None else self._core.state.lease_on(record.cluster)

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        self._journal.bind(placeholder, session_hash)

    def on_event(self, event: AgentEvent) -> None:
        """Report to scheduler and applications that an agent has come, has come again or has gone."""
        match event:
            case AgentRegistered():
                self._agent_registered(event)
            case AgentDisconnected():
                self._agent_disconnected(event)
            case AgentRefused():
                text = "an agent with a valid token was refused: its placeholder is taken (run twice, or token stolen)"
                placeholder = str(event.placeholder)
                report_refused(text, kind=placeholder, placeholder=placeholder, host=event.host, address=event.address)

    def on_report(self, placeholder: PlaceholderId, report: PlaceholderMessage) -> None:
        """Report that a placeholder is about to end, or what its agent has found out about a connection."""
        if isinstance(report, channel.Ending):
            now, reason, detail = self._core.now(), report.reason, report.detail
            self._core.loop.post(ev.PlaceholderEnding(time=now, placeholder=placeholder, reason=reason, detail=detail))
        else:
            self.reachability.prober.answered(report)

    def on_rejected(self, address: str, fault: str) -> None:
        """Log a peer that did not prove itself, but not every one: any host that reaches the port can be one."""
        report_refused("turned away somebody at the control center", kind=address, address=address, fault=fault)

    def _agent_registered(self, event: AgentRegistered) -> None:
        now = self._core.now()
        ends_at = None if event.ends_in is None else now + event.ends_in
        self._core.loop.post(
            ev.PlaceholderHeld(
                time=now, placeholder=event.placeholder, host=event.host, address=event.address, ends_at=ends_at
            )
        )
        self._applications.registered(event.placeholder, event.tasks)
        self.reachability.in_contact()

    def _agent_disconnected(self, event: AgentDisconnected) -> None:
        self._applications.disconnected(event.placeholder)
        record = self._core.state.placeholders.get(event.placeholder)
        if record is None:
            return
        driver = self._clusters.get(record.cluster)
        if record.state is PlaceholderState.ENDING and driver is not None:
            if event.closed:
                driver.judge.disconnected.add(event.placeholder)
            driver.poller.poll_soon(within=JOB_ENDS)
            self._core.note_change()
        else:
            self._core.loop.post(
                ev.PlaceholderSilent(time=self._core.now(), placeholder=event.placeholder, detail=event.detail)
            )
            if driver is not None:
                driver.poller.poll_soon()


# -- Effector: carry out actions on clusters and agents ------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class LiveEffector:
    """Carries out the actions of a service's scheduler."""

    core: Core
    clusters: Mapping[ClusterName, ClusterDriver]
    reception: Reception
    applications: Applications
    sizes: SizeChanges
    archive: Archive
    meter: ServiceMeter
    notices: Notices
    with_secrets: dict[BatchKey, ClusterName | None] = field(init=False)
    """Submissions whose secrets are kept, with their clusters; None: not known, after a restart."""

    def __post_init__(self) -> None:
        """Read which submissions had secrets when the service began."""
        self.with_secrets = dict.fromkeys(self.core.journal.batches_with_secrets())

    def carry_out(self, action: Action) -> None:
        """Carry out an action. A plugin, a program or a policy may make it fail: that is logged, and costs it alone."""
        with contained("an action", action=type(action).__name__, job=getattr(action, "job_id", "")):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:  # noqa: C901, PLR0912 - one case for each kind of action
        match action:
            case act.SubmitPlaceholders():
                self._submit_placeholders(action)
            case act.EndPlaceholders():
                self._end_placeholders(action)
            case act.ReadPlaceholderOutput():
                self._read_output(action)
            case act.ReserveProcessors():
                self.clusters[action.cluster].reservations.ask(action)
            case act.EndReservation():
                if action.cluster in self.clusters:
                    self.clusters[action.cluster].reservations.remove_unowned()
            case act.StageFiles():
                self.applications.stager.stage(action)
            case act.StopStaging():
                self.applications.stager.stop(action.job_id, action.cluster)
            case act.LaunchJob():
                self._launch_job(action)
            case act.OfferProcessors() | act.RequestProcessors() | act.TakeProcessors():
                self.sizes.made.carry_out(action)
            case act.WithdrawOffer():
                log.info("an offer was withdrawn", job=action.job_id, reason=action.reason)
                self.sizes.made.carry_out(action)
            case act.GrantProcessors():
                count, why = action.processors, action.reason
                log.info("processors were granted", job=action.job_id, processors=count, reason=why)
                self.sizes.made.carry_out(action)
            case act.EndAttempt():
                self.applications.end_attempt(action.job_id, action.number)
            case act.FinishJob():
                self._finish_job(action)
            case act.CorrectOutcome():
                log.info("job ended otherwise", job=action.job_id, detail=action.outcome.detail)
                self.archive.keep(action.job_id)
            case act.ReportRefusedAnswer():
                log.error("a policy of this site is at fault", reason=action.reason)
            case _:
                assert_never(action)

    # ---- placeholders ---------------------------------------------------------------------------------------------

    def _submit_placeholders(self, action: act.SubmitPlaceholders) -> None:
        """Send a submission to its cluster, with a new one-time token."""
        driver = self.clusters[action.cluster]
        token = certificate.new_token()
        self.core.journal.set_token(action.batch, token)
        self.with_secrets[action.batch] = action.cluster
        scripts = self.reception.scripts
        if scripts is None:
            return
        try:
            path = token_path(driver.config, action.batch)
            if path is not None:
                leave_token(path, token)
            door = driver.commands.host.door
            driver.submit(scripts.submission(action, driver.config, driver.lrm, token, door=door))
        except LrmUnreachableError as error:
            self.core.loop.post(ev.BatchAbsent(time=self.core.now(), batch=action.batch, reason=error.message))
        except (OSError, KoalaError) as error:
            self.core.loop.post(ev.BatchRejected(time=self.core.now(), batch=action.batch, reason=str(error)))
        except Exception as error:  # noqa: BLE001 - otherwise the submission would be awaited for ever
            report_defect("making a submission", error, batch=action.batch)
            self.core.loop.post(
                ev.BatchRejected(time=self.core.now(), batch=action.batch, reason=f"koala failed: {error!r}")
            )

    def _end_placeholders(self, action: act.EndPlaceholders) -> None:
        """Release agents of placeholders; cancel placeholders that do not end by themselves."""
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
            driver.poller.poll_soon(within=AGENT_LEAVES)

    def _has_more_to_say(self, placeholder: PlaceholderId) -> bool:
        """Return whether an agent out of contact keeps output that is still wanted.

        It is then told to end when it comes back, or cancelled when that takes longer than the scheduler's patience.
        """
        record = self.core.state.placeholders.get(placeholder)
        if record is None or record.silent_since is None:
            return False
        job = self.core.state.jobs[record.job_id]
        return bool(job.ranks) and job.state is not JobState.CANCELLED

    def _read_output(self, action: act.ReadPlaceholderOutput) -> None:
        """Report the end of a placeholder's own output."""
        driver = self.clusters.get(action.cluster)
        if driver is None:
            return
        paths = words_paths(words_directory(driver.config, self.core.directory), action.placeholder)
        said = next(filter(None, map(last_words, paths)), "")
        node = driver.judge.nodes.get(action.placeholder)
        place = f"{node}:{paths[0]}, if that node" if node else f"{paths[0]} on its node, if it"
        text = said or f"nothing that can be read from here (look at {place} has the directory)"
        log.warning(
            "placeholder did not report", cluster=action.cluster, placeholder=str(action.placeholder), wrote=text
        )
        self.core.loop.post(
            ev.PlaceholderSaid(time=self.core.now(), cluster=action.cluster, job_id=action.job_id, text=text)
        )

    # ---- applications ---------------------------------------------------------------------------------------------

    def _launch_job(self, action: act.LaunchJob) -> None:
        """Start the application of a job."""
        self.applications.launch(action.job_id)
        self.meter.launched(action.job_id)
        record = self.core.state.jobs[action.job_id]
        if not record.attempts_over:
            self.notices.started(record.job)

    def _finish_job(self, action: act.FinishJob) -> None:
        """Log a job's outcome and keep its report."""
        outcome = action.outcome
        log.info("job ended", job=action.job_id, state=outcome.state.value, detail=outcome.detail)
        self.archive.ended(action.job_id)
        self.meter.ended(action.job_id, outcome.state)
        self.notices.ended(self.core.state.jobs[action.job_id].job, outcome)
