# SPDX-License-Identifier: Apache-2.0
"""Many streams over one connection, each with a window of its own. Pure: bytes in, events and bytes out.

A frame is a head of nine bytes (kind, stream, length) and its payload. Either side opens streams, with a request as a
JSON object; each side sends data within the credit that the other has granted, and ends its direction with a result. A
stream is over when both directions have ended, or when one side has reset it.

A side that has used all of its credit says so. Where the other side has taken most of what came before more comes, the
way is too long for the window, which is made wider. Python 3.6 or newer.
"""

import json
import struct
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

HELLO = b"koala gateway 1 is ready\n"
"""What a gateway says first. All before it is from the login: banners, and what start-up files print."""

WINDOW = 16 * 1024
"""Bytes that each side may send on a new stream before the other grants more."""
LONGEST_PAYLOAD = 8 * 1024 * 1024
"""Bytes of one request or result: that on the input files of all jobs names each of them by its digest."""
PIECE = 128 * 1024
"""Bytes of data in one frame, so that streams take turns."""
LEAST_CREDIT = 2
"""Bytes of the shortest piece: one that says of which output of a command it is, and one of that."""
GROWTH = 4
"""By how much a window is multiplied that is too narrow."""
WIDEST = 4 * 1024 * 1024
"""Bytes of the widest window: twice what OpenSSH has under way on a connection."""
LARGEST_CREDIT = 64 * 1024 * 1024
MOST_STREAMS = 8192
"""Open streams at once: a peer that opens more breaks the rules."""

HEAD = struct.Struct("!BII")
CREDIT = struct.Struct("!I")
OPEN, DATA, END, RESET, GRANT, USED = range(1, 7)


class ViolationError(Exception):
    """The peer broke the rules of the protocol: nothing that it says after that counts."""


class Event(NamedTuple):
    """What a peer has done on a stream."""

    kind: int
    stream: int
    data: bytes = b""
    content: "Dict[str, Any]" = {}  # noqa: RUF012 - an event is never changed
    """The request of OPEN, the result of END, the reason of RESET."""


class _Stream:
    """One open stream, seen from one side."""

    def __init__(self) -> None:
        self.credit = WINDOW  # bytes that we may send
        self.told = False  # the peer knows that we have used all of it
        self.window = WINDOW  # bytes that the peer may send
        self.width = WINDOW  # bytes that it may send until we take what has come
        self.used = False  # it had no credit left since the window got wider
        self.ended = False  # we have
        self.peer_ended = False


