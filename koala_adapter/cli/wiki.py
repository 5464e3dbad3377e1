# SPDX-License-Identifier: Apache-2.0
"""``koala wiki``: a batch system as a WIKI resource manager, and what a scheduler would see of one."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from koala_adapter.cli.context import command_body, json_option, pass_session
from koala_adapter.clusters import make_lrm
from koala_adapter.commands import login_name
from koala_adapter.errors import ConfigurationError, LrmError
from koala_adapter.hosting import ownership
from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.intents import Intents
from koala_adapter.wiki.keyfile import load_key
from koala_adapter.wiki.listener import is_loopback
from koala_adapter.wiki.messages import parse_request
from koala_adapter.wiki.options import DEFAULT_PORT, ServerOptions
from koala_adapter.wiki.resource import WikiResource
from koala_adapter.wiki.serving import serve as serve_wiki
from koala_adapter.wiki.sources import LrmSource
from koala_adapter.wiki.words import Dialect

if TYPE_CHECKING:
    from koala_adapter.cli.context import Session
    from koala_adapter.sitemodel import ClusterConfig
    from koala_adapter.wiki.checksum import Key
    from koala_adapter.wiki.sources import Source

DEFAULTS = ServerOptions()
SECONDS = click.FloatRange(min=0)


@click.group()
def wiki() -> None:
    """Let a scheduler that speaks WIKI (Maui, Moab) own the order of a batch system's jobs."""


@wiki.command()
@click.option("--cluster", metavar="NAME", help="The cluster of the site file to serve.")
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
    help="Seconds after which a job that does not start is held again; below the scheduler's TIMEOUT.",
)
@click.option("--user-holds", is_flag=True, help="Start jobs that their users hold, too (Grid Engine cannot tell).")
@click.option("--event-host", default="", metavar="HOST", help="Where events go. Default: whoever sends INITIALIZE.")
@click.option("--event-port", type=click.IntRange(0, 65535), default=0, help="Port for events (wiki2).")
@pass_session
@command_body
def serve(session: Session, /, cluster: str | None, key_file: Path, **settings: Any) -> None:  # noqa: ANN401 - of click
    r"""Serve one cluster to a WIKI scheduler until stopped.

    The scheduler sees all nodes and all users' jobs, and starts those that the site's submission hook holds for it
    (see docs/wiki.md). The key is only a guard against mistakes: keep the port on this machine, or behind a firewall.

    \b
    Example:
      koala wiki serve --cluster alpha --key-file /etc/koala/wiki.key
    """
    options = _options(settings)
    key = load_key(key_file)
    config = _cluster(session, cluster)
    if not is_loopback(options.listen):
        session.remark(
            f"listening on {options.listen}: whoever reads one message can compute the key; allowed peers: "
            f"{', '.join(options.peers)}"
        )
    directory = session.directory / "wiki" / config.name
    with ownership(directory, f"koala wiki serve --cluster {config.name}"), suppress(KeyboardInterrupt):
        anyio.run(_serve, session, config, directory, key, options)


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


def _options(settings: dict[str, Any]) -> ServerOptions:
    peers = tuple(settings.pop("peers")) or DEFAULTS.peers
    dialect = Dialect(settings.pop("dialect"))
    return ServerOptions(**settings, peers=peers, dialect=dialect, user=login_name())


def _cluster(session: Session, name: str | None) -> ClusterConfig:
    clusters = session.site.clusters
    if name is None and len(clusters) == 1:
        return clusters[0]
    try:
        return session.site.cluster(name or "")
    except KeyError:
        known = ", ".join(cluster.name for cluster in clusters)
        message = f"no cluster {name!r} in {session.site_file}" if name else "which cluster?"
        raise ConfigurationError(message, hint=f"--cluster one of {known}") from None


async def _serve(session: Session, config: ClusterConfig, directory: Path, key: Key, options: ServerOptions) -> None:
    lrm, _ = make_lrm(config, session.plugins, directory)
    try:
        await lrm.start()
        source = LrmSource(config.cluster_name, lrm, queue=config.queue)
        await _run(session, source, directory, key, options)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5), suppress(LrmError):
            await lrm.close()


async def _run(session: Session, source: Source, directory: Path, key: Key, options: ServerOptions) -> None:
    resource = WikiResource(source, key, Intents(directory / "starts"), options, clock=time.time)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, tasks.cancel_scope)
        port = await tasks.start(serve_wiki, resource)
        session.progress.print(
            f"{source.name} is served to {options.dialect} on {options.listen} port {port}",
            markup=False,
            soft_wrap=True,
        )


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for _ in signals:
            scope.cancel()
            return
