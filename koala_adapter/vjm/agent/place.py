# SPDX-License-Identifier: Apache-2.0
"""Places on the node: private directories of agents, the guard process, and directories of tasks.

In order: directories are made, claimed and removed whatever is in them; the guard outlives a killed agent for a moment
to clean up; the workplace makes directories for tasks.
"""

import collections
import contextlib
import errno
import fcntl
import os
import re
import signal
import socket
import stat

from koala_adapter.vjm.agent.node import AgentState, clock, own_output, random_name, raw, remove_output
from koala_adapter.vjm.agent.processes import NO_SESSION, kill_all, read_bytes
from koala_adapter.vjm.agent.usage import Counts, kill_orphans, reap_orphans

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Deque, Dict, Iterator, List, Optional, Set, Tuple


# -- Private directories: made, claimed, removed -------------------------------------------------------------

OWNER = "owner"  # the file in an agent's directory that says on which machine the directory's lock is to be asked


def remove_tree(directory: str) -> None:
    """Remove a private directory tree without following links, however deep or locked."""
    for _ in Removal(directory).steps():
        pass


class Removal:
    """Removal of a tree in short steps, with one directory open at a time."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._place = -1
        self._way: "List[Tuple[str, Tuple[int, int], List[str]]]" = []  # name, identity, subdirectories to be emptied

    def steps(self) -> "Iterator[None]":
        """Yield after each removal; entries that cannot be removed stay."""
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
        """Go up and remove the emptied directory."""
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
    """Return device and inode of a directory."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def open_directory(name: str, place: "Optional[int]" = None) -> int:
    """Open a directory of ours, not a link, and make it readable and writable."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW
    found = os.open(name, os.O_PATH | flags, dir_fd=place)
    try:
        if os.fstat(found).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        return os.open(".", os.O_RDONLY | flags, dir_fd=found)
    finally:
        os.close(found)


def machine() -> bytes:
    """Return an id of this machine and boot, for directories shared with others."""
    return read_bytes("/proc/sys/kernel/random/boot_id").strip() + b" " + raw(socket.gethostname()) + b"\n"


def claim_directory(directory: str) -> "Optional[int]":
    """Lock a new directory as long as the process lives; return None where locks do not work."""
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
    """Remove directories of agents that were killed with their guards."""
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            if name.startswith("koala-") and re.match("koala-[0-9a-f]{32}$", name):
                with contextlib.suppress(OSError):
                    remove_if_stale(os.path.join(place, name))


def remove_if_stale(directory: str) -> None:
    """Remove an agent's directory if its process on this machine has ended.

    What still runs of its tasks is ended first: no agent watches it any more.
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


# -- The guard: a process that ends what a killed agent leaves -----------------------------------------------

DISMISSED = "dismissed\n"


