# SPDX-License-Identifier: Apache-2.0
"""``koala schedule``: koala orders one cluster's queue in place of, or beside, its own scheduler.

In this order: events and explanations in words, also those of ``koala explain NAME:ID``, the screen, giving the queue
back to the batch system's own scheduler, and the command.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
from pydantic import TypeAdapter

from koala_adapter.api.statedirectory import ownership, prepare_directory
from koala_adapter.cli.display import seconds
from koala_adapter.cli.serve import metrics_port_option, tell_metrics
from koala_adapter.cli.session import EXIT_FAILURE, QueuePolicy, Session, command_body, json_option, pass_session
from koala_adapter.config.sitefile import ClusterConfig, shortest_poll_interval
from koala_adapter.errors import ConfigurationError, JournalError, LrmUnsupportedError, ServiceUnavailableError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.host.process import stop_on_signal, under_supervision
from koala_adapter.lrm.startlog import Pin, StartLog
from koala_adapter.lrm.starts import PATIENCE, Patience, Starter, Starts
from koala_adapter.ordering.asking import (
    EVERYBODY,
    EXPLANATION,
    SOCKET_NAME,
    ExplainServer,
    ask_explanation,
    explainer,
    overview,
    report_shifted,
    shifted,
)
from koala_adapter.ordering.jobs import JobEvent, JobEventKind, Phase, Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.passes import MisfitRules
from koala_adapter.ordering.scheduler import OutsideScheduler, Pace, PacedWatcher, QueueMeter, give_back, start_plugin
from koala_adapter.ordering.shadow import Difference, Shadow, ShadowReport
from koala_adapter.policies.loading import load_queue_policy
from koala_adapter.queueing.backfill import METRICS, PriorityWeights, make_cluster_scheduler
from koala_adapter.service.opening import SiteHosts, close_lrm, make_lrm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from rich.status import Status

    from koala_adapter.lrm import Lrm
    from koala_adapter.lrm.commands import CommandRunner
    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.asking import Explanation, Overview
    from koala_adapter.ordering.scheduler import GivenBack
    from koala_adapter.queueing.backfill import ClusterScheduler, MakeQueue


# -- Events, jobs and reports in words -----------------------------------------------------------------------
# Shown by ``koala schedule`` and ``koala explain NAME:ID``.

STYLES = {
    JobEventKind.START: "cyan",
    JobEventKind.STARTED: "green",
    JobEventKind.NOT_STARTED: "red",
    JobEventKind.PASSED_OVER: "yellow",
    JobEventKind.LEFT_OUT: "yellow",
    JobEventKind.RESERVED: "magenta",
}
QUIET = frozenset(
    {JobEventKind.SUBMITTED, JobEventKind.ENDED, JobEventKind.GONE, JobEventKind.ADOPTED, JobEventKind.CHANGED}
)
"""What is shown dim: it was not our doing."""
DAY = 86_400.0


def moment(at: float | None) -> str:
    """Return a local time, with the date when it is more than 12 hours away."""
    if at is None:
        return "-"
    near = abs(at - time.time()) < DAY / 2
    return time.strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M:%S", time.localtime(at))


def _processors(number: int) -> str:
    return f"{number} processor{'s' if number != 1 else ''}"


def places(nodes: tuple[tuple[str, int], ...]) -> str:
    """Return nodes with processors, such as ``n4:3,n2:3``."""
    return ",".join(f"{name}:{count}" for name, count in nodes)


def line(happening: JobEvent) -> str:
    """Return an event as one line of text."""
    one = happening
    what = _processors(one.processors)
    parts = [f"on {places(one.nodes)}" if one.nodes else "", one.detail]
    if one.at is not None:
        parts.append(f"at {moment(one.at)} at the latest")
    more = "; ".join(part for part in parts if part)
    return f"{moment(one.time)}  {one.kind.value:<11}  {one.job_id:<8}  {one.user:<8}  {what}  {more}".rstrip()


def style(happening: JobEvent) -> str:
    """Return the colour of an event."""
    return "dim" if happening.kind in QUIET else STYLES.get(happening.kind, "")


def status(cluster: str, found: Overview, failure: str | None) -> str:
    """Return the state of the queue as one line."""
    if failure:
        return f"{cluster} does not answer: {failure}; nothing is decided until it does"
    starting = f", {found.starting} starting" if found.starting else ""
    left = f", {found.left_out} left out" if found.left_out else ""
    used = found.processors - found.free
    return (
        f"{cluster}: {used} of {found.processors} processors used, {found.running} running{starting}, "
        f"{found.waiting} waiting{left}"
    )


def explanation(found: Explanation, cluster: str) -> Iterator[str]:
    """Yield the lines that explain a job's state."""
    name = f" ({found.name})" if found.name else ""
    owner = found.user or "another user"
    yield (
        f"job {found.job_id}{name} of {owner} on {cluster}: {_processors(found.processors)} for at most "
        + seconds(float(found.estimate))
        + (" (assumed: no limit of its run time is known)" if found.estimate_assumed else "")
    )
    match found.phase:
        case Phase.RUNNING:
            yield f"It runs{_on(found)} since {moment(found.started_at)}."
        case Phase.STARTING:
            yield f"It is being started{_on(found)}."
        case Phase.WAITING:
            place = f"place {found.position} of {found.queued} in the queue: " if found.position else ""
            yield f"It waits, {place}{found.reason}."
            if found.reserved_at is not None:
                yield f"It starts at {moment(found.reserved_at)} at the latest, if all jobs end by their walltimes."
            else:
                yield "No start is reserved for it yet: it starts as soon as it is in nobody's way."
        case _:
            yield f"It waits, and is not in the queue: {found.reason}."
    if found.promised_at is not None and found.promised_at != found.reserved_at:
        yield f"The first start reserved for it was {moment(found.promised_at)}."


