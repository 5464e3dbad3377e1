# SPDX-License-Identifier: Apache-2.0
"""Processes of a task: finding and ending them, starting one, and reading what it writes.

In order: processes of the node by /proc, starting a process with its files and environment, and the streams of its
output, kept until the control center has acknowledged them.
"""

import binascii
import contextlib
import errno
import fcntl
import os
import selectors
import signal
import socket
import struct
import termios

from koala_adapter.vjm.agent.node import random_name, raw

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple


# -- Finding and ending processes ----------------------------------------------------------------------------

PIECE = 65536  # bytes read at once
NO_SESSION = -1  # not 0: so those are shown whose session is outside of a container


def oom_kills(membership: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Return the number of out-of-memory kills in our cgroup (v1 or v2) so far."""
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


def signal_all(session: int, mark: bytes, *numbers: int, prepared: bool = False) -> int:
    """Send signals to processes of a task, or only to those with handlers; return their number.

    They are those of its session, and those that have its mark in their environment: an MPI starter gives every rank a
    session of its own, and a daemon leaves the one it came from.
    """
    found = members(session, mark)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for number in numbers:
                if not prepared or handles(pid, number):
                    os.kill(pid, number)
    return len(found)


def members(session: int, mark: bytes) -> "List[int]":
    """Return the living processes of a task."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if belongs(pid, session, mark)]


def descendants(ancestor: int) -> "List[int]":
    """Return the processes that a process has started, those that these have started, and so on."""
    parents = {pid: parent_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found = [ancestor]
    for one in found:
        found.extend(pid for pid, parent in parents.items() if parent == one)
    return found[1:]


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 for one that is gone."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def handles(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal (proc(5), SigCgt of status)."""
    for line in read_bytes(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def belongs(pid: int, session: int, mark: bytes) -> bool:
    """Return whether a living process belongs to a task; quick, as it is called for all processes of a node."""
    try:
        inside = os.getsid(pid) == session  # far less work for the kernel than to write /proc/PID/stat
    except OSError:
        return False
    return session_of(pid) == session if inside else mark in environment_of(pid)


def environment_of(pid: int) -> bytes:
    """Return the initial environment of a process; empty when it is gone or not readable."""
    return read_bytes(f"/proc/{pid}/environ")


def session_of(pid: int) -> "Optional[int]":
    """Return the session of a living process; None for one that is gone or a zombie."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[3])


def read_bytes(path: str) -> bytes:
    """Read a kernel file; empty when it is gone or not readable."""
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


# -- Starting a process for a task ---------------------------------------------------------------------------

MISSING = (errno.ENOENT, errno.ENOTDIR)

# What batch systems and MPI starters leave in the environment of a job: a task that sees it takes itself for a step of
# that job (srun, mpiexec and MPI libraries do), or for a batch job.
FOREIGN_PREFIXES = (
    "KOALA_", "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SGE_", "PBS_", "PMI_", "PMI2_", "PMIX_", "OMPI_",
    "PRTE_", "HYDRA_", "HYDI_", "MPIR_",
)  # fmt: skip
RESOURCES = ("SGE_HGR_",)  # which GPUs and the like Grid Engine has given, where CUDA_VISIBLE_DEVICES does not say so
FOREIGN_NAMES = frozenset((
    "ARC", "BATCHJOB_ID", "BATCH_JOBID", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "LSB_JOBID", "NHOSTS",
    "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQNAME", "REQUEST", "RESTARTED", "TASK_ID",
))  # fmt: skip


IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python; not by what a task runs


class LaunchError(Exception):
    """A task cannot be started; ``code``: exit code as of a shell (127: not found, 126: cannot be run)."""

    def __init__(self, detail: str, code: int = 126) -> None:
        Exception.__init__(self, detail)
        self.code = code


def node_environment() -> "Dict[str, str]":
    """Return the environment from the batch system, without LC_CTYPE that Python sets itself (PEP 538)."""
    environment = dict(os.environ)
    environment.pop("LC_CTYPE", None)
    name = b"LC_CTYPE="
    given = [entry for entry in environment_of(os.getpid()).split(b"\0") if entry.startswith(name)]
    environment.update(("LC_CTYPE", os.fsdecode(entry[len(name) :])) for entry in given)
    return environment


def task_environment(base: "Dict[str, str]", added: "List[List[str]]") -> "Dict[str, str]":
    """Return the node's environment without the traces of its batch system, with ``added`` on top."""
    environment = {
        name: value
        for name, value in base.items()
        if name.startswith(RESOURCES) or (name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES))
    }
    environment.update((name, value) for name, value in added)
    return environment


def file_identity(status: os.stat_result) -> "Tuple[int, int, int]":
    """Return a value that changes when a file changes."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def write_file(directory: str, target: str, mode: int, content: bytes) -> "Tuple[int, int, int]":
    """Write an input file below ``directory``, and return its identity."""
    with placed(directory, target) as (place, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=place), "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode & 0o755)
            return file_identity(os.fstat(file.fileno()))


def link_file(directory: str, target: str, path: str) -> "Tuple[int, int, int]":
    """Make an input file below ``directory`` a link to a file or directory of the node, and return its identity."""
    if not os.path.exists(raw(path)):
        raise LaunchError(f"the input file {target!r}: there is no {path} on {socket.gethostname()}")
    with placed(directory, target) as (place, name):
        os.symlink(raw(path), name, dir_fd=place)
        return file_identity(os.stat(name, dir_fd=place, follow_symlinks=False))


@contextlib.contextmanager
def placed(directory: str, target: str) -> "Iterator[Tuple[int, str]]":
    """Yield a directory and name for creating an input file, which is then moved below ``directory``.

    No link is followed on the way. Other ranks may make the same file just now.
    """
    parts = target.split("/")
    if "\0" in target or any(part in ("", ".", "..") for part in parts):
        raise LaunchError(f"the input file {target!r} is not a path below the working directory")
    place = os.open(raw(directory), os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(raw(part), 0o755, dir_fd=place)
            inner = os.open(raw(part), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        temporary = ".koala-" + random_name()
        yield place, temporary
        os.rename(raw(temporary), raw(parts[-1]), src_dir_fd=place, dst_dir_fd=place)
        with contextlib.suppress(FileNotFoundError):  # two links to one file are not renamed
            os.unlink(temporary, dir_fd=place)
    except OSError as error:
        raise LaunchError(f"cannot write the input file {target!r} in {directory}: {error.strerror}") from error
    finally:
        os.close(place)


def keep_descriptors() -> None:
    """Mark descriptors from the batch system so that tasks do not inherit them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:  # noqa: PLR2004 - stdin, stdout and stderr
            with contextlib.suppress(OSError):  # that of the list itself is gone
                os.set_inheritable(int(name), False)  # noqa: FBT003 - the library's own way


def start(argv: "List[str]", working_directory: str, environment: "Dict[str, str]", writers: "List[int]") -> int:
    """Start a process in a new session; return its id, to be reaped by the caller."""
    begin = spawn if hasattr(os, "posix_spawn") else popen
    try:
        return begin(
            [raw(argument) for argument in argv],
            raw(working_directory),
            {raw(name): raw(value) for name, value in environment.items()},
            writers,
        )
    except FileNotFoundError:
        there = os.path.exists(raw(os.path.join(working_directory, argv[0]))) if "/" in argv[0] else False
        what = "the interpreter of {} was not found" if there else "{}: command not found"
        raise LaunchError(what.format(argv[0]) + f" on {socket.gethostname()}", 126 if there else 127) from None
    except OSError as error:
        raise LaunchError(f"{argv[0]} cannot be run on {socket.gethostname()}: {error.strerror}") from error


def spawn(argv: "List[bytes]", directory: bytes, environment: "Dict[bytes, bytes]", writers: "List[int]") -> int:
    """Start a process by posix_spawn (Python 3.8), which avoids the slow import of ``subprocess``."""
    actions: "List[Any]" = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, writer, number) for number, writer in enumerate(writers, 1)]
    programs = [argv[0]]
    if b"/" not in argv[0]:
        places = os.get_exec_path(environment)  # type: ignore[arg-type] # it takes bytes, too
        programs = [os.path.join(os.fsencode(place), argv[0]) for place in places]
    fault = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    back = current_directory()
    try:
        os.chdir(directory)  # a new process begins where we are
        for program in programs:
            try:
                os.stat(program)  # to find out by a start takes longer
                return os.posix_spawn(program, argv, environment, file_actions=actions, setsid=True, setsigdef=IGNORED)
            except NotImplementedError:  # an old C library
                return popen(argv, directory, environment, writers)
            except OSError as error:  # as a shell: the next may be one that can be run
                if fault.errno in MISSING:
                    fault = error
        raise fault
    finally:
        os.fchdir(back)
        os.close(back)


