# SPDX-License-Identifier: Apache-2.0
"""Reads the requests to a DRMAA helper process, in that process. Pure; without pydantic, whose import takes long."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from koala_drmaa.protocol import (
    AbandonBatches,
    ControlAction,
    ControlJobs,
    ListBatches,
    NumberedRequest,
    OpenSession,
    ReachLrm,
    SubmitJobs,
    Template,
    not_understood,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_drmaa.protocol import Request

T = TypeVar("T")

REQUESTS: Mapping[str, type[Request]] = {
    "open": OpenSession,
    "submit": SubmitJobs,
    "control": ControlJobs,
    "list": ListBatches,
    "abandon": AbandonBatches,
    "reach": ReachLrm,
}


def decode_request(line: bytes) -> NumberedRequest:
    """Return the request of one line. Raises ProtocolError."""
    try:
        found = _of_type(dict, json.loads(line))
        request = dict(_of_type(dict, found.pop("request")))
        kind = REQUESTS[_of_type(str, request.pop("op"))]
        number = _of_type(int, found.pop("number"))
        if found:
            raise not_understood(f"{next(iter(found))} beside number and request")
        return NumberedRequest(number=number, request=_made(kind, request))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise not_understood(f"{type(error).__name__}: {error}") from error


def _made(kind: type[T], values: Mapping[str, object]) -> T:
    types = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]  # they are dataclasses
    return kind(**{name: _READERS[types[name]](value) for name, value in values.items()})


def _of_type(kind: type[T], value: object) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"found a {type(value).__name__} for a {kind.__name__}")
    return value


_READERS: Mapping[str, Callable[[object], object]] = {
    "str": lambda value: _of_type(str, value),
    "str | None": lambda value: None if value is None else _of_type(str, value),
    "int": lambda value: _of_type(int, value),
    "bool": lambda value: _of_type(bool, value),
    "tuple[str, ...]": lambda value: tuple(_of_type(str, one) for one in _of_type(list, value)),
    "ControlAction": lambda value: ControlAction(_of_type(str, value)),
    "Template": lambda value: _made(Template, _of_type(dict, value)),
}
"""What reads a field, by its type as it is written."""
