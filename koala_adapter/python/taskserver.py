# SPDX-License-Identifier: Apache-2.0
"""Where workers get their tasks: an event loop in a thread of its own, which each task leaves and comes back to.

A task that was lost with its worker is given to another one, so it may be begun more than once; its future gets one
result. Only who has the token gets a task.
"""

from __future__ import annotations

import asyncio
import hmac
import pickle
import secrets
import ssl
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import KoalaError
from koala_adapter.python.taskworker import LEAVING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from koala_adapter.vjm.certificate import Certificate

TOKEN_BYTES = 32
LOSSES = 3
"""Workers that may be lost with one task before it is taken as what ends them."""
CLOSING_STEPS = 5
"""Turns of the event loop in which connections that were closed let go of their sockets."""
PROVING = 30.0
"""Seconds in which who connects must show the token."""
_LENGTH = struct.Struct(">Q")


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
class _Worker:
    writer: asyncio.StreamWriter
    task: Task | None = None
    leaving: bool = False


@dataclass(slots=True, eq=False)
class _Board:
    """Tasks that wait and workers that do; used in the event loop alone."""

    waiting: deque[Task] = field(default_factory=deque)
    idle: deque[_Worker] = field(default_factory=deque)
    workers: set[_Worker] = field(default_factory=set)
    connected: dict[asyncio.Task[None], _Worker] = field(default_factory=dict)
    """Those, and whoever has not shown the token yet, by the tasks that converse with them."""
    failure: KoalaError | None = None


class TaskServer:
    """Listens for workers and hands out tasks."""

    def __init__(self, host: str, certificate: Certificate) -> None:
        """Listen on an address, at a free port. Raises OSError."""
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.port = 0
        self._board = _Board()
        self._loop = asyncio.new_event_loop()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.path)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accepted, host, 0, ssl=context))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._run, name="koala.Executor", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> int:
        """How many workers are there now."""
        return len(self._board.workers)

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
            self._server.close()
            self._fail(KoalaError("the executor was shut down"))
            self._loop.run_until_complete(self._all_ended())
            self._loop.close()

    # ---- in the event loop ------------------------------------------------------------------------------------------

    def _add(self, task: Task) -> None:
        if self._board.failure is not None:
            _end(task, self._board.failure)
            return
        self._board.waiting.append(task)
        self._dispatch()

    def _fail(self, error: KoalaError) -> None:
        board = self._board
        board.failure = board.failure or error
        at_work = [worker.task for worker in board.workers if worker.task is not None]
        for task in (*at_work, *board.waiting):
            _end(task, board.failure)
        board.waiting.clear()
        for worker in board.workers:
            worker.task = None

    def _dispatch(self) -> None:
        board = self._board
        while board.waiting and board.idle:
            task = board.waiting.popleft()
            if not task.begun and not task.future.set_running_or_notify_cancel():
                continue
            task.begun = True
            worker = board.idle.popleft()
            worker.task = task
            worker.writer.write(_LENGTH.pack(len(task.payload)) + task.payload)

    async def _all_ended(self) -> None:
        """Close all connections, and those that are being made, and wait until nobody is at them."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for one in others - self._board.connected.keys():
                one.cancel()  # the event loop's own, at a handshake
            for worker in self._board.connected.values():
                worker.writer.transport.abort()
            await asyncio.wait(others)
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = _Worker(writer)
        conversation = self._loop.create_task(self._converse(worker, reader))
        self._board.connected[conversation] = worker
        conversation.add_done_callback(self._board.connected.pop)

    async def _converse(self, worker: _Worker, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(PROVING):
                shown = await reader.readexactly(TOKEN_BYTES)
            if not hmac.compare_digest(shown, self.token):
                return
            self._board.workers.add(worker)
            self._free(worker)
            while True:
                (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                self._answered(worker, await reader.readexactly(size))
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            self._gone(worker)
            worker.writer.close()

    def _free(self, worker: _Worker) -> None:
        if not worker.leaving:
            self._board.idle.append(worker)
            self._dispatch()

    def _answered(self, worker: _Worker, frame: bytes) -> None:
        if frame == LEAVING:
            worker.leaving = True
            return
        task, worker.task = worker.task, None
        if task is not None:
            _settle(task, frame)
        self._free(worker)

    def _gone(self, worker: _Worker) -> None:
        board = self._board
        board.workers.discard(worker)
        if worker in board.idle:
            board.idle.remove(worker)
        task, worker.task = worker.task, None
        if task is None:
            return
        task.losses += not worker.leaving
        if task.losses >= LOSSES:
            message = f"the task was lost with each of {LOSSES} workers that were at it"
            _end(task, KoalaError(message, hint="see what they wrote: executor.job.logs(stderr=True)"))
        else:
            board.waiting.appendleft(task)
            self._dispatch()


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
