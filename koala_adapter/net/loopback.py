# SPDX-License-Identifier: Apache-2.0
"""Whether an address is for this machine alone."""

from __future__ import annotations

import ipaddress
from contextlib import suppress


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can connect to an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"
