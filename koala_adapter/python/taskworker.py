# SPDX-License-Identifier: Apache-2.0
"""A worker of koala.Executor: runs on a node, from a file of its own beside ``executor.json``.

A task is a pickled (function, arguments, keywords); its answer is a pickled (true, value) or (false, exception,
traceback). On SIGTERM the worker announces that it leaves, and ends after its current task.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.tasks.connection import LEAVING, connected, received, sent

if TYPE_CHECKING:
    import ssl

SETTINGS = "executor.json"
try:
    import cloudpickle as pickler
except ModuleNotFoundError:
    pickler = pickle
BY_VALUE = pickler is not pickle
"""Whether functions of a program itself are sent as what they are, and not by their names alone."""

state = {"sending": False, "at work": False, "leaving": False}


def main() -> None:
    """Do tasks until the executor, or a signal, ends this."""
    settings = json.loads(Path(SETTINGS).read_text(encoding="ascii"))
    host = os.environ.get("KOALA_HOST_ADDRESS", settings["host"])
    connection = connected(host, settings["port"], settings["fingerprint"])
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


def send(connection: ssl.SSLSocket, frame: bytes) -> None:
    """Send a frame; an executor that is gone does not want it."""
    if not sent(connection, frame):
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
