# SPDX-License-Identifier: Apache-2.0
"""A WIKI server and everything that is no proper request: the listed answer, or nothing; never harm."""

from __future__ import annotations

import logging
import random
import re
import string
from typing import TYPE_CHECKING

import pytest
import structlog

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import FrameReader, checksum, is_signed, open_reply
from koala_adapter.wiki.codec.verbs import parse_reply
from koala_adapter.wiki.codec.words import Dialect, Status
from tests.examples import repeated
from tests.unit.wiki.wiki_source import KEY, NOW, Server, job, running
from tests.wire.wiki_samples import golden

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

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
    reply = parse_reply(server.opened(frame).message)
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
    assert parse_reply(server.opened_unsigned(frame).message).status == status
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
        reply = parse_reply(open_reply(payload, key=KEY if signed else None, now=NOW).message)
        assert reply.status in ALLOWED, reply
        statuses[reply.status] = statuses.get(reply.status, 0) + 1
    assert {0, -300, -350, -422, -700, -810} <= statuses.keys(), statuses
    server.source.add(job("8", 6))
    server.resource.readings.invalidate()
    assert (await server.states())["8"] == "Idle"


async def test_a_reply_that_maui_has_no_room_for(tmp_path: Path) -> None:
    """A list too large for Maui is sent with shorter records, and at last without those of ended jobs."""
    server = Server(tmp_path)
    server.source.add(*(job(str(number), comment="x" * 900, working_directory="/home/ann") for number in range(3000)))
    frame = await server.frame("CMD=GETJOBS ARG=0:ALL")
    assert frame is not None
    assert len(frame) <= 2_097_152 + 9
    assert parse_reply(server.opened(frame).message).require().startswith("3000#")


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_recorded_requests_that_slurm_refused(tmp_path: Path, dialect: Dialect) -> None:
    """What Slurm found malformed, unsigned or too old, so do we, with the same code, in both dialects."""
    seen: dict[int, int] = {}
    equal = 0
    for exchange in golden(dialect):
        if exchange.reply is None or exchange.key is None:
            continue
        status = parse_reply(exchange.opened_reply().message).status
        if status not in {Status.BAD_REQUEST, Status.CLOCK_SKEW, Status.BAD_CHECKSUM}:
            continue
        server = Server(tmp_path, dialect=dialect, key=exchange.key)
        server.now = exchange.now
        try:
            payload = FrameReader().feed(exchange.request)
        except WikiError:
            continue
        if payload is None:
            continue
        frame = await server.resource.answer(payload, "127.0.0.1")
        assert frame is not None, exchange.case
        signed = is_signed(payload, exchange.key)
        opened = server.opened(frame) if signed else server.opened_unsigned(frame)
        answered = parse_reply(opened.message).status
        # Ids may be any word here, so that of no job is no malformed one; and Slurm's sched/wiki checks no signatures.
        allowed = {status, Status.REFUSED, Status.BAD_CHECKSUM} if status == Status.BAD_REQUEST else {status}
        assert answered in allowed, (exchange.case, exchange.request)
        equal += answered == status
        seen[status] = seen.get(status, 0) + 1
    assert {Status.BAD_REQUEST, Status.CLOCK_SKEW} <= seen.keys(), seen
    assert equal >= 0.8 * sum(seen.values())
