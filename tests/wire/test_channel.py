# SPDX-License-Identifier: Apache-2.0
"""The channel's messages: what is written is read again, and what is no message is refused, whatever it is."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import ProtocolError
from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.outcome import TaskUsage
from koala_adapter.vjm import channel
from koala_adapter.vjm.channel import (
    AgentMessage,
    CenterMessage,
    Ending,
    FileAck,
    FilePiece,
    FilesAck,
    Heartbeat,
    Hello,
    Launch,
    LaunchFile,
    Omission,
    Output,
    OutputAck,
    Pong,
    Refused,
    Release,
    Signal,
    TaskEnded,
    TaskFiles,
    TaskReport,
    TaskStarted,
    TimeWarning,
    Welcome,
)

PRINTABLE = string.ascii_letters + string.digits + string.punctuation

names = st.text(PRINTABLE, min_size=1, max_size=40)
words = st.text(PRINTABLE, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
seconds = st.floats(min_value=0, max_value=1e9)
positive = st.floats(min_value=1e-3, max_value=1e9)
offsets = st.integers(min_value=0, max_value=2**50)
streams = st.sampled_from(["out", "err"])
USAGE = {"user_seconds": 1.5, "system_seconds": 0.5, "memory_bytes": 3, "read_bytes": 4, "written_bytes": 5}
counts = st.integers(0, 2**50)
usages = st.builds(
    TaskUsage,
    user_seconds=seconds,
    system_seconds=seconds,
    memory_bytes=counts,
    read_bytes=counts,
    written_bytes=counts,
    gpu_seconds=st.none() | seconds,
)
ends = st.builds(
    TaskEnd,
    reason=st.sampled_from(EndReason),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    detail=texts,
    usage=st.none() | usages,
)
agent_messages: st.SearchStrategy[AgentMessage] = st.one_of(
    st.builds(
        Hello,
        batch=names,
        index=st.integers(1, 2**31),
        token=names,
        session=names,
        lrm_id=words,
        host=words,
        address=words,
        pid=st.integers(1, 2**22),
        ends_in=st.none() | seconds,
        python=words,
        tasks=st.lists(st.builds(TaskReport, task=names, running=st.booleans(), end=st.none() | ends), max_size=4).map(
            tuple
        ),
    ),
    st.just(Heartbeat()),
    st.builds(TaskStarted, task=names, pid=st.integers(1, 2**22)),
    st.builds(Output, task=names, stream=streams, offset=offsets, data=st.binary(max_size=200)),
    st.builds(TaskEnded, task=names, end=ends),
    st.builds(Ending, reason=st.sampled_from(EndReason), detail=texts),
    st.builds(
        FilePiece,
        task=names,
        number=st.integers(1, 10_000),
        path=st.binary(min_size=1, max_size=60),
        mode=st.integers(0, 0o777),
        size=offsets,
        offset=offsets,
        data=st.binary(max_size=200),
    ),
    st.builds(
        TaskFiles,
        task=names,
        arrived=offsets,
        size=offsets,
        left=offsets,
        left_names=st.lists(texts, max_size=3).map(tuple),
        omitted=offsets,
        omissions=st.lists(st.builds(Omission, path=texts, reason=texts), max_size=3).map(tuple),
    ),
)
files = st.builds(LaunchFile, target=names, mode=st.integers(0, 0o777), content=st.binary(max_size=100))
center_messages: st.SearchStrategy[CenterMessage] = st.one_of(
    st.builds(Welcome, lease=positive, heartbeat=positive),
    st.builds(Refused, reason=texts),
    st.builds(
        Launch,
        task=names,
        argv=st.lists(texts, min_size=1, max_size=4).map(tuple),
        environment=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
        working_directory=st.none() | texts,
        files=st.lists(files, max_size=2).map(tuple),
        time_limit=st.none() | positive,
        warning=st.none() | st.builds(TimeWarning, signal=st.integers(1, 64), after=positive),
        output_files=st.none() | st.lists(texts, max_size=2).map(tuple),
    ),
    st.builds(Signal, task=names, signal=st.integers(1, 64)),
    st.builds(OutputAck, task=names, stream=streams, offset=offsets),
    st.builds(FileAck, task=names, number=st.integers(1, 10_000), offset=offsets, refusal=texts),
    st.builds(FilesAck, task=names),
    st.builds(Release, grace=seconds),
    st.just(Pong()),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)

HELLO = Hello(
    batch="b", index=1, token="a-token", session="a-session", lrm_id="7", host="n1", address="10.0.0.1", pid=9,
    ends_in=None, python="3.6.9",
)  # fmt: skip


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut ``data`` into pieces of the given sizes, repeated as often as necessary."""
    pieces: list[bytes] = []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def fields(**changes: object) -> bytes:
    """Return a line with the members of a Hello, some of them changed."""
    members = json.loads(channel.encode(HELLO))
    return json.dumps(members | changes).encode() + b"\n"


