# SPDX-License-Identifier: Apache-2.0
"""One user of koala, for the scenarios: a site file, a state directory, and the commands that a person would type.

The service is a process of its own, started, killed with SIGKILL and started again as the scenario wants; everything
is asked through the command line or the service's socket, never by looking into the service.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from click.testing import CliRunner

from koala_adapter.api.client import Client
from koala_adapter.cli.koala import koala
from koala_adapter.config.jobfile import load_job
from koala_adapter.config.sitefile import load_site
from koala_adapter.errors import KoalaError
from koala_adapter.lrm import load_plugins
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import JobId
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.report.values import JobReport
from tests import forkserver
from tests.forkserver import Forked
from tests.real.lrms import Served, System, listing
from tests.real.systems import SlurmCluster, SystemFailedError
from tests.real.systems.pbs import PbsServer
from tests.real.systems.processes import PATIENCE, SYSTEM_PATH, tail, wait_until

Values: TypeAlias = "Mapping[str, object]"

CENTER: Values = {"listen": "127.0.0.1", "lease": 300, "heartbeat": 5, "registration_timeout": 300}
SCHEDULER: Values = {"scan_interval": 1, "placeholder_life": 600, "backoff": 1, "longest_backoff": 2, "reuse": False}
CLUSTER: Values = {"requests_per_minute": 600, "poll_interval": 1}
"""Settings that make the scenarios short, and by which nothing ends only because the machine is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")

    @property
    def json(self) -> Any:  # noqa: ANN401 - JSON of many shapes
        """Standard output as the JSON document it must be."""
        return json.loads(self.stdout)


def runs_with_known_ids(report: JobReport) -> bool:
    """Whether the job runs and its numbers are known: an agent may come before the answer to its submission."""
    return report.state is JobState.RUNNING and all(component.lrm_ids for component in report.components)


def toml(values: Mapping[str, object]) -> str:
    """Return a table's lines."""
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in values.items())


