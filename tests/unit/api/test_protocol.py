# SPDX-License-Identifier: Apache-2.0
"""The protocol of the service's socket: what goes out comes back, and anything else is refused by one kind of error."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter import errors
from koala_adapter.api import protocol
from koala_adapter.errors import KoalaError, ProtocolError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ERRORS = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, KoalaError)]


@given(job_id=st.text(), cluster=st.text(), limit=st.integers(), job=st.none() | st.dictionaries(st.text(), JSON))
def test_request_survives_the_wire(job_id: str, cluster: str, limit: int, job: dict[str, object] | None) -> None:
    """A request is one line, whatever is in it, and reads as it was written."""
    request = protocol.Request(operation="submit", job_id=job_id, cluster=cluster, limit=limit, job=job)
    line = protocol.encode(request)
    assert line.count(b"\n") == 1
    assert protocol.decode_request(line) == request


@given(result=JSON, last=st.booleans())
def test_reply_survives_the_wire(result: object, last: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    """A reply is one line and reads as it was written."""
    reply = protocol.Reply(result=result, last=last)
    line = protocol.encode(reply)
    assert line.count(b"\n") == 1
    assert protocol.decode_reply(line) == reply


@given(line=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_read(line: bytes) -> None:
    """Nothing but ProtocolError comes of bytes that are no message."""
    for decode in (protocol.decode_request, protocol.decode_reply):
        with suppress(ProtocolError):
            decode(line)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"operation": "format-disk"},
        {"operation": "ping", "surprise": 1},
        {"operation": "job", "job_id": 7},
        {"operation": "jobs", "limit": "many"},
        {"operation": "submit", "job": []},
        [],
        "ping",
        None,
    ],
)
def test_what_is_no_request_is_refused(message: object) -> None:
    """Unknown operations and members, and wrong types, are refused, not guessed at."""
    with pytest.raises(ProtocolError):
        protocol.decode_request(json.dumps(message).encode())


@pytest.mark.parametrize("kind", ERRORS)
def test_refusal_keeps_type_message_and_hint(kind: type[KoalaError]) -> None:
    """A client raises what the service raised, so that the exit code is the same on both sides."""
    reply = protocol.decode_reply(protocol.encode(protocol.refusal(kind("no such thing", hint="look elsewhere"))))
    with pytest.raises(kind) as caught:
        protocol.raise_refusal(reply)
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.hint) == ("no such thing", "look elsewhere")


def test_refusal_of_an_unknown_type_is_still_an_error() -> None:
    """A newer service may refuse by a type that this client does not have."""
    with pytest.raises(KoalaError, match="no such thing"):
        protocol.raise_refusal(protocol.Reply(error="no such thing", error_type="BrandNewError"))


def test_reply_without_error_raises_nothing() -> None:
    """An answer is no refusal."""
    protocol.raise_refusal(protocol.Reply(result={"pid": 1}))
