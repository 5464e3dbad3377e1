# SPDX-License-Identifier: Apache-2.0
"""By which address the nodes reach this host: its name where that leads to it, else that of its network."""

from __future__ import annotations

import ipaddress
import socket

from koala_adapter.discovery.sitetext import Address

ANYWHERE = "192.0.2.1"
"""An address that no host has (RFC 5737): the route there is the one to other hosts. Nothing is sent."""


def find_address() -> Address:
    """Return how the control center is reached.

    A host whose name leads to itself only, as Debian sets it up, gives the address of its network; one without any
    network serves the nodes that run on it.
    """
    if any(not _is_loopback(address) for address in _addresses_of_name()):
        return Address(listen="0.0.0.0")  # noqa: S104 - agents prove themselves with a token; nodes are anywhere
    outside = _outside()
    if outside:
        return Address(listen="0.0.0.0", address=outside)  # noqa: S104 - likewise
    return Address(listen="127.0.0.1")


def _addresses_of_name() -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    except OSError:
        return set()


def _outside() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ANYWHERE, 9))
        except OSError:
            return ""
        address = str(probe.getsockname()[0])
    return "" if _is_loopback(address) else address


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
