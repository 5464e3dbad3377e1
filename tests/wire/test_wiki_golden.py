# SPDX-License-Identifier: Apache-2.0
"""Recorded WIKI messages, those of other implementations, and what is tolerated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from structlog.testing import capture_logs

from koala_adapter.cli.wiki import _user_id
from koala_adapter.errors import ConfigurationError, LrmUnavailableError, WikiError
from koala_adapter.host import containment
from koala_adapter.host.containment import DefectLog
from koala_adapter.wiki.client import exchange
from koala_adapter.wiki.codec import frames
from koala_adapter.wiki.codec.frames import FrameReader, checksum, open_reply, open_request, read_key, seal
from koala_adapter.wiki.codec.records import JobRecord, build_job, build_node, join_records, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import (
    GetJobs,
    ModifyJob,
    Reply,
    Request,
    build_answer,
    build_request,
    build_start_info,
    parse_reply,
    parse_request,
)
from koala_adapter.wiki.codec.words import Dialect, HostFormat, folded
from tests.unit.wiki.test_server_parts import serving
from tests.unit.wiki.wiki_source import KEY
from tests.wire.wiki_samples import (
    CAPTURED_KEY,
    CLOSED,
    REACTIONS,
    SERVED,
    Exchange,
    as_we_spell,
    captured,
    checksums,
    golden,
    has_users_marks,
    in_one_form,
    is_shortened,
    never_sent,
    parse_start_info,
    reason_of_reaction,
    timestamp,
    without_marks,
)

# -- The WIKI codec on every exchange recorded from a real Slurm and a real Maui; wiki_reasons says where we differ.


UNUSED = re.compile(
    rb";(?:(?:GRES|[CA]SWAP|ADISK|CNET|ANET|CRES|ARES|SPEED|ENDDATE|MAXNODES|ARGS|INPUT|OUTPUT|ERROR|FLAGS|SUBMITHOST|WCKEY"
    rb"|DDISK|DSWAP|RMEMCMP|RDISK|RDISKCMP|RSWAP|RSWAPCMP|ROPSYS|RARCH|RNETWORK|RESACCESS|QOS)=[^;]*;)+"
)
"""Attributes of records that koala neither sends nor uses."""


def reaction(exchange: Exchange) -> tuple[int, str] | str:
    """Return what our reader makes of a recorded request."""
    reader = FrameReader()
    try:
        payload = reader.feed(exchange.request)
        if payload is None:
            reader.end()
        message = open_request(payload, key=exchange.required_key, now=exchange.now)
        parse_request(message, exchange.dialect)
    except WikiError as error:
        return CLOSED if error.status is None else (int(error.status), error.message)
    return SERVED


def slurms_reaction(exchange: Exchange) -> tuple[int, str] | str:
    """Return what Slurm made of it; what it refused for another reason than its form counts as served."""
    if exchange.reply is None:
        return CLOSED
    reply = parse_reply(exchange.opened_reply())
    return (reply.status, reply.text) if reply.status in {-300, -350, -422} else SERVED


@pytest.mark.parametrize("dialect", list(Dialect))
def test_requests_get_the_reaction_of_slurm(dialect: Dialect) -> None:
    """Each recorded request is served, refused with Slurm's status and text, or ends the connection, as there."""
    others = [(item, reaction(item), slurms_reaction(item)) for item in golden(dialect)]
    others = [(item, ours, slurms) for item, ours, slurms in others if ours != slurms]
    assert [
        (item.case, ours, slurms) for item, ours, slurms in others if not reason_of_reaction(item, ours, slurms)
    ] == []


def test_each_reason_for_another_reaction_is_needed() -> None:
    found = [(item, reaction(item), slurms_reaction(item)) for dialect in Dialect for item in golden(dialect)]
    given = {reason_of_reaction(item, ours, slurms) for item, ours, slurms in found if ours != slurms}
    assert given == set(REACTIONS)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_reasons_excuse_nothing_else(dialect: Dialect) -> None:
    """Had our reader refused, or closed, what it reads as Slurm does, no reason would say why."""
    alike = [item for item in golden(dialect) if reaction(item) == SERVED == slurms_reaction(item)]
    for item in alike:
        for wrong in (CLOSED, (-300, "unsupported request type"), (-350, "TS value too far from NOW")):
            excused = reason_of_reaction(item, wrong, SERVED)
            assert not excused, (item.case, wrong, excused)


def readable_requests(dialect: Dialect) -> list[tuple[Exchange, bytes, Request]]:
    """Return the recorded requests that can be read, with message and value."""
    found = []
    for one in golden(dialect):
        if reaction(one) == SERVED:
            payload = FrameReader().feed(one.request)
            assert payload is not None
            message = open_request(payload, key=one.required_key, now=one.now)
            found.append((one, message, parse_request(message, dialect)))
    return found


