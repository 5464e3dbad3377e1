# SPDX-License-Identifier: Apache-2.0
"""Setting up a fake server in a directory, and taking it down."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from typing import TYPE_CHECKING

from tests.fakes.pbs.state import ALIVE, Settings, Store
from tests.fakes.scripts import await_runners, kill_scripts, write_command

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = (
    "qsub",
    "qstat",
    "pbsnodes",
    "qdel",
    "qhold",
    "qrls",
    "qalter",
    "qrun",
    "qsig",
    "qrerun",
    "qmsg",
    "qmove",
)


class FakePbs:
    """A fake server; the plugin is pointed at it by ``conf`` and ``bin_directory``."""

    def __init__(  # noqa: PLR0913 - what a test may want different
        self,
        directory: Path,
        *,
        nodes: int = 2,
        cpus: int = 2,
        release: str = "23.06.06",
        max_array_size: int = 10_000,
        history: bool = True,
        operators: tuple[str, ...] | None = None,
        site_hook: bool = False,
        server: str = "vm",
    ) -> None:
        """Make the server in ``directory``, which must not exist. ``operators``: None: whoever runs this."""
        self.conf = directory / "pbs.conf"
        self.bin_directory = directory / "bin"
        self.processors = nodes * cpus
        self._directory = directory
        (directory / "spool").mkdir(parents=True, mode=0o700)
        self.bin_directory.mkdir()
        settings: Settings = {
            "server": server,
            "release": release,
            "nodes": {f"n{number}": cpus for number in range(1, nodes + 1)},
            "queue": "workq",
            "max_array_size": max_array_size,
            "history": history,
            "operators": [pwd.getpwuid(os.geteuid()).pw_name] if operators is None else list(operators),
            "site_hook": site_hook,
            "peers": {},
            "routes": {},
        }
        self.name = server
        self._settings = settings
        self.conf.write_text(json.dumps(settings))
        for program in PROGRAMS:
            write_command(self.bin_directory / program, "pbs")

    def move_jobs_to(self, other: FakePbs, *, by: str = "away") -> None:
        """Let qmove, and a routing queue, move jobs to another server."""
        self._settings["peers"][other.name] = str(other.conf)
        self._settings["routes"][by] = f"workq@{other.name}"
        self.conf.write_text(json.dumps(self._settings))

    def run(self, *command: str, stdin: str = "", user: str = "nobody") -> str:
        """Run a command as somebody else would; return what it prints."""
        environment = {"PATH": os.environ["PATH"], "PBS_CONF_FILE": str(self.conf), "USER": user, "TZ": "UTC"}
        program, *arguments = command
        done = subprocess.run(
            [self.bin_directory / program, *arguments],
            env=environment,
            input=stdin.encode(),
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()

    def stop_server(self) -> None:
        """Make the commands complain that nobody answers; jobs go on."""
        (self._directory / "down").touch()

    def start_server(self) -> None:
        """Make the commands work again."""
        (self._directory / "down").unlink(missing_ok=True)

    def set_scheduling(self, *, on: bool) -> None:
        """Have the scheduler start jobs, or not."""
        with Store(self.conf).locked() as state:
            state.scheduling = on

    def set_offline(self, *nodes: str) -> None:
        """Take these vnodes, and no others, out of use."""
        with Store(self.conf).locked() as state:
            state.offline = list(nodes)

    def close(self) -> None:
        """End all jobs and wait for the processes that run them."""
        self.start_server()
        store = Store(self.conf)
        with store.locked() as state:
            state.scheduling = False
            running = [job for job in state.jobs if job.letter in ALIVE]
            kill_scripts(store.process(job) for job in running)
        await_runners(job.runner for job in running)
