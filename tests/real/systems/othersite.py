# SPDX-License-Identifier: Apache-2.0
"""A site of its own on this machine: a network namespace with nothing but its loopback, a cluster, and real sshd.

No packet goes into the namespace or out of it. Each connection is an ``sshd -i`` that ssh's ProxyCommand starts in it,
with keys, configuration and PAM of its own. Run as a program, this module is what runs in the namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.real.systems.gridengine import GridEngineCell
from tests.real.systems.pbs import PbsServer, missing_for_pbs
from tests.real.systems.processes import PATIENCE, SystemDirectory, base_environment, find_processes, run_command
from tests.real.systems.requirements import missing_for_grid_engine, missing_for_slurm, require
from tests.real.systems.slurm import SlurmCluster

PROGRAMS = {
    "/usr/sbin/sshd": "openssh-server",
    "/usr/bin/ssh": "openssh-client",
    "/usr/bin/unshare": "util-linux",
    "/sbin/ip": "iproute2",
}
"""What it needs beside its batch system, by files and Debian packages."""

DELAY = Path(__file__).with_name("delay.py")

ADDRESS = "10.99.0.1"
"""Of the login node, for its nodes alone. Slurm finds no address on a host that has those of the loopback only."""

ROUTED = ("10.98.0.1/30", "10.98.0.2/30")
"""Of the login nodes of two sites that can connect to each other."""

SSHD = """\
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
"""
CODES = {
    "UsePAM no": "UsePAM yes",
    "StrictModes no": "StrictModes no\nPubkeyAuthentication no\nKbdInteractiveAuthentication yes",
}
"""What is another in the configuration of an sshd that asks for a code, and takes no key."""
PAM = """\
auth required pam_exec.so quiet expose_authtok {directory}/check_code
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
CHECK_CODE = """\
#!/bin/sh
# Take a code that comes on standard input, once.
exec rm "{directory}/codes/$(tr -d '\\0')"
"""
SSH = """\
Host {name}
    HostKeyAlias {name}
    User root
    IdentityFile {directory}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {directory}/known_hosts
    StrictHostKeyChecking yes
    ProxyCommand sh -c 'test ! -e {directory}/down && exec {sshd}'
"""


SYSTEMS: Mapping[str, Callable[[str], SlurmCluster | GridEngineCell]] = {
    "slurm": partial(SlurmCluster, nodes=1),
    "sge": GridEngineCell,
}
"""What can be at a site, beside ``pbs``: the server that PBS_CONF_FILE names, in the network of the tests."""

TABLES = """\
[[sites]]
name = "{site}"
ssh = "{ssh}"
ssh_options = ["-F", "{ssh_config}"]
directory = "{directory}/there"
listen = "{address}"
[[clusters]]
name = "{cluster}"
plugin = "slurm"
site = "{site}"
poll_interval = 1
requests_per_minute = 600
settings.conf = "{conf}"
"""


def missing_for_other_site(system: str = "slurm") -> list[str]:
    """Say what is missing for a site with a batch system; empty: nothing."""
    root = [] if os.getuid() == 0 else ["to be root"]
    here = {"slurm": missing_for_slurm, "sge": missing_for_grid_engine, "pbs": missing_for_pbs}[system]()
    programs = [f"{file} (Debian package {package})" for file, package in PROGRAMS.items() if not Path(file).exists()]
    return [*dict.fromkeys([*root, *here, *programs])]


