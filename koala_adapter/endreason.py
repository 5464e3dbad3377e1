# SPDX-License-Identifier: Apache-2.0
"""The noun that reports of jobs share with :mod:`koala_adapter.model`; on its own, it is quick to import."""

from __future__ import annotations

from enum import StrEnum


class EndReason(StrEnum):
    """Why a process, a placeholder or a job ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    WALLTIME = "walltime"
    MEMORY = "memory"
    NODE_LOST = "node lost"
    CANCELLED = "cancelled"
    LOST = "lost"
    LAUNCH_FAILED = "launch failed"
    NOT_PLACED = "not placed"
