# SPDX-License-Identifier: Apache-2.0
"""Daemons and commands of a test system, its directory, its ports, and compiled MPI programs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# -- The directory of a test system, owned by the process that made it, so that what a killed test left can be
# removed. pytest's own temporary directories will not do: they are closed to other users, whose jobs must enter
# these.

PREFIX = "koala-system-"

SETTLING_SECONDS = 60.0
"""Age below which a directory without an owner may be one whose maker has not yet locked it."""


def _lock_directory(path: Path) -> int | None:
    try:
        return _locked(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        return None


def _locked(descriptor: int) -> int | None:
    """Return a descriptor locked, or close it and return None where another process has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _clear(path: Path) -> None:
    """End every process that uses the directory, then delete it."""
    kill_processes(lambda: find_processes(lambda process: process.uses(path)))
    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> None:
    """End and delete the systems whose owners have ended without doing so."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime >= SETTLING_SECONDS:
                descriptor = _lock_directory(path)
                if descriptor is not None:
                    SystemDirectory(path, descriptor).remove()


class SystemDirectory:
    """A directory that all users may enter; it and its processes go with `remove`, or when a later test finds them."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over a directory that is locked already; use `create` instead."""
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, name: str) -> Self:
        """Make a new directory, after removing systems that nobody owns any more."""
        remove_abandoned()
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
        path.chmod(0o755)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return cls(path, descriptor)

    def remove(self) -> None:
        """End all processes of the system and delete the directory; harmless when done twice."""
        if self._descriptor >= 0:
            _clear(self.path)
            os.close(self._descriptor)
            self._descriptor = -1


# -- TCP ports for test daemons, so that test processes running side by side never choose the same one. Asking the
# kernel for a free port and closing it leaves a gap in which somebody else may get it, and a daemon that is
# stopped and started again must find its port still free. So a port is *owned* through a lock file from the
# moment it is chosen until it is given back, and ports are taken below the range from which the kernel serves
# outgoing connections.

FIRST_PORT = 15000
"""Lowest port handed out."""

LAST_PORT = 31999
"""Highest port handed out: Linux takes ports for outgoing connections from 32768 (ip_local_port_range)."""


