# SPDX-License-Identifier: Apache-2.0
"""Timers: what is to be looked at when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from koala_adapter.model import ClusterName, JobId, PlaceholderId


class TimerKind(StrEnum):
    """Purposes of timers."""

    SCAN = "scan"
    LIFE = "life"
    RECLAIM = "reclaim"
    REGISTRATION = "registration"
    KEPT = "kept"
    """A placeholder has been kept waiting by a limit of its own, or by the site, for a while."""
    SILENCE = "silence"
    WALLTIME = "walltime"
    ENDING = "ending"
    BACKOFF = "backoff"
    CHANGE = "change"
    WORKERS = "workers"
    """A malleable job may grow again whose workers had ended by themselves; or it is over, because none is left."""
    NEAR_END = "near end"
    """A malleable job has so little of its walltime left that it grows no more."""
    ATTEMPT = "attempt"
    """Placeholders of the latest attempt of a job that are not gone are not waited for any longer."""
    RESERVATION = "reservation"
    """A cluster has not answered whether it reserves processors."""
    STAGING = "staging"
    """Placeholders are of use now, as the files of a job are nearly there; or nothing was heard of these for long."""
    LAST_RANKS = "last ranks"
    """The launcher of an MPI job has ended well, and processes of it have not ended."""
    CONNECTIONS = "connections"
    """Agents have not told in time whether nodes of the clusters of a job can connect."""
    PAUSE = "pause"


class Due(NamedTuple):
    """Time of a timer as stored in the record that it concerns."""

    at: float
    number: int
    """Of those for the same time, the one that was set first comes first."""


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    """Time, kind and subject of a timer, as sorted by time."""

    at: float
    number: int
    kind: TimerKind = field(compare=False)
    job_id: JobId | None = field(default=None, compare=False)
    placeholder: PlaceholderId | None = field(default=None, compare=False)
    cluster: ClusterName | None = field(default=None, compare=False)
