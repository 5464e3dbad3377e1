# SPDX-License-Identifier: Apache-2.0
"""The processes of a task: finding and ending them, and what the kernel says of them."""

import contextlib
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

PIECE = 65536  # bytes read at once
NO_SESSION = -1  # not 0: so those are shown whose session is outside of a container


def oom_kills(membership: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Return how many processes of our memory cgroup (v1 or v2) the kernel has killed for want of memory so far."""
    count = 0
    for line in read_bytes(membership).decode().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            name = root + path + "/memory.events"
        elif "memory" in controllers.split(","):
            name = root + "/memory" + path + "/memory.oom_control"
        else:
            continue
        entries = read_bytes(name).decode().splitlines()
        count += sum(int(entry.split()[1]) for entry in entries if entry.startswith("oom_kill "))
    return count


def kill_all(session: int, mark: bytes) -> None:
    """Kill all processes of a task."""
    for _ in range(3):  # again for what was being forked during the first look
        if not signal_all(session, mark, signal.SIGKILL):
            return


def signal_all(session: int, mark: bytes, *numbers: int) -> int:
    """Send signals to all processes of a task and return how many there are.

    They are those of its session, and those that have its mark in their environment: an MPI starter gives every rank a
    session of its own, and a daemon leaves the one it came from.
    """
    count = 0
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if belongs(pid, session, mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                for number in numbers:
                    os.kill(pid, number)
                count += 1
    return count


def belongs(pid: int, session: int, mark: bytes) -> bool:
    """Tell whether a living process is one of a task. Asked of every process of the node while somebody waits."""
    try:
        inside = os.getsid(pid) == session  # far less work for the kernel than to write /proc/PID/stat
    except OSError:
        return False
    return session_of(pid) == session if inside else mark in environment_of(pid)


def environment_of(pid: int) -> bytes:
    """Return the environment with which a process was begun; nothing when it is gone, or not for us."""
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    except OSError:
        return b""
    try:
        found = piece = os.read(descriptor, PIECE)
        while len(piece) == PIECE:  # the kernel gives less only at the end
            piece = os.read(descriptor, PIECE)
            found += piece
        return found
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def session_of(pid: int) -> "Optional[int]":
    """Return the session of a living process; None when it is gone or a zombie (proc(5), stat)."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[3])


def read_bytes(path: str) -> bytes:
    """Return what a file of the kernel says; nothing when it is gone, or not for us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces = [os.read(descriptor, PIECE)]
        while pieces[-1]:
            pieces.append(os.read(descriptor, PIECE))
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
