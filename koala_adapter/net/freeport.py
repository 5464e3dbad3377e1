# SPDX-License-Identifier: Apache-2.0
"""A TCP port for somebody who needs one soon."""

from __future__ import annotations

import random
import socket
from contextlib import closing, suppress

LASTING_PORTS = range(20_000, 32_768)
"""For who must be found at the same port after a restart: below the range from which Linux serves outgoing connections
(ip_local_port_range, ip(7)), so that nobody gets it by chance meanwhile."""
UNLIKELY_PORTS = range(10_000, 20_000)
"""Below the ports that Linux gives to outgoing connections and to who asks for any (ip_local_port_range, ip(7)), and
those of control centers: one of these may be somebody else's before whoever needs it comes to take it."""


def lasting_ports() -> list[int]:
    """Return ports to be tried, in this order, by who must be found at the same one after a restart."""
    return random.SystemRandom().sample(LASTING_PORTS, 20)


def free_port() -> int:
    """Return a TCP port of this machine that nobody uses at this moment, nor will by chance soon."""
    for port in random.SystemRandom().sample(UNLIKELY_PORTS, 20):
        with suppress(OSError):
            return _tried(port)
    return _tried(0)


def _tried(port: int) -> int:
    """Return a port at which nobody listens; 0: any. Raises OSError."""
    with closing(socket.create_server(("127.0.0.1", port))) as listener:
        return int(listener.getsockname()[1])