@given(messages=st.lists(agent_messages, max_size=5), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=5))
def test_agent_messages_round_trip(messages: list[AgentMessage], sizes: list[int]) -> None:
    """What an agent says arrives as it was said, however the bytes are cut on the way."""
    decoder = channel.agent_decoder()
    data = b"".join(map(channel.encode, messages))
    assert [message for piece in cut(data, sizes) for message in decoder.feed(piece)] == messages


@given(content=st.binary(min_size=1, max_size=200), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=5))
def test_bytes_of_a_file_follow_their_line(content: bytes, sizes: list[int]) -> None:
    """Ends of lines among them are none."""
    said = {"kind": "file", "task": "1:0", "number": 1, "path": "YQ==", "mode": 0, "size": 500, "offset": 7}
    line = json.dumps({**said, "follows": len(content)}).encode() + b"\n"
    beat = channel.encode(Heartbeat())
    decoder = channel.agent_decoder()
    found = [one for piece in cut(beat + 2 * (line + content) + beat, sizes) for one in decoder.feed(piece)]
    piece = FilePiece(task="1:0", number=1, path=b"a", mode=0, size=500, offset=7, data=content)
    assert found == [Heartbeat(), piece, piece, Heartbeat()]


@given(messages=st.lists(center_messages, max_size=5), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=5))
def test_center_messages_round_trip(messages: list[CenterMessage], sizes: list[int]) -> None:
    """What the control center says arrives as it was said, however the bytes are cut on the way."""
    decoder = channel.center_decoder()
    data = b"".join(map(channel.encode, messages))
    assert [message for piece in cut(data, sizes) for message in decoder.feed(piece)] == messages


@given(data=st.lists(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()), max_size=6))
def test_arbitrary_bytes_give_messages_or_protocol_errors(data: list[bytes]) -> None:
    for decoder in (channel.agent_decoder(limit=100), channel.center_decoder(limit=100)):
        try:
            for piece in data:
                decoder.feed(piece + b"\n")
        except ProtocolError:
            continue


