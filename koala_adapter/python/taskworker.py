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
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.tasks.connection import LEAVING, connected, received, sent

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from typing import Any

SETTINGS = "executor.json"
RELAYED = "KOALA_HOST_ADDRESS"
"""Variable with the address of the executor where koala may relay the connection: it ends with that to a site."""
PATIENCE = 60.0
"""Seconds for which a relayed connection that has broken is made again."""
PAUSE = 1.0
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
    connection = reached(settings)
    while not serve(connection) and RELAYED in os.environ:
        connection = reached(settings, patience=PATIENCE)


def reached(settings: Mapping[str, Any], *, patience: float = 0.0) -> ssl.SSLSocket:
    """Connect to the executor, to which the way may be away for some seconds. Raises OSError."""
    until = time.monotonic() + patience
    while True:
        try:
            connection = connected(os.environ.get(RELAYED, settings["host"]), settings["port"], settings["fingerprint"])
            signal.signal(signal.SIGTERM, partial(leave, connection))
            connection.sendall(bytes.fromhex(settings["token"]))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE)
        else:
            return connection


def serve(connection: ssl.SSLSocket) -> bool:
    """Do tasks until there are to be no more; False: the connection has broken."""
    while not state["leaving"]:
        task = received(connection)
        if task is None:
            return False
        if task == LEAVING:
            return True
        state["at work"] = True
        answer = done(task)
        state["sending"], state["at work"] = True, False
        arrived = sent(connection, answer)
        state["sending"] = False
        if not arrived:
            return state["leaving"]
    sent(connection, LEAVING)
    return True


def leave(connection: ssl.SSLSocket, *_signal: object) -> None:
    """End at once when there is nothing to do, else after the task."""
    state["leaving"] = True
    if state["sending"]:  # this has come between two halves of an answer; it is said afterwards
        return
    sent(connection, LEAVING)
    if not state["at work"]:
        sys.exit(0)


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
