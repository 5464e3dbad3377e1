# SPDX-License-Identifier: Apache-2.0
"""Submitting and changing jobs of Grid Engine: through DRMAA, or by qsub, qdel, qhold, qrls and qmod.

Both ways make the same jobs, and the placeholder's script is the same file in either case.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.lrm.commands import portions
from koala_adapter.lrm.drmaa.choice import Submitter
from koala_adapter.lrm.drmaa.libraries import GRID_ENGINE, FailureKind, error_of, is_ending, kind_of_text
from koala_adapter.lrm.drmaa.protocol import ControlAction, Refusal
from koala_adapter.lrm.drmaa.scripts import check_scripts
from koala_adapter.lrm.drmaa.transport import job_template
from koala_adapter.model import LrmJobId
from koala_sge import heldjobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import CheckResult, ClusterContext, RenderedSubmission, Submission
    from koala_adapter.lrm.commands import CommandResult
    from koala_adapter.lrm.drmaa.protocol import Template
    from koala_sge.listing import GridEngineCommands
    from koala_sge.settings import SgeSettings


CHANGED_AT_ONCE = 100
"""Jobs and tasks on one command line."""

CHANGES: Mapping[ControlAction, tuple[str, ...]] = {
    ControlAction.TERMINATE: ("qdel",),
    ControlAction.HOLD: ("qhold",),
    ControlAction.RELEASE: ("qrls",),
    ControlAction.SUSPEND: ("qmod", "-sj"),
    ControlAction.RESUME: ("qmod", "-usj"),
}
"""The command that does what a DRMAA action does."""

_SUBMITTED = re.compile(r"^([0-9]+)(?:\.([0-9]+)-([0-9]+):1)?\s*$", re.MULTILINE)
_NAMED = re.compile(r"\b([0-9]+(?:\.[0-9]+)?)\b")


def change_command(settings: SgeSettings, action: ControlAction, ids: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that applies an action to jobs and tasks."""
    program, *options = CHANGES[action]
    return (settings.command(program), *options, *ids)


def parse_submitted(output: str) -> tuple[LrmJobId, ...]:
    """Return the ids in what ``qsub -terse`` prints: ``123.1-10:1``; nothing where there is none."""
    found = _SUBMITTED.search(output)
    if found is None:
        return ()
    if found[2] is None:
        return (LrmJobId(found[1]),)
    return tuple(LrmJobId(f"{found[1]}.{task}") for task in range(int(found[2]), int(found[3]) + 1))


def parse_refusals(result: CommandResult, action: ControlAction, ids: Sequence[str]) -> tuple[Refusal, ...]:
    """Return what a command that changes jobs refused, from all that it printed.

    Its exit status tells nothing: qdel says 1 when one of many jobs is gone. Raises LrmUnavailableError where nothing
    that it printed is a refusal, and the exit status is not 0.
    """
    refusals = []
    lines = [line.strip() for line in f"{result.text}\n{result.complaint}".splitlines() if line.strip()]
    for line in dict.fromkeys(lines):
        kind = kind_of_text(line, FailureKind.UNSUPPORTED)
        if kind is FailureKind.UNSUPPORTED or (action is ControlAction.TERMINATE and is_ending(line)):
            continue
        if kind is FailureKind.UNAVAILABLE:
            raise error_of(kind, f"{result.argv[0]}: {line}")
        refusals.append(Refusal(id=_named_in(line, ids), kind=kind, message=line))
    if result.returncode and not lines:
        raise error_of(FailureKind.UNAVAILABLE, f"{result.argv[0]}: exit code {result.returncode} and no output")
    return tuple(refusals)


def _named_in(line: str, ids: Sequence[str]) -> str:
    """Return the job that a complaint names, else all that were asked for."""
    numbers = _NAMED.findall(line)
    return next((id_ for id_ in ids if id_ in numbers or id_.partition(".")[0] in numbers), ", ".join(ids))


class SgeSubmissions:
    """The jobs of one cell that we submit and change, by the way that was chosen."""

    def __init__(self, context: ClusterContext, settings: SgeSettings, commands: GridEngineCommands) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._commands = commands
        self.submitter = Submitter(
            settings,
            context,
            expected=GRID_ENGINE,
            variables=settings.variables(),
            timeout=settings.request_timeout,
            places=settings.library_places(),
            delivery=settings.script_delivery,
        )
        self._scripts = self.submitter.scripts

    # -- submission ----------------------------------------------------------------------------------------------

    def template(self, submission: Submission, native: Sequence[str]) -> Template:
        """Return the job template of a submission, which says what qsub is asked for, too."""
        script = self._scripts.path(submission.key)
        return job_template(submission, script=script, delivery=self._settings.script_delivery, native=native)

    def render(self, submission: Submission, native: Sequence[str], shown: RenderedSubmission) -> RenderedSubmission:
        """Return ``shown``, the submission by command, with the DRMAA call where there is one."""
        if (drmaa := self.submitter.drmaa) is None:
            return shown
        return drmaa.render(submission, native, index_variable=None, equivalent=shown)

    async def submit(self, submission: Submission, native: Sequence[str]) -> tuple[LrmJobId, ...]:
        """Submit one array. After a crash or a time-out it is found by its name."""
        await self.submitter.settle()
        if (drmaa := self.submitter.drmaa) is not None:
            return await drmaa.submit(submission, native, index_variable=None)
        command = heldjobs.qsub(self._settings, self.template(submission, native), submission.count)
        with self._scripts.submitted(submission.key, submission.script, self._settings.script_delivery):
            result = await self._commands.run(command)
            if ids := parse_submitted(result.text):
                return ids
            raise error_of(kind_of_text(result.complaint), f"qsub: {result.complaint or 'no output'}")

    # -- control -------------------------------------------------------------------------------------------------

    async def control(
        self, action: ControlAction, ids: Sequence[LrmJobId], *, urgent: bool = False
    ) -> tuple[Refusal, ...]:
        """Apply an action to each job; return those with which it did not work."""
        if (drmaa := self.submitter.drmaa) is not None:
            return await drmaa.client.control(action, ids, urgent=urgent)
        refusals: list[Refusal] = []
        for part in portions([_checked(id_) for id_ in ids], CHANGED_AT_ONCE):
            result = await self._commands.run(change_command(self._settings, action, part), urgent=urgent)
            refusals += parse_refusals(result, action, part)
        return tuple(refusals)

    async def check(self) -> tuple[CheckResult, ...]:
        """Say how jobs are submitted; ask the library, where there is one, and look at the folder of scripts."""
        found = await self.submitter.check()
        if self.submitter.drmaa is not None:
            return found
        return (*found, check_scripts(self._scripts.directory, self._settings.script_delivery))


def _checked(id_: LrmJobId) -> str:
    heldjobs.job_number(id_)
    return id_
