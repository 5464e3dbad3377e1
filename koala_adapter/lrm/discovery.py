# SPDX-License-Identifier: Apache-2.0
"""Discovery: which batch systems can be reached from a host, for ``koala init``.

A definition may have a function ``discover``: it looks at environment variables and files, and runs at most a command
or two. The core then tries with the methods of the contract whether a found cluster answers and takes jobs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

import anyio

from koala_adapter.lrm.commands import THIS_HOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.lrm.lrmhost import LrmHost

ResultT = TypeVar("ResultT")

COMMAND_TIME = 10.0
"""Seconds that a command may take: the user of ``koala init`` waits for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCluster:
    """A batch system that may be usable from here."""

    name: str
    """What its site calls it: the suggestion for the cluster's name."""
    described: str
    """What it is and by what it was found, for a person: ``Slurm, by $SLURM_CONF``."""
    settings: Mapping[str, str | int | bool]
    """The ``[clusters.settings]`` table by which the plugin reaches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that was found and cannot be used, with the reason."""

    what: str
    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Result of a plugin's search."""

    clusters: tuple[FoundCluster, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a plugin looks: this host, or the login node of another site. Paths are texts: they are of that host.

    Its methods wait for the answer, and are for a thread without an event loop.
    """

    environment: Mapping[str, str]
    """The variables of the user there, after a login."""
    uid: int = field(default_factory=os.geteuid)
    """The user's number there."""
    host: LrmHost = THIS_HOST
    call: Callable[..., object] = anyio.run
    """Calls a coroutine function of the host and returns what that returns."""
    root: str = ""
    """Below it are the files of the system, in tests."""

    def _ask(self, function: Callable[..., Awaitable[ResultT]], *arguments: object) -> ResultT:
        found: ResultT = self.call(function, *arguments)  # type: ignore[assignment]
        return found

    def path(self, absolute: str) -> str:
        """Return where a file of the system is."""
        return f"{self.root}{absolute}"

    def exists(self, path: str) -> bool:
        """Tell whether there is a file."""
        return bool(self.resolved(path))

    def resolved(self, path: str) -> str:
        """Return the path of an existing file with all links followed; empty when there is none."""
        return self._ask(self.host.resolved, path)

    def text(self, path: str) -> str:
        """Return the text of a file; nothing of one that is not there or not ours to read."""
        return self._ask(self.host.text, path)

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Return the files that match a path of which parts have wildcards, in order of name."""
        return self._ask(_matching, self.host, pattern)

    def program(self, name: str) -> str | None:
        """Return where a program is on the PATH; None when it is not there."""
        return self._ask(self.host.programs, (name,), self.environment.get("PATH", "")).get(name)

    def beside_path(self, name: str) -> str:
        """Return the directory of a program that is on the PATH only after a login: commands need to be told it.

        Empty where the program is found without it, or is not there.
        """
        if self.host.here or self._ask(self.host.programs, (name,)):
            return ""
        found = self.program(name)
        return str(PurePosixPath(found).parent) if found else ""

    def output(self, argv: Sequence[str], variables: Mapping[str, str] | None = None) -> str | None:
        """Return what a command prints; None when it fails, is not there, or takes longer than ten seconds.

        It sees the ``variables`` and the PATH, and else nothing of the environment.
        """
        return self._ask(_output, self.host, argv, {"PATH": self.environment.get("PATH", ""), **(variables or {})})


async def _matching(host: LrmHost, pattern: str) -> tuple[str, ...]:
    found = [""]
    for part in pattern.split("/")[1:]:
        if set(part) & set("*?["):
            found = [f"{place}/{name}" for place in found for name in await _names(host, place) if _fits(name, part)]
        else:
            found = [f"{place}/{part}" for place in found]
    return tuple(sorted([path for path in found if await host.resolved(path)]))


async def _names(host: LrmHost, directory: str) -> Sequence[str]:
    try:
        return await host.list_directory(directory or "/")
    except OSError:
        return ()


def _fits(name: str, pattern: str) -> bool:
    return not name.startswith(".") and fnmatchcase(name, pattern)


async def _output(host: LrmHost, argv: Sequence[str], environment: Mapping[str, str]) -> str | None:
    with anyio.move_on_after(COMMAND_TIME):
        try:
            status, output, _ = await host.run(argv, environment=environment)
        except OSError:
            return None
        return output.decode("utf-8", "backslashreplace") if status == 0 else None
    return None


def readable_text(path: Path) -> str:
    """Return the text of a file of this host; nothing of one that is not there or not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
