# SPDX-License-Identifier: Apache-2.0
"""What peers were recorded to send beside the common forms, and what is made of it."""

from __future__ import annotations

import pytest

from koala_adapter.wiki.codec.verbs import (
    CancelJob,
    Dialect,
    FrameReader,
    JobRecord,
    SignalJob,
    build_job,
    build_request,
    open_request,
    parse_request,
    read_key,
    seal,
)

KEY = read_key("42")
MESSAGE = b"CMD=GETJOBS ARG=0:ALL"


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_comment_of_a_cancellation_is_kept(dialect: Dialect) -> None:
    """In both dialects, there and back."""
    message = b'CMD=CANCELJOB ARG=5 TYPE=ADMIN COMMENT="too long"'
    request = parse_request(message, dialect)
    assert isinstance(request, CancelJob)
    assert request.comment == "too long"
    assert build_request(request, dialect) == message


def test_any_number_may_be_a_signal() -> None:
    """Whether there is such a signal is not for the reader to say."""
    request = parse_request(b"CMD=SIGNALJOB ARG=5 VALUE=99", Dialect.WIKI2)
    assert isinstance(request, SignalJob)
    assert request.signal == 99
    assert build_request(request, Dialect.WIKI2) == b"CMD=SIGNALJOB ARG=5 VALUE=99"


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_reason_of_a_rejection_is_quoted(dialect: Dialect) -> None:
    """As Slurm did in both dialects."""
    record = JobRecord(id="5", state="Idle", tasks=1, user="ann", rejection="NonZeroExitCode")
    assert b';REJMESSAGE="NonZeroExitCode";' in build_job(record, dialect)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_header_may_end_with_carriage_return_and_line_feed(*, at_once: bool) -> None:
    """However the bytes come."""
    frame = seal(MESSAGE, key=KEY, timestamp=1_700_000_000, user="root")
    sent = frame[:8] + b"\r\n" + frame[9:]
    reader = FrameReader()
    pieces = [sent] if at_once else [sent[start : start + 1] for start in range(len(sent))]
    payloads = [reader.feed(piece) for piece in pieces]
    assert set(payloads[:-1]) <= {None}
    assert payloads[-1] is not None
    envelope = open_request(payloads[-1], key=KEY, now=1_700_000_000)
    assert (envelope.message, envelope.verified) == (MESSAGE, True)
