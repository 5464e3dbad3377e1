# SPDX-License-Identifier: Apache-2.0
"""Client of a DRMAA helper process: typed requests, one at a time, to the helper of one cluster.

The helper is started when needed and again when it dies. The bound of requests is kept here (each request counts as
one, a submission of several jobs too), and so is the bound in time: a call may hang in the library, so a helper that
does not answer is killed. In order: reading results, how to start a helper, the process, the client.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import BaseModel, Field, ValidationError

import koala_adapter
from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError, ProtocolError
from koala_adapter.lrm.commands import child_environment
from koala_adapter.lrm.drmaa.libraries import FailureKind, error_of, library_of
from koala_adapter.lrm.drmaa.protocol import (
    LONGEST_LINE,
    AbandonBatches,
    ControlAction,
    ControlJobs,
    Controlled,
    Done,
    Failure,
    ListBatches,
    Listed,
    NumberedRequest,
    NumberedResult,
    Opened,
    OpenSession,
    ReachLrm,
    Refusal,
    Result,
    SubmitJobs,
    Submitted,
    encode,
    not_understood,
)
from koala_adapter.model import LrmJobId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.abc import Process

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.lrm.drmaa.protocol import ListedBatch, Request, Template


# -- Reading the results of a helper -------------------------------------------------------------------------
# By pydantic, for speed: a listing of 100,000 jobs is 20 MiB.


class _Line(BaseModel, extra="forbid"):
    number: int
    result: Annotated[Result, Field(discriminator="result")]


def decode_result(line: bytes) -> NumberedResult:
    """Return the result of one line. Raises ProtocolError."""
    try:
        found = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise not_understood(f"{where}: {first['msg']}") from error
    return NumberedResult(number=found.number, result=found.result)


# -- Environment and command line of a helper, and its library -----------------------------------------------
# Debian's libdrmaa for Grid Engine is linked with jemalloc, which a running Python cannot load ("cannot allocate memory
# in static TLS block"). Two cures exist, both can be set only before a process starts; they are tried one after
# another.

HELPER_MODULE = "koala_adapter.lrm.drmaa.helper"
STATIC_TLS_BYTES = 4096
"""Room for the thread-local variables of libraries loaded late (glibc's own default is 512)."""

_STATIC_TLS = re.compile(r"(\S+): cannot allocate memory in static TLS block")


class Loading(StrEnum):
    """How the dynamic loader is made to take libdrmaa."""

    TUNABLES = "tunables"
    """GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096 (glibc 2.33 or newer; ignored by older ones)."""
    PRELOAD = "preload"
    """LD_PRELOAD of the library that did not find room."""
    PLAIN = "plain"
    """Nothing special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperLaunch:
    """How to start the helper of one cluster."""

    library: Path | None
    """libdrmaa of this cluster's LRM; None: whichever the dynamic loader finds."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What chooses the cluster (SGE_ROOT, SLURM_CONF ...)."""
    loading: Loading = Loading.TUNABLES
    preload: str = "libjemalloc.so.2"

    def argv(self) -> tuple[str, ...]:
        """Return the command line."""
        return (sys.executable, "-m", HELPER_MODULE)

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the helper: built, not inherited."""
        environment = child_environment(self.variables)
        if self.library is not None:
            environment["DRMAA_LIBRARY_PATH"] = str(self.library)
        match self.loading:
            case Loading.TUNABLES:
                environment["GLIBC_TUNABLES"] = f"glibc.rtld.optional_static_tls={STATIC_TLS_BYTES}"
            case Loading.PRELOAD:
                environment["LD_PRELOAD"] = self.preload
            case Loading.PLAIN:
                pass
        roots = [environment.get("PYTHONPATH", ""), *_module_roots()]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(root for root in roots if root))
        # The drmaa library takes its encoding from the locale.
        environment["LC_ALL"] = "C.UTF-8"
        return environment

    def after(self, complaint: str) -> HelperLaunch | None:
        """Return the launch to try after the library could not be loaded; None when nothing is left to try."""
        found = _STATIC_TLS.search(complaint)
        if found is None or self.loading is Loading.PRELOAD:
            return None
        return HelperLaunch(
            library=self.library,
            variables=self.variables,
            loading=Loading.PRELOAD,
            preload=found.group(1),
        )


def _module_roots() -> list[str]:
    """Directories from which the helper imports us: the same from which we were imported ourselves."""
    return [str(Path(koala_adapter.__file__).resolve().parents[1])]


# -- The helper process seen from its parent -----------------------------------------------------------------
# Lines go in, lines come out, and it can be killed at any moment. There are no background tasks: each caller waits for
# its own answer, one at a time.

FAREWELL_SECONDS = 5.0
"""How long a helper may take to end its session when its stdin is closed."""

BURIAL_SECONDS = 0.1
"""How long asyncio may take to notice that a process has died."""

LOG_TAIL = 2000
"""Bytes of the helper's stderr that go into an error message, at most."""


class HelperProcess:
    """One running helper."""

    def __init__(self, process: Process, log: Path) -> None:
        """Take over a process; use :meth:`start`."""
        self._process = process
        self._log = log
        if process.stdin is None or process.stdout is None:
            message = "a helper needs pipes for its stdin and stdout"
            raise ValueError(message)
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> HelperProcess:
        """Start a helper; its stderr goes to ``log``, which begins anew. Raises LrmUnavailableError."""
        try:
            with log.open("wb") as stderr:
                process = await anyio.open_process(
                    list(argv),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=dict(environment),
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            message = f"cannot start the DRMAA helper: {error.strerror or error}"
            raise LrmUnavailableError(message, hint=f"look at {log}") from error
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.returncode is None

    async def send(self, line: bytes) -> None:
        """Write one line. Raises LrmUnavailableError when the helper has died."""
        try:
            await self._stdin.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise self._died() from None

    async def receive(self) -> bytes:
        """Return the next line. Raises LrmUnavailableError when the helper has died."""
        try:
            return await self._lines.receive_until(b"\n", LONGEST_LINE)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._died() from None

    async def stop(self) -> None:
        """Close its stdin, wait a little, kill it if need be; return when it is gone."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(anyio.BrokenResourceError, OSError):
                await self._stdin.aclose()
            with anyio.move_on_after(FAREWELL_SECONDS):
                await self._process.wait()
            await self.kill()

    async def kill(self) -> None:
        """Kill it at once; return when it is gone. It may hang in a library call, so nothing else is sure."""
        with anyio.CancelScope(shield=True):
            # If it has just died, it must not be buried twice: by asyncio's watcher, and on the way of a signal to it.
            with anyio.move_on_after(BURIAL_SECONDS):
                await self._process.wait()
            if self.is_running():
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
            await self._process.aclose()

    def _died(self) -> LrmUnavailableError:
        said = self.last_words()
        message = "the DRMAA helper died" + (f": {said}" if said else "")
        return LrmUnavailableError(message, hint=f"it is started again; its log is {self._log}")

    def last_words(self) -> str:
        """Return the last line that it wrote to stderr."""
        try:
            text = self._log.read_bytes()[-LOG_TAIL:].decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""


# -- The client ----------------------------------------------------------------------------------------------

R = TypeVar("R", Opened, Submitted, Controlled, Listed, Done)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
SINGLE_SECONDS = 0.5
"""How much longer a request may take for each of several jobs that are submitted one by one."""
SINGLE_AT_ONCE = 10
"""Jobs of a submission one by one that are one request to the helper."""
LOG_NAME = "drmaa-helper.log"


class HelperDiedError(LrmUnavailableError):
    """The helper process ended while a request was with it."""


class DrmaaClient:
    """The helper of one cluster. Requests go one after another."""

    def __init__(
        self,
        context: ClusterContext,
        launch: HelperLaunch,
        *,
        contact: str = "",
        ledger: Path | None = None,
        request_timeout: float = 20.0,
    ) -> None:
        """Nothing is started yet."""
        self._commands = context.commands
        self._log = context.state_directory / LOG_NAME
        self._launch = launch
        self._open_request = OpenSession(contact=contact, ledger=str(ledger) if ledger else None)
        self._timeout = request_timeout
        self._lock = anyio.Lock()
        self._helper: HelperProcess | None = None
        self._opened: Opened | None = None
        self.library = library_of(str(launch.library or ""))
        """Which library it is: by what it says of itself, and by where it lies until it was loaded."""
        self._number = 0
        self._deaths = 0
        self._retry_at = 0.0
        self.unloadable = False
        """Whether the last helper said that it cannot load the library."""
        self._silent_at = 0.0
        self._silence = ""
        """When it was last found that there is no answer, and in what words."""

    @property
    def helper_pid(self) -> int | None:
        """Process id of the helper, while one runs."""
        return self._helper.pid if self._helper is not None else None

    @property
    def launch(self) -> HelperLaunch:
        """How the helper is started: after the first success, the way that worked."""
        return self._launch

    # -- requests ------------------------------------------------------------------------------------------------

    async def open(self) -> Opened:
        """Start the helper, open the session, and return what library and system it found."""
        async with self._turn():
            return await self._ready()

    async def submit(
        self, template: Template, count: int, *, index_variable: str | None = None
    ) -> tuple[LrmJobId, ...]:
        """Submit ``count`` jobs and return their ids in the order of their indices.

        They go as one bulk, or one by one, each with its index in ``index_variable`` of its environment. One by one
        they go in portions, so that what is urgent need not wait for all of them. When one is refused, those before
        it are ended.
        """
        ids: list[LrmJobId] = []
        portion = count if index_variable is None else SINGLE_AT_ONCE
        for first in range(1, count + 1, portion):
            request = SubmitJobs(
                template=template,
                count=min(portion, count + 1 - first),
                index_variable=index_variable,
                first=first,
                total=count,
            )
            try:
                result = await self._ask(request, Submitted, admitted=first > 1)
            except LrmRejectedError:
                with anyio.CancelScope(shield=True), contextlib.suppress(LrmError):
                    await self.control(ControlAction.TERMINATE, ids, urgent=True)
                raise
            ids += [LrmJobId(id_) for id_ in result.ids]
        return tuple(ids)

    async def control(
        self, action: ControlAction, ids: Sequence[LrmJobId], *, urgent: bool = False
    ) -> tuple[Refusal, ...]:
        """Apply an action to each job; return those with which it did not work."""
        if not ids:
            return ()
        result = await self._ask(ControlJobs(action=action, ids=tuple(ids)), Controlled, urgent=urgent)
        return result.refusals

    async def batches(self, prefix: str) -> tuple[ListedBatch, ...]:
        """Return the batches of the ledger whose name begins with ``prefix``."""
        request = ListBatches(prefix=prefix)
        try:
            return (await self._ask(request, Listed)).batches
        except HelperDiedError:
            # Reading twice does no harm, and its death may only have come to light by the first attempt.
            return (await self._ask(request, Listed)).batches

    async def reach(self) -> None:
        """Return when the LRM has answered something."""
        await self._ask(ReachLrm(), Done)

    async def abandon(self, keys: Sequence[str]) -> None:
        """Stop reporting batches of unknown outcome."""
        await self._ask(AbandonBatches(keys=tuple(keys)), Done, urgent=True)

    async def close(self) -> None:
        """End the helper; jobs go on."""
        async with self._lock:
            helper, self._helper, self._opened = self._helper, None, None
            if helper is not None:
                await helper.stop()

    # -- the helper ----------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, wanted: type[R], *, urgent: bool = False, admitted: bool = False) -> R:
        if not admitted:
            await self._commands.admit(urgent=urgent)
        async with self._turn():
            await self._ready(urgent=urgent)
            with self._commands.timed(type(request).__name__):
                return _expect(await self._exchange(request), wanted)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Have the helper to oneself.

        A library may take 18 s to find that its system does not answer. Who waited for his turn meanwhile is told what
        was found, with LrmUnreachableError because nothing was sent, instead of waiting as long again.
        """
        waiting_since = anyio.current_time()
        async with self._lock:
            if self._silent_at > waiting_since:
                raise LrmUnreachableError(self._silence, hint="it is asked again later")
            try:
                yield
            except HelperDiedError:
                raise
            except LrmUnavailableError as error:
                self._silent_at, self._silence = anyio.current_time(), error.message
                raise

    async def _ready(self, *, urgent: bool = False) -> Opened:
        if self._helper is not None and not self._helper.is_running():
            await self._give_up()
        if self._helper is None:
            await self._start()
        if self._opened is None:
            await self._commands.admit(urgent=urgent)
            with self._commands.timed(type(self._open_request).__name__):
                self._opened = await self._open()
            self.library = library_of(self._opened.system, self._opened.implementation)
        return self._opened

    async def _start(self) -> None:
        wait = self._retry_at - anyio.current_time()
        if wait > 0:
            message = f"the DRMAA helper died {self._deaths} times in a row; it is started again in {wait:.0f} s"
            raise LrmUnavailableError(message, hint=f"its log is {self._log}")
        launch = self._launch
        self._helper = await HelperProcess.start(launch.argv(), launch.environment(), self._log)

    async def _open(self) -> Opened:
        result = await self._exchange(self._open_request)
        while isinstance(result, Failure) and result.kind is FailureKind.LIBRARY:
            await self._stop()
            other = self._launch.after(result.message)
            if other is None:
                break
            self._launch = other
            await self._start()
            result = await self._exchange(self._open_request)
        self.unloadable = isinstance(result, Failure) and result.kind is FailureKind.LIBRARY
        return _expect(result, Opened)

    async def _exchange(self, request: Request) -> Result:
        """Send one request and return its result. A helper that dies or stays silent is given up."""
        helper = self._helper
        if helper is None:
            message = "the DRMAA helper does not run"
            raise LrmUnavailableError(message)
        self._number += 1
        number = self._number
        patience = self._commands.bounded(self._timeout + _further_seconds(request))
        try:
            with anyio.fail_after(patience):
                await helper.send(encode(NumberedRequest(number=number, request=request)))
                while True:
                    answer = decode_result(await helper.receive())
                    # Answers to requests whose asker was cancelled come first.
                    if answer.number == number:
                        break
        except TimeoutError:
            self._commands.unanswered += 1
            await self._give_up()
            message = f"the DRMAA library did not answer {request.op} within {patience:g} s"
            raise LrmUnavailableError(message, hint="its helper was killed; it is started again") from None
        except (LrmUnavailableError, ProtocolError) as error:
            await self._give_up()
            raise HelperDiedError(error.message, hint=error.hint) from None
        if not isinstance(request, OpenSession):
            self._deaths = 0
        return answer.result

    async def _give_up(self) -> None:
        """End a helper that failed. The first may be followed by another at once, later ones after growing pauses."""
        await self._stop()
        self._deaths += 1
        if self._deaths > 1:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._deaths - 2, 10))
            self._retry_at = anyio.current_time() + pause

    async def _stop(self) -> None:
        helper, self._helper, self._opened = self._helper, None, None
        if helper is not None:
            await helper.kill()


def _further_seconds(request: Request) -> float:
    if isinstance(request, SubmitJobs) and request.index_variable is not None:
        return SINGLE_SECONDS * request.count
    return 0.0


def _expect(result: Result, wanted: type[R]) -> R:
    if isinstance(result, wanted):
        return result
    if isinstance(result, Failure):
        raise error_of(result.kind, result.message)
    message = f"the DRMAA helper answered {result.result!r}"
    raise LrmUnavailableError(message, hint="plugin and helper must be of one version")
