# SPDX-License-Identifier: Apache-2.0
"""Parts of the WIKI server: frames, listener, room for connections, fields."""

from __future__ import annotations

import logging
import random
import re
import stat
import string
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
import structlog
from anyio.abc import SocketAttribute, SocketStream
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koala_adapter.api.client import Client
from koala_adapter.errors import ConfigurationError, LrmUnavailableError, ServiceRunningError
from koala_adapter.model import ClusterName, EndReason, LrmJobState
from koala_adapter.report.selection import JobSelection
from koala_adapter.report.values import JobReport
from koala_adapter.wiki.client import Peer, exchange, load_key
from koala_adapter.wiki.codec.frames import FrameReader, checksum, is_signed, open_reply
from koala_adapter.wiki.codec.verbs import GetJobs, Initialize, build_event, parse_reply
from koala_adapter.wiki.codec.words import Dialect, Event, check_host
from koala_adapter.wiki.inventory import host_counts, next_task_list
from koala_adapter.wiki.multicluster import Multicluster
from koala_adapter.wiki.reporting import node_names, wire_name
from koala_adapter.wiki.server import networks, serve
from koala_adapter.wiki.serving import RunningJobsFile
from tests.examples import repeated
from tests.unit.wiki.wiki_source import KEY, NOW, MemorySource, Server, job, node, running

# -- A WIKI server and everything that is no proper request: the listed answer, or nothing; never harm.


FRAMES = repeated(4_000)
SEED = 7

SAMPLES = (
    "CMD=GETNODES ARG=0:ALL",
    "CMD=GETNODES ARG=1795000000:n1:n2",
    "CMD=GETJOBS ARG=0:5:7",
    "CMD=STARTJOB ARG=5 TASKLIST=n3:n3:n3:n4:n4:n4",
    "CMD=STARTJOB ARG=5 TASKLIST=n[1-2]*3",
    "CMD=CANCELJOB ARG=7 TYPE=ADMIN",
    "CMD=SUSPENDJOB ARG=7",
    "CMD=RESUMEJOB ARG=7",
    "CMD=MODIFYJOB ARG=5 TIMELIMIT=20 COMMENT='x'",
    "CMD=REQUEUEJOB ARG=7",
    "CMD=SIGNALJOB ARG=7 VALUE=USR1",
    "CMD=NOTIFYJOB ARG=7 MSG=hello",
    "CMD=INITIALIZE ARG=EPORT=0 USEHOSTEXP=N",
    "CMD=JOBWILLRUN ARG=5 NODES=n[1-4] STARTTIME=1795000000",
)

ALLOWED = frozenset({0, -1, -140, -300, -350, -422, -700, -720, -730, -810, *range(-910, -970, -1)})


@pytest.fixture(params=list(Dialect))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    """Return a server of each dialect with a job that waits and one that runs."""
    made = Server(tmp_path, dialect=request.param, cache=1e9)
    made.source.add(job("5", 6), running("7", {"n1": 4, "n2": 2}))
    return made


