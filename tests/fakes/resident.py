# SPDX-License-Identifier: Apache-2.0
"""The resident process behind the fake commands: it has imported them once, and forks for each start of one.

A Python process that imports what a fake needs costs a hundred milliseconds of processor time or more, and a test
starts dozens. So the commands (``command.py``) only hand over their descriptors, arguments and environment. What runs
with these is a process of its own. One resident serves all fakes of a test process, and ends with it.
"""

from __future__ import annotations

import ast
import os
import select
import shutil
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from tests.fakes.pbs import programs as pbs_programs
from tests.fakes.scripts import READY
from tests.fakes.slurm import programs as slurm_programs

LENGTH_BYTES = 4


def serve(path: str) -> None:
    """Fork for each command, until stdin ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        os.write(1, READY)
        while True:
            ready, _, _ = select.select([0, listener.fileno()], [], [])
            if 0 in ready:
                shutil.rmtree(Path(path).parent)
                return
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _be_command(connection)
            _bury()


def _bury() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _be_command(connection: socket.socket) -> None:
    """Run one command with what came through the connection, tell its exit status, and end."""
    status = 1
    try:
        header, descriptors, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3, socket.MSG_WAITALL)
        with connection.makefile("rb") as stream:
            request = stream.read(int.from_bytes(header, "big"))
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        system, argv, environment = ast.literal_eval(request.decode("utf-8", "surrogatepass"))
        os.environ.clear()
        os.environ.update(environment)
        status = _status(system, argv)
    finally:
        # Whoever started the command reads to the end of its output; so all of it is written before the status is.
        with suppress(OSError):
            connection.sendall(bytes([status]))
        os._exit(0)


def _status(system: str, argv: list[str]) -> int:
    try:
        programs = pbs_programs if system == "pbs" else slurm_programs
        status = int(programs.main(Path(argv[0]).name, argv[1:]))
    except Exception:  # noqa: BLE001 - as an interpreter does at its end
        traceback.print_exc()
        status = 1
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status


if __name__ == "__main__":
    serve(sys.argv[1])
