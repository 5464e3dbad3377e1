# SPDX-License-Identifier: Apache-2.0
"""A systemd of its own: the first process of a container whose files are this host's, and whose changes are lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.real.systems.processes import CommandError, base_environment, run_command, tail, wait_until

READY_SECONDS = 120.0
"""Bound on the time in which systemd must be up; it takes about 3 s on an idle machine."""
PROGRAMS = ("systemd-nspawn", "nsenter", "mount", "umount")


def missing_for_systemd() -> list[str]:
    """Return what keeps a systemd from being started here."""
    missing = [f"the program {name}" for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid():
        missing.append("root, who may mount and start a container")
    elif not missing and Path("/").stat().st_dev != Path(sys.prefix).stat().st_dev:
        missing.append("a root file system that has this Python")
    return missing


class Systemd:
    """Started with its basic target, none of the host's services; use as a context manager."""

    def __init__(self, directory: Path) -> None:
        """Nothing is started yet. What the container writes is below ``directory``, in memory."""
        self._memory = directory / "memory"
        self.root = directory / "root"
        """The container's files, for what is to be there before it starts."""
        self._log = directory / "nspawn.log"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._first = 0

    def __enter__(self) -> Self:
        """Give the container its files; see `boot`."""
        self._memory.mkdir()
        self.root.mkdir()
        run_command(["mount", "-t", "tmpfs", "tmpfs", str(self._memory)], environment=base_environment())
        upper, work = self._memory / "upper", self._memory / "work"
        upper.mkdir()
        work.mkdir()
        layers = f"lowerdir=/,upperdir={upper},workdir={work}"
        command = ["mount", "-t", "overlay", "overlay", "-o", layers, str(self.root)]
        try:
            run_command(command, environment=base_environment())
        except CommandError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the container with all its processes, and forget what they wrote."""
        if self._nspawn is not None:
            if self._first:
                os.kill(self._first, signal.SIGKILL)
            else:
                self._nspawn.kill()
            self._nspawn.wait(READY_SECONDS)
        for place in (self.root, self._memory):
            run_command(["umount", "-l", str(place)], environment=base_environment(), check=False)

    def boot(self) -> None:
        """Start it, and return when it takes orders."""
        words = ["--boot", "--quiet", "--register=no", "--link-journal=no", "--console=pipe"]
        # Without a systemd of the host nobody could make a scope for it.
        words += [] if Path("/run/systemd/system").is_dir() else ["--keep-unit"]
        with self._log.open("wb") as log:
            self._nspawn = subprocess.Popen(
                ["systemd-nspawn", f"--directory={self.root}", *words, "--", "--unit=basic.target"],
                env=base_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_up, seconds=READY_SECONDS, what="systemd is up", details=lambda: tail(self._log))

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command in the container and return its standard output."""
        inside = ["nsenter", f"--target={self._first}", "--all", *argv]
        return run_command(inside, environment=base_environment(), check=check)

    def shown(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def _is_up(self) -> bool:
        assert self._nspawn is not None
        if self._nspawn.poll() is not None:
            message = f"systemd-nspawn has ended\n{tail(self._log)}"
            raise AssertionError(message)
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text(encoding="ascii")
        firsts = [int(word) for word in children.split() if _name(int(word)) == "systemd"]
        if not firsts:
            return False
        self._first = firsts[0]
        return "active" in self.run("systemctl", "is-active", "basic.target", check=False).split()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
