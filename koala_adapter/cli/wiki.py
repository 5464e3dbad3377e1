# SPDX-License-Identifier: Apache-2.0
"""``koala wiki``: a batch system served to a WIKI scheduler, and one request to a WIKI server.

First why a job that a WIKI server reports waits, then the commands ``serve`` and ``ask``.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from pwd import getpwnam
from typing import TYPE_CHECKING, Any

import anyio
import click

from koala_adapter.api.statedirectory import ownership, prepare_directory
from koala_adapter.cli.schedule import RECORD, schedule_directory
from koala_adapter.cli.serve import metrics_port_option, tell_metrics
from koala_adapter.cli.session import Session, command_body, json_option, pass_session
from koala_adapter.errors import ConfigurationError, JobNotFoundError, LrmError
from koala_adapter.host.clock import seconds_since_boot
from koala_adapter.host.metrics import process_meter
from koala_adapter.host.process import stop_on_signal, under_supervision
from koala_adapter.host.sockets import is_loopback
from koala_adapter.lrm.commands import login_name
from koala_adapter.lrm.startlog import StartLog
from koala_adapter.model import OCCUPYING, WAITING, ClusterName, LrmJob, LrmJobState
from koala_adapter.ordering.asking import SOCKET_NAME, ExplainServer, Explanation
from koala_adapter.ordering.jobs import Phase
from koala_adapter.service.opening import SiteHosts, close_lrm, make_lrm
from koala_adapter.wiki.client import Peer, exchange, load_key
from koala_adapter.wiki.codec.verbs import parse_request
from koala_adapter.wiki.codec.words import Dialect
from koala_adapter.wiki.multicluster import Multicluster
from koala_adapter.wiki.reporting import UNLIMITED, offer, why_not_offered
from koala_adapter.wiki.resource import WikiResource
from koala_adapter.wiki.server import serve as serve_wiki
from koala_adapter.wiki.serving import DEFAULT_PORT, RunningJobsFile, Served, ServerOptions

if TYPE_CHECKING:
    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.lrm import Lrm
    from koala_adapter.wiki.codec.frames import Key
    from koala_adapter.wiki.inventory import Inventory


# -- Why a job of a WIKI server waits ------------------------------------------------------------------------
# Shown by ``koala explain``. Made of the inventory without I/O.

OFFERED = "it is offered to the scheduler that asks by WIKI, which has not started it yet"


def explained(inventory: Inventory, job_id: str) -> Explanation:
    """Return the explanation of an unfinished job. Raises JobNotFoundError."""
    job = inventory.job(job_id)
    if job is None or job.state is LrmJobState.ENDED:
        raise JobNotFoundError(
            f"the batch system shows no unfinished job {job_id}", hint="give the id as the batch system writes it"
        )
    phase = Phase.RUNNING if job.state in OCCUPYING else Phase.LEFT_OUT
    return Explanation(
        job_id=job_id,
        user=job.user,
        name=job.name,
        processors=job.processors,
        phase=(Phase.STARTING if job.state is LrmJobState.STARTING else phase).value,
        reason=_reason(inventory, job) if job.state in WAITING else "",
        estimate=job.walltime or UNLIMITED,
        estimate_assumed=not job.walltime,
        started_at=job.started_at,
        nodes=job.layout,
    )


def _reason(inventory: Inventory, job: LrmJob) -> str:
    reason = why_not_offered(job, user_holds=inventory.words.user_holds)
    return reason or offer(job, inventory.offered, one_node=inventory.words.one_node).obstacle or OFFERED


# -- The commands --------------------------------------------------------------------------------------------

DEFAULTS = ServerOptions()
ALL = "all clusters"
"""Directory of a server of everything; no cluster can be called so, for the blank in it."""
SECONDS = click.FloatRange(min=0)


@click.group()
def wiki() -> None:
    r"""Let a scheduler that speaks WIKI (Maui, Moab) own the order of a batch system's jobs.

    \b
    Examples:
      koala wiki serve --cluster alpha --key-file /etc/koala/wiki.key
      koala wiki ask --key-file /etc/koala/wiki.key GETJOBS 0:ALL
    """


@wiki.command()
@click.option("--cluster", metavar="NAME", help="The cluster of the site file to serve.")
@click.option(
    "--all", "everything", is_flag=True, help="Serve all clusters as one, with the jobs of koala's own queue."
)
@click.option(
    "--key-file", type=click.Path(path_type=Path), required=True, help="File of mode 0600 with the shared key."
)
@click.option("--listen", default=DEFAULTS.listen, show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any free one.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network that may send requests; may be repeated. Default: this machine.",
)
@click.option(
    "--peer-user",
    "users",
    multiple=True,
    metavar="NAME",
    help="User of this machine who may send requests, beside root and the server's own user; may be repeated.",
)
@click.option(
    "--dialect",
    type=click.Choice([str(dialect) for dialect in Dialect]),
    default=str(Dialect.WIKI),
    show_default=True,
    help="wiki: Maui. wiki2: Moab.",
)
@click.option("--cache", type=SECONDS, default=DEFAULTS.cache, show_default=True, help="Seconds a listing serves all.")
@click.option(
    "--retention",
    type=SECONDS,
    default=DEFAULTS.retention,
    show_default=True,
    help="Seconds that a finished job is reported, at least.",
)
@click.option(
    "--reply-within",
    type=click.FloatRange(min=1),
    default=DEFAULTS.reply_within,
    show_default=True,
    help="Seconds within which every request is answered; below the scheduler's TIMEOUT.",
)
@click.option(
    "--start-reply-within",
    type=SECONDS,
    default=DEFAULTS.start_reply_within,
    show_default=True,
    help="Seconds within which a start is answered; what the batch system refuses later is reported in hold.",
)
@click.option(
    "--oldest",
    type=SECONDS,
    default=DEFAULTS.oldest,
    show_default=True,
    help="Seconds that a listing may be old from which is answered while the next takes longer than --reply-within.",
)
@click.option(
    "--start-within",
    type=click.FloatRange(min=1),
    default=DEFAULTS.start_within,
    show_default=True,
    help="Seconds after which a released job that does not run is held again.",
)
@click.option(
    "--user-holds/--no-user-holds",
    default=None,
    help="Also start jobs in user hold. Default: only where the batch system does not tell whose a hold is.",
)
@click.option("--event-host", default="", metavar="HOST", help="Where events go. Default: whoever sends INITIALIZE.")
@metrics_port_option
@click.option("--event-port", type=click.IntRange(0, 65535), default=0, help="Port for events (wiki2).")
@pass_session
@command_body
def serve(
    session: Session,
    /,
    cluster: str | None,
    everything: bool,
    key_file: Path,
    metrics_port: int | None,
    **settings: Any,  # noqa: ANN401 - of click
) -> None:
    r"""Serve one cluster, or all, to a WIKI scheduler until stopped.

    The scheduler sees all nodes and all users' jobs, and starts those that the site's submission hook holds for it
    (see `koala docs wiki`). On this machine requests are heard from root, from the server's own user and from each
    --peer-user. Beyond it the key is only a guard against mistakes: keep the port on this machine, or behind a
    firewall.

    \b
    Example:
      koala wiki serve --cluster alpha --key-file /etc/koala/wiki.key --peer-user maui
    """
    if everything == (cluster is not None):
        raise ConfigurationError("serve which?", hint="either --cluster NAME or --all")
    config = None if everything else session.site.cluster(cluster or "")
    told_apart = config is None or session.plugins[config.plugin].capabilities.tells_holders
    options = _options(settings, user_holds=not told_apart)
    if config is not None:
        options = replace(options, cluster=config.name, queue=config.queue)
    key = load_key(key_file)
    if not is_loopback(options.listen):
        session.remark(
            f"listening on {options.listen}: whoever reads one message can compute the key; allowed peers: "
            f"{', '.join(options.peers)}"
        )
    prepare_directory(session.directory)
    prepare_directory(session.directory / "wiki")
    directory = session.directory / "wiki" / (config.name if config else ALL)
    what = f"--cluster {config.name}" if config else "--all"
    way_out = "ask it with `koala wiki ask`, stop it with Ctrl-C or `kill` and its pid"
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyboardInterrupt))
        stack.enter_context(ownership(directory, f"koala wiki serve {what}", way_out=way_out))
        if config is not None:
            # One owner of the order at a time: `koala schedule` takes the same directory.
            order = schedule_directory(session, config.name)
            stack.enter_context(ownership(order, f"koala wiki serve {what}", way_out=way_out))
        anyio.run(_serve, session, config, directory, key, options, metrics_port)


@wiki.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the resource manager listens.")
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Its port.")
@click.option("--key-file", type=click.Path(path_type=Path), help="File (mode 0600) with the key. Default: unsigned.")
@click.option(
    "--dialect",
    type=click.Choice([str(dialect) for dialect in Dialect]),
    default=str(Dialect.WIKI2),
    show_default=True,
    help="wiki2 has all requests; a server of wiki answers those that it knows.",
)
@click.option("--timeout", type=click.FloatRange(min=1), default=30.0, show_default=True, help="Seconds to wait.")
@click.argument("verb")
@click.argument("arguments", nargs=-1)
@json_option
@pass_session
@command_body
def ask(
    session: Session,
    host: str,
    port: int,
    key_file: Path | None,
    dialect: str,
    timeout: float,
    verb: str,
    arguments: tuple[str, ...],
    as_json: bool,
) -> None:
    r"""Send one request to a WIKI resource manager and show the reply: what a scheduler would see.

    \b
    Exit codes:
      0 it was carried out, 247 it was refused or not answered

    \b
    Example:
      koala wiki ask --key-file /etc/koala/wiki.key GETNODES 0:ALL
      koala wiki ask --key-file /etc/koala/wiki.key STARTJOB 17 TASKLIST=n1:n1:n2
    """
    key = None if key_file is None else load_key(key_file)
    peer = Peer(host=host, port=port, key=key, dialect=Dialect(dialect), user=login_name(), timeout=timeout)
    request = parse_request(f"CMD={verb.upper()} ARG={' '.join(arguments)}".encode(), peer.dialect)
    reply = anyio.run(exchange, peer, request)
    if as_json:
        records = None if reply.argument is None else reply.argument.partition("#")[2].split("#")
        session.print_json({"status": reply.status, "text": reply.text, "records": records})
    elif reply.status >= 0 and reply.argument is not None:
        count, mark, records_ = reply.argument.partition("#")
        for line in records_.split("#") if mark else (count,):
            session.console.print(line, markup=False, soft_wrap=True)
    elif reply.status >= 0:
        session.console.print(reply.text, markup=False, soft_wrap=True)
    if reply.status < 0:
        raise LrmError(f"refused with {reply.status}: {reply.text}")


def _options(settings: dict[str, Any], *, user_holds: bool) -> ServerOptions:
    peers = tuple(settings.pop("peers")) or DEFAULTS.peers
    users = tuple(_user_id(name) for name in settings.pop("users"))
    dialect = Dialect(settings.pop("dialect"))
    given = settings.pop("user_holds")
    holds = user_holds if given is None else given
    return ServerOptions(**settings, peers=peers, users=users, dialect=dialect, user_holds=holds, user=login_name())


def _user_id(name: str) -> int:
    try:
        return getpwnam(name).pw_uid
    except KeyError:
        message = f"no user {name!r} on this machine"
        raise ConfigurationError(message, hint="--peer-user names the user that the scheduler runs as") from None


async def _serve(
    session: Session,
    config: ClusterConfig | None,
    directory: Path,
    key: Key,
    options: ServerOptions,
    metrics_port: int | None,
) -> None:
    meter = process_meter("wiki")
    configs = session.site.enabled_clusters if config is None else (config,)
    async with AsyncExitStack() as stack:
        lrms: list[tuple[ClusterName, Lrm]] = []
        hosts = await stack.enter_async_context(SiteHosts(session.site.sites, session.directory))
        for one in configs:
            lrm, commands = make_lrm(
                one, session.plugins, session.directory, host=hosts.at(one.site), owner=config is not None
            )
            commands.count_in(meter, one.name)
            stack.push_async_callback(close_lrm, lrm)
            await lrm.start()
            lrms.append((one.cluster_name, lrm))
        # As with the order itself, `koala schedule` goes on from the starts of this server.
        starts = StartLog((schedule_directory(session, config.name) if config else directory) / RECORD)
        stack.callback(starts.close)
        lrm = lrms[0][1]
        if config is None:
            lrm = together = Multicluster(lrms, session.client)
            options = replace(options, partitions=together.partitions)
        memory = RunningJobsFile(directory / "running.json")
        served = Served(lrm, options, starts, clock=time.time, steady=seconds_since_boot, memory=memory)
        resource = WikiResource(served, key, meter)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_on_signal, tasks.cancel_scope)
            supervisor = under_supervision(tasks)
            await tell_metrics(tasks, session, meter, metrics_port)
            if config is not None:
                order = schedule_directory(session, config.name)
                await tasks.start(ExplainServer(partial(explained, resource.inventory), order / SOCKET_NAME).serve)
            port = await tasks.start(serve_wiki, resource)
            supervisor.ready()
            session.progress.print(
                f"{options.cluster} is served to {options.dialect} on {options.listen} port {port}",
                markup=False,
                soft_wrap=True,
            )
