# SPDX-License-Identifier: Apache-2.0
"""Bringing input files to the cache of a site, which is a real gateway that a stand-in for ssh starts."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from koala_adapter.config.sitefile import ClusterConfig, ControlCenterConfig, RemoteSiteConfig, SiteConfig
from koala_adapter.model import CACHED, LARGEST_SENT, ClusterName, InputFile, Job, JobId
from koala_adapter.scheduler.actions import StageFiles
from koala_adapter.scheduler.events import Event, FilesFound, FilesStaged, StagingFailed, StagingProgressed
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
A, B = ClusterName("a"), ClusterName("b")
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
        self.world = Site({"a": 8, "b": 8})
        self.core = TimedCore(self.world, directory)
        self.core.site = SiteConfig(
            sites=(RemoteSiteConfig(name="delft", ssh="fs3", directory=str(place.directory), cache_mib=cache_mib),),
            clusters=(
                ClusterConfig(name="a", plugin="slurm", site="delft", catalogue="/files"),
                ClusterConfig(name="b", plugin="local"),
            ),
            control_center=ControlCenterConfig(listen="127.0.0.1", cache_mib=cache_mib),
        )
        self.inputs = InputStore(directory, "koala-k-")
        self.information = Told(self.core)
        self.stager = Stager(self.core, self.inputs, self.information)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the stager during the block."""
        async with anyio.create_task_group() as tasks:
            self.core.lrm_hosts = {"a": self.place.site}
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

    def named(self, number: str, name: str) -> Job:
        """Return a new job of cluster b, which is here, with a file that the catalogue of a has; none if empty."""
        path = self.directory / "there" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
        os.truncate(path, SIZE)
        file = InputFile(source=f"lfn:{name}", target=name, size=SIZE)
        made = job(number, replace(component("x", 1, cluster="b"), input_files=(file,)))
        self.world.post(FilesFound(time=self.world.now, cluster=A, found=((file.source, str(path)),)))
        self.world.post(FilesFound(time=self.world.now, cluster=B, bringable=((file.source, SIZE),)))
        self.inputs.keep(made)
        self.world.submit(made)
        return made

    def stage(self, made: Job) -> None:
        """Have the files of a job brought to the cluster of its component."""
        (part,) = made.components
        self.stager.stage(StageFiles(job_id=made.id, cluster=part.cluster or A, files=part.input_files))

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


async def test_a_file_with_a_logical_name_comes_here(place: Place, tmp_path: Path) -> None:
    """From the site that has it, once, whole, and no more than there is room for; what has come before is kept."""
    home = Home(place, tmp_path, 2 * SIZE // MIB)
    one, two, three = (home.named(number, name) for number, name in (("1", "one"), ("2", "two"), ("3", "three")))
    content = (tmp_path / "there" / "one").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / f"{digest}.part").write_bytes(content[:MIB])
    async with home.serving():
        for made in (one, two):
            home.stage(made)
            await home.until(FilesStaged, made.id)
        assert home.world.state.clusters[B].bringable
        found = [event for event in home.core.posted if isinstance(event, FilesFound)]
        assert found[0].found == (("lfn:one", f"{CACHED}{digest}/{SIZE}"),)
        assert (cache / digest).read_bytes() == content
        progress = [event for event in home.core.posted if isinstance(event, StagingProgressed)]
        assert progress[0].missing_bytes == SIZE - MIB
        assert home.information.sent == []
        home.stage(three)
        await home.until_waiting("3", "the cache of this host is full of files of other jobs")
        home.stager.stop(one.id, B)
        await home.until(FilesStaged, "3")
        assert not (cache / digest).exists()


async def test_nothing_comes_here_where_no_cluster_has_a_catalogue(place: Place, tmp_path: Path) -> None:
    home = Home(place, tmp_path, 1024)
    far, near = home.core.site.clusters
    assert home.core.site.cache_bound(near) == home.core.site.cache_bound(far) == 1024 * MIB
    site = home.core.site.model_copy(update={"clusters": (far.model_copy(update={"catalogue": None}), near)})
    assert (site.cache_bound(far), site.cache_bound(near)) == (1024 * MIB, 0)
