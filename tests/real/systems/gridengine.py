# SPDX-License-Identifier: Apache-2.0
"""A private Grid Engine cell in a temporary directory: one sge_qmaster and one sge_execd, both on this host.

Several cells run side by side: a cell is a directory (SGE_ROOT, SGE_CELL) and two ports, all given in the environment
(sge_intro(1), bootstrap(5)).
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.real.systems.processes import (
    FIRST_PORT,
    SYSTEM_PATH,
    CommandError,
    Daemon,
    Ports,
    SeenProcess,
    SystemDirectory,
    SystemFailedError,
    base_environment,
    find_processes,
    kill_processes,
    run_command,
    tail,
    wait_reaped,
    wait_until,
)
from tests.real.systems.requirements import missing_for_grid_engine, require

READY_SECONDS = 120.0
"""Bound on the time in which a cell must be up; it takes about 3 s on an idle machine."""

CELL = "default"
QUEUE = "all.q"
DEBIAN_ROOT = Path("/var/lib/gridengine")
ARCH = "arch"
PRIVATE_LIBRARIES = "/usr/lib/gridengine"
INIT_CLUSTER = "/usr/share/gridengine/scripts/init_cluster"

JOBS_PER_HOST = 200
"""Group ids that a cell owns: its execd marks the processes of each running job with one of them."""

GLOBAL_CONFIGURATION: Mapping[str, str] = {
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:01",
    "max_unheard": "00:05:00",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 "
    "joblog=false sharelog=00:00:00",
    "mailer": "/bin/true",
    "loglevel": "log_info",
    "shell_start_mode": "posix_compliant",
}
"""What differs from Debian's configuration of a new cell; `GridEngineCell(configuration=...)` overrides."""

SCHEDULER_CONFIGURATION: Mapping[str, str] = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "job_load_adjustments": "NONE",
    "load_adjustment_decay_time": "0:0:0",
}

QUEUE_CONFIGURATION = """\
qname                 {queue}
hostlist              @allhosts
seq_no                0
load_thresholds       NONE
suspend_thresholds    NONE
nsuspend              1
suspend_interval      00:05:00
priority              0
min_cpu_interval      00:05:00
processors            UNDEFINED
qtype                 BATCH INTERACTIVE
ckpt_list             NONE
pe_list               NONE
rerun                 FALSE
slots                 {slots}
tmpdir                /tmp
shell                 /bin/sh
prolog                NONE
epilog                NONE
shell_start_mode      posix_compliant
starter_method        NONE
suspend_method        NONE
resume_method         NONE
terminate_method      NONE
notify                00:00:60
owner_list            NONE
user_lists            NONE
xuser_lists           NONE
subordinate_list      NONE
complex_values        NONE
projects              NONE
xprojects             NONE
calendar              NONE
initial_state         default
s_rt                  INFINITY
h_rt                  INFINITY
s_cpu                 INFINITY
h_cpu                 INFINITY
s_fsize               INFINITY
h_fsize               INFINITY
s_data                INFINITY
h_data                INFINITY
s_stack               INFINITY
h_stack               INFINITY
s_core                INFINITY
h_core                INFINITY
s_rss                 INFINITY
h_rss                 INFINITY
s_vmem                INFINITY
h_vmem                INFINITY
"""


