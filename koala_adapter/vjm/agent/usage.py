# SPDX-License-Identifier: Apache-2.0
"""What a task uses: processor time, memory, bytes read and written, time on GPUs; and the processes that it leaves.

Processor time and bytes are exact when a process has been reaped: the kernel adds them up over all that it and its
children have reaped. Memory of several processes, and GPUs, are looked at now and then, at growing intervals.
"""

import contextlib
import os
import resource
import signal

from koala_adapter.vjm.agent.node import Timers, clock
from koala_adapter.vjm.agent.processes import LaunchError, members, read_bytes, start

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Container, Dict, List, Optional


FIRST_PAUSE = 0.5  # seconds until a task is looked at for the first time
GROWTH = 1.5  # each pause is longer than the one before by this factor
LONGEST_PAUSE = 60.0
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
KIB = 1024


class Counts:
    """Sums of usage over ended processes and their reaped children."""

    def __init__(
        self, user: float = 0.0, system: float = 0.0, read: int = 0, written: int = 0, memory: int = 0
    ) -> None:
        self.user = user  # seconds
        self.system = system
        self.read = read  # bytes
        self.written = written
        self.memory = memory  # bytes: the largest resident memory of one of them

    def add(self, other: "Counts") -> None:
        """Add other counts."""
        self.user += other.user
        self.system += other.system
        self.read += other.read
        self.written += other.written
        self.memory = max(self.memory, other.memory)


def reap(pid: int, options: int = 0) -> "Optional[Counts]":
    """Reap a child and return its usage; None when it still runs (WNOHANG). Raises ChildProcessError."""
    read, written = transferred(pid)  # the kernel tells of a zombie, too
    found, _, used = os.wait4(pid, options)
    return Counts(used.ru_utime, used.ru_stime, read, written, used.ru_maxrss * KIB) if found else None


def counts_of(pid: int) -> Counts:
    """Return the usage of a running process; zero when it is gone."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()  # from the third field on (proc(5))
    times = [int(ticks) / TICKS for ticks in fields[11:15]] or [0.0] * 4
    return Counts(times[0] + times[2], times[1] + times[3], *transferred(pid))


def transferred(pid: int) -> "List[int]":
    """Return bytes read and written by a process by all calls."""
    found = dict(line.split(b": ") for line in read_bytes(f"/proc/{pid}/io").splitlines())
    return [int(found.get(name, 0)) for name in (b"rchar", b"wchar")]


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    fields = read_bytes(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE if fields else 0


def proportional(pid: int) -> int:
    """Return the proportional set size of a process in bytes (Linux 4.14)."""
    for line in read_bytes(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * KIB
    return resident(pid)


class Usage:
    """Measures one task from start to end. ``pid``: its first process, the leader of its session."""

    def __init__(self, timers: Timers, pid: int, mark: bytes, environment: "Dict[str, str]") -> None:
        self.pid = pid
        self._timers = timers
        self._mark = mark
        self._memory = 0
        self._pause = FIRST_PAUSE
        # A new process has our memory for a moment, which the kernel keeps as the largest that it had (getrusage(2)).
        self._begun_with = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
        self._gpus = Gpus(environment) if environment.get(GPUS_GIVEN) else None
        self._over = False
        timers.after(self._pause, self._look)

    def _look(self) -> None:
        if not self._over:
            self._measure()
            self._pause = min(LONGEST_PAUSE, self._pause * GROWTH)
            self._timers.after(self._pause, self._look)

    def _measure(self) -> "List[int]":
        """Measure memory of all processes and use of GPUs; return the processes."""
        pids = members(self.pid, self._mark)
        memory = sum(resident(pid) for pid in pids)
        if len(pids) > 1 and memory > self._memory:  # the kernel has more work with this, so only if it may matter
            memory = sum(proportional(pid) for pid in pids)
        self._memory = max(self._memory, memory)
        if self._gpus is not None:
            self._gpus.look()
        return pids

    def end(self, counts: Counts) -> None:
        """Measure for the last time before the rest is killed, and add that to ``counts``."""
        self._over = True
        for pid in self._measure():
            counts.add(counts_of(pid))

    def told(self, counts: Counts) -> "Dict[str, Any]":
        """Return the usage to report; ``counts``: of all its processes."""
        large = counts.memory if counts.memory > self._begun_with or not self._memory else 0
        return {
            "user_seconds": round(counts.user, 6),
            "system_seconds": round(counts.system, 6),
            "memory_bytes": max(self._memory, large),
            "read_bytes": counts.read,
            "written_bytes": counts.written,
            "gpu_seconds": None if self._gpus is None else self._gpus.seconds,
        }


# -- GPUs ----------------------------------------------------------------------------------------------------

GPUS_GIVEN = "CUDA_VISIBLE_DEVICES"  # set by batch systems for jobs that asked for GPUs
NVIDIA = "nvidia-smi"


class Gpus:
    """Estimate of the busy time of a task's GPUs, by samples of nvidia-smi."""

    def __init__(self, environment: "Dict[str, str]") -> None:
        self.seconds: "Optional[float]" = None  # of all GPUs together; None: not known
        self.asked: "Optional[int]" = None  # the process that answers
        self.since = clock()  # when it was asked
        self._given = environment[GPUS_GIVEN]
        self._environment = {"PATH": environment.get("PATH", os.defpath)}  # without the mark of the task
        self._there = any(os.access(os.path.join(one, NVIDIA), os.X_OK) for one in os.get_exec_path(self._environment))
        self._answer = -1

    def look(self) -> None:
        """Take the last sample and start the next."""
        now = clock()
        if self.asked is not None:
            with contextlib.suppress(
                ChildProcessError
            ):  # adopted processes are reaped elsewhere, and this one with them
                if os.waitpid(self.asked, os.WNOHANG)[0] == 0:
                    return
            with os.fdopen(self._answer, "rb") as answer:
                self._count(answer.read(), now - self.since)
            self.asked = None
        self.since = now
        if self._there:
            self._ask()

    def _count(self, answer: bytes, seconds: float) -> None:
        with contextlib.suppress(ValueError):  # "[N/A]", or an error
            shares = [float(line) / 100 for line in answer.split()]
            if shares:
                self.seconds = (self.seconds or 0.0) + sum(shares) * seconds

    def _ask(self) -> None:
        command = [NVIDIA, "-i", self._given, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        self._answer, writer = os.pipe()
        try:
            self.asked = start(command, "/", self._environment, [writer, writer])
        except LaunchError:
            self._there = False
            os.close(self._answer)
        finally:
            os.close(writer)


# -- Processes that a task leaves behind ---------------------------------------------------------------------
# In a session of their own and without its environment: neither session nor mark finds them. Where the agent is a
# subreaper (prctl(2)), the kernel makes them its children.

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