class Streams:
    """All streams of one connection, as one side sees them."""

    def __init__(self, *, gateway: bool, spare: int = 0) -> None:
        """``gateway``: this is the side of the gateway, whose streams have even numbers.

        ``spare``: bytes by which all windows together may be wider than they are at first, which bounds what may wait.
        """
        self.outgoing = bytearray()
        """What is to be sent. Whoever sends it takes it away."""
        self._streams: "Dict[int, _Stream]" = {}
        self._spare = spare
        self._next = 2 if gateway else 1
        self._last_of_peer = -1 if gateway else 0
        self._incoming = bytearray()

    # -- sending --

    def open(self, request: "Dict[str, Any]") -> int:
        """Open a stream and return its number. Raises ValueError for a request that is too long."""
        number = self._next
        self._put(OPEN, number, _encoded(request))
        self._next += 2
        self._streams[number] = _Stream()
        return number

    def credit(self, number: int) -> int:
        """Return how many bytes may be sent on a stream now; 0 also when it is over or our direction has ended."""
        stream = self._streams.get(number)
        return 0 if stream is None or stream.ended else stream.credit

    def send(self, number: int, data: "Union[bytes, memoryview]") -> None:
        """Send data on a stream, at most its credit; what is for a stream that is over is dropped."""
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            return
        if len(data) > stream.credit:
            raise ValueError("more than the credit of the stream")
        stream.credit -= len(data)
        for start in range(0, len(data), PIECE):
            self._put(DATA, number, data[start : start + PIECE])
        if stream.credit < LEAST_CREDIT and not stream.told:
            stream.told = True
            self._put(USED, number, b"")

    def end(self, number: int, result: "Optional[Dict[str, Any]]" = None) -> None:
        """End our direction of a stream."""
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            return
        stream.ended = True
        self._put(END, number, _encoded(result or {}))
        self._forget_over(number, stream)

    def reset(self, number: int, reason: str = "") -> None:
        """Give up a stream, both directions at once."""
        if number in self._streams:
            self._drop(number)
            self._put(RESET, number, _encoded({"reason": reason[:2000]}))

    def grant(self, number: int, size: int) -> None:
        """Let the peer send so many bytes more on a stream."""
        stream = self._streams.get(number)
        if stream is not None and not stream.peer_ended and size:
            stream.window += size
            self._put(GRANT, number, CREDIT.pack(size))
            self._widen_if_narrow(number, stream)

    def _widen_if_narrow(self, number: int, stream: _Stream) -> None:
        if stream.used and stream.window >= stream.width // 2:
            stream.used = False
            self.widen(number, max(0, min(GROWTH * stream.width, WIDEST) - stream.width))

    def widen(self, number: int, size: int) -> None:
        """Let the peer have so many bytes more under way on a stream, or as many as there are to spare."""
        stream = self._streams.get(number)
        if stream is not None and not stream.peer_ended:
            more = min(size, self._spare)
            self._spare -= more
            stream.width += more
            self.grant(number, more)

    def _put(self, kind: int, number: int, payload: "Union[bytes, memoryview]") -> None:
        if len(payload) > LONGEST_PAYLOAD:
            raise ValueError("a request or result is too long: {} bytes".format(len(payload)))
        self.outgoing += HEAD.pack(kind, number, len(payload))
        self.outgoing += payload

    # -- receiving --

    def receive(self, data: bytes) -> "List[Event]":
        """Take in bytes of the peer and return what it has done. Raises ViolationError."""
        self._incoming += data
        events = []
        at = 0
        with memoryview(self._incoming) as incoming:
            while len(incoming) - at >= HEAD.size:
                kind, number, length = HEAD.unpack_from(incoming, at)
                if length > LONGEST_PAYLOAD or not OPEN <= kind <= USED:
                    raise ViolationError("frame of kind {} with {} bytes".format(kind, length))
                if len(incoming) - at - HEAD.size < length:
                    break
                begin = at + HEAD.size
                at = begin + length
                event = self._event(kind, number, bytes(incoming[begin:at]))
                if event is not None:
                    events.append(event)
        del self._incoming[:at]
        return events

    def _event(self, kind: int, number: int, payload: bytes) -> "Optional[Event]":
        if kind == OPEN:
            return self._opened(number, payload)
        stream = self._streams.get(number)
        if stream is None:
            if number > max(self._last_of_peer, self._next - 2):
                raise ViolationError("stream {} was never opened".format(number))
            return None  # it is over on our side, which the peer did not know yet
        if kind == RESET:
            self._drop(number)
            return Event(RESET, number, content=_decoded(payload))
        if kind in (GRANT, USED):
            return self._of_credit(stream, kind, number, payload)
        if stream.peer_ended:
            raise ViolationError("stream {} goes on after its end".format(number))
        if kind == DATA:
            if not payload:
                raise ViolationError("stream {} sends nothing".format(number))  # no credit bounds it
            stream.window -= len(payload)
            if stream.window < 0:
                raise ViolationError("stream {} has sent more than was granted".format(number))
            return Event(DATA, number, payload)
        stream.peer_ended = True
        self._narrow(stream)
        self._forget_over(number, stream)
        return Event(END, number, content=_decoded(payload))

    def _opened(self, number: int, payload: bytes) -> Event:
        if number <= self._last_of_peer or number % 2 == self._next % 2:
            raise ViolationError("stream {} cannot be opened by the peer".format(number))
        if len(self._streams) >= MOST_STREAMS:
            raise ViolationError("more than {} streams".format(MOST_STREAMS))
        self._last_of_peer = number
        self._streams[number] = _Stream()
        return Event(OPEN, number, content=_decoded(payload))

    def _of_credit(self, stream: _Stream, kind: int, number: int, payload: bytes) -> "Optional[Event]":
        if kind == USED:
            stream.used = True
            self._widen_if_narrow(number, stream)
            return None
        if len(payload) != CREDIT.size:
            raise ViolationError("a grant of {} bytes".format(len(payload)))
        stream.credit += CREDIT.unpack(payload)[0]
        stream.told = False
        if stream.credit > LARGEST_CREDIT:
            raise ViolationError("stream {} has a credit beyond all measure".format(number))
        return Event(GRANT, number)

    def _forget_over(self, number: int, stream: _Stream) -> None:
        if stream.ended and stream.peer_ended:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._narrow(self._streams.pop(number))

    def _narrow(self, stream: _Stream) -> None:
        self._spare += stream.width - WINDOW
        stream.width = WINDOW


def _encoded(content: "Dict[str, Any]") -> bytes:
    # In ASCII, with the halves of pairs by which Python keeps the undecodable bytes of file names.
    return json.dumps(content).encode("ascii")


def _decoded(payload: bytes) -> "Dict[str, Any]":
    try:
        content = json.loads(payload.decode("ascii"))
    except (ValueError, RecursionError):
        raise ViolationError("a request or result is no JSON") from None
    if not isinstance(content, dict):
        raise ViolationError("a request or result is no JSON object")
    return content


def after_hello(said: bytes) -> "Tuple[Optional[bytes], bytes]":
    """Divide what came first into what follows HELLO, None before it has come, and what came before it."""
    before, found, after = said.partition(HELLO)
    return (after, before) if found else (None, said)
