# SPDX-License-Identifier: Apache-2.0
"""Where workers get their tasks: an event loop in a thread of its own, which each task leaves and comes back to.

A task that was lost with its worker is given to another one, so it may be begun more than once; its future gets one
result. Only who has the token gets a task.
"""

from __future__ import annotations

import asyncio
import pickle
import secrets
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import KoalaError
from koala_adapter.pull.server import TOKEN_BYTES, PullServer, listening_socket

if TYPE_CHECKING:
    from concurrent.futures import Future

    from koala_adapter.pull.server import Puller
    from koala_adapter.vjm.certificate import Certificate

LOSSES = 3
"""Workers that may be lost with one task before it is taken as what ends them."""


class RemoteTracebackError(Exception):
    """Stands as the cause of an exception for where it was raised on a node."""

    def __str__(self) -> str:
        """The traceback there."""
        return f"\n{self.args[0]}"


@dataclass(slots=True, eq=False)
class Task:
    """What is to be done once."""

    payload: bytes
    future: Future[Any]
    begun: bool = False
    losses: int = 0


@dataclass(slots=True, eq=False)
class _Board:
    """Tasks that wait; used in the event loop alone."""

    waiting: deque[Task] = field(default_factory=deque)
    failure: KoalaError | None = None


class TaskServer:
    """Listens for workers and hands out tasks."""

    def __init__(self, host: str, certificate: Certificate) -> None:
        """Listen on an address, at a free port. Raises OSError."""
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._board = _Board()
        self._server = PullServer(self, self.token)
        self._loop = asyncio.new_event_loop()
        listening = listening_socket(host)
        self.port = int(listening.getsockname()[1])
        self._server.listen(listening, certificate, self._loop)
        self._thread = threading.Thread(target=self._run, name="koala.Executor", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> int:
        """How many workers are there now."""
        return len(self._server.pullers)

    def add(self, task: Task) -> None:
        """Have a task done."""
        self._loop.call_soon_threadsafe(self._add, task)

    def fail(self, error: KoalaError) -> None:
        """Let all that is not done, and all that comes, end with this."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def close(self) -> None:
        """Say goodbye to the workers and end. What is not done ends as cancelled, or with an error."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._fail(KoalaError("the executor was shut down"))
            self._loop.run_until_complete(self._all_ended())
            self._loop.close()

    async def _all_ended(self) -> None:
        """Close all connections, and those that are being made, and wait until nobody is at them."""
        await self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for one in others:
            one.cancel()  # the event loop's own, at a handshake
        await asyncio.gather(*others, return_exceptions=True)

    # ---- in the event loop ------------------------------------------------------------------------------------------

    def _add(self, task: Task) -> None:
        if self._board.failure is not None:
            _end(task, self._board.failure)
            return
        self._board.waiting.append(task)
        self._server.dispatch()

    def _fail(self, error: KoalaError) -> None:
        board = self._board
        board.failure = board.failure or error
        at_work = [one for worker in self._server.pullers if (one := _taken(worker)) is not None]
        for task in (*at_work, *board.waiting):
            _end(task, board.failure)
        board.waiting.clear()

    def came(self, puller: Puller) -> None:
        """See Board."""
        self._server.free(puller)

    def work_for(self, puller: Puller) -> bytes | None:
        """See Board."""
        waiting = self._board.waiting
        while waiting:
            task = waiting.popleft()
            if task.begun or task.future.set_running_or_notify_cancel():
                task.begun = True
                puller.work = task
                return task.payload
        return None

    def heard(self, puller: Puller, frame: bytes) -> None:
        """See Board: it is an answer."""
        task = _taken(puller)
        if task is not None:
            _settle(task, frame)
        self._server.free(puller)

    def gone(self, puller: Puller) -> None:
        """See Board."""
        task = _taken(puller)
        if task is None:
            return
        task.losses += not puller.leaving
        if task.losses >= LOSSES:
            message = f"the task was lost with each of {LOSSES} workers that were at it"
            _end(task, KoalaError(message, hint="see what they wrote: executor.job.logs(stderr=True)"))
        else:
            self._board.waiting.appendleft(task)
            self._server.dispatch()


def _taken(puller: Puller) -> Task | None:
    """Return the task that somebody is at, and is no longer."""
    task, puller.work = puller.work, None
    return task if isinstance(task, Task) else None


def _settle(task: Task, frame: bytes) -> None:
    """Give a future what its worker answered. The workers are ours, they have shown the token."""
    try:
        good, *found = pickle.loads(frame)  # noqa: S301 - see above
    except Exception as error:  # noqa: BLE001 - of a class that cannot be made here
        task.future.set_exception(error)
        return
    if good:
        task.future.set_result(found[0])
        return
    raised, text = found
    raised.__cause__ = RemoteTracebackError(text)
    task.future.set_exception(raised)


def _end(task: Task, error: KoalaError) -> None:
    if task.begun or task.future.set_running_or_notify_cancel():
        task.future.set_exception(error)