def _on(found: Explanation) -> str:
    """Return " on NODES" for a job; empty where the asking user may not know them."""
    return f" on {places(found.nodes)}" if found.user else ""


def shadow_report(found: ShadowReport) -> Iterator[str]:
    """Yield the lines of a shadow's report."""
    yield f"watched for {seconds(found.until - found.since)}: {found.jobs} jobs waited at some time"
    start = "starts" if found.earlier == 1 else "start"
    yield (
        f"with this policy {found.earlier} of them {start} earlier, {found.later} later, "
        f"{found.same} at the same time (within 2 s)"
    )
    if found.left_out:
        are = "1 job is" if found.left_out == 1 else f"{found.left_out} jobs are"
        yield f"{are} not counted: in hold, or waiting for other jobs or for a time to begin"
    yield (
        f"mean wait so far: {seconds(found.mean_wait_ours)} with this policy, "
        f"{seconds(found.mean_wait_theirs)} with the batch system"
    )
    for title, jobs in (("earlier", found.first_earlier), ("later", found.first_later)):
        if jobs:
            yield f"start {title} with this policy, the largest differences:"
            yield from (f"  {_difference(job)}" for job in jobs)


def _difference(job: Difference) -> str:
    ours = "not yet" if job.ours is None else moment(job.ours)
    theirs = "not yet" if job.theirs is None else moment(job.theirs)
    return f"{job.job_id:<8}  {job.processors:>6} processors  here {ours:>8}  batch system {theirs:>8}"


def explain_local(session: Session, cluster: str, job_id: str, *, as_json: bool) -> None:
    """Show what the scheduler of a cluster's queue says of one of its jobs, for `koala explain`."""
    known = {known.name: known for known in session.site.clusters}
    if cluster not in known:
        hint = "a job of koala itself is asked for by its number alone"
        raise ConfigurationError(f"no cluster {cluster!r}; there are: {', '.join(known)}", hint=hint)
    found = _asked_of_scheduler(session, known[cluster], job_id)
    if as_json:
        session.print_json({"cluster": cluster, **EXPLANATION.dump_python(found, mode="json")})
    else:
        session.console.print(*explanation(found, cluster), sep="\n", markup=False, soft_wrap=True)


def _asked_of_scheduler(session: Session, cluster: ClusterConfig, job_id: str) -> Explanation:
    """Ask the user's own `koala schedule`; where none runs, that of the administrator at its ask_socket."""
    name = cluster.name
    hint = f"start it with `koala schedule --cluster {name}`, as the same user and with the same --state; one that an "
    hint += "administrator runs is asked at its ask_socket, see `koala docs schedule`"
    try:
        return ask_explanation(session.directory / "schedule" / name / SOCKET_NAME, name, job_id, hint=hint)
    except ServiceUnavailableError:
        if cluster.ask_socket is None:
            raise
    hint = "its administrator starts one there with --ask-socket, see `koala docs schedule`"
    return ask_explanation(Path(cluster.ask_socket), name, job_id, hint=hint)


