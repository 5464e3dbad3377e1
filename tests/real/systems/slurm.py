# SPDX-License-Identifier: Apache-2.0
"""A whole Slurm cluster in a temporary directory: one slurmctld and several slurmd, all on this host.

Any number of them run side by side, because every Slurm command finds its cluster through the environment variable
SLURM_CONF (slurm.conf(5), slurmd(8) option -N).
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.real.systems.processes import (
    OTHER_SLURM,
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
    wait_until,
)
from tests.real.systems.requirements import missing_for_slurm, require

Authentication = Literal["none", "munge"]
"""none: any user may pass for any other, for tests with one user; munge: users are who they are."""

READY_SECONDS = 120.0
"""Bound on the time in which a cluster must be up; it takes about 2 s on an idle machine."""

CGROUPS_CAN_BE_DISABLED = (24, 5)
"""The first release that knows the word for it, and whose slurmd may end where there is no file system of them."""

DAEMONS = frozenset({"slurmd", "slurmstepd"})

SETTINGS: Mapping[str, str] = {
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "SwitchType": "switch/none",
    "TaskPlugin": "task/none",
    "ProctrackType": "proctrack/linuxproc",
    "JobAcctGatherType": "jobacct_gather/none",
    "MpiDefault": "none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    # Without config_overrides a node that claims more processors than the machine has is drained.
    "SlurmdParameters": "config_overrides",
    "SchedulerType": "sched/backfill",
    # A bf_interval of 5 s or less keeps 22.05.8 from saving its state after it has started jobs.
    "SchedulerParameters": "sched_min_interval=0,batch_sched_delay=0,sched_interval=5,bf_interval=10",
    "ReturnToService": "2",
    # What is slow here is a busy machine, and no daemon that is dead: nothing is to end by these.
    "SlurmdTimeout": "300",
    "SlurmctldTimeout": "120",
    "MessageTimeout": "60",
    "KillWait": "8",
    "BatchStartTimeout": "300",
    "UnkillableStepTimeout": "300",
    "MinJobAge": "300",
    "MaxArraySize": "10001",
    "MaxJobCount": "20000",
    "MailProg": "/bin/true",
    "SlurmctldDebug": "verbose",
    "SlurmdDebug": "verbose",
}
"""What differs from Slurm's defaults and is the same in every test cluster; `SlurmCluster(settings=...)` overrides."""


NOBODY_ANSWERS = "3"
"""Seconds for which a command tries again where no slurmctld listens (MessageTimeout); with the patience of the daemons
it would be a minute."""


