# SPDX-License-Identifier: Apache-2.0
"""Launcher on a node: pulls the tasks of a sweep and runs them one at a time, for Python 3.6 or newer.

It is copied to the node as ``koala_sweep.py`` and uses the standard library only. While it is out of contact, such as
during a restart of the service, it continues with its task and keeps the answer until it can be sent. SIGURG, which
other programs ignore, asks it to leave: its task has ``grace`` seconds to end, then it is killed, and another launcher
repeats it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from koala_adapter.tasks.connection import LEAVING, connected, received, sent

TYPE_CHECKING = False

if TYPE_CHECKING:
    import ssl
    from types import FrameType
    from typing import IO, Any, Dict, List, Optional, Sequence, Tuple


SETTINGS = "sweep.json"
GIVING_UP = 75  # exit status: nobody was found to get tasks from
LARGEST_STREAM = 32 * 1024 * 1024
"""Bytes of the output of a task that are kept, of each of its two streams."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGXCPU)
"""Signals by which a batch system, or another program, ends a task together with its launcher."""
SETTLING = 1.0
"""Seconds in which a signal that has ended a task must have reached the launcher, too, if it was meant for both."""
PR_SET_CHILD_SUBREAPER = 36
CHILDREN = "/proc/self/task/{0}/children"
"""File of the kernel that lists the children of our only thread."""
ENDING_TIME = 5.0
"""Seconds in which killed processes must be gone; what a file system keeps from ending is left."""
HERE = os.path.dirname(os.path.abspath(__file__))


class Launcher:
    """Program on a node that runs tasks of a sweep: connection, current task, unacknowledged answer."""

    def __init__(self, settings: "Dict[str, Any]", before: "Sequence[str]" = ()) -> None:
        self._settings = settings
        self._before = list(before)  # what stands before the command of each task
        self._connection: "Optional[ssl.SSLSocket]" = None
        self._answer: "Optional[bytes]" = None
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._environment = environment_of_tasks()
        self._adopts = False
        self._at_work = False
        self._leaving = False
        self._ended = False  # no task is to be begun or answered for
        self._sending = False

    def run(self) -> int:
        """Run tasks until there are no more or the launcher is to leave; return the exit status."""
        self._adopts = adopt_orphans()
        signal.signal(signal.SIGURG, self._leave)
        signal.signal(signal.SIGALRM, self._kill)
        signal.signal(signal.SIGTERM, self._end)
        pause = FIRST_PAUSE
        while not self._leaving:
            if self._connection is None and not self._connect():
                return GIVING_UP
            frame = received(self._connection)  # type: ignore[arg-type] # it was made just before
            if frame is None:
                self._disconnect()
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
                continue
            pause = FIRST_PAUSE
            self._answer = None  # whoever sends more has it
            task = json.loads(frame.decode())
            if "over" in task:
                return 0
            self._at_work = True
            self._answer = self._done(task)
            self._at_work = False
            self._send_answer()
        self._say(LEAVING)
        return 0

    def _connect(self) -> bool:
        """Connect to the server; return False when it is not found in time."""
        until = time.monotonic() + self._settings["patience"]
        pause = FIRST_PAUSE
        while True:
            try:
                host, port, asking_for = self._address()
                self._connection = connected(host, port, self._settings["fingerprint"], asking_for=asking_for)
                self._connection.sendall(bytes.fromhex(self._settings["token"]))
                break
            except (OSError, ValueError) as error:
                self._disconnect()
                if time.monotonic() > until:
                    sys.stderr.write("nobody to get tasks from at %s:%s: %s\n" % (*self._address()[:2], error))
                    return False
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)
        where = {name: os.environ.get("KOALA_" + name.upper(), "") for name in ("cluster", "rank")}
        where["host"] = os.uname()[1]
        self._say(json.dumps(where).encode())
        self._send_answer()
        return True

    def _address(self) -> "Tuple[str, int, int]":
        """Return (host, port, 0) of the server, or gateway's host and port with the server's port."""
        cluster, hosts, port = os.environ.get("KOALA_CLUSTER", ""), self._settings["hosts"], self._settings["port"]
        if cluster in self._settings["doors"]:
            door = self._settings["doors"][cluster]
            return door[0], door[1], port
        return hosts.get(cluster, hosts[""]), port, 0

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _send_answer(self) -> None:
        if self._answer is not None:
            self._say(self._answer)

    def _say(self, frame: bytes) -> None:
        """Send a frame if connected; important ones are repeated after a reconnection."""
        if self._connection is not None:
            self._sending = True
            if not sent(self._connection, frame):
                self._disconnect()
            self._sending = False

    # ---- signals ----------------------------------------------------------------------------------------------------

    def _leave(self, _number: int, _frame: "Optional[FrameType]") -> None:
        """Leave after the current task, which has so many seconds left; at once without a task."""
        if self._leaving:
            return
        self._leaving = True
        if not self._sending:
            self._say(LEAVING)
            if not self._at_work:
                sys.exit(0)
        if self._process is not None:
            if self._settings["grace"]:
                signal.alarm(self._settings["grace"])
            else:
                self._kill(0, None)

    def _kill(self, _number: int, _frame: "Optional[FrameType]") -> None:
        self._ended = True
        if self._process is not None:
            kill_group(self._process.pid)

    def _end(self, _number: int, _frame: "Optional[FrameType]") -> None:
        """Leave at once, as all processes are about to be ended; another launcher repeats the task."""
        self._leaving = self._ended = True
        if not self._sending:
            self._say(LEAVING)
            if not self._at_work:
                sys.exit(0)

    # ---- a task -----------------------------------------------------------------------------------------------------

    def _done(self, task: "Dict[str, Any]") -> "Optional[bytes]":
        """Run a task; return its result for the server, or None when the task was ended by the launcher."""
        begun = time.monotonic()
        try:
            files = scratch_file(), scratch_file()
        except OSError as error:
            self._say(LEAVING)
            sys.exit("no room for the output of a task, neither where TMPDIR says nor in %s: %s" % (HERE, error))
        with files[0] as out, files[1] as err:
            status = self._run(task, out, err)
            if self._ended:
                return None
            seconds = round(time.monotonic() - begun, 6)
            streams = [read(out), read(err)]
        head = {
            "task": task["task"], "attempt": task["attempt"], "status": status, "seconds": seconds,
            "out": len(streams[0]), "err": len(streams[1]),
        }  # fmt: skip
        return b"\n".join([json.dumps(head).encode(), b"".join(streams)])

    def _run(self, task: "Dict[str, Any]", out: "IO[bytes]", err: "IO[bytes]") -> int:
        if self._ended or self._leaving:
            self._ended = True
            return 0
        environment = dict(self._environment, KOALA_TASK=str(task["task"]), KOALA_ATTEMPT=str(task["attempt"]))
        if task.get("index") is not None:  # a service of an earlier version says nothing of it
            environment["KOALA_ARRAY_INDEX"] = task["index"]
        try:
            self._process = started(self._before + task["argv"], environment, out, err)
        except OSError as error:
            err.write(("%s: %s\n" % (task["argv"][0], error.strerror)).encode())
            return 127 if isinstance(error, FileNotFoundError) else 126
        if self._ended or (self._leaving and not self._settings["grace"]):  # asked between the look and the start
            self._kill(0, None)
        pid = self._process.pid
        status = self._process.wait()
        self._process = None
        signal.alarm(0)
        kill_group(pid)  # what it left behind would write into nothing
        if self._adopts:
            end_children()
        if -status in ENDING and not self._ended:
            time.sleep(SETTLING)
        return status


