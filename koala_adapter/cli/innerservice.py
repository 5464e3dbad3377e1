# SPDX-License-Identifier: Apache-2.0
"""A service inside the process of ``koala run`` or ``koala demo``, and its log file."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

import structlog
from anyio.from_thread import start_blocking_portal

from koala_adapter.api.server import Server, host
from koala_adapter.api.statedirectory import LOG_NAME
from koala_adapter.cli import collect_only_new
from koala_adapter.cli.log import LogStream, RotatedLog
from koala_adapter.cli.session import Session, koala_error
from koala_adapter.driver.loop import SNAPSHOT_INTERVAL
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.lrm.commands import SETTINGS_KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.cli.terminal import Interrupts
    from koala_adapter.model import JobId


JOURNAL_PATIENCE = 60.0
"""Seconds after which our own service ends where the journal cannot be written and no application runs."""
CLOSING = 10.0
"""Seconds that our own service may take to end once it has begun to."""


@dataclass(slots=True)
class InnerService:
    """A service inside this process."""

    server: Server
    ended: bool = False
    """It ended by itself: it was stopped, or it failed."""

    @property
    def unfinished(self) -> list[JobId]:
        """Jobs that have not ended; after the service's end, those of its journal."""
        return self.server.unfinished


@contextmanager
def inner_service(
    session: Session, interrupts: Interrupts, *, snapshot_interval: int = SNAPSHOT_INTERVAL
) -> Iterator[InnerService]:
    """Run a service in this process during the block; an interrupt may end only the block's body.

    ``snapshot_interval``: events of the journal after which a snapshot stands for them.
    """
    session.set_up_log()
    with log_to_file(session), interrupts.deferred(), start_blocking_portal() as portal:
        with interrupts.let_in(), session.progress.status(f"asking {len(session.site.enabled_clusters)} clusters"):
            future, server = portal.start_task(
                partial(
                    _logged_host,
                    policies=session.policies,
                    snapshot_interval=snapshot_interval,
                    journal_patience=JOURNAL_PATIENCE,
                    settings_trusted=SETTINGS_KEPT,
                    site_file=session.here.file_state,
                ),
                session.site,
                session.plugins,
                session.directory,
            )
        collect_only_new()
        inner = InnerService(server)
        try:
            with interrupts.let_in():
                yield inner
        except ServiceUnavailableError:
            # It is our own that is gone, so we know why.
            error = future.exception(timeout=CLOSING)
            if error is not None:
                raise error from None
            raise
        finally:
            inner.ended = future.done()
            if not inner.ended:
                portal.call(server.quiet)
            future.cancel()


async def _logged_host(*arguments: Any, **more: Any) -> None:  # noqa: ANN401 - passed on
    """Run a service; log the cause when a defect ends it, as the user is told only one sentence."""
    try:
        await host(*arguments, **more)
    except Exception as error:
        if koala_error(error) is None:
            structlog.get_logger().error("the service ends by a defect of koala", exc_info=error)
        raise


@contextmanager
def log_to_file(session: Session) -> Iterator[None]:
    """Write the log of a service in this process to the file of background services, not to the terminal."""
    if session.verbose:
        yield
        return
    former = structlog.get_config()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    path = session.directory / LOG_NAME
    descriptor = os.open(path, flags, 0o600)
    file = RotatedLog(path, (descriptor,))
    structlog.configure(
        processors=[*former["processors"][:-1], structlog.dev.ConsoleRenderer(colors=False)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogStream(cast("TextIO", file)))),
    )
    try:
        yield
    finally:
        structlog.configure(**former)
        os.close(descriptor)
