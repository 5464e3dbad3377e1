# SPDX-License-Identifier: Apache-2.0
"""The timers that the scheduler sets: what is to be looked at when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from koala_adapter.model import ClusterName, JobId, PlaceholderId


class TimerKind(StrEnum):
    """What a timer is for; the subject says for whom."""

    SCAN = "scan"
    LIFE = "life"
    RETAKE = "retake"
    REGISTRATION = "registration"
    SILENCE = "silence"
    WALLTIME = "walltime"
    ENDING = "ending"
    BACKOFF = "backoff"
    CHANGE = "change"
    WORKERS = "workers"
    """A malleable job may grow again whose workers had ended by themselves; or it is over, because none is left."""
    NEAR_END = "near end"
    """A malleable job has so little of its walltime left that it grows no more."""
    LAST_RANKS = "last ranks"
    """The launcher of an MPI job has ended well, and processes of it have not ended."""
    PAUSE = "pause"


class Due(NamedTuple):
    """When something is to be looked at, as the record that it concerns keeps it."""

    at: float
    number: int
    """Of those for the same time, the one that was set first comes first."""


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    """The same with its subject, as it stands in the order of time."""

    at: float
    number: int
    kind: TimerKind = field(compare=False)
    job_id: JobId | None = field(default=None, compare=False)
    placeholder: PlaceholderId | None = field(default=None, compare=False)
    cluster: ClusterName | None = field(default=None, compare=False)
