# SPDX-License-Identifier: Apache-2.0
"""The WIKI codec on every exchange recorded from a real Slurm and a real Maui; wiki_reasons says where we differ."""

from __future__ import annotations

import re

import pytest

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import FrameReader, checksum, open_reply, open_request, read_key, seal
from koala_adapter.wiki.codec.records import build_job, build_nodes, join_records, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import (
    Reply,
    Request,
    build_answer,
    build_request,
    build_start_info,
    parse_reply,
    parse_request,
)
from koala_adapter.wiki.codec.words import Dialect, HostFormat
from tests.wire.wiki_answers import parse_start_info
from tests.wire.wiki_reasons import (
    CLOSED,
    REACTIONS,
    SERVED,
    as_we_spell,
    has_users_marks,
    in_one_form,
    is_shortened,
    never_sent,
    reason_of_reaction,
    without_marks,
)
from tests.wire.wiki_samples import CAPTURED_KEY, Exchange, captured, checksums, golden, timestamp

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
            raise AssertionError("an incomplete frame must be refused at its end")
        message = open_request(payload, key=exchange.required_key, now=exchange.now).message
        parse_request(message, exchange.dialect)
    except WikiError as error:
        return CLOSED if error.status is None else (int(error.status), error.message)
    return SERVED


def slurms_reaction(exchange: Exchange) -> tuple[int, str] | str:
    """Return what Slurm made of it; what it refused for another reason than its form counts as served."""
    if exchange.reply is None:
        return CLOSED
    reply = parse_reply(exchange.opened_reply().message)
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
    """No reason stands there that no recording needs."""
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
    for exchange in golden(dialect):
        if reaction(exchange) == SERVED:
            payload = FrameReader().feed(exchange.request)
            assert payload is not None
            message = open_request(payload, key=exchange.required_key, now=exchange.now).message
            found.append((exchange, message, parse_request(message, dialect)))
    return found


@pytest.mark.parametrize("dialect", list(Dialect))
def test_requests_are_built_as_they_were_recorded(dialect: Dialect) -> None:
    """What was read from a recorded request is built into the same request again, in the words that we use."""
    for exchange, message, request in readable_requests(dialect):
        if never_sent(message, dialect):
            with pytest.raises(WikiError):
                build_request(request, dialect)
            continue
        built = build_request(request, dialect)
        assert in_one_form(built, dialect) == in_one_form(message, dialect), (exchange.case, message, built)


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
        hosts = HostFormat.NODES if b"n[" in message else HostFormat.PLAIN
        return join_records(list(build_nodes(parse_nodes(reply.argument), dialect, hosts=hosts)))
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
    for exchange in golden(dialect):
        if exchange.reply is None:
            continue
        message = as_we_spell(exchange.opened_reply().message, dialect)
        if is_shortened(exchange, message):
            continue  # Maui must never get such records from us
        built = rebuilt(exchange, message)
        expected = without_unused(message)
        assert not differs(built, expected), (exchange.case, built, expected)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_wrong_number_in_a_reply_is_seen(dialect: Dialect) -> None:
    """Whatever a user's text excuses, a reply with another number, or without its last record, is not equal."""
    for exchange in golden(dialect):
        if exchange.reply is None or b"DPROCS=1;" not in exchange.reply:
            continue
        message = as_we_spell(exchange.opened_reply().message, dialect)
        built, expected = rebuilt(exchange, message), without_unused(message)
        assert differs(built.replace(b"DPROCS=1;", b"DPROCS=2;", 1), expected), exchange.case
        assert differs(built.rpartition(b"#")[0], expected), exchange.case


@pytest.mark.parametrize("dialect", list(Dialect))
def test_frames_are_sealed_as_slurm_seals_them(dialect: Dialect) -> None:
    """Size, signature, time stamp and user of each recorded reply come out again, but for Slurm's final NUL."""
    for exchange in golden(dialect):
        if exchange.reply is not None:
            envelope = exchange.opened_reply()
            assert envelope.verified
            assert envelope.timestamp is not None
            frame = seal(envelope.message, key=exchange.key, timestamp=envelope.timestamp, user=envelope.user)
            size = len(exchange.reply) - 9
            assert exchange.reply == b"%08d\n" % size + frame[9:] + b"\0", exchange.case


@pytest.mark.parametrize(("key", "message", "expected"), checksums())
def test_checksums_are_those_of_maui_and_slurm(key: str, message: bytes, expected: bytes) -> None:
    """Each known triple of key, message and checksum is reproduced."""
    assert checksum(read_key(key), message) == expected


@pytest.mark.parametrize("frame", captured(">"))
def test_requests_of_maui_are_read_and_built(frame: bytes) -> None:
    """A request of the real Maui comes out of our builder byte for byte, signed or not."""
    key = CAPTURED_KEY if b"CK=" in frame else None
    payload = FrameReader().feed(frame)
    assert payload is not None
    envelope = open_request(payload, key=key, now=timestamp(frame))
    request = parse_request(envelope.message, Dialect.WIKI)
    built = seal(build_request(request, Dialect.WIKI), key=key, timestamp=timestamp(frame), user="root")
    assert built == frame


def in_any_order(message: bytes) -> list[list[bytes]]:
    """Return the attributes of each record of a message, sorted."""
    return [sorted(record.split(b";")) for record in message.split(b"#")]


@pytest.mark.parametrize("frame", captured("<"))
def test_replies_to_maui_are_read_and_built(frame: bytes) -> None:
    """What Maui was content with is read, and built with the same attributes in an order of our own."""
    key = CAPTURED_KEY if b"CK=" in frame else None
    payload = FrameReader().feed(frame)
    assert payload is not None
    message = as_we_spell(open_reply(payload, key=key, now=timestamp(frame)).message, Dialect.WIKI)
    reply = parse_reply(message)
    assert reply.status == 0
    assert in_any_order(_again(reply)) == in_any_order(_with_free_classes(without_unused(message)))


def _again(reply: Reply) -> bytes:
    if reply.argument is None:
        return build_answer(reply.status, reply.text)
    if "UNAME" in reply.argument:
        return join_records([build_job(job, Dialect.WIKI) for job in parse_jobs(reply.argument)])
    return join_records(list(build_nodes(parse_nodes(reply.argument), Dialect.WIKI)))


def _with_free_classes(message: bytes) -> bytes:
    """Return a message as Maui needs it: with ACLASS, and with our form of two numbers."""
    message = message.replace(b"CCLASS=[batch:4];", b"CCLASS=[batch:4];ACLASS=[batch:4];")
    return message.replace(b"CPULOAD=0.00;", b"CPULOAD=0.000000;")
