# SPDX-License-Identifier: Apache-2.0
"""A process that ends what a killed agent leaves."""

import contextlib
import os
import signal

from koala_adapter.vjm.agent.directories import remove_stale, remove_tree
from koala_adapter.vjm.agent.node import raw
from koala_adapter.vjm.agent.ownoutput import own_output, remove_output
from koala_adapter.vjm.agent.processes import NO_SESSION, kill_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Set


DISMISSED = "dismissed\n"


class Guard:
    """A process that outlives the agent for a moment, to end what the agent would have ended.

    Grid Engine kills a job by SIGKILL to its process group: that is the agent alone. The guard stands outside of the
    group, and learns of the death by the end of a pipe.
    """

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._pipe = -1

    def start(self, directory: str, lock: "Optional[int]") -> None:
        """Begin to watch over the tasks whose named pipes are below ``directory``, and to hold its lock."""
        reader, self._pipe = os.pipe()
        if os.fork() == 0:
            try:
                self._be_guard(reader, lock, directory, own_output(self._batch))
            finally:
                os._exit(0)
        os.close(reader)

    def watch(self, session: int) -> None:
        """Tell of the session of a new task."""
        self._tell(f"+{session}\n")

    def forget(self, session: int) -> None:
        """Tell that nothing of a session is left, and that its number may go to somebody else."""
        self._tell(f"-{session}\n")

    def dismiss(self) -> None:
        """Tell that all tasks were ended, and that their directory is gone: nothing is to be looked for any more."""
        self._tell(DISMISSED)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # somebody killed the guard: work goes on without
            os.write(self._pipe, line.encode())

    @staticmethod
    def _be_guard(reader: int, lock: "Optional[int]", directory: str, output: "Optional[str]") -> None:
        signal.set_wakeup_fd(-1)
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        os.setsid()
        os.chdir("/")
        os.dup2(reader, 0)
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != lock:  # noqa: PLR2004 - stdin, stdout and stderr stay
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        remove_stale(os.path.dirname(directory))
        sessions: "Set[int]" = set()
        dismissed = False
        with os.fdopen(0) as lines:
            for line in lines:
                if line == DISMISSED:
                    dismissed = True
                else:
                    (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
        if not dismissed:
            for session in sessions or {NO_SESSION}:
                kill_all(session, raw(f"KOALA_STDOUT={directory}/"))
            remove_tree(directory)
        remove_output(output, if_empty=True)
