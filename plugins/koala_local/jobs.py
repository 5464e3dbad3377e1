# SPDX-License-Identifier: Apache-2.0
"""What client and daemon say to each other: one JSON object each way per connection, ended by end of file.

The socket lies in a directory that only its user can enter, and both sides check the other's user all the same.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import TYPE_CHECKING, TypeAlias, Union

from koala_adapter.errors import (
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    ProtocolError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Json: TypeAlias = Union[bool, int, float, str, "list[Json]", "dict[str, Json]", None]

SOCKET_NAME = "socket"
LONGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes; a submission with its script is far below."""

ERRORS: Mapping[str, type[LrmError]] = {
    "rejected": LrmRejectedError,
    "not found": LrmNotFoundError,
    "unavailable": LrmUnavailableError,
}


class Fields:
    """Typed reading of a JSON object that came from outside; every method raises ProtocolError."""

    def __init__(self, value: Json) -> None:
        """``value`` must be an object."""
        if not isinstance(value, dict):
            raise ProtocolError(f"expected a JSON object, found {type(value).__name__}")
        self._values = value

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None when it is null or absent."""
        return None if self._values.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        """Return an integer."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "an integer")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return an integer, or None when it is null or absent."""
        return None if self._values.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """Return an integer or a fraction."""
        value = self._values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, "a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a number, or None when it is null or absent."""
        return None if self._values.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list of strings")
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) != len(value):
            raise self._wrong(name, "a list of strings")
        return texts

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Return a list of objects."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list of objects")
        return tuple(Fields(item) for item in value)

    def object(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self._values.get(name))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def _wrong(self, name: str, wanted: str) -> ProtocolError:
        return ProtocolError(f"{name!r} must be {wanted}, found {self._values.get(name)!r:.80}")


def encode(message: Mapping[str, Json]) -> bytes:
    """Return a message as bytes. Text that is no valid Unicode (undecodable bytes) survives as escapes."""
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def decode(raw: bytes) -> Fields:
    """Return the object in ``raw``. Raises ProtocolError."""
    try:
        return Fields(json.loads(raw))
    except ValueError as error:
        raise ProtocolError(f"not a JSON object: {error}") from error


def failure(error: LrmError) -> dict[str, Json]:
    """Return the answer that makes `raise_failure` raise the same error at the other end."""
    kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "unavailable")
    return {"error": kind, "message": error.message, "hint": error.hint}


def raise_failure(answer: Fields) -> None:
    """Raise the LrmError that an answer tells of; do nothing when it tells of none."""
    if "error" in answer:
        kind = ERRORS.get(answer.text("error"), LrmUnavailableError)
        raise kind(answer.text("message"), hint=answer.text("hint"))


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket (unix(7), SO_PEERCRED)."""
    form = "3i"
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    _pid, user, _group = struct.unpack(form, raw)
    return int(user)


def short_path(directory: int) -> str:
    """Return a path of the socket in an open directory: a Unix socket's path must be below 108 bytes (unix(7))."""
    return f"/proc/{os.getpid()}/fd/{directory}/{SOCKET_NAME}"
