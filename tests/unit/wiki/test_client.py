# SPDX-License-Identifier: Apache-2.0
"""One exchange with a WIKI resource manager: however it goes wrong, it is one of the errors of the contract."""

from __future__ import annotations

import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import (
    ConfigurationError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnreachableError,
    LrmUnsupportedError,
    WikiError,
)
from koala_adapter.model import LrmJobId
from koala_adapter.testing import new_context
from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.frames import FrameReader, Key, open_request, read_key, seal
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord, build_job, build_node, join_records
from koala_adapter.wiki.codec.verbs import GetJobs, GetNodes, RequeueJob, build_answer
from koala_adapter.wiki.codec.words import Dialect
from koala_local import PLUGIN as LOCAL_PLUGIN
from koala_wiki import PLUGIN
from koala_wiki.lrm import WikiLrm, WikiSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from anyio.abc import SocketStream

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
            return open_request(payload, key=key, now=time.time()).message


def sealed(message: bytes, *, key: Key | None = KEY, ahead: int = 0) -> bytes:
    """Return the frame of a message; ``ahead``: seconds by which the clock is wrong."""
    return seal(message, key=key, timestamp=int(time.time()) + ahead, user="slurm")


def with_nul(frame: bytes) -> bytes:
    """Return a frame as Slurm sends it, with a NUL that counts and is not signed."""
    return b"%08d\n%b\0" % (len(frame) - 8, frame[9:])


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_refusal_is_a_reply() -> None:
    """Status and words of the peer arrive; whoever needs success gets them as an error."""

    async def answer(stream: SocketStream) -> None:
        await read_request(stream)
        await stream.send(sealed(b"SC=-700 RESPONSE=No such job"))

    async with serving(answer) as port:
        reply = await exchange(peer(port), RequeueJob(job="1"))
    with pytest.raises(WikiError, match="No such job") as caught:
        reply.require()
    assert caught.value.status == -700


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_silence_ends_at_the_time_out() -> None:
    """A peer that accepts and never answers costs the time-out, no more."""

    async def answer(stream: SocketStream) -> None:
        await read_request(stream)
        await anyio.sleep_forever()

    async with serving(answer) as port:
        with anyio.fail_after(60), pytest.raises(LrmUnavailableError, match=r"within 0\.2 s"):
            await exchange(peer(port, timeout=0.2), GetNodes())


@pytest.mark.anyio
async def test_what_the_dialect_cannot_say_is_not_sent() -> None:
    """The connection is not even made."""
    with pytest.raises(WikiError, match="REQUEUEJOB"):
        await exchange(peer(1, dialect=Dialect.WIKI), RequeueJob(job="1"))


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


@pytest.mark.anyio
async def test_a_start_names_one_host_for_each_task(tmp_path: Path) -> None:
    """Six processors are three tasks of two; what does not fill tasks is not sent."""
    async with plugin(tmp_path, two_processors_a_task, Dialect.WIKI) as (lrm, seen):
        await lrm.start_on(LrmJobId("7"), ["n4"] * 4 + ["n2"] * 2)
        assert seen == [b"CMD=GETJOBS ARG=0:7", b"CMD=STARTJOB ARG=7 TASKLIST=n4:n4:n2"]
        with pytest.raises(LrmRejectedError, match="tasks of 2 processors"):
            await lrm.start_on(LrmJobId("7"), ["n4"] * 3)
        with pytest.raises(LrmNotFoundError):
            await lrm.start_on(LrmJobId("8"), ["n4"] * 2)
    assert not any(b"ARG=8 TASKLIST" in message for message in seen)


@pytest.mark.anyio
async def test_nodes_are_always_asked_for_all_together(tmp_path: Path) -> None:
    """A GETNODES with a name could hang a slurmctld with sched/wiki for ever."""
    async with plugin(tmp_path, two_processors_a_task, Dialect.WIKI) as (lrm, seen):
        (node,) = await lrm.nodes()
        await lrm.queues()
        await lrm.check()
    assert node.processors_idle == 4
    assert {message for message in seen if b"GETNODES" in message} == {b"CMD=GETNODES ARG=0:ALL"}


@pytest.mark.anyio
async def test_walltimes_go_out_in_minutes(tmp_path: Path) -> None:
    """Rounded up, and never 0, which Slurm ignores."""
    async with plugin(tmp_path, lambda _: build_answer(0, "ok")) as (lrm, seen):
        await lrm.modify(LrmJobId("7"), walltime=61)
        await lrm.modify(LrmJobId("7"), walltime=1)
    assert seen == [b"CMD=MODIFYJOB ARG=7 TIMELIMIT=2", b"CMD=MODIFYJOB ARG=7 TIMELIMIT=1"]


@pytest.mark.anyio
async def test_cancelling_goes_on_after_a_refusal(tmp_path: Path) -> None:
    """All jobs are tried; gone ones are no error, a refusal is raised at the end."""
    words = {b"1": "No such job", b"2": "Access denied", b"3": "Job/step already completing or completed"}

    def refuse(message: bytes) -> bytes:
        return build_answer(-700, words[message.split(b"ARG=")[1][:1]])

    async with plugin(tmp_path, refuse) as (lrm, seen):
        with pytest.raises(LrmRejectedError, match="Access denied"):
            await lrm.cancel([LrmJobId("1"), LrmJobId("2"), LrmJobId("3")])
    assert len(seen) == 3


@pytest.mark.anyio
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


@pytest.mark.anyio
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
