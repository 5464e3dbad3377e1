# SPDX-License-Identifier: Apache-2.0
"""Which cluster has which input file: catalogues read where they are, and what the scheduler is told."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from koala_adapter.config.sitefile import ClusterConfig, RemoteSiteConfig, SiteConfig
from koala_adapter.errors import JobRefusedError, LrmError
from koala_adapter.lrm.commands import THIS_HOST, LocalHost
from koala_adapter.model import CACHED, ClusterName, InputFile, Job, JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.service.applications import Applications
from koala_adapter.service.information import Information
from koala_adapter.service.inputfiles import InputStore
from koala_adapter.service.replicas import DEEPEST, Replicas, read_at
from koala_adapter.service.staging import Stager
from koala_adapter.service.sweeps import Sweeps
from koala_adapter.sites.catalogue import LONGEST_CATALOGUE
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job
from tests.unit.service.standins import StandInCore
from tests.unit.service.test_applications import Orders

LONG_AGO = 1_000_000_000


def written(path: Path, content: bytes, *, at: int = LONG_AGO) -> Path:
    """Write a file that was changed at a time of day."""
    path.write_bytes(content)
    os.utime(path, (at, at))
    return path


# -- Reading a catalogue where it is -------------------------------------------------------------------------


async def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = written(tmp_path / "files", b"name /data/a\n")
    first = await read_at(THIS_HOST, str(path))
    assert first is not None
    assert first.catalogue.names == {"name": "/data/a"}
    assert await read_at(THIS_HOST, str(path), first) is first
    written(path, b"name /data/b\n", at=LONG_AGO + 1)
    second = await read_at(THIS_HOST, str(path), first)
    assert second is not None
    assert second.catalogue.names == {"name": "/data/b"}


async def test_a_directory_is_listed_each_time(tmp_path: Path) -> None:
    """With what is below it, to a bounded depth; links to files count, and those to directories are not followed."""
    deepest = "/".join("x" * (DEEPEST - 1))
    (tmp_path / deepest / "beyond").mkdir(parents=True)
    names = {"a", "x/b", f"{deepest}/c"}
    for name in (*names, f"{deepest}/beyond/d"):
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = await read_at(THIS_HOST, str(tmp_path))
    assert found is not None
    assert found.catalogue.names == {name: f"{tmp_path}/{name}" for name in (*names, "link")}
    (tmp_path / "d").write_text("x")
    found = await read_at(THIS_HOST, str(tmp_path), found)
    assert found is not None
    assert "d" in found.catalogue.names


async def test_what_is_being_written_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "files"
    path.write_text("name /data/a\n")
    assert await read_at(THIS_HOST, str(path)) is None


class Changing(LocalHost):
    """A host on which a file is changed while it is read."""

    def __init__(self, path: Path, directory: Path) -> None:
        self._path = path
        self._head = directory / "head"
        self._head.write_text(f'#!/bin/sh\n/usr/bin/head "$@"; echo "more /data/b" >> {path}\n')
        self._head.chmod(0o755)

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, bytes]:
        path = f"{self._head.parent}:/usr/bin:/bin"
        return await super().run(argv, stdin=stdin, environment={**(environment or {}), "PATH": path})


async def test_what_changes_while_it_is_read_is_read_later(tmp_path: Path) -> None:
    path = written(tmp_path / "files", b"name /data/a\n")
    assert await read_at(Changing(path, tmp_path), str(path)) is None


@pytest.mark.parametrize("kind", ["missing", "binary", "huge", "endless", "pipe"])
async def test_what_cannot_be_read_is_refused_in_bounded_time(tmp_path: Path, kind: str) -> None:
    path, fault = tmp_path / "files", "it is neither a file nor a directory"
    if kind == "missing":
        fault = "No such file"
    elif kind == "binary":
        written(path, bytes(range(256)) * 100)
        fault = "line 1"
    elif kind == "huge":
        with written(path, b"").open("wb") as file:
            file.truncate(100 * LONGEST_CATALOGUE)
        os.utime(path, (LONG_AGO, LONG_AGO))
        fault = "longer than 4 MiB"
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    with pytest.raises(LrmError, match=fault) as refused:
        await read_at(THIS_HOST, str(path))
    assert str(path) in refused.value.message


# -- What the scheduler is told ------------------------------------------------------------------------------


def with_files(one: Job, *sources: str) -> Job:
    """Return a job whose components have input files."""
    files = tuple(InputFile(source=source, target=f"f{number}", size=10) for number, source in enumerate(sources))
    return replace(one, components=tuple(replace(part, input_files=files) for part in one.components))


class Place:
    """Cluster a at a site, with a catalogue; cluster b here, without one."""

    def __init__(self, catalogue: Path) -> None:
        self.world = Site({A: 4, B: 8})
        self.core = StandInCore(self.world)
        self.core.site = SiteConfig(
            sites=(RemoteSiteConfig(name="delft", ssh="fs3"),),
            clusters=(
                ClusterConfig(name=A, plugin="slurm", site="delft", catalogue=str(catalogue)),
                ClusterConfig(name=B, plugin="local"),
            ),
        )
        self.core.lrm_hosts = {A: THIS_HOST, B: THIS_HOST}
        self.catalogue = catalogue
        self.changes = 0
        self.information = Information(self.core)
        self.stager = Stager(self.core, InputStore(catalogue.parent, "koala-k-"), self.information)
        self.replicas = Replicas(self.core, self.stager)

    async def say(self, content: bytes) -> None:
        """Write the catalogue, and have it looked at."""
        self.changes += 1
        written(self.catalogue, content, at=LONG_AGO + self.changes)
        assert await self.replicas.look()
        self.replicas.tell()

    def submit(self, one: Job) -> None:
        for event in self.replicas.found(one):
            self.core.loop.post(event)
        self.world.post(ev.JobSubmitted(time=self.world.now, job=one))

    def found(self, name: ClusterName = A) -> dict[str, str]:
        return self.world.state.clusters[name].found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "files")


async def test_a_job_goes_to_the_cluster_that_has_its_files(place: Place) -> None:
    await place.say(b"/data/x\n/data/others/\n")
    place.submit(with_files(job("1", 2, placement="close-to-files"), "/data/x"))
    assert place.found() == {"/data/x": "/data/x"}, "the rest of the catalogue concerns no job"
    assert place.world.record("1").claims[0].cluster == A
    place.submit(with_files(job("2", 2, placement="close-to-files"), "/data/y"))
    assert place.world.record("2").claims[0].cluster == B, "it has more idle processors"


async def test_a_file_that_is_found_later_or_gone_is_told(place: Place) -> None:
    await place.say(b"/data/x\n")
    place.submit(with_files(job("1", 8), "/data/x", "/data/y"))
    assert place.found() == {"/data/x": "/data/x"}
    place.submit(with_files(job("2", 8), "/data/x", "/data/y"))  # waits for the first one
    assert place.world.record("2").state is JobState.WAITING
    await place.say(b"/data/\n")
    assert set(place.found()) == {"/data/x", "/data/y"}
    place.world.post(ev.CancelRequested(time=place.world.now, job_id=JobId("1")))
    await place.say(b"/data/y\n")
    assert set(place.found()) == {"/data/y"}


async def test_what_koala_has_put_there_counts_until_it_is_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {"/home/alice/input"}
    monkeypatch.setattr(place.stager, "held", lambda site, file: site == "delft" and file.source in cache)
    place.submit(with_files(job("1", component("c", 4)), "/home/alice/input"))
    assert place.found() == {"/home/alice/input": ""}
    assert place.found(B) == {}
    assert place.replicas.report(place.core.site.clusters[0]).cached == 1


async def test_while_a_catalogue_cannot_be_read_what_is_known_stays(place: Place) -> None:
    await place.say(b"/data/x\n")
    place.submit(with_files(job("1", 2), "/data/x"))
    place.catalogue.unlink()
    assert not await place.replicas.look()
    place.replicas.tell()
    assert place.found() == {"/data/x": "/data/x"}
    report = place.replicas.report(place.core.site.clusters[0])
    assert "No such file" in report.trouble
    await place.say(b"/data/other\n")
    assert not place.replicas.report(place.core.site.clusters[0]).trouble
    assert place.found() == {"/data/x": "/data/x"}, "the job that is placed relies on it"


async def test_what_no_job_needs_is_forgotten(place: Place) -> None:
    await place.say(b"/data/x\n")
    place.submit(with_files(job("1", 2), "/data/x"))
    place.world.post(ev.CancelRequested(time=place.world.now, job_id=JobId("1")))
    place.replicas.tell()
    assert place.found() == {}


async def test_a_service_goes_on_with_what_the_one_before_has_found(place: Place) -> None:
    """Until the catalogue was read again, nothing is taken back."""
    await place.say(b"/data/x\n")
    place.submit(with_files(job("1", 2), "/data/x"))
    place.world.post(ev.CancelRequested(time=place.world.now, job_id=JobId("1")))
    place.replicas = Replicas(place.core, place.stager)
    place.replicas.tell()
    assert place.found() == {"/data/x": "/data/x"}
    await place.replicas.look()
    place.replicas.tell()
    assert place.found() == {}


async def test_a_logical_name_that_no_catalogue_has_is_refused(place: Place) -> None:
    await place.say(b"genome /data/genome\nsets/ /data/sets/\n")
    named = with_files(job("1", 2), "lfn:genome", "lfn:sets/one")
    place.submit(named)
    place.replicas.require(named)
    assert place.found() == {"lfn:genome": "/data/genome", "lfn:sets/one": "/data/sets/one"}
    assert place.world.record("1").claims[0].cluster == A
    place.catalogue.unlink()
    await place.replicas.look()
    with pytest.raises(JobRefusedError, match=r"lfn:gen: no catalogue has that name \(those of a; a: .*No such"):
        place.replicas.require(with_files(job("2", 2), "lfn:gen"))


@pytest.mark.parametrize("site", ["leiden", None])
async def test_a_logical_name_can_be_brought_to_another_place(place: Place, tmp_path: Path, site: str | None) -> None:
    """A file, of which the size is told, and no directory; no more when its only catalogue has dropped it."""
    for name in ("genome", "other"):
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "sets").mkdir()
    other = ClusterConfig(name=B, plugin="slurm", site=site)
    sites = (*place.core.site.sites, RemoteSiteConfig(name="leiden", ssh="das5"))
    place.core.site = SiteConfig(sites=sites, clusters=(place.core.site.clusters[0], other))
    cluster = place.world.state.clusters[B]
    cluster.parameters = replace(cluster.parameters, stages=True)
    await place.say(f"genome {tmp_path}/genome\nsets {tmp_path}/sets\n".encode())
    named = with_files(job("1", 2), "lfn:genome", "lfn:sets")
    await place.replicas.learn(named.input_files)
    place.submit(named)
    assert (cluster.bringable, cluster.found) == ({"lfn:genome": 5}, {})
    await place.say(b"more /data/more\n")
    assert cluster.bringable == {}


async def test_ranks_find_links_to_what_the_catalogue_names(place: Place, tmp_path: Path) -> None:
    await place.say(b"genome /data/genome\n")
    (tmp_path / "own").write_text("mine")
    named = with_files(job("1", 2), "lfn:genome", str(tmp_path / "own"))
    place.core.directory = tmp_path
    applications = Applications(place.core, place.information, Sweeps(place.core))
    applications.keep_input(named)
    place.submit(named)
    place.world.take_all()
    orders = Orders()
    orders.connected = {placeholder.id for placeholder in place.world.claimed("1")}
    place.core.center = orders  # type: ignore[assignment]  # all that is asked of it
    place.world.hold_all("1")
    applications.launch(JobId("1"))
    for _, launch in orders.sent:
        assert [(file.target, file.content, file.link) for file in launch.files] == [
            ("f1", b"mine", ""),
            ("f0", b"", "/data/genome"),
        ]
    assert len(orders.sent) == 2
    orders.sent.clear()
    brought = (("lfn:genome", f"{CACHED}{'0' * 64}/5"),)
    place.world.post(ev.FilesFound(time=place.world.now, cluster=A, found=brought))
    Applications(place.core, place.information, Sweeps(place.core)).launch(JobId("1"))
    assert {(file.digest, file.size) for _, launch in orders.sent for file in launch.files if file.target == "f0"} == {
        ("0" * 64, 5)
    }
    holder = place.world.claimed("1")[0].id
    assert applications.input_path(holder, "1:0", "0" * 64) == tmp_path / "cache" / ("0" * 64), "it is on this host"
    assert applications.input_path(holder, "1:1", "0" * 64) is None, "that rank is not on it"
    place.world.post(ev.FilesFound(time=place.world.now, cluster=A, gone=("lfn:genome",)))
    again = Applications(place.core, place.information, Sweeps(place.core))
    again.launch(JobId("1"))
    assert "the catalogue of cluster a has lfn:genome no more" in place.world.explained("1")


async def test_a_submission_waits_for_a_catalogue_that_is_being_written(place: Place) -> None:
    place.catalogue.write_text("genome /data/genome\n")
    assert not await place.replicas.look()
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await place.replicas.ready()
    await place.say(b"genome /data/genome\n")
    await place.replicas.ready()