# -- Screen --------------------------------------------------------------------------------------------------
# Shown while koala orders a queue, or watches how the batch system's own scheduler orders it.

HAPPENING = TypeAdapter(JobEvent)
SHADOW_REPORT = TypeAdapter(ShadowReport)


class OrderScreen:
    """Output of ``koala schedule``: a line for each event and, on a terminal, a status line."""

    def __init__(self, session: Session, cluster: str, meter: QueueMeter, *, as_json: bool) -> None:
        """Create a display that shows nothing yet."""
        self._session = session
        self.cluster = cluster
        self.meter = meter
        self._as_json = as_json
        self._status: Status | None = None
        self._failing = False

    def __enter__(self) -> None:
        """Begin the status line, if there is a terminal."""
        console = self._session.moving
        if console.is_terminal and not self._as_json:
            self._status = console.status("looking")
            self._status.start()

    def __exit__(self, *_: object) -> None:
        """Stop the display."""
        if self._status is not None:
            self._status.stop()

    def tell(self, happened: Sequence[JobEvent]) -> None:
        """Print and count an event."""
        self.meter.tell(happened)
        for one in happened:
            if self._as_json:
                click.echo(HAPPENING.dump_json(one).decode())
            else:
                self._session.console.print(line(one), style=style(one), markup=False, soft_wrap=True)

    def show(self, text: str) -> None:
        """Show the state of the queue."""
        if self._status is not None:
            self._status.update(text)

    def show_report(self, report: ShadowReport) -> None:
        """Show the report of a shadow so far."""
        ours, theirs = (seconds(wait) for wait in (report.mean_wait_ours, report.mean_wait_theirs))
        self.show(f"{self.cluster}: {report.jobs} jobs, mean wait {ours} with this policy, {theirs} as it is")

    def trouble(self, why: str) -> None:
        """Print that the batch system does not answer, or answers again."""
        if why or self._failing:
            self._session.remark(f"{self.cluster} does not answer: {why}" if why else f"{self.cluster} answers again")
        self._failing = bool(why)

    def farewell(self, found: Overview) -> None:
        """Print what happens to jobs when the scheduler ends."""
        running, waiting = found.running, found.starting + found.waiting + found.left_out
        self._session.remark(
            f"koala schedules {self.cluster} no more; jobs that run on: {running}, "
            f"that wait until it is started again: {waiting}"
        )

    def conclude(self, report: ShadowReport) -> None:
        """Print the report of a shadow."""
        if self._as_json:
            click.echo(json.dumps({"kind": "report", **SHADOW_REPORT.dump_python(report, mode="json")}))
        else:
            for line in shadow_report(report):
                self._session.console.print(line, markup=False, soft_wrap=True)


# -- Giving the queue back -----------------------------------------------------------------------------------
# ``koala schedule --give-back``: the batch system's own scheduler has its queue again.

SHOWN = 20
"""Jobs that are named on a line."""


def give_queue_back(session: Session, config: ClusterConfig, directory: Path, record: str, *, as_json: bool) -> None:
    """Release what the site's hook holds in a cluster and say so; exit with 1 when something is still held.

    ``directory``: of the cluster's ``koala schedule``; ``record``: the name of its record of starts there.
    """
    way_out = "stop it first, with Ctrl-C or `kill` and its pid: it would hold jobs again"
    with ownership(directory, role=f"koala schedule --give-back {config.name}", way_out=way_out):
        done, removal = anyio.run(_give_back, session, config, directory / record)
    if as_json:
        held = dict(done.still_held)
        session.print_json(
            {"cluster": config.name, "released": done.released, "running": done.running, "still_held": held}
        )
    else:
        _tell(session, config.name, done)
    session.remark("jobs that their own users hold stay held")
    if removal:
        session.remark(f"new jobs come in held until the hook is taken out: {removal}")
    if done.still_held:
        sys.exit(EXIT_FAILURE)


async def _give_back(session: Session, config: ClusterConfig, record: Path) -> tuple[GivenBack, str]:
    async with _opened(session, config) as (lrm, _):
        if not lrm.capabilities.hold:
            message = f"the plugin {config.plugin} can neither hold nor release jobs"
            raise LrmUnsupportedError(message, hint="release them with the batch system's own commands")
        with session.progress.status("looking at the queue") as status:
            await lrm.start()
            return await give_back(lrm, pins=_pins(record), tell=status.update), lrm.hook_removal


