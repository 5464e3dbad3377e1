# SPDX-License-Identifier: Apache-2.0
"""The program inside a placeholder: holds the processor, and runs on it what the control center asks for.

It travels inside the job script and runs with whatever python3 (3.6 or newer) a node has, so it is one file and uses
the standard library alone. It dials out by TLS, compares the server's certificate with the pinned fingerprint before
it says anything, proves itself with the token of its batch, and from then on holds a lease: without contact for that
time it ends itself and everything it started. One selectors loop, no threads, nothing is waited for by sleeping.

The messages are those of koala_adapter/vjm/channel.py. Exit status: 0 released, 1 nothing to work with, 3 refused by
the control center, 4 lease over, 5 ended by the LRM or by its walltime.
"""

import binascii
import collections
import contextlib
import errno
import fcntl
import hashlib
import heapq
import json
import os
import re
import selectors
import signal
import socket
import ssl
import stat
import struct
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

VERSION = 1
KEPT = 1024 * 1024  # bytes of one output stream kept until acknowledged; beyond that its pipe is not read
CHUNK = 32 * 1024  # bytes of output in one message
QUEUED = 128 * 1024  # bytes waiting for the socket, beyond which no more output is queued
LINE = 32 * 1024 * 1024  # longest line accepted from the control center
REPORTS = 256  # ended tasks told again in each Hello
CONNECT_TIME = 20.0  # seconds for TCP, TLS and the answer to Hello
LONGEST_PAUSE = 6.0  # seconds between two tries to connect, give or take half: less than the center's patience
LEAVING_PAUSE = 0.5  # likewise, once the agent must go: it has GRACE and FLUSH for its last words
STEADY = 30.0  # seconds after which a connection counts as good, and the pauses start small again
SETTLE = 0.5  # seconds in which the cause of a task's sudden death may show (our own SIGTERM, an oom kill)
DRAIN = 2.0  # seconds for what a task left behind to close its output
GRACE = 5.0  # seconds between SIGTERM and SIGKILL when nobody said how many
FLUSH = 10.0  # seconds for the last output after the tasks are gone
FAREWELL = 2.0  # seconds for the control center to see the end of the connection
NEAR = 30.0  # a SIGTERM so many seconds before the end of the walltime is taken for that end

BOOTTIME = 7  # clock_gettime(2): seconds since the node was booted, suspension included; named in Python from 3.7 on
FILES = 10000  # most files of a task that are sent
LARGEST = 2**50  # most bytes of one of them, however few a sparse file occupies
SEEN = 100000  # most entries of its directory that are looked at for them
LONGEST_PATH = 3500  # bytes of a path below it; what is deeper is not looked at
NAMED = 20  # most files that are named among those which do not arrive
LONGEST_NAME = 200  # characters of such a name
SLICE = 0.05  # seconds
PROMPT = 2.0  # seconds before its time limit, after which the good end of a task does not wait for its files

OWNER = "owner"  # the file in an agent's directory that says on which machine the directory's lock is to be asked

NO_SESSION = -1  # not 0: so those are shown whose session is outside of a container

EXIT_RELEASED, EXIT_UNUSABLE, EXIT_REFUSED, EXIT_LEASE, EXIT_ENDED = 0, 1, 3, 4, 5

# What batch systems and MPI starters leave in the environment of a job: a task that sees it takes itself for a step of
# that job (srun, mpiexec and MPI libraries do), or for a batch job.
FOREIGN_PREFIXES = (
    "KOALA_", "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SGE_", "PBS_", "PMI_", "PMI2_", "PMIX_", "OMPI_",
    "PRTE_", "HYDRA_", "HYDI_", "MPIR_",
)  # fmt: skip
FOREIGN_NAMES = frozenset((
    "ARC", "BATCHJOB_ID", "BATCH_JOBID", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "LSB_JOBID", "NHOSTS",
    "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQNAME", "REQUEST", "RESTARTED", "TASK_ID",
))  # fmt: skip


class FatalError(Exception):
    """The agent has nothing to work with; the text goes to the placeholder's stderr."""


class LaunchError(Exception):
    """A task cannot be started; ``code`` is what a shell would end with (127: not found, 126: cannot be run)."""

    def __init__(self, detail: str, code: int = 126) -> None:
        Exception.__init__(self, detail)
        self.code = code


def clock() -> float:
    """Return seconds that nobody sets and that pass while the node sleeps, too: those since it was booted."""
    return time.clock_gettime(BOOTTIME)


def say(text: str) -> None:
    """Write a line for the administrator to the placeholder's stderr; never fails, never contains a secret."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"koala agent on {socket.gethostname()}: {text}\n")
        sys.stderr.flush()


def random_name() -> str:
    """Return 128 random bits in hexadecimal."""
    return binascii.hexlify(os.urandom(16)).decode()


def word(text: str) -> str:
    """Return ``text`` without what the channel does not take in a name."""
    return "".join(character for character in text if "!" <= character <= "~")[:255]


def raw(text: str) -> bytes:
    """Return the bytes of a name or argument: UTF-8 whatever the node's locale (Python 3.6 has ASCII under LANG=C)."""
    return text.encode("utf-8", "surrogateescape")


class Settings:
    """What the job script says to the agent, and what the agent finds on its node."""

    def __init__(self, given: "Dict[str, Any]", environment: "Dict[str, str]") -> None:
        self.host: str = given["host"]
        self.port: int = given["port"]
        self.fingerprint: str = given["fingerprint"].lower()
        self.batch: str = given["batch"]
        self.lease: float = given["lease"]
        self.end_margin: float = given["end_margin"]
        self.token: str = given["token"] or read_token(given["token_file"])
        index = environment.get(given["array_index_variable"] or "", "")
        self.index = int(index) if index.isdigit() else 1
        self.lrm_id = word(environment.get(given["job_id_variable"] or "", ""))
        self.ends_at = self._end(given["walltime"], environment)

    @staticmethod
    def _end(walltime: "Optional[float]", environment: "Dict[str, str]") -> "Optional[float]":
        # The LRM may have started its clock before us (prolog), or give less than was asked: the earlier end counts.
        ends = [walltime] if walltime else []
        start, end = (environment.get(f"SLURM_JOB_{name}_TIME", "") for name in ("START", "END"))
        if end.isdigit():
            left = int(end) - time.time()
            if start.isdigit() and not 0 <= left <= int(end) - int(start):
                # The clock of this node is not that of Slurm's controller: what was granted begins now.
                left = int(end) - int(start)
            ends.append(max(0.0, left))
        return clock() + min(ends) if ends else None


def read_token(path: str) -> str:
    """Return the token in a file that nobody else can have read or written."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise FatalError(f"cannot read the token file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise FatalError(f"the token file {path} must be a file of mode 0600 that belongs to user {os.geteuid()}")
        return file.read(1024).decode("ascii", "replace").strip()


def task_environment(base: "Dict[str, str]", added: "List[List[str]]") -> "Dict[str, str]":
    """Return the node's environment without the traces of its batch system, with ``added`` on top."""
    environment = {
        name: value
        for name, value in base.items()
        if name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES)
    }
    environment.update((name, value) for name, value in added)
    return environment


