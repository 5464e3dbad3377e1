# SPDX-License-Identifier: Apache-2.0
"""Where every user of the host may ask about one job of a batch system, and do nothing else.

A question is one short line, the answer is one line, then it is closed. Whoever asks is told from others by the kernel,
so that no user can hold all places. What this costs the scheduler, in whose process it runs, is bounded: after each
answer, and after each round of admission, it rests for many times as long as that took. Answers are read from what the
scheduler has noted; no question reaches a policy, a record, or the batch system.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import structlog
from pydantic import TypeAdapter

from koala_adapter.errors import JobNotFoundError
from koala_adapter.net.unixsocket import peer_user
from koala_adapter.ordering.explanations import Explanation, explain_as_noted
from koala_adapter.ordering.publicpath import PublicPath
from koala_adapter.ordering.timeofday import as_read

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.host.clock import ServiceClock
    from koala_adapter.ordering.mirror import Mirror

PLACES = 32
"""Connections at once."""
PLACES_OF_ONE = 4
"""Of one user."""
QUESTION_LIMIT = 512
"""Bytes of a question."""
QUESTION_SECONDS = 5.0
"""A question has arrived by then."""
ANSWER_SECONDS = 30.0
"""A place is free again by then, whatever whoever asked does."""
REST = 19
"""Times as long as something took is rested after it: letting in and answering get a twentieth of a processor each."""
ROUND = 64
"""Connections that are taken in before it rests."""
SHORTEST_REST = 0.001
WITHOUT_ACCEPT = 0.1
"""Seconds of rest when nobody can be taken in, as there are no descriptors."""

BUSY = json.dumps({"busy": True}).encode() + b"\n"
JOB_ID = re.compile(r"[!-~]{1,128}")

_EXPLANATION = TypeAdapter(Explanation)

log = structlog.get_logger()


def explained_as_noted(mirror: Mirror, clock: ServiceClock) -> Callable[[str], Explanation]:
    """Return what explains the jobs of a mirror in times of day without asking its policies."""
    return lambda job_id: as_read(explain_as_noted(mirror, job_id), clock.offset)


class AskSocket:
    """Answers any user's questions about the jobs of one batch system."""

    def __init__(self, explain_job: Callable[[str], Explanation], path: Path) -> None:
        """Listen at ``path``. ``explain_job`` raises JobNotFoundError; it changes nothing."""
        self._explain_job = explain_job
        self._path = PublicPath(path)
        self._held: Counter[int] = Counter()
        """Places by user id."""
        self._turn = anyio.Lock()
        self._failed = False

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled.

        Raises ConfigurationError when another user could put something else in its place, and ServiceRunningError when
        somebody answers there already.
        """
        with self._path.listening() as listener:
            async with anyio.create_task_group() as tasks:
                task_status.started()
                while True:
                    await anyio.wait_readable(listener)
                    begun = time.perf_counter()
                    went_well = self._admit(listener, tasks)
                    rest = max(SHORTEST_REST, REST * (time.perf_counter() - begun))
                    await anyio.sleep(rest if went_well else WITHOUT_ACCEPT)

    def _admit(self, listener: socket.socket, tasks: TaskGroup) -> bool:
        """Give places to those who have connected; tell whether that was possible."""
        for _ in range(ROUND):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return True
            except OSError:
                return False
            self._give_place(connection, tasks)
        return True

    def _give_place(self, connection: socket.socket, tasks: TaskGroup) -> None:
        try:
            connection.settimeout(0)
            user = peer_user(connection)
            if self._held[user] >= PLACES_OF_ONE or self._held.total() >= PLACES:
                with connection:
                    connection.send(BUSY)
                return
        except OSError:
            connection.close()
            return
        self._held[user] += 1
        tasks.start_soon(self._converse, connection, user)

    async def _converse(self, connection: socket.socket, user: int) -> None:
        try:
            with connection, suppress(OSError), anyio.move_on_after(ANSWER_SECONDS):
                question = await _read_line(connection)
                if question is not None:
                    async with self._turn:
                        begun = time.perf_counter()
                        answer = self._answer(question)
                        await anyio.sleep(REST * (time.perf_counter() - begun))
                    await _send(connection, answer)
        finally:
            self._held[user] -= 1
            if not self._held[user]:
                del self._held[user]

    def _answer(self, line: bytes) -> bytes:
        job_id = job_asked_for(line)
        if job_id is None:
            return _refusal("malformed question: one job id is expected")
        try:
            return _EXPLANATION.dump_json(self._explain_job(job_id)) + b"\n"
        except JobNotFoundError as error:
            return _refusal(error.message, error.hint)
        except Exception as error:  # noqa: BLE001 - whatever a stranger asks for must not end the scheduler
            if not self._failed:
                log.warning("a question about a job could not be answered", job=job_id, error=repr(error))
            self._failed = True
            return _refusal(f"job {job_id} cannot be explained now")


def job_asked_for(line: bytes) -> str | None:
    """Return the job id of a question; None when it is not one."""
    try:
        question = json.loads(line)
    except (ValueError, RecursionError):
        return None
    job_id = question.get("job_id") if isinstance(question, dict) and len(question) == 1 else None
    return job_id if isinstance(job_id, str) and JOB_ID.fullmatch(job_id) else None


def _refusal(message: str, hint: str = "") -> bytes:
    return json.dumps({"error": message, "hint": hint}).encode() + b"\n"


async def _read_line(connection: socket.socket) -> bytes | None:
    """Return what a peer sends up to the end of a line, or so much that it is none; None when that does not come."""
    read = b""
    with anyio.move_on_after(QUESTION_SECONDS):
        while len(read) <= QUESTION_LIMIT:
            await anyio.wait_readable(connection)
            with suppress(BlockingIOError):
                more = connection.recv(QUESTION_LIMIT + 1 - len(read))
                read += more
                line, end, _ = read.partition(b"\n")
                if end:
                    return line
                if not more:
                    return None
        return read
    return None


async def _send(connection: socket.socket, text: bytes) -> None:
    left = memoryview(text)
    while left:
        with suppress(BlockingIOError):
            left = left[connection.send(left) :]
            continue
        await anyio.wait_writable(connection)
