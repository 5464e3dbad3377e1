# SPDX-License-Identifier: Apache-2.0
"""The protocol of the service's socket: one JSON object a line, a request and its replies. Pure."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from koala_adapter import errors
from koala_adapter.errors import KoalaError, ProtocolError

LINE_LIMIT = 16 * 1024 * 1024
"""Longest request or reply, bytes."""


class Request(BaseModel):
    """What a client asks.

    ``submit`` (job: text of a job as JSON), ``cancel``, ``job``, ``jobs``, ``watch`` (a reply at each change until the
    job is over), ``clusters``, ``plan``, ``script``, ``defects`` (of koala itself, one sentence
    each), ``ping``, ``stop``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: Literal[
        "submit", "cancel", "job", "jobs", "watch", "clusters", "plan", "script", "defects", "ping", "stop"
    ]
    job_id: str = ""
    job: dict[str, Any] | None = None
    cluster: str = ""
    limit: int = 50


class Reply(BaseModel):
    """One answer; ``error`` set means refused. A watch has many, the last with ``last`` true."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    result: Any = None
    error: str = ""
    hint: str = ""
    error_type: str = ""
    last: bool = True


_REQUEST = TypeAdapter(Request)
_REPLY = TypeAdapter(Reply)
_ERRORS = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, KoalaError)
}


def encode(message: Request | Reply) -> bytes:
    """Return the line of a message."""
    return json.dumps(message.model_dump(mode="json"), separators=(",", ":")).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """Return the request of a line. Raises ProtocolError."""
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"malformed request: {error.errors(include_url=False)[0]['msg']}") from None


def decode_reply(line: bytes) -> Reply:
    """Return the reply of a line. Raises ProtocolError."""
    try:
        return _REPLY.validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"malformed reply: {error.errors(include_url=False)[0]['msg']}") from None


def refusal(error: KoalaError) -> Reply:
    """Return an error as a reply."""
    return Reply(error=error.message, hint=error.hint, error_type=type(error).__name__)


def raise_refusal(reply: Reply) -> None:
    """Raise the error a reply carries, of the type it had in the service."""
    if reply.error:
        raise _ERRORS.get(reply.error_type, KoalaError)(reply.error, hint=reply.hint)
