# SPDX-License-Identifier: Apache-2.0
"""Gateways of sites, as they are seen in the list of processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def gateway_processes(title: str) -> set[int]:
    """Return the fronts and gateways whose title ends so."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_text(errors="replace").split("\0")[:-1]
            if "koala-gateway" in words and words[-1].endswith(title):
                found.add(int(path.parent.name))
    return found


def resident_gateways(title: str) -> set[int]:
    """Return the gateways that outlive their connections: the process that began their session has ended."""
    found = set()
    for process in gateway_processes(title):
        with suppress(OSError):
            if not Path(f"/proc/{os.getsid(process)}").exists():
                found.add(process)
    return found
