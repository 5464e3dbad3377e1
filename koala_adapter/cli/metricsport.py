# SPDX-License-Identifier: Apache-2.0
"""The option by which a server tells its metrics, and the port that it opens for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koala_adapter.net.loopback import is_loopback

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from koala_adapter.cli.session import Session
    from koala_adapter.metrics.meter import Meter

metrics_port_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Tell OpenMetrics on this port of [metrics] listen (127.0.0.1); 0: any free one. Default: none.",
)


async def tell_metrics(tasks: TaskGroup, session: Session, meter: Meter, port: int | None) -> None:
    """Answer who asks for metrics while the task group runs, and say where. Raises ServiceRunningError."""
    if port is None:
        return
    from koala_adapter.metrics.endpoint import MetricsEndpoint

    listen = session.site.metrics.listen
    found = await tasks.start(MetricsEndpoint(meter, listen, port).serve)
    host = f"[{listen}]" if ":" in listen else listen
    session.remark(f"metrics are told at http://{host}:{found}/metrics")
    if not is_loopback(listen):
        session.remark(f"listening on {listen}: whoever reaches that port reads the metrics")
