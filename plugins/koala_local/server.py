# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of the socket: one request per connection, from processes of the same user only."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from koala_adapter import __version__
from koala_adapter.errors import LrmError, LrmRejectedError, ProtocolError
from koala_local.cluster import Request
from koala_local.layout import Layout
from koala_local.protocol import LONGEST_MESSAGE, Fields, decode, encode, failure, peer_user

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from koala_local.cluster import LocalCluster
    from koala_local.protocol import Json

READ_SECONDS = 30.0
"""Seconds that a client may take for its request or for reading the answer."""


class Server:
    """Answers requests to a cluster."""

    def __init__(self, cluster: LocalCluster, *, asked: Callable[[], None]) -> None:
        """``asked`` is called for each request, so that the daemon knows that it is still needed."""
        self._cluster = cluster
        self._asked = asked

    async def start(self, listening: socket.socket) -> asyncio.Server:
        """Serve on a bound socket."""
        return await asyncio.start_unix_server(self._serve, sock=listening, backlog=128)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._asked()
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    if peer_user(writer.get_extra_info("socket")) not in {0, os.geteuid()}:
                        return
                    raw = await _read_all(reader)
                    writer.write(encode(self.answer(raw)))
                    await writer.drain()
        finally:
            writer.close()

    def answer(self, raw: bytes) -> dict[str, Json]:
        """Do what one request asks and return the answer."""
        try:
            fields = decode(raw)
            operation = OPERATIONS.get(fields.text("operation"))
            if operation is None:
                raise LrmRejectedError(f"this daemon ({__version__}) cannot {fields.text('operation')!r}")
            return operation(self._cluster, fields)
        except ProtocolError as error:
            return failure(LrmRejectedError(f"request not understood: {error.message}"))
        except LrmError as error:
            return failure(error)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    raw = bytearray()
    while piece := await reader.read(1 << 20):
        raw += piece
        if len(raw) > LONGEST_MESSAGE:
            raise TimeoutError
    return bytes(raw)


def _configure(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.configure(Layout.from_json(fields.object("layout")))
    return {"version": __version__, "pid": os.getpid()}


def _version(_cluster: LocalCluster, _fields: Fields) -> dict[str, Json]:
    return {"version": __version__, "pid": os.getpid()}


def _nodes(cluster: LocalCluster, _fields: Fields) -> dict[str, Json]:
    used = cluster.used()
    return {
        "nodes": [
            {"name": node.name, "processors": node.processors, "used": used.get(node.name, 0)}
            for node in cluster.layout.nodes
        ]
    }


def _jobs(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    return {"jobs": [job.to_json() for job in cluster.jobs(fields.text("prefix"))]}


def _submit(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    request = Request(
        name=fields.text("name"),
        user=fields.text("user"),
        count=fields.integer("count"),
        script=fields.text("script"),
        walltime=fields.integer("walltime"),
        output_directory=fields.text("output_directory"),
        queue=fields.optional_text("queue"),
        held=fields.flag("held"),
    )
    return {"ids": [str(id_) for id_ in cluster.submit(request)]}


def _cancel(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.cancel(fields.texts("ids"))
    return {}


def _hold(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.hold(fields.texts("ids"))
    return {}


def _release(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.release(fields.texts("ids"))
    return {}


def _start_on(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.start_on(fields.text("id"), fields.texts("nodes"))
    return {}


def _suspend(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.suspend(fields.texts("ids"))
    return {}


def _resume(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.resume(fields.texts("ids"))
    return {}


def _requeue(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.requeue(fields.texts("ids"))
    return {}


def _signal(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.signal(fields.texts("ids"), fields.integer("signal"))
    return {}


def _modify(cluster: LocalCluster, fields: Fields) -> dict[str, Json]:
    cluster.modify(fields.text("id"), fields.integer("walltime"))
    return {}


OPERATIONS: Mapping[str, Callable[[LocalCluster, Fields], dict[str, Json]]] = {
    "configure": _configure,
    "version": _version,
    "nodes": _nodes,
    "jobs": _jobs,
    "submit": _submit,
    "cancel": _cancel,
    "hold": _hold,
    "release": _release,
    "start_on": _start_on,
    "suspend": _suspend,
    "resume": _resume,
    "requeue": _requeue,
    "signal": _signal,
    "modify": _modify,
}
