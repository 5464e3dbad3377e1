# SPDX-License-Identifier: Apache-2.0
"""The user of a TCP connection from this machine."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from koala_adapter.host.sockets import local_tcp_user


@pytest.mark.parametrize(("listen", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_the_user_of_a_connection_from_here_is_known(listen: str, family: socket.AddressFamily) -> None:
    """As long as somebody has the client's socket, and no longer: the kernel then calls it root's."""
    with closing(socket.create_server((listen, 0), family=family)) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        served, _ = listener.accept()
        ends = client.getsockname()[:2], client.getpeername()[:2]
        with served:
            assert local_tcp_user(*ends) == os.geteuid()
            client.close()
            assert local_tcp_user(*ends) is None
        assert local_tcp_user(*ends) is None


def test_an_ipv4_connection_of_an_ipv6_socket_is_found() -> None:
    """The kernel lists it among those of IPv6."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, socket.socket(socket.AF_INET6) as client:
        port = listener.getsockname()[1]
        client.connect(("::ffff:127.0.0.1", port))
        ends = ("127.0.0.1", client.getsockname()[1]), ("127.0.0.1", port)
        assert local_tcp_user(*ends) == os.geteuid()


def test_a_socket_elsewhere_has_no_user_here() -> None:
    """Nothing is said of it."""
    assert local_tcp_user(("192.0.2.1", 1), ("192.0.2.2", 2)) is None
