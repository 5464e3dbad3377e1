# SPDX-License-Identifier: Apache-2.0
"""Bringing input files to the cache of a site, which is a real gateway that a stand-in for ssh starts."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from koala_adapter.config.sitefile import ClusterConfig, ControlCenterConfig, RemoteSiteConfig, SiteConfig
from koala_adapter.model import LARGEST_SENT, ClusterName, InputFile, Job, JobId
from koala_adapter.scheduler.actions import StageFiles
from koala_adapter.scheduler.events import Event, FilesStaged, StagingFailed, StagingProgressed
from koala_adapter.service import staging
from koala_adapter.service.core import Core
from koala_adapter.service.information import Information
from koala_adapter.service.inputfiles import InputStore
from koala_adapter.service.staging import Stager
from koala_adapter.testing.trial import eventually
from tests.unit.scheduler.scheduler_site import Site, component, job
from tests.unit.service.standins import StandInCore
from tests.unit.sites.test_remotesite import Place, place

__all__ = ["place"]

MIB = 1024 * 1024
SIZE = LARGEST_SENT + MIB
A = ClusterName("a")
BEGAN = time.monotonic()


class TimedCore(StandInCore):
    """One whose time passes."""

    def now(self) -> float:
        return super().now() + time.monotonic() - BEGAN


class Told(Information):
    """One that keeps what it was told."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.sent: list[tuple[str, int]] = []

    def transferred(self, site: str, size: int, _seconds: float) -> None:
        self.sent.append((site, size))


class Home:
    """A service's part that stages files, with jobs that have input files."""

    def __init__(self, place: Place, directory: Path, cache_mib: int) -> None:
        self.place, self.directory = place, directory
        self.world = Site({"a": 8})
        self.core = TimedCore(self.world, directory)
        self.core.site = SiteConfig(
            sites=(RemoteSiteConfig(name="delft", ssh="fs3", directory=str(place.directory), cache_mib=cache_mib),),
            clusters=(ClusterConfig(name="a", plugin="slurm", site="delft"),),
            control_center=ControlCenterConfig(listen="127.0.0.1"),
        )
        self.inputs = InputStore(directory, "koala-k-")
        self.information = Told(self.core)
        self.stager = Stager(self.core, self.inputs, self.information)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the stager during the block."""
        async with anyio.create_task_group() as tasks:
            self.stager.start(tasks, {"a": self.place.site})
            yield
            tasks.cancel_scope.cancel()

    def job(self, number: str, *contents: bytes) -> Job:
        """Return a new job with an input file for each of these contents, each followed by zeros."""
        files = []
        for content in contents:
            path = self.directory / f"{content.decode()}"
            path.write_bytes(content)
            os.truncate(path, SIZE)
            files.append(InputFile(source=str(path), target=content.decode(), size=SIZE))
        made = job(number, replace(component("x", 1, cluster="a"), input_files=tuple(files)))
        self.inputs.keep(made)
        self.world.submit(made)
        return made

    def stage(self, made: Job) -> None:
        """Have the files of a job brought to the cluster."""
        self.stager.stage(StageFiles(job_id=made.id, cluster=A, files=made.components[0].input_files))

    async def until(self, kind: type[Event], job_id: str) -> Event:
        """Wait for an event on the files of a job."""

        async def latest() -> Event | None:
            found = (one for one in self.core.posted if isinstance(one, kind))
            return next((one for one in found if getattr(one, "job_id", "") == job_id), None)

        found = await eventually(
            latest, lambda one: one is not None, what=f"{kind.__name__} of job {job_id}", seconds=60
        )
        assert found is not None
        return found

    async def until_waiting(self, job_id: str, why: str) -> None:
        """Wait until files of a job wait for something."""

        async def reasons() -> list[str]:
            return [one.waits_for for one in self.stager.of_job(JobId(job_id))]

        await eventually(reasons, lambda found: any(why in one for one in found), what=f"files wait: {why}", seconds=60)

    @property
    def cached(self) -> int:
        """Contents in the cache."""
        return len([path for path in (self.place.directory / "cache").iterdir() if path.suffix != ".part"])


async def test_files_go_to_a_site_once(place: Place, tmp_path: Path) -> None:
    """How much has to go is told first; a second job with the same content sends nothing, under any name."""
    home = Home(place, tmp_path, 1024)
    first = home.job("1", b"one", b"two")
    async with home.serving():
        home.stage(first)
        told = await home.until(StagingProgressed, "1")
        assert isinstance(told, StagingProgressed)
        assert (told.missing_bytes, told.rate) == (2 * SIZE, None)
        await home.until(FilesStaged, "1")
        assert home.information.sent == [("delft", 2 * SIZE)]
        assert all(home.stager.held("delft", file) for file in first.components[0].input_files)
        (tmp_path / "one").rename(tmp_path / "three")
        again = home.job("2", b"one")
        home.stage(again)
        await home.until(FilesStaged, "2")
        assert home.information.sent == [("delft", 2 * SIZE)]
        home.stage(again)
        assert sum(isinstance(one, FilesStaged) for one in home.core.posted) == 3


async def test_a_site_that_is_away_is_waited_for(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PAUSE", 0.1)
    home = Home(place, tmp_path, 1024)
    place.away.touch()
    made = home.job("1", b"one")
    async with home.serving():
        home.stage(made)
        await home.until_waiting("1", "site delft is away")
        told = await home.until(StagingProgressed, "1")  # no placeholders are submitted by an earlier estimate
        assert isinstance(told, StagingProgressed)
        assert (told.missing_bytes, told.rate) == (SIZE, None)
        place.away.unlink()
        await home.until(FilesStaged, "1")
    assert home.cached == 1


async def test_a_full_cache_is_waited_for(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until another job has ended, whose files then make room; one that was given up leaves nothing waiting."""
    monkeypatch.setattr(staging, "PAUSE", 0.1)
    home = Home(place, tmp_path, 2 * SIZE // MIB)
    first, second, third = home.job("1", b"one"), home.job("2", b"two", b"three"), home.job("3", b"four")
    async with home.serving():
        home.stage(first)
        await home.until(FilesStaged, "1")
        home.stage(second)
        await home.until_waiting("2", "the cache of site delft is full of files of other jobs")
        home.stage(third)
        await home.until(FilesStaged, "3")
        assert home.cached == 2
        home.stager.stop(third.id, A)
        home.stager.stop(first.id, A)
        await home.until(FilesStaged, "2")
        assert home.cached == 2
        assert not any(home.stager.held("delft", file) for file in first.components[0].input_files)


async def test_files_larger_than_the_cache_are_refused(place: Place, tmp_path: Path) -> None:
    home = Home(place, tmp_path, SIZE // MIB)
    made = home.job("1", b"one", b"two")
    async with home.serving():
        home.stage(made)
        failed = await home.until(StagingFailed, "1")
    assert isinstance(failed, StagingFailed)
    assert failed.reason == (
        "input files cannot be brought to site delft: they have 42 MiB, its cache may have 21 MiB: raise its cache_mib"
    )


async def test_a_cache_that_cannot_be_is_said(place: Place, tmp_path: Path) -> None:
    """What is wrong there is told with its path."""
    home = Home(place, tmp_path, 1024)
    place.directory.mkdir(exist_ok=True)
    (place.directory / "cache").touch()
    made = home.job("1", b"one")
    async with home.serving():
        home.stage(made)
        failed = await home.until(StagingFailed, "1")
    assert isinstance(failed, StagingFailed)
    assert "site delft" in failed.reason
    assert str(place.directory / "cache") in failed.reason
