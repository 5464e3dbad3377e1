# SPDX-License-Identifier: Apache-2.0
"""The fake DRMAA library: as much of drmaa 0.7.9 as the helper uses, with the words of Grid Engine 8.1.9.

Files in the directory of the fake cell make it fail: see FakeCell.
"""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.fakes.gridengine.engine import QUEUE, Engine, Task, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.gridengine.engine import State

_ROOT = Path(os.environ["SGE_ROOT"])
_ENGINE = Engine(_ROOT)
_NAME = (_ROOT / "library").read_text() if (_ROOT / "library").exists() else "SGE 8.1.9"
"""What the library calls itself."""

if (_ROOT / "static-tls").exists() and "LD_PRELOAD" not in os.environ:
    _MESSAGE = "libm.so.6: cannot allocate memory in static TLS block"
    raise OSError(_MESSAGE)


class DrmaaError(Exception):
    """Common ancestor."""


class DrmCommunicationException(DrmaaError):  # noqa: N818 - the library's own name
    """No answer."""


class DeniedByDrmException(DrmaaError):  # noqa: N818 - the library's own name
    """Refused."""


class InvalidJobException(DrmaaError):  # noqa: N818 - the library's own name
    """No such job."""


class ExitTimeoutException(DrmaaError):  # noqa: N818 - the library's own name
    """Has not ended."""


class JobSubmissionState:
    """In which state jobs are submitted."""

    HOLD_STATE = "drmaa_hold"
    ACTIVE_STATE = "drmaa_active"


@dataclass
class JobTemplate:
    """Attributes of a job."""

    PARAMETRIC_INDEX: ClassVar[str] = "$drmaa_incr_ph$"
    jobName: str = ""  # noqa: N815 - the library's own name
    remoteCommand: str = ""  # noqa: N815
    args: tuple[str, ...] | list[str] = ()
    workingDirectory: str = ""  # noqa: N815
    outputPath: str = ""  # noqa: N815
    joinFiles: bool = False  # noqa: N815
    jobSubmissionState: str = ""  # noqa: N815
    jobEnvironment: dict[str, str] = field(default_factory=dict)  # noqa: N815
    nativeSpecification: str = ""  # noqa: N815


@dataclass
class JobInfo:
    """How a job ended."""

    hasExited: bool  # noqa: N815 - the library's own name
    hasSignal: bool  # noqa: N815
    terminatedSignal: str  # noqa: N815
    wasAborted: bool  # noqa: N815
    exitStatus: int  # noqa: N815


_STATES = {"qw": "queued_active", "hqw": "user_on_hold", "r": "running", "s": "user_suspended", "Eqw": "failed"}


