# SPDX-License-Identifier: Apache-2.0
"""Results of a sweep that goes on after a restart: read in a thread, while the service answers."""

from __future__ import annotations

import json
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import from_thread, to_thread

from koala_adapter.model import JobId, RunnerName, Sweep
from koala_adapter.scheduler.events import RankEnded
from koala_adapter.service import sweeps
from koala_adapter.service.sweeps import RESULTS, Sweeps
from koala_adapter.tasks.launcher import SETTINGS
from koala_adapter.tasks.sweep import list_axis
from tests.unit.scheduler.scheduler_site import Site, component, job
from tests.unit.service.standincore import StandInCore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from koala_adapter.model import Job
    from koala_adapter.service.sweeps import SweepFiles
    from koala_adapter.tasks.sweep import Book, Expansion

pytestmark = pytest.mark.anyio
LIVENESS = 60.0
"""Seconds within which what must come has come, however slow the machine is."""
DONE = '{"task": 0, "state": "done", "status": 0}\n'


@dataclass
class Restarted:
    """The sweeps of a service that was killed while job 1 was at two tasks, of which one is done."""

    directory: Path
    site: Site = field(default_factory=lambda: Site({"a": 4}))

    def __post_init__(self) -> None:
        self.core = StandInCore(self.site, self.directory)
        self.reported = self.core.posted
        self.sweeps = Sweeps(self.core)
        self.site.submit(self.job)
        self.site.run("1")
        self.sweeps.files(self.job).keep(self.job)
        self.results.write_text(DONE)

    @property
    def job(self) -> Job:
        one = job("1", component("x", 1, cluster="a"))
        return replace(one, runner=RunnerName.SWEEP, sweep=Sweep(axes=(list_axis("n", ("1", "2")),)))

    @property
    def results(self) -> Path:
        return self.sweeps.files(self.job).directory / RESULTS

    async def until_done(self, done: int) -> None:
        """Wait until the progress that is told has so many tasks done."""
        with anyio.fail_after(LIVENESS):
            while (progress := self.sweeps.progress(self.job)) is None or progress.done != done:
                await self.core.changed.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.sweeps.run)
            yield
            tasks.cancel_scope.cancel()


class SlowReading:
    """Reads the results of sweeps as a slow file system does: not before it is allowed to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = anyio.Event()
        self.allowed = threading.Event()
        self._over = threading.Event()
        self.threads: list[threading.Thread] = []
        self._read = sweeps.restored_book
        monkeypatch.setattr(sweeps, "restored_book", self._slowly)

    def _slowly(self, job: Job, files: SweepFiles, expansion: Expansion) -> Book:
        self.threads.append(threading.current_thread())
        from_thread.run_sync(self.begun.set)
        try:
            assert self.allowed.wait(LIVENESS)
            return self._read(job, files, expansion)
        finally:
            self._over.set()

    async def over(self) -> None:
        self.allowed.set()
        assert await to_thread.run_sync(self._over.wait, LIVENESS)


@pytest.fixture
async def restarted(tmp_path: Path) -> Restarted:
    return Restarted(tmp_path)


async def test_the_loop_answers_while_results_are_read(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that register again get the files of their launchers, which can connect; then tasks are handed out."""
    reading = SlowReading(monkeypatch)
    async with restarted.running():
        with anyio.fail_after(LIVENESS):
            await reading.begun.wait()
            library = {file.target: file.content for file in restarted.sweeps.library(restarted.job)}
            port = json.loads(library[SETTINGS])["port"]
            async with await anyio.connect_tcp("127.0.0.1", port):
                assert reading.threads != [threading.current_thread()]
        reading.allowed.set()
        await restarted.until_done(1)
    assert len(reading.threads) == 1
    assert restarted.reported == []


async def test_a_job_that_ends_while_results_are_read_has_no_sweep(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SlowReading(monkeypatch)
    restarted.results.write_text(DONE + "half a li")
    async with restarted.running():
        with anyio.fail_after(LIVENESS):
            await reading.begun.wait()
            restarted.sweeps.forget(JobId("1"))
        await reading.over()
    assert restarted.results.read_text() == DONE + "half a li"
    assert restarted.reported == []


async def test_a_service_stops_while_results_are_read(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that hangs keeps it from nothing, and what is read later changes no file."""
    reading = SlowReading(monkeypatch)
    restarted.results.write_text(DONE + "half a li")
    with anyio.fail_after(LIVENESS):
        async with restarted.running():
            await reading.begun.wait()
    await reading.over()
    assert restarted.results.read_text() == DONE + "half a li"


async def test_results_that_cannot_be_read_end_the_job(restarted: Restarted) -> None:
    restarted.results.write_text("nonsense\n")
    async with restarted.running():
        with anyio.fail_after(LIVENESS):
            while not restarted.reported:
                await anyio.lowlevel.checkpoint()
    (end,) = restarted.reported
    assert isinstance(end, RankEnded)
    assert "the sweep cannot go on" in end.end.detail
    assert RESULTS in end.end.detail


async def test_results_that_are_not_read_in_time_end_the_job(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SlowReading(monkeypatch)
    monkeypatch.setattr(sweeps, "READING_LIMIT", 0.0)
    async with restarted.running():
        with anyio.fail_after(LIVENESS):
            while not restarted.reported:
                await anyio.lowlevel.checkpoint()
    reading.allowed.set()
    (end,) = restarted.reported
    assert isinstance(end, RankEnded)
    assert "could not be read within 0 s" in end.end.detail
