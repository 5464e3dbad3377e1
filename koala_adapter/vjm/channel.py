# SPDX-License-Identifier: Apache-2.0
"""The channel between an agent and the control center: messages to bytes and back.

Pure: no I/O and no clock. A message is one line of JSON in UTF-8; the member ``kind`` names it. The bytes of an output
file follow their line as they are: as text they would take most of the time of both sides. Members that a side
does not know are ignored, so that a newer peer may send more; all that it knows is checked before it is used. The agent
is a file of its own and speaks the same lines by its own few functions; tests compare the two.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Generic, Literal, TypeAlias, TypeVar, cast

from pydantic import EncodedBytes, EncoderProtocol, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, PydanticSerializationError

from koala_adapter.errors import ProtocolError
from koala_adapter.model import (
    EndReason,  # noqa: TC001 - pydantic reads the annotations
    TaskEnd,  # noqa: TC001 - pydantic reads the annotations
)
from koala_adapter.wire.messages import adapter_of

# -- Members of messages: bounds, and bytes as text ----------------------------------------------------------

OUTPUT_LIMIT = 128 * 1024
"""Most bytes of output in one message."""

LARGEST_FRAME = 9 + 65_536
"""Most bytes of what an application says at once: a frame, with its header."""

FILES_LIMIT = 10_000
"""Most output files of one task."""

FILE_PIECE = 256 * 1024
"""Most bytes of an output file after one line."""

INPUT_PIECE = 256 * 1024
"""Bytes of an input file in one message."""

FETCHES = 8
"""Pieces of input files that one agent may ask for before they have come."""

LISTENING_LIMIT = 16
"""Most ports of one task at which others reach it through koala."""


class StrictBase64(EncoderProtocol):
    """Codec of RFC 4648 base64 that rejects all other characters."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        """Decode base64 text."""
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise PydanticCustomError("base64", "not base64") from None

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Encode bytes as base64."""
        return base64.b64encode(value)

    @classmethod
    def get_json_format(cls) -> str:
        """Return the name of the encoding for JSON schemas."""
        return "base64"


Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\A[!-~]+\z")]
Word: TypeAlias = Annotated[str, Field(max_length=255, pattern=r"\A[!-~]*\z")]
Text: TypeAlias = Annotated[str, Field(max_length=2000)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Duration: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Offset: TypeAlias = Annotated[int, Field(ge=0, le=2**50)]
Data: TypeAlias = Annotated[bytes, EncodedBytes(encoder=StrictBase64)]
OutputData: TypeAlias = Annotated[Data, Field(max_length=OUTPUT_LIMIT)]
Frame: TypeAlias = Annotated[Data, Field(min_length=1, max_length=LARGEST_FRAME)]
StreamName: TypeAlias = Literal["out", "err"]
FileNumber: TypeAlias = Annotated[int, Field(ge=1, le=FILES_LIMIT)]
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]
Ports: TypeAlias = Annotated[tuple[Port, ...], Field(max_length=LISTENING_LIMIT)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**50)]
Digest: TypeAlias = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
"""SHA-256 of a content."""


# -- Messages, and their lines -------------------------------------------------------------------------------

VERSION = 1
"""Version of these messages; an agent that speaks another one is refused."""

HELLO_LIMIT = 256 * 1024
"""Longest line (bytes) that a center takes from a peer that has not proved itself: a Hello with many task reports."""

AGENT_LINE_LIMIT = 512 * 1024
"""Longest line (bytes) that a center takes from a registered agent."""

CENTER_LINE_LIMIT = 32 * 1024 * 1024
"""Longest line (bytes) that an agent takes: a Launch with its input files (base64 makes them a third longer)."""

