# SPDX-License-Identifier: Apache-2.0
"""Helper processes: a library that may abort, hang or be of another licence runs in a process of its own.

One request is one line, its result is one line with the same number. In order: the process seen from its parent, and
the client that asks it: one request at a time, each with a limit in time, with pauses between starts of a helper that
keeps dying. What the lines say is the business of a client's subclass.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from koala_adapter.errors import LrmUnavailableError, LrmUnreachableError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.lrm.lrmhost import HostProcess

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of one request or result."""

# -- The process, seen from its parent -----------------------------------------------------------------------
# Lines go in, lines come out, and it can be killed at any moment. There are no background tasks: each caller waits for
# its own answer, one at a time.

FAREWELL_SECONDS = 5.0
"""How long a helper may take to end its session when its stdin is closed."""

LOG_TAIL = 2000
"""Bytes of the helper's stderr that go into an error message, at most."""


class HelperProcess:
    """One running helper."""

    def __init__(self, process: HostProcess, log: Path, *, called: str) -> None:
        """Take over a process. ``called``: its name in messages."""
        self._called = called
        self._process = process
        self._log = log
        self._rest = bytearray()

    @property
    def pid(self) -> int | None:
        """Process id, of one on this host."""
        return self._process.pid

    def is_running(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.running

    async def send(self, line: bytes) -> None:
        """Write one line. Raises LrmUnavailableError when the helper has died."""
        try:
            await self._process.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise self._died() from None

    async def receive(self) -> bytes:
        """Return the next line. Raises LrmUnavailableError when the helper has died."""
        looked = 0
        try:
            while (end := self._rest.find(b"\n", looked)) < 0:
                looked = len(self._rest)
                if looked > LONGEST_LINE:
                    raise self._died()
                self._rest += await self._process.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._died() from None
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    async def stop(self) -> None:
        """Close its stdin, wait a little, kill it if need be; return when it is gone."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(anyio.BrokenResourceError, OSError):
                await self._process.end_input()
            with anyio.move_on_after(FAREWELL_SECONDS):
                await self._process.ended()
            await self.kill()

    async def kill(self) -> None:
        """Kill the helper and wait for its end. It may hang in a library call, so no request could end it."""
        with anyio.CancelScope(shield=True):
            await self._process.kill()

    def _died(self) -> LrmUnavailableError:
        said = self.last_words()
        message = f"the {self._called} helper died" + (f": {said}" if said else "")
        where = "" if self._process.pid is None else f"; its log is {self._log}"
        return LrmUnavailableError(message, hint=f"it is started again{where}")

    def last_words(self) -> str:
        """Return the last line on its stderr."""
        text = self._process.complaints()[-LOG_TAIL:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""


# -- The client ----------------------------------------------------------------------------------------------

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

OPEN = "open"
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class HelperDiedError(LrmUnavailableError):
    """The helper process ended while a request was with it."""


class HelperClient(ABC, Generic[RequestT, ResultT]):
    """The helper of one cluster, started when needed and again when it dies. Requests go one after another."""

    called = ""
    """What its messages call the helper: ``DRMAA``."""

    def __init__(self, context: ClusterContext, *, log: str, request_timeout: float) -> None:
        """Nothing is started yet. ``log``: name of the file in the state directory that gets the helper's stderr."""
        self._commands = context.commands
        self._host = context.host
        self._log = context.state_directory / log
        self._timeout = request_timeout
        self._lock = anyio.Lock()
        self._helper: HelperProcess | None = None
        self._number = 0
        self.deaths = 0
        """Helpers lost in a row since the last answered request."""
        self._retry_at = 0.0
        self._silent_at = 0.0
        self._silence = ""
        """When it was last found that there is no answer, and in what words."""

    @property
    def helper_pid(self) -> int | None:
        """Process id of the helper, while one runs."""
        return self._helper.pid if self._helper is not None else None

    async def close(self) -> None:
        """End the helper."""
        async with self._lock:
            helper, self._helper = self._helper, None
            self._forget_session()
            if helper is not None:
                await helper.stop()

    # -- what a subclass says ------------------------------------------------------------------------------------

    @abstractmethod
    async def _launched(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return command line of the helper, and the variables that its environment has in addition."""

    def _first_words(self) -> bytes:
        """Return what the helper is to read before any request."""
        return b""

    @abstractmethod
    def _encode(self, number: int, request: RequestT) -> bytes:
        """Return a request as one line."""

    @abstractmethod
    def _decode(self, line: bytes) -> tuple[int, ResultT]:
        """Return the number and the result of one line. Raises ProtocolError."""

    @abstractmethod
    def _forget_session(self) -> None:
        """Reset what was known of the helper that has just ended."""

    # -- asking --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold the lock of the helper during the block.

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

    async def _running(self) -> None:
        """Wait for a running helper. Raises LrmUnavailableError during the pause after repeated failures."""
        if self._helper is not None and not self._helper.is_running():
            await self._give_up()
        if self._helper is None:
            await self._start()

    async def _start(self) -> None:
        wait = self._retry_at - anyio.current_time()
        if wait > 0:
            message = f"the {self.called} helper died {self.deaths} times in a row; it is started again in {wait:.0f} s"
            raise LrmUnavailableError(message, hint=f"its log is {self._log}")
        argv, environment = await self._launched()
        try:
            process = await self._host.start(argv, environment, self._log)
        except OSError as error:
            message = f"cannot start the {self.called} helper: {error.strerror or error}"
            raise LrmUnavailableError(message, hint=f"look at {self._log}") from error
        self._helper = HelperProcess(process, self._log, called=self.called)
        if first := self._first_words():
            await self._helper.send(first)

    async def _exchange(self, request: RequestT, operation: str, *, further: float = 0.0) -> ResultT:
        """Send one request and return its result. A helper that dies or stays silent is given up.

        ``operation``: its name for messages; with OPEN the library is only opened, which does not prove that the helper
        works. ``further``: seconds that it may take beyond the usual.
        """
        helper = self._helper
        if helper is None:
            message = f"the {self.called} helper does not run"
            raise LrmUnavailableError(message)
        self._number += 1
        number = self._number
        patience = self._commands.bounded(self._timeout + further)
        try:
            with anyio.fail_after(patience):
                await helper.send(self._encode(number, request))
                while True:
                    answered, result = self._decode(await helper.receive())
                    # Answers to requests whose asker was cancelled come first.
                    if answered == number:
                        break
        except TimeoutError:
            self._commands.unanswered += 1
            await self._give_up()
            message = f"the {self.called} library did not answer {operation} within {patience:g} s"
            raise LrmUnavailableError(message, hint="its helper was killed; it is started again") from None
        except (LrmUnavailableError, ProtocolError) as error:
            await self._give_up()
            raise HelperDiedError(error.message, hint=error.hint) from None
        if operation != OPEN:
            self.deaths = 0
        return result

    async def _give_up(self) -> None:
        """Kill a failed helper. The first is replaced at once, later ones after growing pauses."""
        await self._stop()
        self.deaths += 1
        if self.deaths > 1:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.deaths - 2, 10))
            self._retry_at = anyio.current_time() + pause

    async def _stop(self) -> None:
        helper, self._helper = self._helper, None
        self._forget_session()
        if helper is not None:
            await helper.kill()
