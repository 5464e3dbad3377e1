# SPDX-License-Identifier: Apache-2.0
"""The fake DRMAA library of Grid Engine, made as odd as slurm-drmaa 1.1.6 or pbs-drmaa 1.0.19 were seen to be.

Which of the two, tells FAKE_DRMAA. The batch system behind is the fake cell in either case.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tests.fakes.gridengine.engine import QUEUE
from tests.fakes.gridengine.modules import drmaa as gridengine
from tests.fakes.gridengine.modules.drmaa import DeniedByDrmException, InvalidJobException, JobInfo, JobSubmissionState

if TYPE_CHECKING:
    from tests.fakes.gridengine.engine import Task
    from tests.fakes.gridengine.modules.drmaa import JobTemplate

__all__ = ["DeniedByDrmException", "InvalidJobException", "JobSubmissionState", "Session"]

ABORTED, SEGMENTATION_FAULT = 134, 139
SIGTERM = "SIGTERM"


class InternalException(Exception):  # noqa: N818 - the library's own name
    """Whatever these two have no better word for."""


class InvalidAttributeValueException(Exception):  # noqa: N818 - the library's own name
    """An option that the library does not know."""


class OddSession(gridengine.Session):
    """What both do."""

    job_id_variable: ClassVar[str]
    _bulk = False

    def numbered(self, id_: str) -> str:
        """Return the id of the fake cell for one of this library."""
        raise NotImplementedError

    def named(self, id_: str, *, bulk: bool) -> str:
        """Return the id of this library for one of the fake cell."""
        raise NotImplementedError

    def native(self, text: str) -> str:
        """Return native options in the form of the fake cell. Raises what the library does for those it refuses."""
        raise NotImplementedError

    def runJob(self, template: JobTemplate) -> str:  # noqa: N802 - the library's own name
        """Submit one job."""
        (id_,) = self.submitted(template, 1, bulk=False)
        return id_

    def submitted(self, template: JobTemplate, count: int, *, bulk: bool) -> list[str]:
        """Submit an array; return the ids."""
        self._bulk = bulk
        template = replace(template, nativeSpecification=self.native(template.nativeSpecification))
        return [self.named(id_, bulk=bulk) for id_ in super().runBulkJobs(template, 1, count, 1)]

    def variables_of(self, task: Task) -> dict[str, str]:
        """Return its id, and the number of an element where the batch system tells it."""
        return {self.job_id_variable: self.named(task.id, bulk=False)} | self.element(task, bulk=self._bulk)

    def element(self, task: Task, *, bulk: bool) -> dict[str, str]:  # noqa: ARG002 - of each library
        """Return the variables that tell an element of a bulk its number."""
        return {}

    def jobStatus(self, id_: str) -> str:  # noqa: N802 - the library's own name
        """Return the state of a job; what is not known has failed."""
        try:
            return super().jobStatus(self.numbered(id_))
        except InvalidJobException:
            return "failed"

    def wait(self, id_: str, timeout: int) -> JobInfo:
        """Return how a job ended."""
        return super().wait(self.numbered(id_), timeout)


class SlurmSession(OddSession):
    """slurm-drmaa 1.1.6."""

    drmsInfo = "SLURM 22.05.8"  # noqa: N815 - the library's own name
    drmaaImplementation = "DRMAA for Slurm 1.1.6"  # noqa: N815
    job_id_variable = "SLURM_JOB_ID"
    _cancelled: ClassVar[set[str]] = set()

    def numbered(self, id_: str) -> str:
        """``7`` and ``7_3``."""
        number, _, index = id_.partition("_")
        return f"{number}.{index or 1}"

    def named(self, id_: str, *, bulk: bool) -> str:
        """An element has the number of its array in its id."""
        number, _, index = id_.partition(".")
        return f"{number}_{index}" if bulk else number

    def element(self, task: Task, *, bulk: bool) -> dict[str, str]:
        """As of any array."""
        return {"SLURM_ARRAY_TASK_ID": str(task.index)} if bulk else {}

    def native(self, text: str) -> str:
        """It knows a part of sbatch's options; its ``--time`` is hours and minutes."""
        options = []
        for word in shlex.split(text):
            name, _, value = word.partition("=")
            if name == "--time":
                if not re.fullmatch(r"\d+:\d+", value):
                    message = f"code 14: invalid date/time format: {value}"
                    raise InvalidAttributeValueException(message)
                hours, minutes = map(int, value.split(":"))
                options.append(f"-l h_rt={hours * 3600 + minutes * 60}")
            elif name == "--partition" and value != QUEUE:
                message = "code 17: slurm_submit_batch_job: Invalid partition name specified"
                raise DeniedByDrmException(message)
            elif name not in {"--partition", "--no-requeue", "--mem"}:
                message = f"code 14: Invalid native specification: unknown option: {name}"
                raise InvalidAttributeValueException(message)
        return " ".join(options)

    def runBulkJobs(self, template: JobTemplate, first: int, last: int, step: int) -> list[str]:  # noqa: N802
        """Submit an array."""
        return self.submitted(template, len(range(first, last + 1, step)), bulk=True)

    def jobStatus(self, id_: str) -> str:  # noqa: N802
        """Elements that wait, or were cancelled while they did, are not told of."""
        status = super().jobStatus(id_)
        waits = status in {"queued_active", "user_on_hold"} or id_ in self._cancelled
        return "undetermined" if "_" in id_ and waits else status

    def control(self, id_: str, action: str) -> None:
        """Suspending crashes it; releasing one element releases all; there is one exception for all refusals."""
        if action in {"suspend", "resume"}:
            os._exit(SEGMENTATION_FAULT)
        number, waits = self.numbered(id_), super().jobStatus(id_) in {"queued_active", "user_on_hold"}
        ids = [number]
        if action == "release" and "_" in id_:
            with gridengine._reach() as state:
                ids = [
                    one.id for one in state.tasks if one.number == int(number.partition(".")[0]) and not one.ended_at
                ]
        for one in ids:
            try:
                super().control(one, action)
            except InvalidJobException:
                said = "Job/step already completing or completed" if self._was(one) else "Invalid job id specified"
                message = f"code 1: slurm_{action}_job error: {said},job_id: {id_}"
                raise InternalException(message) from None
        if action == "terminate" and waits:
            self._cancelled.add(id_)

    def _was(self, id_: str) -> bool:
        with gridengine._reach() as state:
            return state.ended(id_) is not None

    def wait(self, id_: str, timeout: int) -> JobInfo:
        """A job that was cancelled has left with 0."""
        info = super().wait(id_, timeout)
        if info.hasSignal or info.wasAborted:
            return JobInfo(hasExited=True, hasSignal=False, terminatedSignal="", wasAborted=False, exitStatus=0)
        return info


