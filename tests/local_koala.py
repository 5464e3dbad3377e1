# SPDX-License-Identifier: Apache-2.0
"""The installed ``koala`` as a person uses it: real processes, local clusters, nothing left behind afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from click.testing import CliRunner, Result

import koala_adapter
import koala_local
from koala_adapter import testing
from koala_adapter.api.client import Client
from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.cli.koala import koala
from koala_adapter.config.sitefile import load_site
from koala_adapter.errors import JobNotFoundError, ServiceUnavailableError
from koala_adapter.lrm import ClusterContext, Lrm, Submission, load_plugins
from koala_adapter.model import BatchKey, LrmJob, LrmJobId, LrmJobState
from koala_adapter.report.values import JobReport
from koala_adapter.service.opening import make_lrm
from koala_local.lrm import LocalLrm, LocalSettings
from tests import forkserver
from tests.forkserver import Forked

# -- Local clusters in tests: their daemons, found and ended by process id, and jobs of others on them.


def daemon_pid(directory: Path) -> int:
    """Return the process id of the daemon that serves a state directory. Raises ProcessLookupError."""
    try:
        pid = int((directory / "pid").read_text(encoding="ascii"))
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError as error:
        raise ProcessLookupError(f"no daemon of {directory}") from error
    # A daemon that was killed leaves its id behind, which may be another process's by now.
    if os.fsencode(directory) not in arguments:
        raise ProcessLookupError(f"no daemon of {directory}")
    return pid


async def end_daemon(directory: Path, how: signal.Signals = signal.SIGTERM) -> None:
    """End the daemon, if one runs, and return when it has gone."""
    try:
        descriptor = os.pidfd_open(daemon_pid(directory))
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, how)
        with anyio.fail_after(120):
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def foreign_job(lrm: Lrm, seen_by: Lrm) -> Callable[[int], AbstractAsyncContextManager[None]]:
    """Return what makes a context in which jobs of another name run; it begins and ends as a plugin sees them."""

    @asynccontextmanager
    async def running(processors: int) -> AsyncIterator[None]:
        script = "#!/bin/sh\nexec sleep 600\n"
        ids = await lrm.submit(Submission(key=BatchKey("somebody"), count=processors, script=script, walltime=600))

        async def states() -> set[LrmJobState]:
            return {job.state for job in await seen_by.jobs() if job.id in ids}

        await testing.eventually(states, {LrmJobState.RUNNING}.__eq__, what="foreign job runs", seconds=120)
        yield
        await lrm.cancel(ids)
        await testing.eventually(states, {LrmJobState.ENDED}.__eq__, what="foreign job gone", seconds=120)

    return running


def namesake_job(
    context: ClusterContext, settings: LocalSettings
) -> Callable[[BatchKey, int], AbstractAsyncContextManager[None]]:
    """Return what makes a context in which another user's array of a name is held."""

    @asynccontextmanager
    async def held(name: BatchKey, count: int) -> AsyncIterator[None]:
        # The daemon believes what its clients say of themselves: nobody else can speak to it.
        other = LocalLrm(replace(context, user="nobody"), settings)
        ids = await other.submit(Submission(key=name, count=count, script="#!/bin/sh\n", walltime=60, held=True))
        yield
        await other.cancel(ids)
        await other.close()

    return held


# -- The installed ``koala`` as a person uses it: real processes, local clusters, nothing left behind afterwards.

Running: TypeAlias = subprocess.Popen[str] | Forked
"""A command that was started."""

LIVENESS = 120.0
"""Seconds within which anything that is expected must have happened; on a busy machine, too."""

SITE = """\
[control_center]
listen = "127.0.0.1"
lease = 120
heartbeat = 1

[scheduler]
scan_interval = 0.5
placeholder_life = 30
launch_margin = 20

[[clusters]]
name = "alpha"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = "{directory}"
settings = {{ processors = 4, idle_seconds = 60, answer_seconds = 60 }}

[[clusters]]
name = "beta"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = "{directory}"
settings = {{ processors = 4, idle_seconds = 60, answer_seconds = 60 }}
"""

JOB = """\
name = "{name}"
walltime = 600

[[components]]
name = "left"
cluster = "alpha"
command = ["sh", "-c", {script}]
processors = {processors}

[[components]]
name = "right"
cluster = "beta"
command = ["sh", "-c", {script}]
processors = {processors}
"""