def write_file(directory: str, target: str, mode: int, content: bytes) -> None:
    """Write an input file below ``directory``, following no link; other ranks may write the same one just now."""
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
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=place), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode & 0o755)
        os.rename(raw(temporary), raw(parts[-1]), src_dir_fd=place, dst_dir_fd=place)
    except OSError as error:
        raise LaunchError(f"cannot write the input file {target!r} in {directory}: {error.strerror}") from error
    finally:
        os.close(place)


def remove_tree(directory: str) -> None:
    """Remove a private directory as far as possible, following no link, however deep and however locked it is."""
    for _ in Removal(directory).steps():
        pass


class Removal:
    """Removes a tree in short steps. One directory is open at a time, so the depth does not matter."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._place = -1
        self._way: "List[Tuple[str, Tuple[int, int], List[str]]]" = []  # name, identity, subdirectories to be emptied

    def steps(self) -> "Iterator[None]":
        """Do a step each time; what cannot be removed stays."""
        try:
            self._enter(open_directory(self._directory), "")
            while self._way:
                if self._way[-1][2]:
                    name = self._way[-1][2].pop()
                    with contextlib.suppress(OSError):
                        self._enter(open_directory(name, self._place), name)
                else:
                    self._leave()
                yield
        except OSError:
            pass
        finally:
            if self._place >= 0:
                os.close(self._place)

    def _enter(self, place: int, name: str) -> None:
        """Go into a directory and remove the files in it."""
        if self._place >= 0:
            os.close(self._place)
        self._place = place
        subdirectories: "List[str]" = []
        self._way.append((name, identity(place), subdirectories))
        for entry in os.listdir(place):
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.stat(entry, dir_fd=place, follow_symlinks=False).st_mode):
                    subdirectories.append(entry)
                elif entry != OWNER or len(self._way) > 1:
                    os.unlink(entry, dir_fd=place)

    def _leave(self) -> None:
        """Go to the directory above and remove the one that is empty now."""
        name, _, _ = self._way.pop()
        if not self._way:
            # Last of all: who finds this file may go on where we could not.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(OWNER, dir_fd=self._place)
            os.rmdir(raw(self._directory))
            return
        outer = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._place)
        os.close(self._place)
        self._place = outer
        if identity(outer) != self._way[-1][1]:  # somebody moved it meanwhile
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        with contextlib.suppress(OSError):  # something in it stays, such as a mount point
            os.rmdir(name, dir_fd=outer)


def identity(descriptor: int) -> "Tuple[int, int]":
    """Return what tells a directory from all others."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def open_directory(name: str, place: "Optional[int]" = None) -> int:
    """Open a directory of ours that is no link, and make it readable and writable for us."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW
    found = os.open(name, os.O_PATH | flags, dir_fd=place)
    try:
        if os.fstat(found).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        return os.open(".", os.O_RDONLY | flags, dir_fd=found)
    finally:
        os.close(found)


def machine() -> bytes:
    """Return what tells this machine, since its last start, from all others with which it may share a directory."""
    return read_bytes("/proc/sys/kernel/random/boot_id").strip() + b" " + raw(socket.gethostname()) + b"\n"


def claim_directory(directory: str) -> "Optional[int]":
    """Lock a new directory of ours for as long as somebody has the descriptor; None where that cannot be."""
    descriptor = open_directory(directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(OWNER, flags, 0o600, dir_fd=descriptor), "wb") as file:
            file.write(machine())
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def remove_stale(place: str) -> None:
    """Remove the directories of agents of ours that were killed together with their guards."""
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            if re.match("koala-[0-9a-f]{32}$", name):
                with contextlib.suppress(OSError):
                    remove_if_stale(os.path.join(place, name))


def remove_if_stale(directory: str) -> None:
    """Remove an agent's directory if it is ours and was made on this machine by somebody who is dead, as its lock says.

    What still runs of its tasks is ended first: nobody else watches it any more.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(OWNER, flags, dir_fd=descriptor), "rb") as file:
            if file.read(1024) != machine():
                return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_all(NO_SESSION, raw(f"KOALA_STDOUT={directory}/"))
        remove_tree(directory)
    finally:
        os.close(descriptor)


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


