# SPDX-License-Identifier: Apache-2.0
"""Running job scripts behind fake commands, in processes that outlive these, and state that all of them share."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self


STARTING_SECONDS = 120.0
"""Bound on the time in which a script that was started has a process."""
KILL_WAIT = 1.0
END_SECONDS = 60.0
LOOK = 0.01

S = TypeVar("S")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """How the script of a job has ended."""

    status: int
    """Exit code, or a signal's number below zero."""
    timed_out: bool


def detach(body: Callable[[], None]) -> int:
    """Do something in a process that keeps nothing of the command that started it; return its id."""
    process = os.fork()
    if process == 0:
        _be_detached(body)
    return process


def _be_detached(body: Callable[[], None]) -> NoReturn:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        # Among them the lock on the state, and the pipes of which somebody waits for the end.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        body()
    finally:
        os._exit(0)


def run_script(
    script: Path, *, output: Path, environment: Mapping[str, str], process_file: Path, seconds: float
) -> ScriptEnd:
    """Run a script until it ends, its time is over, or :func:`end_script` says so; the latter two kill it."""
    told, teller = socket.socketpair()
    teller.settimeout(0)
    signal.set_wakeup_fd(teller.fileno())  # a signal that comes just before the wait is not missed
    signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
    with output.open("ab") as stream:
        process = subprocess.Popen(
            [script],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    new = process_file.with_suffix(".new")
    new.write_text(str(process.pid))
    new.replace(process_file)
    ended = os.pidfd_open(process.pid)
    woken, _, _ = select.select([ended, told.fileno()], [], [], seconds)
    if ended in woken:
        return ScriptEnd(process.wait(), timed_out=False)
    return ScriptEnd(_kill(process), timed_out=not woken)


def _kill(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def signal_script(process_file: Path, number: int) -> None:
    """Send a signal to all processes of a script, once it has some."""
    deadline = time.monotonic() + STARTING_SECONDS
    while not process_file.exists() and time.monotonic() < deadline:
        time.sleep(LOOK)
    with contextlib.suppress(OSError, ValueError):
        os.killpg(int(process_file.read_text()), number)


def end_script(process_file: Path, runner: int) -> None:
    """Take the processes of a script away, and have its runner know that it was not its time that was over."""
    signal_script(process_file, signal.SIGTERM)
    signal_script(process_file, signal.SIGCONT)
    with contextlib.suppress(OSError):
        os.kill(runner, signal.SIGUSR1)


def end_runners(process_files: Mapping[int, Path]) -> None:
    """Kill the scripts of runners, by their ids; return when the runners are gone, or have had their time.

    A script that is just being started has no file yet: it is killed once it has.
    """
    left = set(process_files)
    deadline = time.monotonic() + END_SECONDS
    while left and time.monotonic() < deadline:
        for runner in left:
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(process_files[runner].read_text()), signal.SIGKILL)
        left = {one for one in left if is_alive(one)}
        time.sleep(LOOK)


def is_alive(process: int) -> bool:
    """Tell whether a process runs; a zombie, which stays until its parent calls wait, does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def locked(directory: Path, read: Callable[[Mapping[str, Any]], S], empty: Callable[[], S]) -> Iterator[S]:
    """Give the state that is kept in a directory, and write it back if nothing went wrong; one process at a time."""
    file = directory / "state.json"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = read(json.loads(file.read_text())) if file.exists() else empty()
        yield state
        new = file.with_suffix(".new")
        new.write_text(json.dumps(asdict(state)))  # type: ignore[call-overload] # a dataclass
        new.replace(file)


# What the fakes of systems with commands have in common: their refusals, their directory, and their commands.


class Refusal(Exception):  # noqa: N818 - no error of the fake, but what it plays
    """The command complains with this text and ends with this status."""

    def __init__(self, text: str, status: int = 1) -> None:
        """``text`` goes to stderr, as the system prints it."""
        super().__init__(text)
        self.text = text
        self.status = status


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


class Directory(Generic[D]):
    """The directory of a fake system; the commands find it through a variable, as the real ones do."""

    variable: ClassVar[str]
    """Names the file with the settings (JSON), which stands in the directory."""

    def __init__(self, conf: Path) -> None:
        """``conf``: the file with the settings."""
        self.directory = conf.parent
        self.settings: D = json.loads(conf.read_text())

    @classmethod
    def of_environment(cls) -> Self:
        """Return the directory that the environment chooses."""
        return cls(Path(os.environ[cls.variable]))

    @property
    def down(self) -> bool:
        """True while the system plays dead."""
        return (self.directory / "down").exists()


class FakeSystem:
    """A fake system for a test; the plugin is pointed at it by ``conf`` and ``bin_directory``."""

    def __init__(self, directory: Path, conf: str, settings: Mapping[str, Any], *, system: str) -> None:
        """Make the system in ``directory``, which must not exist. ``system``: name of its package."""
        self.conf = directory / conf
        self.bin_directory = directory / "bin"
        self.processors = sum(settings["nodes"].values())
        self._directory = directory
        (directory / "spool").mkdir(parents=True, mode=0o700)
        self.bin_directory.mkdir()
        self.conf.write_text(json.dumps(settings))
        for program in self.programs:
            write_command(self.bin_directory / program, system)

    programs: ClassVar[Sequence[str]]
    variables: ClassVar[Mapping[str, str]] = {}
    """Of the environment of each command, beside the one that names ``conf``."""
    variable: ClassVar[str]

    def run(self, *command: str, stdin: str = "", user: str = "nobody") -> str:
        """Run a command as somebody else would; return what it prints."""
        program, *arguments = command
        done = subprocess.run(
            [self.bin_directory / program, *arguments],
            env={"PATH": os.environ["PATH"], self.variable: str(self.conf), "USER": user, **self.variables},
            input=stdin.encode(),
            capture_output=True,
            check=True,
        )
        return done.stdout.decode()

    def stop_server(self) -> None:
        """Make the commands complain that nobody answers; jobs go on."""
        (self._directory / "down").touch()

    def start_server(self) -> None:
        """Make the commands work again."""
        (self._directory / "down").unlink(missing_ok=True)


# The files of the fake commands, and the start of the resident process that carries them out.

REPOSITORY = Path(__file__).resolve().parents[2]
READY = b"ready\n"


def write_command(file: Path, system: str) -> None:
    """Make ``file`` a command, of that name, of the fake ``system``: ``slurm``, ``pbs`` or ``gridengine``."""
    text = (Path(__file__).parent / "command.py").read_text()
    text = text.replace("@SERVER@", _server()).replace("@SYSTEM@", system)
    file.write_text(f"#!{sys.executable} -IS\n{text}")
    file.chmod(0o755)


@cache
def _server() -> str:
    """Start the resident of this test process, if it has none; return its socket."""
    # A path of a Unix socket is short; those that pytest makes need not be.
    directory = tempfile.mkdtemp(prefix="fakes-", dir="/tmp")
    path = f"{directory}/socket"
    argv = [sys.executable, "-S", "-E", "-m", "tests.fakes.resident", path]
    process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    # A process of xdist may end without this; then the end of the pipe says it, and nothing is left either.
    atexit.register(process.communicate)
    if process.stdout is None or process.stdout.readline() != READY:
        message = "the resident process of the fake commands did not start"
        raise RuntimeError(message)
    return path
