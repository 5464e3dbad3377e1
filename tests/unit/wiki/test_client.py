# SPDX-License-Identifier: Apache-2.0
"""The WIKI client, jobs that are offered to it, and a source that is slow."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from hypothesis import example, given
from hypothesis import strategies as st

from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import (
    ConfigurationError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnreachableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm.commands import LocalHost
from koala_adapter.lrm.startlog import OriginalRequest, Pin, StartLog
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeState
from koala_adapter.testing import new_context
from koala_adapter.testing.trial import begin_start
from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.frames import FrameReader, Key, open_request, read_key, seal
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord, build_job, build_node, join_records
from koala_adapter.wiki.codec.verbs import GetJobs, GetNodes, build_answer
from koala_adapter.wiki.codec.words import Dialect
from koala_adapter.wiki.reporting import Host, Offer, ReportingRules, hosts_of_tasks, job_record, lacks, offer, tasks_of
from koala_adapter.wiki.server import serve
from koala_local import PLUGIN as LOCAL_PLUGIN
from koala_wiki import PLUGIN
from koala_wiki.lrm import WikiLrm, WikiSettings
from tests.real.mauistandin import Room, place
from tests.sqlite_watch import closed_later
from tests.unit.wiki.wiki_source import NOW, Server, SlowSource, job

# -- One exchange with a WIKI resource manager: however it goes wrong, it is one of the errors of the contract.


KEY = read_key("42")


@asynccontextmanager
async def serving(answer: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    """Answer each connection to a free port in this way."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:

        async def one(stream: SocketStream) -> None:
            async with stream:
                await answer(stream)

        tasks.start_soon(listener.serve, one)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


def peer(port: int, *, key: Key | None = KEY, dialect: Dialect = Dialect.WIKI2, timeout: float = 20.0) -> Peer:
    """Return what listens at a port of this machine."""
    return Peer(host="127.0.0.1", port=port, key=key, dialect=dialect, user="ada", timeout=timeout)


async def read_request(stream: SocketStream, *, key: Key | None = KEY) -> bytes:
    """Return the message of the request that comes in."""
    reader = FrameReader()
    while True:
        payload = reader.feed(await stream.receive())
        if payload is not None:
            return open_request(payload, key=key, now=time.time())


def sealed(message: bytes, *, key: Key | None = KEY, ahead: int = 0) -> bytes:
    """Return the frame of a message; ``ahead``: seconds by which the clock is wrong."""
    return seal(message, key=key, timestamp=int(time.time()) + ahead, user="slurm")


def with_nul(frame: bytes) -> bytes:
    """Return a frame as Slurm sends it, with a NUL that counts and is not signed."""
    return b"%08d\n%b\0" % (len(frame) - 8, frame[9:])


@pytest.mark.parametrize("key", [KEY, None], ids=["signed", "unsigned"])
async def test_a_reply_in_small_pieces_is_read(key: Key | None) -> None:
    """Byte by byte, with Slurm's NUL at the end, signed or not."""
    seen = []

    async def answer(stream: SocketStream) -> None:
        seen.append(await read_request(stream, key=key))
        frame = with_nul(sealed(b"SC=0 ARG=0#", key=key))
        for index in range(len(frame)):
            await stream.send(frame[index : index + 1])

    async with serving(answer) as port:
        reply = await exchange(peer(port, key=key), GetNodes())
    assert seen == [b"CMD=GETNODES ARG=0:ALL"]
    assert (reply.status, reply.argument) == (0, "0#")


class Elsewhere(LocalHost):
    """This host, as if it were the login node of a site."""

    here = False


