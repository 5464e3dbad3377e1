# SPDX-License-Identifier: Apache-2.0
"""The node as the agent sees it: clock, names, settings, timers, and the file of its own messages.

In order: small functions that all parts use, the settings from the job script, timers, what all parts share, and the
file that is made for what the agent writes to its stderr.
"""

import os
import selectors
import socket
import stat
import sys
import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple


# -- Clock, messages to the administrator, names -------------------------------------------------------------

BOOTTIME = 7  # clock_gettime(2): seconds since the node was booted, suspension included; named in Python from 3.7 on


def clock() -> float:
    """Return the seconds since the node was booted, suspension included."""
    return time.clock_gettime(BOOTTIME)


def say(text: str) -> None:
    """Write a line to the placeholder's stderr for administrators; never fails or shows secrets."""
    try:
        sys.stderr.write(f"koala agent on {socket.gethostname()}: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def random_name() -> str:
    """Return 128 random bits in hexadecimal."""
    return os.urandom(16).hex()


def word(text: str) -> str:
    """Return a text without characters that the channel does not allow in names."""
    return "".join(character for character in text if "!" <= character <= "~")[:255]


def raw(text: str) -> bytes:
    """Encode a name or argument as UTF-8 whatever the locale (Python 3.6 uses ASCII under LANG=C)."""
    return text.encode("utf-8", "surrogateescape")


# -- Settings: from the job script, and found on the node ----------------------------------------------------

GRACE = 5.0  # seconds between SIGTERM and SIGKILL when nobody said how many


class FatalError(Exception):
    """The agent cannot work; the text is written to the placeholder's stderr."""


class Settings:
    """Settings from the job script and from the node's environment."""

    def __init__(self, given: "Dict[str, Any]", environment: "Dict[str, str]") -> None:
        self.host: str = given["host"]
        self.port: int = given["port"]
        self.fingerprint: str = given["fingerprint"].lower()
        self.batch: str = given["batch"]
        self.lease: float = given["lease"]
        self.end_margin: float = given["end_margin"]
        self.await_suspended: bool = given["await_suspended"]
        self.token: str = given["token"] or read_token(given["token_file"])
        index = environment.get(given["array_index_variable"] or "", "")
        self.index = int(index) if index.isdigit() else 1
        self.lrm_id = word(environment.get(given["job_id_variable"] or "", ""))
        self.ends_at = self._end(given["walltime"], environment)

    @staticmethod
    def _end(walltime: "Optional[float]", environment: "Dict[str, str]") -> "Optional[float]":
        # The LRM may have started its clock before us (prolog), or give less than was asked: the earlier end counts.
        ends = [walltime] if walltime else []
        start, end = (environment.get(f"SLURM_JOB_{name}_TIME", "") for name in ("START", "END"))
        if end.isdigit():
            left = int(end) - time.time()
            if start.isdigit() and not 0 <= left <= int(end) - int(start):
                # The clock of this node is not that of Slurm's controller: what was granted begins now.
                left = int(end) - int(start)
            ends.append(max(0.0, left))
        return clock() + min(ends) if ends else None


def read_token(path: str) -> str:
    """Read a token from a file that was never accessible to others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise FatalError(f"cannot read the token file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise FatalError(f"the token file {path} must be a file of mode 0600 that belongs to user {os.geteuid()}")
        return file.read(1024).decode("ascii", "replace").strip()


# -- Timers --------------------------------------------------------------------------------------------------


class Timers:
    """Functions to be called at a later time."""

    def __init__(self) -> None:
        self._calls: "List[Tuple[float, int, Callable[[], object]]]" = []  # in the order of their time
        self._serial = 0

    def after(self, seconds: float, call: "Callable[[], object]") -> None:
        """Call a function once in ``seconds`` seconds."""
        self._serial += 1
        self._calls.append((clock() + seconds, self._serial, call))
        self._calls.sort()  # there are few

    def run(self) -> None:
        """Call the functions that are due."""
        while self._calls and self._calls[0][0] <= clock():
            self._calls.pop(0)[2]()

    def wait(self) -> "Optional[float]":
        """Return the seconds until the next call is due."""
        return max(0.0, self._calls[0][0] - clock()) if self._calls else None


# -- What all parts of an agent share ------------------------------------------------------------------------


class AgentState:
    """What all parts of an agent share: its settings, its loop, and why it ends."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.selector = selectors.DefaultSelector()
        self.timers = Timers()
        self.session = random_name() + random_name()  # secret of this process
        self.ending: "Optional[Tuple[str, str]]" = None  # reason and detail, once the agent must go


# -- The file of the agent's own messages --------------------------------------------------------------------


def own_output(batch: str) -> "Optional[str]":
    """Return the file of this placeholder's output; None when the file is not of our batch."""
    try:
        path = os.readlink("/proc/self/fd/2")
        kept, named = os.fstat(2), os.lstat(path)
    except OSError:
        return None
    ours = (kept.st_dev, kept.st_ino) == (named.st_dev, named.st_ino) and kept.st_uid == os.geteuid()
    regular = stat.S_ISREG(kept.st_mode) and os.path.basename(path).startswith(batch)
    return path if ours and regular else None


def remove_output(path: "Optional[str]", *, if_empty: bool = False) -> None:
    """Remove this placeholder's output file."""
    try:
        if path is not None and not (if_empty and os.lstat(path).st_size):
            os.unlink(path)
            directory, name = os.path.split(path)
            if os.path.basename(directory) + ".out" == name:
                os.rmdir(directory)
    except OSError:
        pass
