# SPDX-License-Identifier: Apache-2.0
"""Why something ended: shared by the reports of jobs and :mod:`koala_adapter.model`, apart to be quick to import."""

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
