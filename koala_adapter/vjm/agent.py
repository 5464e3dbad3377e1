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
import contextlib
import errno
import fcntl
import hashlib
import heapq
import json
import os
import selectors
import signal
import socket
import ssl
import stat
import struct
import subprocess
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

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
        self.ends_at = self._end(given["walltime"], environment.get("SLURM_JOB_END_TIME", ""))

    @staticmethod
    def _end(walltime: "Optional[float]", slurm: str) -> "Optional[float]":
        # The LRM may have started its clock before us (prolog), or give less than was asked: the earlier end counts.
        ends = [walltime] if walltime else []
        if slurm.isdigit():
            ends.append(max(0.0, int(slurm) - time.time()))
        return time.monotonic() + min(ends) if ends else None


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
    """Remove a private directory as far as possible."""
    import shutil  # noqa: PLC0415 - costs 1 MiB, and is only needed at the end

    shutil.rmtree(directory, ignore_errors=True)


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
    """Return the file that the LRM made for our own words; one that does not bear our batch's name is not ours."""
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


class Guard:
    """A process that outlives the agent for a moment, to end what the agent would have ended.

    Grid Engine kills a job by SIGKILL to its process group: that is the agent alone. The guard stands outside of the
    group, and learns of the death by the end of a pipe.
    """

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._pipe = -1

    def start(self, directory: str) -> None:
        """Begin to watch over the tasks whose named pipes are below ``directory``."""
        reader, self._pipe = os.pipe()
        if os.fork() == 0:
            try:
                self._be_guard(reader, directory, own_output(self._batch))
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
    def _be_guard(reader: int, directory: str, output: "Optional[str]") -> None:
        signal.set_wakeup_fd(-1)
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        os.setsid()
        os.chdir("/")
        os.dup2(reader, 0)
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2:  # noqa: PLR2004 - stdin, stdout and stderr stay
                with contextlib.suppress(OSError):
                    os.close(descriptor)
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
        heapq.heappush(self._heap, (time.monotonic() + seconds, self._serial, call))

    def run(self) -> None:
        """Make the calls that are due."""
        while self._heap and self._heap[0][0] <= time.monotonic():
            heapq.heappop(self._heap)[2]()

    def wait(self) -> "Optional[float]":
        """Return the seconds until the next call."""
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None


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
        """Whether the task is complete and all its output was acknowledged."""
        return self.complete and all(output.safe for output in self.outputs.values())

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
                self._exited = (time.monotonic(), *status)
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
            self._tidy()

    def _conclude(
        self, process: "subprocess.Popen[bytes]", when: float, code: "Optional[int]", number: "Optional[int]"
    ) -> None:
        since = time.monotonic() - when
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
        for file in message["files"]:
            write_file(working_directory, file["target"], file["mode"], binascii.a2b_base64(file["content"]))
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

    def _open_fifo(self, path: str, output: Output) -> str:
        os.mkfifo(path, 0o600)
        # Opened for writing too, so that there is neither an end of file between two writers nor a wait for the first.
        self._sources.append(Source(self._agent, os.open(path, os.O_RDWR | os.O_NONBLOCK), output, fifo=True))
        return path

    def _tidy(self) -> None:
        self._sources = []
        if self._directory:
            remove_tree(self._directory)
            self._directory = None


def start(
    argv: "List[str]", working_directory: str, environment: "Dict[str, str]", writers: "List[int]"
) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own."""
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
        self._lease = settings.lease
        self._heartbeat = CONNECT_TIME
        self._contact = time.monotonic()
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
            if self._directory:
                remove_tree(self._directory)

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
            self.guard.start(directory)
        self._directories += 1
        path = os.path.join(self._directory, str(self._directories))
        os.mkdir(path, 0o700)
        return path

    # The connection

    def opened(self) -> None:
        """The control center is at the other end: say who we are."""
        settings = self.settings
        self._channel.send({
            "kind": "hello", "version": VERSION, "batch": settings.batch, "index": settings.index,
            "token": settings.token, "session": self._session, "lrm_id": settings.lrm_id,
            "host": word(socket.gethostname()), "address": word(self._channel.own_address()), "pid": os.getpid(),
            "ends_in": self._ends_in(), "python": ".".join(map(str, sys.version_info[:3])),
            "tasks": [self._report(task) for task in self._tasks.values()],
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
        self._contact = time.monotonic()

    def closed(self, reason: str) -> None:
        """The connection is gone, or could not be made: try again after a while."""
        good = self._welcomed and time.monotonic() - self._opened > STEADY
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
        self._opened = time.monotonic()
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
        return {"task": task.name, "running": task.pid is not None, "end": task.end if task.safe else None}

    def _ends_in(self) -> "Optional[float]":
        return None if self.settings.ends_at is None else max(0.0, self.settings.ends_at - time.monotonic())

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
                text = binascii.b2a_base64(data, newline=False).decode()
                self._channel.send(
                    {"kind": "output", "task": task.name, "stream": stream, "offset": offset, "data": text}
                )
        if task.complete and not task.reported and not any(output.unsent for output in task.outputs.values()):
            task.reported = True
            self._channel.send({"kind": "task-ended", "task": task.name, "end": task.end})

    def _beat(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        if time.monotonic() - self._contact > 3 * self._heartbeat:
            self._channel.close("the control center has fallen silent")
            return
        self._channel.send({"kind": "heartbeat"})
        self.timers.after(self._heartbeat, lambda: self._beat(attempt))

    # Ends

    def _watch_lease(self) -> None:
        left = self._contact + self._lease - time.monotonic()
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

    def _stop_waiting(self) -> None:
        # Who released us may only be down for a while: output that is still wanted waits as long as the lease lasts.
        cut_off = not self._welcomed or time.monotonic() - self._opened < FLUSH
        unsaid = not all(task.safe for task in self._tasks.values())
        if self._leaving == EXIT_RELEASED and cut_off and unsaid and not self._mute:
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