def environment_of_tasks() -> "Dict[str, str]":
    """Return the environment without what was added for the launcher itself."""
    environment = dict(os.environ)
    with open("/proc/self/environ", "rb") as begun:
        if not any(entry.startswith(b"LC_CTYPE=") for entry in begun.read().split(b"\0")):
            environment.pop("LC_CTYPE", None)  # Python itself has set it (PEP 538)
    paths = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one and one != HERE]
    environment.pop("PYTHONPATH", None)
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def started(
    argv: "List[str]", environment: "Dict[str, str]", out: "IO[bytes]", err: "IO[bytes]"
) -> "subprocess.Popen[bytes]":
    """Start a process in a new session."""
    return subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )


def scratch_file() -> "IO[bytes]":
    """Return a temporary file for a task's output."""
    try:
        return tempfile.TemporaryFile()
    except OSError:  # a node's prolog has set TMPDIR and made none, or somebody has removed it
        return tempfile.TemporaryFile(dir=HERE)


def kill_group(pid: int) -> None:
    """Kill the rest of a task's process group."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def adopt_orphans() -> bool:
    """Become the parent of processes that tasks leave behind (prctl(2)); False where that is not supported."""
    if not os.path.exists(CHILDREN.format(os.getpid())):
        return False
    try:
        import ctypes  # noqa: PLC0415 - not every Python has it

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def end_children() -> None:
    """Kill processes that a task left in other process groups, such as daemons, until none is left."""
    until = time.monotonic() + ENDING_TIME
    while time.monotonic() < until:
        with open(CHILDREN.format(os.getpid())) as file:
            left = [int(pid) for pid in file.read().split()]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
                    time.sleep(0.001)


def read(file: "IO[bytes]") -> bytes:
    """Return a task's output, as far as it is kept."""
    file.seek(0)  # what was written here is in the file then
    if not os.fstat(file.fileno()).st_size:
        return b""
    data = file.read(LARGEST_STREAM)
    if file.read(1):
        data += b"\n[koala: the rest was left out]\n"
    return data


def main() -> int:
    """Run a launcher with the settings beside this file."""
    with open(os.path.join(HERE, SETTINGS), encoding="ascii") as file:
        return Launcher(json.load(file), sys.argv[1:]).run()


if __name__ == "__main__":
    sys.exit(main())
