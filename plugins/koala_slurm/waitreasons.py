# SPDX-License-Identifier: Apache-2.0
"""Why Slurm lets a job wait, in its own words, and what each means for a job that was released to start now. Pure.

Sources: squeue(1) "JOB REASON CODES", Slurm's page "Resource Limits", and all words of 22.05's library. A word of no
release we know is UNKNOWN: the start has failed, and its job is kept back like one that a limit keeps back.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class WaitKind(StrEnum):
    """What must happen before the job can start."""

    PROCESSORS = "free processors"
    PASSING = "nothing, it passes by itself within seconds"
    HELD = "a release"
    OTHERS = "the end of other jobs, a time, or something that is free again later"
    SHARED_LIMIT = "the end of jobs with which it shares a limit"
    OWN_LIMIT = "a change of the job, or of the limit that it exceeds alone"
    SITE = "an administrator"
    UNKNOWN = "unknown"


_PATTERNS: Mapping[WaitKind, str] = {
    WaitKind.PROCESSORS: "|None|Priority|Resources",
    WaitKind.PASSING: "Cleaning|Prolog|SchedDefer|WaitingForScheduling|BurstBufferStageIn|BurstBufferOperation",
    WaitKind.HELD: "JobHeldAdmin|JobHeldUser|JobHoldMaxRequeue|ReservationDeleted",
    WaitKind.OTHERS: "BeginTime|Dependency|Licenses|JobArrayTaskLimit|Reservation|BurstBufferResources|FedJobLock"
    "|PowerNotAvail|PowerReserved",
    WaitKind.SHARED_LIMIT: r"AssocGrp\w+|AssocMaxJobsLimit|AssocMaxSubmitJobLimit|AssociationJobLimit"
    r"|AssociationResourceLimit|QOSGrp\w+|QOSMax\w+PerUser(Limit)?|QOSJobLimit|QOSResourceLimit|QOSUsageThreshold"
    r"|Max\w+PerAccount|AccountingPolicy",
    WaitKind.OWN_LIMIT: r"AssocMax\w+Per(Job|Node)(Limit)?|AssociationTimeLimit|QOSMax\w+Per(Job|Node)(Limit)?"
    r"|QOSMin\w+|QOSTimeLimit|MaxMemPerLimit|PartitionNodeLimit|PartitionTimeLimit|PartitionConfig|BadConstraints"
    "|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|DependencyNeverSatisfied|DeadLine|TimeLimit"
    "|InactiveLimit|Job's (account|QOS) not permitted to use this partition ",
    WaitKind.SITE: "PartitionDown|PartitionInactive|NodeDown|FrontEndDown|ReqNodeNotAvail|SystemFailure"
    "|JobLaunchFailure|NonZeroExitCode|OutOfMemory|BlockMaxError|BlockFreeAction|Nodes required for job are DOWN",
}
_KINDS = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}

START_MAY_SHOW = frozenset({WaitKind.PROCESSORS, WaitKind.PASSING})
"""A job that was released and waits for these may start yet; for anything else it does not."""


def wait_kind(reason: str) -> WaitKind:
    """Return what a reason means, as squeue writes it: a word, perhaps with more after a comma or in parentheses."""
    word = re.split(r"[,:(]", reason.strip("() "), maxsplit=1)[0]
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(word)), WaitKind.UNKNOWN)
