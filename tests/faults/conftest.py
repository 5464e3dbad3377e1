# SPDX-License-Identifier: Apache-2.0
"""Schedules of faults run without a log: one writes thousands of lines, and its seed repeats it with them."""

from __future__ import annotations

import logging

import pytest
import structlog


@pytest.fixture(autouse=True)
def _without_log() -> None:
    """Say nothing of what goes wrong on purpose; the fixture of all tests takes that back."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
