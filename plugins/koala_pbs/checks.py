# SPDX-License-Identifier: Apache-2.0
"""``koala check`` of a PBS server: what is there, what answers, and what is set so that koala cannot work well."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError
from koala_adapter.model import NodeState
from koala_adapter.plugin import CheckResult
from koala_adapter.plugin.commands import child_environment
from koala_pbs import control
from koala_pbs.jobs import parse_jobs
from koala_pbs.nodes import parse_nodes
from koala_pbs.queues import largest_array, parse_queues, parse_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from koala_pbs.client import PbsCommands
    from koala_pbs.queues import QueueConfig, ServerConfig
    from koala_pbs.settings import PbsSettings

PROGRAMS = ("qsub", "qstat", "pbsnodes", "qdel", "qhold", "qrls", "qalter", "qsig")
OPERATORS_PROGRAMS = ("qrun", "qrerun")

OLDEST_RELEASE = (18,)
"""qstat of older releases prints no JSON."""


@dataclass(slots=True, kw_only=True)
class Checks:
    """One run of all checks; each that fails says what to do. Without a server the rest is left out."""

    commands: PbsCommands
    settings: PbsSettings
    _config: ServerConfig | None = None

    async def run(self) -> tuple[CheckResult, ...]:
        """Return one result for each subject, in the order in which a person would look."""
        steps: tuple[tuple[str, Callable[[], Awaitable[CheckResult]], str], ...] = (
            ("commands", self._programs, "install the PBS client commands, or give bin_directory"),
            ("version", self._version, "give bin_directory, that of qstat of OpenPBS or PBS Professional"),
            ("server", self._server, "start pbs_server, or give conf, the path of this server's pbs.conf"),
            ("vnodes", self._vnodes, "ask the site for vnodes that jobs may use"),
            ("queues", self._queues, "ask the site which queues you may use"),
            ("jobs", self._jobs, "report it with what qstat -t -f -F json prints"),
            ("history", self._history, "qmgr -c 'set server job_history_enable=True'"),
        )
        results: list[CheckResult] = []
        for subject, step, remedy in steps:
            try:
                results.append(await step())
            except LrmError as error:
                results.append(_bad(subject, error.message, error.hint or remedy))
            # Each further question would wait for the server until its time-out.
            if subject == "server" and not results[-1].ok:
                break
        return tuple(results)

    async def _programs(self) -> CheckResult:
        directory = str(self.settings.bin_directory) if self.settings.bin_directory else child_environment()["PATH"]
        wanted = (*PROGRAMS, *(OPERATORS_PROGRAMS if self.settings.operator else ()))
        places = {program: shutil.which(program, path=directory) for program in wanted}
        missing = [program for program, place in places.items() if place is None]
        if missing:
            remedy = "install the PBS client commands, or give bin_directory (PBS_EXEC/bin)"
            return _bad("commands", f"no {', '.join(missing)} in {directory}", remedy)
        found = sorted({os.path.dirname(place) for place in places.values() if place})  # noqa: PTH120 - plain text
        return _good("commands", f"{', '.join(wanted)} in {', '.join(found)}")

    async def _version(self) -> CheckResult:
        version = await self.commands.version(control.SHOW_VERSION, control.parse_version)
        numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
        if numbers and numbers < OLDEST_RELEASE:
            return _bad("version", version, "PBS 18 or later is needed: older ones, and Torque, print no JSON")
        return _good("version", version)

    async def _server(self) -> CheckResult:
        config = self._config = await self.commands.list(control.SHOW_SERVER, parse_server, action="asking the server")
        if not config.scheduling and not self.settings.operator:
            found = f"{config.name} answers, and its scheduling is off: nothing starts"
            return _bad("server", found, "qmgr -c 'set server scheduling=True', or wait for the site")
        others = "" if config.lists_others else "; it shows us our own jobs only (query_other_jobs)"
        return _good("server", f"{config.name} of release {config.version}{others}")

    async def _vnodes(self) -> CheckResult:
        nodes = await self.commands.list(control.LIST_NODES, parse_nodes, action="listing of nodes")
        processors = sum(node.processors for node in nodes)
        idle = sum(node.processors_idle for node in nodes)
        up = sum(node.state is NodeState.UP for node in nodes)
        if not up:
            return _bad("vnodes", f"none of {len(nodes)} is up", "see pbsnodes -avS, and the MoM's log on a node")
        return _good("vnodes", f"{up} of {len(nodes)} up, {processors} processors, {idle} idle")

    async def _queues(self) -> CheckResult:
        queues = await self.commands.list(control.LIST_QUEUES, parse_queues, action="listing of queues")
        if not any(queue.up for queue in queues):
            return _bad("queues", "none is enabled and started", "wait until the site opens one")
        return _good("queues", "; ".join(self._described(queue) for queue in queues))

    def _described(self, queue: QueueConfig) -> str:
        limit = f"{queue.walltime_limit // 60} min" if queue.walltime_limit else "no walltime limit"
        largest = largest_array(self._config, {queue.name: queue}, queue.name)
        arrays = f"arrays of at most {largest}" if largest > 1 else "no arrays"
        default = ("default",) if self._config is not None and queue.name == self._config.default_queue else ()
        words = (*(() if queue.executes else ("routing",)), limit, arrays, *default)
        return f"{queue.name} {'up' if queue.up else 'down'} ({', '.join(words)})"

    async def _jobs(self) -> CheckResult:
        jobs = await self.commands.list(control.LIST_JOBS, parse_jobs, action="listing of jobs")
        return _good("jobs", f"{len(jobs)} listed")

    async def _history(self) -> CheckResult:
        kept = self._config is not None and self._config.history
        found = "ended jobs can be asked for" if kept else "none kept; how jobs ended is not known afterwards"
        return _good("history", found)


def _good(subject: str, found: str) -> CheckResult:
    return CheckResult(subject=subject, ok=True, found=found)


def _bad(subject: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
