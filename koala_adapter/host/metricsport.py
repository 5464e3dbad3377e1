# SPDX-License-Identifier: Apache-2.0
"""HTTP endpoint for ``GET /metrics`` only, with bounds on the connections, size and time of clients."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute

from koala_adapter import host
from koala_adapter.errors import ServiceRunningError
from koala_adapter.host.accepting import Admission, accepted, parts

if TYPE_CHECKING:
    from anyio.abc import SocketListener, SocketStream, TaskGroup, TaskStatus

    from koala_adapter.host.metrics import Meter


LONGEST_HEAD = 16_384
"""Bytes of a request."""
PATIENCE = 10.0
"""Seconds that a request may take to come, and a reply to be taken."""
MOST_CONNECTIONS = 128
"""Those that may be there at a time; then the one that has been there longest must go."""
FAIR_CHANCE = 0.25
"""Seconds that it has had by then at least."""


class MetricsEndpoint:
    """The metrics of one process on a TCP port."""

    def __init__(self, meter: Meter, listen: str, port: int) -> None:
        """``listen``: an address of this host. ``port``: 0: any free one."""
        self._meter = meter
        self._listen = listen
        self._port = port
        self._admission = Admission(limit=MOST_CONNECTIONS, time_limit=PATIENCE, patience=FAIR_CHANCE)

    async def serve(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve metrics until cancelled; report the port once it is open. Raises ServiceRunningError when taken."""
        try:
            listener = await anyio.create_tcp_listener(local_host=self._listen, local_port=self._port)
        except OSError as error:
            message = f"cannot listen for metrics on {self._listen} port {self._port}: {error.strerror or error}"
            raise ServiceRunningError(message, hint="is another program there? give another --metrics-port") from error
        async with listener:
            task_status.started(listener.extra(SocketAttribute.local_port))
            async with anyio.create_task_group() as tasks:
                for one in parts(listener):
                    tasks.start_soon(self._accept, one, tasks)

    async def _accept(self, listener: SocketListener, tasks: TaskGroup) -> None:
        while True:
            await self._admission.room()
            tasks.start_soon(self._converse, await accepted(listener))

    async def _converse(self, stream: SocketStream) -> None:
        async with stream:
            with (
                suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream),
                self._admission.applicant(),
            ):
                head = await _head(stream)
                await stream.send(self._reply(head))

    def _reply(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n")
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", b"", "Allow: GET, HEAD")
        body = host.openmetrics(self._meter)
        return _response("200 OK", body, kind=host.CONTENT_TYPE, told=method == b"GET")


async def _head(stream: SocketStream) -> bytes:
    """Return the request up to the empty line. Raises EndOfStream when it is cut short or too long."""
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        if len(head) > LONGEST_HEAD:
            raise anyio.EndOfStream
        head += await stream.receive(LONGEST_HEAD)
    return head


def _response(
    status: str, body: bytes, *headers: str, kind: str = "text/plain; charset=utf-8", told: bool = True
) -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii") + (body if told else b"")