async def test_a_request_is_made_from_another_site() -> None:
    """A program there connects to the peer; what it cannot connect to is told from what does not answer."""
    seen = []

    async def answer(stream: SocketStream) -> None:
        seen.append(await read_request(stream))
        frame = with_nul(sealed(b"SC=0 ARG=0#"))
        await stream.send(frame[:5])
        await stream.send(frame[5:])

    async def silence(stream: SocketStream) -> None:
        await read_request(stream)

    async with serving(answer) as port:
        reply = await exchange(peer(port), GetNodes(), Elsewhere())
    assert seen == [b"CMD=GETNODES ARG=0:ALL"]
    assert (reply.status, reply.argument) == (0, "0#")
    with pytest.raises(LrmUnreachableError, match="the site cannot connect to"):
        await exchange(peer(port), GetNodes(), Elsewhere())
    async with serving(silence) as port:
        with pytest.raises(LrmUnavailableError, match="gave no answer to"):
            await exchange(peer(port), GetNodes(), Elsewhere())


async def test_nobody_listens() -> None:
    """A refused connection means that nothing was done."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        with pytest.raises(LrmUnreachableError, match=rf"127\.0\.0\.1:{port}: Connection refused"):
            await exchange(peer(port), GetNodes())


BAD_REPLIES = {
    "nothing": b"",
    "half a header": b"0000",
    "half a body": sealed(b"SC=0 ARG=0#")[:-3],
    "no frame": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "too large": b"99999999\n",
    "not signed": sealed(b"SC=0 ARG=0#", key=None),
    "another key": sealed(b"SC=0 ARG=0#", key=read_key("43")),
    "another hour": sealed(b"SC=0 ARG=0#", ahead=8000),
    "no status": sealed(b"ARG=0#"),
}


@pytest.mark.parametrize("name", sorted(BAD_REPLIES))
async def test_what_cannot_be_believed_is_no_answer(name: str) -> None:
    """The request may have been carried out, so that is unavailable, not refused; and it is soon."""

    async def answer(stream: SocketStream) -> None:
        await read_request(stream)
        if BAD_REPLIES[name]:
            await stream.send(BAD_REPLIES[name])

    async with serving(answer) as port:
        with anyio.fail_after(60), pytest.raises(LrmUnavailableError) as caught:
            await exchange(peer(port), GetJobs())
    assert not isinstance(caught.value, LrmUnreachableError)


# -- the plugin on a scripted resource manager --------------------------------------------------------------------


@asynccontextmanager
async def plugin(
    tmp_path: Path, replies: Callable[[bytes], bytes], dialect: Dialect = Dialect.WIKI2
) -> AsyncIterator[tuple[WikiLrm, list[bytes]]]:
    """Give the plugin whose resource manager answers so, and the messages that it gets."""
    seen: list[bytes] = []

    async def answer(stream: SocketStream) -> None:
        seen.append(await read_request(stream))
        await stream.send(with_nul(sealed(replies(seen[-1]))))

    key_file = tmp_path / "key"
    key_file.touch(mode=0o600)
    key_file.write_text("42\n")
    async with serving(answer) as port:
        settings = WikiSettings(port=port, dialect=dialect, key_file=key_file)
        lrm = PLUGIN.factory(new_context(tmp_path), settings)
        assert isinstance(lrm, WikiLrm)
        await lrm.start()
        yield lrm, seen


def two_processors_a_task(message: bytes) -> bytes:
    """Answer as a resource manager with one job of three tasks of two processors."""
    if message.startswith(b"CMD=GETJOBS"):
        record = JobRecord(id="7", state="Idle", user="ada", tasks=3, processors_per_task=2)
        return join_records([build_job(record, Dialect.WIKI)])
    if message.startswith(b"CMD=GETNODES"):
        record_ = NodeRecord(name="n4", state="Idle", processors=4)
        return join_records([build_node(record_, Dialect.WIKI)])
    return build_answer(0, "done")


async def test_a_start_names_one_host_for_each_task(tmp_path: Path) -> None:
    """Six processors are three tasks of two; what does not fill tasks is not sent."""
    async with plugin(tmp_path, two_processors_a_task, Dialect.WIKI) as (lrm, seen):
        await begin_start(lrm, LrmJobId("7"), ["n4"] * 4 + ["n2"] * 2)
        assert seen == [b"CMD=GETJOBS ARG=0:7", b"CMD=STARTJOB ARG=7 TASKLIST=n4:n4:n2"]
        with pytest.raises(LrmRejectedError, match="tasks of 2 processors"):
            await begin_start(lrm, LrmJobId("7"), ["n4"] * 3)
        with pytest.raises(LrmNotFoundError):
            await begin_start(lrm, LrmJobId("8"), ["n4"] * 2)
    assert not any(b"ARG=8 TASKLIST" in message for message in seen)


async def test_nodes_are_always_asked_for_all_together(tmp_path: Path) -> None:
    """A GETNODES with a name could hang a slurmctld with sched/wiki for ever."""
    async with plugin(tmp_path, two_processors_a_task, Dialect.WIKI) as (lrm, seen):
        (node,) = await lrm.nodes()
        await lrm.queues()
        await lrm.check()
    assert node.processors_idle == 4
    assert {message for message in seen if b"GETNODES" in message} == {b"CMD=GETNODES ARG=0:ALL"}


async def test_walltimes_go_out_in_minutes(tmp_path: Path) -> None:
    """Rounded up, and never 0, which Slurm ignores."""
    async with plugin(tmp_path, lambda _: build_answer(0, "ok")) as (lrm, seen):
        await lrm.modify(LrmJobId("7"), walltime=61)
        await lrm.modify(LrmJobId("7"), walltime=1)
    assert seen == [b"CMD=MODIFYJOB ARG=7 TIMELIMIT=2", b"CMD=MODIFYJOB ARG=7 TIMELIMIT=1"]


async def test_cancelling_goes_on_after_a_refusal(tmp_path: Path) -> None:
    """All jobs are tried; gone ones are no error, a refusal is raised at the end."""
    words = {b"1": "No such job", b"2": "Access denied", b"3": "Job/step already completing or completed"}

    def refuse(message: bytes) -> bytes:
        return build_answer(-700, words[message.split(b"ARG=")[1][:1]])

    async with plugin(tmp_path, refuse) as (lrm, seen):
        with pytest.raises(LrmRejectedError, match="Access denied"):
            await lrm.cancel([LrmJobId("1"), LrmJobId("2"), LrmJobId("3")])
    assert len(seen) == 3


async def test_the_dialect_of_maui_can_do_less(tmp_path: Path) -> None:
    """What only WIKI2 has is stated as not possible, and is not tried."""
    async with plugin(tmp_path, lambda _: build_answer(0, "ok"), Dialect.WIKI) as (lrm, seen):
        assert not lrm.capabilities.requeue
        with pytest.raises(LrmUnsupportedError):
            await lrm.requeue([LrmJobId("1")])
        with pytest.raises(LrmUnsupportedError):
            await lrm.signal([LrmJobId("1")], 10)
        with pytest.raises(LrmUnsupportedError):
            await lrm.notify(LrmJobId("1"), "hello")
    assert seen == []


async def test_a_key_that_others_could_read_is_refused(tmp_path: Path) -> None:
    """The plugin does not start, and its check says what to do."""
    key_file = tmp_path / "key"
    key_file.write_text("42\n")
    key_file.chmod(0o644)
    lrm = PLUGIN.factory(new_context(tmp_path), WikiSettings(key_file=key_file, port=1))
    with pytest.raises(LrmRejectedError, match="0644"):
        await lrm.start()
    results = await lrm.check()
    assert [result.ok for result in results] == [False, False]
    assert all(result.remedy for result in results)


# -- the site file ------------------------------------------------------------------------------------------------

SITE = """
[[clusters]]
name = "here"
plugin = "local"

