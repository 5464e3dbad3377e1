# SPDX-License-Identifier: Apache-2.0
"""Running the commands of a batch system: bounded in time and rate, in a clean environment, with typed errors.

In order: this host as a place of commands and files, the runner of commands (a list of arguments in, bytes out), then
the base for plugins of batch systems that are driven by commands. All such plugins share it, so none can forget a
time-out or pass koala's environment on.
"""

from __future__ import annotations

import calendar
import getpass
import json
import os
import platform
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeVar

import anyio

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.host import metrics as metric
from koala_adapter.host.privatedirectory import make_directory
from koala_adapter.lrm.lrmhost import HostFacts, HostProcess, LrmHost
from koala_adapter.lrm.rate import KeptAnswers, Priority, SharedWindow

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from anyio.abc import ByteReceiveStream, Process

    from koala_adapter.host.metrics import Meter


# -- This host -----------------------------------------------------------------------------------------------

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def caller_locale() -> dict[str, str]:
    """Return the variables of our own locale. LC_ALL is given as LANG, which the LANG of a job file can replace."""
    if chosen := os.environ.get("LC_ALL"):
        return {"LANG": chosen}
    return {name: value for name, value in os.environ.items() if name in {"LANG", "LANGUAGE"} or name.startswith("LC_")}


EXPORTED = {"LC_ALL": ""}
"""Added to the environment of a command that exports it to jobs: they get the caller's locale."""


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a small environment built from the password file, not inherited: no SLURM_*, SGE_* or PMI_* leaks.

    LC_ALL makes commands print what can be read. With EXPORTED there is none, and the caller's locale is left.
    """
    entry = pwd.getpwuid(os.geteuid())
    environment = {
        **caller_locale(),
        "PATH": os.environ.get("PATH", DEFAULT_PATH),
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": entry.pw_shell or "/bin/sh",
        "LC_ALL": "C.UTF-8",
        "TZ": os.environ.get("TZ", ""),
    }
    if not environment["TZ"]:
        del environment["TZ"]
    environment.update(extra or {})
    if not environment["LC_ALL"]:
        del environment["LC_ALL"]
    return environment


def login_name() -> str:
    """Return the login name of the effective user; its number as text when the password file has no entry."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return getpass.getuser()


@contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    """Yield a file in memory with ``data``, for a child's standard input.

    Not from a pipe: if we were killed while a command reads, it would take the beginning for all of it, and submit the
    first half of a job script.
    """
    descriptor = os.memfd_create("stdin")
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


