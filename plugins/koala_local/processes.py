# SPDX-License-Identifier: Apache-2.0
"""Processes of jobs on Linux: started behind a gate, found again after a restart, and supervised.

A process of another parent cannot be waited for, but a descriptor of it (pidfd_open(2)) can be watched: so the
processes that a killed daemon has left behind are followed like those that it has started itself.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import signal
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

    from koala_adapter.model import LrmJobId
    from koala_local.jobs import JobRecord


# -- Start, identity and signals of processes ----------------------------------------------------------------

GATE = 'read -r go || exit 125; exec </dev/null; cd "$1" || cd /; exec /bin/sh "$2"'
"""The first words of each job's process: it becomes the script when the daemon has written down its id. When the
daemon dies before that, the read fails and the script never runs."""

MARK = "KOALA_LOCAL_MARK"
TASK = "KOALA_LOCAL_TASK"
JOB = "KOALA_LOCAL_JOB"
NODE = "KOALA_LOCAL_NODE"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
LEAST_MEMORY = 64 * 1024 * 1024
"""Bytes of data that each process may have, however little its job asks for: a Python interpreter must start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """A started process that waits for permission to run its script."""

    pid: int
    birth: str
    gate: int

    def open(self) -> None:
        """Let the script run; if the process has died, its end reports that."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.gate, b"go\n")
        os.close(self.gate)


def since_boot() -> float:
    """Return the seconds since this host was booted, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def job_mark(directory: Path, job: JobRecord) -> str:
    """Return a value that marks the processes of one run of a job."""
    return f"{directory}:{job.id}:{job.starts}"


def job_environment(directory: Path, job: JobRecord, *, gpus: bool = False) -> dict[str, str]:
    """Return the whole environment of a job: inherited are the search path, the time zone and the caller's locale.

    LC_ALL is the daemon's own. ``gpus``: the cluster has some, of which each job sees its own alone.
    """
    entry = pwd.getpwuid(os.geteuid())
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in {"PATH", "TZ", "LANG", "LANGUAGE"} or (name.startswith("LC_") and name != "LC_ALL")
    }
    devices = {VISIBLE_GPUS: ",".join(map(str, job.devices))} if gpus else {}
    return {
        **kept,
        **devices,
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": entry.pw_shell or "/bin/sh",
        JOB: str(job.number),
        TASK: str(job.index),
        NODE: job.node,
        MARK: job_mark(directory, job),
    }


def start_gated(job: JobRecord, *, script: Path, environment: Mapping[str, str]) -> Gated:
    """Start the process of a job in a session of its own, behind its gate. Raises OSError."""
    output = _open_output(job)
    gate_read, gate_write = os.pipe()
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", GATE, "koala-local-job", environment["HOME"], str(script)],
            dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, gate_read, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT],
        )
    except OSError:
        os.close(gate_write)
        raise
    finally:
        for descriptor in (gate_read, output):
            os.close(descriptor)
    gated = Gated(pid=pid, birth=process_birth(pid), gate=gate_write)
    _confine(job, pid)
    return gated


def _confine(job: JobRecord, pid: int) -> None:
    """Restrict a process and its children to the processors and memory of its job.

    The limit is one of data (RLIMIT_DATA: heap and private writable mappings), of each process by itself. That of the
    address space (RLIMIT_AS) would end programs that reserve far more than they use: those of Go, Java and CUDA do.
    """
    with contextlib.suppress(ProcessLookupError):
        if job.bound_to:
            os.sched_setaffinity(pid, job.bound_to)
        if job.memory_mib:
            most = max(LEAST_MEMORY, job.memory_mib * 1024 * 1024)
            _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def _open_output(job: JobRecord) -> int:
    """Open a file for the output of the placeholder's script; refuse another user's file, or a link, of that name."""
    if not job.output_directory:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    path = Path(job.output_directory, f"{job.name}.{job.index}.out")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise PermissionError(f"{path} is not a file of ours")
    os.set_blocking(descriptor, True)
    return descriptor


def process_birth(pid: int) -> str:
    """Return boot id and start time of a process, which identify it beside its id (proc_pid_stat(5)).

    Empty when there is no such process, or only its remains (a zombie).
    """
    fields = _stat(pid)
    if fields is None or fields.state == "Z":
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{fields.start}"


def is_alive(pid: int, birth: str) -> bool:
    """Tell whether exactly this process runs."""
    return bool(birth) and process_birth(pid) == birth


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    state: str
    parent: int
    session: int
    start: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command in parentheses may contain anything, so the fields are counted from the last parenthesis.
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]))


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group of a job's script."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def signal_all(jobs: Mapping[int, str], number: int) -> None:
    """Send a signal to every process of these jobs, given by process id and mark of their scripts.

    Those are their sessions, their descendants, and whatever carries their mark. Costs one look at all processes of the
    host, so jobs that end together are given together.
    """
    for pid in processes_of(jobs):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def processes_of(jobs: Mapping[int, str]) -> list[int]:
    """Return the ids of all living processes of these jobs, parents before children where they are known."""
    marks = {f"{MARK}={mark}".encode() for mark in jobs.values()}
    seen = dict(_all_stats())
    found = {pid for pid, fields in seen.items() if pid in jobs or fields.session in jobs}
    found |= {pid for pid in seen if pid not in found and _is_marked(pid, marks)}
    return _with_descendants(found, {pid: fields.parent for pid, fields in seen.items()})


