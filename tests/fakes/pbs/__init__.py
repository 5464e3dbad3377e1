# SPDX-License-Identifier: Apache-2.0
"""A fake PBS for machines without one: its commands act on a directory and run jobs as ordinary processes.

It prints what OpenPBS 23.06 printed where it was recorded, words as numbers among it, refuses in its words and with its
exit statuses, and refuses every option that it does not know.
"""

from __future__ import annotations

import json
import os
import pwd
from typing import TYPE_CHECKING, ClassVar

from tests.fakes.pbs.state import ALIVE, Settings, Store
from tests.fakes.scripts import FakeSystem, end_runners

if TYPE_CHECKING:
    from pathlib import Path


class FakePbs(FakeSystem):
    """A fake server."""

    variable = Store.variable
    variables: ClassVar = {"TZ": "UTC"}
    programs: ClassVar = (
        *("qsub", "qstat", "pbsnodes", "qdel", "qhold", "qrls"),
        *("qalter", "qrun", "qsig", "qrerun", "qmsg", "qmove"),
    )

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
        """Make the server in ``directory``, which must not exist. ``operators``: None: the user of this process."""
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
        super().__init__(directory, "pbs.conf", settings, system="pbs")

    def move_jobs_to(self, other: FakePbs, *, by: str = "away") -> None:
        """Let qmove, and a routing queue, move jobs to another server."""
        self._settings["peers"][other.name] = str(other.conf)
        self._settings["routes"][by] = f"workq@{other.name}"
        self.conf.write_text(json.dumps(self._settings))

    def run(self, *command: str, stdin: str = "", user: str = "nobody") -> str:
        """Return what a command prints when another user runs it, without the end of its last line."""
        return super().run(*command, stdin=stdin, user=user).strip()

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
        end_runners({job.runner: store.process(job) for job in running})