async def _communicate(argv: Sequence[str], stdin: bytes, environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Run a command in a session of its own; when the wait is cancelled, kill it with everything it started."""
    with _in_memory(stdin) as source:
        process = await anyio.open_process(
            list(argv), stdin=source, env=environment, start_new_session=True, stderr=subprocess.PIPE
        )
    output: dict[str, bytes] = {}

    async def read(name: str, stream: ByteReceiveStream | None) -> None:
        output[name] = b"".join([chunk async for chunk in stream]) if stream is not None else b""

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "stdout", process.stdout)
            tasks.start_soon(read, "stderr", process.stderr)
        await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    return process.returncode or 0, output["stdout"], output["stderr"]


BURIAL_SECONDS = 0.1
"""How long asyncio may take to notice that a process has died."""


class LocalProcess(HostProcess):
    """A process of this host with pipes."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process, self._log = process, log
        if process.stdin is None or process.stdout is None:
            raise ValueError("a process that is asked needs pipes")
        self._stdin, self._stdout = process.stdin, process.stdout
        self.pid = process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def send(self, data: bytes) -> None:
        await self._stdin.send(data)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._stdout.receive(max_bytes)

    async def end_input(self) -> None:
        await self._stdin.aclose()

    async def ended(self) -> None:
        await self._process.wait()

    async def kill(self) -> None:
        # If it has just died, it must not be buried twice: by asyncio's watcher, and on the way of a signal to it.
        with anyio.move_on_after(BURIAL_SECONDS):
            await self._process.wait()
        if self.running:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await self._process.aclose()

    def complaints(self) -> bytes:
        try:
            return self._log.read_bytes()
        except OSError:
            return b""


class LocalHost(LrmHost):
    """This host as the place of a batch system's commands and files."""

    here = True

    @property
    def user(self) -> str:
        return login_name()

    async def facts(self) -> HostFacts:
        home = pwd.getpwuid(os.geteuid()).pw_dir
        name = socket.gethostname()
        return HostFacts(
            name=name,
            user=login_name(),
            uid=os.geteuid(),
            home=home,
            variables=dict(os.environ),
            python=platform.python_version(),
            interpreter=sys.executable,
        )

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, bytes]:
        return await _communicate(argv, stdin, child_environment(environment))

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> HostProcess:
        with log.open("wb") as stderr:
            process = await anyio.open_process(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=child_environment(environment),
                cwd="/",
                start_new_session=True,
            )
        return LocalProcess(process, log)

    async def programs(self, names: Sequence[str], directory: str = "") -> Mapping[str, str]:
        path = directory or child_environment()["PATH"]
        found = ((name, shutil.which(name, path=path)) for name in names)
        return {name: place for name, place in found if place is not None}

    async def resolved(self, path: str) -> str:
        try:
            return str(Path(path).resolve(strict=True))
        except OSError:
            return ""

    async def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    async def list_directory(self, path: str) -> Sequence[str]:
        return os.listdir(path)

    async def make_directory(self, path: str) -> tuple[str, int]:
        make_directory(Path(path))
        return os.path.abspath(path), stat.S_IMODE(os.stat(path).st_mode)

    async def write_private(self, path: str, content: bytes) -> None:
        # A file left from an earlier try must not keep its mode or its hard links.
        Path(path).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def remove_soon(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


THIS_HOST = LocalHost()


# -- Running one command -------------------------------------------------------------------------------------

DEFAULT_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command printed. Never decide on ``returncode`` alone: LRM commands return 0 on refusals, too."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output, decoded without ever failing, into text that can be written as JSON and kept."""
        return self.stdout.decode("utf-8", "backslashreplace")

    @property
    def complaint(self) -> str:
        """Last lines of standard error (or of standard output when that is empty), for an error message."""
        raw = self.stderr if self.stderr.strip() else self.stdout
        lines = raw.decode("utf-8", "replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-3:] if line.strip())


@dataclass(slots=True, eq=False)
class _Request:
    """A request to the batch system that is under way."""

    name: str
    begun: float
    """By time.monotonic()."""
    failure: str = ""
    """How it failed: ``status``, ``timeout`` or ``absent``."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request that waits for the bound."""

    priority: Priority
    until: float
    """By time.monotonic()."""


_priority: ContextVar[Priority] = ContextVar("priority of requests", default=Priority.ORDINARY)


def _unobserved(_name: str, _seconds: float, _failure: str) -> None:
    """Observer that ignores what it is told."""


class CommandRunner:
    """Runs the commands of one cluster within its stated bound of requests per minute."""

    def __init__(
        self,
        *,
        per_minute: int = 60,
        shared: Path | None = None,
        answers: KeptAnswers | None = None,
        host: LrmHost = THIS_HOST,
    ) -> None:
        """``shared``: file by which all processes that ask this cluster keep within the bound together.

        ``answers``: what it was asked before. ``host``: where the commands are.
        """
        self.kept_answers = KeptAnswers() if answers is None else answers
        self.host = host
        self.window = SharedWindow(per_minute, shared)
        self.put_off = 0.0
        """Seconds for which requests have waited for the bound, all in all."""
        self._waiting: list[_Waiting] = []
        """Requests that wait for the bound."""
        self.patience: float | None = None
        """Seconds that a request may take at most, whatever whoever makes it allows; None: as long as that."""
        self.unanswered = 0
        """Requests that were given up because there was no answer in time."""
        self._under_way: list[_Request] = []
        self.observer: Callable[[str, float, str], None] = _unobserved
        """Told of each request: program or name, seconds, and how it failed (empty: it did not)."""

    def count_in(self, meter: Meter, cluster: str) -> None:
        """Have requests to the batch system of a cluster counted by the meter of this process."""

        def ran(program: str, seconds: float, failure: str) -> None:
            command = PurePath(program).name
            meter.observe(metric.COMMAND_SECONDS, cluster, command, seconds=seconds)
            if failure:
                meter.add(metric.COMMAND_ERRORS, cluster, command, failure)

        def read(meter: Meter) -> None:
            meter.set(metric.REQUESTS, cluster, value=self.window.total)
            meter.set(metric.REQUESTS_LAST_MINUTE, cluster, value=self.window.recent())
            meter.set(metric.REQUESTS_BOUND, cluster, value=self.window.per_minute)

        self.observer = ran
        meter.read_with(read)

    async def admit(self, *, urgent: bool = False) -> None:
        """Wait until one more request to the LRM is within the bound, and count it.

        For requests that are no commands (DRMAA calls); ``run`` does it by itself.
        """
        priority = Priority.URGENT if urgent else _priority.get()
        while (wait := self.window.take(priority)) > 0:
            begun = anyio.current_time()
            waiting = _Waiting(priority, time.monotonic() + wait)
            self._waiting.append(waiting)
            try:
                await anyio.sleep(wait)
            finally:
                self.put_off += anyio.current_time() - begun
                self._waiting.remove(waiting)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Give the requests that are made in the block the priority of submissions."""
        former = _priority.set(Priority.SUBMISSION)
        try:
            yield
        finally:
            _priority.reset(former)

    def waits(self, priority: Priority = Priority.ORDINARY) -> float:
        """Return the seconds until a request of a priority that waits for the bound may go; 0: none waits."""
        times = [one.until for one in self._waiting if one.priority is priority]
        return max(0.0, min(times) - time.monotonic()) if times else 0.0

    def bounded(self, timeout: float) -> float:
        """Return the time limit of a request that wants ``timeout`` seconds; ``run`` applies it by itself."""
        return timeout if self.patience is None else min(timeout, self.patience)

    @contextmanager
    def timed(self, name: str) -> Iterator[_Request]:
        """Report the duration of the block to the observer under a name; ``run`` does that by itself."""
        request = _Request(name, time.monotonic())
        self._under_way.append(request)
        try:
            yield request
        except LrmUnreachableError:
            request.failure = "absent"
            raise
        except LrmUnavailableError:
            request.failure = "timeout"
            raise
        except LrmError:
            request.failure = "status"
            raise
        finally:
            self._under_way.remove(request)
            self.observer(name, time.monotonic() - request.begun, request.failure)

    @property
    def awaited(self) -> tuple[str, float] | None:
        """The oldest request under way, with its seconds so far; None when there is none."""
        if not self._under_way:
            return None
        first = self._under_way[0]
        return first.name, time.monotonic() - first.begun

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        urgent: bool = False,
    ) -> CommandResult:
        """Run one command and return what it printed, whatever its exit status.

        Raises LrmUnreachableError when the program cannot be started, and LrmUnavailableError when it does not end
        within ``timeout`` seconds, or :attr:`patience` (it is killed then, and what it did is unknown).
        """
        await self.admit(urgent=urgent)
        with self.timed(argv[0]) as request:
            result = await self._run(argv, stdin, environment, self.bounded(timeout))
            request.failure = "status" if result.returncode else ""
        return result

    async def _run(
        self, argv: Sequence[str], stdin: bytes, environment: Mapping[str, str] | None, timeout: float
    ) -> CommandResult:
        try:
            with anyio.fail_after(timeout):
                returncode, stdout, stderr = await self.host.run(argv, stdin=stdin, environment=environment)
        except TimeoutError:
            self.unanswered += 1
            message = f"{argv[0]} did not answer within {timeout:g} s"
            raise LrmUnavailableError(message, hint="the LRM is overloaded or hangs; it is asked again later") from None
        except OSError as error:
            message = f"cannot run {argv[0]}: {error.strerror or error}"
            raise LrmUnreachableError(
                message, hint="install the LRM's client commands or give their directory"
            ) from error
        return CommandResult(argv=tuple(argv), returncode=returncode, stdout=stdout, stderr=stderr)


# -- Base for plugins of batch systems that are driven by commands -------------------------------------------
# A plugin says which directory, environment and time-out its commands have and what their complaints mean. It builds
# command lines and parses output in functions of its own; only the base runs commands.

T = TypeVar("T")

SETTINGS_KEPT = 300.0
"""Seconds for which an answer about a batch system's settings serves: sites change them seldom."""
QUEUES_KEPT = 10.0
"""Seconds for which an answer about queues serves that also says which of them are open."""
SILENT = "the command failed without a word"
SHOWN = 200
"""Characters of unreadable output that an error quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A complaint that contains ``text`` (in lower case) is an error of this kind."""

    text: str
    kind: type[LrmError]
    hint: str = ""


def complaints(kind: type[LrmError], texts: Mapping[str, str]) -> tuple[Complaint, ...]:
    """Return complaints of one kind from their texts and hints."""
    return tuple(Complaint(text=text, kind=kind, hint=hint) for text, hint in texts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplaintTable:
    """Meanings of a batch system's error texts: the first that is contained counts, "no answer" before others."""

    system: str
    """Its name, with which messages begin."""
    known: tuple[Complaint, ...]

    def find(self, text: str) -> Complaint | None:
        """Return the first complaint that a text contains; None: it contains none that is known."""
        lower = text.lower()
        return next((one for one in self.known if one.text in lower), None)

    def error(self, text: str, *, action: str, otherwise: type[LrmError] = LrmUnavailableError) -> LrmError:
        """Return the error that a text means; of kind ``otherwise`` when it is not known.

        ``action`` says what was tried (``submission``, ``listing of jobs`` ...).
        """
        found = self.find(text)
        message = f"{self.system}: {action} failed: {text or SILENT}"
        return otherwise(message) if found is None else found.kind(message, hint=found.hint)

    def cancel_error(self, result: CommandResult, *, gone: Collection[str] = (), marked: str = "") -> LrmError | None:
        """Return the worst error of a cancellation; None when all jobs are cancelled or were gone.

        ``gone``: further texts (in lower case) that say so. ``marked``: text that complaints have and no other line
        has; empty: there is none.
        """
        lines = [line.strip() for line in result.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        if result.returncode and not lines:
            return self.error("", action="cancellation")
        told = [line for line in lines if marked in line.lower() and not any(text in line.lower() for text in gone)]
        certain = bool(marked or result.returncode)
        errors = [self.error(line, action="cancellation") for line in told if certain or self.find(line)]
        return worst(error for error in errors if not isinstance(error, LrmNotFoundError))


def worst(errors: Iterable[LrmError]) -> LrmError | None:
    """Return the error to raise of several: no answer is worse than a refusal, as the outcome is unknown."""
    found = list(errors)
    return next((error for error in found if isinstance(error, LrmUnavailableError)), found[0] if found else None)


class CommandSystem:
    """The commands of one cluster, run within its bounds of rate and time; failures come as the four errors."""

    def __init__(
        self,
        runner: CommandRunner,
        complaints: ComplaintTable,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Nothing is run yet. ``directory``: of the programs; None: PATH. ``environment``: beside the built one."""
        self._runner = runner
        self.complaints = complaints
        self._directory = directory
        self._timeout = timeout
        self._version: str | None = None
        self.environment: Mapping[str, str] = dict(environment or {})

    @property
    def host(self) -> LrmHost:
        """Where the commands are."""
        return self._runner.host

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return a command with its program in the directory of the settings, unless it has a directory already."""
        program, *arguments = command
        found = str(self._directory / program) if self._directory and "/" not in program else program
        return (found, *arguments)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        urgent: bool = False,
    ) -> CommandResult:
        """Run a command (program first) and return what it printed. Raises LrmUnavailableError: no answer."""
        return await self._runner.run(
            self.argv(command),
            stdin=stdin,
            environment={**self.environment, **(environment or {})},
            timeout=self._timeout,
            urgent=urgent,
        )

    async def read(self, command: Sequence[str], *, action: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a command that lists something and return its standard output. Raises LrmError when it failed."""
        result = await self.run(command, environment=environment)
        error = self.reading_error(result, action=action)
        if error is not None:
            raise error
        return result.text

    async def setting(
        self,
        command: Sequence[str],
        parse: Callable[[str], T],
        *,
        action: str | None = None,
        within: float = SETTINGS_KEPT,
    ) -> T:
        """Return what a command says of the batch system's settings, as far as possible without asking again.

        ``action``: what a failure is called; None: a command that fails says what it prints. ``within``: seconds for
        which an answer serves. Raises LrmError when the command failed, and whatever ``parse`` raises.
        """
        question = json.dumps([self.argv(command), dict(self.environment)])
        kept = self._runner.kept_answers.get(question, within=within)
        if kept is not None:
            with suppress(LrmError):
                return parse(kept)
        result = await self.run(command)
        error = None if action is None else self.reading_error(result, action=action)
        if error is not None:
            raise error
        found = parse(result.text)
        if not result.returncode and result.stdout.strip():
            self._runner.kept_answers.keep(question, result.text)
        return found

    async def change(self, command: Sequence[str], *, action: str) -> None:
        """Run a command that changes something. Raises LrmError when it complains."""
        error = self.changing_error(await self.run(command), action=action)
        if error is not None:
            raise error

    async def cancel(self, command: Sequence[str], *, gone: Collection[str] = ()) -> None:
        """Run a command that cancels jobs, before all that is not urgent; those that are gone are no error."""
        error = self.complaints.cancel_error(await self.run(command, urgent=True), gone=gone)
        if error is not None:
            raise error

    async def version(self, command: Sequence[str], parse: Callable[[str], str | None]) -> str:
        """Return what ``parse`` finds in the output of a command, which is run until it was found once."""
        if self._version is None:
            text = await self.read(command, action="asking for the version")
            self._version = parse(text)
            if self._version is None:
                raise LrmUnavailableError(f"{' '.join(command)} printed no version: {text[:SHOWN]!r}")
        return self._version

    def reading_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """Return the error of a command that lists something; None when its output is complete.

        An exit status other than 0 is always one: a listing that was cut short must never pass for "no jobs".
        """
        return self.complaints.error(result.complaint, action=action) if result.returncode else None

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """Return the error of a command that changes something; None when it did not complain. Its text decides."""
        said = result.complaint if result.returncode or result.stderr.strip() else ""
        if result.returncode or (said and self.complaints.find(said)):
            return self.complaints.error(said, action=action)
        return None


def utc(text: str, *forms: str) -> float | None:
    """Return seconds since the epoch of a time in UTC that has one of these forms (strptime(3)); None otherwise."""
    for form in forms:
        with suppress(ValueError):
            return float(calendar.timegm(time.strptime(text, form)))
    return None


def message_line(text: str) -> str:
    """Return a message to the user of a job as one line of printable text."""
    return "".join(character if character.isprintable() else " " for character in text).strip() or "(no text)"


def parsed(parse: Callable[[str], T], text: str, *, source: str) -> T:
    """Return what a listing says. Raises LrmUnavailableError, with the text, when it cannot be read.

    A parser may fail as code does that takes a text for well-formed: ValueError (also of JSON), LookupError, TypeError.
    """
    try:
        return parse(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"{source} printed what cannot be read ({type(error).__name__}: {error}): {text[:SHOWN]!r}"
        hint = "it is asked again; if this stays, report it with what the command prints"
        raise LrmUnavailableError(message, hint=hint) from error


def only_id(text: str, pattern: re.Pattern[str]) -> str:
    """Return the only line that is a job id; other lines are banners.

    Raises LrmUnavailableError for none and for several: the submission is then looked for by its name.
    """
    found = [line.strip() for line in text.splitlines() if pattern.fullmatch(line.strip())]
    if len(found) != 1:
        raise LrmUnavailableError(f"no job id in {text[:SHOWN]!r}", hint="it is looked for by its name")
    return found[0]


def portions(arguments: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield arguments in portions, each within the limits of a command line and of the command."""
    for start in range(0, len(arguments), size):
        yield tuple(arguments[start : start + size])


def ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Yield numbers as the fewest ranges, in order: ``1-4``, ``7``."""
    ordered = sorted(numbers)
    for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"