@pytest.mark.parametrize(
    ("message", "status", "words"),
    [
        ("", -300, "request lacks CMD"),
        ("ARG=0:ALL", -300, "request lacks CMD"),
        ("CMD=MAKETEA ARG=1", -300, "unsupported request type"),
        ("CMD=GETNODES", -300, "GETNODES lacks ARG"),
        ("CMD=GETNODES ARG=ALL", -300, "Invalid ARG value"),
        ("CMD=GETJOBS ARG=x:ALL", -300, "Invalid ARG value"),
        ("CMD=STARTJOB ARG=5", -300, "Invalid ARG value"),
        ("CMD=STARTJOB ARG=5 NODES=n1", -300, "STARTJOB lacks TASKLIST"),
        ("CMD=STARTJOB ARG=5 TASKLIST=n[1", -300, "STARTJOB TASKLIST is invalid"),
        ("CMD=CANCELJOB ARG=5 TYPE=LATER", -300, "Invalid TYPE value"),
        ("CMD=SUSPENDJOB ARG=", -300, "Invalid ARG value"),
        ("CMD=STARTJOB ARG=99 TASKLIST=n1", -700, "No such job"),
        ("CMD=STARTJOB ARG=5 TASKLIST=n9", -700, "Invalid TASKLIST"),
    ],
)
async def test_malformed_requests(server: Server, message: str, status: int, words: str) -> None:
    """Each malformed request gets the answer that Slurm gave."""
    frame = await server.frame(message)
    assert frame is not None
    reply = parse_reply(server.opened(frame))
    assert (reply.status, reply.text.startswith(words)) == (status, True), reply


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b"AUTH=root DT=CMD=GETNODES ARG=0:ALL", -300),
        (b"TS=%d DT=CMD=GETNODES ARG=0:ALL" % NOW, -300),
        (b"TS=%d AUTH=root CMD=GETNODES ARG=0:ALL" % NOW, -300),
        (b"TS=%d AUTH=root DT=CMD=GETNODES ARG=0:ALL" % (NOW - 301), -350),
        (b"TS=soon AUTH=root DT=CMD=GETNODES ARG=0:ALL", -350),
        (b"TS=%d AUTH=root DT=CMD=GETNODES ARG=0:ALL" % NOW, -422),
        (b"CK=0123456789abcdef TS=%d AUTH=root DT=CMD=GETNODES ARG=0:ALL" % NOW, -422),
        (b"CMD=GETNODES ARG=0:ALL", -300),
        (b"\xff\xfe\0\0", -300),
    ],
)
async def test_unsigned_requests(server: Server, payload: bytes, status: int) -> None:
    """A request that is not signed, wrongly signed or too old is refused, in both dialects; nothing is read for it.

    The refusal is not signed: the key could be computed from it.
    """
    frame = await server.resource.answer(payload, "127.0.0.1")
    assert frame is not None
    assert parse_reply(server.opened_unsigned(frame)).status == status
    assert server.source.reads == 0


def mutated(chance: random.Random) -> bytes:
    """Return a payload that was a request once, or never."""
    kind = chance.random()
    if kind < 0.15:
        return chance.randbytes(chance.randrange(200))
    text = bytearray(chance.choice(SAMPLES).encode())
    for _ in range(chance.randrange(5)):
        place = chance.randrange(len(text) + 1)
        match chance.randrange(4):
            case 0:
                text[place:place] = chance.choice(
                    (b"=", b":", b";", b"#", b"\0", b"\n", b"[", b"]", b"*", b",", b"@", b"9" * 30)
                )
            case 1:
                del text[place : place + chance.randrange(1, 8)]
            case 2:
                text[place : place + 1] = chance.randbytes(1)
            case 3:
                text[place:place] = "".join(chance.choices(string.printable, k=8)).encode()
    message = bytes(text)
    if kind < 0.3:
        return message
    signed = b"TS=%d AUTH=root DT=" % (NOW + chance.choice((0, 0, 0, -200, 400)))
    sum_ = checksum(KEY, signed, message.split(b"\0")[0]) if kind > 0.4 else b"0123456789abcdef"
    return b"CK=" + sum_ + b" " + signed + message


@pytest.fixture
def quiet() -> Iterator[None]:
    """Log nothing: a hundred thousand refusals are no news."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("quiet")
async def test_random_frames_do_no_harm(tmp_path: Path) -> None:
    """Thousands of random and mutated payloads: each gets an answer that Maui could read, or none."""
    chance = random.Random(SEED)
    server = Server(tmp_path, cache=1e9, reply_within=0.5, dialect=Dialect.WIKI2)
    statuses: dict[int, int] = {}
    for number in range(FRAMES):
        if number % 1000 == 0:
            # What was started, cancelled or suspended is put back.
            server.source.add(job("5", 6), running("7", {"n1": 4, "n2": 2}))
            server.resource.readings.invalidate()
        sent = mutated(chance)
        frame = await server.resource.answer(sent, "127.0.0.1")
        if frame is None:
            statuses[1] = statuses.get(1, 0) + 1
            continue
        assert re.fullmatch(rb"[0-9]{8}\n", frame[:9])
        payload = FrameReader().feed(frame)
        assert payload is not None
        signed = is_signed(sent, KEY)
        assert (b"CK=" in payload) == signed
        reply = parse_reply(open_reply(payload, key=KEY if signed else None, now=NOW))
        assert reply.status in ALLOWED, reply
        statuses[reply.status] = statuses.get(reply.status, 0) + 1
    assert {0, -300, -350, -422, -700, -810} <= statuses.keys(), statuses
    server.source.add(job("8", 6))
    server.resource.readings.invalidate()
    assert (await server.states())["8"] == "Idle"


async def test_a_reply_that_maui_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list too large for Maui is sent with shorter records."""
    monkeypatch.setattr("koala_adapter.wiki.resource.MAUI_LARGEST_SIZE", 20_000)
    server = Server(tmp_path)
    server.source.add(*(job(str(number), comment="x" * 900, working_directory="/home/ann") for number in range(30)))
    frame = await server.frame("CMD=GETJOBS ARG=0:ALL")
    assert frame is not None
    assert 10_000 < len(frame) <= 20_000 + 9
    assert parse_reply(server.opened(frame)).require().startswith("30#")


