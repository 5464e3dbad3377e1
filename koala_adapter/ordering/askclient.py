# SPDX-License-Identifier: Apache-2.0
"""Asking the scheduler of a batch system about a job at the socket that is there for every user of the host."""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import suppress
from random import SystemRandom
from typing import TYPE_CHECKING

from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.net.unixsocket import reachable
from koala_adapter.ordering.explainserver import read_answer

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.ordering.explanations import Explanation

ASK_SECONDS = 60
"""So long it is tried while too many others ask."""
ANSWER_LIMIT = 4_194_304
"""Bytes of an answer, which names the nodes of a job."""
PAUSE = 0.1
"""Seconds, or up to twice as many, between two tries."""


def ask_in_public(path: Path, cluster: str, job_id: str) -> Explanation:
    """Ask at the socket of the cluster's scheduler, whoever runs it.

    Raises JobNotFoundError, and ServiceUnavailableError when nobody answers there.
    """
    question = json.dumps({"job_id": job_id}).encode() + b"\n"
    until = time.monotonic() + ASK_SECONDS
    while time.monotonic() < until:
        try:
            line = _asked_once(path, question)
        except OSError as error:
            raise ServiceUnavailableError(
                f"no `koala schedule` for cluster {cluster} answers at {path}: {error.strerror or error}",
                hint="its administrator starts one there with --ask-socket, see `koala docs schedule`",
            ) from error
        if line is not None:
            return read_answer(line)
        time.sleep(SystemRandom().uniform(PAUSE, 2 * PAUSE))
    raise ServiceUnavailableError(
        f"too many others ask at {path}: no answer within {ASK_SECONDS} s", hint="ask again later"
    )


def _asked_once(path: Path, question: bytes) -> bytes | None:
    """Return the answer; None when there was no place for the question. Raises OSError."""
    with reachable(path) as name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Unlike a time-out of Python's it has the kernel queue us while too many others connect, socket(7).
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", ASK_SECONDS, 0))
        try:
            connection.connect(name)
        except BlockingIOError:
            return None
        connection.settimeout(ASK_SECONDS)
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(question)
        with connection.makefile("rb") as lines:
            try:
                line = lines.readline(ANSWER_LIMIT)
            except ConnectionResetError:
                return None
    return line if line.endswith(b"\n") and not _is_busy(line) else None


def _is_busy(line: bytes) -> bool:
    try:
        told = json.loads(line)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("busy") is True
