# SPDX-License-Identifier: Apache-2.0
"""MPI programs whose size changes, without koala: they are compiled, and mpiexec's proxies are started by hand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Self

EXAMPLES = Path(__file__).parent.parent / "examples" / "malleable"
PATIENCE = 120.0
"""Seconds that a program may take."""

_LAUNCH = re.compile(r"HYDRA_LAUNCH: (?P<command>.*--pgid (?P<group>\d+) .*--proxy-id (?P<proxy>\d+))\s*$")


class Mpich(NamedTuple):
    """An MPICH on this host."""

    commands: Path
    """Directory of mpicc and mpiexec.hydra."""
    spawns: bool

    @property
    def mpiexec(self) -> str:
        """Its process manager."""
        return str(self.commands / "mpiexec.hydra")

    def compile(self, name: str, directory: Path, *, flags: str = "") -> Path:
        """Build an example with its Makefile, or with other ``flags`` than those in it; return the program."""
        target = directory / name
        variables = [f"MPICC={self.commands / 'mpicc'}", f"TARGET={target}", *([f"CFLAGS={flags}"] if flags else [])]
        command = ["make", "--silent", "-C", str(EXAMPLES / name), *variables]
        subprocess.run(command, check=True, timeout=PATIENCE)
        return target


def of_system() -> Mpich | None:
    """Return Debian's MPICH, which cannot spawn; None: it is not installed."""
    commands = Path("/usr/bin")
    there = all((commands / name).exists() for name in ("mpicc.mpich", "mpiexec.hydra"))
    return Mpich(commands, spawns=False) if there else None


def of_wheel() -> Mpich | None:
    """Return the MPICH of the PyPI package mpich; None: it is not installed."""
    for place in (Path(sys.prefix), *(Path(entry).parents[2] for entry in sys.path if entry.endswith("site-packages"))):
        if (place / "bin" / "mpiexec.hydra").exists() and list((place / "lib").glob("libmpi.so*")):
            return Mpich(place / "bin", spawns=True)
    return None


class Proxy(NamedTuple):
    """A proxy that was started."""

    group: int
    number: int
    process: subprocess.Popen[bytes]


class HandLauncher:
    """One run of mpiexec under ``-launcher manual``, whose proxies are started as it asks for them."""

    def __init__(self, mpich: Mpich, program: Sequence[str], *, size: int, environment: Mapping[str, str]) -> None:
        """Start ``program`` on ``size`` processes."""
        hosts = ",".join(f"s{number}" for number in range(size))
        command = [mpich.mpiexec, "-launcher", "manual", "-disable-hostname-propagation", "-localhost", "127.0.0.1"]
        command += ["-hosts", hosts, "-n", str(size), *program]
        self.proxies: list[Proxy] = []
        self.ended: set[int] = set()
        """The places in ``proxies`` of those that have ended."""
        self.text: list[str] = []
        """The lines that the program printed."""
        self._mpiexec = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
        )
        self._waiting: list[threading.Thread] = []
        self._reader = threading.Thread(target=self._read, args=(self._mpiexec.stdout,))
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        for line in output:
            text = line.decode()
            if (found := _LAUNCH.match(text)) is None:
                self.text.append(text.rstrip())
                continue
            process = subprocess.Popen(
                shlex.split(found["command"]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            self.proxies.append(Proxy(int(found["group"]), int(found["proxy"]), process))
            waiting = threading.Thread(target=self._wait_for, args=(len(self.proxies) - 1,))
            waiting.start()
            self._waiting.append(waiting)

    def _wait_for(self, place: int) -> None:
        self.proxies[place].process.wait()
        self.ended.add(place)

    def wait(self) -> int:
        """Return mpiexec's exit status."""
        try:
            return self._mpiexec.wait(PATIENCE)
        finally:
            self._stop()

    def _stop(self) -> None:
        """End what is still there."""
        if self._mpiexec.poll() is None:
            self._mpiexec.kill()
            for proxy in self.proxies:
                proxy.process.kill()
        self._mpiexec.wait()
        self._reader.join()
        for waiting in self._waiting:
            waiting.join()
        if self._mpiexec.stdout is not None:
            self._mpiexec.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what is still there."""
        self._stop()

    @property
    def over(self) -> bool:
        """Whether mpiexec has ended."""
        return self._mpiexec.poll() is not None