class SlurmCluster:
    """A private Slurm cluster; use as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        name: str,
        *,
        nodes: int = 2,
        cpus: int = 4,
        auth: Authentication = "none",
        settings: Mapping[str, str] | None = None,
        gres: tuple[str, int] | None = None,
        node_options: str = "",
        partition_options: str = "",
    ) -> None:
        """Describe a cluster of `nodes` nodes called n1, n2 ... of `cpus` processors each; nothing is started.

        `settings` are added to slurm.conf, replacing those of `SETTINGS` of the same name. `gres`: a generic resource,
        named in GresTypes, and how many of it each node has. `node_options` and `partition_options` are added to the
        lines of the nodes, such as `Sockets=1 CoresPerSocket=2 ThreadsPerCore=2`, and of the partition.

        The running test is skipped where something is missing.
        """
        self._settings = {**SETTINGS, **(settings or {})}
        require(missing_for_slurm(munge=auth == "munge", lua="JobSubmitPlugins" in self._settings))
        self.name = name
        self.cpus = cpus
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self._owned = SystemDirectory.create(f"slurm-{name}")
        self.directory = self._owned.path
        self.conf = self.directory / "slurm.conf"
        """What commands read, ours and koala's."""
        self._daemons_conf = self.directory / "daemons.conf"
        self._auth: Authentication = auth
        self._gres = gres
        self._node_options = f" {node_options}" if node_options else ""
        self._partition_options = f" {partition_options}" if partition_options else ""
        self._ports = Ports.claim(nodes + 1)
        self._controller: Daemon | None = None
        self._munged: Daemon | None = None
        self._slurmd: dict[str, Daemon] = {}

    def __enter__(self) -> Self:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the cluster."""
        self.stop()

    # -- description ---------------------------------------------------------------------------------------------

    @property
    def controller_log(self) -> Path:
        """Log of slurmctld."""
        return self.directory / "slurmctld.log"

    @property
    def munge_socket(self) -> Path:
        """Socket of this cluster's own munged; it exists with auth="munge" only."""
        return self.directory / "munge" / "socket"

    @property
    def plugin_settings(self) -> dict[str, Path | str]:
        """Settings by which the plugin ``slurm`` uses this cluster: by commands, whatever library this machine has."""
        settings: dict[str, Path | str] = {"conf": self.conf, "submit_by": "commands"}
        return settings if OTHER_SLURM is None else {**settings, "bin_directory": OTHER_SLURM / "bin"}

    def environment(self, user: str | None = None) -> dict[str, str]:
        """Return the environment in which a command, of Slurm or of ours, uses this cluster."""
        return {**base_environment(user), "SLURM_CONF": str(self.conf)}

    @property
    def processors(self) -> int:
        """Processors of all nodes."""
        return self.cpus * len(self.nodes)

    def spool(self, node: str) -> Path:
        """Directory in which the slurmd of a node keeps job scripts."""
        return self.directory / "spool" / node

    @property
    def state(self) -> Path:
        """Directory in which slurmctld keeps its state (StateSaveLocation)."""
        return self.directory / "state"

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring the cluster up and return when all its nodes are idle.

        Raises SystemFailedError with the ends of the logs when that takes longer than READY_SECONDS.
        """
        for directory in (self.state, *(self.spool(node) for node in self.nodes)):
            directory.mkdir(parents=True)
        self._daemons_conf.write_text(self._configuration())
        self._write_conf()
        self._without_cgroups()
        try:
            if self._auth == "munge":
                self._start_munged()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.wait_idle()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every daemon, job step and job process of the cluster, and delete its directory."""
        daemons = [self._controller, *self._slurmd.values(), self._munged]
        for daemon in daemons:
            if daemon is not None:
                daemon.end(how=signal.SIGKILL)
        self._controller = self._munged = None
        self._slurmd = {}
        self._owned.remove()
        self._ports.release()

    def start_controller(self) -> None:
        """Start slurmctld, on the state that an earlier one left; return when it answers.

        It knows its nodes, and starts jobs, only about 4 s later.
        """
        self._write_conf()
        argv = ["slurmctld", "-D", "-f", str(self._daemons_conf)]
        log = self.directory / "slurmctld.out"
        self._controller = Daemon(argv, environment=self.environment(), log=log, cwd=self.directory)
        wait_until(self._answers, seconds=READY_SECONDS, what=f"slurmctld of {self.name}", details=self.logs)

    def stop_controller(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End slurmctld; jobs and slurmd go on.

        On SIGTERM it saves its state first. With SIGKILL the changes of the last 5 s are lost: a submitted job may be
        unknown afterwards, and a job that had just started is killed and started anew.

        Until the next one is started, commands do not wait long for an answer that nobody can give.
        """
        if self._controller is None:
            message = f"slurmctld of {self.name} is not running"
            raise SystemFailedError(message)
        self._controller.end(how=how)
        self._controller = None
        self._write_conf(MessageTimeout=NOBODY_ANSWERS)

    def signal_controller(self, how: signal.Signals) -> None:
        """Send a signal to slurmctld: SIGSTOP makes it hang, as an overloaded one does, until SIGCONT."""
        if self._controller is not None:
            os.kill(self._controller.pid, how)

    def start_node(self, node: str) -> None:
        """Start (again) the slurmd of a node; see `wait_idle`."""
        argv = ["slurmd", "-D", "-N", node, "-f", str(self._daemons_conf)]
        log = self.directory / f"slurmd.{node}.out"
        self._slurmd[node] = Daemon(argv, environment=self.environment(), log=log, cwd=self.spool(node))

    def kill_node(self, node: str, *, with_jobs: bool = True) -> None:
        """SIGKILL a node's slurmd and, as a power cut would, its job steps and all job processes on it."""
        self._slurmd.pop(node).end(how=signal.SIGKILL)
        if with_jobs:
            kill_processes(lambda: find_processes(lambda process: self._runs_on(process, node)))

    def give_up(self, node: str) -> None:
        """Set a node down, as slurmctld does by itself when it has not heard of it for SlurmdTimeout."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def signal_node(self, node: str, how: signal.Signals) -> None:
        """Send a signal to the slurmd of a node."""
        os.kill(self._slurmd[node].pid, how)

    def return_to_use(self) -> None:
        """Resume nodes that were drained or set down, be it by slurmctld itself (a job id that came twice)."""
        rows = [line.split() for line in self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()]
        for node in sorted({name for name, state in rows if state.startswith(("drain", "down"))}):
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)

    def wait_idle(self, *, seconds: float = READY_SECONDS) -> None:
        """Return when all nodes are idle; raise SystemFailedError with the logs when that takes too long."""
        wait_until(self._all_idle, seconds=seconds, what=f"all nodes of {self.name} idle", details=self.logs)

    def reset(self) -> None:
        """Cancel all jobs of all users and wait until the nodes are idle again."""
        jobs = sorted({row[0] for row in self.squeue("--states=PENDING,RUNNING,SUSPENDED", form="%F")})
        if jobs:
            # SIGKILL at once, so that nothing is left to wait KillWait for; what has not started is only cancelled.
            self.run("scancel", "--quiet", "--signal=KILL", "--full", *jobs, check=False)
            self.run("scancel", "--quiet", *jobs, check=False)
        wait_until(
            lambda: not self.squeue("--states=PENDING,RUNNING,SUSPENDED,COMPLETING"),
            seconds=READY_SECONDS,
            what=f"no jobs left in {self.name}",
            details=self.logs,
        )
        self.wait_idle()

    # -- use -----------------------------------------------------------------------------------------------------

    def run(
        self, *argv: str, user: str | None = None, stdin: str = "", check: bool = True, timeout: float = 120.0
    ) -> str:
        """Run a Slurm command on this cluster, in a directory that all users may write; return its stdout.

        Raises CommandError when the exit code is not 0 and `check` is set.
        """
        return run_command(
            argv,
            environment=self.environment(user),
            user=user,
            cwd=Path(tempfile.gettempdir()),
            stdin=stdin,
            check=check,
            timeout=timeout,
        )

    def squeue(self, *options: str, form: str = "%i|%T|%r") -> list[list[str]]:
        """Return the listed jobs, one line per array task, as lists of the fields of `form`."""
        text = self.run("squeue", "--noheader", "--array", "--all", f"--format={form}", *options)
        return [line.split("|") for line in text.splitlines()]

    def show(self, job: str) -> dict[str, str]:
        """Return what scontrol shows of a job, by name."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    def submit(self, script: str, *options: str, user: str | None = None) -> str:
        """Hand a script to sbatch and return the job id."""
        return self.run("sbatch", "--parsable", *options, user=user, stdin=script).strip().partition(";")[0]

    def logs(self) -> str:
        """Return the ends of all logs, for the text of an error."""
        logs = sorted(self.directory.glob("*.log"))
        # A daemon's output says the same once more, unless it failed before it opened its log.
        outputs = [file for file in self.directory.glob("*.out") if file.with_suffix(".log") not in logs]
        return "\n".join(tail(file) for file in (*logs, *sorted(outputs)))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        if self._controller is None or not self._controller.is_running():
            message = f"slurmctld of {self.name} has ended\n{self.logs()}"
            raise SystemFailedError(message)
        try:
            return " is UP" in self.run("scontrol", "ping")
        except CommandError:
            return False

    def _all_idle(self) -> bool:
        for node, daemon in self._slurmd.items():
            if not daemon.is_running():
                message = f"slurmd of {node} of {self.name} has ended\n{self.logs()}"
                raise SystemFailedError(message)
        states = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").split()[1::2]
        return len(states) == len(self.nodes) and set(states) == {"idle"}

    def _runs_on(self, process: SeenProcess, node: str) -> bool:
        if process.command in DAEMONS:
            return process.cwd == self.spool(node)
        return process.uses(self.directory) and process.environment.get("SLURMD_NODENAME") == node

    def _without_cgroups(self) -> None:
        """Do without control groups: newer slurmd end where they find no file system of them (cgroup.conf(5))."""
        if self._release() >= CGROUPS_CAN_BE_DISABLED:
            (self.directory / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _release(self) -> tuple[int, int]:
        words = self.run("scontrol", "--version").split()[-1].split(".")
        return int(words[0]), int(words[1])

    def _write_conf(self, **changes: str) -> None:
        """Write what commands read, which differs from what the daemons read by some settings."""
        new = self.conf.with_suffix(".new")
        new.write_text(self._configuration(**changes))
        new.replace(self.conf)

    def _configuration(self, **changes: str) -> str:
        host = socket.gethostname().partition(".")[0]
        values = {
            "ClusterName": self.name,
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": str(self._ports[0]),
            "StateSaveLocation": str(self.state),
            "SlurmdSpoolDir": str(self.spool("%n")),
            "SlurmctldPidFile": str(self.directory / "slurmctld.pid"),
            "SlurmdPidFile": str(self.directory / "slurmd.%n.pid"),
            "SlurmctldLogFile": str(self.controller_log),
            "SlurmdLogFile": str(self.directory / "slurmd.%n.log"),
            "AuthType": f"auth/{self._auth}",
            "CredType": f"cred/{self._auth}",
            **({"AuthInfo": f"socket={self.munge_socket}"} if self._auth == "munge" else {}),
            **self._settings,
            **changes,
        }
        lines = [f"{name}={value}" for name, value in values.items()]
        gres = ""
        if self._gres is not None:
            name, count = self._gres
            gres = f" Gres={name}:{count}"
            # slurmd takes a number without devices for any resource but GPUs.
            devices = [self.directory / f"{name}{number}" for number in range(count)]
            for device in devices:
                if not device.exists():  # as /dev/null: jobs are told of devices only, not of other files
                    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            files = ",".join(map(str, devices))
            (self.directory / "gres.conf").write_text(
                f"Name={name} File={files}\n" if name == "gpu" else f"Name={name} Count={count}\n"
            )
        # Without NodeHostname, which a Slurm that was not built for several slurmd on a host takes once for each host.
        lines += [
            f"NodeName={node} NodeAddr=127.0.0.1 Port={self._ports[number]} CPUs={self.cpus} RealMemory=4000"
            f"{self._node_options}{gres}"
            for number, node in enumerate(self.nodes, start=1)
        ]
        nodes = ",".join(self.nodes)
        partition = f"PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE DefaultTime=60 State=UP"
        lines.append(partition + self._partition_options)
        return "\n".join(lines) + "\n"

    def _start_munged(self) -> None:
        directory = self.munge_socket.parent
        directory.mkdir(mode=0o755)
        key = directory / "key"
        descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(1024))
        argv = [
            "munged",
            "--foreground",
            # A munged of root is refused without --force; ours has its own key and its own socket, and serves tests.
            "--force",
            f"--key-file={key}",
            f"--socket={self.munge_socket}",
            f"--pid-file={directory / 'pid'}",
            f"--seed-file={directory / 'seed'}",
            f"--log-file={directory / 'log'}",
            "--num-threads=2",
        ]
        self._munged = Daemon(argv, environment=base_environment(), log=self.directory / "munged.out", cwd=directory)
        wait_until(self.munge_socket.exists, seconds=READY_SECONDS, what="munged", details=self.logs)