# -- The port of a WIKI server: who is heard, what a silent or careless peer costs the others, and the key.


LIVENESS = 60.0
"""Seconds after which nothing is waited for any more: no bound of the machine's speed."""


@asynccontextmanager
async def serving(tmp_path: Path, **options: object) -> AsyncIterator[tuple[Server, Peer]]:
    """Serve on a free port; give the server and how a client reaches it."""
    server = Server(tmp_path, None, **{"port": 0, "cache": 0.5, **options})  # type: ignore[arg-type]
    server.source.add(job("5", 6))
    server.resource._clock = time.time  # as the client does
    async with anyio.create_task_group() as tasks:
        port = await tasks.start(serve, server.resource)
        yield (
            server,
            Peer(host="127.0.0.1", port=port, key=KEY, dialect=server.options.dialect, user="maui", timeout=LIVENESS),
        )
        tasks.cancel_scope.cancel()


async def test_silent_peers_delay_nobody(tmp_path: Path) -> None:
    """Polls are answered while two hundred connections say nothing, or half of something, for longer than is waited."""
    async with serving(tmp_path, read_within=10 * LIVENESS) as (_, peer), AsyncExitStack() as silent:
        for number in range(200):
            stream = await silent.enter_async_context(await anyio.connect_tcp("127.0.0.1", peer.port))
            if number % 2:
                await stream.send(b"00000100\nCK=")
        for _ in range(5):
            assert (await exchange(peer, GetJobs())).status == 0


async def test_too_many_silent_peers(tmp_path: Path) -> None:
    """Beyond the bound the longest silent one is closed, and whoever has something to say is heard."""
    async with serving(tmp_path, connections=5, read_within=600) as (_, peer), AsyncExitStack() as silent:
        streams = [await silent.enter_async_context(await anyio.connect_tcp("127.0.0.1", peer.port)) for _ in range(7)]
        assert (await exchange(peer, GetJobs())).status == 0
        with anyio.fail_after(60), pytest.raises(anyio.EndOfStream):
            await streams[0].receive()


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b"00000100\nCK=", False),
        (b"GET / HTTP/1.0\r\n\r\n", True),
        (b"99999999\nx", True),
        (b"-0000001\nx", True),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", True),
        (b"00000010\nabc", True),
    ],
)
async def test_no_frame_no_answer(tmp_path: Path, data: bytes, ends: bool) -> None:  # noqa: FBT001 - a parameter
    """What is no frame, an incomplete one, or does not come in time, gets nothing but the end of the connection."""
    async with serving(tmp_path, read_within=10 * LIVENESS if ends else 0.2) as (_, peer):
        async with await anyio.connect_tcp("127.0.0.1", peer.port) as stream:
            await stream.send(data)
            if ends:
                await stream.send_eof()
            with anyio.fail_after(60), pytest.raises(anyio.EndOfStream):
                await stream.receive()
        if ends:  # a proper request, too, could come later than within 0.2 s
            assert (await exchange(peer, GetJobs())).status == 0


async def test_many_broken_frames(tmp_path: Path) -> None:
    """Random bytes on many connections do no harm."""
    chance = random.Random(5)
    async with serving(tmp_path, requests_per_minute=100_000) as (_, peer):

        async def disturb() -> None:
            for _ in range(repeated(20)):
                async with await anyio.connect_tcp("127.0.0.1", peer.port) as stream:
                    size = chance.randrange(60)
                    await stream.send(b"%08d\n" % chance.choice((size, size + 1, 0)) + chance.randbytes(size))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(disturb)
        assert (await exchange(peer, GetJobs())).status == 0


@pytest.mark.parametrize(("options", "answered"), [({"peers": ("10.1.0.0/16",)}, 0), ({"requests_per_minute": 5}, 5)])
async def test_who_is_not_heard(tmp_path: Path, options: dict[str, object], answered: int) -> None:
    """Nobody from an address that is not allowed, for whom nothing is read, nor who asks too often in a minute."""
    async with serving(tmp_path, **options) as (server, peer):
        for _ in range(answered):
            assert (await exchange(peer, GetJobs())).status == 0
        with pytest.raises(LrmUnavailableError):
            await exchange(peer, GetJobs())
        assert (server.source.reads > 0) == (answered > 0)


