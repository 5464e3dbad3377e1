# SPDX-License-Identifier: Apache-2.0
"""The scheduler core: pure, no I/O, no clock, no threads, no global randomness."""

from koala_adapter.scheduler.core import Scheduler

__all__ = ["Scheduler"]