class NoFreePortsError(Exception):
    """No run of consecutive free ports of the wanted length was found."""


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Daemons here listen on every address, so the wildcard address is what must be free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _lock_port(directory: Path, port: int) -> int | None:
    return _locked(os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


class Ports:
    """Consecutive TCP ports owned by this process until `release` (or its end)."""

    def __init__(self, first: int, descriptors: list[int]) -> None:
        """Take over ports that are locked already; use `claim` instead."""
        self.first = first
        self._descriptors = descriptors

    @classmethod
    def claim(cls, count: int) -> Self:
        """Own `count` consecutive free ports; raises NoFreePortsError when there is no such run."""
        directory = Path(tempfile.gettempdir()) / f"koala-test-ports-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        for _ in range(200):
            first = random.SystemRandom().randrange(FIRST_PORT, LAST_PORT - count)
            ports = cls(first, [])
            if all(ports._add(directory, port) for port in range(first, first + count)):
                return ports
            ports.release()
        message = f"found no {count} consecutive free TCP ports between {FIRST_PORT} and {LAST_PORT}"
        raise NoFreePortsError(message)

    def _add(self, directory: Path, port: int) -> bool:
        descriptor = _lock_port(directory, port)
        if descriptor is None:
            return False
        self._descriptors.append(descriptor)
        return _is_free(port)

    def __getitem__(self, index: int) -> int:
        """Port number `index` of the run, counted from 0."""
        if not 0 <= index < len(self._descriptors):
            raise IndexError(index)
        return self.first + index

    def release(self) -> None:
        """Give the ports back; harmless when done twice."""
        while self._descriptors:
            os.close(self._descriptors.pop())


# -- Daemons and commands of a test system: started, awaited and ended by process id, never by name. Batch systems
# start processes that outlive the daemon which started them (that is their purpose), so ending a test system
# needs more than ending our own children: whatever belongs to it is recognised by its environment.

OTHER_SLURM = Path(os.environ["KOALA_TEST_SLURM"]) if os.environ.get("KOALA_TEST_SLURM") else None
"""Where another Slurm than the machine's own is installed, with ``bin`` and ``sbin``; the tests then run on that one.

Read when the tests are collected: each of them runs without the variables of whoever started it.
"""

SLURM_PATH = "" if OTHER_SLURM is None else f"{OTHER_SLURM / 'sbin'}:{OTHER_SLURM / 'bin'}"
"""Search path of the programs of that other Slurm."""

USERS_PATH = ":".join(filter(None, (SLURM_PATH, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")))
"""Search path of a user of this machine; Debian keeps the daemons in /usr/sbin."""

GRID_ENGINE_PROGRAMS = Path("/usr/lib/gridengine")
"""Where Debian has Grid Engine's programs. Those of the same names in /usr/bin are a script that finds out, with a C
compiler, on what machine it is, and costs ten times as much as the program behind it."""

SYSTEM_PATH = f"{GRID_ENGINE_PROGRAMS}:{USERS_PATH}"
"""Search path of every command started here."""

PATIENCE = 90.0
"""Seconds for whatever needs a few: a liveness bound, generous because other tests may run on the same two cores."""

POLL_SECONDS = 0.05
"""Shortest pause between two looks at a state that nobody announces."""
PAUSE_FACTOR = 4
"""How many times as long as a look the pause after it is, where that is more."""
LONGEST_PAUSE = 0.5


class SystemFailedError(Exception):
    """A test system did not come up, or did not reach an expected state; the text shows what its daemons said."""


class CommandError(Exception):
    """A command of a batch system ended with an exit code other than 0."""

    def __init__(self, argv: Sequence[str], returncode: int, stdout: str, stderr: str) -> None:
        """Keep all that a test may want to look at."""
        super().__init__(f"{' '.join(argv)}: exit code {returncode}\n{stdout}{stderr}")
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


def base_environment(user: str | None = None) -> dict[str, str]:
    """Return the whole environment of a command of a test system, before the system adds its own variables."""
    account = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
    return {
        "PATH": SYSTEM_PATH,
        "LC_ALL": "C.UTF-8",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": "/bin/sh",
    }


def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    user: str | None = None,
    cwd: Path | None = None,
    stdin: str = "",
    check: bool = True,
    timeout: float = 120.0,
) -> str:
    """Run a command to its end and return its standard output.

    `user` runs it as that user (needs root), with that user's primary group only. Raises CommandError when `check` and
    the exit code is not 0, and subprocess.TimeoutExpired after `timeout` seconds.
    """
    account = pwd.getpwnam(user) if user else None
    completed = subprocess.run(
        list(argv),
        env=dict(environment),
        cwd=cwd,
        input=stdin.encode(),
        capture_output=True,
        timeout=timeout,
        check=False,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    stdout, stderr = (text.decode(errors="replace") for text in (completed.stdout, completed.stderr))
    if check and completed.returncode != 0:
        raise CommandError(argv, completed.returncode, stdout, stderr)
    return stdout


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str, details: Callable[[], str] = str) -> None:
    """Return as soon as `condition` holds; after `seconds` raise SystemFailedError with `what` and `details`.

    Many conditions ask a batch system by a command. Looking without a pause would take the processor from those who are
    to make the condition true, so the pauses are longer than the looks.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            message = f"{what}: not within {seconds:g} s\n{details()}"
            raise SystemFailedError(message)
        time.sleep(min(max(POLL_SECONDS, PAUSE_FACTOR * (now - began)), LONGEST_PAUSE))


def tail(path: Path, lines: int = 25) -> str:
    """Return the last lines of a log file under a heading with its name, for the text of an error."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        text = f"({error.strerror})"
    return f"--- {path}\n" + "\n".join(text.splitlines()[-lines:])


class Daemon:
    """A daemon that runs in the foreground as our child, with its output in a file."""

    def __init__(self, argv: Sequence[str], *, environment: Mapping[str, str], log: Path, cwd: Path) -> None:
        """Start it, in a session of its own so that a terminal's Ctrl-C leaves the ending to us.

        It works in `cwd`, a directory of its system, by which it and what it starts are recognised later.
        """
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(argv),
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id, of the daemon itself: it does not put itself into the background."""
        return self._process.pid

    def is_running(self) -> bool:
        """Tell whether the daemon has not ended."""
        return self._process.poll() is None

    def end(self, *, how: signal.Signals = signal.SIGTERM, seconds: float = 60.0) -> None:
        """Send the signal and wait for the end; SIGKILL follows when it takes longer than `seconds`."""
        if self.is_running():
            self._process.send_signal(how)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenProcess:
    """A process of this machine as /proc shows it."""

    pid: int
    parent: int
    command: str
    cwd: Path
    environment: Mapping[str, str]

    def uses(self, directory: Path) -> bool:
        """Tell whether the process works in a directory, or was told of a batch system that lives in it.

        Both are needed: slurmstepd overwrites its environment with its title, and jobs work where they were told to.
        """
        told = [Path(self.environment[name]) for name in ("SLURM_CONF", "SGE_ROOT") if name in self.environment]
        return any(path.is_relative_to(directory) for path in (self.cwd, *told))

    @classmethod
    def read(cls, pid: int) -> Self | None:
        """Look at one process; None when it has ended (a zombie counts as ended) or belongs to somebody else."""
        directory = Path(f"/proc/{pid}")
        try:
            raw = (directory / "environ").read_bytes()
            status = (directory / "stat").read_text(errors="replace")
            cwd = (directory / "cwd").readlink()
        except OSError:
            return None
        # The command is in parentheses and may itself contain anything, so the fields are counted from the last one.
        command, _, fields = status.partition("(")[2].rpartition(")")
        state, parent = fields.split()[:2]
        if state == "Z":
            return None
        pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
        return cls(
            pid=pid,
            parent=int(parent),
            command=command,
            cwd=cwd,
            environment={name: value for name, separator, value in pairs if separator},
        )


def _all_processes() -> Iterator[SeenProcess]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            process = SeenProcess.read(int(entry.name))
            if process is not None:
                yield process


def find_processes(belongs: Callable[[SeenProcess], bool]) -> list[int]:
    """Return the ids of all processes that `belongs` accepts, and of all their descendants, but never our own."""
    processes = {process.pid: process for process in _all_processes()}
    found = {pid for pid, process in processes.items() if belongs(process)}
    grown = True
    while grown:
        more = {pid for pid, process in processes.items() if process.parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found)


def kill_processes(find: Callable[[], list[int]], *, seconds: float = 60.0) -> set[int]:
    """SIGKILL what `find` returns, again and again until it returns nothing: the killed may have had time to fork.

    All are stopped before the first is killed, so that none can report the end of another. Returns their ids.
    """
    killed: set[int] = set()

    def all_gone() -> bool:
        pids = find()
        killed.update(pids)
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in sorted(pids, reverse=True):  # who is left behind stopped by its parent would hear SIGHUP
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
        return not pids

    wait_until(all_gone, seconds=seconds, what="end of all processes", details=lambda: f"left: {find()}")
    return killed


def wait_reaped(pids: set[int], *, seconds: float = 60.0) -> None:
    """Return when killed processes have left no trace, as after a power cut.

    An init may take seconds to collect orphans; until then who sends them signal 0 takes them for alive.
    """
    wait_until(lambda: not any(map(_is_zombie, pids)), seconds=seconds, what="killed processes collected by init")


def _is_zombie(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "Z"


# -- The MPI programs of the tests, compiled with this machine's MPICH where jobs of all users can run them.

PROGRAMS = Path(__file__).parents[1] / "programs"


def compile_program(name: str, directory: Path) -> Path:
    """Compile programs/NAME.c into the directory and return the path of the program.

    Raises CommandError with the compiler's words when it does not compile.
    """
    program = directory / name
    argv = ["mpicc", "-O2", "-Wall", "-Werror", "-fopenmp", "-o", str(program), str(PROGRAMS / f"{name}.c")]
    run_command(argv, environment=base_environment())
    return program
