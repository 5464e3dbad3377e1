# SPDX-License-Identifier: Apache-2.0
"""``koala check`` of a PBS server, and ``koala check --outside``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import CheckResult
from koala_adapter.lrm.commandplugin import Checks, OutsideChecks, Step, bad, good
from koala_adapter.lrm.commands import only_id
from koala_adapter.model import LrmJob, LrmJobId, NodeState
from koala_pbs import client
from koala_pbs.queues import QueueConfig, ServerConfig, largest_array, walltime_limit
from koala_pbs.settings import OPENPBS, SET_TORQUE, TORQUE, PbsSettings
from koala_pbs.words import BEING_DELETED, SUBMITTED, submission_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_pbs.client import PbsCommands

# -- Checks of a server --------------------------------------------------------------------------------------

PROGRAMS = ("qsub", "qstat", "pbsnodes", "qdel", "qhold", "qrls", "qalter", "qsig")
OPERATORS_PROGRAMS = ("qrun", "qrerun")

OLDEST_RELEASE = (18,)
"""qstat of older releases prints no JSON."""


class PbsChecks(Checks):
    """Checks of commands, server, and server settings that hinder koala."""

    missing_remedy = "install the PBS client commands, or give bin_directory (PBS_EXEC/bin)"
    decisive = "server"

    def __init__(self, commands: PbsCommands, settings: PbsSettings, unanswered: LrmUnavailableError | None) -> None:
        super().__init__(commands.host, settings.bin_directory, unanswered)
        self.programs = (*PROGRAMS, *(OPERATORS_PROGRAMS if settings.operator else ()))
        self._commands = commands
        self._settings = settings
        self._config: ServerConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        chooser = "conf, the path of a pbs.conf" if self._commands.dialect is OPENPBS else "server, its host"
        return (
            ("commands", self.check_programs, self.missing_remedy),
            ("version", self._version, f"give bin_directory, that of qstat of this server; {SET_TORQUE}"),
            ("server", self._server, f"start pbs_server, or give {chooser}, which chooses this server"),
            ("vnodes", self._vnodes, "ask the site for vnodes that jobs may use"),
            ("queues", self._queues, "ask the site which queues you may use"),
            ("jobs", self._jobs, "report it with what qstat -t -f -F json prints"),
            ("history", self._history, "qmgr -c 'set server job_history_enable=True'"),
        )

    async def _version(self) -> CheckResult:
        if self._commands.dialect is TORQUE:  # the server says its version
            self.require_answer()
        version = await self._commands.release()
        numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
        if self._commands.dialect is OPENPBS and numbers and numbers < OLDEST_RELEASE:
            return bad(version, f"PBS 18 or later is needed: older ones print no JSON; {SET_TORQUE}")
        return good(version if self._commands.dialect is OPENPBS else f"Torque {version}")

    async def _server(self) -> CheckResult:
        self.require_answer()
        config = self._config = await self._commands.server()
        if not config.scheduling and not self._settings.operator:
            found = f"{config.name} answers, and its scheduling is off: nothing starts"
            return bad(found, "qmgr -c 'set server scheduling=True', or wait for the site")
        others = "" if config.lists_others else "; it shows us our own jobs only (query_other_jobs)"
        return good(f"{config.name} of release {config.version}{others}")

    async def _vnodes(self) -> CheckResult:
        nodes = await self._commands.nodes()
        processors = sum(node.processors for node in nodes)
        idle = sum(node.processors_idle for node in nodes)
        up = sum(node.state is NodeState.UP for node in nodes)
        if not up:
            return bad(f"none of {len(nodes)} is up", "see pbsnodes -avS, and the MoM's log on a node")
        return good(f"{up} of {len(nodes)} up, {processors} processors, {idle} idle")

    async def _queues(self) -> CheckResult:
        queues = await self._commands.queues(home=self._config.name if self._config is not None else "")
        if not any(queue.up for queue in queues):
            return bad("none is enabled and started", "wait until the site opens one")
        by_name = {queue.name: queue for queue in queues}
        return good("; ".join(self._described(queue, by_name) for queue in queues))

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
        jobs = await self._commands.jobs()
        return good(f"{len(jobs)} listed")

    async def _history(self) -> CheckResult:
        if self._commands.dialect is TORQUE:
            return good("none; ended jobs stay listed for keep_completed seconds of server or queue")
        kept = self._config is not None and self._config.history
        found = "ended jobs can be asked for" if kept else "none kept; how jobs ended is not known afterwards"
        return good(found)


# -- Checks of starting from outside -------------------------------------------------------------------------
# ``koala check --outside`` of a PBS server: whether ordinary jobs come in held for us, and we may start them.

WEEK = 7 * 86_400
SUBMIT_BY_HAND = (
    "submit such a job by hand (echo true | qsub) as the user that koala runs as, and mend what it complains about"
)
SCRIPT = b"#!/bin/sh\nexit 0\n"


class PbsOutsideChecks(OutsideChecks):
    """Checks for scheduling from outside, with a job of their own."""

    scheduler = "PBS's own scheduler"
    held_for_us = "yes, in an operator's hold"
    held_otherwise = "whom koala leaves the release to"

    def __init__(self, commands: PbsCommands, settings: PbsSettings, *, user: str, uid: int) -> None:
        """``user``, ``uid``: the name and id under which PBS knows this user."""
        self._commands = commands
        self._settings = settings
        self._user = user
        self._uid = uid

    async def rights(self) -> CheckResult:
        config = await self._commands.server()
        subject = "who starts jobs"
        if self._settings.operator:
            found = f"koala, as {self._user}, by qrun; managers are {config.managers or 'root of the server'}"
            ok = config.may_operate(user=self._user, uid=self._uid) is not False
            remedy = f"qmgr -c 'set server operators += {self._user}@*'"
            return CheckResult(subject=subject, ok=ok, found=found, remedy=remedy)
        found = "PBS's scheduler, when koala has tied and released them"
        if not config.scheduling:
            remedy = "qmgr -c 'set server scheduling=True', or set operator = true in the settings of this cluster"
            return CheckResult(subject=subject, ok=False, found=f"{found}; it is off", remedy=remedy)
        return CheckResult(subject=subject, ok=True, found=found)

    @property
    def _small(self) -> tuple[str, ...]:
        if self._commands.dialect is TORQUE:
            return ("-l", "nodes=1:ppn=1")
        return ("-f", "-l", "select=1:ncpus=1")

    async def submit(self) -> LrmJobId:
        # For next week, so that it never runs if nobody holds it.
        begin = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + WEEK))
        options = (*self._small, "-N", "koala-check", "-l", "walltime=60", "-o", "/dev/null")
        result = await self._commands.run(("qsub", *options, "-j", "oe", "-a", begin), stdin=SCRIPT)
        if result.returncode:
            error = submission_error(result)
            raise LrmRejectedError(error.message, hint=error.hint or SUBMIT_BY_HAND)
        return LrmJobId(only_id(result.text, SUBMITTED))

    async def seen(self, job: LrmJobId) -> LrmJob | None:
        found = await self._commands.job(job)
        return None if found is None else found[0]

    async def release(self, job: LrmJobId) -> LrmError | None:
        if self._commands.dialect is TORQUE:
            # It refuses to release what is not held.
            await self._commands.run(client.hold([job], "o"))
        result = await self._commands.run(client.release([job], "o"))
        return self._commands.changing_error(result, action="releasing a job")

    async def cancel(self, job: LrmJobId) -> None:
        await self._commands.cancel(("qdel", job), gone=BEING_DELETED)

    def remedy_of_hold(self) -> str:
        if self._commands.dialect is TORQUE:
            return "Torque has no hook for it: an operator must hold jobs when they have come in (qhold -h o)"
        return "import what `koala conf pbs_queuejob.py` prints as a queuejob hook: its first lines say how"

    def remedy_of_release(self) -> str:
        return f"qmgr -c 'set server operators += {self._user}@*'"