@given(message=agent_messages, member=st.integers(0), value=json_values)
def test_damaged_messages_give_messages_or_protocol_errors(message: AgentMessage, member: int, value: object) -> None:
    members = json.loads(channel.encode(message))
    members[sorted(members)[member % len(members)]] = value
    try:
        channel.agent_decoder().feed(json.dumps(members).encode() + b"\n")
    except ProtocolError as error:
        assert "malformed message" in error.message  # noqa: PT017 - raising is allowed, not demanded


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"\xff\xfe\n",
        b'{"kind":"hello"}\n',
        b'{"kind":"launch","task":"t","argv":["x"]}\n',
        b'{"kind":"no-such-kind"}\n',
        b'{"kind":"heartbeat"\n',
        b"[" * 10_000 + b"\n",
        b"9" * 10_000 + b"\n",
        fields(index=0),
        fields(index="1"),
        fields(index=True),
        fields(index=1.0),
        fields(batch=""),
        fields(batch="a b"),
        fields(batch="a\nb"),
        fields(batch="a\x1b[2J"),
        fields(batch="a" * 201),
        fields(host="n1\n"),
        fields(ends_in=-1),
        fields(ends_in=float("nan")),
        fields(ends_in=float("inf")),
        fields(tasks=[{"task": "t", "running": "yes"}]),
        fields(tasks=[{"task": "t", "running": False, "end": {"reason": "no such reason"}}]),
        fields(tasks=[{"task": "t", "running": True}] * 1001),
        fields(tasks=[{"task": "t", "running": False, "end": {"reason": "exited", "usage": {}}}]),
        *(
            fields(tasks=[{"task": "t", "running": False, "end": {"reason": "exited", "usage": USAGE | wrong}}])
            for wrong in (
                {"user_seconds": -1.0},
                {"system_seconds": float("nan")},
                {"memory_bytes": 1.5},
                {"gpu_seconds": "1"},
            )
        ),
        b'{"kind":"output","task":"t","stream":"log","offset":0,"data":""}\n',
        b'{"kind":"output","task":"t","stream":"out","offset":-1,"data":""}\n',
        b'{"kind":"output","task":"t","stream":"out","offset":1e99,"data":""}\n',
        b'{"kind":"output","task":"t","stream":"out","offset":0,"data":"!!!!"}\n',
        b'{"kind":"output","task":"t","stream":"out","offset":0,"data":"YQ"}\n',
        b'{"kind":"output","task":"t","stream":"out","offset":0,"data":"YQ==\\u00e9"}\n',
    ],
)
def test_what_is_no_agent_message_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        channel.agent_decoder().feed(line)


@pytest.mark.parametrize("make", [channel.agent_decoder, channel.center_decoder])
def test_a_line_over_the_limit_is_refused_before_it_ends(
    make: Callable[..., channel.Decoder[AgentMessage] | channel.Decoder[CenterMessage]],
) -> None:
    decoder = make(limit=1000)
    decoder.feed(b" " * 1000)
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        decoder.feed(b" ")
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        make(limit=1000).feed(b" " * 1001 + b"\n")


def test_errors_do_not_repeat_secrets() -> None:
    with pytest.raises(ProtocolError) as refused:
        channel.agent_decoder().feed(fields(token="seekrit with spaces", session=3))
    assert "seekrit" not in str(refused.value)
    assert "a-token" not in repr(HELLO)
    assert "a-session" not in repr(HELLO)


def test_what_a_task_has_used_is_told_with_its_end() -> None:
    """Agents of an earlier version do not; two ends are alike whatever was used until then."""
    usage = TaskUsage(user_seconds=1.5, system_seconds=0.5, memory_bytes=3, read_bytes=4, written_bytes=5)
    end = TaskEnd(reason=EndReason.EXITED, exit_code=0, usage=usage)
    (told,) = channel.agent_decoder().feed(channel.encode(TaskEnded(task="t", end=end)))
    assert isinstance(told, TaskEnded)
    assert told.end.usage == usage
    old = b'{"kind":"task-ended","task":"t","end":{"reason":"exited","exit_code":0,"signal":null,"detail":""}}\n'
    assert channel.agent_decoder().feed(old) == [told]


def test_unknown_members_are_ignored() -> None:
    """A newer peer may say more."""
    assert channel.agent_decoder().feed(fields(favourite_colour="blue")) == [HELLO]


def test_another_version_can_be_read() -> None:
    """An agent of another version is not garbage: the center can tell it what is wrong."""
    assert channel.agent_decoder().feed(fields(version=2)) == [replace(HELLO, version=2)]


def test_what_no_agent_would_take_is_not_sent() -> None:
    huge = LaunchFile(target="x", mode=0o600, content=bytes(channel.CENTER_LINE_LIMIT))
    with pytest.raises(ProtocolError, match="input files"):
        channel.encode(Launch(task="t", argv=("x",), files=(huge,)))
    with pytest.raises(ProtocolError, match="UTF-8"):
        channel.encode(Launch(task="t", argv=("\udc80",)))


def test_a_good_line_may_be_as_long_as_the_limit() -> None:
    line = channel.encode(Heartbeat())
    assert channel.agent_decoder(limit=len(line) - 1).feed(line) == [Heartbeat()]