@pytest.mark.parametrize("dialect", list(Dialect))
def test_requests_are_built_as_they_were_recorded(dialect: Dialect) -> None:
    for one, message, request in readable_requests(dialect):
        if never_sent(message, dialect):
            with pytest.raises(WikiError):
                build_request(request, dialect)
            continue
        built = build_request(request, dialect)
        assert in_one_form(built, dialect) == in_one_form(message, dialect), (one.case, message, built)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_most_requests_are_built_byte_for_byte(dialect: Dialect) -> None:
    """Which requests are said in other words is the exception: nothing is lost behind a common form."""
    recorded = readable_requests(dialect)
    same = [
        message
        for _, message, request in recorded
        if not never_sent(message, dialect) and build_request(request, dialect) == message
    ]
    assert len(same) >= 0.8 * len(recorded)


def without_unused(message: bytes) -> bytes:
    """Return a reply without the attributes that koala neither sends nor uses."""
    return UNUSED.sub(b";", message)


def rebuilt(exchange: Exchange, message: bytes) -> bytes:
    """Return a recorded reply, read and built again."""
    reply = parse_reply(message)
    dialect, asked = exchange.dialect, exchange.request
    if reply.argument is None:
        return build_answer(reply.status, reply.text)
    if b"JOBWILLRUN" in asked:
        return build_start_info(parse_start_info(reply.argument))
    short = b"*" in message or b"[1,3]" in message
    if b"GETNODES" in asked:
        nodes = parse_nodes(reply.argument)
        if b"n[" in message:
            # Equal neighbours in one record, which koala reads and does not write.
            equal = [list(same) for _, same in groupby(nodes, key=lambda node: replace(node, name=""))]
            names = [folded([node.name for node in same])[0].encode() for same in equal]
            built = (build_node(same[0], dialect).partition(b":")[2] for same in equal)
            return join_records([b"%b:%b" % pair for pair in zip(names, built, strict=True)])
        return join_records([build_node(node, dialect) for node in nodes])
    hosts = HostFormat.TASKS if short else HostFormat.PLAIN
    return join_records([build_job(job, dialect, hosts=hosts) for job in parse_jobs(reply.argument)])


def differs(built: bytes, message: bytes) -> bool:
    """Tell whether a reply is built in another way than Slurm did, for which there is no reason."""
    if built == message:
        return False
    return not has_users_marks(message) or without_marks(built) != without_marks(message)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_replies_are_built_as_they_were_recorded(dialect: Dialect) -> None:
    """What was read from a recorded reply is built into the same bytes again, but for marks in users' texts."""
    for one in golden(dialect):
        if one.reply is None:
            continue
        message = as_we_spell(one.opened_reply(), dialect)
        if is_shortened(one, message):
            continue  # Maui must never get such records from us
        built = rebuilt(one, message)
        expected = without_unused(message)
        assert not differs(built, expected), (one.case, built, expected)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_wrong_number_in_a_reply_is_seen(dialect: Dialect) -> None:
    """Whatever a user's text excuses, a reply with another number, or without its last record, is not equal."""
    for one in golden(dialect):
        if one.reply is None or b"DPROCS=1;" not in one.reply:
            continue
        message = as_we_spell(one.opened_reply(), dialect)
        built, expected = rebuilt(one, message), without_unused(message)
        assert differs(built.replace(b"DPROCS=1;", b"DPROCS=2;", 1), expected), one.case
        assert differs(built.rpartition(b"#")[0], expected), one.case


@pytest.mark.parametrize("dialect", list(Dialect))
def test_frames_are_sealed_as_slurm_seals_them(dialect: Dialect) -> None:
    """Size, signature, time stamp and user of each recorded reply come out again, but for Slurm's final NUL."""
    for one in golden(dialect):
        if one.reply is not None:
            user = one.reply.partition(b"AUTH=")[2].split()[0].decode()
            frame = seal(one.opened_reply(), key=one.key, timestamp=timestamp(one.reply), user=user)
            size = len(one.reply) - 9
            assert one.reply == b"%08d\n" % size + frame[9:] + b"\0", one.case


@pytest.mark.parametrize(("key", "message", "expected"), checksums())
def test_checksums_are_those_of_maui_and_slurm(key: str, message: bytes, expected: bytes) -> None:
    assert checksum(read_key(key), message) == expected


@pytest.mark.parametrize("frame", captured(">"))
def test_requests_of_maui_are_read_and_built(frame: bytes) -> None:
    """A request of the real Maui comes out of our builder byte for byte, signed or not."""
    key = CAPTURED_KEY if b"CK=" in frame else None
    payload = FrameReader().feed(frame)
    assert payload is not None
    request = parse_request(open_request(payload, key=key, now=timestamp(frame)), Dialect.WIKI)
    built = seal(build_request(request, Dialect.WIKI), key=key, timestamp=timestamp(frame), user="root")
    assert built == frame