NAMED_LIMIT = 20
"""Most files that a task names among those which do not arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Report of an agent on one task in its Hello.

    Not running and no ``end``: it is over, but not all of its output is acknowledged; a TaskEnded will follow.
    """

    task: Name
    running: bool
    end: TaskEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMessage:
    """First message of an agent on a connection: who it is, and the proof."""

    batch: Name
    index: Annotated[int, Field(ge=1, le=2**31)]
    token: Name = field(repr=False)
    """Secret of the batch, from the job script."""
    session: Name = field(repr=False)
    """Random secret of this one agent process: the first one that registers for an index owns it for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(FirstMessage):
    """First message on the connection by which an agent is told what to do."""

    lrm_id: Word
    host: Word
    address: Word
    """The node's own address on its way to the center."""
    pid: int
    ends_in: Seconds | None
    """Seconds until the walltime ends; None: not known."""
    python: Word
    tasks: Annotated[tuple[TaskReport, ...], Field(max_length=1000)] = ()
    version: int = VERSION
    resends: bool = False
    """Understands Resend; agents of earlier versions do not."""
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The ports at which processes of a task listen, for others to reach them through koala: all of them, each time."""

    task: Name
    ports: Ports
    kind: Literal["listening"] = "listening"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelAsked(FirstMessage):
    """First message on a connection of its own: a process connects to a port of another one through koala.

    Answered by Joined; then the connection carries the bytes of the process, in frames. Refused by its end.
    """

    job: Name
    peer: Annotated[int, Field(ge=-1, le=2**31)]
    """Rank to whose port it connects; -1: koala's host."""
    port: Port
    listening: Annotated[tuple[Listening, ...], Field(max_length=1000)] = ()
    """At which ports its own tasks listen now: the peer may be told of them through this connection."""
    kind: Literal["tunnel-asked"] = "tunnel-asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelTaken(FirstMessage):
    """First message on a connection of its own: an agent does what a Tunnel has told it. Answered as TunnelAsked."""

    tunnel: Name
    kind: Literal["tunnel-taken"] = "tunnel-taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """All until the Forward of this number has been done; ``fault``: why a port could not be listened at, if so."""

    job: Name
    number: Count
    fault: Text = ""
    kind: Literal["forwarded"] = "forwarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """The port at which an agent listens for a moment, as ProbeListen told it."""

    probe: Name
    port: Port
    kind: Literal["probing"] = "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was heard at the port of another agent; empty: it cannot be reached."""

    probe: Name
    answer: Word
    kind: Literal["probed"] = "probed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Regular message of an idle agent, answered by Pong."""

    kind: Literal["heartbeat"] = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted:
    """The process of a task was started."""

    task: Name
    pid: int
    kind: Literal["task-started"] = "task-started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A piece of a task's output: ``data`` begins ``offset`` bytes after the start of the stream."""

    task: Name
    stream: StreamName
    offset: Offset
    data: OutputData
    kind: Literal["output"] = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resending:
    """Answer to Resend: output restarts at the last OutputAck."""

    task: Name
    stream: StreamName
    kind: Literal["resending"] = "resending"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """A piece of an output file of a task that is over: ``data`` begins ``offset`` bytes after the file's start.

    Answered by FileAck. The first one on each connection goes alone, from the start of the file; the answer says how
    much there is already.
    """

    task: Name
    number: FileNumber
    """Which of the task's files; it stays the same."""
    path: Annotated[Data, Field(min_length=1, max_length=4096)]
    """Path below the rank's directory, in the bytes that it has there."""
    mode: Annotated[int, Field(ge=0, le=0o777)]
    size: Offset
    """Bytes of the whole file."""
    offset: Offset
    data: OutputData = b""
    follows: Annotated[int, Field(ge=0, le=FILE_PIECE)] = 0
    """Bytes after the line, in the place of ``data``. Earlier agents say all in the line."""
    digest: Digest | None = None
    """Of the whole file, with its last piece. Earlier agents do not say it."""
    kind: Literal["file"] = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Asks for a piece of an input file of a task, answered by InputPiece; at most FETCHES are asked for at once."""

    task: Name
    digest: Digest
    offset: Offset
    kind: Literal["fetch"] = "fetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """A wanted file that does not arrive."""

    path: Text
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """Final report on a task's output files.

    Answered by FilesAck. Not said of a task that was asked for no files and left none.
    """

    task: Name
    arrived: Count
    size: Count
    """Bytes of what has arrived."""
    left: Count
    """Files that were not asked for, and are removed with the rank's directory."""
    left_names: Annotated[tuple[Text, ...], Field(max_length=NAMED_LIMIT)]
    omitted: Count
    omissions: Annotated[tuple[Omission, ...], Field(max_length=NAMED_LIMIT)]
    kind: Literal["files"] = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    """A task is over, and all its output has been sent before this message; if it ended well, its files as well."""

    task: Name
    end: TaskEnd
    kind: Literal["task-ended"] = "task-ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One whole frame that the process of a task says to koala, or koala to it, both ways; it may get lost.

    Only of and for tasks whose Launch had ``application``.
    """

    task: Name
    data: Frame
    kind: Literal["application"] = "application"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The agent ends with its tasks: walltime, LRM or a signal."""

    reason: EndReason
    detail: Text = ""
    kind: Literal["ending"] = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Answer to a valid Hello."""

    lease: Duration
    """Seconds without contact after which the agent ends by itself."""
    heartbeat: Duration
    """Seconds between two heartbeats."""
    kind: Literal["welcome"] = "welcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Answer to an invalid Hello: the agent must end."""

    reason: Text
    kind: Literal["refused"] = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """A file that must be there before the task starts."""

    target: Annotated[str, Field(min_length=1, max_length=4096)]
    """Path below the working directory."""
    mode: Annotated[int, Field(ge=0, le=0o777)]
    content: Data = field(default=b"", repr=False)
    """All of it, for a file without a ``digest``."""
    digest: Digest | None = None
    """The agent gets a file with one by itself: where it sees it, or by Fetch. Ranks may only read it."""
    size: Offset = 0
    """Bytes of such a file."""
    modified: Offset = 0
    """Seconds since the epoch."""
    source: str = ""
    """Where it was on the host of its submission, which the node may see, too."""
    link: Annotated[str, Field(max_length=4096)] = ""
    """Absolute path on the node to which it is a symbolic link; empty: it is a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWarning:
    """Signal for the near end of time, sent only to processes with a handler for it."""

    signal: Annotated[int, Field(ge=1, le=64)]
    after: Duration
    """Seconds from the start of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Listen at ports of an address of 127.0.0.0/8 for the processes of a job, and forward their connections.

    Answered by Forwarded. The ports are all of this peer: those that are missing are no longer listened at.
    """

    job: Name
    number: Count
    peer: Annotated[int, Field(ge=-1, le=2**31)]
    """Rank that is reached there; -1: koala's host."""
    address: Word
    ports: Ports
    direct: Word = ""
    """Address to which connections are forwarded; empty: through koala, by TunnelAsked."""
    kind: Literal["forward"] = "forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """Connect to a port at which a task listens, and dial to koala for it with TunnelTaken."""

    task: Name
    tunnel: Name
    """Random name, known to this agent alone."""
    port: Port
    kind: Literal["tunnel"] = "tunnel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Answer to TunnelAsked and TunnelTaken: frames follow, both ways."""

    kind: Literal["joined"] = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeListen:
    """Listen at a free port for a moment, and answer a connection that says the name of the probe.

    Answered by Probing. Earlier agents know nothing of it.
    """

    probe: Name
    answer: Name
    kind: Literal["probe-listen"] = "probe-listen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReach:
    """Connect to the port of another agent. Answered by Probed. Earlier agents know nothing of it."""

    probe: Name
    says: Name
    """The name of the other agent's probe."""
    address: Word
    port: Port
    kind: Literal["probe-reach"] = "probe-reach"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start a process. A task id that the agent knows already is not started again: its state is told again."""

    task: Name
    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    environment: tuple[tuple[str, str], ...] = ()
    """Added to the node's environment, from which everything of the LRM was removed."""
    working_directory: str | None = None
    """None: a private directory that is removed afterwards."""
    files: tuple[LaunchFile, ...] = ()
    places: tuple[str, ...] = ()
    """Directories in which the nodes may find files by their digests."""
    share: Annotated[str, Field(pattern=r"\A(koala-[0-9a-f]{32})?\z")] = ""
    """Name of the directory in which the agents of a job on one node share what they get."""
    time_limit: Duration | None = None
    """Seconds after which the agent itself ends the task."""
    warning: TimeWarning | None = None
    """Earlier agents know nothing of it."""
    output_files: tuple[str, ...] | None = None
    """Glob patterns of the files that are to be sent when the task is over; None: files are of no interest."""
    application: bool = False
    """The process may speak with koala, by the Unix socket in KOALA_APP_SOCKET. Earlier agents know nothing of it."""
    library: tuple[LaunchFile, ...] = ()
    """Python modules for the process: outside of its working directory, where PYTHONPATH begins."""
    setup: tuple[str, ...] = ()
    """Lines that a shell runs first, in the place of which ``argv`` then runs. Earlier agents know nothing of it."""
    relayed: bool = False
    """The agent tells at which ports its processes listen, by Listening. Earlier agents know nothing of it."""
    forwards: tuple[Forward, ...] = ()
    """What is listened at before the process starts. Earlier agents know nothing of it."""
    kind: Literal["launch"] = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal to the process group of a task."""

    task: Name
    signal: Annotated[int, Field(ge=1, le=64)]
    kind: Literal["signal"] = "signal"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputAck:
    """Everything of the stream before ``offset`` is safe: the agent forgets it."""

    task: Name
    stream: StreamName
    offset: Offset
    kind: Literal["output-ack"] = "output-ack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """Output after the last OutputAck was lost: send it again, and repeat the task's end."""

    task: Name
    stream: StreamName
    kind: Literal["resend"] = "resend"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAck:
    """The first ``offset`` bytes of an output file are safe; or, with a ``refusal``, it is not wanted any more."""

    task: Name
    number: FileNumber
    offset: Offset
    refusal: Text = ""
    again: bool = False
    """It has come with another content than it was read with: all of it is to be read and sent once more."""
    kind: Literal["file-ack"] = "file-ack"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPiece:
    """A piece of an input file: INPUT_PIECE bytes, less at its end; or why it cannot be had."""

    task: Name
    digest: Digest
    offset: Offset
    data: Data
    refusal: Text = ""
    kind: Literal["input"] = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesAck:
    """The final report on a task's files is stored: the agent may remove them."""

    task: Name
    kind: Literal["files-ack"] = "files-ack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """End all tasks (SIGTERM, after ``grace`` seconds SIGKILL), send what is left of output and files, and exit."""

    grace: Seconds
    kind: Literal["release"] = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Answer to a Heartbeat."""

    kind: Literal["pong"] = "pong"