[[clusters]]
name = "old"
plugin = "wiki"
"""
PLUGINS = {"local": LOCAL_PLUGIN, "wiki": PLUGIN}


def test_a_cluster_without_submission_takes_no_placeholders() -> None:
    """A site file that would place jobs there is refused, with file, key and the way out."""
    with pytest.raises(ConfigurationError, match="enabled = false") as caught:
        load_site_text(SITE, PLUGINS, source="site.toml")
    assert "site.toml" in str(caught.value)
    assert "clusters[1].enabled" in str(caught.value)
    site = load_site_text(f"{SITE}enabled = false\n", PLUGINS, source="site.toml")
    assert [cluster.name for cluster in site.enabled_clusters] == ["here"]


def test_a_site_may_be_scheduled_from_outside_alone() -> None:
    """All clusters may be disabled when one is there for an outside scheduler; otherwise one must be enabled."""
    outside = '[[clusters]]\nname = "old"\nplugin = "wiki"\nenabled = false\n'
    assert load_site_text(outside, PLUGINS, source="site.toml").enabled_clusters == ()
    with pytest.raises(ConfigurationError, match="at least one enabled"):
        load_site_text(outside.replace('"wiki"', '"local"'), PLUGINS, source="site.toml")


# -- What is told of where a job may run: a peer that follows it places the job as its user allows.


FEATURES = {"n1": ("fast",), "n2": ("fast", "gpu"), "n3": ("slow",), "n4": ()}


def host(name: str, processors: int = 8, memory: int = 4000) -> Host:
    """Return a node."""
    node = Node(
        name=name,
        state=NodeState.UP,
        processors=processors,
        processors_used=0,
        memory_mib=memory,
        disk_mib=1000,
        queues=("main",),
        features=FEATURES.get(name, ()),
    )
    return Host.of(name, node)


HOSTS = tuple(host(name) for name in FEATURES)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"processors": 2, "requested_nodes": ("n3",)},
            Offer(tasks=2, nodes=1, tasks_per_node=2, host_list=("n3",) * 2),
        ),
        ({"processors": 5, "nodes_wanted": 1}, Offer(tasks=5, nodes=1, tasks_per_node=5)),
        ({"processors": 8, "tasks_per_node": 2}, Offer(tasks=8, nodes=4, tasks_per_node=2)),
        ({"processors": 2, "excluded_nodes": ("n1", "n2")}, Offer(tasks=2, host_list=("n3", "n3", "n4", "n4"))),
        ({"processors": 1, "any_feature": ("fast", "slow")}, Offer(tasks=1, host_list=("n1", "n2", "n3"))),
        ({"processors": 3, "nodes_least": 2, "nodes_most": 3}, Offer(tasks=4, nodes=2, tasks_per_node=2)),
        ({"processors": 5, "nodes_wanted": 2}, Offer(tasks=6, nodes=2, tasks_per_node=3)),
        ({"processors": 6}, Offer(tasks=6)),
        ({"processors": 1, "exclusive": True}, Offer(tasks=8, nodes=1, tasks_per_node=8)),
        ({"processors": 9, "exclusive": True}, Offer(tasks=16, nodes=2, tasks_per_node=8)),
        (
            {"processors": 2, "disk_per_node_mib": 500},
            Offer(tasks=2, host_list=("n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4")),
        ),
    ],
)
def test_each_request_has_its_record(change: dict[str, object], expected: Offer) -> None:
    """The shapes that a real Maui could not start, as they are to be told."""
    assert offer(replace(job("5"), **change), HOSTS) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requested_nodes": ("n9",)}, "it must run on n9, which is not there"),
        ({"requested_nodes": ("n3",), "features": ("fast",)}, "n3, which has not the features fast"),
        ({"processors": 33}, "can take 32 of them"),
        ({"processors": 9, "nodes_wanted": 1}, "9 tasks on one node"),
        ({"disk_per_node_mib": 2000}, "can take 0 of them"),
        ({"memory_per_node_mib": 5000}, "can take 0 of them"),
        ({"processors": 40, "exclusive": True}, "for itself"),
    ],
)
def test_what_never_starts_is_told(change: dict[str, object], words: str) -> None:
    """Nobody is offered what no node can take."""
    assert words in offer(replace(job("5"), **change), HOSTS).obstacle  # type: ignore[arg-type]


def test_one_node_where_the_batch_system_divides_jobs() -> None:
    """A parallel job of Grid Engine is never split; one that no node can take is not offered."""
    assert offer(job("5", 5), HOSTS, one_node=True) == Offer(tasks=5, nodes=1, tasks_per_node=5)
    assert offer(job("5", 12), HOSTS, one_node=True).obstacle


HOST_SETS = st.lists(
    st.builds(host, st.sampled_from(["n1", "n2", "n3", "n4", "n5"]), st.integers(1, 9), st.sampled_from([1000, 4000])),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one.name,
)
NAMES = st.sampled_from(["n1", "n2", "n3", "n4"])


@st.composite
def requests(draw: st.DrawFn) -> LrmJob:
    """Return a job with any of the options that restrict where it may run."""
    least = draw(st.integers(1, 3))
    most = draw(st.none() | st.integers(least, 4))
    tasks, each = max(draw(st.integers(1, 12)), least), draw(st.sampled_from([1, 1, 2]))
    return replace(
        job("5", tasks * each),
        processors_per_task=each,
        nodes_least=least,
        nodes_most=most,
        tasks_per_node=draw(st.none() | st.integers(1, 4)),
        features=tuple(draw(st.sets(st.sampled_from(["fast", "gpu"]), max_size=1))),
        any_feature=draw(st.sampled_from([(), (), ("fast", "slow")])),
        excluded_nodes=tuple(draw(st.sets(NAMES, max_size=1))),
        requested_nodes=tuple(sorted(draw(st.sets(NAMES, max_size=2)))) if draw(st.booleans()) else (),
        memory_per_processor_mib=draw(st.sampled_from([None, None, 100, 900])),
        exclusive=draw(st.sampled_from([False, False, False, True])),
    )


@given(wanted=requests(), hosts=HOST_SETS, one_node=st.booleans())
@example(
    wanted=replace(job("5"), exclusive=True, memory_per_processor_mib=900),
    hosts=[host("n1", 2, 1000)],
    one_node=False,
)
def test_what_is_offered_can_be_placed_and_is_what_the_user_asked_for(
    wanted: LrmJob, hosts: list[Host], *, one_node: bool
) -> None:
    """A peer that follows the record places it on empty nodes, and the job's own share obeys every bound."""
    told = offer(wanted, hosts, one_node=one_node)
    if told.obstacle:
        return
    words = ReportingRules(dialect=Dialect.WIKI, one_node=one_node)
    assert wanted.state is LrmJobState.HELD
    record = job_record(wanted, hosts=hosts, tasks=(), words=words, changed_at=0)
    assert record.state == "Idle"
    rooms = {
        one.wire: Room(
            NodeRecord(name=one.wire, features=tuple(one.features), memory=one.memory_mib, disk=one.disk_mib),
            one.processors,
            one.memory_mib or 0,
        )
        for one in hosts
    }
    tasks = place(record, rooms)
    assert len(tasks) == told.tasks, (record, rooms)
    own = Counter(hosts_of_tasks(wanted, tasks))
    least, most = wanted.node_bounds
    known = {one.wire: one for one in hosts}
    assert own.total() == tasks_of(wanted)
    assert least <= len(own) <= (most or len(own))
    assert not one_node or len(own) == 1
    assert set(wanted.requested_nodes) <= set(own)
    assert max(own.values()) <= (wanted.tasks_per_node or own.total())
    for name, count in own.items():
        assert not lacks(wanted, known[name])
        assert count * wanted.processors_per_task <= known[name].processors
        memory = count * wanted.processors_per_task * (wanted.memory_per_processor_mib or 0)
        assert memory <= (known[name].memory_mib or memory)