@asynccontextmanager
async def _opened(session: Session, config: ClusterConfig) -> AsyncIterator[tuple[Lrm, CommandRunner]]:
    """Yield the LRM of a cluster, not started, and the limiter of its requests."""
    async with SiteHosts(session.site.sites, session.directory) as hosts:
        host = hosts.at(config.site)
        lrm, commands = make_lrm(config, session.plugins, session.directory, host=host, owner=True)
        try:
            yield lrm, commands
        finally:
            await close_lrm(lrm)


def _pins(record: Path) -> tuple[Pin, ...]:
    """Return recorded starts of an earlier ``koala schedule`` or ``koala wiki serve``."""
    if record.exists():
        # A damaged record must not keep the queue from its owner.
        with suppress(JournalError):
            log = StartLog(record)
            try:
                return log.pins
            finally:
                log.close()
    return ()


def _tell(session: Session, cluster: str, done: GivenBack) -> None:
    count = len(done.released)
    jobs = f"released {count} job{'' if count == 1 else 's'}: {_named(done.released)}" if count else "released nothing"
    held = "nothing is held by the site's hook any more" if not done.still_held else "not all is given back"
    session.console.print(f"{cluster}: {jobs}; {held}", markup=False, soft_wrap=True)
    if done.running:
        text = f"running jobs that would have come back in hold and will not now: {_named(done.running)}"
        session.console.print(text, markup=False, soft_wrap=True)
    for job, why in done.still_held.items():
        session.console.print(f"still held: {job}: {why}", markup=False, soft_wrap=True)


def _named(jobs: tuple[LrmJobId, ...]) -> str:
    more = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return ", ".join(jobs[:SHOWN]) + more


# -- The command ---------------------------------------------------------------------------------------------

RECORD = "starts.sqlite"
SHORTEST = 0.2
"""Seconds between two looks at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of ``koala schedule``, checked."""

    policy: str
    metric: str
    depth: int
    weights: PriorityWeights
    rules: Rules
    patience: Patience
    shadow: bool
    once: bool
    as_json: bool
    metrics_port: int | None
    ask_socket: Path | None
    make_queue: MakeQueue | None
    """Makes the queue, where the policy is none of koala's own."""

    def make_scheduler(self) -> ClusterScheduler:
        """Return the policy's queue for 0 processors."""
        return make_cluster_scheduler(
            self.policy, 0, metric=self.metric, depth=self.depth, weights=self.weights, make=self.make_queue
        )

    @property
    def misfit_rules(self) -> MisfitRules:
        """Rules of the policy for jobs that do not fit on nodes."""
        return MisfitRules.of(self.policy, self.depth)

    def __str__(self) -> str:
        """Policy, metric and depth in words."""
        more = f", metric {self.metric}" if self.policy in {"bestfit", "greedy"} else ""
        deep = f", {self.depth} reserved" if self.policy in {"firstfit", "bestfit", "greedy"} else ""
        return f"{self.policy}{more}{deep}"


def parse_weights(text: str) -> PriorityWeights:
    """Return weights such as ``queue-time=1,processors=-2,share=3600``. Raises ConfigurationError."""
    names = [field.name for field in dataclasses.fields(PriorityWeights)]
    allowed = ", ".join(name.replace("_", "-") for name in names)
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        key = name.strip().replace("-", "_")
        if key not in names:
            raise ConfigurationError(f"--weights: there is no weight {name.strip()!r}", hint=f"weights are {allowed}")
        try:
            values[key] = float(value)
        except ValueError:
            raise ConfigurationError(f"--weights: {part!r} is not NAME=NUMBER", hint=f"names are {allowed}") from None
    try:
        return PriorityWeights(**values)
    except ValueError as error:
        raise ConfigurationError(f"--weights: {error}") from None