def current_directory() -> int:
    """Return a descriptor of the current directory, or of the root directory if it is inaccessible."""
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return os.open("/", os.O_RDONLY | os.O_DIRECTORY)


def popen(argv: "List[bytes]", directory: bytes, environment: "Dict[bytes, bytes]", writers: "List[int]") -> int:
    """Start a process by ``subprocess`` where posix_spawn does not suffice."""
    import subprocess

    process = subprocess.Popen(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=writers[0],
        stderr=writers[1],
        start_new_session=True,
    )
    process.returncode = 0  # it is over for the library, which must not reap it
    return process.pid


# -- Output of a task: read, and kept until it is acknowledged -----------------------------------------------

KEPT = 1024 * 1024  # bytes of one output stream kept until acknowledged; beyond that its pipe is not read
CHUNK = 32 * 1024  # bytes of output in one message
TAIL = 1000  # bytes of the end of an output stream that are kept even when they are acknowledged


def base64(data: bytes) -> str:
    """Encode bytes for the channel."""
    return binascii.b2a_base64(data, newline=False).decode()


class Output:
    """Unacknowledged output of one stream of a task."""

    def __init__(self) -> None:
        self._base = 0
        self._kept = bytearray()
        self._sent = 0
        self.tail = b""

    @property
    def room(self) -> int:
        """Bytes that may be read before something is acknowledged."""
        return max(0, KEPT - len(self._kept))

    @property
    def unsent(self) -> bool:
        """Whether output waits to be sent."""
        return self._sent < self._base + len(self._kept)

    @property
    def safe(self) -> bool:
        """Whether all output was acknowledged."""
        return not self._kept

    def add(self, data: bytes) -> None:
        """Queue a piece of a task's output."""
        self._kept += data
        self.tail = data[-TAIL:] if len(data) >= TAIL else (self.tail + data)[-TAIL:]

    def next(self) -> "Tuple[int, bytes]":
        """Return offset and bytes of the next piece to send."""
        offset = self._sent
        data = bytes(self._kept[offset - self._base : offset - self._base + CHUNK])
        self._sent += len(data)
        return offset, data

    def acknowledge(self, offset: int) -> None:
        """Drop output before ``offset``."""
        count = min(max(0, offset - self._base), len(self._kept))
        del self._kept[:count]
        self._base += count
        self._sent = max(self._sent, self._base)

    def rewind(self) -> None:
        """Send unacknowledged output again, on a new connection."""
        self._sent = self._base


