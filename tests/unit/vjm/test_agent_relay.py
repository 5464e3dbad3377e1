# SPDX-License-Identifier: Apache-2.0
"""Relayed connections of the agent, as far as they need no control center."""

from __future__ import annotations

import os
import selectors
import socket
from types import SimpleNamespace
from typing import cast

import pytest

from koala_adapter.vjm.agent.node import Timers
from koala_adapter.vjm.agent.relay import Dialling, Relay

BROADCAST = ("255.255.255.255", 9)
"""An address to which connecting is refused at once: connect(2), EACCES or ENETUNREACH."""


def test_a_connection_that_is_refused_at_once_is_not_ended_later() -> None:
    """What asked for it was told by an exception, and knows it no more."""
    with socket.socket() as tried:
        refused = tried.connect_ex(BROADCAST)
    timers, channel = Timers(), SimpleNamespace(peer=(socket.AF_INET, BROADCAST))
    ended: list[str] = []
    with selectors.DefaultSelector() as selector:
        relay = cast("Relay", SimpleNamespace(channel=channel, selector=selector, timers=timers))
        with pytest.raises(OSError, match=os.strerror(refused)):
            Dialling(relay, {}, lambda _framed: ended.append("joined"), lambda: ended.append("failed"))
    assert timers.wait() is None
    assert ended == []
