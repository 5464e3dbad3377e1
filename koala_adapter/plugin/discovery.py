# SPDX-License-Identifier: Apache-2.0
"""How a plugin tells which batch systems of its kind this host can reach, for ``koala init``.

A definition may have a function ``discover``: it looks at environment variables and files, and asks at most a command
or two. Whether what it found answers, and takes jobs, the core tries afterwards with the contract's own methods.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.plugin.commands import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMAND_TIME = 10.0
"""Seconds that a command may take: somebody waits for the answer."""


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
    """Something that was seen and cannot be used as it is."""

    what: str
    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """All that a plugin found."""

    clusters: tuple[FoundCluster, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a plugin looks."""

    environment: Mapping[str, str]
    """The variables of who asks."""
    root: Path = field(default=Path("/"))
    """Below it are the files of the system."""

    def path(self, absolute: str) -> Path:
        """Return where a file of the system is."""
        return self.root / absolute.lstrip("/")

    def paths(self, pattern: str) -> tuple[Path, ...]:
        """Return the files of the system that match an absolute pattern, in order of name."""
        return tuple(sorted(self.root.glob(pattern.lstrip("/"))))

    def program(self, name: str) -> Path | None:
        """Return where a program is on the PATH; None when it is not there."""
        found = shutil.which(name, path=self.environment.get("PATH", ""))
        return None if found is None else Path(found)

    def output(self, argv: Sequence[str], variables: Mapping[str, str] | None = None) -> str | None:
        """Return what a command prints; None when it fails, is not there, or takes longer than ten seconds.

        It sees the ``variables`` and the PATH, and else nothing of our environment.
        """
        built = child_environment({"PATH": self.environment.get("PATH", ""), **(variables or {})})
        try:
            done = subprocess.run(
                list(argv),
                env=built,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_TIME,
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode("utf-8", "backslashreplace") if done.returncode == 0 else None


def readable_text(path: Path) -> str:
    """Return the text of a file; nothing of one that is not there or not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
