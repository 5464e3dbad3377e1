# SPDX-License-Identifier: Apache-2.0
"""``koala check --outside`` of a PBS server: whether ordinary jobs come in held for us, and we may start them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError
from koala_adapter.model import HoldOwner, LrmJobState
from koala_adapter.plugin import CheckResult
from koala_adapter.plugin.commandsystem import only_id
from koala_pbs import control
from koala_pbs.dialects import TORQUE
from koala_pbs.jobids import SUBMITTED
from koala_pbs.refusals import BEING_DELETED, submission_error

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob
    from koala_pbs.client import PbsCommands
    from koala_pbs.settings import PbsSettings

WEEK = 7 * 86_400
SUBMIT_BY_HAND = (
    "submit such a job by hand (echo true | qsub) as the user that koala runs as, and mend what it complains about"
)
SCRIPT = b"#!/bin/sh\nexit 0\n"


class OutsideChecks:
    """One run of the checks."""

    def __init__(self, commands: PbsCommands, settings: PbsSettings, *, user: str, uid: int) -> None:
        """``user`` and ``uid``: who we are for PBS."""
        self._commands = commands
        self._settings = settings
        self._user = user
        self._uid = uid

    async def run(self) -> tuple[CheckResult, ...]:
        """Return whether jobs come in held, whether we may start them, and who starts them then."""
        try:
            return (await self._rights(), *await self._trial())
        except LrmError as error:
            remedy = error.hint or "see `koala docs wiki`"
            return (CheckResult(subject="outside scheduler", ok=False, found=error.message, remedy=remedy),)

    async def _rights(self) -> CheckResult:
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

    async def _trial(self) -> tuple[CheckResult, ...]:
        # For next week, so that it never runs if nobody holds it.
        begin = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + WEEK))
        options = (*self._small, "-N", "koala-check", "-l", "walltime=60", "-o", "/dev/null")
        result = await self._commands.run(("qsub", *options, "-j", "oe", "-a", begin), stdin=SCRIPT)
        if result.returncode:
            error = submission_error(result)
            found = f"an ordinary submission is refused: {error.message}"
            remedy = error.hint or SUBMIT_BY_HAND
            return (CheckResult(subject="jobs come in held", ok=False, found=found, remedy=remedy),)
        job = only_id(result.text, SUBMITTED)
        try:
            listed, _ = await self._commands.job(job)
            return (self._held(next((one for one in listed if one.id == job), None)), await self._released(job))
        finally:
            await self._commands.cancel(control.cancel(job), gone=BEING_DELETED)

    def _held(self, seen: LrmJob | None) -> CheckResult:
        ok = seen is not None and seen.state is LrmJobState.HELD and seen.hold is HoldOwner.OPERATOR
        found = "yes, in an operator's hold" if ok else "no, they go to PBS's own scheduler"
        if seen is not None and seen.state is LrmJobState.HELD and not ok:
            found = f"held, but as by {seen.hold or 'nobody'}, whom koala leaves the release to"
        remedy = "import what `koala conf pbs_queuejob.py` prints as a queuejob hook: its first lines say how"
        if self._commands.dialect is TORQUE:
            remedy = "Torque has no hook for it: an operator must hold jobs when they have come in (qhold -h o)"
        return CheckResult(subject="jobs come in held", ok=ok, found=found, remedy=remedy)

    async def _released(self, job: str) -> CheckResult:
        if self._commands.dialect is TORQUE:
            # It refuses to release what is not held.
            await self._commands.run(control.hold([job], "o"))
        error = self._commands.changing_error(
            await self._commands.run(control.release([job], "o")), action="releasing a job"
        )
        found = "yes" if error is None else error.message
        remedy = f"qmgr -c 'set server operators += {self._user}@*'"
        return CheckResult(subject="we may start them", ok=error is None, found=found, remedy=remedy)
