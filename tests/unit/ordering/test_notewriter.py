# SPDX-License-Identifier: Apache-2.0
"""Notes left with waiting jobs: within their share of the requests, and at no cost for the queue."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.model import LrmJobState
from koala_adapter.ordering.jobs import JobEventKind
from koala_adapter.ordering.notes import SHARE
from tests.unit.ordering.test_outsidescheduler import Driven, StartingLrm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from koala_adapter.model import LrmJobId

pytestmark = pytest.mark.anyio


class NotingLrm(StartingLrm):
    """One that shows the notes of its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.annotated: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, job_id: str, processors: int = 8) -> None:
        """Have a job come in held, without a note."""
        super().add(job_id, processors)
        self._show([job_id], "")

    async def annotate(self, ids: Sequence[LrmJobId], text: str) -> None:
        """See Lrm."""
        for job_id in ids:
            self.annotated[job_id].append(text)
        self._answer("annotate")
        self._show(ids, text)

    def _show(self, ids: Sequence[str], text: str) -> None:
        self.all_jobs = tuple(replace(job, note=text) if job.id in ids else job for job in self.all_jobs)


def noting(directory: Path, *, requests_per_minute: int = 6000) -> tuple[Driven, NotingLrm]:
    """Return a driver that leaves notes with the jobs of an LRM."""
    lrm = NotingLrm()
    return Driven(
        directory, lrm, start=30.0, notes_within=requests_per_minute
    ), lrm  # no start is given up on a busy machine


async def test_who_waits_is_told_where(tmp_path: Path) -> None:
    """Once, as long as that stays so."""
    driven, lrm = noting(tmp_path)
    for number in range(1, 4):
        lrm.add(str(number))
    async with driven.running():
        await driven.until(lambda: len(lrm.annotated) == 2)
        polls = lrm.polls
        await driven.until(lambda: lrm.polls >= polls + 5)
    assert lrm.annotated["2"][0].startswith("place 1, starts by ")
    assert lrm.annotated["3"][0].startswith("place 2, ")
    assert {job: len(texts) for job, texts in lrm.annotated.items()} == {"2": 1, "3": 1}


async def test_who_runs_shows_no_place(tmp_path: Path) -> None:
    """What a scheduler of before has left with a job that runs is taken away."""
    driven, lrm = noting(tmp_path)
    lrm.add("1")
    lrm.all_jobs = tuple(replace(job, note="place 7, as of 2026-11-23 14:05") for job in lrm.all_jobs)
    async with driven.running():
        await driven.until(lambda: lrm.annotated["1"][-1:] == [""])
    assert JobEventKind.STARTED in driven.kinds("1")


async def test_notes_have_their_share_of_the_requests(tmp_path: Path) -> None:
    """Of thirty requests in a minute, three."""
    requests = 3 * SHARE
    driven, lrm = noting(tmp_path, requests_per_minute=requests)
    for number in range(1, 12):
        lrm.add(str(number))
    async with driven.running():
        await driven.until(lambda: len(lrm.annotated) == 3)
        polls = lrm.polls
        await driven.until(lambda: lrm.polls >= polls + 5)
    assert list(lrm.annotated) == ["2", "3", "4"]


@pytest.mark.parametrize("error", [LrmRejectedError("no"), LrmUnavailableError("no answer"), RuntimeError("a defect")])
async def test_notes_that_cannot_be_left_cost_nobody_a_start(tmp_path: Path, error: Exception) -> None:
    """The queue goes on, and a job is not asked about at each look."""
    driven, lrm = noting(tmp_path)
    lrm.errors["annotate"] = error
    lrm.add("1")
    lrm.add("2")
    async with driven.running():
        await driven.until(lambda: bool(lrm.annotated["2"]))
        lrm.change("1", LrmJobState.ENDED)
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("2"))
    assert len(lrm.annotated["2"]) == 1
