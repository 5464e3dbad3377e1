# SPDX-License-Identifier: Apache-2.0
"""What size an owner may want of a running job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import JobRefusedError
from koala_adapter.model import RunnerName
from koala_adapter.service.sizes.jobs import resizable
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part

if TYPE_CHECKING:
    from koala_adapter.scheduler.records import JobRecord


def running(sizes: str) -> JobRecord:
    """Return a running job of workers whose component has a rule for its sizes."""
    site = MalleableSite({"a": 2})
    site.start(replace(malleable("1", replace(part(2, 9), sizes=sizes)), runner=RunnerName.WORKERS))
    return site.record("1")


@pytest.mark.parametrize(("sizes", "processors"), [("any", 7), ("power-of-two", 8), ("multiple-of-3", 9)])
def test_a_size_that_can_be_used_is_taken(sizes: str, processors: int) -> None:
    assert resizable(running(sizes), "", processors) == "m"


@pytest.mark.parametrize(
    ("sizes", "processors", "way_out"),
    [
        ("power-of-two", 5, "near are 4 and 8"),
        ("power-of-two", 9, "near are 8"),
        ("multiple-of-3", 2, "near are 3"),
        ("any", 10, "its job file allows 2 to 9"),
    ],
)
def test_a_size_that_cannot_be_used_is_refused(sizes: str, processors: int, way_out: str) -> None:
    with pytest.raises(JobRefusedError) as caught:
        resizable(running(sizes), "", processors)
    assert caught.value.hint.endswith(way_out)
