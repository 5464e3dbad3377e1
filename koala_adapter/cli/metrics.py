# SPDX-License-Identifier: Apache-2.0
"""``koala metrics``: what a service, a scheduler or a WIKI server counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koala_adapter.cli.session import command_body, pass_session
from koala_adapter.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session

PATIENCE = 30.0
"""Seconds that an answer may take."""


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Ask whoever tells metrics on this port of this host (`--metrics-port`). Default: the running service.",
)
@pass_session
@command_body
def metrics(session: Session, port: int | None) -> None:
    r"""Print what a service counts, in the form of OpenMetrics.

    Prometheus and others read the same from the port that [metrics] port or --metrics-port opens: see `koala docs
    metrics`. A dashboard for Grafana: `koala conf grafana.json`.

    \b
    Examples:
      koala metrics | grep placeholders
      koala metrics --port 9464
    """
    click.echo(session.client.metrics() if port is None else _fetched(port), nl=False)


def _fetched(port: int) -> str:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        message = f"nobody tells metrics on port {port} of this host: {getattr(error, 'strerror', None) or error}"
        hint = "start koala serve, schedule or wiki serve with --metrics-port"
        raise ServiceUnavailableError(message, hint=hint) from error
    finally:
        connection.close()
    if response.status != 200:  # noqa: PLR2004 - OK, in the words of HTTP
        raise ServiceUnavailableError(f"port {port} of this host answers {response.status} {response.reason}")
    return text