# -- A batch system that lists its jobs more slowly than a scheduler waits: it is served all the same.


LONG = 1e9
"""Seconds that no test lasts."""
LITTLE = 0.05
"""Seconds for which a request waits for a listing that does not come."""


def slow_server(path: Path, *, oldest: float = LONG, reply_within: float = LONG) -> Server:
    """Return a server whose source has one job that waits, and is silent until it is told to answer."""
    source = SlowSource()
    source.add(job("5", 2))
    server = Server(path, source, cache=LONG, reply_within=reply_within, oldest=oldest, port=0)
    server.resource.readings.patience = LITTLE
    return server


def source_of(server: Server) -> SlowSource:
    assert isinstance(server.source, SlowSource)
    return server.source


async def has_answered(server: Server) -> None:
    """Have the source answer, and return when the reading under way is over."""
    source_of(server).answers.set()
    with anyio.fail_after(60):
        await server.resource.readings.fresh()


@asynccontextmanager
async def awaiting(path: Path, *, oldest: float = LONG) -> AsyncIterator[Server]:
    """Run a slow server that has read one listing, and waits for the next."""
    async with slow_server(path, oldest=oldest).running() as server:
        await has_answered(server)
        source_of(server).answer_later()
        server.resource.readings.invalidate()
        yield server


