# SPDX-License-Identifier: Apache-2.0
"""``koala explain`` for jobs of a batch system: whoever owns its order answers on a Unix socket of its own.

One question a connection, one JSON line each way; only processes of the same user are heard.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import TypeAdapter, ValidationError

from koala_adapter.errors import JobNotFoundError, KoalaError, ProtocolError, ServiceUnavailableError
from koala_adapter.net.accepting import serve_streams
from koala_adapter.net.unixsocket import reachable, same_user
from koala_adapter.ordering.explanations import Explanation, explain
from koala_adapter.ordering.timeofday import as_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anyio.abc import SocketStream, TaskStatus

    from koala_adapter.host.clock import ServiceClock
    from koala_adapter.ordering.mirror import Mirror

SOCKET_NAME = "schedule.sock"
LINE_LIMIT = 65_536
ANSWER_SECONDS = 10.0
ASK_SECONDS = 30.0

EXPLANATION = TypeAdapter(Explanation)


def explained_by(mirror: Mirror, clock: ServiceClock) -> Callable[[str], Explanation]:
    """Return what explains the jobs of a mirror in times of day; ``clock``: that of the mirror."""
    return lambda job_id: as_read(explain(mirror, job_id, clock.now()), clock.offset)


class ExplainServer:
    """Answers questions about the jobs of one batch system."""

    def __init__(self, explain_job: Callable[[str], Explanation], directory: Path) -> None:
        """Listen in ``directory``, which must be there when :meth:`serve` is called.

        ``explain_job`` raises JobNotFoundError.
        """
        self._explain_job = explain_job
        self._path = directory / SOCKET_NAME

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        with reachable(self._path) as name:
            listener = await anyio.create_unix_listener(name, mode=0o600)
        try:
            async with listener:
                task_status.started()
                await serve_streams(listener, self._converse)
        finally:
            with suppress(FileNotFoundError):
                self._path.unlink()

    async def _converse(self, stream: SocketStream) -> None:
        async with stream:
            if not same_user(stream.extra(SocketAttribute.raw_socket)):
                return
            with (
                suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.DelimiterNotFound),
                anyio.move_on_after(ANSWER_SECONDS),
            ):
                line = await BufferedByteReceiveStream(stream).receive_until(b"\n", LINE_LIMIT)
                await stream.send(self._answer(line) + b"\n")

    def _answer(self, line: bytes) -> bytes:
        try:
            question = json.loads(line)
            return EXPLANATION.dump_json(self._explain_job(str(question["job_id"])))
        except KoalaError as error:
            return json.dumps({"error": error.message, "hint": error.hint}).encode()
        except (ValueError, LookupError, TypeError) as error:
            return json.dumps({"error": f"malformed question: {error}", "hint": ""}).encode()


def ask_explanation(directory: Path, cluster: str, job_id: str) -> Explanation:
    """Ask the running scheduler of a cluster about a job.

    Raises JobNotFoundError, and ServiceUnavailableError when none runs.
    """
    line = _ask(directory, cluster, {"job_id": job_id})
    return read_answer(line)


def read_answer(line: bytes) -> Explanation:
    """Return what a scheduler answered. Raises JobNotFoundError, and ProtocolError when it cannot be read."""
    try:
        return EXPLANATION.validate_json(line)
    except ValidationError:
        raise _refusal(line) from None


def _refusal(line: bytes) -> KoalaError:
    try:
        told = json.loads(line)
        return JobNotFoundError(str(told["error"]), hint=str(told["hint"]))
    except (ValueError, LookupError, TypeError):
        return ProtocolError("the scheduler gave an answer that cannot be read")


def _ask(directory: Path, cluster: str, question: dict[str, str]) -> bytes:
    path = directory / SOCKET_NAME
    try:
        with reachable(path) as name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ASK_SECONDS)
            connection.connect(name)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as lines:
                return lines.readline()
    except OSError as error:
        raise ServiceUnavailableError(
            f"no `koala schedule` (or `koala wiki serve`) for cluster {cluster} answers in {directory}: "
            f"{error.strerror or error}",
            hint=f"start it with `koala schedule --cluster {cluster}`, as the same user and with the same --state; one "
            "that an administrator runs is asked at its ask_socket, see `koala docs schedule`",
        ) from error
