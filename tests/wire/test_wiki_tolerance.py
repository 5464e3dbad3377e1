# SPDX-License-Identifier: Apache-2.0
"""What peers were recorded to send beside the common forms, and what is made of it."""

from __future__ import annotations

import pytest

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import FrameReader, open_request, read_key, seal
from koala_adapter.wiki.codec.records import JobRecord, build_job
from koala_adapter.wiki.codec.verbs import CancelJob, ModifyJob, SignalJob, build_request, parse_request
from koala_adapter.wiki.codec.words import Dialect

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
def test_a_header_that_ends_with_carriage_return_and_line_feed(*, at_once: bool) -> None:
    """The line feed is the first byte of the payload: the checksum is wrong, as for Slurm, however the bytes come."""
    frame = seal(MESSAGE, key=KEY, timestamp=1_700_000_000, user="root")
    sent = frame[:8] + b"\r\n" + frame[9:]
    reader = FrameReader()
    pieces = [sent] if at_once else [sent[start : start + 1] for start in range(len(sent) - 1)]
    payload = [reader.feed(piece) for piece in pieces][-1]
    assert payload is not None
    assert payload[:1] == b"\n"
    with pytest.raises(WikiError, match="bad checksum"):
        open_request(payload, key=KEY, now=1_700_000_000)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_semicolon_ends_a_change(dialect: Dialect) -> None:
    """As Slurm read it: a blank or a semicolon separates the changes of MODIFYJOB."""
    request = parse_request(b"CMD=MODIFYJOB ARG=5 TIMELIMIT=10;BANK=bio2;", dialect)
    assert isinstance(request, ModifyJob)
    assert dict(request.changes) == {"TIMELIMIT": "10", "BANK": "bio2"}
