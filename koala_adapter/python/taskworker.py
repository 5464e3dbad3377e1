# SPDX-License-Identifier: Apache-2.0
"""Runs on a node, from a file of its own beside ``executor.json``: takes tasks of a koala.Executor and does them.

It dials out to the executor, compares the fingerprint of its certificate, and shows the token before anything else is
said. A task is a pickled (function, arguments, keywords); its answer is a pickled (true, value) or (false, exception,
traceback). SIGTERM asks it to leave: it says so, and does when the task that it is at is done.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import signal
import socket
import ssl
import struct
import sys
import traceback
from pathlib import Path

SETTINGS = "executor.json"
try:
    import cloudpickle as pickler
except ModuleNotFoundError:
    pickler = pickle
LEAVING = b""
"""The frame that says that no more tasks are wanted."""
CONNECTING = 60.0
"""Seconds for the connection to come about."""
_LENGTH = struct.Struct(">Q")

state = {"sending": False, "at work": False, "leaving": False}


def main() -> None:
    """Do tasks until the executor, or whoever started this, has had enough."""
    settings = json.loads(Path(SETTINGS).read_text(encoding="ascii"))
    connection = connected(settings["host"], settings["port"], settings["fingerprint"])
    signal.signal(signal.SIGTERM, lambda *_: leave(connection))
    connection.sendall(bytes.fromhex(settings["token"]))
    while not state["leaving"]:
        task = received(connection)
        if task is None:
            return
        state["at work"] = True
        answer = done(task)
        state["sending"], state["at work"] = True, False
        send(connection, answer)
        state["sending"] = False
    send(connection, LEAVING)


def leave(connection: ssl.SSLSocket) -> None:
    """End at once when there is nothing to do, else after the task."""
    state["leaving"] = True
    if state["sending"]:  # this has come between two halves of an answer; it is said afterwards
        return
    send(connection, LEAVING)
    if not state["at work"]:
        sys.exit(0)


def connected(host: str, port: int, fingerprint: str) -> ssl.SSLSocket:
    """Return a connection to the executor. Raises ssl.SSLError when it is somebody else who answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nobody has signed it: its fingerprint is compared instead
    plain = socket.create_connection((host, port), timeout=CONNECTING)
    connection = context.wrap_socket(plain, server_hostname=host)
    if hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest() != fingerprint:
        raise ssl.SSLError("the executor's certificate is not the one that was expected")
    connection.settimeout(None)
    return connection


def received(connection: ssl.SSLSocket) -> bytes | None:
    """Return the next frame; None when there will be none."""
    head = exactly(connection, _LENGTH.size)
    return None if head is None else exactly(connection, _LENGTH.unpack(head)[0])


def exactly(connection: ssl.SSLSocket, size: int) -> bytes | None:
    """Return so many bytes; None when the connection ends before."""
    data = bytearray()
    while len(data) < size:
        try:
            piece = connection.recv(min(size - len(data), 1 << 20))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def send(connection: ssl.SSLSocket, frame: bytes) -> None:
    """Send a frame; an executor that is gone does not want it."""
    try:
        connection.sendall(_LENGTH.pack(len(frame)) + frame)
    except OSError:
        state["leaving"] = True


def dumps(value: object) -> bytes:
    """Return a value pickled, functions of the program itself by what they are, where cloudpickle is installed."""
    data: bytes = pickler.dumps(value)
    return data


def done(task: bytes) -> bytes:
    """Do a task and return its answer."""
    try:
        function, arguments, keywords = pickle.loads(task)  # noqa: S301 - it is the executor's, who proved to be it
        return dumps((True, function(*arguments, **keywords)))
    except BaseException as error:  # noqa: BLE001 - all of it is the affair of who asked
        text = traceback.format_exc()
        try:
            answer = dumps((False, error, text))
            pickle.loads(answer)  # noqa: S301 - our own: an exception may refuse to be made again
            return answer
        except Exception:  # noqa: BLE001 - whatever its methods raise
            return dumps((False, RuntimeError(f"{type(error).__name__}: {error}"), text))


if __name__ == "__main__":
    main()
