# SPDX-License-Identifier: Apache-2.0
"""The protocol of the service's socket: one JSON object a line, a request and its replies. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from koala_adapter import errors
from koala_adapter.api.jsonvalues import from_json, parse
from koala_adapter.errors import KoalaError, ProtocolError

LINE_LIMIT = 16 * 1024 * 1024
"""Longest request or reply, bytes."""
OPERATIONS = frozenset(
    {
        "submit",
        "cancel",
        "resize",
        "job",
        "jobs",
        "watch",
        "clusters",
        "plan",
        "script",
        "negotiate",
        "negotiations",
        "defects",
        "clean",
        "metrics",
        "ping",
        "stop",
        "stop-if-idle",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks.

    ``submit`` (job: text of a job as JSON), ``cancel``, ``resize`` (component, processors), ``job``, ``jobs``,
    ``watch`` (a reply at each change until the job is over; without one, of all jobs, until the service ends),
    ``clusters``, ``plan``, ``script``, ``negotiate`` (how a program gets to do so for a job), ``negotiations`` (of the
    job, if one is named; number, if one is), ``defects`` (of koala itself, one sentence each), ``clean`` (older,
    dry_run), ``metrics`` (OpenMetrics text), ``ping``, ``stop``, ``stop-if-idle`` (``stops`` tells whether it does).
    """

    operation: str
    job_id: str = ""
    job: dict[str, Any] | None = None
    cluster: str = ""
    limit: int = 50
    component: str = ""
    """Empty: the only one that can change its size."""
    processors: int = 0
    number: int = 0
    """Of a negotiation; 0: the latest ones."""
    older: float = 0.0
    """Seconds since the end of a job."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer; ``error`` set means refused. A watch has many, the last with ``last`` true."""

    result: Any = None
    error: str = ""
    hint: str = ""
    error_type: str = ""
    last: bool = True


_ERRORS = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, KoalaError)
}


def encode(message: Request | Reply) -> bytes:
    """Return the line of a message."""
    members = {one.name: getattr(message, one.name) for one in fields(message)}
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """Return the request of a line. Raises ProtocolError."""
    try:
        request = from_json(Request, parse(line), others=False)
    except ProtocolError as error:
        raise ProtocolError(f"malformed request: {error.message}") from None
    if request.operation not in OPERATIONS:
        raise ProtocolError(f"malformed request: there is no operation {request.operation!r}")
    return request


def decode_reply(line: bytes) -> Reply:
    """Return the reply of a line. Raises ProtocolError."""
    try:
        return from_json(Reply, parse(line), others=False)
    except ProtocolError as error:
        raise ProtocolError(f"malformed reply: {error.message}") from None


def refusal(error: KoalaError) -> Reply:
    """Return an error as a reply."""
    return Reply(error=error.message, hint=error.hint, error_type=type(error).__name__)


def raise_refusal(reply: Reply) -> None:
    """Raise the error a reply carries, of the type it had in the service."""
    if reply.error:
        raise _ERRORS.get(reply.error_type, KoalaError)(reply.error, hint=reply.hint)