async def test_the_first_listing_comes_although_nobody_waits_for_it_long_enough(tmp_path: Path) -> None:
    """Polls are refused meanwhile, and share that one listing."""
    async with slow_server(tmp_path).running() as server:
        for _ in range(3):
            await server.expect("GETJOBS ARG=0:ALL", -700, "alpha did not answer in time")
        await has_answered(server)
        assert await server.states() == {"5": "Idle"}
        assert server.source.reads == 1


async def test_polls_and_starts_go_by_the_last_listing_while_the_next_is_slow(tmp_path: Path) -> None:
    """One listing is asked for meanwhile; when it comes it counts."""
    async with awaiting(tmp_path) as server:
        for _ in range(3):
            assert await server.states() == {"5": "Idle"}
        await server.start("5", "n1", "n1")
        assert server.source.calls == [("start", "5 n1:n1")]
        assert await server.states() == {"5": "Starting"}
        assert server.source.reads == 2
        server.source.add(job("6", 2))
        source_of(server).answers.set()
        await server.resource.readings.fresh(now=True)
        assert await server.states() == {"5": "Running", "6": "Idle"}


async def test_a_source_is_waited_for_once_while_it_is_slow(tmp_path: Path) -> None:
    """What is asked afterwards is answered at once, as long as the same listing is awaited."""
    async with awaiting(tmp_path) as server:
        assert await server.states() == {"5": "Idle"}
        server.resource.readings.patience = LONG
        with anyio.fail_after(60):
            assert await server.states() == {"5": "Idle"}


