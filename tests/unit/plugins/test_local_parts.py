# SPDX-License-Identifier: Apache-2.0
"""The plugin ``local``: settings, records, messages, who starts where, and its daemon at a site."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import koala_local
from koala_adapter.config.sitefile import RemoteSiteConfig
from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
    ProtocolError,
)
from koala_adapter.lrm import Submission
from koala_adapter.lrm.lrmhost import LrmHost
from koala_adapter.model import OCCUPYING, BatchKey, EndReason, LrmJobState
from koala_adapter.service.opening import SiteHosts
from koala_adapter.testing import eventually, new_context
from koala_local.jobs import (
    KILL_WAIT,
    Ending,
    Fields,
    JobRecord,
    JobStore,
    Layout,
    NodeSlots,
    decode,
    encode,
    failure,
    fits_ever,
    free_processors,
    next_starts,
    raise_failure,
    rooms,
)
from koala_local.lrm import LocalLrm, LocalSettings
from koala_local.processes import Supervisor, job_environment, since_boot, start_gated
from tests.local_koala import end_daemon

# -- The pure parts of the plugin ``local``: settings, records, messages, and who starts where.

SAMPLE = JobRecord(
    number=7,
    index=2,
    name="k",
    user="u",
    walltime=60,
    output_directory="/tmp",
    submitted_at=1000.0,
    state=LrmJobState.QUEUED,
)

texts = st.text(max_size=10)
records = st.builds(
    JobRecord,
    number=st.integers(1, 50),
    index=st.integers(1, 9),
    name=texts,
    user=texts,
    walltime=st.integers(1, 10**6),
    output_directory=texts,
    submitted_at=st.floats(0, 1e10),
    state=st.sampled_from(LrmJobState),
    node=st.sampled_from(["", "n1", "n2", "gone"]),
    pid=st.none() | st.integers(1, 10**6),
    birth=texts,
    starts=st.integers(0, 5),
    started_at=st.none() | st.floats(0, 1e10),
    started_since_boot=st.none() | st.floats(0, 1e10),
    ended_at=st.none() | st.floats(0, 1e10),
    ending=st.none() | st.sampled_from(Ending),
    end=st.none() | st.sampled_from(EndReason),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    reason=texts,
)
queues_of_jobs = st.lists(records, max_size=25, unique_by=lambda job: job.id).map(
    lambda jobs: sorted(jobs, key=lambda job: (job.number, job.index))
)
layouts = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda sizes: [NodeSlots(name=f"n{number}", processors=size) for number, size in enumerate(sizes, 1)]
)


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        ({}, [("n1", os.cpu_count())]),
        ({"processors": 5}, [("n1", 5)]),
        ({"nodes": 2, "processors_per_node": 3}, [("n1", 3), ("n2", 3)]),
        ({"nodes": 2}, [("n1", 1), ("n2", 1)]),
        ({"node_names": ["a", "b.c"], "processors_per_node": 2}, [("a", 2), ("b.c", 2)]),
        ({"processors_per_node": 2}, [("n1", 2)]),
    ],
)
def test_settings_describe_nodes(settings: dict[str, object], nodes: list[tuple[str, int]]) -> None:
    layout = LocalSettings.model_validate(settings).layout
    assert [(node.name, node.processors) for node in layout.nodes] == nodes
    assert layout.processors == sum(processors for _, processors in nodes)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"processors": 4, "nodes": 2}, "processors alone"),
        ({"nodes": 2, "node_names": ["a"]}, "not both"),
        ({"node_names": ["a", "a"]}, "different"),
        ({"node_names": ["a/b"]}, "pattern"),
        ({"processors": 0}, "greater"),
        ({"processor": 4}, "Extra inputs"),
        ({"idle_seconds": 0}, "greater"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        LocalSettings.model_validate(settings)


# -- messages -----------------------------------------------------------------------------------------------------


@given(record=records)
def test_records_survive_the_store(record: JobRecord) -> None:
    """A record read back from its bytes is the record."""
    assert decode(encode(record)).record(JobRecord) == record


def test_a_store_that_cannot_be_used_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError) as raised:
        JobStore(tmp_path)
    assert raised.tb is not None
    assert str(path) not in {os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("limit", [None, 3600])
def test_layouts_survive(limit: int | None) -> None:
    """A layout read back from its bytes is the layout; an earlier version has not written how long a job may end."""
    layout = Layout(nodes=(NodeSlots(name="a", processors=2),), walltime_limit=limit, idle_seconds=1.5, kill_wait=3.5)
    said = json.loads(encode(layout))
    assert Fields(said).record(Layout) == layout
    del said["kill_wait"]
    assert Fields(said).record(Layout) == replace(layout, kill_wait=KILL_WAIT)


@given(text=st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_undecodable_text_survives(text: str) -> None:
    """Scripts may hold bytes that are no valid text."""
    assert decode(encode({"script": text})).text("script") == text


@pytest.mark.parametrize("raw", [b"", b"[]", b"3", b"{", b"\xff", b'"a"'])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    """Bytes that are no JSON object raise ProtocolError, nothing else."""
    with pytest.raises(ProtocolError):
        decode(raw)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("text", 3),
        ("text", None),
        ("integer", True),
        ("integer", "3"),
        ("integer", 3.5),
        ("texts", "abc"),
        ("texts", ["a", 1]),
        ("object", []),
    ],
)
def test_wrong_types_are_refused(method: str, wrong: object) -> None:
    with pytest.raises(ProtocolError):
        getattr(Fields({"x": wrong}), method)("x")


@pytest.mark.parametrize(
    ("field", "wrong", "wanted"),
    [
        ("nodes", {}, "a list"),
        ("nodes", [1], "a JSON object"),
        ("walltime_limit", "x", "an integer"),
        ("idle_seconds", "3", "a number"),
        ("idle_seconds", False, "a number"),
        ("bind", 1, "true or false"),
    ],
)
def test_wrong_fields_are_refused(field: str, wrong: object, wanted: str) -> None:
    with pytest.raises(ProtocolError, match=wanted):
        Fields({"nodes": [], field: wrong}).record(Layout)


def test_a_record_without_a_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="'nodes'"):
        Fields({}).record(Layout)


@given(record=records, changes=st.dictionaries(st.sampled_from(sorted(json.loads(encode(SAMPLE)))), st.none() | texts))
def test_damaged_records_are_protocol_errors(record: JobRecord, changes: dict[str, str | None]) -> None:
    values = {**json.loads(encode(record)), **changes}
    try:
        Fields(values).record(JobRecord)
    except ProtocolError:
        assert changes


@pytest.mark.parametrize(
    ("kind", "arrives_as"),
    [
        (LrmRejectedError, LrmRejectedError),
        (LrmNotFoundError, LrmNotFoundError),
        (LrmUnavailableError, LrmUnavailableError),
        (LrmUnsupportedError, LrmUnavailableError),
    ],
)
def test_errors_cross_the_socket(kind: type[LrmError], arrives_as: type[LrmError]) -> None:
    answer = decode(encode(failure(kind("what", hint="way out"))))
    with pytest.raises(arrives_as) as caught:
        raise_failure(answer)
    assert type(caught.value) is arrives_as
    assert (caught.value.message, caught.value.hint) == ("what", "way out")


# -- records ------------------------------------------------------------------------------------------------------


def test_what_a_record_shows() -> None:
    """A job that waits has no node, although one may be chosen for it, and no end of its walltime."""
    pinned = replace(SAMPLE, node="n1")
    assert (pinned.to_lrm_job().nodes, pinned.ends_at) == ((), None)
    running = replace(pinned, state=LrmJobState.RUNNING, started_at=2000.0)
    assert (running.to_lrm_job().nodes, running.ends_at) == (("n1",), 2060.0)
    assert replace(running, ended_at=2001.0).ends_at == 2001.0


class Appointments(asyncio.SelectorEventLoop):
    """A loop that is asked for timers only."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []

    def call_later(self, delay: float, *_: object, **__: object) -> asyncio.TimerHandle:
        """Note for when a timer is set."""
        self.delays.append(delay)
        return super().call_later(3600, int)


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_a_walltime_is_not_moved_by_the_time_of_day(tmp_path: Path, step: float) -> None:
    """A daemon that finds a job that has run for ten seconds gives it the rest, whatever was done to the clock."""
    loop = Appointments()
    supervisor = Supervisor(tmp_path, loop, ended=lambda *_: None, overdue=lambda _: None)
    started = replace(SAMPLE, state=LrmJobState.RUNNING, pid=os.getpid(), started_at=time.time() - 10 + step)
    try:
        assert supervisor.follow(replace(started, started_since_boot=since_boot() - 10))
        assert loop.delays == [pytest.approx(50, abs=2)]
    finally:
        supervisor.close()
        loop.close()


