# SPDX-License-Identifier: Apache-2.0
"""``koala serve``: the service in the foreground.

The background service is the same, started by other commands. The option for the metrics port comes first; all servers
share it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from koala_adapter.api.client import LOOK_AGAIN
from koala_adapter.api.offline import read_record
from koala_adapter.api.server import Server, host
from koala_adapter.api.statedirectory import LOG_NAME, READY, ownership, wait_until_unowned
from koala_adapter.cli.log import set_up_log
from koala_adapter.cli.session import Session, command_body, koala_error, pass_session
from koala_adapter.config.locations import SiteFileState
from koala_adapter.errors import ConfigurationError, ServiceUnavailableError
from koala_adapter.host.metricsport import MetricsEndpoint
from koala_adapter.host.process import stop_on_signal, under_supervision
from koala_adapter.host.sockets import is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.host.metrics import Meter


# -- Metrics port of a server --------------------------------------------------------------------------------

metrics_port_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Tell OpenMetrics on this port of [metrics] listen (127.0.0.1); 0: any free one. Default: none.",
)


async def tell_metrics(tasks: TaskGroup, session: Session, meter: Meter, port: int | None) -> None:
    """Serve metrics while the task group runs, and say where. Raises ServiceRunningError."""
    if port is None:
        return
    listen = session.site.metrics.listen
    found = await tasks.start(MetricsEndpoint(meter, listen, port).serve)
    host = f"[{listen}]" if ":" in listen else listen
    session.remark(f"metrics are told at http://{host}:{found}/metrics")
    if not is_loopback(listen):
        session.remark(f"listening on {listen}: whoever reaches that port reads the metrics")


RELOADING = 60.0
"""Seconds within which a service that reads its site file again must answer."""

# -- Command ``serve`` ---------------------------------------------------------------------------------------


@click.command()
@click.option("--stop", is_flag=True, help="End the running service; its jobs go on and are found again.")
@click.option("--reload", is_flag=True, help="Have the running service read its site file again, if that is valid.")
@click.option(
    "--end-when-idle",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End when no job was unfinished for so long.",
)
@metrics_port_option
@click.option("--ready-descriptor", type=int, hidden=True)
@click.option("--lock-descriptor", type=int, hidden=True)
@pass_session
@command_body
def serve(
    session: Session,
    stop: bool,
    reload: bool,
    end_when_idle: float | None,
    metrics_port: int | None,
    ready_descriptor: int | None,
    lock_descriptor: int | None,
) -> None:
    r"""Run the service in the foreground until it is stopped.

    It holds the queue and drives the clusters. Ctrl-C stops it, too. What it holds in the clusters goes on; the
    next service finds it again.

    \b
    Examples:
      koala --site /etc/koala/site.toml serve
      koala serve --reload       after a change of its site file
    """
    if lock_descriptor is not None:
        set_up_log(shown=True, file=session.directory / LOG_NAME)
    if stop:
        session.client.stop()
        with session.progress.status("waiting for the service to end"):
            wait_until_unowned(session.directory)
        left = read_record(session.directory, session.policies).unfinished
        unfinished = f"; unfinished jobs: {', '.join(left)}" if left else ""
        session.console.print(f"stopped the service in {session.directory}{unfinished}", markup=False, soft_wrap=True)
        return
    if reload:
        _reload(session)
        return
    _ = session.site
    settings = Settings(session)
    with ownership(session.directory, inherited=lock_descriptor):
        while _served(settings, end_when_idle, metrics_port, ready_descriptor):
            ready_descriptor = None


class Settings:
    """The site file with which a service starts, and the one to which it returns where that fails."""

    def __init__(self, session: Session) -> None:
        """``session``: the invocation of ``koala`` that has read the site file."""
        self.session = session
        self.earlier: Session | None = None
        """With which the service ran before; None: it has started with the present one, or never ran."""
        self.failure = ""
        """Why the service did not start with a site file that was read again."""

    def read_again(self) -> None:
        """Read the site file for the next start. Raises ConfigurationError, and nothing changes then."""
        fresh = replace(self.session, site_option=self.session.site_file)
        _ = fresh.site
        self.earlier, self.session, self.failure = self.session, fresh, ""

    def started(self) -> None:
        """Take note that the service has started."""
        self.earlier = None

    def go_back(self, error: Exception) -> None:
        """Take the earlier site file again; raise ``error`` where there is none."""
        if self.earlier is None:
            raise error
        known = koala_error(error)
        self.failure = known.message if known is not None else f"{type(error).__name__}: {error}"
        self.session, self.earlier = self.earlier, None
        text = f"the service does not start with {self.session.site_file} as it is now: {self.failure}"
        self.session.progress.print(text, markup=False, soft_wrap=True)


def _served(
    settings: Settings, idle_limit: float | None, metrics_port: int | None, ready_descriptor: int | None
) -> bool:
    """Serve until stopped; return whether the service is to be started again."""
    try:
        return anyio.run(_serve, settings, idle_limit, metrics_port, ready_descriptor)
    except Exception as error:  # noqa: BLE001 - whatever it is, the earlier settings are good
        settings.go_back(error)
        return True


def _reload(session: Session) -> None:
    """Have the running service read its site file again. Raises ConfigurationError and ServiceUnavailableError."""
    session.client.reload()
    until = time.monotonic() + RELOADING
    with session.progress.status("waiting for the service to come back"):
        while (found := session.client.site_in_force()) is None or found != SiteFileState.of(Path(found.path)):
            if failure := session.client.reload_failure():
                message = f"the service does not start with the site file as it is now: {failure}"
                raise ConfigurationError(message, hint="it goes on with the file as it was; correct the file")
            if time.monotonic() > until:
                message = f"the service has not come back for {RELOADING:.0f} s"
                raise ServiceUnavailableError(message, hint=f"see {session.directory / LOG_NAME}")
            time.sleep(LOOK_AGAIN)
    text = f"the service in {session.directory} has read {found.path} again"
    session.console.print(text, markup=False, soft_wrap=True)


async def _serve(
    settings: Settings, idle_limit: float | None, metrics_port: int | None, ready_descriptor: int | None
) -> bool:
    """Serve until stopped; return whether it is to go on with the site file read again."""
    session = settings.session
    server: Server | None = None

    def goes_on() -> bool:
        return settings.earlier is not None and (server is None or server.reload_wanted)

    async def end_on_signal() -> None:
        await stop_on_signal(tasks.cancel_scope)
        if server is not None:  # which may be about to read its site file again
            server.reload_wanted = False

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_on_signal)
        supervisor = under_supervision(tasks, goes_on)
        port = session.site.metrics.port if metrics_port is None else metrics_port

        async def open_metrics(meter: Meter) -> None:
            await tell_metrics(tasks, session, meter, port)

        server = await tasks.start(_host, settings, idle_limit, tasks.cancel_scope, open_metrics)
        text = f"koala serves {len(session.site.clusters)} clusters from {session.directory} (pid {os.getpid()})"
        session.progress.print(text, markup=False, soft_wrap=True)
        settings.started()
        supervisor.ready()
        if ready_descriptor is not None:
            with suppress(BrokenPipeError):  # the command that has started it is gone
                os.write(ready_descriptor, READY)
            os.close(ready_descriptor)
    return server is not None and server.reload_wanted


async def _host(
    settings: Settings,
    idle_limit: float | None,
    scope: anyio.CancelScope,
    open_metrics: Callable[[Meter], Awaitable[None]],
    *,
    task_status: TaskStatus[Server] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Host until stopped by a client or by a signal; either ends the other's wait."""
    session = settings.session
    await host(
        session.site,
        session.plugins,
        session.directory,
        idle_limit=idle_limit,
        policies=session.policies,
        site_file=session.here.file_state,
        read_again=settings.read_again,
        reload_failure=settings.failure,
        before_serving=open_metrics,
        task_status=task_status,
    )
    scope.cancel()