class PbsSession(OddSession):
    """pbs-drmaa 1.0.19."""

    drmsInfo = "PBS Professional 23.06.06"  # noqa: N815 - the library's own name
    drmaaImplementation = "DRMAA for PBS 1.0.19"  # noqa: N815
    job_id_variable = "PBS_JOBID"
    _stopped: ClassVar[set[str]] = set()
    _deleted: ClassVar[set[str]] = set()

    def initialize(self, contact: str | None) -> None:
        """Without a server it aborts."""
        try:
            super().initialize(contact)
        except gridengine.DrmCommunicationException:
            os._exit(ABORTED)

    def numbered(self, id_: str) -> str:
        """``7.vm``."""
        return f"{id_.partition('.')[0]}.1"

    def named(self, id_: str, *, bulk: bool) -> str:  # noqa: ARG002 - a bulk is several jobs
        """``7.vm``."""
        return f"{id_.partition('.')[0]}.vm"

    def native(self, text: str) -> str:
        """It knows a part of qsub's options."""
        words, options = iter(shlex.split(text)), []
        for word in words:
            value = next(words, "")
            if word == "-l" and value.startswith("walltime="):
                options.append(f"-l h_rt={value.partition('=')[2]}")
            elif word == "-q":
                options.append(f"-q {value}")
            elif (word == "-S" and not value.startswith("/")) or word not in {"-r", "-l", "-S"}:
                message = f"code 14: Invalid native specification: {text}"
                raise InvalidAttributeValueException(message)
        return " ".join(options)

    def runJob(self, template: JobTemplate) -> str:  # noqa: N802
        """Submit one job."""
        try:
            return super().runJob(template)
        except DeniedByDrmException:
            message = "code 1: pbs_submit: Unknown queue"
            raise InternalException(message) from None

    def runBulkJobs(self, template: JobTemplate, first: int, last: int, step: int) -> list[str]:  # noqa: N802
        """Submit one job after another, none of which is told a number; it crashes where one is refused."""
        try:
            return [super(PbsSession, self).runJob(template) for _ in range(first, last + 1, step)]
        except DeniedByDrmException:
            os._exit(SEGMENTATION_FAULT)

    def jobStatus(self, id_: str) -> str:  # noqa: N802
        """What was stopped has finished."""
        return "done" if id_ in self._stopped else super().jobStatus(id_)

    def control(self, id_: str, action: str) -> None:
        """Suspending is a signal, of which it knows nothing afterwards."""
        if action == "suspend":
            self._stopped.add(id_)
        elif action == "terminate":
            self._deleted.add(id_)
        try:
            super().control(self.numbered(id_), action)
        except InvalidJobException:
            with gridengine._reach() as state:
                ended = state.ended(self.numbered(id_)) is not None
            if ended:
                message = "code 1: pbs_deljob: Job has finished"
                raise InternalException(message) from None
            message = "code 18: Unknown Job Id"
            raise InvalidJobException(message) from None

    def wait(self, id_: str, timeout: int) -> JobInfo:
        """A job that was stopped has left with 0; one that was deleted was killed by SIGTERM."""
        if id_ in self._stopped:
            return JobInfo(hasExited=True, hasSignal=False, terminatedSignal="", wasAborted=False, exitStatus=0)
        info = super().wait(id_, timeout)
        if info.hasSignal and id_ in self._deleted:
            return replace(info, terminatedSignal=SIGTERM, wasAborted=True)
        return info


SESSIONS = {"slurm": SlurmSession, "pbs": PbsSession}
Session = SESSIONS[os.environ["FAKE_DRMAA"]]
