# SPDX-License-Identifier: Apache-2.0
"""The WIKI codec on every exchange recorded from a real Slurm and a real Maui; where we differ, this says why."""

from __future__ import annotations

import pytest

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.protocol import (
    Dialect,
    FrameReader,
    HostFormat,
    Reply,
    Request,
    build_answer,
    build_job,
    build_nodes,
    build_request,
    build_start_info,
    checksum,
    join_records,
    open_reply,
    open_request,
    parse_jobs,
    parse_nodes,
    parse_reply,
    parse_request,
    parse_start_info,
    read_key,
    seal,
)
from tests.wire.wiki_samples import CAPTURED_KEY, Exchange, captured, checksums, golden, timestamp

OPAQUE = "job ids are any word for us: what Slurm refuses as no number we look up, and answer that there is no such job"
CHECKED = "sched/wiki takes any checksum; we check it in both dialects"
SLURM_BREAKS = "sched/wiki hangs or dies; we read the request"

SERVED = "served"
CLOSED = "closed"

OTHER_ANSWERS = {
    Dialect.WIKI: {
        "096-startjob-job-not-number": OPAQUE,
        "166-suspend-arg-junk": OPAQUE,
        "292-cancel-job-not-number": OPAQUE,
        "286-jobreleasetask": "we know the verb (WIKI 1.1 documents it), but COUNT=1 is no list of tasks",
        "360-bad-ck-wrong": CHECKED,
        "362-bad-ck-upper-case": CHECKED,
        "364-bad-ck-not-first": CHECKED,
        "382-bad-order-auth-first": CHECKED,
        "702-haz-getnodes-newline": SLURM_BREAKS,
        "704-haz-modify-hostlist": SLURM_BREAKS,
        "708-haz-size-minus-1": "Slurm reads nothing and complains about it; we close, for the size is no size",
    },
    Dialect.WIKI2: {
        "102-startjob-job-array-task-form": OPAQUE,
        "176-suspend-arg-junk": OPAQUE,
        "314-cancel-job-not-number": OPAQUE,
        "308-jobreleasetask": "Slurm refuses the verb before it reads on; COUNT=1 is no list of tasks",
        "704-haz-startjob-tasklist-empty-name": "Slurm starts it anywhere; a list of nothing is a mistake",
        "706-haz-getnodes-bad-range": "Slurm guesses what n[1- could mean",
        "708-haz-suspend-twice-unpatched": SLURM_BREAKS,
    },
}
"""Requests to which our reader reacts in another way than Slurm."""

NORMALISED = "the same request in the words that we use"
NOT_CHANGEABLE = "sched/wiki ignores what it does not know; we do not send it"

OTHER_REQUESTS = {
    "006-getnodes-range": NORMALISED,
    "012-getnodes-arg-no-time": NORMALISED,
    "014-getnodes-arg-negative": NORMALISED,
    "084-startjob-ok-star": NORMALISED,
    "088-startjob-ok-range-star": NORMALISED,
    "090-startjob-ok-comma": NORMALISED,
    "168-startjob-comment-only": NORMALISED,
    "202-modify-pending-jobname": NORMALISED,
    "228-modify-running-comment-bare": "a bare comment ends at the blank, for Slurm as well",
    "250-signal-sigusr1": NORMALISED,
    "276-initialize": NORMALISED,
    "294-cancel-no-type-space": NORMALISED,
    "296-cancel-admin-trailing-space": NORMALISED,
    "318-cancel-admin-trailing-space": NORMALISED,
    "374-bad-cmd-suffix": NORMALISED,
    "384-bad-trailing-newline": NORMALISED,
    "406-bad-big": NORMALISED,
    "412-bad-trailing-newline-node": NORMALISED,
    "434-bad-big": NORMALISED,
    "512-hf1-startjob-four": NORMALISED,
    "524-hf2-getnodes-named": NORMALISED,
    "546-linear-startjob-two": NORMALISED,
    "568-nokey-junk-before": NORMALISED,
    "584-run-startjob-fail": NORMALISED,
    "594-run2-startjob-fail": NORMALISED,
    "702-haz-getnodes-newline": NORMALISED,
    "190-modify-pending-comment-bare": NOT_CHANGEABLE,
    "192-modify-pending-jobname-quoted": NOT_CHANGEABLE,
    "194-modify-pending-rfeatures": NOT_CHANGEABLE,
    "196-modify-pending-gres-bad": NOT_CHANGEABLE,
    "198-modify-pending-unknown": NOT_CHANGEABLE,
    "200-modify-pending-flags": NOT_CHANGEABLE,
    "210-modify-pending-priority": NOT_CHANGEABLE,
    "212-modify-pending-nothing": NOT_CHANGEABLE,
    "216-modify-running-comment-bare": NOT_CHANGEABLE,
    "218-modify-running-jobname-quoted": NOT_CHANGEABLE,
    "220-modify-running-rfeatures": NOT_CHANGEABLE,
    "222-modify-running-gres-bad": NOT_CHANGEABLE,
    "224-modify-running-unknown": NOT_CHANGEABLE,
    "226-modify-running-flags": NOT_CHANGEABLE,
    "236-modify-running-unknown": NOT_CHANGEABLE,
    "238-modify-running-flags": NOT_CHANGEABLE,
    "704-haz-modify-hostlist": "it kills a slurmctld with sched/wiki: we do not send it",
}
"""Requests that we would not build byte for byte."""

