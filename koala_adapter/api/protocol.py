# SPDX-License-Identifier: Apache-2.0
"""The protocol of the service's socket: one JSON object a line, a request and its replies. No I/O.

Values are read from JSON by the types of their fields, without pydantic, because clients must start quickly.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from koala_adapter import errors
from koala_adapter.config.written import DescribedJob, is_text
from koala_adapter.errors import KoalaError, ProtocolError
from koala_adapter.report.selection import JobSelection  # noqa: TC001 - its type is read at run time

if TYPE_CHECKING:
    from koala_adapter.model import Job

# -- Dataclasses from JSON -----------------------------------------------------------------------------------

T = TypeVar("T")

LARGEST_WHOLE = 2**63 - 1
"""The largest whole number that SQLite keeps."""


def parse(line: bytes | str) -> object:
    """Parse a line as JSON. Raises ProtocolError."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"this is no JSON document: {error}") from None


def from_json(wanted: type[T], value: object, *, others: bool = True) -> T:
    """Convert a JSON object to dataclass ``wanted``; ``others``: whether unknown members are left out.

    Its fields are strings, numbers, enumerations, tuples, dictionaries and such dataclasses, or None. Raises
    ProtocolError that names the member.
    """
    return cast("T", _dataclass(wanted, value, wanted.__name__, others=others))


@cache
def _members(wanted: type) -> dict[str, tuple[Any, bool]]:
    """Return type and obligation of each field of a dataclass."""
    hints = get_type_hints(wanted)
    return {
        one.name: (hints[one.name], one.default is MISSING and one.default_factory is MISSING) for one in fields(wanted)
    }


def _dataclass(wanted: type, value: object, where: str, *, others: bool = True) -> object:
    if not isinstance(value, dict):
        raise _mismatch(where, "an object")
    members = _members(wanted)
    if not others and (unknown := value.keys() - members.keys()):
        raise ProtocolError(f"{where} has no member {min(unknown)!r}")
    missing = [name for name, (_, required) in members.items() if required and name not in value]
    if missing:
        raise ProtocolError(f"{where} lacks {', '.join(missing)}")
    found = {name: _value(kind, value[name], f"{where}.{name}") for name, (kind, _) in members.items() if name in value}
    made: object = wanted(**found)
    return made


def _value(kind: Any, value: object, where: str) -> object:  # noqa: ANN401 - annotations of many forms
    arguments = get_args(kind)
    match get_origin(kind):
        case None:
            return _single(getattr(kind, "__supertype__", kind), value, where)
        case origin if origin in {Union, UnionType}:
            if value is None and NoneType in arguments:
                return None
            *others, last = (one for one in arguments if one is not NoneType)
            for inner in others:
                with suppress(ProtocolError):
                    return _value(inner, value, where)
            return _value(last, value, where)
        case origin if origin is tuple and isinstance(value, list):
            kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
            if len(kinds) != len(value):
                raise _mismatch(where, f"a list of {len(kinds)}")
            return tuple(_value(one, inner, where) for one, inner in zip(kinds, value, strict=True))
        case origin if origin is dict and isinstance(value, dict):
            return {key: _value(arguments[1], one, f"{where}.{key}") for key, one in value.items()}
    raise _mismatch(where, str(kind))


def _single(kind: Any, value: object, where: str) -> object:  # noqa: ANN401 - annotations of many forms
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _dataclass(cast("type", kind), value, where)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise _mismatch(where, f"one of {', '.join(str(one.value) for one in kind)}") from None
    if type(value) is int and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        raise _mismatch(where, f"a number between {-LARGEST_WHOLE} and {LARGEST_WHOLE}")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (isinstance(value, str) and not is_text(value)):
        raise _mismatch(where, kind.__name__)
    return value


def _mismatch(where: str, expected: str) -> ProtocolError:
    return ProtocolError(f"{where}: expected {expected}")


# -- Requests and replies ------------------------------------------------------------------------------------

LINE_LIMIT = 16 * 1024 * 1024
"""Longest request or reply, bytes."""
MEASURING = 300.0
"""Seconds within which the network is measured when that is asked for; what is not measured by then is left out."""
OPERATIONS = frozenset(
    {
        "check",
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
        "reload",
        "stop",
        "stop-if-idle",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A client's request.

    ``check`` (described: a job as it was written; answered with the job as ``submit`` takes it), ``submit`` (job:
    text of a job as JSON; submission: a name that the client gave it, or empty: sent again, it is answered with the
    same job), ``cancel``, ``resize`` (component, processors), ``job``, ``jobs`` (the latest ones; with a selection,
    those of it that the scheduler still has: callers read the archive themselves), ``watch`` (a reply at each change
    until the job is over; without one, of all jobs, until the service ends), ``clusters`` (measure: the network
    first), ``plan``, ``script``, ``negotiate`` (how a program gets to do so for a job), ``negotiations`` (of the job,
    if one is named; number, if one is), ``defects`` (of koala itself, and sites that are away), ``clean`` (older,
    dry_run), ``metrics`` (OpenMetrics text), ``ping`` (process id; ``site``: its site file, and what that was when it
    was read; ``reload_failure``: why it did not start with a file read again), ``reload`` (of the site file),
    ``stop``, ``stop-if-idle`` (``stops`` tells whether it does).
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
    measure: bool = False
    submission: str = ""
    selection: JobSelection | None = None
    described: DescribedJob | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply to a request; ``error``: it is refused. A watch has several, the last with ``last`` true."""

    result: Any = None
    error: str = ""
    hint: str = ""
    error_type: str = ""
    last: bool = True


_ERRORS = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, KoalaError)
}


def encode(message: Request | Reply) -> bytes:
    """Return a message as a line; a request has only the members that are set."""
    members = {one.name: getattr(message, one.name) for one in fields(message)}
    if isinstance(message, Request):
        defaults = {one.name: one.default for one in fields(message)}
        members = {name: value for name, value in members.items() if value != defaults[name]}
        nested = {"selection": message.selection, "described": message.described}
        members |= {name: asdict(value) for name, value in nested.items() if value is not None}
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


def submission(job: Job, name: str) -> Request:
    """Return the request that submits a job under a submission name."""
    return Request(operation="submit", job=asdict(job), submission=name)


def decode_request(line: bytes) -> Request:
    """Parse a line as a request. Raises ProtocolError."""
    try:
        request = from_json(Request, parse(line), others=False)
    except ProtocolError as error:
        raise ProtocolError(f"malformed request: {error.message}") from None
    if request.operation not in OPERATIONS:
        raise ProtocolError(f"malformed request: there is no operation {request.operation!r}")
    return request


def decode_reply(line: bytes) -> Reply:
    """Parse a line as a reply. Raises ProtocolError."""
    try:
        return from_json(Reply, parse(line), others=False)
    except ProtocolError as error:
        raise ProtocolError(f"malformed reply: {error.message}") from None


def refusal(error: KoalaError) -> Reply:
    """Return the reply that refuses with an error."""
    return Reply(error=error.message, hint=error.hint, error_type=type(error).__name__)


def raise_refusal(reply: Reply) -> None:
    """Raise the error in a reply, with its type in the service."""
    if reply.error:
        raise _ERRORS.get(reply.error_type, KoalaError)(reply.error, hint=reply.hint)
