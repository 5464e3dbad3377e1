# SPDX-License-Identifier: Apache-2.0
"""DRMAA for a plugin: typed requests to the helper of one cluster, which is started when needed and again when it dies.

The bound of requests is kept here (each request of ours is one, a submission of several jobs too), and so is the bound
in time: a call may hang in the library, so a helper that does not answer is killed.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio

from koala_adapter.errors import LrmUnavailableError, LrmUnreachableError, ProtocolError
from koala_adapter.model import LrmJobId
from koala_drmaa.classify import error_of
from koala_drmaa.libraries import library_of
from koala_drmaa.process import HelperProcess
from koala_drmaa.protocol import (
    AbandonBatches,
    ControlAction,
    ControlJobs,
    Controlled,
    Done,
    Failure,
    FailureKind,
    ListBatches,
    Listed,
    NumberedRequest,
    Opened,
    OpenSession,
    ReachLrm,
    Refusal,
    SubmitJobs,
    Submitted,
    encode,
)
from koala_drmaa.resultlines import decode_result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from koala_adapter.plugin import ClusterContext
    from koala_drmaa.environment import HelperLaunch
    from koala_drmaa.protocol import ListedBatch, Request, Result, Template

R = TypeVar("R", Opened, Submitted, Controlled, Listed, Done)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
SINGLE_SECONDS = 0.5
"""How much longer a request may take for each of several jobs that are submitted one by one."""
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

        They go as one bulk, or one by one, each with its index in ``index_variable`` of its environment.
        """
        request = SubmitJobs(template=template, count=count, index_variable=index_variable)
        result = await self._ask(request, Submitted)
        return tuple(LrmJobId(id_) for id_ in result.ids)

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

    async def _ask(self, request: Request, wanted: type[R], *, urgent: bool = False) -> R:
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
