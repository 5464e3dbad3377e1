# SPDX-License-Identifier: Apache-2.0
"""Two malleable jobs and a rigid one on a local cluster under PRA and PWA: their sizes are as simulated."""

from __future__ import annotations

import pytest

from koala_adapter.scheduler.parameters import Approach
from tests.sizes_over_time import expect_the_same, live

pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize("approach", [Approach.PRA, Approach.PWA])
def test_sizes_over_time_are_those_of_the_simulator(approach: Approach) -> None:
    """The same changes in the same order; under PRA the rigid job waits for an end, under PWA it does not."""
    expect_the_same(approach, live(approach))
