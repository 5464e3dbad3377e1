# SPDX-License-Identifier: Apache-2.0
"""``koala schedule``: our own scheduler in the place of a batch system's, or in its shadow."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from koala_adapter.api.statedirectory import ownership, prepare_directory
from koala_adapter.batchsystem.starter import LrmStarts, Starter
from koala_adapter.batchsystem.startlog import StartLog
from koala_adapter.batchsystem.starts import PATIENCE, Patience, Starts
from koala_adapter.cli import ordertext
from koala_adapter.cli.metricsport import metrics_port_option, tell_metrics
from koala_adapter.cli.orderscreen import OrderScreen
from koala_adapter.cli.queuepolicy import QueuePolicy
from koala_adapter.cli.session import command_body, json_option, pass_session
from koala_adapter.cli.stopping import stop_on_signal, under_supervision
from koala_adapter.config.sitefile import shortest_poll_interval
from koala_adapter.errors import ConfigurationError, LrmUnsupportedError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.metrics.process import watch_commands
from koala_adapter.ordering.asksocket import AskSocket, explained_as_noted
from koala_adapter.ordering.explainserver import ExplainServer, explained_by
from koala_adapter.ordering.explanations import overview
from koala_adapter.ordering.listedjobs import Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.notewriter import NoteWriter
from koala_adapter.ordering.outsidescheduler import OutsideScheduler
from koala_adapter.ordering.pacedwatcher import Pace, PacedWatcher, start_plugin
from koala_adapter.ordering.queuemeter import QueueMeter
from koala_adapter.ordering.schedulingpass import MisfitRules
from koala_adapter.ordering.shadow import Shadow
from koala_adapter.ordering.timeofday import as_read, report_as_read
from koala_adapter.queueing.policies import METRICS, PriorityWeights, make_cluster_scheduler
from koala_adapter.service.clusterdriver import close_lrm, make_lrm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.cli.session import Session
    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.ordering.entries import JobEvent
    from koala_adapter.plugin import Lrm
    from koala_adapter.queueing.policies import ClusterScheduler, MakeQueue

RECORD = "starts.sqlite"
SHORTEST = 0.2
"""Seconds between two looks at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the options ask for."""

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
    notes: bool
    """Each waiting job is to show its place, where the batch system can."""
    make_queue: MakeQueue | None
    """Makes the queue, where the policy is none of koala's own."""

    def make_scheduler(self) -> ClusterScheduler:
        """Return the policy for a cluster whose size is not known yet."""
        return make_cluster_scheduler(
            self.policy, 0, metric=self.metric, depth=self.depth, weights=self.weights, make=self.make_queue
        )

    @property
    def misfit_rules(self) -> MisfitRules:
        """What of the policy matters for jobs that do not fit on nodes."""
        return MisfitRules.of(self.policy, self.depth)

    def __str__(self) -> str:
        """What a person is told of it."""
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
@click.option(
    "--notes/--no-notes",
    default=True,
    show_default=True,
    help="Have each waiting job show its place and latest start, where the batch system can: squeue -o %k, qstat -j.",
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
    notes: bool,
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
    from koala_adapter.policies.loading import load_queue_policy

    if given_back is not None:
        from koala_adapter.cli.giveback import give_queue_back

        config = _cluster(session, given_back)
        prepare_directory(session.directory)
        prepare_directory(session.directory / "schedule")
        give_queue_back(session, config, schedule_directory(session, given_back), RECORD, as_json=as_json)
        return
    if name is None:
        raise click.MissingParameter(param_hint="'--cluster'", param_type="option")
    if shadow and ask_socket is not None:
        raise click.UsageError("a shadow promises nothing: give --ask-socket or --shadow")
    config = _cluster(session, name)
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
        notes=notes,
    )
    prepare_directory(session.directory)
    prepare_directory(session.directory / "schedule")
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
    """Return where the scheduler of a cluster keeps its record and its socket."""
    return session.directory / "schedule" / cluster


def _cluster(session: Session, name: str) -> ClusterConfig:
    try:
        return session.site.cluster(name)
    except KeyError:
        known = ", ".join(cluster.name for cluster in session.site.clusters)
        raise ConfigurationError(f"no cluster {name!r}; there are: {known}", hint="give --cluster NAME") from None


async def _run(session: Session, config: ClusterConfig, plan: Plan, directory: Path) -> None:
    lrm, commands = make_lrm(config, session.plugins, session.directory, owner=True)
    meter = QueueMeter(config.name)
    watch_commands(meter.meter, config.name, commands)
    doing = "watches" if plan.shadow else "schedules"
    session.remark(f"koala {doing} cluster {config.name}: {plan}; Ctrl-C ends it")
    screen = OrderScreen(session, config.name, meter, as_json=plan.as_json)
    shortest = max(SHORTEST, shortest_poll_interval(config.requests_as_owner, 2 * lrm.requests_per_poll))
    pace = Pace(interval=max(config.poll_interval, shortest), shortest=shortest)
    try:
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
                await _schedule(lrm, pace, plan, screen, path, requests_per_minute=config.requests_as_owner)
            tasks.cancel_scope.cancel()
    finally:
        await close_lrm(lrm)


async def _require_rights(lrm: Lrm, session: Session, *, first: bool) -> None:
    """Say what we may not do here, and the way out; only the ``first`` time, because it tries with a job of its own.

    Raises LrmUnsupportedError when nothing at all can be started.
    """
    if not lrm.capabilities.pin:
        raise LrmUnsupportedError(
            "this plugin cannot start a held job on chosen nodes", hint="--shadow works with every plugin"
        )
    for result in await lrm.check_outside() if first else ():
        if not result.ok:
            session.remark(f"{result.subject}: {result.found}; {result.remedy}")


async def _schedule(
    lrm: Lrm, pace: Pace, plan: Plan, screen: OrderScreen, path: Path, *, requests_per_minute: int
) -> None:
    record = StartLog(path)
    watcher = PacedWatcher(lrm, pace, on_trouble=screen.trouble, clock=ServiceClock(before=record.clock))
    record.note_clock(watcher.clock.reading())
    starts = Starts(plan.patience, pins=record.pins)
    mirror = Mirror(plan.make_scheduler, plan.rules, starts)
    screen.meter.read_queue(partial(overview, mirror))
    starter = Starter(LrmStarts(lrm), starts, record, clock=watcher.clock.now)
    notes = None
    if plan.notes and lrm.capabilities.annotate:
        notes = NoteWriter(lrm, requests_per_minute=requests_per_minute, clock=watcher.clock.now)
    try:

        def tell(happened: Sequence[JobEvent]) -> None:
            screen.tell(happened)
            screen.show(ordertext.status(screen.cluster, overview(mirror), watcher.failure))

        driver = OutsideScheduler(watcher, mirror, plan.misfit_rules, starter, record, tell=tell, notes=notes)
        with screen:
            async with anyio.create_task_group() as tasks:
                await tasks.start(ExplainServer(explained_by(mirror, watcher.clock), path.parent).serve)
                if plan.ask_socket is not None:
                    await tasks.start(AskSocket(explained_as_noted(mirror, watcher.clock), plan.ask_socket).serve)
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
                    screen.tell([as_read(one, watcher.clock.offset) for one in happened])
                    screen.show_report(shadow.report())
                    if plan.once:
                        break
                await watcher.pause(restless=False, due=None)
    finally:
        screen.conclude(report_as_read(shadow.report(), watcher.clock.offset))