@click.command()
@click.option("--cluster", "-c", "name", help="Cluster of the site file whose queue is scheduled.")
@click.option(
    "--give-back",
    "given_back",
    metavar="CLUSTER",
    help="Release what the site's hook holds there, and nothing else: the batch system's own scheduler goes on.",
)
@click.option("--policy", "-p", type=QueuePolicy(), default="easy", show_default=True)
@click.option(
    "--metric", type=click.Choice(METRICS), default=METRICS[0], show_default=True, help="What bestfit and greedy fill."
)
@click.option(
    "--depth",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Jobs with a reservation (firstfit, bestfit, greedy).",
)
@click.option(
    "--weights",
    default="",
    metavar="NAME=X,...",
    help="Priority: queue-time (points a second, default 1), processors (points each), share (points a user loses who "
    "used all that was used lately), half-life (seconds).",
)
@click.option(
    "--shadow", is_flag=True, help="Decide and report, but start nothing: the batch system goes on by itself."
)
@click.option("--once", is_flag=True, help="One pass, and end when what it started runs.")
@click.option(
    "--user-holds/--no-user-holds",
    default=None,
    help="Also start jobs in user hold. Default: only where the batch system cannot tell whose hold it is.",
)
@click.option(
    "--default-walltime",
    type=click.IntRange(1),
    default=86_400,
    show_default=True,
    metavar="SECONDS",
    help="For jobs without a walltime in queues without a limit.",
)
@click.option(
    "--patience",
    type=click.FloatRange(1),
    default=PATIENCE,
    show_default=True,
    metavar="SECONDS",
    help="A start that has not shown after so long is taken back.",
)
@click.option(
    "--ask-socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Let every user of this host ask `koala explain CLUSTER:ID` at a Unix socket there, and nothing else. "
    "Default: nobody but you.",
)
@metrics_port_option
@json_option
@pass_session
@command_body
def schedule(
    session: Session,
    name: str | None,
    given_back: str | None,
    policy: str,
    metric: str,
    depth: int,
    weights: str,
    shadow: bool,
    once: bool,
    user_holds: bool | None,
    default_walltime: int,
    patience: float,
    ask_socket: Path | None,
    metrics_port: int | None,
    as_json: bool,
) -> None:
    r"""Schedule one cluster's whole queue in the place of its own scheduler.

    Users submit as always; their jobs must come in held, see "Let koala schedule it" in the manual. Each is started on
    nodes chosen here, and looked after until it runs. Ctrl-C ends it: running jobs go on, waiting ones stay held.
    --json prints one line for each decision.

    \b
    Examples:
      koala schedule --cluster a --policy firstfit --depth 4
      koala schedule --cluster a --shadow      what would change?
      koala schedule --give-back a             the batch system goes on by itself
    """
    if given_back is not None:
        if name is not None:
            raise click.UsageError("--give-back names the cluster itself: give it or --cluster")
        config = session.site.cluster(given_back)
        give_queue_back(session, config, schedule_directory(session, given_back), RECORD, as_json=as_json)
        return
    if name is None:
        raise click.MissingParameter(param_hint="'--cluster'", param_type="option")
    if shadow and ask_socket is not None:
        raise click.UsageError("a shadow promises nothing: give --ask-socket or --shadow")
    config = session.site.cluster(name)
    if config.site is not None and ask_socket is not None:
        # Who may see what of a job is decided by the name of its user.
        message = f"--ask-socket: users of this host may have other names at site {config.site}"
        raise ConfigurationError(message, hint="run `koala schedule` on the login node there, or leave the option out")
    definition = session.plugins[config.plugin]
    told_apart = definition.capabilities.tells_holders
    plan = Plan(
        policy=policy,
        make_queue=load_queue_policy(policy, refused=lambda error: session.remark(error.message)),
        metric=metric,
        depth=depth,
        weights=parse_weights(weights),
        rules=Rules(
            shadow=shadow,
            user_holds=not told_apart if user_holds is None else user_holds,
            one_node=not definition.capabilities.pin_several,
            one_by_one=not definition.capabilities.pin_elements,
            default_walltime=default_walltime,
        ),
        patience=Patience(start=patience),
        shadow=shadow,
        once=once,
        as_json=as_json,
        metrics_port=metrics_port,
        ask_socket=ask_socket,
    )
    directory = schedule_directory(session, name)
    if shadow:
        # It acts on nothing, so that it may run beside the one that does.
        prepare_directory(directory)
        anyio.run(_run, session, config, plan, directory)
        return
    way_out = f"ask it with `koala explain {name}:ID`, stop it with Ctrl-C or `kill` and its pid"
    with ownership(directory, role=f"koala schedule --cluster {name}", way_out=way_out):
        anyio.run(_run, session, config, plan, directory)


