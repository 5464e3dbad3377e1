# SPDX-License-Identifier: Apache-2.0
"""Orphans: processes that a task leaves behind in a session of their own and without its environment.

Neither session nor mark finds them. Where the agent is a subreaper (prctl(2)), the kernel makes them its children.
"""

import contextlib
import os
import signal

from koala_adapter.vjm.agent.processes import read_bytes
from koala_adapter.vjm.agent.usage import Counts, reap

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Container, List


PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants; return False where the system does not support that."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return False
    try:
        import ctypes  # not every Python has it

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def children_of(pid: int) -> "List[int]":
    """Return the children of a process, zombies too; none when it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in read_bytes(f"/proc/{pid}/task/{thread}/children").split()]


def reap_orphans(kept: "Container[int]", counts: Counts) -> None:
    """Reap ended children except ``kept`` and add their usage to ``counts``."""
    for pid in children_of(os.getpid()):
        if pid not in kept:
            with contextlib.suppress(ChildProcessError):
                counts.add(reap(pid, os.WNOHANG) or Counts())


def kill_orphans(kept: "Container[int]") -> None:
    """Kill all descendants except ``kept``; what they fork meanwhile becomes our child again."""
    found = [pid for pid in children_of(os.getpid()) if pid not in kept]
    for pid in found:
        found += children_of(pid)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