AgentMessage: TypeAlias = (
    Hello
    | Heartbeat
    | TaskStarted
    | Output
    | Resending
    | Fetch
    | FilePiece
    | TaskFiles
    | TaskEnded
    | Application
    | Ending
    | Listening
    | Forwarded
    | Probing
    | Probed
    | TunnelAsked
    | TunnelTaken
)
CenterMessage: TypeAlias = (
    Welcome
    | Refused
    | Launch
    | Signal
    | Application
    | OutputAck
    | Resend
    | InputPiece
    | FileAck
    | FilesAck
    | Release
    | Pong
    | Forward
    | Tunnel
    | Joined
    | ProbeListen
    | ProbeReach
)

M = TypeVar("M")


@cache
def _agent_messages() -> TypeAdapter[AgentMessage]:
    return TypeAdapter(Annotated[AgentMessage, Field(discriminator="kind")])


@cache
def _center_messages() -> TypeAdapter[CenterMessage]:
    return TypeAdapter(Annotated[CenterMessage, Field(discriminator="kind")])


def encode(message: AgentMessage | CenterMessage) -> bytes:
    """Encode a message as a line. Raises ProtocolError when it is invalid or exceeds the peer's limit."""
    to_agent = isinstance(message, CenterMessage)  # Application goes both ways, and is shorter than either limit
    try:
        line = adapter_of(type(message)).dump_json(message) + b"\n"
    except (PydanticSerializationError, UnicodeError) as error:
        raise ProtocolError(f"a {message.kind} message cannot be written as UTF-8: {error}") from error
    limit = CENTER_LINE_LIMIT if to_agent else AGENT_LINE_LIMIT
    if len(line) > limit:
        raise ProtocolError(
            f"a {message.kind} message of {len(line)} bytes is longer than the channel takes ({limit} bytes)",
            hint="fewer input files, or shorter names of them",
        )
    return line


