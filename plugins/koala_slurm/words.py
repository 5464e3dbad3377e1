# SPDX-License-Identifier: Apache-2.0
"""What Slurm's complaints mean: try again later, never, or no such job. One table, searched from the top.

The texts are those of slurm_strerror(3) and of the commands themselves, the same from 20.11 to 25.11 unless noted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.plugin.commandsystem import Complaint, ComplaintTable, complaints

if TYPE_CHECKING:
    from koala_adapter.errors import LrmError
    from koala_adapter.plugin.commands import CommandResult


_NO_CONTROLLER = "slurmctld does not answer; it is asked again later"
_LIMIT = "a limit on jobs, size or time of your account or QOS; lower the threshold of this cluster, or wait"
_DIRECTIVES = "correct the directives or the settings of this cluster in the site file"

_KNOWN: tuple[Complaint, ...] = (
    # The connection itself failed, so that nothing of the request can have arrived.
    *complaints(LrmUnreachableError, {"unable to contact slurm controller (connect failure)": _NO_CONTROLLER}),
    *complaints(
        LrmUnavailableError,
        {
            "unable to contact slurm controller": _NO_CONTROLLER,
            "socket timed out": _NO_CONTROLLER,
            "connection refused": _NO_CONTROLLER,
            "connection timed out": _NO_CONTROLLER,
            "connection reset": _NO_CONTROLLER,
            "zero bytes were transmitted": _NO_CONTROLLER,
            "unexpected message received": _NO_CONTROLLER,
            "unable to establish": _NO_CONTROLLER,
            "backup controller in standby": _NO_CONTROLLER,
            "protocol authentication error": "check that munged runs here and that the clocks agree",
            "invalid authentication credential": "check that munged runs here and that the clocks agree",
            "failed to contact munge": "check that munged runs on this host",
            "resource temporarily unavailable": "slurmctld is overloaded; it is asked again later",
            "temporarily unable to accept job": "slurmctld has as many jobs as it takes (MaxJobCount)",
            "unable to create job record": "slurmctld has as many jobs as it takes (MaxJobCount)",
            "slurm is busy": "slurmctld is overloaded; it is asked again later",
            "i/o error writing script": "slurmctld cannot write its state directory; tell the site",
            "violates accounting/qos policy": _LIMIT,
            "maxsubmit": _LIMIT,
            "submit limit": _LIMIT,
            "required partition not available": "the partition is drained or inactive; wait, or choose another",
            "requested partition configuration not available now": "the partition is down or too small now",
            "requested nodes are busy": "",
            "reservation not usable now": "the reservation has not begun",
            "unable to connect to database": "slurmdbd does not answer",
            "can not be altered now": "the job is on its way from one state to another",
        },
    ),
    *complaints(
        LrmRejectedError,
        {
            "invalid job array specification": "fewer placeholders at once: see MaxArraySize in slurm.conf",
            "invalid partition": "name a partition that sinfo shows",
            "invalid account": "name an account of yours: sacctmgr show assoc user=$USER",
            "invalid qos": "name a QOS that your account may use: sacctmgr show assoc user=$USER format=qos",
            "reservation is invalid": "name a reservation that scontrol show reservation lists",
            "access denied to requested reservation": "ask the site for access to the reservation",
            "group not permitted": "the partition is not open to your group; choose another",
            "requested node configuration is not available": "ask for less memory or another partition",
            "memory specification can not be satisfied": "ask for less memory or another partition",
            "time limit is invalid": "the walltime is longer than the partition allows",
            "unrecognized option": "this sbatch does not know the option: drop or rename it in the directives",
            "invalid option": "this sbatch does not know the option: drop or rename it in the directives",
            "incompatible versions": "the Slurm commands here are older or newer than slurmctld can serve",
            "access/permission denied": "the job is not yours, or this needs operator rights in Slurm",
            "invalid user id": "the job is not yours, or your account is unknown to Slurm",
            "node name specified": "name nodes that sinfo shows",
            "job has already finished": "",
            "is no longer pending": "the job has started",
            "job is not suspended": "",
            "job is pending execution": "the job has not started",
            "operation is presently disabled": "the job does not allow it in its present state",
            # "try again" notwithstanding: without slurmdbd it never changes, before Slurm 25.05.
            "db index is being set": "Slurm allows this change only to jobs that have not started",
        },
    ),
    *complaints(
        LrmNotFoundError,
        {
            "invalid job id": "it has left Slurm's memory, or never was",
            "no job found": "it has left Slurm's memory, or never was",
        },
    ),
)

COMPLAINTS = ComplaintTable(system="Slurm", known=_KNOWN)

_REFUSED_SUBMISSION = re.compile(r"batch job submission failed:|allocation failure:", re.IGNORECASE)
_REFUSED_COMMAND_LINE = re.compile(
    r"unrecognized option|--help\" for more|invalid option|does not look like a batch script|^sbatch: error: invalid ",
    re.IGNORECASE | re.MULTILINE,
)
"""What sbatch says before it asks slurmctld at all."""


def submission_error(result: CommandResult) -> LrmError:
    """Return the error of an sbatch that printed no job id.

    A text we do not know is a refusal when sbatch itself says that the submission failed or that it cannot read its
    command line; in all other cases the job may be in (LrmUnavailableError).
    """
    complaint = result.complaint
    refused = _REFUSED_SUBMISSION.search(complaint)
    if not refused and _REFUSED_COMMAND_LINE.search(result.stderr.decode("utf-8", "replace")):
        return LrmRejectedError(f"sbatch refuses its command line or script: {complaint}", hint=_DIRECTIVES)
    otherwise = LrmRejectedError if refused else LrmUnavailableError
    return COMPLAINTS.error(complaint, action="submission", otherwise=otherwise)


def reading_error(result: CommandResult, *, action: str) -> LrmError | None:
    """Return the error of a command that lists something; None when its output is complete.

    An exit status other than 0 is always an error here: a listing that was cut short must never pass for "no jobs".
    """
    if result.returncode == 0 and not _FAILED_LISTING.search(result.stderr.decode("utf-8", "replace")):
        return None
    return COMPLAINTS.error(result.complaint, action=action, otherwise=LrmUnavailableError)


_FAILED_LISTING = re.compile(r"slurm_load_\w+|unable to contact|socket timed out|error: invalid", re.IGNORECASE)
"""Among them "Invalid user", when the directory of users does not answer: squeue of 26.05 then lists nothing and ends
with status 0."""
