# SPDX-License-Identifier: Apache-2.0
"""The timers that the scheduler sets: what is to be looked at when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from koala_adapter.model import JobId, PlaceholderId


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
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    """Something to look at when ``at`` has come. A timer that no longer fits its record is ignored, never removed."""

    at: float
    number: int
    kind: TimerKind = field(compare=False)
    job_id: JobId | None = field(default=None, compare=False)
    placeholder: PlaceholderId | None = field(default=None, compare=False)