def in_any_order(message: bytes) -> list[list[bytes]]:
    """Return the attributes of each record of a message, sorted."""
    return [sorted(record.split(b";")) for record in message.split(b"#")]


@pytest.mark.parametrize("frame", captured("<"))
def test_replies_to_maui_are_read_and_built(frame: bytes) -> None:
    key = CAPTURED_KEY if b"CK=" in frame else None
    payload = FrameReader().feed(frame)
    assert payload is not None
    message = as_we_spell(open_reply(payload, key=key, now=timestamp(frame)), Dialect.WIKI)
    reply = parse_reply(message)
    assert reply.status == 0
    assert in_any_order(_again(reply)) == in_any_order(_with_free_classes(without_unused(message)))


def _again(reply: Reply) -> bytes:
    if reply.argument is None:
        return build_answer(reply.status, reply.text)
    if "UNAME" in reply.argument:
        return join_records([build_job(job, Dialect.WIKI) for job in parse_jobs(reply.argument)])
    return join_records([build_node(node, Dialect.WIKI) for node in parse_nodes(reply.argument)])


def _with_free_classes(message: bytes) -> bytes:
    """Return a message as Maui needs it: with ACLASS, and with our form of two numbers."""
    message = message.replace(b"CCLASS=[batch:4];", b"CCLASS=[batch:4];ACLASS=[batch:4];")
    return message.replace(b"CPULOAD=0.00;", b"CPULOAD=0.000000;")


# -- Strangers at the port of a WIKI server: none learns the key, and none takes a scheduler's requests from it.


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


async def test_the_client_shows_what_an_unsigned_refusal_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, peer):
        with pytest.raises(LrmUnavailableError, match="not signed; it says 'bad checksum'"):
            await exchange(replace(peer, key=OTHER), GetJobs())


async def test_strangers_use_up_nobodys_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, requests_per_minute=10, refusals_per_minute=5) as (_, peer):
        now = int(time.time())
        wrong = seal(b"CMD=GETJOBS ARG=0:ALL", key=OTHER, timestamp=now, user="root")
        heard: list[bytes] = []

        async def disturb() -> None:
            said = (wrong, b"", b"0000", b"GET / HTTP/1.0\r\n\r\n") * 2
            heard.extend([await answer_to(peer.port, one) for one in said])

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(disturb)
        assert sum(one != b"" for one in heard) == 5
        for _ in range(10):
            assert (await exchange(peer, GetJobs())).status == 0


async def test_strangers_do_not_fill_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert _user_id("root") == 0
    with pytest.raises(ConfigurationError, match="no user 'no such user'"):
        _user_id("no such user")


# -- What peers were recorded to send beside the common forms, and what is made of it.


TOLERANCE_KEY = read_key("42")
MESSAGE = b"CMD=GETJOBS ARG=0:ALL"


@pytest.mark.parametrize(
    ("message", "dialect"),
    [
        (b'CMD=CANCELJOB ARG=5 TYPE=ADMIN COMMENT="too long"', Dialect.WIKI),
        (b'CMD=CANCELJOB ARG=5 TYPE=ADMIN COMMENT="too long"', Dialect.WIKI2),
        (b"CMD=SIGNALJOB ARG=5 VALUE=99", Dialect.WIKI2),
    ],
)
def test_comments_of_cancellations_and_any_number_of_a_signal_are_kept(message: bytes, dialect: Dialect) -> None:
    assert build_request(parse_request(message, dialect), dialect) == message


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_reason_of_a_rejection_is_quoted(dialect: Dialect) -> None:
    record = JobRecord(id="5", state="Idle", tasks=1, user="ann", rejection="NonZeroExitCode")
    assert b';REJMESSAGE="NonZeroExitCode";' in build_job(record, dialect)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_header_that_ends_with_carriage_return_and_line_feed(*, at_once: bool) -> None:
    """The line feed is the first byte of the payload: the checksum is wrong, as for Slurm, however the bytes come."""
    frame = seal(MESSAGE, key=TOLERANCE_KEY, timestamp=1_700_000_000, user="root")
    sent = frame[:8] + b"\r\n" + frame[9:]
    reader = FrameReader()
    pieces = [sent] if at_once else [sent[start : start + 1] for start in range(len(sent) - 1)]
    payload = [reader.feed(piece) for piece in pieces][-1]
    assert payload is not None
    assert payload[:1] == b"\n"
    with pytest.raises(WikiError, match="bad checksum"):
        open_request(payload, key=TOLERANCE_KEY, now=1_700_000_000)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_semicolon_ends_a_change(dialect: Dialect) -> None:
    """As Slurm read it: a blank or a semicolon separates the changes of MODIFYJOB."""
    request = parse_request(b"CMD=MODIFYJOB ARG=5 TIMELIMIT=10;BANK=bio2;", dialect)
    assert isinstance(request, ModifyJob)
    assert dict(request.changes) == {"TIMELIMIT": "10", "BANK": "bio2"}