class Decoder(Generic[M]):
    """Incremental decoder of lines, and of bytes that follow them, into messages; unusable after an error."""

    def __init__(self, adapter: TypeAdapter[M], *, limit: int) -> None:
        """``limit``: longest line in bytes; may be raised later through the attribute of the same name."""
        self.limit = limit
        self._adapter = adapter
        self._rest = bytearray()
        self._announced: FilePiece | None = None
        """Piece of a file whose bytes follow."""

    def feed(self, data: bytes) -> list[M]:
        """Decode the next bytes and return the complete messages.

        Raises ProtocolError for whatever is not a message of the expected direction, and for a line over the limit.
        """
        searched = len(self._rest)
        self._rest += data
        messages: list[M] = []
        start = 0
        while True:
            if self._announced is not None:
                end = start + self._announced.follows
                if len(self._rest) < end:
                    break
                whole = replace(self._announced, data=bytes(self._rest[start:end]), follows=0)
                messages.append(cast("M", whole))  # as its line was one
                self._announced, start = None, end
            if (end := self._rest.find(b"\n", max(start, searched))) < 0:
                break
            message = self._message(self._rest[start:end])
            start = end + 1
            if isinstance(message, FilePiece) and message.follows:
                self._announced = message
            else:
                messages.append(message)
        del self._rest[:start]
        if len(self._rest) > self.limit:
            raise ProtocolError(f"a line is longer than {self.limit} bytes")
        return messages

    def _message(self, line: bytearray) -> M:
        if len(line) > self.limit:
            raise ProtocolError(f"a line is longer than {self.limit} bytes")
        try:
            return self._adapter.validate_json(line, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise ProtocolError(f"malformed message: {where}: {first['msg']}") from None


def agent_decoder(*, limit: int = HELLO_LIMIT) -> Decoder[AgentMessage]:
    """Return a decoder for what agents send."""
    return Decoder(_agent_messages(), limit=limit)


def center_decoder(*, limit: int = CENTER_LINE_LIMIT) -> Decoder[CenterMessage]:
    """Return a decoder for what the control center sends."""
    return Decoder(_center_messages(), limit=limit)
