# SPDX-License-Identifier: Apache-2.0
"""A port for somebody who needs one soon is free, and none that the system might give to another meanwhile."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from koala_adapter.host import sockets as freeport

if TYPE_CHECKING:
    import pytest


def test_it_is_below_what_the_system_gives() -> None:
    """Who asks for any port gets another one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        given = listener.getsockname()[1]
    assert freeport.free_port() in freeport.UNLIKELY_PORTS
    assert given not in freeport.UNLIKELY_PORTS


def test_it_is_none_at_which_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of those are taken it is any that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(freeport, "UNLIKELY_PORTS", [taken] * 20)
        port = freeport.free_port()
    assert port != taken
