# SPDX-License-Identifier: Apache-2.0
"""A TCP port for somebody who needs one soon."""

from __future__ import annotations

import socket
from contextlib import closing


def free_port() -> int:
    """Return a TCP port of this machine that nobody uses at this moment."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])