class Guard:
    """Process that outlives the agent, to end tasks the agent could not end.

    Grid Engine kills a job by SIGKILL to its process group: that is the agent alone. The guard stands outside of the
    group, and learns of the death by the end of a pipe.
    """

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._pipe = -1
        self.pid = -1

    def start(self, directory: str, lock: "Optional[int]") -> None:
        """Start watching tasks whose named pipes are below ``directory``, and hold its lock."""
        reader, self._pipe = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._be_guard(reader, lock, directory, own_output(self._batch))
            finally:
                os._exit(0)
        os.close(reader)

    def watch(self, session: int) -> None:
        """Tell the guard about a new task's session."""
        self._tell(f"+{session}\n")

    def forget(self, session: int) -> None:
        """Tell the guard that a session is gone and its number may be reused."""
        self._tell(f"-{session}\n")

    def dismiss(self) -> None:
        """Tell the guard that all tasks have ended and their directory is gone."""
        self._tell(DISMISSED)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # somebody killed the guard: work goes on without
            os.write(self._pipe, line.encode())

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
        dismissed = False
        with os.fdopen(0) as lines:
            for line in lines:
                if line == DISMISSED:
                    dismissed = True
                else:
                    (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
        if not dismissed:
            for session in sessions or {NO_SESSION}:
                kill_all(session, raw(f"KOALA_STDOUT={directory}/"))
            remove_tree(directory)
            remove_stale(os.path.dirname(directory))  # what the tasks shared with those of no other agent
        remove_output(output, if_empty=True)


# -- The workplace: what the tasks of a placeholder share on its node ----------------------------------------
# A private directory, a guard over it, and removals that are done little by little.

SLICE = 0.05  # seconds


OTHER_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - for new directories with random names and mode 0700
"""Where directories are made on a node that has no TMPDIR, or none that can be written to."""


def make_private_directory() -> str:
    """Make a directory of mode 0700 in the first usual place that is writable."""
    faults: "List[OSError]" = []
    for place in filter(None, (os.environ.get("TMPDIR"), *OTHER_PLACES)):
        directory = os.path.join(place, "koala-" + random_name())
        try:
            os.mkdir(directory, 0o700)
            return directory
        except OSError as error:
            faults.append(OSError(error.errno, error.strerror, place))
    raise faults[0]


class Share:
    """A directory with the contents of one job: locked by each agent that uses it, removed by the last one."""

    def __init__(self, name: str) -> None:
        """Create the directory, or use that of another agent of the job. Raises OSError."""
        self.users = 0
        faults: "List[OSError]" = []
        for place in filter(None, (os.environ.get("TMPDIR"), *OTHER_PLACES)):
            self.path = os.path.join(place, name)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
                self._lock = self._locked()
                return
            except OSError as error:
                faults.append(OSError(error.errno, error.strerror, self.path))
        raise faults[0]

    def _locked(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._claim(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _claim(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "is not a directory of ours alone")
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # fails while another agent removes it
        if not os.path.samestat(os.stat(self.path), status):
            raise FileNotFoundError(errno.ENOENT, "was removed just now")
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(OWNER, flags, 0o600, dir_fd=descriptor), "wb") as file:
                file.write(machine())

    def leave(self) -> "Iterator[None]":
        """Unlock the directory, and remove it in steps unless another agent uses it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield from Removal(self.path).steps()
        except OSError:
            pass
        finally:
            os.close(self._lock)


class Workplace:
    """Makes directories for tasks and removes them in short steps."""

    def __init__(self, agent: AgentState) -> None:
        self.agent = agent
        self.selector = agent.selector
        self.timers = agent.timers
        self.guard = Guard(agent.settings.batch)
        self.adopts = False  # what tasks leave behind becomes a child of ours
        self._orphans = Counts()  # of adopted processes that were reaped
        self._running: "Set[int]" = set()  # the first processes of tasks, which these reap themselves
        self._directory: "Optional[str]" = None
        self._directories = 0
        self._lock: "Optional[int]" = None
        self._works: "Deque[Iterator[None]]" = collections.deque()
        self._cleared = False
        self.shares: "Dict[str, Share]" = {}  # by their names, those that tasks use

    def new_directory(self) -> str:
        """Return a new private directory for a task."""
        if self._directory is None:
            self._directory = directory = make_private_directory()
            self._lock = claim_directory(directory)
            self.guard.start(directory, self._lock)
        self._directories += 1
        path = os.path.join(self._directory, str(self._directories))
        os.mkdir(path, 0o700)
        return path

    def begun(self, pid: int) -> None:
        """Register the first process of a task."""
        if not self._running:
            self._orphans = Counts()  # these were of tasks before
        self._running.add(pid)
        self.guard.watch(pid)

    def over(self, pid: int) -> None:
        """Register that a task's first process was reaped; the last task's end ends all leftover processes."""
        self._running.discard(pid)
        self.guard.forget(pid)
        self.see_to_orphans()

    def see_to_orphans(self) -> None:
        """Reap adopted processes, and kill the rest when no task runs that they may belong to."""
        if self.adopts:
            kept = self._running | {self.guard.pid}
            if not self._running:
                kill_orphans(kept)
            reap_orphans(kept, self._orphans)

    def orphans(self) -> Counts:
        """Return and reset the usage of adopted processes that have ended."""
        self.see_to_orphans()
        found, self._orphans = self._orphans, Counts()
        return found

    def remove(self, directory: str) -> None:
        """Remove a directory in short steps, between heartbeats."""
        self.work(Removal(directory).steps())

    def work(self, steps: "Iterator[None]") -> None:
        """Queue work to be done in short steps."""
        self._works.append(steps)
        if len(self._works) == 1:
            self._work_on()

    def clear(self) -> None:
        """Start removing all directories."""
        if self._directory and not self._cleared:
            self._cleared = True
            self.remove(self._directory)

    def finish(self) -> None:
        """Complete queued work and remove all directories."""
        self.see_to_orphans()
        for steps in self._works:
            for _ in steps:
                pass
        if self._directory:
            remove_tree(self._directory)
            if not os.path.lexists(self._directory):
                self.guard.dismiss()

    def _work_on(self) -> None:
        until = clock() + SLICE
        while self._works:
            for _ in self._works[0]:
                if clock() > until:
                    self.timers.after(SLICE / 4, self._work_on)
                    return
            self._works.popleft()