async def test_port_in_use(tmp_path: Path) -> None:
    """A second server on the same port says so."""
    async with serving(tmp_path) as (_, peer):
        second = Server(tmp_path / "second", port=peer.port)
        with pytest.raises(BaseExceptionGroup) as caught:
            await serve(second.resource)
        assert caught.group_contains(ServiceRunningError, match="cannot listen")


async def test_events(tmp_path: Path) -> None:
    """A Moab that asks for events is told of a start at once, and of a job that came in, but not too often."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        heard: list[bytes] = []

        async def hear(stream: SocketStream) -> None:
            async with stream:
                heard.append(await stream.receive())

        moab = serving(tmp_path, dialect=Dialect.WIKI2, event_interval=0.3, cache=0.1)
        async with moab as (server, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, hear)
            port = listener.extra(SocketAttribute.local_port)
            await exchange(peer, Initialize(event_port=port))
            with anyio.fail_after(60):
                while build_event(Event.JOBS) not in heard:
                    server.source.add(job(str(100 + len(server.source.job_list))))
                    await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        assert set(heard) <= {b"1234\0", b"1235\0"}


def test_a_peer_is_no_name() -> None:
    """A name of a peer is refused, because nothing is looked up."""
    with pytest.raises(ConfigurationError, match="no address"):
        networks(("127.0.0.1", "maui.example.org"))


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (None, 0o600, "cannot read"),
        ("1234567890\nmore\n", 0o640, "mode 0640"),
        ("1234567890\nmore\n", 0o600, ""),
        ("\n", 0o600, "no key"),
        ("secret\n", 0o600, "takes it for 0"),
        ("9" * 300, 0o600, "no key"),
        ("", 0o40700, "no ordinary file"),
    ],
)
def test_key_file(tmp_path: Path, text: str | None, mode: int, words: str) -> None:
    """The key comes from a private file of ours, or not at all."""
    path = tmp_path / "key"
    if stat.S_ISDIR(mode):
        path.mkdir()
    elif text is not None:
        path.write_text(text)
        path.chmod(mode)
    if not words:
        assert load_key(path) == KEY
        return
    with pytest.raises(ConfigurationError, match=words):
        load_key(path)


# -- Parts of a WIKI server that compute: task lists in which Maui notices every change, and names on the wire.


COUNTS = st.dictionaries(st.sampled_from(["n1", "n2", "n3", "n4"]), st.integers(1, 4), min_size=1)


def maui_notices(known: Sequence[str], reported: Sequence[str]) -> bool:
    """Tell whether Maui sees a difference: it compares entry by entry, up to the length of the new list."""
    return any(place >= len(known) or known[place] != host for place, host in enumerate(reported))


@given(COUNTS, st.lists(COUNTS, max_size=6))
def test_maui_notices_every_change_of_size(first: dict[str, int], later: list[dict[str, int]]) -> None:
    """However a job grows, shrinks and moves, Maui notices, but for a shrink within one host, which it never can."""
    reported = next_task_list((), first)
    for counts in later:
        before, reported = reported, next_task_list(reported, counts)
        assert host_counts(reported) == counts
        assert len(set(reported)) == len(host_counts(reported))
        if host_counts(before) == counts:
            assert reported == before
        elif len(counts) > 1 or set(counts) != {before[0]} or len(reported) > len(before):
            assert maui_notices(before, reported), (before, reported)


@given(st.lists(st.text(max_size=80), unique=True, max_size=12))
def test_names_on_the_wire(listed: list[str]) -> None:
    """Every node has a name that can be sent, no two have the same, and a name once given stays."""
    names = node_names(listed[: len(listed) // 2], {})
    more = node_names(listed, names)
    assert len(set(more.values())) == len(listed)
    assert names.items() <= more.items()
    for name in more.values():
        check_host(name)


def test_a_name_without_separators() -> None:
    """A queue instance loses its at sign."""
    assert wire_name("n2.q@localhost") == "n2.q_localhost"


class EmptyQueue(Client):
    """A service without jobs."""

    def jobs(self, limit: int = 50, selection: JobSelection | None = None) -> list[JobReport]:  # noqa: ARG002 - as its base
        return []


async def test_nodes_of_several_clusters(tmp_path: Path) -> None:
    """Equal names carry their cluster, as the partition does; the nodes of one that falls silent are as they were."""
    lrms = {name: MemorySource(node_list=[node("n1"), node(f"{name}1")]) for name in ("a", "b")}
    together = Multicluster([(ClusterName(name), lrm) for name, lrm in lrms.items()], EmptyQueue(tmp_path))
    await together.jobs()
    assert [one.name for one in await together.nodes()] == ["a.n1", "a1", "b.n1", "b1"]
    assert together.partitions == {"a.n1": "a", "a1": "a", "b.n1": "b", "b1": "b"}
    lrms["b"].failure = LrmUnavailableError("no answer")
    await together.jobs()
    assert len(await together.nodes()) == 4
    lrms["a"].failure = LrmUnavailableError("no answer")
    with pytest.raises(LrmUnavailableError, match="no cluster answers"):
        await together.jobs()


async def test_ends_are_told_after_a_restart(tmp_path: Path) -> None:
    """A job that ended while no server ran is reported over by the next one, and one that still runs as running."""
    memory = RunningJobsFile(tmp_path / "running.json")
    server = Server(tmp_path, memory=memory)
    server.source.add(running("7", {"n1": 2}), running("8", {"n2": 2}), job("5"))
    await server.states()
    later = Server(tmp_path, memory=memory)
    later.source.add(running("8", {"n2": 2}))
    assert await later.states() == {"7": "Completed", "8": "Running"}
    (tmp_path / "running.json").write_text("[[1]]")
    assert memory.load() == ()


async def test_the_end_of_a_job_that_nobody_saw_running_is_told(tmp_path: Path) -> None:
    """The server was killed after a start, and the job is over, and forgotten, before the next one looks."""
    memory = RunningJobsFile(tmp_path / "running.json")
    server = Server(tmp_path, memory=memory)
    server.source.add(job("5"), job("6"))
    await server.states()
    async with server.running():
        await server.expect("STARTJOB ARG=5 TASKLIST=n1", 0)
        left = memory.load()
    assert [one.id for one in left] == ["5"]
    memory.save(left)
    later = Server(tmp_path, memory=memory)
    later.source.add(job("6"))
    assert await later.states() == {"5": "Completed", "6": "Idle"}


async def test_an_end_that_nobody_was_told_is_told_after_two_restarts(tmp_path: Path) -> None:
    """A server that looked, and was killed before a peer asked, has told nobody."""
    memory = RunningJobsFile(tmp_path / "running.json")
    server = Server(tmp_path, memory=memory)
    # A queue instance has another name on the wire, and no listing has been read when the file is.
    server.source.add(running("7", {"n1.q@host": 2}), job("6"))
    await server.states()
    looked = Server(tmp_path, memory=memory)
    looked.source.add(job("6"))
    await looked.resource.readings.fresh(now=True)
    assert [one.id for one in memory.load()] == ["7"]
    later = Server(tmp_path, memory=memory)
    later.source.add(job("6"))
    assert await later.states() == {"6": "Idle", "7": "Completed"}
    assert (await later.states())["7"] == "Completed"
    later.source.add(running("8", {"n2": 2}))
    await later.states()
    assert [one.id for one in memory.load()] == ["8"]


async def test_a_job_that_nobody_knows_any_more_is_told_to_be_over(tmp_path: Path) -> None:
    """Maui never forgets a job whose end it is not told, and cancels it again and again."""
    server = Server(tmp_path)
    server.source.add(job("6"))
    assert await server.states() == {"6": "Idle"}
    reply = await server.ask("CANCELJOB ARG=99 TYPE=ADMIN")
    assert (reply.status, reply.text) == (-700, "No such job")
    assert await server.states() == {"6": "Idle", "99": "Removed"}
    moab = Server(tmp_path / "moab", dialect=Dialect.WIKI2)
    assert (await moab.ask("CANCELJOB ARG=99 TYPE=ADMIN")).status == -700
    assert await moab.states() == {}


async def test_a_defect_costs_one_request(tmp_path: Path) -> None:
    """When something fails that must not, the peer gets a failure, and the next request is served."""

    class Broken(MemorySource):
        async def cancel(self, job: object) -> None:
            raise ZeroDivisionError(job)

    server = Server(tmp_path, Broken())
    server.source.add(job("5"), running("7", {"n1": 1}))
    with capture_logs() as logs:
        await server.expect("CANCELJOB ARG=7 TYPE=ADMIN", -1)
    assert [one["log_level"] for one in logs] == ["error"]
    assert (await server.states())["7"] == "Running"


# -- A WIKI server's account of what is free while several starts are under way, and of what Maui has room for.


async def test_a_start_is_not_counted_twice(tmp_path: Path) -> None:
    """Starts that together fill a node all succeed, however much the server reads while they are under way."""
    server = Server(tmp_path, reply_within=60.0, start_within=600.0)
    server.source.add(*(job(str(number), 2) for number in range(1, 5)))
    server.source.slow = 0.02
    statuses: list[int] = []

    async def start(id_: int) -> None:
        await anyio.sleep(0.015 * id_)
        statuses.append((await server.ask(f"STARTJOB ARG={id_} TASKLIST=n3:n3")).status)

    async with server.running(), anyio.create_task_group() as tasks:
        for number in range(1, 5):
            tasks.start_soon(start, number)
    assert statuses == [0, 0, 0, 0]
    assert (await server.ask("STARTJOB ARG=1 TASKLIST=n3")).status < 0


async def test_more_jobs_than_maui_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has ended and what runs is reported, then the oldest that wait; that others are left out is logged once."""
    monkeypatch.setattr("koala_adapter.wiki.resource.MAUI_MOST_JOBS", 40)
    server = Server(tmp_path)
    waiting = [job(str(number), submitted_at=NOW - number) for number in range(1, 51)]
    server.source.add(*waiting, *(running(f"r{number}", {"n1": 1}) for number in range(3)))
    with capture_logs() as logs:
        found = await server.records("GETJOBS ARG=0:ALL")
        assert len(found) == 40
        del server.source.job_list["r0"]
        server.source.add(job("new", submitted_at=NOW))
        server.now += 5
        found = await server.records("GETJOBS ARG=0:ALL")
    assert list(found)[:3] == ["r0", "r1", "r2"]
    assert found["r0"].startswith("STATE=Completed")
    assert list(found)[3:] == [str(number) for number in range(50, 50 - 38, -1)]
    assert [one["left_out"] for one in logs if "room" in one["event"]] == [13]