def _toml_value(value: object) -> str:
    """Return a value as TOML: texts, numbers and truth values are written as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value)


def cluster_table(system: Served, values: Values) -> str:
    """Return the [[clusters]] table of a test system."""
    # Slurm by commands, whatever library this machine has: tests stop them, and look at what they say.
    plugin = "slurm" if isinstance(system, SlurmCluster) else "pbs" if isinstance(system, PbsServer) else "sge"
    given = system.plugin_settings.items()
    settings = {name: value if isinstance(value, int) else str(value) for name, value in given}
    head = toml({"name": system.name, "plugin": plugin, **CLUSTER, **values})
    return f"\n[[clusters]]\n{head}[clusters.settings]\n{toml(settings)}"


def at_most(system: System, processors: int) -> Values:
    """Return the settings of a cluster of which a user may have so many processors."""
    return {"threshold": system.processors - processors}


def until(file: Path) -> Sequence[str]:
    """Return a command that runs until a file is there."""
    return ("sh", "-c", f"until [ -e {file} ]; do sleep 0.2; done")


def part(cluster: str | None, processors: int, *command: str, **more: Any) -> str:  # noqa: ANN401 - JSON
    """Return the [[components]] table of a job file; ``more`` are further keys."""
    pinned = {} if cluster is None else {"cluster": cluster}
    values = {"command": list(command), "processors": processors, **pinned, **more}
    return f"\n[[components]]\n{toml(values)}"


class KoalaUser:
    """A user with a site of some test systems; ``close`` leaves nothing behind."""

    def __init__(
        self,
        directory: Path,
        systems: Sequence[Served],
        *,
        account: str | None = None,
        center: Values | None = None,
        scheduler: Values | None = None,
        clusters: Mapping[str, Values] | None = None,
        path: Path | None = None,
        python: Path | None = None,
    ) -> None:
        """Write the site file; nothing is started.

        ``account``: login name under which all runs, the one of the tests by default. ``path``: directory to be first
        in PATH. ``python``: a Python that can import the program under test, for an account that cannot use that of the
        tests. The other arguments are added to the tables of the site file, ``clusters`` by name of the system.
        """
        self.path = SYSTEM_PATH if path is None else f"{path}:{SYSTEM_PATH}"
        self.python = str(python or sys.executable)
        self.directory = directory
        self.state = directory / "state"
        self.output = directory / "agents"
        self.site = directory / "site.toml"
        self.log = directory / "service.log"
        self.account = None if account is None else pwd.getpwnam(account)
        self.systems = {system.name: system for system in systems}
        self.service: subprocess.Popen[bytes] | Forked | None = None
        self.client = Client(self.state)
        self.kills = 0
        for own in (directory, self.output):
            own.mkdir(exist_ok=True)
            if self.account is not None:
                os.chown(own, self.account.pw_uid, self.account.pw_gid)
        more = clusters or {}
        text = f"[control_center]\n{toml({**CENTER, **(center or {})})}"
        text += f"[scheduler]\n{toml({**SCHEDULER, **(scheduler or {})})}"
        common: Values = {"output_directory": str(self.output)}
        self.site.write_text(text + "".join(cluster_table(s, {**common, **more.get(s.name, {})}) for s in systems))

    @property
    def prefix(self) -> str:
        """How the names of all LRM jobs of this user's state directory begin."""
        return f"koala-{self._kept('instance')}-"

    @property
    def port(self) -> int:
        """On which agents expect the control center."""
        return int(self._kept("port"))

    def _kept(self, key: str) -> str:
        with contextlib.closing(sqlite3.connect(f"{(self.state / 'journal.sqlite').as_uri()}?mode=ro", uri=True)) as db:
            (value,) = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(value)

    # -- the service -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Start the service and return when it answers."""
        reader, writer = os.pipe()
        with self.log.open("ab") as log:
            self.service = self._started_into(log.fileno(), "serve", keep=writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as ready:
            if not ready.read():
                raise SystemFailedError(f"the service did not come up\n{self.details()}")

    def kill(self) -> None:
        """Kill the service as a power cut would: no chance to say or write anything."""
        if self.service is None:
            raise SystemFailedError("the service is not running")
        self.service.kill()
        self.service.wait(PATIENCE)
        self.service = None
        self.kills += 1

    def stop(self) -> None:
        """End the service in good order."""
        if self.service is not None:
            self.service.send_signal(signal.SIGTERM)
            code = self.service.wait(PATIENCE)
            self.service = None
            if code != 0:
                raise SystemFailedError(f"the service ended with {code}\n{self.details()}")

    def close(self) -> None:
        """Cancel whatever is unfinished, stop the service, and insist that it never met anything unexpected."""
        try:
            if self.service is not None and self.service.poll() is None:
                self._cancel_all()
                self.stop()
        finally:
            if self.service is not None:
                self.service.kill()
                self.service.wait(PATIENCE)
        log = self.log.read_text(errors="replace") if self.log.exists() else ""
        if any(sign in log for sign in ("Traceback", "failed on an event", "a defect of koala")):
            raise SystemFailedError(f"the service met an error of its own\n{log}")

    def _cancel_all(self) -> None:
        with self._as_account():
            for id_ in [report.id for report in self.client.jobs() if report.outcome is None]:
                self.client.cancel(id_)

    # -- commands ----------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the environment of a command: that of an ordinary login, and where the program under test is."""
        account = self.account or pwd.getpwuid(os.getuid())
        return {
            "PATH": self.path,
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.directory),
            "USER": account.pw_name,
            "LOGNAME": account.pw_name,
            "KOALA_SITE": str(self.site),
            "KOALA_STATE": str(self.state),
            **({} if self.account else {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}),
        }

    def _popen(self, *arguments: str, output: int, keep: int | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.python, "-m", "koala_adapter.cli", *arguments],
            env=self.environment(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output if output != subprocess.PIPE else subprocess.PIPE,
            pass_fds=() if keep is None else (keep,),
            start_new_session=True,
            user=None if self.account is None else self.account.pw_uid,
            group=None if self.account is None else self.account.pw_gid,
            extra_groups=None if self.account is None else [],
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``koala`` with arguments and return at once."""
        return self._popen(*arguments, output=subprocess.PIPE)

    def start_into(self, path: Path, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        """Start ``koala`` with arguments and return at once; all that it prints goes into a file."""
        with path.open("ab") as output:
            return self._started_into(output.fileno(), *arguments)

    def _started_into(self, output: int, *arguments: str, keep: int | None = None) -> subprocess.Popen[bytes] | Forked:
        """``keep``: where it is to say that it is ready."""
        if self.account is not None:
            ready = () if keep is None else ("--ready-descriptor", str(keep))
            return self._popen(*arguments, *ready, output=output, keep=keep)
        ready = () if keep is None else ("--ready-descriptor", str(forkserver.KEPT))
        return forkserver.start(
            [*arguments, *ready],
            environment=self.environment(),
            directory=self.directory,
            output=output,
            errors=output,
            keep=keep,
        )

    def run(self, *arguments: str) -> Result:
        """Run ``koala`` with arguments to its end: inside this process, which has imported it, where that can be."""
        if self.account is not None:
            return self.run_apart(*arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.directory)
            done = CliRunner().invoke(koala, arguments, env=self.environment())
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Result(code=done.exit_code, stdout=done.stdout_bytes, stderr=done.stderr)

    def run_apart(self, *arguments: str, timeout: float = PATIENCE) -> Result:
        """Run ``koala`` with arguments to its end, as a process of its own."""
        with self.start(*arguments) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return Result(code=process.returncode, stdout=stdout, stderr=stderr.decode(errors="replace"))

    def job_file(self, *parts: str, name: str = "job", walltime: int = 600, **header: Any) -> Path:  # noqa: ANN401
        """Write a job file of components; ``header`` are further keys of the job."""
        path = self.directory / f"{name}.toml"
        path.write_text(toml({"name": name, "walltime": walltime, **header}) + "".join(parts))
        return path

    def end_of(self, *parts: str, **header: Any) -> tuple[str, JobOutcome]:  # noqa: ANN401
        """Run a job as a person does, from its file to its end; return its id and outcome. Its exit code is right."""
        done = self.run("run", "--json", str(self.job_file(*parts, **header)))
        outcome = self.report(done.json["id"]).outcome
        assert outcome is not None
        assert done.code == outcome.exit_code == done.json["outcome"]["exit_code"]
        return done.json["id"], outcome

    def submit(self, file: Path) -> str:
        """Submit a job file and return the job's id: as the command does, and inside this process where that can be."""
        if self.service is not None and self.account is None:
            return self._submit_here(file)
        done = self.run("submit", "--json", str(file))
        if done.code != 0:
            raise SystemFailedError(f"koala submit: {done.code}\n{done.stderr}\n{self.details()}")
        return str(done.json["id"])

    def _submit_here(self, file: Path) -> str:
        site = load_site(self.site, load_plugins())
        job = load_job(file, job_id=JobId("0"), user=login_name(), submitted_at=0.0, site=site)
        try:
            return self.client.submit(job)
        except KoalaError as error:
            raise SystemFailedError(f"koala submit: {error}\n{self.details()}") from error

    # -- reports -----------------------------------------------------------------------------------------------------

    def report(self, job_id: str) -> JobReport:
        """Return a job as ``koala status`` shows it."""
        with self._as_account():
            return self.client.job(job_id)

    @contextlib.contextmanager
    def _as_account(self) -> Iterator[None]:
        """Be the user for the service, which answers nobody else, not even root."""
        if self.account is None:
            yield
            return
        os.setegid(self.account.pw_gid)
        os.seteuid(self.account.pw_uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)

    def wait(
        self, job_id: str, condition: Callable[[JobReport], bool], *, what: str, seconds: float = PATIENCE
    ) -> JobReport:
        """Return the report of a job as soon as it meets a condition."""
        latest: list[JobReport] = []

        def met() -> bool:
            with contextlib.suppress(KoalaError):
                latest[:] = [self.report(job_id)]
            return bool(latest) and condition(latest[0])

        def details() -> str:
            return f"{latest[0] if latest else 'no report'}\n{self.details()}"

        wait_until(met, seconds=seconds, what=f"job {job_id}: {what}", details=details)
        return latest[0]

    def wait_available(self, *processors: int) -> None:
        """Return when koala knows how many processors of each cluster it could have: it has seen who else is there."""
        wait_until(
            lambda: tuple(one.available for one in self.client.clusters()) == processors,
            seconds=PATIENCE,
            what=f"{processors} are available",
            details=self.details,
        )

    def wait_over(self, job_id: str, *, seconds: float = PATIENCE) -> JobReport:
        """Return the last report of a job: it has its outcome, and nothing of it is left in any batch system."""
        return self.wait(job_id, lambda report: report.over, what="over", seconds=seconds)

    def wait_outcome(self, job_id: str) -> JobOutcome:
        """Return the outcome of a job once nothing of it is left in any batch system."""
        outcome = self.wait_over(job_id).outcome
        assert outcome is not None
        return outcome

    def wait_running(self, job_id: str) -> JobReport:
        """Return the report of a job as soon as all its ranks run."""
        return self.wait(job_id, lambda report: report.state is JobState.RUNNING, what="runs")

    def wait_completed(self, job_id: str, *, seconds: float = PATIENCE) -> JobReport:
        """Return the last report of a job as `wait_over` does; it must have ended well."""
        report = self.wait_over(job_id, seconds=seconds)
        assert report.state is JobState.COMPLETED, (report.outcome, report.explanation)
        return report

    def wait_held(self, job_id: str, held: int, *, seconds: float = PATIENCE) -> JobReport:
        """Return a report of a job that holds so many processors."""
        return self.wait(
            job_id,
            lambda report: sum(component.held for component in report.components) == held,
            what=f"holds {held}",
            seconds=seconds,
        )

    def output_of(self, job_id: str, component: str, rank: int, stream: str = "out") -> bytes:
        """Return what a rank wrote."""
        path = self.state / "jobs" / job_id / component / f"{rank}.{stream}"
        return path.read_bytes() if path.exists() else b""

    def details(self) -> str:
        """Return what helps to understand a failure."""
        shown = [tail(self.log, 60)]
        for system in self.systems.values():
            with contextlib.suppress(Exception):
                shown.append(f"--- {system.name}\n{listing(system)}")
        return "\n".join(shown)


# -- Commands of a batch system that pause where a test wants them to, so that the service can be killed just there. The
# true command does its work; a script of the same name, earlier in PATH, waits before or after it, once.

PAUSING = """\
#!/bin/sh
# The first call pauses; the others are those of the true command.
if mkdir "{gate}" 2>/dev/null; then
    {before}
    "{true}" "$@" >"{gate}/answer"
    status=$?
    {after}
    cat "{gate}/answer"
    exit $status
fi
exec "{true}" "$@"
"""
PAUSE = ': >"{gate}/reached"; while [ ! -e "{go}" ]; do sleep 0.1; done'


class PausedCommand:
    """The first call of a command, which pauses until it is let go."""

    def __init__(self, directory: Path, command: str, *, when: Literal["before", "after"]) -> None:
        """Write the script into ``directory``, to be put at the head of PATH."""
        true = shutil.which(command, path=SYSTEM_PATH)
        if true is None:
            raise FileNotFoundError(command)
        self._gate = directory / f"{command}.gate"
        directory.mkdir(exist_ok=True)
        pause = PAUSE.format(gate=self._gate, go=self._gate.with_suffix(".go"))
        before, after = (pause, ":") if when == "before" else (":", pause)
        script = directory / command
        script.write_text(PAUSING.format(gate=self._gate, true=true, before=before, after=after))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def wait_reached(self) -> None:
        """Return when the call pauses."""
        wait_until((self._gate / "reached").exists, seconds=PATIENCE, what="the command is called")

    def let_go(self) -> None:
        """Let the call go on, or pass if it has not come yet."""
        self._gate.with_suffix(".go").touch()