ENVIRONMENT = """\
pe_name            {name}
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    {rule}
control_slaves     FALSE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


def _replaced(text: str, values: Mapping[str, str]) -> str:
    """Return a `name value` configuration, as qconf prints it, with some values replaced or added."""
    joined = text.replace("\\\n", " ")
    kept = [line for line in joined.splitlines() if line.split(maxsplit=1)[:1] and line.split()[0] not in values]
    return "\n".join([*kept, *(f"{name} {value}" for name, value in values.items())]) + "\n"


def _lists_jobs(listing: str) -> bool:
    """Tell whether there are jobs in what `qstat -f` shows."""
    return any(line.split(maxsplit=1)[0].isdecimal() for line in listing.splitlines() if line.strip())


class GridEngineCell:
    """A private Grid Engine cell; use as a context manager, or call `start` and `stop`."""

    def __init__(self, name: str, *, slots: int = 4, configuration: Mapping[str, str] | None = None) -> None:
        """Describe a cell of one host with one queue, all.q, of `slots` slots; nothing is started.

        `configuration` is added to the cell's global configuration (sge_conf(5)), replacing what has the same name.

        The running test is skipped where something is missing.
        """
        require(missing_for_grid_engine())
        self.name = name
        self.slots = slots
        self._owned = SystemDirectory.create(f"sge-{name}")
        self.directory = self._owned.path
        self.root = self.directory / "root"
        self._ports = Ports.claim(2)
        self._configuration = {**GLOBAL_CONFIGURATION, **(configuration or {})}
        self._qmaster: Daemon | None = None
        self._execd: Daemon | None = None

    def __enter__(self) -> Self:
        """Start the cell."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the cell."""
        self.stop()

    # -- description ---------------------------------------------------------------------------------------------

    @property
    def cell(self) -> str:
        """Value of SGE_CELL."""
        return CELL

    @property
    def qmaster_port(self) -> int:
        """Value of SGE_QMASTER_PORT."""
        return self._ports[0]

    @property
    def execd_port(self) -> int:
        """Value of SGE_EXECD_PORT."""
        return self._ports[1]

    @property
    def spool(self) -> Path:
        """Directory with the spool directories of sge_qmaster (qmaster) and sge_execd (execd/HOST)."""
        return self.directory / "spool"

    def variables(self) -> dict[str, str]:
        """Return the environment variables that choose this cell."""
        return {
            "SGE_ROOT": str(self.root),
            "SGE_CELL": CELL,
            "SGE_QMASTER_PORT": str(self.qmaster_port),
            "SGE_EXECD_PORT": str(self.execd_port),
        }

    @property
    def plugin_settings(self) -> dict[str, Path | str | int]:
        """Settings by which the plugin ``sge`` uses this cell."""
        ports = {"qmaster_port": self.qmaster_port, "execd_port": self.execd_port}
        return {"root": self.root, "cell": self.cell, **ports}

    @property
    def processors(self) -> int:
        """Slots of its queue."""
        return self.slots

    def environment(self, user: str | None = None) -> dict[str, str]:
        """Return the environment in which a command, of Grid Engine or of ours, uses this cell."""
        return {**base_environment(user), **self.variables()}

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring the cell up and return when its queue accepts jobs.

        Raises SystemFailedError with the ends of the logs when that takes longer than READY_SECONDS.
        """
        try:
            self._create()
            self.start_qmaster()
            self._configure()
            self.start_execd()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End both daemons and every job process of the cell, and delete its directory."""
        for daemon in (self._qmaster, self._execd):
            if daemon is not None:
                daemon.end(how=signal.SIGKILL)
        self._qmaster = self._execd = None
        self._owned.remove()
        self._ports.release()

    def start_qmaster(self) -> None:
        """Start sge_qmaster, on the state that an earlier one left; return when it answers."""
        self._qmaster = self._daemon("sge_qmaster")
        wait_until(self._answers, seconds=READY_SECONDS, what=f"sge_qmaster of {self.name}", details=self.logs)

    def stop_qmaster(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End sge_qmaster; jobs and sge_execd go on."""
        if self._qmaster is None:
            message = f"sge_qmaster of {self.name} is not running"
            raise SystemFailedError(message)
        self._qmaster.end(how=how)
        self._qmaster = None

    def signal_qmaster(self, how: signal.Signals) -> None:
        """Send a signal to sge_qmaster: SIGSTOP makes it hang, as an overloaded one does, until SIGCONT."""
        if self._qmaster is not None:
            os.kill(self._qmaster.pid, how)

    def signal_execd(self, how: signal.Signals) -> None:
        """Send a signal to sge_execd."""
        if self._execd is not None:
            os.kill(self._execd.pid, how)

    def use_temporary_directory(self, path: Path) -> None:
        """Let jobs have their directories (TMPDIR) below a path instead of /tmp."""
        self.run("qconf", "-rattr", "queue", "tmpdir", str(path), QUEUE)

    def add_environment(self, name: str, *, rule: str) -> None:
        """Have a parallel environment with an allocation rule, such as ``$pe_slots``, for jobs of the queue."""
        self._change("-Ap", name, ENVIRONMENT.format(name=name, rule=rule))
        self.run("qconf", "-aattr", "queue", "pe_list", name, QUEUE)

    def add_complexes(self, complexes: Mapping[str, tuple[str, str]]) -> None:
        """Have complexes: for each name the rest of its line in complex(5), and what the host has of it."""
        lines = [
            line
            for line in self.run("qconf", "-sc").splitlines()
            if line.split() and not line.startswith("#") and line.split()[0] not in complexes
        ]
        lines += [f"{name} {rest}" for name, (rest, _) in complexes.items()]
        self._change("-Mc", "complex", "\n".join(lines) + "\n")
        values = ",".join(f"{name}={value}" for name, (_, value) in complexes.items())
        self.run("qconf", "-mattr", "exechost", "complex_values", values, "localhost")

    def start_execd(self) -> None:
        """Start (again) sge_execd; see `wait_ready`."""
        self._execd = self._daemon("sge_execd")

    def kill_execd(self, *, with_jobs: bool = True) -> None:
        """SIGKILL sge_execd and, as a power cut would, all shepherds and job processes."""
        if self._execd is None:
            message = f"sge_execd of {self.name} is not running"
            raise SystemFailedError(message)
        self._execd.end(how=signal.SIGKILL)
        self._execd = None
        if with_jobs:
            # An sge_execd that comes back knows the shepherds of before by their process ids alone.
            wait_reaped(kill_processes(lambda: find_processes(self._is_job)))

    def wait_ready(self, *, seconds: float = READY_SECONDS) -> None:
        """Return when the queue has all its slots and no trouble; raise SystemFailedError when that takes too long."""
        wait_until(self._queue_is_up, seconds=seconds, what=f"queue of {self.name} up", details=self.logs)

    def return_to_use(self) -> None:
        """Take errors from the queue and enable it."""
        for option in ("-cq", "-e"):
            self.run("qmod", option, "*", check=False)

    def reset(self) -> None:
        """Take errors from the queue, enable it, delete all jobs of all users, and wait until none is left.

        This takes half a minute after a restart of sge_qmaster: sge_execd is that slow to report to it again.
        """
        listing = self.run("qstat", "-f", "-u", "*", check=False)
        if not self._accepts_jobs(listing):
            self.return_to_use()
            # A deletion that is sent to an sge_execd which has lost its qmaster is not repeated for minutes.
            self.wait_ready()
        elif not _lists_jobs(listing):
            return
        self.run("qdel", "-u", "*", check=False)
        wait_until(self._no_jobs, seconds=READY_SECONDS, what=f"no jobs left in {self.name}", details=self.logs)

    # -- use -----------------------------------------------------------------------------------------------------

    def run(
        self, *argv: str, user: str | None = None, stdin: str = "", check: bool = True, timeout: float = 120.0
    ) -> str:
        """Run a Grid Engine command on this cell, in a directory that all users may write; return its stdout.

        Raises CommandError when the exit code is not 0 and `check` is set.
        """
        return run_command(
            argv,
            # First the programs themselves: Debian's wrapper takes ten times the processor time of what it calls.
            environment={**self.environment(user), "PATH": f"{PRIVATE_LIBRARIES}:{SYSTEM_PATH}"},
            user=user,
            cwd=Path(tempfile.gettempdir()),
            stdin=stdin,
            check=check,
            timeout=timeout,
        )

    def qstat(self, *options: str) -> str:
        """Return what qstat prints about the jobs of all users; empty when there are none."""
        return self.run("qstat", "-u", "*", *options)

    def submit(self, script: str, *options: str, user: str | None = None) -> str:
        """Hand a script to qsub and return the job id."""
        return self.run("qsub", "-terse", *options, user=user, stdin=script).strip().partition(".")[0]

    def logs(self) -> str:
        """Return the ends of all logs, for the text of an error."""
        files = [*sorted(self.spool.rglob("messages")), *sorted(self.directory.glob("*.out"))]
        return "\n".join(tail(file) for file in files)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _daemon(self, program: str) -> Daemon:
        # SGE_ND keeps a daemon in the foreground, as our child.
        environment = {**self.environment(), "SGE_ND": "true"}
        return Daemon([program], environment=environment, log=self.directory / f"{program}.out", cwd=self.directory)

    def _answers(self) -> bool:
        if self._qmaster is None or not self._qmaster.is_running():
            message = f"sge_qmaster of {self.name} has ended\n{self.logs()}"
            raise SystemFailedError(message)
        try:
            self.run("qconf", "-sconf", "global")
        except CommandError:
            return False
        return True

    def _queue_is_up(self) -> bool:
        if self._execd is None or not self._execd.is_running():
            message = f"sge_execd of {self.name} has ended\n{self.logs()}"
            raise SystemFailedError(message)
        return self._accepts_jobs(self.run("qstat", "-f"))

    def _accepts_jobs(self, listing: str) -> bool:
        rows = [line.split() for line in listing.splitlines() if line.startswith(f"{QUEUE}@")]
        # queue, type, resv/used/tot., load, arch, and states only when there is something to say.
        return bool(rows) and all(
            len(row) == 5 and row[2].endswith(f"/{self.slots}") and row[3] != "-NA-" for row in rows
        )

    def _no_jobs(self) -> bool:
        return not self.qstat().strip()

    def _is_job(self, process: SeenProcess) -> bool:
        if not process.uses(self.directory):
            return False
        return process.command == "sge_shepherd" or "JOB_ID" in process.environment

    def _create(self) -> None:
        common = self.root / CELL / "common"
        common.mkdir(parents=True)
        for directory in ("qmaster", "execd", "spooldb"):
            (self.spool / directory).mkdir(parents=True)
        for name in ("bin", "utilbin", "lib"):
            (self.root / name).symlink_to(DEBIAN_ROOT / name)
        self._create_util()
        host = socket.gethostname()
        (common / "bootstrap").write_text(
            "admin_user none\ndefault_domain none\nignore_fqdn true\nspooling_method berkeleydb\n"
            f"spooling_lib libspoolb\nspooling_params {self.spool / 'spooldb'}\nbinary_path /usr/sbin\n"
            f"qmaster_spool_dir {self.spool / 'qmaster'}\nsecurity_mode none\nlistener_threads 2\n"
            "worker_threads 2\nscheduler_threads 1\n"
        )
        # The address 127.0.0.1 resolves to localhost while the host calls itself something else.
        (common / "host_aliases").write_text(f"localhost {host}\n")
        (common / "act_qmaster").write_text("localhost\n")
        (common / "sge_request").write_text("")
        environment = {**self.environment(), "LD_LIBRARY_PATH": PRIVATE_LIBRARIES}
        manager = base_environment()["USER"]
        argv = [INIT_CLUSTER, str(self.root), CELL, str(self.spool / "spooldb"), manager]
        run_command(argv, environment=environment)

    def _create_util(self) -> None:
        """Have the scripts of the installation; that which finds out the machine, with a compiler, only answers.

        It is asked for each job that starts.
        """
        util = self.root / "util"
        util.mkdir()
        for script in (DEBIAN_ROOT / util.name).iterdir():
            if script.name != ARCH:
                (util / script.name).symlink_to(script)
        machine = run_command([str(DEBIAN_ROOT / util.name / ARCH)], environment=base_environment()).strip()
        (util / ARCH).write_text(f"#!/bin/sh\necho {machine}\n")
        (util / ARCH).chmod(0o755)

    def _configure(self) -> None:
        self.run("qconf", "-as", "localhost")
        self.run("qconf", "-ah", "localhost", check=False)
        first = 100_000 + (self.qmaster_port - FIRST_PORT) * JOBS_PER_HOST
        values = {
            **self._configuration,
            "execd_spool_dir": str(self.spool / "execd"),
            # Two cells on one host must not share group ids: each would take the other's job processes for its own.
            "gid_range": f"{first}-{first + JOBS_PER_HOST - 1}",
        }
        self._change("-Mconf", "global", _replaced(self.run("qconf", "-sconf", "global"), values))
        self._change("-Msconf", "scheduler", _replaced(self.run("qconf", "-ssconf"), SCHEDULER_CONFIGURATION))
        self._change("-Ahgrp", "hostgroup", "group_name @allhosts\nhostlist localhost\n")
        self._change("-Aq", "queue", QUEUE_CONFIGURATION.format(queue=QUEUE, slots=self.slots))

    def _change(self, option: str, name: str, text: str) -> None:
        # The name of the file matters: qconf takes from it which configuration is meant (global).
        file = self.directory / "qconf" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        self.run("qconf", option, str(file))