def signal_all(session: int, mark: bytes, number: int) -> int:
    """Send a signal to all processes of a task and return how many there are.

    They are those of its session, and those that have its mark in their environment: an MPI starter gives every rank a
    session of its own, and a daemon leaves the one it came from.
    """
    count = 0
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if session_of(pid) == session or mark in read_bytes(f"/proc/{pid}/environ"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                count += 1
    return count


def session_of(pid: int) -> "Optional[int]":
    """Return the session of a living process; None when it is gone or a zombie (proc(5), stat)."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[3])


def read_bytes(path: str) -> bytes:
    """Return what a file of the kernel says; nothing when it is gone, or not for us."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def own_output(batch: str) -> "Optional[str]":
    """Return the file that was made for our own words; one that does not bear our batch's name is not ours."""
    with contextlib.suppress(OSError):
        path = os.readlink("/proc/self/fd/2")
        kept, named = os.fstat(2), os.lstat(path)
        ours = (kept.st_dev, kept.st_ino) == (named.st_dev, named.st_ino) and kept.st_uid == os.geteuid()
        if ours and stat.S_ISREG(kept.st_mode) and os.path.basename(path).startswith(batch):
            return path
    return None


def remove_output(path: "Optional[str]", *, if_empty: bool = False) -> None:
    """Remove the file of ``own_output``."""
    with contextlib.suppress(OSError):
        if path is not None and not (if_empty and os.lstat(path).st_size):
            os.unlink(path)
            directory, name = os.path.split(path)
            if os.path.basename(directory) + ".out" == name:
                os.rmdir(directory)


class Guard:
    """A process that outlives the agent for a moment, to end what the agent would have ended.

    Grid Engine kills a job by SIGKILL to its process group: that is the agent alone. The guard stands outside of the
    group, and learns of the death by the end of a pipe.
    """

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._pipe = -1

    def start(self, directory: str, lock: "Optional[int]") -> None:
        """Begin to watch over the tasks whose named pipes are below ``directory``, and to hold its lock."""
        reader, self._pipe = os.pipe()
        if os.fork() == 0:
            try:
                self._be_guard(reader, lock, directory, own_output(self._batch))
            finally:
                os._exit(0)
        os.close(reader)

    def watch(self, session: int) -> None:
        """Tell of the session of a new task."""
        self._tell(f"+{session}")

    def forget(self, session: int) -> None:
        """Tell that nothing of a session is left, and that its number may go to somebody else."""
        self._tell(f"-{session}")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # somebody killed the guard: work goes on without
            os.write(self._pipe, line.encode() + b"\n")

    @staticmethod
    def _be_guard(reader: int, lock: "Optional[int]", directory: str, output: "Optional[str]") -> None:
        signal.set_wakeup_fd(-1)
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        os.setsid()
        os.chdir("/")
        os.dup2(reader, 0)
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != lock:  # noqa: PLR2004 - stdin, stdout and stderr stay
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        remove_stale(os.path.dirname(directory))
        sessions: "Set[int]" = set()
        with os.fdopen(0) as lines:
            for line in lines:
                (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
        for session in sessions or {NO_SESSION}:
            kill_all(session, raw(f"KOALA_STDOUT={directory}/"))
        remove_tree(directory)
        remove_output(output, if_empty=True)


class Timers:
    """Calls to be made later."""

    def __init__(self) -> None:
        self._heap: "List[Tuple[float, int, Callable[[], None]]]" = []
        self._serial = 0

    def after(self, seconds: float, call: "Callable[[], None]") -> None:
        """Make ``call`` once, ``seconds`` from now."""
        self._serial += 1
        heapq.heappush(self._heap, (clock() + seconds, self._serial, call))

    def run(self) -> None:
        """Make the calls that are due."""
        while self._heap and self._heap[0][0] <= clock():
            heapq.heappop(self._heap)[2]()

    def wait(self) -> "Optional[float]":
        """Return the seconds until the next call."""
        return max(0.0, self._heap[0][0] - clock()) if self._heap else None


class Channel:
    """One TLS connection at a time to the control center; lines in, lines out."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._socket: "Optional[socket.socket]" = None
        self._tls: "Optional[ssl.SSLSocket]" = None
        self._step: "Callable[[socket.socket], None]" = self._connect
        self._interest = 0
        self._in = bytearray()
        self._out = bytearray()
        self._tries = 0
        self.open = False
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        # Not left unchecked: the pin below is stricter than a chain, and does not depend on the clock of the node.
        self.context.verify_mode = ssl.CERT_NONE
        if hasattr(self.context, "minimum_version"):
            self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        else:
            self.context.options |= ssl.OP_NO_SSLv2 | ssl.OP_NO_SSLv3 | ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1

    @property
    def queued(self) -> int:
        """Bytes that wait for the socket."""
        return len(self._out)

    @property
    def closed(self) -> bool:
        """Whether there is no connection, nor one on its way."""
        return self._socket is None

    def own_address(self) -> str:
        """Address of this node on its way to the control center."""
        return str(self._socket.getsockname()[0]) if self._socket else ""

    def dial(self) -> None:
        """Begin to connect; the agent hears of success or failure by its methods ``opened`` and ``closed``."""
        settings = self._agent.settings
        try:
            found = socket.getaddrinfo(settings.host, settings.port, 0, socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[self._tries % len(found)]
            self._tries += 1
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setblocking(False)  # noqa: FBT003 - the library's own way
            self._step = self._connect
            with contextlib.suppress(BlockingIOError):
                self._socket.connect(address)
            self._watch(selectors.EVENT_WRITE)
        except OSError as error:
            self.close(error.strerror or str(error))

    def send(self, message: "Dict[str, Any]") -> None:
        """Queue a message."""
        self._out += json.dumps(message).encode() + b"\n"

    def flush(self) -> None:
        """Hand to the socket what it takes."""
        if self._socket is None or not self.open:
            return
        try:
            while self._out:
                del self._out[: self._socket.send(bytes(self._out[:16384]))]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError as error:
            self.close(error.strerror or str(error))

    def finish(self) -> None:
        """Say that nothing more comes; ``closed`` follows when the control center has seen it."""
        if self._socket:
            self.open = False
            self._step = self._discard
            try:
                self._socket.shutdown(socket.SHUT_WR)
                self._watch(selectors.EVENT_READ)
            except OSError as error:
                self.close(str(error))

    def close(self, reason: str) -> None:
        """End the connection, if any, and tell the agent."""
        self._watch(0)
        if self._socket:
            self._socket.close()
            self._socket = self._tls = None
        self.open = False
        self._in.clear()
        self._out.clear()
        self._agent.closed(reason)

    def _watch(self, interest: int) -> None:
        if self._socket is None or interest == self._interest:
            return
        if self._interest:
            self._agent.selector.unregister(self._socket)
        if interest:
            self._agent.selector.register(self._socket, interest, self._ready)
        self._interest = interest

    def _ready(self, _mask: int) -> None:
        if self._socket is None:
            return
        try:
            self._step(self._socket)
        except ssl.SSLWantReadError:
            self._watch(selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError as error:
            self.close(error.strerror or str(error))

    def _connect(self, connection: socket.socket) -> None:
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self._watch(0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = self._tls = self.context.wrap_socket(connection, do_handshake_on_connect=False)
        self._step = self._shake_hands
        self._step(self._socket)

    def _shake_hands(self, connection: socket.socket) -> None:
        if self._tls is None:
            return
        self._tls.do_handshake()
        shown = self._tls.getpeercert(binary_form=True)
        if not shown or hashlib.sha256(shown).hexdigest() != self._agent.settings.fingerprint:
            raise OSError(errno.EPERM, "the server there shows another certificate than our control center's")
        self.open = True
        self._step = self._transfer
        self._agent.opened()
        self._step(connection)

    def _transfer(self, connection: socket.socket) -> None:
        while self._socket is connection and self.open:
            data = connection.recv(65536)
            if not data:
                raise OSError(errno.ECONNRESET, "the control center closed the connection")
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        searched = len(self._in)
        self._in += data
        while True:
            end = self._in.find(b"\n", searched)
            if end < 0:
                break
            line = bytes(self._in[:end])
            del self._in[: end + 1]
            searched = 0
            self._agent.received(line)
        if len(self._in) > LINE:
            raise OSError(errno.EMSGSIZE, "the control center sent a line beyond all measure")

    def _discard(self, connection: socket.socket) -> None:
        if not connection.recv(65536):
            self.close("finished")


class Output:
    """One output stream of a task: what has been read and not yet been acknowledged."""

    def __init__(self) -> None:
        self._base = 0
        self._kept = bytearray()
        self._sent = 0

    @property
    def room(self) -> int:
        """Bytes that may be read before something must be acknowledged."""
        return max(0, KEPT - len(self._kept))

    @property
    def unsent(self) -> bool:
        """Whether something waits to be sent."""
        return self._sent < self._base + len(self._kept)

    @property
    def safe(self) -> bool:
        """Whether everything was acknowledged."""
        return not self._kept

    def add(self, data: bytes) -> None:
        """Take what a task wrote."""
        self._kept += data

    def next(self) -> "Tuple[int, bytes]":
        """Return offset and bytes of the next piece to send."""
        offset = self._sent
        data = bytes(self._kept[offset - self._base : offset - self._base + CHUNK])
        self._sent += len(data)
        return offset, data

    def acknowledge(self, offset: int) -> None:
        """Forget what came before ``offset``."""
        count = min(max(0, offset - self._base), len(self._kept))
        del self._kept[:count]
        self._base += count
        self._sent = max(self._sent, self._base)

    def rewind(self) -> None:
        """Send again what was not acknowledged: the connection is a new one."""
        self._sent = self._base


class Source:
    """A pipe or FIFO whose bytes go to an output stream, read only while that has room."""

    def __init__(self, agent: "Agent", descriptor: int, output: Output, *, fifo: bool) -> None:
        self._selector = agent.selector
        self._descriptor = descriptor
        self._output = output
        self._watched = False
        self._left: "Optional[int]" = None
        self.fifo = fifo
        self.closed = False
        os.set_blocking(descriptor, False)

    def watch(self) -> None:
        """Listen to the descriptor as long as its bytes have a place."""
        wanted = not self.closed and self._output.room > 0
        if wanted and not self._watched:
            self._selector.register(self._descriptor, selectors.EVENT_READ, self._read)
        elif self._watched and not wanted:
            self._selector.unregister(self._descriptor)
        self._watched = wanted

    def finish(self) -> None:
        """The writers are dead: take what they left in the pipe, and no more, whoever may still write to it."""
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


class NamePattern:
    """One segment of a glob pattern. Matching takes no backtracking, whatever the pattern."""

    def __init__(self, segment: str) -> None:
        self.hidden = segment.startswith(".")
        pieces: "List[List[str]]" = [[]]
        for part in re.findall(r"\[(?:!.|[^!])[^\]]*\]|.", segment, re.DOTALL):
            if part == "*":
                pieces.append([])
            else:
                pieces[-1].append(self._expression(part))
        # What stands between two stars has a fixed length.
        self._pieces = [(self._compiled("".join(piece)), len(piece)) for piece in pieces]

    @staticmethod
    def _expression(part: str) -> str:
        if part == "?":
            return "."
        if len(part) == 1:
            return re.escape(part)
        inner = part[1:-1]
        negated = inner.startswith("!") and len(inner) > 1
        inner = inner[1:] if negated else inner
        return ("[^" if negated else "[") + "".join(c if c == "-" else re.escape(c) for c in inner) + "]"

    @staticmethod
    def _compiled(expression: str) -> "re.Pattern[str]":
        try:
            return re.compile(expression, re.DOTALL)
        except re.error:  # such as [z-a]
            return re.compile("(?!)")

    def matches(self, name: str) -> bool:
        """Tell whether a name matches; one that begins with a dot only if the pattern does, as in a shell."""
        if name.startswith(".") and not self.hidden:
            return False
        (first, size), (last, tail) = self._pieces[0], self._pieces[-1]
        if len(self._pieces) == 1:
            return first.fullmatch(name) is not None
        at, end = size, len(name) - tail
        if first.match(name) is None or end < at or last.fullmatch(name, end) is None:
            return False
        for piece, _ in self._pieces[1:-1]:
            found = piece.search(name, at, end)
            if found is None:
                return False
            at = found.end()
        return True


class Patterns:
    """Glob patterns for paths, followed from directory to directory; ``**`` is any number of directories.

    A *state* is a pattern and the segment of it that the next name is to match.
    """

    def __init__(self, patterns: "List[str]") -> None:
        self._patterns = [
            [None if segment == "**" else NamePattern(segment) for segment in pattern.split("/")]
            for pattern in patterns
        ]
        self.start = self._with_skipped({(number, 0) for number in range(len(patterns))})

    def step(self, states: "Set[Tuple[int, int]]", name: str) -> "Tuple[bool, Set[Tuple[int, int]]]":
        """Return whether the path that ends with ``name`` matches, and the states for what is below it."""
        matched = False
        below: "Set[Tuple[int, int]]" = set()
        for number, index in states:
            segment = self._patterns[number][index]
            if not (segment.matches(name) if segment else not name.startswith(".")):
                continue
            if segment is None:
                below.add((number, index))
            if index + 1 == len(self._patterns[number]):
                matched = True
            elif segment is not None:
                below.add((number, index + 1))
        return matched, self._with_skipped(below)

    def _with_skipped(self, states: "Set[Tuple[int, int]]") -> "Set[Tuple[int, int]]":
        for number, first in list(states):
            segments = self._patterns[number]
            index = first
            while segments[index] is None and index + 1 < len(segments):
                index += 1
                states.add((number, index))
        return states


class ResultFile:
    """A file that a task left and that has not arrived yet."""

    def __init__(self, number: int, path: str, source: str, status: os.stat_result) -> None:
        self.number = number
        self.path = path
        self.source = source  # another one than ``path`` for a link
        self.size = status.st_size
        self.mode = stat.S_IMODE(status.st_mode) & 0o700
        self.rewind()

    def rewind(self) -> None:
        """Begin again. The first piece goes alone: the answer says how much has arrived already."""
        self.sent = 0
        self.answered = False


class Results:
    """The files that a task left: sends those that are wanted, and names those that go away with its directory."""

    def __init__(self, task: str, directory: str, message: "Dict[str, Any]") -> None:
        self._task = task
        self._directory = directory
        self._patterns = Patterns(message["output_files"])
        self._wanted = bool(message["output_files"])
        self._private = message["working_directory"] is None
        self._inputs: "Dict[str, Tuple[int, int, int]]" = {}
        self._files: "Dict[int, ResultFile]" = {}
        self._turn: "collections.deque[ResultFile]" = collections.deque()
        self._found = self._arrived = self._bytes = self._left = self._omitted = 0
        self._left_names: "List[str]" = []
        self._omissions: "List[Dict[str, str]]" = []
        self._collected = False
        self.said = False  # all that there is was sent
        self.safe = False  # and has arrived
        self.progress = 0  # answers of the control center

    @property
    def has_files(self) -> bool:
        """Whether files have not arrived yet."""
        return bool(self._files)

    def note_input(self, target: str) -> None:
        """Remember an input file as it is before the task starts: unchanged, it is no result."""
        with contextlib.suppress(OSError):
            self._inputs[target] = self._identity(os.stat(raw(os.path.join(self._directory, target))))

    @staticmethod
    def _identity(status: os.stat_result) -> "Tuple[int, int, int]":
        return status.st_ino, status.st_size, status.st_mtime_ns

    def collect(self) -> None:
        """Look, when the task is over, for what it left."""
        try:
            top = os.open(raw(self._directory), os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._walk(top)
            finally:
                os.close(top)
        except OSError as error:
            self._omit(".", f"cannot be read: {error.strerror}")
        if self._found or not self._private:  # with files that arrive, somebody chose what is wanted
            self._left, self._left_names = 0, []
        self._collected = True
        self.rewind()
        if not (self._wanted or self._left or self._omitted):
            self.said = self.safe = True

    def rewind(self) -> None:
        """Send again what has not arrived: the connection is a new one."""
        for file in self._files.values():
            file.rewind()
        self._turn = collections.deque(self._files.values())
        self.said = self.safe

    def next(self) -> "Optional[Dict[str, Any]]":
        """Return the next message that can be sent now."""
        while self._turn:
            file = self._turn[0]
            try:
                data = self._read(file)
            except OSError as error:
                del self._files[file.number]
                self._turn.popleft()
                self._omit(file.path, f"cannot be read: {error.strerror}")
                continue
            offset, file.sent = file.sent, file.sent + len(data)
            if not file.answered or file.sent == file.size:
                self._turn.popleft()
            return {
                "kind": "file", "task": self._task, "number": file.number, "path": base64(raw(file.path)),
                "mode": file.mode, "size": file.size, "offset": offset, "data": base64(data),
            }  # fmt: skip
        if self.said or not self._collected or self._files:
            return None
        self.said = True
        return {
            "kind": "files", "task": self._task, "arrived": self._arrived, "size": self._bytes, "left": self._left,
            "left_names": self._left_names, "omitted": self._omitted, "omissions": self._omissions,
        }  # fmt: skip

    def acknowledge(self, number: int, offset: int, refusal: str) -> None:
        """Take the answer to a piece: how much of its file is safe, or why it is not wanted."""
        self.progress += 1
        file = self._files.get(number)
        if file is None:
            return
        if refusal or offset >= file.size:
            del self._files[number]
            if file.answered and file in self._turn:
                self._turn.remove(file)
            if refusal:
                self._omit(file.path, refusal)
            else:
                self._arrived += 1
                self._bytes += file.size
        elif not file.answered:
            file.answered = True
            file.sent = offset
            self._turn.appendleft(file)

    def _read(self, file: ResultFile) -> bytes:
        path = raw(os.path.join(self._directory, file.source))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            data = os.pread(descriptor, min(CHUNK, file.size - file.sent), file.sent)
        finally:
            os.close(descriptor)
        if not data and file.size > file.sent:
            raise OSError(errno.ESTALE, "it became shorter while it was being sent")
        return data

    def _omit(self, path: str, reason: str) -> None:
        self._omitted += 1
        if len(self._omissions) < NAMED:
            self._omissions.append({"path": speakable(path), "reason": reason[:500]})

    def _walk(self, top: int) -> None:
        seen = 0
        # Level by level, so that what is named and granted first is near the top.
        directories: "collections.deque[Tuple[str, Optional[Set[Tuple[int, int]]]]]" = collections.deque()
        directories.append(("", self._patterns.start))
        while directories:
            path, states = directories.popleft()
            try:
                place = os.open(raw(path or "."), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            except OSError as error:
                if states is None:
                    self._omit(path, f"cannot be read: {error.strerror}")
                continue
            try:
                for name in sorted(os.listdir(place)):
                    seen += 1
                    if seen > SEEN:
                        if self._wanted:
                            self._omit(path or ".", f"not all looked at: there are more than {SEEN} files")
                        return
                    with contextlib.suppress(OSError):  # it is gone: somebody else works in the same directory
                        status = os.stat(name, dir_fd=place, follow_symlinks=False)
                        directories += self._look(
                            path, os.fsencode(name).decode("utf-8", "surrogateescape"), status, states
                        )
            finally:
                os.close(place)

    def _look(
        self, path: str, name: str, status: os.stat_result, states: "Optional[Set[Tuple[int, int]]]"
    ) -> "List[Tuple[str, Optional[Set[Tuple[int, int]]]]]":
        """Take a file in; return a directory that is to be looked into."""
        matched, below = (True, None) if states is None else self._patterns.step(states, name)
        path = f"{path}/{name}" if path else name
        if stat.S_ISDIR(status.st_mode):
            if not (matched or below or self._private):
                return []
            if len(raw(path)) > LONGEST_PATH:
                if matched or below:
                    self._omit(path, f"its path is longer than {LONGEST_PATH} bytes")
                return []
            return [(path, None if matched else below)]
        if self._inputs.get(path) == self._identity(status):
            return []
        if matched:
            self._take(path, status)
        elif stat.S_ISREG(status.st_mode):
            self._left += 1
            if len(self._left_names) < NAMED:
                self._left_names.append(speakable(path))
        return []

    def _take(self, path: str, status: os.stat_result) -> None:
        source = path
        if stat.S_ISLNK(status.st_mode):
            top = os.path.realpath(raw(self._directory)) + b"/"
            there = os.path.realpath(raw(os.path.join(self._directory, path)))
            if not there.startswith(top):
                self._omit(path, "a link that leads out of the directory")
                return
            source = there[len(top) :].decode("utf-8", "surrogateescape")
            with contextlib.suppress(OSError):
                status = os.stat(there)
        if not stat.S_ISREG(status.st_mode):
            self._omit(path, "no regular file, nor a link to one")
        elif status.st_size > LARGEST:
            self._omit(path, f"its size of {status.st_size} bytes is beyond all measure")
        elif self._found == FILES:
            self._omit(path, f"a rank may send {FILES} files")
        else:
            self._found += 1
            self._files[self._found] = ResultFile(self._found, path, source, status)


def base64(data: bytes) -> str:
    """Return bytes as the channel has them."""
    return binascii.b2a_base64(data, newline=False).decode()


def speakable(path: str) -> str:
    """Return a path for a message: short, and without what no text can contain."""
    text = raw(path).decode("utf-8", "replace")
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "\u2026"


class Task:
    """A process in a session of its own, with everything needed to tell how it ended."""

    def __init__(self, agent: "Agent", name: str) -> None:
        self.name = name
        self.outputs = {"out": Output(), "err": Output()}
        self.end: "Optional[Dict[str, Any]]" = None
        self.reported = False
        self._agent = agent
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._exited: "Optional[Tuple[float, Optional[int], Optional[int]]]" = None  # when, exit code, signal
        self._stopping: "Optional[Tuple[str, str]]" = None
        self._sources: "List[Source]" = []
        self._directory: "Optional[str]" = None
        self._prompt = False
        self.results: "Optional[Results]" = None
        self._mark = b""
        self._oom_kills = oom_kills()

    @property
    def pid(self) -> "Optional[int]":
        """Process id while the task runs."""
        return self._process.pid if self._process and self.end is None else None

    @property
    def complete(self) -> bool:
        """Whether the task is over and all that it wrote has been read."""
        return self.end is not None and not self._sources

    @property
    def safe(self) -> bool:
        """Whether the task is complete, and all its output and files were acknowledged."""
        written = all(output.safe for output in self.outputs.values())
        return self.complete and written and not self.delivering

    @property
    def delivering(self) -> bool:
        """Whether files that it left are still to be sent, or to be told of."""
        return self.results is not None and not self.results.safe

    @property
    def keeps_files(self) -> bool:
        """Whether its directory holds files that are still to be sent."""
        return self.results is not None and self.results.has_files

    @property
    def tellable(self) -> bool:
        """Whether its end may be told: a good one when its files are there, a bad one, which ends others, at once."""
        good = self.end is not None and self.end["reason"] == "exited" and self.end["exit_code"] == 0
        return self.complete and (not good or self._prompt or self.results is None or self.results.said)

    def launch(self, message: "Dict[str, Any]") -> None:
        """Start the process; a failure becomes the task's end."""
        try:
            self._launch(message)
        except LaunchError as error:
            self.fail(str(error), error.code)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.fail(f"cannot start: {getattr(error, 'strerror', None) or error}", 126)

    def fail(self, detail: str, code: "Optional[int]" = None, reason: str = "launch failed") -> None:
        """End a task that never ran."""
        for source in self._sources:
            source.close()
        self.results = None
        self.end = {"reason": reason, "exit_code": code, "signal": None, "detail": detail[:500]}
        self._tidy()

    def stop(self, reason: str, detail: str, grace: float) -> None:
        """Ask the process to end, and make it end ``grace`` seconds later."""
        if self.pid is None or self.look():
            return
        if not self._stopping:
            self._stopping = (reason, detail)
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        self._agent.timers.after(grace, self.kill)

    def signal(self, number: int) -> None:
        """Send a signal to all processes. The first is not reaped before the end, so that its number stays its own."""
        if self.pid is not None:
            signal_all(self.pid, self._mark, number)

    def kill(self) -> None:
        """Kill whatever is left of the task."""
        if self.pid is not None:
            kill_all(self.pid, self._mark)

    def look(self) -> bool:
        """Return whether the process has exited; it stays a zombie until everything of its session is gone."""
        if self._exited is None and self.pid is not None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                by_itself = found.si_code == os.CLD_EXITED
                status = (found.si_status, None) if by_itself else (None, found.si_status)
                self._exited = (clock(), *status)
                for pause in (SETTLE, DRAIN):
                    self._agent.timers.after(pause, self.advance)
        return self._exited is not None

    def advance(self) -> None:
        """Do what can be done by now: conclude an exited process, listen to pipes that have room again."""
        if self._exited is not None and self._process is not None and self.end is None:
            self._conclude(self._process, *self._exited)
        for source in self._sources:
            source.watch()
        if self._sources and all(source.closed for source in self._sources):
            self._sources = []
            if self.results is not None:
                self.results.collect()
        if self.complete and not self.keeps_files:
            self._tidy()

    def _conclude(
        self, process: "subprocess.Popen[bytes]", when: float, code: "Optional[int]", number: "Optional[int]"
    ) -> None:
        since = clock() - when
        if self._killed(code, number) and not self._stopping and since < SETTLE:
            return
        if since < DRAIN and not all(source.fifo or source.closed for source in self._sources):
            return
        kill_all(process.pid, self._mark)
        process.wait()
        self._agent.guard.forget(process.pid)
        self.end = self._describe(code, number)
        for source in self._sources:
            source.finish()

    def _describe(self, code: "Optional[int]", number: "Optional[int]") -> "Dict[str, Any]":
        reason, detail = ("exited", "") if number is None else ("signalled", "")
        if self._stopping:
            reason, detail = self._stopping
        elif self._killed(code, number) == signal.SIGKILL and oom_kills() > self._oom_kills:
            reason, detail = "memory", "killed by the kernel because the memory limit of its job was reached"
        elif self._killed(code, number) and self._agent.ending:
            reason, detail = self._agent.ending
        return {"reason": reason, "exit_code": code, "signal": number, "detail": detail}

    @staticmethod
    def _killed(code: "Optional[int]", number: "Optional[int]") -> int:
        # A shell whose last command was killed ends by itself, and says so in this way.
        return number or max(0, (code or 0) - 128)

    def _launch(self, message: "Dict[str, Any]") -> None:
        self._directory = directory = self._agent.new_directory()
        working_directory = message["working_directory"] or os.path.join(directory, "work")
        if message["working_directory"] is None:
            os.mkdir(working_directory, 0o700)
        elif not os.path.isdir(raw(working_directory)):
            raise LaunchError(f"the working directory {working_directory} does not exist on {socket.gethostname()}")
        if message.get("output_files") or (
            message.get("output_files") is not None and not message["working_directory"]
        ):
            self.results = Results(self.name, working_directory, message)
        for file in message["files"]:
            write_file(working_directory, file["target"], file["mode"], binascii.a2b_base64(file["content"]))
            if self.results is not None:
                self.results.note_input(file["target"])
        environment = task_environment(dict(os.environ), message["environment"])
        environment["PWD"] = working_directory
        self._mark = raw(f"KOALA_STDOUT={directory}/out\0")
        writers = []
        try:
            for name, variable in (("out", "KOALA_STDOUT"), ("err", "KOALA_STDERR")):
                environment[variable] = self._open_fifo(os.path.join(directory, name), self.outputs[name])
                reader, writer = os.pipe()
                writers.append(writer)
                self._sources.append(Source(self._agent, reader, self.outputs[name], fifo=False))
            self._process = start(message["argv"], working_directory, environment, writers)
            self._agent.guard.watch(self._process.pid)
        finally:
            for writer in writers:
                os.close(writer)
        if message["time_limit"] is not None:
            detail = f"the time limit of {message['time_limit']:g} s was reached"
            self._agent.timers.after(message["time_limit"], lambda: self.stop("walltime", detail, GRACE))
            self._agent.timers.after(max(0.0, message["time_limit"] - PROMPT), self._be_prompt)

    def _be_prompt(self) -> None:
        self._prompt = True

    def _open_fifo(self, path: str, output: Output) -> str:
        os.mkfifo(path, 0o600)
        # Opened for writing too, so that there is neither an end of file between two writers nor a wait for the first.
        self._sources.append(Source(self._agent, os.open(path, os.O_RDWR | os.O_NONBLOCK), output, fifo=True))
        return path

    def _tidy(self) -> None:
        self._sources = []
        if self._directory:
            self._agent.remove(self._directory)
            self._directory = None


def start(
    argv: "List[str]", working_directory: str, environment: "Dict[str, str]", writers: "List[int]"
) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own."""
    import subprocess  # noqa: PLC0415 - a placeholder is held the sooner for not importing what no task needs yet

    try:
        return subprocess.Popen(
            [raw(argument) for argument in argv],
            cwd=raw(working_directory),
            env={raw(name): raw(value) for name, value in environment.items()},
            stdin=subprocess.DEVNULL,
            stdout=writers[0],
            stderr=writers[1],
            start_new_session=True,
        )
    except FileNotFoundError:
        there = os.path.exists(raw(os.path.join(working_directory, argv[0]))) if "/" in argv[0] else False
        what = "the interpreter of {} was not found" if there else "{}: command not found"
        raise LaunchError(what.format(argv[0]) + f" on {socket.gethostname()}", 126 if there else 127) from None
    except OSError as error:
        raise LaunchError(f"{argv[0]} cannot be run on {socket.gethostname()}: {error.strerror}") from error


class Agent:
    """Keeps channel, tasks, lease and walltime together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.selector = selectors.DefaultSelector()
        self.timers = Timers()
        self.ending: "Optional[Tuple[str, str]]" = None  # reason and detail, once the agent must go
        self._channel = Channel(self)
        self._session = random_name() + random_name()
        self._tasks: "Dict[str, Task]" = {}
        self._forgotten: "Set[str]" = set()
        self.guard = Guard(settings.batch)
        self._directory: "Optional[str]" = None
        self._directories = 0
        self._lock: "Optional[int]" = None
        self._delivered = 0
        self._removals: "collections.deque[Iterator[None]]" = collections.deque()
        self._removing = False
        self._lease = settings.lease
        self._heartbeat = CONNECT_TIME
        self._contact = clock()
        self._attempt = 0
        self._opened = 0.0
        self._failures = 0
        self._last_failure = ""
        self._welcomed = False
        self._leaving: "Optional[int]" = None  # the exit status to come
        self._mute = False  # nobody listens any more: do not wait for acknowledgements
        self._parting = False  # all is said, and the end of the connection on its way
        self._exit: "Optional[int]" = None

    def run(self) -> int:
        """Hold the processor until released; return the exit status."""
        self._receive_signals()
        self._watch_lease()
        left = self._ends_in()
        if left is not None:
            self.timers.after(left - min(self.settings.end_margin, left / 2), self._walltime_ends)
        self._dial(self._attempt)
        try:
            while True:
                self.timers.run()
                self._advance()
                if self._exit is not None:
                    return self._exit
                for key, mask in self.selector.select(self.timers.wait()):
                    key.data(mask)
        finally:
            for task in self._tasks.values():
                task.kill()
            self._remove_directory()

    @property
    def heard(self) -> bool:
        """Whether the control center was told everything before the end, so that no written word is needed."""
        return self._parting

    def new_directory(self) -> str:
        """Return a new private directory for a task."""
        if self._directory is None:
            place = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a new directory with a random name and mode 0700
            directory = os.path.join(place, "koala-" + random_name())
            os.mkdir(directory, 0o700)
            self._directory = directory
            self._lock = claim_directory(directory)
            self.guard.start(directory, self._lock)
        self._directories += 1
        path = os.path.join(self._directory, str(self._directories))
        os.mkdir(path, 0o700)
        return path

    def remove(self, directory: str) -> None:
        """Remove a directory little by little: it may hold so much that nobody would hear of us meanwhile."""
        self._removals.append(Removal(directory).steps())
        if len(self._removals) == 1:
            self._remove_some()

    def _remove_some(self) -> None:
        until = clock() + SLICE
        while self._removals:
            for _ in self._removals[0]:
                if clock() > until:
                    self.timers.after(SLICE / 4, self._remove_some)
                    return
            self._removals.popleft()

    def _remove_directory(self) -> None:
        for steps in self._removals:
            for _ in steps:
                pass
        if self._directory:
            remove_tree(self._directory)

    # The connection

    def opened(self) -> None:
        """The control center is at the other end: say who we are."""
        settings = self.settings
        self._channel.send({
            "kind": "hello", "version": VERSION, "batch": settings.batch, "index": settings.index,
            "token": settings.token, "session": self._session, "lrm_id": settings.lrm_id,
            "host": word(socket.gethostname()), "address": word(self._channel.own_address()), "pid": os.getpid(),
            "ends_in": self._ends_in(), "python": ".".join(map(str, sys.version_info[:3])),
            "tasks": [self._report(task) for task in self._tasks.values()], "resends": True,
        })  # fmt: skip

    def received(self, line: bytes) -> None:
        """Act on a line from the control center."""
        try:
            message = json.loads(line.decode())
            act = getattr(self, "_on_" + message["kind"].replace("-", "_"), None)
            if act is not None:
                act(message)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OSError(errno.EPROTO, f"the control center sent what makes no sense: {error!r}") from error
        self._contact = clock()

    def closed(self, reason: str) -> None:
        """The connection is gone, or could not be made: try again after a while."""
        good = self._welcomed and clock() - self._opened > STEADY
        self._failures = 1 if good else self._failures + 1
        self._attempt += 1
        self._welcomed = False
        if self._parting:
            self._depart()
        if self._mute or self._parting:
            return
        if reason != self._last_failure:
            self._last_failure = reason
            say(f"no connection to {self.settings.host}:{self.settings.port}: {reason}; trying again")
        pause = min(LONGEST_PAUSE, 0.25 * 2 ** min(self._failures, 10))
        if self._leaving is not None:
            pause = min(pause, LEAVING_PAUSE)
        attempt = self._attempt
        self.timers.after(pause * (0.5 + ord(os.urandom(1)) / 256), lambda: self._dial(attempt))

    def _dial(self, after: int) -> None:
        if self._mute or after != self._attempt:
            return
        self._opened = clock()
        self._attempt += 1
        attempt = self._attempt
        self.timers.after(CONNECT_TIME, lambda: self._give_up_dialling(attempt))
        self._channel.dial()

    def _give_up_dialling(self, attempt: int) -> None:
        if attempt == self._attempt and not self._welcomed:
            self._channel.close("no answer")

    def _report(self, task: Task) -> "Dict[str, Any]":
        task.reported = task.safe
        for output in task.outputs.values():
            output.rewind()
        if task.results is not None:
            task.results.rewind()
        return {"task": task.name, "running": task.pid is not None, "end": task.end if task.safe else None}

    def _ends_in(self) -> "Optional[float]":
        return None if self.settings.ends_at is None else max(0.0, self.settings.ends_at - clock())

    # What the control center says

    def _on_welcome(self, message: "Dict[str, Any]") -> None:
        self._lease, self._heartbeat = float(message["lease"]), float(message["heartbeat"])
        self._welcomed = True
        self._last_failure = ""
        if self.ending:
            self._send_ending()
        attempt = self._attempt
        self.timers.after(self._heartbeat, lambda: self._beat(attempt))

    def _on_refused(self, message: "Dict[str, Any]") -> None:
        self._leave(EXIT_REFUSED, "cancelled", f"the control center refused: {message['reason']}", GRACE, mute=True)

    def _on_pong(self, _message: "Dict[str, Any]") -> None:
        """Being heard was the point."""

    def _on_launch(self, message: "Dict[str, Any]") -> None:
        name = message["task"]
        task = self._tasks.get(name)
        if task is None and name not in self._forgotten:
            task = self._tasks[name] = Task(self, name)
            if self.ending:
                task.fail(self.ending[1], reason=self.ending[0])
            else:
                task.launch(message)
            self._forget()
        elif task is not None:
            task.reported = False
        if task is not None and task.pid is not None:
            self._channel.send({"kind": "task-started", "task": name, "pid": task.pid})

    def _on_signal(self, message: "Dict[str, Any]") -> None:
        task = self._tasks.get(message["task"])
        if task is not None:
            task.signal(int(message["signal"]))

    def _on_output_ack(self, message: "Dict[str, Any]") -> None:
        task = self._tasks.get(message["task"])
        if task is not None:
            task.outputs[message["stream"]].acknowledge(int(message["offset"]))

    def _on_resend(self, message: "Dict[str, Any]") -> None:
        task = self._tasks.get(message["task"])
        if task is not None:
            task.outputs[message["stream"]].rewind()
            task.reported = False
            self._channel.send({"kind": "resending", "task": task.name, "stream": message["stream"]})

    def _on_file_ack(self, message: "Dict[str, Any]") -> None:
        task = self._tasks.get(message["task"])
        if task is not None and task.results is not None:
            task.results.acknowledge(int(message["number"]), int(message["offset"]), message["refusal"])

    def _on_files_ack(self, message: "Dict[str, Any]") -> None:
        task = self._tasks.get(message["task"])
        if task is not None and task.results is not None:
            task.results.safe = True

    def _on_release(self, message: "Dict[str, Any]") -> None:
        self._leave(EXIT_RELEASED, "cancelled", "released", float(message["grace"]))

    def _forget(self) -> None:
        # A long life with many tasks must not grow for ever: the oldest ends were heard by the center long ago.
        safe = [task for task in self._tasks.values() if task.safe and task.reported]
        for task in safe[: max(0, len(self._tasks) - REPORTS)]:
            del self._tasks[task.name]
            self._forgotten.add(task.name)

    # The loop's work

    def _advance(self) -> None:
        for task in self._tasks.values():
            task.advance()
        if self._welcomed:
            for task in self._tasks.values():
                self._send_output(task)
        self._channel.flush()
        if self._leaving is None or self._parting or not all(task.complete for task in self._tasks.values()):
            return
        if self._directory and not self._keeps_files and not self._removing:
            self._removing = True  # at once, because whoever ends us may not wait until all is said
            self.remove(self._directory)
        if self._mute:
            self._exit = self._leaving
        elif self._welcomed and not self._channel.queued and all(t.safe and t.reported for t in self._tasks.values()):
            self._parting = True
            self._channel.finish()
            self.timers.after(FAREWELL, self._depart)

    def _send_output(self, task: Task) -> None:
        for stream, output in task.outputs.items():
            while output.unsent and self._channel.queued < QUEUED:
                offset, data = output.next()
                text = base64(data)
                self._channel.send(
                    {"kind": "output", "task": task.name, "stream": stream, "offset": offset, "data": text}
                )
        message = task.results.next() if task.results is not None else None
        while message is not None:
            self._channel.send(message)
            message = task.results.next() if task.results is not None and self._channel.queued < QUEUED else None
        if task.tellable and not task.reported and not any(output.unsent for output in task.outputs.values()):
            task.reported = True
            self._channel.send({"kind": "task-ended", "task": task.name, "end": task.end})

    def _beat(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        if clock() - self._contact > 3 * self._heartbeat:
            self._channel.close("the control center has fallen silent")
            return
        self._channel.send({"kind": "heartbeat"})
        self.timers.after(self._heartbeat, lambda: self._beat(attempt))

    # Ends

    def _watch_lease(self) -> None:
        left = self._contact + self._lease - clock()
        if left > 0:
            self.timers.after(min(left, 30.0), self._watch_lease)
            return
        detail = f"no contact to the control center for {self._lease:g} s"
        say(f"{detail} (last: {self._last_failure or 'silence'}); this placeholder ends")
        self._leave(EXIT_LEASE, "lost", detail, FAREWELL, mute=True)

    def _walltime_ends(self) -> None:
        grace = min(GRACE, self.settings.end_margin / 2)
        self._leave(EXIT_ENDED, "walltime", "the walltime of the placeholder ends", grace)

    def _stopped_by(self, number: int) -> None:
        left = self._ends_in()
        # SIGUSR1 and SIGXCPU announce a limit (Slurm --signal, Grid Engine s_rt and s_cpu); the others say only: go.
        limit = number in (signal.SIGUSR1, signal.SIGXCPU) or (left is not None and left < NEAR)
        name = signal.Signals(number).name
        self._leave(EXIT_ENDED, "walltime" if limit else "cancelled", f"the placeholder got {name}", GRACE)

    def _leave(self, code: int, reason: str, detail: str, grace: float, *, mute: bool = False) -> None:
        self._mute = self._mute or mute
        if self._leaving is None:
            self._leaving = code
            self.ending = (reason, detail)
            if code != EXIT_RELEASED:
                say(f"ending: {detail}")
                if self._welcomed and not mute:
                    self._send_ending()
            self.timers.after(grace + FLUSH, self._stop_waiting)
            if self._channel.closed:  # the time that is left may be shorter than the pause
                self._failures = 0
                self._dial(self._attempt)
        for task in self._tasks.values():
            task.stop(reason, detail, grace)

    def _send_ending(self) -> None:
        if self.ending and self._leaving != EXIT_RELEASED:
            self._channel.send({"kind": "ending", "reason": self.ending[0], "detail": self.ending[1]})

    @property
    def _delivering(self) -> bool:
        return any(task.delivering for task in self._tasks.values())

    @property
    def _keeps_files(self) -> bool:
        return any(task.keeps_files for task in self._tasks.values())

    def _stop_waiting(self) -> None:
        # Files go on as long as they make progress. Who released us may only be down for a while, as it is when it is
        # started anew: what it still wants waits for it as long as the lease lasts.
        delivered = sum(task.results.progress for task in self._tasks.values() if task.results is not None)
        progress = self._delivering and delivered > self._delivered
        cut_off = not self._welcomed or clock() - self._opened < FLUSH
        away = self._leaving == EXIT_RELEASED and cut_off and not all(task.safe for task in self._tasks.values())
        if (away or progress) and not self._mute:
            self._delivered = delivered
            self.timers.after(FLUSH, self._stop_waiting)
        else:
            self._depart()

    def _depart(self) -> None:
        if self._exit is None:
            self._exit = self._leaving

    def _receive_signals(self) -> None:
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer)
        for name in ("SIGCHLD", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"):
            signal.signal(getattr(signal, name), lambda _number, _frame: None)
        self.selector.register(reader, selectors.EVENT_READ, lambda _mask: self._signals(os.read(reader, 512)))

    def _signals(self, numbers: bytes) -> None:
        for number in sorted(set(numbers), key=lambda number: number == signal.SIGCHLD):
            if number != signal.SIGCHLD:
                self._stopped_by(number)
        for task in self._tasks.values():
            task.look()


def main(configuration: str) -> int:
    """Run with the configuration of the job script; return the exit status."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # the script came in by stdin, and with it the token
    os.close(nothing)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # a shell such as dash leaves the process that wrote the script to our stdin
    try:
        settings = Settings(json.loads(configuration), dict(os.environ))
        agent = Agent(settings)
        status = agent.run()
        if agent.heard:
            remove_output(own_output(settings.batch))
        return status
    except FatalError as error:
        say(str(error))
        return EXIT_UNUSABLE


if "CONFIGURATION" in globals():  # set by the job script, which precedes this file
    sys.exit(main(globals()["CONFIGURATION"]))