async def test_what_is_too_old_is_not_told(tmp_path: Path) -> None:
    """The bound is that of the options."""
    async with awaiting(tmp_path, oldest=0.0) as server:
        await server.expect("GETNODES ARG=0:ALL", -700, "alpha did not answer in time")


async def test_a_promise_is_kept_until_a_listing_that_could_show_it(tmp_path: Path) -> None:
    """One that was begun before the start, and comes when the promise has run out, says nothing of it."""
    async with awaiting(tmp_path) as server:
        assert await server.states() == {"5": "Idle"}
        await server.start("5", "n1", "n1")
        server.now += 1000.0
        reads = server.source.reads
        under_way = server.resource.readings.under_way
        assert under_way is not None
        source_of(server).answers.set()
        await under_way.over.wait()
        assert server.source.reads == reads
        assert server.resource.inventory.jobs["5"].job.state == "starting"


async def test_interrupted_starts_are_set_right_when_it_answers(tmp_path: Path) -> None:
    """The server takes requests before that."""
    starts = closed_later(StartLog(tmp_path / "starts.sqlite"))
    wishes = OriginalRequest(processors=2)
    pin = Pin(job_id=LrmJobId("5"), submitted_at=NOW - 60, nodes=(("n1", 2),), wishes=wishes, at=NOW - 1)
    starts.store({pin.job_id: pin})
    starts.close()
    server = slow_server(tmp_path, reply_within=LITTLE)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            assert await tasks.start(partial(serve, server.resource)) > 0
        assert server.source.calls == []
        source_of(server).answers.set()
        await server.until(lambda: server.source.calls)
        assert server.source.calls == [("take back", "5")]
        tasks.cancel_scope.cancel()
