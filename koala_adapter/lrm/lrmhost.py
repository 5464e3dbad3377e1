# SPDX-License-Identifier: Apache-2.0
"""The host of a batch system's commands and files, as plugins use it: this host, or the login node of a site.

All that a plugin runs, reads and writes on the side of the batch system goes through :class:`LrmHost`, so that a plugin
serves a cluster that is elsewhere without knowing it. ``LocalHost`` in ``lrm.commands`` is the one of this host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a host tells of itself and of the user there."""

    name: str
    user: str
    """Login name of the user there."""
    uid: int
    home: str
    variables: Mapping[str, str]
    """Environment of the user there."""
    python: str
    """Version of the Python that koala uses there."""
    interpreter: str
    """Path of that Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A small transfer to a host that was made to learn how quick the way to it is."""

    size: int
    seconds: float
    """That it took, without those of the round trips."""
    latency: float
    """Seconds of a round trip."""

    def __str__(self) -> str:
        """Result in words."""
        return f"{self.size / self.seconds / 1024**2:.3g} MiB/s, round trip {1000 * self.latency:.1f} ms"


class HostProcess(ABC):
    """A process that is written to and read from while it runs.

    Where the way to it is lost, it has ended: its standard input has.
    """

    pid: int | None
    """Process id, where it runs on this host."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the process is still running."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Write to its standard input. Raises OSError or an error of a broken stream of anyio when it has ended."""

    @abstractmethod
    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what it has printed next. Raises EndOfStream, or an error of a broken stream, when it has ended."""

    @abstractmethod
    async def end_input(self) -> None:
        """Close its standard input."""

    @abstractmethod
    async def ended(self) -> None:
        """Wait for the end of the process."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the process, and release its resources on this host."""

    @abstractmethod
    def complaints(self) -> bytes:
        """Return the end of what it has written to its standard error."""


class LrmHost(ABC):
    """A host with a batch system's commands and files.

    Where the host cannot be reached, each method raises LrmUnreachableError, with nothing done; LrmUnavailableError
    when it was lost meanwhile, and what was done is unknown. Errors of files are OSError.
    """

    here: bool
    """Whether it is this host: libraries and helper processes of this host serve only there."""

    @property
    @abstractmethod
    def user(self) -> str:
        """Login name of the user there; empty while it is not known."""

    @property
    def trouble(self) -> str:
        """Why the host cannot be reached; empty where it can, or was not asked yet."""
        return ""

    @property
    def door(self) -> tuple[str, int] | None:
        """Address and port there by which agents reach koala; None: they reach it without help.

        Raises LrmUnreachableError where the host is away.
        """
        return None

    def relay_agents_to(self, host: str, port: int) -> None:  # noqa: B027 - this host relays nothing
        """Connect agents that contact the door to the control center of this host."""

    def relay_to(self, port: int) -> None:  # noqa: B027 - this host relays nothing
        """Let programs there connect to another port of this host, too, which they name first."""

    @property
    def quiet(self) -> bool:
        """Whether the host is connected, and nothing is asked of it or sent to it at present."""
        return True

    async def measure(self, *, bandwidth: bool = True) -> Measurement | None:  # noqa: ARG002 - for other hosts
        """Measure bandwidth and round trip to the host with a few MiB; None where no data cross a network.

        ``bandwidth``: else only round trips are made, and the size is 0.
        """
        return None

    async def close(self, *, in_use: bool = False) -> None:  # noqa: B027 - this host keeps nothing
        """Release all resources; no request follows. ``in_use``: what serves placeholders there stays."""

    @abstractmethod
    async def facts(self) -> HostFacts:
        """Return what the host tells of itself."""

    @abstractmethod
    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, bytes]:
        """Run a command and return its exit status, output and error output.

        Its environment is built, with the variables of ``environment`` added. It is killed, with all that it started,
        when the wait for it is cancelled. Raises OSError when it cannot be started.
        """

    @abstractmethod
    async def start(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> HostProcess:
        """Start a process with which data are exchanged while it runs, in the environment of ``run``. Raises OSError.

        ``log``: of this host, for its standard error where it is a process of this host.
        """

    @abstractmethod
    async def programs(self, names: Sequence[str], directory: str = "") -> Mapping[str, str]:
        """Return the paths of programs, links not followed; missing ones are left out.

        ``directory``: the only ones in which to look, divided by colons as in PATH; empty: those of PATH.
        """

    @abstractmethod
    async def resolved(self, path: str) -> str:
        """Return the path of an existing file with all links followed; empty when there is none."""

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """Return the content of a file. Raises OSError."""

    @abstractmethod
    async def list_directory(self, path: str) -> Sequence[str]:
        """Return the names in a directory. Raises OSError."""

    @abstractmethod
    async def make_directory(self, path: str) -> tuple[str, int]:
        """Make a directory that only the user can enter, and return its absolute path and its mode.

        One that is there keeps its mode. A relative path begins in the user's private directory for koala there. Raises
        OSError, also for a directory that another user could replace.
        """

    @abstractmethod
    async def write_private(self, path: str, content: bytes) -> None:
        """Write a new file that only the user can read, in place of one that is there. Raises OSError."""

    @abstractmethod
    def remove_soon(self, path: str) -> None:
        """Remove a file; no error when it is gone. Where the host is elsewhere, that is done later."""

    async def text(self, path: str) -> str:
        """Return the text of a file; empty when it is missing or not readable for us."""
        try:
            return (await self.read(path)).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""
