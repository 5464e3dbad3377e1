# SPDX-License-Identifier: Apache-2.0
"""Connections of a process that another agent on its node has accepted are handed to the agent of that process.

All agents of a job on a node listen at the same addresses, and the kernel deals connections out among them. One that
carried the connection of another's process would cut it as it leaves, while that process goes on. So it sends the
connection to a datagram socket in the directory of the task, which only processes of this user can reach.
"""

import array
import json
import os
import selectors
import socket

from koala_adapter.vjm.agent.processes import environment_of, read_bytes

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional


NAME = "handed"
VARIABLE = b"KOALA_STDOUT="  # of the environment of each process of a task: a file in the task's directory
PIPE = "out"  # its name
LONGEST = 4096
MOST_WAITING = 1024  # connections that are taken at the end; the kernel holds fewer


class HandedSocket:
    """Where other agents on this node send connections of one task."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        directory: str,
        take: "Callable[[Dict[str, Any], socket.socket], None]",
    ) -> None:
        """``take`` is called with what is said of a connection. Raises OSError."""
        self._selector = selector
        self._take = take
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # noqa: FBT003 - the library's own way
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            self._socket.bind(f"/proc/self/fd/{place}/{NAME}")  # however long the directory's own name is
        except OSError:
            self._socket.close()
            raise
        finally:
            os.close(place)
        selector.register(self._socket, selectors.EVENT_READ, self._receive)

    def close(self) -> None:
        """Take what has come, and no more."""
        for _ in range(MOST_WAITING):
            if not self._receive():
                break
        self._selector.unregister(self._socket)
        self._socket.close()

    def _receive(self, _mask: int = 0) -> bool:
        """Take a connection, if one has come; tell whether anything had."""
        descriptors = array.array("i")
        try:
            said, ancillary, _, _ = self._socket.recvmsg(
                LONGEST, socket.CMSG_SPACE(descriptors.itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return False
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        for descriptor in descriptors:
            try:
                connection = socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
                continue
            try:
                self._take(json.loads(said.decode()), connection)
            except (KeyError, OverflowError, TypeError, ValueError):  # no agent says that
                connection.close()
        return True


def task_directory(pid: int) -> "Optional[str]":
    """Return the directory of the task of a process, as this process reaches it; None: not known.

    A process that has cleared its environment is known by the leader of its session, or by the agent that started that.
    """
    for one in (pid, session_leader(pid)):
        for variable in environment_of(one).split(b"\0"):
            if variable.startswith(VARIABLE):
                # A batch system may have given each placeholder a /tmp of its own.
                return "/proc/{}/root{}".format(one, os.path.dirname(os.fsdecode(variable[len(VARIABLE) :])))
    return agent_directory(session_leader(pid))


def agent_directory(leader: int) -> "Optional[str]":
    """Return the directory of a task of the agent that started a session; None: not known.

    An agent has the pipes of its tasks open.
    """
    parent = read_bytes(f"/proc/{leader}/stat").rpartition(b")")[2].split()[1:2]
    place = "/proc/{}".format(parent[0].decode() if parent else "self")
    try:
        for name in os.listdir(f"{place}/fd"):
            directory, _, pipe = os.readlink(f"{place}/fd/{name}").rpartition("/")
            if pipe == PIPE and os.path.exists(f"{place}/root{directory}/{NAME}"):
                return f"{place}/root{directory}"
    except OSError:
        pass
    return None


def session_leader(pid: int) -> int:
    """Return the leader of a process' session; the process itself when it has gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return pid


def hand_over(connection: socket.socket, said: "Dict[str, Any]", directory: str) -> bool:
    """Send a connection to the agent of the task with a directory; tell whether that can take it.

    Raises BlockingIOError when as many wait there as the kernel holds.
    """
    try:
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # noqa: FBT003 - the library's own way
            sender.sendmsg([json.dumps(said).encode()], rights, 0, f"/proc/self/fd/{place}/{NAME}")
    except BlockingIOError:
        raise
    except OSError:
        return False
    finally:
        os.close(place)
    return True