async def test_jobs_are_listed_oldest_first(tmp_path: Path) -> None:
    """Maui starts jobs of equal priority in the order of the listing, so it is not that of the batch system."""
    server = Server(tmp_path)
    server.source.add(*(job(id_, submitted_at=NOW - 60) for id_ in ("12", "11", "9")), job("13", submitted_at=NOW - 90))
    assert list(await server.states()) == ["13", "9", "11", "12"]
    server.source.add(job("13", submitted_at=NOW - 90, comment="changed"))
    server.now += 5
    assert list(await server.states()) == ["13", "9", "11", "12"]


async def test_what_a_batch_system_tells_of_waiting_jobs_only_is_kept(tmp_path: Path) -> None:
    """Grid Engine gives the start of a job that runs as its submission: it was queued before, and has its account."""
    server = Server(tmp_path)
    server.source.add(job("5", submitted_at=NOW - 90, account="bio", group="staff"))
    await server.states()
    server.source.add(running("5", {"n1": 1}, submitted_at=NOW + 30, started_at=NOW + 20))
    server.source.add(running("6", {"n1": 1}, submitted_at=None, started_at=NOW - 20))
    server.now += 60
    found = await server.records("GETJOBS ARG=0:ALL")
    assert f"QUEUETIME={int(NOW) - 90};STARTTIME={int(NOW) + 20};" in found["5"]
    assert {"ACCOUNT=bio", "GNAME=staff"} <= set(found["5"].split(";"))
    assert f"QUEUETIME={int(NOW) - 20};STARTTIME={int(NOW) - 20};" in found["6"]


async def test_maui_shows_why_a_job_is_in_hold(tmp_path: Path) -> None:
    """EXEC, which checkjob prints: the reason of a job in hold, else the job's name, so that no reason stays."""
    server = Server(tmp_path)
    server.source.add(job("5", dependent=True))
    assert "EXEC=it waits for other jobs;" in await server.record("5")
    server.source.add(job("5", name="a job; of mine"))
    server.now += 5
    assert "EXEC=a_job__of_mine;" in await server.record("5")
    ended = job("7", state=LrmJobState.ENDED, end=EndReason.EXITED, exit_code=0, started_at=NOW, ends_at=NOW)
    server.source.add(ended)
    server.now += 5
    assert "EXEC=job;" in await server.record("7")