NO_SUCH_JOB = "Slurm counts a job that does not exist and sends (null); we leave it out"
UNESCAPED = "Slurm sends a user's quotes, semicolons and the like as they are; we replace them"

OTHER_REPLIES = {
    Dialect.WIKI: {
        "018-getjobs-unknown-two": NO_SUCH_JOB,
        "072-getjobs-known-and-unknown": NO_SUCH_JOB,
        "310-getjobs-array-cancelled-7s": NO_SUCH_JOB,
        "026-getjobs-pending-account-comment": "a class is a word, and a comment has no ':' for Maui",
        "030-getjobs-pending-comment-quote": UNESCAPED,
        "232-getjobs-modified-semicolons": UNESCAPED,
    },
    Dialect.WIKI2: {
        "022-getjobs-unknown": NO_SUCH_JOB,
        "024-getjobs-not-a-number": NO_SUCH_JOB,
        "078-getjobs-unknown-and-known": NO_SUCH_JOB,
        "332-getjobs-array-cancelled-7s": NO_SUCH_JOB,
        "040-getjobs-pending-feature-count": "'[fast*1:slow*1]' are no names of features",
        "244-getjobs-modified-semicolons": UNESCAPED,
    },
}
"""Replies that we would not build byte for byte."""


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
    others = {item.case: (reaction(item), slurms_reaction(item)) for item in golden(dialect)}
    others = {case: pair for case, pair in others.items() if pair[0] != pair[1]}
    assert {case: pair for case, pair in others.items() if case not in OTHER_ANSWERS[dialect]} == {}
    assert set(OTHER_ANSWERS[dialect]) == set(others)


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
    """What was read from a recorded request is built into the same bytes again."""
    differing = set()
    for exchange, message, request in readable_requests(dialect):
        try:
            built = build_request(request, dialect)
        except WikiError:
            built = b""
        if built != message:
            differing.add(exchange.case)
    assert {case for case in differing if case not in OTHER_REQUESTS} == set()
    assert differing <= set(OTHER_REQUESTS)


def test_reasons_for_other_requests_are_needed() -> None:
    """Each request named as built in another way is indeed one, in one dialect or the other."""
    cases = {exchange.case for dialect in Dialect for exchange, _, _ in readable_requests(dialect)}
    assert set(OTHER_REQUESTS) <= cases


def as_we_spell(message: bytes, dialect: Dialect) -> bytes:
    """Return a recorded reply without two habits of sched/wiki: FEATURES for FEATURE, and a colon before a list."""
    if dialect is Dialect.WIKI:
        message = message.replace(b";FEATURES=", b";FEATURE=").replace(b";TASKLIST=:", b";TASKLIST=")
        # It leaves the flag "for each processor" in the amount of memory.
        message = message.replace(b"RMEM=2147483848;", b"RMEM=200;")
    return message


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


@pytest.mark.parametrize("dialect", list(Dialect))
def test_replies_are_built_as_they_were_recorded(dialect: Dialect) -> None:
    """What was read from a recorded reply is built into the same bytes again."""
    differing = {}
    for exchange in golden(dialect):
        if exchange.reply is None or (dialect is Dialect.WIKI and "delta-future" in exchange.case):
            continue  # such a record of sched/wiki is without user and tasks: Maui must never get one from us
        message = as_we_spell(exchange.opened_reply().message, dialect)
        built = rebuilt(exchange, message)
        if built != message:
            differing[exchange.case] = (built, message)
    assert {case: pair for case, pair in differing.items() if case not in OTHER_REPLIES[dialect]} == {}
    assert set(differing) == set(OTHER_REPLIES[dialect])


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
    assert in_any_order(_again(reply)) == in_any_order(_with_free_classes(message))


def _again(reply: Reply) -> bytes:
    if reply.argument is None:
        return build_answer(reply.status, reply.text)
    if "UNAME" in reply.argument:
        return join_records([build_job(job, Dialect.WIKI) for job in parse_jobs(reply.argument)])
    return join_records(list(build_nodes(parse_nodes(reply.argument), Dialect.WIKI)))


def _with_free_classes(message: bytes) -> bytes:
    """Return a message as Maui needs it: with ACLASS, and with our form of two numbers."""
    message = message.replace(b"CCLASS=[batch:4];", b"CCLASS=[batch:4];ACLASS=[batch:4];")
    return message.replace(b"CPULOAD=0.00;SPEED=1.0;", b"CPULOAD=0.000000;SPEED=1.000000;")