class Session:
    """The session."""

    drmsInfo = _NAME  # noqa: N815 - the library's own name
    drmaaImplementation = _NAME  # noqa: N815
    version = "1.0"
    contact = "session=fake"

    def initialize(self, contact: str | None) -> None:  # noqa: ARG002
        """Open the session."""
        with _reach():
            pass

    def exit(self) -> None:
        """End the session."""

    def createJobTemplate(self) -> JobTemplate:  # noqa: N802 - the library's own name
        """Return an empty template."""
        return JobTemplate()

    def deleteJobTemplate(self, template: JobTemplate) -> None:  # noqa: N802
        """Do nothing."""

    def runJob(self, template: JobTemplate) -> str:  # noqa: N802 - the library's own name
        """Submit one job."""
        if (_ROOT / "crash-at-third").exists() and template.jobEnvironment.get("KOALA_INDEX") == "3":
            os._exit(9)
        return self.runBulkJobs(template, 1, 1, 1)[0]

    def runBulkJobs(self, template: JobTemplate, first: int, last: int, step: int) -> list[str]:  # noqa: N802
        """Submit an array."""
        while (_ROOT / "hang").exists():
            time.sleep(0.05)
        options = _options(template.nativeSpecification)
        if options.get("-q", QUEUE) != QUEUE:
            message = f'code 17: Job was rejected because job requests unknown queue "{options["-q"]}"'
            raise DeniedByDrmException(message)
        with _reach() as state:
            tasks = [_task(template, options, state.next_number, index) for index in range(first, last + 1, step)]
            state.next_number += 1
            for task in tasks:
                task.variables |= self.variables_of(task)
            state.tasks.extend(tasks)
        if (_ROOT / "crash-after-submission").exists():
            os._exit(9)
        return [task.id for task in tasks]

    def variables_of(self, task: Task) -> dict[str, str]:  # noqa: ARG002 - other libraries add some
        """Return what the batch system adds to the environment of a job."""
        return {}

    def control(self, id_: str, action: str) -> None:
        """Change a job."""
        with _reach() as state:
            task = state.task(id_)
            if task is None:
                message = f'code 18: denied: job "{id_}" does not exist'
                raise InvalidJobException(message)
            match action:
                case "terminate":
                    _ENGINE.delete(task)
                case "hold" if task.state == "qw":
                    task.state = "hqw"
                case "release" if task.state == "hqw":
                    task.state = "qw"
                case "suspend":
                    _ENGINE.suspend(task)
                case "resume":
                    _ENGINE.resume(task)

    def jobStatus(self, id_: str) -> str:  # noqa: N802 - the library's own name
        """Return the state of a job."""
        with _reach() as state:
            if (task := state.task(id_)) is not None:
                return _STATES[task.state]
            ended = state.ended(id_)
        if ended is None:
            message = "code 18: The job specified by the 'jobid' does not exist."
            raise InvalidJobException(message)
        return "done" if ended.failed == 0 and ended.pid else "failed"

    def wait(self, id_: str, timeout: int) -> JobInfo:  # noqa: ARG002
        """Return how a job ended."""
        with _reach() as state:
            task = state.ended(id_)
        if task is None:
            message = "code 23: time-out condition"
            raise ExitTimeoutException(message)
        signalled = task.failed != 0 and task.status > 128
        return JobInfo(
            hasExited=not signalled and bool(task.pid),
            hasSignal=signalled,
            terminatedSignal=str(task.status - 128) if signalled else "",
            wasAborted=not task.pid,
            exitStatus=task.status,
        )


class _reach:  # noqa: N801 - used like a function
    """The state of the fake qmaster, or the exception that its absence means."""

    def __init__(self) -> None:
        self._context = _ENGINE.open()

    def __enter__(self) -> State:
        try:
            return self._context.__enter__()
        except UnreachableError:
            message = 'code 2: unable to contact qmaster using port 1 on host "fakehost"'
            raise DrmCommunicationException(message) from None

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(None, None, None)


def _options(native: str) -> dict[str, str]:
    words: Iterator[str] = iter(shlex.split(native))
    options: dict[str, str] = {}
    for word in words:
        value = f"{next(words, '')} {next(words, '')}" if word == "-pe" else next(words, "")
        options[f"-l {value.partition('=')[0]}" if word == "-l" else word] = value.partition("=")[2] or value
    return options


def _task(template: JobTemplate, options: dict[str, str], number: int, index: int) -> Task:
    walltime = options.get("-l h_rt")
    command = [template.remoteCommand, *template.args]
    if options.get("-b") == "n":
        script = _ROOT / "job_scripts" / str(number)
        script.write_bytes(Path(template.remoteCommand).read_bytes())
        command = ["/bin/sh", str(script)]
    return Task(
        number=number,
        index=index,
        name=template.jobName,
        user=os.environ["USER"],
        command=command,
        output=template.outputPath.removeprefix(":").replace(template.PARAMETRIC_INDEX, str(index)),
        state="hqw" if template.jobSubmissionState == JobSubmissionState.HOLD_STATE else "qw",
        submitted_at=time.time(),
        walltime=int(walltime) if walltime else None,
        slots=int(options.get("-pe", "smp 1").rpartition(" ")[2]),
        variables=dict(template.jobEnvironment),
        told_index=_NAME.startswith("SGE"),
    )