def schedule_directory(session: Session, cluster: str) -> Path:
    """Return where the scheduler of a cluster keeps its record and its socket; the directory above is there then."""
    prepare_directory(session.directory)
    prepare_directory(session.directory / "schedule")
    return session.directory / "schedule" / cluster


async def _run(session: Session, config: ClusterConfig, plan: Plan, directory: Path) -> None:
    async with _opened(session, config) as (lrm, commands):
        meter = QueueMeter(config.name)
        commands.count_in(meter.meter, config.name)
        doing = "watches" if plan.shadow else "schedules"
        session.remark(f"koala {doing} cluster {config.name}: {plan}; Ctrl-C ends it")
        screen = OrderScreen(session, config.name, meter, as_json=plan.as_json)
        shortest = max(SHORTEST, shortest_poll_interval(config.requests_as_owner, 2 * lrm.requests_per_poll))
        pace = Pace(interval=max(config.poll_interval, shortest), shortest=shortest)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_on_signal, tasks.cancel_scope)
            await tell_metrics(tasks, session, meter.meter, plan.metrics_port)
            # Also while the batch system does not answer: that is no reason to be started again.
            under_supervision(tasks).ready()
            await start_plugin(lrm, on_trouble=screen.trouble)
            if plan.shadow:
                await _shadow(PacedWatcher(lrm, pace, on_trouble=screen.trouble), plan, screen)
            else:
                path = directory / RECORD
                await _require_rights(lrm, session, first=not path.exists())
                await _schedule(lrm, pace, plan, screen, path)
            tasks.cancel_scope.cancel()


async def _require_rights(lrm: Lrm, session: Session, *, first: bool) -> None:
    """Remark which rights are missing; the ``first`` time, also those that only a job of its own shows.

    Raises LrmUnsupportedError when nothing at all can be started.
    """
    if not lrm.capabilities.pin:
        raise LrmUnsupportedError(
            "this plugin cannot start a held job on chosen nodes", hint="--shadow works with every plugin"
        )
    for result in await lrm.check_outside() if first else ():
        if not result.ok:
            session.remark(f"{result.subject}: {result.found}; {result.remedy}")


async def _schedule(lrm: Lrm, pace: Pace, plan: Plan, screen: OrderScreen, path: Path) -> None:
    record = StartLog(path)
    watcher = PacedWatcher(lrm, pace, on_trouble=screen.trouble, clock=ServiceClock(before=record.clock))
    record.note_clock(watcher.clock.reading())
    starts = Starts(plan.patience, pins=record.pins)
    mirror = Mirror(plan.make_scheduler, plan.rules, starts)
    screen.meter.read_queue(partial(overview, mirror))
    starter = Starter(lrm, starts, record, clock=watcher.clock.now)
    try:

        def tell(happened: Sequence[JobEvent]) -> None:
            screen.tell(happened)
            screen.show(status(screen.cluster, overview(mirror), watcher.failure))

        driver = OutsideScheduler(watcher, mirror, plan.misfit_rules, starter, record, tell=tell)
        with screen:
            async with anyio.create_task_group() as tasks:
                explain_job = explainer(mirror, watcher.clock)
                await tasks.start(ExplainServer(explain_job, path.parent / SOCKET_NAME).serve)
                if plan.ask_socket is not None:
                    await tasks.start(ExplainServer(explain_job, plan.ask_socket, mode=EVERYBODY).serve)
                await driver.run(once=plan.once)
                tasks.cancel_scope.cancel()
    finally:
        record.close()
        screen.farewell(overview(mirror))


async def _shadow(watcher: PacedWatcher, plan: Plan, screen: OrderScreen) -> None:
    shadow = Shadow(plan.make_scheduler, plan.rules)
    screen.meter.read_shadow(shadow.report)
    try:
        with screen:
            while True:
                listing = await watcher.look()
                if listing is not None:
                    shadow.observe(listing)
                    happened, shadow.happened = shadow.happened, []
                    screen.tell([shifted(one, watcher.clock.offset) for one in happened])
                    screen.show_report(shadow.report())
                    if plan.once:
                        break
                await watcher.pause(restless=False, due=None)
    finally:
        screen.conclude(report_shifted(shadow.report(), watcher.clock.offset))
