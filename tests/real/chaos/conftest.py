# SPDX-License-Identifier: Apache-2.0
"""How much chaos is wanted, from the options of pytest; without them one short run of a fixed seed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import pytest

SHORT_SEED = 6938
"""Its plan has most kinds of faults, and none after which Grid Engine takes half a minute to be itself again."""
SHORT_SECONDS = 20.0
SECONDS = 120.0
"""Length of each run when chaos is asked for; a plan depends on it."""
MARGIN = 900.0
"""Seconds beyond the wanted time in which the last run, its end and its checks must be over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One run of chaos after another."""

    seed: int
    """Of the first run."""
    seconds: float
    """Length of the plan of each run."""
    in_all: float
    """Seconds in which runs begin; the first one always does."""


def wanted_of(config: pytest.Config) -> Wanted:
    """Return what the options ask for."""
    seed, minutes = config.getoption("chaos_seed"), config.getoption("chaos_minutes")
    if seed is None and minutes is None:
        return Wanted(seed=SHORT_SEED, seconds=SHORT_SECONDS, in_all=0.0)
    first = secrets.randbelow(1_000_000) if seed is None else seed
    return Wanted(seed=first, seconds=SECONDS, in_all=60 * (minutes or 0.0))


@pytest.fixture
def wanted(pytestconfig: pytest.Config) -> Wanted:
    """Return what the options ask for."""
    return wanted_of(pytestconfig)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bound the time of the tests that run chaos by what is wanted."""
    for item in items:
        if "wanted" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(wanted_of(config).in_all + MARGIN))
