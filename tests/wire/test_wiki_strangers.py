# SPDX-License-Identifier: Apache-2.0
"""Strangers at the port of a WIKI server: none learns the key, and none takes a scheduler's requests from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread
from structlog.testing import capture_logs

from koala_adapter.cli.wiki import _user_id
from koala_adapter.errors import ConfigurationError, LrmUnavailableError
from koala_adapter.host import containment
from koala_adapter.host.containment import DefectLog
from koala_adapter.wiki.client import exchange
from koala_adapter.wiki.codec import frames
from koala_adapter.wiki.codec.frames import read_key, seal
from koala_adapter.wiki.codec.verbs import GetJobs
from koala_adapter.wiki.codec.words import Dialect
from tests.unit.wiki.test_server_listener import serving
from tests.unit.wiki.wiki_source import KEY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

OTHER = read_key("31")
DIGITS = re.compile(rb"(?=([0-9a-f]{16}))")
NOBODY = 65534


def seeds(heard: bytes) -> set[int]:
    """Return the keys that may be computed from what was heard: each checksum's rounds are run backwards."""
    found = set()
    for digits in DIGITS.findall(heard):
        left, right = int(digits[:8], 16), int(digits[8:], 16)
        for before, after in zip(reversed(frames._XOR_BEFORE), reversed(frames._XOR_AFTER), strict=True):
            mixed = left ^ before
            low, high = mixed & 0xFFFF, mixed >> 16
            product = (low * low + (~(high * high) & 0xFFFFFFFF)) & 0xFFFFFFFF
            swapped = (product >> 16) | ((product & 0xFFFF) << 16)
            left, right = right ^ (((swapped ^ after) + low * high) & 0xFFFFFFFF), left
        if left < 1 << 16:
            found.add(right)
    return found


def hostile_frames(now: int) -> list[bytes]:
    """Return what a stranger may say in the hope of an answer."""
    messages = [
        b"",
        b"CMD=",
        b"CMD=GETNODES ARG=0:ALL",
        b"CMD=GETJOBS ARG=0:ALL",
        b"CMD=STARTJOB ARG=5 TASKLIST=n1:n1:n1:n1:n1:n1",
        b"CMD=CANCELJOB ARG=5 TYPE=ADMIN",
        b"CMD=INITIALIZE ARG=EPORT=1 USEHOSTEXP=N",
        b"CMD=MAKETEA ARG=1",
        b"\xff\xfe\0",
    ]
    said = [seal(message, key=None, timestamp=now, user="root") for message in messages]
    said += [seal(message, key=OTHER, timestamp=now, user="root") for message in messages]
    said += [
        seal(message, key=OTHER, timestamp=now + skew, user="root") for message in messages for skew in (-900, 900)
    ]
    for block in (b"AUTH=root DT=", b"TS=%d DT=" % now, b"TS=%d AUTH=root " % now, b"TS=%d AUTH=root DT=" % now):
        for signature in (b"", b"CK= ", b"CK=0123456789abcdef "):
            payload = signature + block + messages[2]
            said.append(b"%08d\n%s" % (len(payload), payload))
    return [*said, b"", b"0000", b"99999999\n", b"GET / HTTP/1.0\r\n\r\n", b"00000000\n"]


async def answer_to(port: int, said: bytes) -> bytes:
    """Return all that the server answers to one connection."""
    heard = b""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            await stream.send(said)
            await stream.send_eof()
            while True:
                heard += await stream.receive()
    return heard


def test_one_signed_message_gives_the_key_away() -> None:
    """So the attack of these tests works."""
    assert KEY.seed in seeds(seal(b"SC=-300 RESPONSE=x", key=KEY, timestamp=1, user="koala"))


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_nothing_that_a_stranger_hears_gives_the_key_away(tmp_path: Path, dialect: Dialect) -> None:
    """Whatever is sent without the key: refusals are not signed, and nothing is read or done."""
    async with serving(tmp_path, dialect=dialect, refusals_per_minute=10_000) as (server, peer):
        heard = [await answer_to(peer.port, said) for said in hostile_frames(int(time.time()))]
        assert server.source.reads == 0
        assert server.source.calls == []
        assert any(b"bad checksum" in one for one in heard)
        assert any(b"request lacks AUTH" in one for one in heard)
        assert not any(b"CK=" in one for one in heard)
        assert KEY.seed not in set().union(*map(seeds, heard))
        assert (await exchange(peer, GetJobs())).status == 0