def _all_stats() -> Iterator[tuple[int, _Stat]]:
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        fields = _stat(pid)
        if fields is not None and fields.state != "Z" and pid != os.getpid():
            yield pid, fields


def _is_marked(pid: int, marks: set[bytes]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return not marks.isdisjoint(environment.split(b"\0"))


def _with_descendants(found: set[int], parents: Mapping[int, int]) -> list[int]:
    ordered = sorted(found)
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    for pid in ordered:  # grows while it is walked
        new = [child for child in children.get(pid, []) if child not in found]
        found.update(new)
        ordered.extend(new)
    return ordered


def reap(pid: int) -> int | None:
    """Return the exit status of an ended child (negative for a signal); None when it is not our child."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done == pid else None


# -- Supervision ---------------------------------------------------------------------------------------------
# Each process is started, watched, given its time, ended; events only, nothing is polled.


@dataclass(slots=True, kw_only=True)
class _Watched:
    pid: int
    mark: str
    descriptor: int
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class Supervisor:
    """Follows the processes of jobs and says when one has ended or its walltime is over."""

    def __init__(
        self,
        directory: Path,
        loop: asyncio.AbstractEventLoop,
        *,
        ended: Callable[[LrmJobId, int | None], None],
        overdue: Callable[[LrmJobId], None],
    ) -> None:
        """``ended`` gets the exit status: negative for a signal, None when it cannot be known."""
        self._directory = directory
        self._loop = loop
        self._ended = ended
        self._overdue = overdue
        self._watched: dict[LrmJobId, _Watched] = {}
        self._leftovers: dict[int, str] = {}

    def start(self, job: JobRecord, *, script: Path, gpus: bool) -> Gated:
        """Start a job's process behind its gate. Raises OSError."""
        environment = job_environment(self._directory, job, gpus=gpus)
        return start_gated(job, script=script, environment=environment)

    def follow(self, job: JobRecord) -> bool:
        """Watch a job's process until its end; False when it has ended already and is not our child."""
        if job.pid is None:
            return False

        def on_end() -> None:
            self._on_end(job.id)

        try:
            descriptor = os.pidfd_open(job.pid)
        except ProcessLookupError:
            return False
        self._loop.add_reader(descriptor, on_end)
        mark = job_mark(self._directory, job)
        self._watched[job.id] = _Watched(pid=job.pid, mark=mark, descriptor=descriptor)
        self.set_walltime(job)
        return True

    def set_walltime(self, job: JobRecord) -> None:
        """Set the timer of a running job's walltime, in place of an earlier one."""
        watched = self._watched[job.id]
        self._drop_timers(watched)
        if job.started_at is not None:
            begun = job.started_since_boot
            # What an earlier version has started has only the time of day.
            ran = time.time() - job.started_at if begun is None else since_boot() - begun
            left = job.walltime - ran
            watched.timers.append(self._loop.call_later(max(0.0, left), self._overdue, job.id))

    def end(self, job: JobRecord, *, kill_wait: float) -> None:
        """Begin to end a job: SIGTERM now, SIGKILL to all its processes after ``kill_wait`` seconds."""
        watched = self._watched[job.id]
        self._drop_timers(watched)
        signal_group(watched.pid, signal.SIGTERM)
        # A stopped process gets no SIGTERM before it goes on.
        signal_group(watched.pid, signal.SIGCONT)
        watched.timers.append(self._loop.call_later(kill_wait, self._kill, job.id))

    def signal_script(self, job: JobRecord, number: int) -> None:
        """Send a signal to the process group of a job's script."""
        signal_group(self._watched[job.id].pid, number)

    def signal_all(self, jobs: list[JobRecord], number: int) -> None:
        """Send a signal to all processes of these jobs."""
        watched = [self._watched[job.id] for job in jobs]
        signal_all({item.pid: item.mark for item in watched}, number)

    def close(self) -> None:
        """Stop watching; the processes run on."""
        for watched in self._watched.values():
            self._drop_timers(watched)
            self._loop.remove_reader(watched.descriptor)
            os.close(watched.descriptor)
        self._watched = {}

    def _kill(self, id_: LrmJobId) -> None:
        watched = self._watched[id_]
        signal_all({watched.pid: watched.mark}, signal.SIGKILL)

    def _on_end(self, id_: LrmJobId) -> None:
        watched = self._watched.pop(id_)
        self._drop_timers(watched)
        self._loop.remove_reader(watched.descriptor)
        os.close(watched.descriptor)
        # One look at the host's processes serves all jobs that end in the same turn of the loop.
        if not self._leftovers:
            self._loop.call_soon(self._kill_leftovers)
        self._leftovers[watched.pid] = watched.mark
        self._ended(id_, reap(watched.pid))

    def _kill_leftovers(self) -> None:
        leftovers, self._leftovers = self._leftovers, {}
        signal_all(leftovers, signal.SIGKILL)

    @staticmethod
    def _drop_timers(watched: _Watched) -> None:
        for timer in watched.timers:
            timer.cancel()
        watched.timers.clear()
