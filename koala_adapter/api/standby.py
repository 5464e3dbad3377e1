# SPDX-License-Identifier: Apache-2.0
"""Making sure that a service answers: the one that runs, one that somebody else starts, or one in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.api.backgroundservice import start_in_background
from koala_adapter.api.statedirectory import LOG_NAME
from koala_adapter.errors import ServiceRunningError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.api.client import Client

COMING_UP = 120.0
"""Seconds to wait for a service that somebody else is starting."""
OTHER_START = 2.0
"""Seconds after which it is looked whether that one is still there."""

T = TypeVar("T")


def stand_by(client: Client, site_file: Path) -> int | None:
    """Start a service in the background, which outlives this process; return its pid, None when another one answers.

    Raises ServiceRunningError and ServiceUnavailableError.
    """
    return unless_another_answers(client, lambda: start_in_background(site_file, client.directory))


def unless_another_answers(client: Client, start: Callable[[], T]) -> T | None:
    """Return what ``start`` returns; None when another service, on whose start it waited, answers instead.

    Raises ServiceRunningError when another process owns the directory and does not come to answer.
    """
    until = time.monotonic() + COMING_UP
    while True:
        try:
            return start()
        except ServiceRunningError as error:
            # In between the start is tried again: the other one may fail.
            if client.wait_until_running(OTHER_START):
                return None
            if time.monotonic() > until:
                message = f"{error.message}, but has not answered for {COMING_UP:.0f} s"
                hint = f"see what it says there, or in {client.directory / LOG_NAME}; end it and try again"
                raise ServiceRunningError(message, hint=hint) from None