class OtherSite:
    """A started site; use as a context manager."""

    def __init__(self, name: str = "site", *, system: str = "slurm", delay: float = 0.0) -> None:
        """``name``: the host for ssh. ``system``: of `SYSTEMS`. ``delay``: seconds that each way takes.

        The running test is skipped where something is missing.
        """
        require(missing_for_other_site(system))
        self.name = name
        self.system = system
        self._delay = delay
        self._stack = ExitStack()
        self._pid = 0
        """Of a process in its namespace."""
        self.conf = Path()
        """slurm.conf of its cluster, if that is of Slurm."""
        self.settings: dict[str, Any] = {}
        """Settings by which the plugin of its system uses the cluster."""
        self.ssh_config = Path()
        """For ``ssh -F``."""

    def __enter__(self) -> Self:
        """Start it and return when its nodes are idle."""
        owned = SystemDirectory.create("site")
        self._stack.callback(owned.remove)
        directory = owned.path
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            run_command(command, environment=base_environment())
        known = (directory / "host_key.pub").read_text().split()
        (directory / "known_hosts").write_text(f"{self.name} {known[0]} {known[1]}\n")
        (directory / "sshd_config").write_text(SSHD.format(directory=directory))
        shutil.copytree("/etc/pam.d", directory / "pam.d")
        (directory / "pam.d" / "sshd").write_text(PAM.format(directory=directory))
        (directory / "check_code").write_text(CHECK_CODE.format(directory=directory))
        (directory / "check_code").chmod(0o755)
        (directory / "codes").mkdir()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        told = self._beside_pbs() if self.system == "pbs" else self._started(directory)
        self.settings = told["settings"]
        self.conf = Path(str(self.settings.get("conf", "")))
        with (directory / "sshd_config").open("a") as config:
            config.write(f"SetEnv {' '.join(f'{name}={value}' for name, value in told['variables'].items())}\n")
        self.ssh_config = directory / "ssh_config"
        delay = f"{sys.executable} {DELAY} {self._delay} " if self._delay else ""
        spaces = f"--net=/proc/{self._pid}/ns/net --mount=/proc/{self._pid}/ns/mnt"
        sshd = f"setsid {delay}nsenter {spaces} /usr/sbin/sshd -i -f {directory}/sshd_config"
        self.ssh_config.write_text(SSH.format(name=self.name, directory=directory, sshd=sshd))
        return self

    def _beside_pbs(self) -> dict[str, Any]:
        """Take the PBS server that runs already: this site has the network of this process."""
        self._pid, server = os.getpid(), PbsServer()
        return {"settings": server.plugin_settings, "variables": {"PBS_CONF_FILE": server.conf}}

    def _started(self, directory: Path) -> dict[str, Any]:
        """Start a cluster in a network of its own; return its settings and variables."""
        here = f"ip link set lo up && ip address add {ADDRESS}/32 dev lo && mount --bind {directory}/pam.d /etc/pam.d"
        run = f'{here} && exec "$0" -m tests.real.systems.othersite {self.system} {self.name}'
        process = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", run, sys.executable],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
            env=base_environment(),
        )
        self._pid = process.pid
        self._stack.callback(process.communicate, timeout=PATIENCE)
        line = process.stdout.readline() if process.stdout is not None else b""
        told: dict[str, Any] = json.loads(line)
        return told

    def tables(self, directory: Path, *, site: str = "there", cluster: str = "far") -> str:
        """Return what a site file says of it and of its Slurm, under these names. ``directory``: for files there."""
        return TABLES.format(
            site=site,
            ssh=self.name,
            ssh_config=self.ssh_config,
            directory=directory,
            address=ADDRESS,
            cluster=cluster,
            conf=self.conf,
        )

    def _inside(self, command: str) -> None:
        """Run a command in its network namespace."""
        run_command(["nsenter", f"--net=/proc/{self._pid}/ns/net", *command.split()], environment=base_environment())

    def connect(self, other: OtherSite) -> None:
        """Let the login nodes of this site and of another one reach each other, and nothing else."""
        self._inside(f"ip link add koala0 type veth peer name koala0 netns {other._pid}")
        for site, address in ((self, ROUTED[0]), (other, ROUTED[1])):
            site._inside(f"ip address add {address} dev koala0")
            site._inside("ip link set koala0 up")

    def slow_route(self, rate: str) -> None:
        """Bound what this site sends to the one that it is connected with, such as ``100mbit``."""
        self._inside(f"tc qdisc add dev koala0 root tbf rate {rate} burst 256k latency 50ms")

    def end_route(self) -> None:
        """Connect it with no other site any more."""
        self._inside("ip link delete koala0")

    @property
    def network(self) -> str:
        """Its network namespace, as its processes see it."""
        return str(Path(f"/proc/{self._pid}/ns/net").readlink())

    def connection(self, parent: int) -> int:
        """Return the ssh process of a service."""
        (found,) = find_processes(lambda process: process.command == "ssh" and process.parent == parent)[:1]
        return found

    def sshd(self, connection: int) -> int:
        """Return the sshd process at the other end of an ssh process."""
        (found,) = find_processes(lambda process: process.command == "sshd" and process.parent == connection)[:1]
        return found

    def end_connections(self) -> None:
        """End all connections, as a login node does that is started anew."""
        for process in find_processes(lambda one: one.command == "sshd"):
            with suppress(OSError):
                if str(Path(f"/proc/{process}/ns/net").readlink()) == self.network:
                    os.kill(process, signal.SIGKILL)

    def jobs(self) -> list[str]:
        """Return the ids of the jobs of its cluster that have not ended."""
        command = ["nsenter", f"--net=/proc/{self._pid}/ns/net", "squeue", "--noheader", "--format=%i"]
        return run_command(command, environment={**base_environment(), "SLURM_CONF": str(self.conf)}).split()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Have no connection made meanwhile. Those that are there stay."""
        mark = self.ssh_config.with_name("down")
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    @contextmanager
    def asking(self) -> Iterator[Callable[[], str]]:
        """Have new connections ask for a code and take no key; what is yielded makes codes, each good once."""
        config = self.ssh_config.with_name("sshd_config")
        kept = config.read_text()
        numbers = count(100_000)

        def new_code() -> str:
            code = str(next(numbers))
            (config.parent / "codes" / code).touch()
            return code

        changed = kept
        for old, new in CODES.items():
            changed = changed.replace(old, new)
        config.write_text(changed)
        try:
            yield new_code
        finally:
            config.write_text(kept)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of it."""
        self._stack.close()


def main() -> None:
    """Run a cluster until standard input ends."""
    system, name = sys.argv[1:]
    with SYSTEMS[system](name) as cluster:
        base = base_environment()
        variables = {key: value for key, value in cluster.environment().items() if base.get(key) != value}
        settings = {
            key: value if isinstance(value, int) else str(value) for key, value in cluster.plugin_settings.items()
        }
        sys.stdout.write(json.dumps({"settings": settings, "variables": variables}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
