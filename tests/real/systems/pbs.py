# SPDX-License-Identifier: Apache-2.0
"""A PBS server that runs on this machine already (PBS_CONF_FILE, PBS_EXEC): no package brings one that we could start.

It must be there for tests alone: they fill all its processors, and the service must let the user daemon submit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import anyio

from koala_adapter.model import BatchKey
from tests.real.systems.processes import SystemFailedError, wait_until

# Read before tests/conftest.py takes them out of the environment.
EXEC = os.environ.get("PBS_EXEC", "")
CONF = os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf" if EXEC else "")
OTHER = 1
"""The user daemon, who has a home directory, as PBS wants."""
SECONDS = 60.0


def missing_for_pbs() -> list[str]:
    """Say what is missing for a PBS server. Empty: nothing."""
    if not CONF:
        return ["a PBS server for tests (PBS_CONF_FILE, its pbs.conf, or PBS_EXEC; OpenPBS is in no package registry)"]
    if not Path(CONF).is_file():
        return [f"{CONF}, the pbs.conf of a PBS server for tests (PBS_CONF_FILE)"]
    return [] if (PbsServer().bin_directory / "qsub").exists() else [f"qsub of {CONF} (PBS_EXEC)"]


class PbsServer:
    """The server that PBS_CONF_FILE names."""

    conf = Path(CONF)

    def __init__(self, library: Path | None = None) -> None:
        """``library``: of DRMAA, by which koala submits; None: by commands."""
        self._library = library

    @property
    def plugin_settings(self) -> dict[str, Path | str]:
        """Settings by which the plugin ``pbs`` uses this server."""
        settings: dict[str, Path | str] = {"conf": self.conf, "bin_directory": self.bin_directory}
        if self._library is None:
            return {**settings, "submit_by": "commands"}
        return {**settings, "submit_by": "drmaa", "drmaa_library": self._library}

    @cached_property
    def bin_directory(self) -> Path:
        """Directory of the commands."""
        return Path(EXEC or self._variables.get("PBS_EXEC", "/opt/pbs")) / "bin"

    @cached_property
    def directory(self) -> Path:
        """Where server and MoM keep their files."""
        return Path(self._variables["PBS_HOME"])

    @cached_property
    def name(self) -> str:
        """The server's name, with which the ids of its jobs end."""
        return self._variables["PBS_SERVER"]

    @cached_property
    def _variables(self) -> Mapping[str, str]:
        lines = (line.partition("=") for line in self.conf.read_text().splitlines() if "=" in line)
        return {name.strip(): value.strip() for name, _, value in lines}

    def run(self, command: str, *arguments: str, stdin: str = "", user: int | None = None, check: bool = True) -> str:
        """Run a command, as ``user`` if one is given; return what it prints."""
        done = subprocess.run(
            [self.bin_directory / command, *arguments],
            env={"PATH": os.environ["PATH"], "PBS_CONF_FILE": CONF},
            input=stdin.encode(),
            capture_output=True,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            cwd="/",
            timeout=SECONDS,
        )
        if check and done.returncode:
            message = f"{command} {' '.join(arguments)}: {done.returncode} {done.stderr.decode()}"
            raise RuntimeError(message)
        return done.stdout.decode().strip()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the server to oneself, and without jobs: other processes of pytest wait for their turn."""
        with self.conf.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.clear()
            yield

    def jobs(self) -> list[str]:
        """Return the ids of all jobs and arrays."""
        return self.run("qselect").split()

    def names(self, prefix: str, *, running: bool = False) -> list[str]:
        """Return the names, one for each element, of jobs that have not ended and whose name has a prefix."""
        entries = json.loads(self.run("qstat", "-t", "-f", "-F", "json")).get("Jobs", {})
        letters = {"R"} if running else {"Q", "H", "W", "R", "S", "E"}
        jobs = (entry for id_, entry in entries.items() if "[]" not in id_ and entry["job_state"] in letters)
        return [name for name in (str(job["Job_Name"]) for job in jobs) if name.startswith(prefix)]

    def clear(self) -> None:
        """End all jobs, and wait until they are gone.

        By force only if nothing else helps: then nobody sees to it that their processes end.
        """
        for job in self.jobs():
            self.run("qdel", job, check=False)
        with contextlib.suppress(SystemFailedError):
            wait_until(lambda: not self.jobs(), seconds=SECONDS, what="no jobs in PBS")
        for job in self.jobs():
            self.run("qdel", "-W", "force", job, check=False)
        wait_until(lambda: not self.jobs(), seconds=SECONDS, what="no jobs in PBS")

    def processors(self) -> int:
        """Return the processors of all vnodes."""
        nodes = json.loads(self.run("pbsnodes", "-a", "-v", "-F", "json"))["nodes"].values()
        return sum(int(node["resources_available"].get("ncpus", 0)) for node in nodes)

    @contextlib.contextmanager
    def local_jobs(self, processors: int) -> Iterator[None]:
        """Have jobs of another user run on so many processors."""
        ids = self._submitted(processors)
        wait_until(lambda: self._run_all(ids), seconds=SECONDS, what="foreign jobs run")
        try:
            yield
        finally:
            self._end(ids)

    def _submitted(self, processors: int) -> list[str]:
        options = ("-S", "/bin/sh", "-o", "/dev/null", "-j", "oe", "-l", "select=1:ncpus=1")
        script = "#!/bin/sh\ncd /; exec sleep 600\n"
        return [self.run("qsub", "-f", *options, stdin=script, user=OTHER) for _ in range(processors)]

    def _run_all(self, ids: list[str]) -> bool:
        shown = (self.run("qstat", "-f", job) for job in ids)
        return all("job_state = R" in text and "substate = 42" in text for text in shown)

    @contextlib.asynccontextmanager
    async def foreign_job(self, processors: int) -> AsyncIterator[None]:
        """Have jobs of another user run, for tests that are asynchronous."""
        ids = await anyio.to_thread.run_sync(self._submitted, processors)

        def wait() -> None:
            wait_until(lambda: self._run_all(ids), seconds=SECONDS, what="foreign jobs run")

        await anyio.to_thread.run_sync(wait)
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(self._end, ids)

    @contextlib.asynccontextmanager
    async def namesake_job(self, name: BatchKey, count: int) -> AsyncIterator[None]:
        """Have another user's array of a name be held."""
        options = ("-N", name, "-J", f"1-{count}", "-h", "-S", "/bin/sh", "-o", "/dev/null", "-j", "oe")
        job = self.run("qsub", "-f", *options, stdin="#!/bin/sh\nexec sleep 600\n", user=OTHER)
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(self._end, [job])

    def _end(self, jobs: list[str]) -> None:
        for job in jobs:
            self.run("qdel", "-W", "force", job, check=False)
