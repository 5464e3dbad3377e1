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
from koala_pbs.dialects import OPENPBS, SET_TORQUE, TORQUE
from koala_pbs.queues import largest_array, walltime_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from koala_adapter.errors import LrmUnavailableError
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
    unanswered: LrmUnavailableError | None = None
    """How the server failed to answer a moment ago: to ask once more would take as long."""
    _config: ServerConfig | None = None

    async def run(self) -> tuple[CheckResult, ...]:
        """Return one result for each subject, in the order in which a person would look."""
        steps: tuple[tuple[str, Callable[[], Awaitable[CheckResult]], str], ...] = (
            ("commands", self._programs, "install the PBS client commands, or give bin_directory"),
            ("version", self._version, f"give bin_directory, that of qstat of this server; {SET_TORQUE}"),
            ("server", self._server, f"start pbs_server, or give {self._chooser}, which chooses this server"),
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

    @property
    def _chooser(self) -> str:
        return "conf, the path of a pbs.conf" if self.commands.dialect is OPENPBS else "server, its host"

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
        if self.unanswered is not None and self.commands.dialect is TORQUE:  # the server says its version
            raise self.unanswered
        version = await self.commands.release()
        numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
        if self.commands.dialect is OPENPBS and numbers and numbers < OLDEST_RELEASE:
            return _bad("version", version, f"PBS 18 or later is needed: older ones print no JSON; {SET_TORQUE}")
        return _good("version", version if self.commands.dialect is OPENPBS else f"Torque {version}")

    async def _server(self) -> CheckResult:
        if self.unanswered is not None:
            raise self.unanswered
        config = self._config = await self.commands.server()
        if not config.scheduling and not self.settings.operator:
            found = f"{config.name} answers, and its scheduling is off: nothing starts"
            return _bad("server", found, "qmgr -c 'set server scheduling=True', or wait for the site")
        others = "" if config.lists_others else "; it shows us our own jobs only (query_other_jobs)"
        return _good("server", f"{config.name} of release {config.version}{others}")

    async def _vnodes(self) -> CheckResult:
        nodes = await self.commands.nodes()
        processors = sum(node.processors for node in nodes)
        idle = sum(node.processors_idle for node in nodes)
        up = sum(node.state is NodeState.UP for node in nodes)
        if not up:
            return _bad("vnodes", f"none of {len(nodes)} is up", "see pbsnodes -avS, and the MoM's log on a node")
        return _good("vnodes", f"{up} of {len(nodes)} up, {processors} processors, {idle} idle")

    async def _queues(self) -> CheckResult:
        queues = await self.commands.queues(home=self._config.name if self._config is not None else "")
        if not any(queue.up for queue in queues):
            return _bad("queues", "none is enabled and started", "wait until the site opens one")
        by_name = {queue.name: queue for queue in queues}
        return _good("queues", "; ".join(self._described(queue, by_name) for queue in queues))

    def _described(self, queue: QueueConfig, queues: Mapping[str, QueueConfig]) -> str:
        longest = walltime_limit(queue, queues)
        limit = f"{longest // 60} min" if longest else "no walltime limit"
        largest = largest_array(self._config, queues, queue.name)
        arrays = f"arrays of at most {largest}" if largest > 1 else "no arrays"
        default = ("default",) if self._config is not None and queue.name == self._config.default_queue else ()
        words = (
            *(() if queue.executes else (f"routing to {', '.join(queue.destinations) or 'nowhere'}",)),
            limit,
            arrays,
            *default,
        )
        return f"{queue.name} {'up' if queue.up else 'down'} ({', '.join(words)})"

    async def _jobs(self) -> CheckResult:
        jobs = await self.commands.jobs()
        return _good("jobs", f"{len(jobs)} listed")

    async def _history(self) -> CheckResult:
        if self.commands.dialect is TORQUE:
            return _good("history", "none; ended jobs stay listed for keep_completed seconds of server or queue")
        kept = self._config is not None and self._config.history
        found = "ended jobs can be asked for" if kept else "none kept; how jobs ended is not known afterwards"
        return _good("history", found)


def _good(subject: str, found: str) -> CheckResult:
    return CheckResult(subject=subject, ok=True, found=found)


def _bad(subject: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