class Source:
    """A pipe or FIFO whose bytes go to an output stream, read only while that has room."""

    def __init__(self, selector: selectors.BaseSelector, descriptor: int, output: Output, *, fifo: bool) -> None:
        self._selector = selector
        self._descriptor = descriptor
        self._output = output
        self._watched = False
        self._left: "Optional[int]" = None
        self.fifo = fifo
        self.closed = False
        os.set_blocking(descriptor, False)

    def watch(self) -> None:
        """Read from the descriptor while there is room."""
        wanted = not self.closed and self._output.room > 0
        if wanted and not self._watched:
            self._selector.register(self._descriptor, selectors.EVENT_READ, self._read)
        elif self._watched and not wanted:
            self._selector.unregister(self._descriptor)
        self._watched = wanted

    def finish(self) -> None:
        """Read the rest of a dead task's output, without later output of other processes."""
        if self.closed:
            return
        self._left = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
        if not self._left:
            self.close()

    def close(self) -> None:
        """Stop listening and close the descriptor."""
        if not self.closed:
            self.closed = True
            self.watch()
            os.close(self._descriptor)

    def _read(self, _mask: int) -> None:
        size = min(65536, self._output.room if self._left is None else min(self._output.room, self._left))
        if self.closed or not size:
            return
        try:
            data = os.read(self._descriptor, size)
        except BlockingIOError:
            return
        self._output.add(data)
        if self._left is not None:
            self._left -= len(data)
        if not data or self._left == 0:
            self.close()
        else:
            self.watch()