@dataclass
class Koala:
    """A site of two local clusters, a state directory, and the command on them."""

    directory: Path
    running: list[Running] = field(default_factory=list)
    packages: list[Path] = field(default_factory=list)
    """Directories of further packages that are installed for every ``koala``."""

    def __post_init__(self) -> None:
        """Write the site file."""
        self.site_file.write_text(SITE.format(directory=self.directory), encoding="utf-8")

    @property
    def site_file(self) -> Path:
        return self.directory / "site.toml"

    def change_site(self, old: str, new: str) -> None:
        """Replace a text of the site file, which must be there."""
        text = self.site_file.read_text(encoding="utf-8")
        assert old in text
        self.site_file.write_text(text.replace(old, new), encoding="utf-8")

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.directory / "s"

    def job(self, script: str, *, name: str = "job", processors: int = 1) -> str:
        """Return the path of a job file whose ranks run a shell script."""
        path = self.directory / f"{name}.toml"
        text = JOB.format(name=name, script=json.dumps(script), processors=processors)
        path.write_text(text, encoding="utf-8")
        return str(path)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of one ``koala``."""
        return [sys.executable, "-m", "koala_adapter.cli", *self.options, *arguments]

    @property
    def options(self) -> list[str]:
        """What each command is told of the site and the state directory."""
        return ["--site", str(self.site_file), "--state", str(self.state)]

    @property
    def client(self) -> Client:
        """The way to the service, as the commands have it."""
        return Client(self.state)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of every ``koala``: nothing of the shell around the tests."""
        roots = dict.fromkeys(str(Path(module.__file__ or "").parents[1]) for module in (koala_adapter, koala_local))
        kept = {name: os.environ[name] for name in ("PATH", "HOME")}
        path = os.pathsep.join((*map(str, self.packages), *roots))
        return {**kept, "LC_ALL": "C.UTF-8", "PYTHONPATH": path, "TMPDIR": str(self.directory)}

    def run(
        self,
        *arguments: str,
        check: int | None = 0,
        timeout: float = LIVENESS,
        **more: Any,  # noqa: ANN401 - passed on
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; ``check``: the exit code it must have. No command ever shows a traceback.

        With ``more``, which is for ``subprocess.Popen``, the command gets an interpreter of its own.
        """
        process = self.start_anew(*arguments, **more) if more else self.start(*arguments)
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
        assert "Traceback" not in errors + (output or ""), errors
        assert check is None or process.returncode == check, (arguments, process.returncode, output, errors)
        return subprocess.CompletedProcess(process.args, process.returncode or 0, output, errors)

    def inside(self, *arguments: str, check: int | None = 0) -> Result:
        """Run one command inside the test's process, where what it says is all that matters; otherwise as ``run``."""
        done = CliRunner().invoke(koala, [*self.options, *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert check is None or done.exit_code == check, (arguments, done.exit_code, done.stdout, done.stderr)
        return done

    def json(self, *arguments: str, check: int | None = 0) -> Any:  # noqa: ANN401 - JSON
        """Run one command with ``--json`` and return what it says; inside the test's process, as ``inside`` does."""
        return json.loads(self.inside(*arguments, "--json", check=check).stdout)

    @property
    def forks(self) -> bool:
        """Whether commands that are started may come from a process that has imported koala, as it is installed."""
        return not self.packages

    def start(self, *arguments: str, stdout: int | None = None) -> Running:
        """Start one command in a session of its own; ``stdout``: where that goes."""
        if self.forks:
            return self._fork(*arguments, output=stdout)
        return self.start_anew(*arguments, stdout=subprocess.PIPE if stdout is None else stdout)

    def start_said(self, word: str, *arguments: str) -> Running:
        """Start one command, and return it when its first line of output has come, which must have a word."""
        process = self.start(*arguments)
        assert process.stdout is not None
        assert word in process.stdout.readline()
        return process

    def _fork(self, *arguments: str, output: int | None = None, keep: int | None = None) -> Forked:
        process = forkserver.start_heard(
            [*self.options, *arguments],
            environment=self.environment,
            directory=Path.cwd(),
            output=output,
            keep=keep,
        )
        self.running.append(process)
        return process

    def start_anew(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - passed on
        """Start one command with an interpreter of its own, in a process group of its own, as a shell does."""
        process = subprocess.Popen(
            self.command(*arguments),
            env={**self.environment, **more.pop("environment", {})},
            stdin=subprocess.DEVNULL,
            stdout=more.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )
        self.running.append(process)
        return process

    def start_on_terminal(self, *arguments: str, controlling: bool = True) -> tuple[subprocess.Popen[str], int]:
        """Start one command on a terminal; return it and the descriptor whose closing takes the terminal away.

        ``controlling``: the kernel tells the command of that by SIGHUP; otherwise it only cannot write any more.
        """
        master, slave = os.openpty()
        process = subprocess.Popen(
            ["setsid", *(("--ctty",) if controlling else ()), *self.command(*arguments)],
            env={**self.environment, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            text=True,
        )
        os.close(slave)
        self.running.append(process)
        return process, master

    def serve(self) -> Running:
        """Start a service in the foreground of its own process and return once it answers."""
        reader, writer = os.pipe()
        if self.forks:
            process: Running = self._fork("serve", "--ready-descriptor", str(forkserver.KEPT), keep=writer)
        else:
            process = self.start_anew("serve", "--ready-descriptor", str(writer), pass_fds=(writer,))
        os.close(writer)
        with os.fdopen(reader, "rb") as ready:
            told = bool(select.select([ready], [], [], LIVENESS)[0]) and bool(ready.read(1))
        if not told:
            process.kill()
            raise AssertionError(f"the service did not come up: {process.communicate()[1]}")
        return process

    def report(self, job_id: str) -> JobReport:
        """Return what the service says of a job; asked at its socket, so that waiting starts no processes."""
        return self.client.job(job_id)

    def has(self, job_id: str) -> bool:
        """Tell whether a service answers and knows a job."""
        with contextlib.suppress(ServiceUnavailableError, JobNotFoundError):
            return self.report(job_id).id == job_id
        return False

    def state_of(self, job_id: str) -> str:
        """Return the state of a job, from the journal where no service answers."""
        with contextlib.suppress(ServiceUnavailableError):
            return self.report(job_id).state
        return str(self.json("status", job_id)["state"])

    def outcome(self, job_id: str = "1") -> dict[str, Any]:
        """Return how a job ended, once it has."""
        eventually(lambda: self.json("status", job_id)["outcome"] is not None)
        found: dict[str, Any] = self.json("status", job_id)["outcome"]
        return found

    def placeholders(self) -> list[LrmJob]:
        """Return what is in the clusters, of whatever name."""
        found: list[LrmJob] = []

        async def ask(lrm: Lrm) -> None:
            found.extend(job for job in await lrm.jobs() if job.state is not LrmJobState.ENDED)

        self._everywhere(ask)
        return found

    def submit_orphan(self, name: str) -> None:
        """Have cluster alpha run a job that calls itself a placeholder."""
        self.submit_foreign(name, 1, "alpha")

    def submit_foreign(self, name: str, count: int, cluster: str) -> list[LrmJobId]:
        """Have a cluster run jobs of five minutes that are not the service's; return their ids."""
        return self._submit_past_service(name, count, cluster, seconds=300, held=False)

    def cancel_foreign(self, ids: Sequence[LrmJobId], cluster: str) -> None:
        """Cancel jobs on a cluster."""
        self._everywhere(lambda lrm: lrm.cancel(list(ids)), only=cluster)

    def submit_held(self, name: str) -> str:
        """Have cluster alpha hold a job of ten minutes; return its id there."""
        return self._submit_past_service(name, 1, "alpha", seconds=600, held=True)[0]

    def _submit_past_service(self, name: str, count: int, cluster: str, *, seconds: int, held: bool) -> list[LrmJobId]:
        ids: list[LrmJobId] = []
        submission = Submission(
            key=BatchKey(name),
            count=count,
            script=f"#!/bin/sh\nexec sleep {seconds}\n",
            walltime=600,
            output_directory=str(self.directory),
            held=held,
        )

        async def submit(lrm: Lrm) -> None:
            ids.extend(await lrm.submit(submission))

        self._everywhere(submit, only=cluster)
        return ids

    def _everywhere(self, do: Callable[[Lrm], Any], only: str = "") -> None:
        prepare_directory(self.state)

        async def all_clusters() -> None:
            plugins = load_plugins()
            site = load_site(self.site_file, plugins)
            for config in site.clusters:
                if only in ("", config.name) and config.plugin == "local":
                    lrm, _ = make_lrm(config, plugins, self.state)
                    await lrm.start()
                    await do(lrm)
                    await lrm.close()

        anyio.run(all_clusters)

    def close(self) -> None:
        """End everything that was started."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        service = self._service()
        if service is not None:
            kill_and_wait(service)
        for name in ("alpha", "beta", "gamma"):
            cluster = self.state / "clusters" / name
            if cluster.exists() and self._cancel_all(name):
                anyio.run(end_daemon, cluster)

    def _cancel_all(self, name: str) -> bool:
        async def cancel(lrm: Lrm) -> None:
            await lrm.cancel([job.id for job in await lrm.jobs()])

        self._everywhere(cancel, only=name)
        return True

    def _service(self) -> int | None:
        """Return the process id of the service that owns the state directory."""
        try:
            pid = int((self.state / "service.lock").read_text().rpartition("pid ")[2].rstrip(")\n"))
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.state) in arguments else None


def kill_and_wait(pid: int) -> None:
    """Kill a process, which need not be a child, and return once it does nothing any more."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], LIVENESS)
        finally:
            os.close(descriptor)


def eventually(true: Callable[[], bool]) -> None:
    """Wait until something has become true; fail when it does not."""
    until = time.monotonic() + LIVENESS
    while not true():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.1)


@dataclass(frozen=True)
class Gate:
    """A file for which jobs wait: what a test wants to see of them cannot pass unseen, however slow the machine is."""

    path: Path

    @property
    def wait(self) -> str:
        """The shell command that ends once the gate is open."""
        return f"while [ ! -e {self.path} ]; do sleep 0.1; done"

    def open(self) -> None:
        """Let all through that wait, and whoever comes."""
        self.path.touch()


def processes_naming(text: str) -> Sequence[int]:
    """Return the processes of this machine whose command line names something."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