# -- slots --------------------------------------------------------------------------------------------------------


slots_of_jobs = st.builds(
    partial(replace, SAMPLE),
    threads=st.integers(1, 4),
    memory_mib=st.sampled_from([0, 100, 1000]),
    gpus=st.integers(0, 2),
    exclusive=st.booleans(),
)
rich_nodes = st.lists(
    st.builds(
        NodeSlots,
        name=st.sampled_from(["a", "b", "c"]),
        processors=st.integers(1, 6),
        memory_mib=st.sampled_from([None, 500, 2000]),
        gpus=st.integers(0, 3),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda node: node.name,
)


@given(nodes=layouts, jobs=queues_of_jobs)
def test_nodes_are_never_overfilled(nodes: list[NodeSlots], jobs: list[JobRecord]) -> None:
    starts = next_starts(nodes, jobs)
    asked = {job.id: job for job in jobs}
    assert all(job.state is LrmJobState.QUEUED for job in starts)
    assert len({job.id for job in starts}) == len(starts)
    before = rooms(nodes, jobs)
    for node in nodes:
        new = sum(job.node == node.name for job in starts)
        assert new <= max(0, before[node.name].processors)
    assert {job.node for job in starts} <= {node.name for node in nodes}
    assert all(asked[job.id].node in {"", job.node} for job in starts)


@given(nodes=layouts, jobs=queues_of_jobs)
def test_first_come_first_served(nodes: list[NodeSlots], jobs: list[JobRecord]) -> None:
    starts = next_starts(nodes, jobs)
    free_choice = [job.id for job in jobs if job.state is LrmJobState.QUEUED and not job.node]
    started = [job.id for job in starts if job.id in free_choice]
    assert started == free_choice[: len(started)]
    if len(started) < len(free_choice):
        left = rooms(nodes, [*jobs, *(replace(job, state=LrmJobState.RUNNING) for job in starts)])
        assert all(room.processors <= 0 for room in left.values())


@given(nodes=rich_nodes, asked=st.lists(slots_of_jobs, max_size=12))
def test_slots_share_nothing(nodes: list[NodeSlots], asked: list[JobRecord]) -> None:
    """What runs together fits together; who waits waits for room, and the first of those for whom there may be some."""
    jobs = [replace(job, index=index) for index, job in enumerate(asked, start=1)]
    starts = next_starts(nodes, jobs)
    for node in nodes:
        here = [job for job in starts if job.node == node.name]
        assert sum(job.processors for job in here) <= node.processors
        assert node.memory_mib is None or sum(job.memory_mib for job in here) <= node.memory_mib
        devices = [device for job in here for device in job.devices]
        assert len(devices) == len(set(devices)) == sum(job.gpus for job in here) <= node.gpus
        assert len(here) == 1 or not any(job.exclusive for job in here)
    devices = [device for job in starts for device in job.devices]
    assert len(devices) == len(set(devices))
    possible = [job.id for job in jobs if fits_ever(nodes, job)]
    assert [job.id for job in starts] == possible[: len(starts)]
    left = rooms(nodes, [replace(job, state=LrmJobState.RUNNING) for job in starts])
    waiting = [job for job in jobs if job.id in possible[len(starts) :]]
    assert not waiting or not any(room.takes(waiting[0]) for room in left.values())


def test_jobs_spread_over_nodes() -> None:
    nodes = [NodeSlots(name="a", processors=1), NodeSlots(name="b", processors=3)]
    jobs = [replace(SAMPLE, index=index) for index in range(1, 5)]
    assert [job.node for job in next_starts(nodes, jobs)] == ["b", "b", "a", "b"]


def test_occupying_states_are_counted() -> None:
    jobs = [replace(SAMPLE, state=state, node="n1", threads=2) for state in LrmJobState]
    (room,) = rooms([NodeSlots(name="n1", processors=20)], jobs).values()
    assert room.processors == 20 - 2 * len(OCCUPYING)


def test_jobs_are_bound_to_processors_that_no_other_has() -> None:
    bound = [replace(SAMPLE, state=LrmJobState.RUNNING, bound_to=(0, 2)), replace(SAMPLE, bound_to=(1,))]
    assert free_processors(bound, {0, 1, 2, 3}) == [1, 3]


def test_a_process_is_kept_to_its_slot(tmp_path: Path) -> None:
    """Processors, memory and GPUs of a job are those of its process, and of all that it will start."""
    here = min(os.sched_getaffinity(0))
    job = replace(SAMPLE, bound_to=(here,), memory_mib=100, gpus=2, devices=(1, 3), output_directory="")
    environment = job_environment(tmp_path, job, gpus=True)
    gated = start_gated(job, script=tmp_path / "none.sh", environment=environment)
    try:
        assert environment["CUDA_VISIBLE_DEVICES"] == "1,3"
        assert os.sched_getaffinity(gated.pid) == {here}
        assert resource.prlimit(gated.pid, resource.RLIMIT_DATA)[0] == 100 * 1024 * 1024
        assert job_environment(tmp_path, SAMPLE, gpus=True)["CUDA_VISIBLE_DEVICES"] == ""
        assert "CUDA_VISIBLE_DEVICES" not in job_environment(tmp_path, SAMPLE)
    finally:
        os.close(gated.gate)
        os.waitpid(gated.pid, 0)


# -- The plugin ``local`` at a site: its daemon is sent there, and outlives the connection.

SSH = '#!/bin/sh\nwhile [ "$#" -gt 1 ]; do shift; done\nexec sh -c "$1"\n'
"""Stands for ssh: the site is this host."""


@pytest.fixture
async def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RemoteSiteConfig]:
    """Return a site; daemons that are left there are ended."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin")
    yield RemoteSiteConfig(name="far", ssh="far", directory=str(tmp_path / "there"))
    for cluster in (tmp_path / "there" / "local").iterdir():
        await end_daemon(cluster)


def new_lrm(directory: Path, host: LrmHost) -> LocalLrm:
    return LocalLrm(new_context(directory, host=host), LocalSettings(processors=2))


async def test_jobs_go_on_without_a_connection(there: RemoteSiteConfig, tmp_path: Path) -> None:
    """They are found again by the next connection, with the way in which they ended."""
    go, done = tmp_path / "go", tmp_path / "done"
    script = f"#!/bin/sh\nuntil [ -e {go} ]; do sleep 0.05; done\ntouch {done}\n"
    async with SiteHosts([there], tmp_path) as hosts:
        lrm = new_lrm(tmp_path, hosts.at("far"))
        await lrm.start()
        assert sum(node.processors for node in await lrm.nodes()) == 2
        submitted = await lrm.submit(Submission(key=BatchKey("kk-1"), count=1, script=script, walltime=60))
    go.touch()
    async with SiteHosts([there], tmp_path) as hosts:
        lrm = new_lrm(tmp_path, hosts.at("far"))
        await eventually(
            lrm.jobs,
            lambda jobs: [(job.id, job.state) for job in jobs] == [(submitted[0], LrmJobState.ENDED)],
            what="it is over",
            seconds=30,
        )
        assert {job.user for job in await lrm.jobs()} == {hosts.at("far").user}
        assert [one.found for one in await lrm.check() if not one.ok] == []
    assert done.exists()


async def test_how_many_processors_of_a_login_node_is_to_be_said(there: RemoteSiteConfig, tmp_path: Path) -> None:
    (tmp_path / "there" / "local").mkdir(parents=True)
    async with SiteHosts([there], tmp_path) as hosts:
        with pytest.raises(ConfigurationError, match="not all for jobs"):
            koala_local.PLUGIN.factory(new_context(tmp_path, host=hosts.at("far")), LocalSettings())
        await anyio.lowlevel.checkpoint()