async def test_a_request_that_is_too_old_is_answered_by_its_signature(tmp_path: Path) -> None:
    """A peer with the key and a wrong clock gets a signed refusal, so that it can be told from a stranger's."""
    async with serving(tmp_path) as (_, peer):
        old = int(time.time()) - 900
        assert b"CK=" in await answer_to(peer.port, seal(b"CMD=GETJOBS ARG=0:ALL", key=KEY, timestamp=old, user="m"))


async def test_the_client_shows_what_an_unsigned_refusal_says(tmp_path: Path) -> None:
    """With a wrong key the reason is told, and not believed."""
    async with serving(tmp_path) as (_, peer):
        with pytest.raises(LrmUnavailableError, match="not signed; it says 'bad checksum'"):
            await exchange(replace(peer, key=OTHER), GetJobs())


async def test_strangers_use_up_nobodys_requests(tmp_path: Path) -> None:
    """A thousand connections from the same address without the key leave a scheduler all of its requests."""
    async with serving(tmp_path, requests_per_minute=10, refusals_per_minute=5) as (_, peer):
        now = int(time.time())
        wrong = seal(b"CMD=GETJOBS ARG=0:ALL", key=OTHER, timestamp=now, user="root")
        heard: list[bytes] = []

        async def disturb() -> None:
            said = (wrong, b"", b"0000", b"GET / HTTP/1.0\r\n\r\n") * 10
            heard.extend([await answer_to(peer.port, one) for one in said])

        async with anyio.create_task_group() as tasks:
            for _ in range(25):
                tasks.start_soon(disturb)
        assert sum(one != b"" for one in heard) == 5
        for _ in range(10):
            assert (await exchange(peer, GetJobs())).status == 0


async def test_strangers_do_not_fill_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals are logged, once a minute for each peer and reason, and the next entry has the number of the others."""
    now = [1000.0]
    monkeypatch.setattr(containment, "_defects", DefectLog(lambda: now[0]))
    async with serving(tmp_path) as (_, peer):
        wrong = seal(b"CMD=GETJOBS ARG=0:ALL", key=OTHER, timestamp=int(time.time()), user="root")
        with capture_logs() as logs:
            for said in (wrong, b"GET / HTTP/1.0\r\n\r\n", seal(b"", key=None, timestamp=0, user="")) * 20:
                await answer_to(peer.port, said)
            now[0] += 61
            await answer_to(peer.port, wrong)
    refused = [(one["event"], one.get("reason"), one.get("not_logged_since")) for one in logs]
    assert refused[0] == ("a request was refused", "bad checksum", None)
    assert refused[-1] == ("a request was refused", "bad checksum", 19)
    assert len(refused) == 4, refused
    assert {one["peer"] for one in logs} == {"127.0.0.1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_another_user_with_the_key_is_not_heard(tmp_path: Path) -> None:
    """A local user who has the key gets an unsigned refusal; named, he is served."""
    ask = (
        "import os, socket, sys\n"
        "os.setuid(int(sys.argv[3]))\n"
        "one = socket.socket()\n"
        "one.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "one.sendall(bytes.fromhex(sys.argv[2]))\n"
        "sys.stdout.buffer.write(one.makefile('rb').read())\n"
    )

    def asked(port: int) -> bytes:
        frame = seal(b"CMD=GETJOBS ARG=0:ALL", key=KEY, timestamp=int(time.time()), user="root")
        command = [sys.executable, "-I", "-c", ask, str(port), frame.hex(), str(NOBODY)]
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout

    async with serving(tmp_path) as (server, peer):
        heard = await to_thread.run_sync(asked, peer.port)
        assert (b"--peer-user" in heard, b"CK=" in heard, server.source.reads) == (True, False, 0)
    async with serving(tmp_path / "named", users=(NOBODY,)) as (_, peer):
        assert b"SC=0" in await to_thread.run_sync(asked, peer.port)


def test_a_user_that_is_not_there_is_named() -> None:
    """A misspelt --peer-user ends the command, and does not lock the scheduler out."""
    assert _user_id("root") == 0
    with pytest.raises(ConfigurationError, match="no user 'no such user'"):
        _user_id("no such user")
