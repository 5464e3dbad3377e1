# SPDX-License-Identifier: Apache-2.0
"""``koala check --outside`` of a Slurm cluster: whether ordinary jobs come in held for us, and we may start them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError
from koala_adapter.model import HoldOwner, LrmJobState
from koala_adapter.plugin import CheckResult
from koala_slurm import control
from koala_slurm.controller import CONFIG_COMMAND, parse_config
from koala_slurm.submission import parse_job_id

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob
    from koala_slurm.client import SlurmCommands
    from koala_slurm.outside import OutsideReader

TRIAL = ("sbatch", "--parsable", "--job-name=koala-check", "--ntasks=1", "--time=1", "--output=/dev/null", "--chdir=/")
"""An ordinary submission, but for next week, so that it never runs if nobody holds it."""

SCRIPT = b"#!/bin/sh\nexit 0\n"


class OutsideChecks:
    """One run of the checks."""

    def __init__(self, commands: SlurmCommands, reader: OutsideReader, *, user: str, uid: int) -> None:
        """``user`` and ``uid``: who we are for Slurm."""
        self._commands = commands
        self._reader = reader
        self._user = user
        self._uid = uid

    async def run(self) -> tuple[CheckResult, ...]:
        """Return whether jobs come in held, who may start them, and whether we are one of those."""
        try:
            return (await self._rights(), *await self._trial())
        except LrmError as error:
            remedy = error.hint or "see `koala docs wiki`"
            return (CheckResult(subject="outside scheduler", ok=False, found=error.message, remedy=remedy),)

    async def _rights(self) -> CheckResult:
        config = parse_config(await self._commands.read(CONFIG_COMMAND, action="asking the controller"))
        ok = config.may_suspend(user=self._user, uid=self._uid)
        found = f"we are {self._user}; SlurmUser is {config.slurm_user}"
        remedy = "run as root or SlurmUser; of an Operator named in slurmdbd nothing can be said here"
        return CheckResult(subject="rights of an operator", ok=ok, found=found, remedy=remedy)

    async def _trial(self) -> tuple[CheckResult, ...]:
        result = await self._commands.run((*TRIAL, "--begin=now+7days"), stdin=SCRIPT)
        job = parse_job_id(result.text)
        if job is None:
            found = f"an ordinary submission is refused: {result.complaint}"
            remedy = "submit such a job by hand (sbatch --wrap=true -n1 -t1), and mend what it complains about"
            return (CheckResult(subject="jobs come in held", ok=False, found=found, remedy=remedy),)
        try:
            seen = next((one for one in await self._reader.jobs() if one.id == job), None)
            return (self._held(seen), await self._released(job))
        finally:
            await self._commands.run(control.cancel_command((job,)), urgent=True)

    def _held(self, seen: LrmJob | None) -> CheckResult:
        ok = seen is not None and seen.state is LrmJobState.HELD and seen.hold is HoldOwner.OPERATOR
        found = "yes, and marked as ours" if ok else "no, they go to Slurm's own scheduler"
        if seen is not None and seen.state is LrmJobState.HELD and not ok:
            found = f"held, but as by {seen.hold or 'nobody'}, not marked as ours"
        remedy = (
            "install what `koala conf job_submit.lua` prints: JobSubmitPlugins=lua in slurm.conf, then scontrol "
            "reconfigure"
        )
        return CheckResult(subject="jobs come in held", ok=ok, found=found, remedy=remedy)

    async def _released(self, job: str) -> CheckResult:
        error = control.control_error(
            await self._commands.run(control.job_command("release", (job,))), action="releasing a job"
        )
        found = "yes" if error is None else error.message
        remedy = f"add the user id {self._uid} to OPERATORS in job_submit.lua"
        return CheckResult(subject="we may start them", ok=error is None, found=found, remedy=remedy)
