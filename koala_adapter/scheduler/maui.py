# SPDX-License-Identifier: Apache-2.0
"""Maui's backfill: FIRSTFIT, BESTFIT and GREEDY, with a metric and a reservation depth. Pure."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """What makes one job, or combination of jobs, better than another to fill a gap: more of this (BACKFILLMETRIC)."""

    PROCESSORS = "processors"
    """PROCS: processors."""
    PROCESSOR_SECONDS = "processor-seconds"
    """PROCSECONDS: processors times the estimate."""
    SECONDS = "seconds"
    """SECONDS: the estimate."""
