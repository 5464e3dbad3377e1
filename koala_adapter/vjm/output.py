# SPDX-License-Identifier: Apache-2.0
"""Output of ranks, and their input: files of output, the connection of one agent, output of its tasks, input files.

Each byte of output is written once, in order, to files that only the user can read. The size of a file is the whole
state: what agents send again after a lost connection or a restart of the service is recognized by its offset. Files are
opened for each piece, since thousands of ranks would need more descriptors than there are.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.to_thread

from koala_adapter.errors import ProtocolError
from koala_adapter.host.containment import report_defect
from koala_adapter.vjm import channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup
    from anyio.streams.tls import TLSStream

    from koala_adapter.model import PlaceholderId
    from koala_adapter.vjm.channel import AgentMessage, CenterMessage, Decoder
    from koala_adapter.vjm.listener import TaskListener


# -- Files of output -----------------------------------------------------------------------------------------

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def append(path: Path, offset: int, data: bytes) -> int:
    """Append ``data`` that begins at ``offset`` of a stream to its file; return the new size.

    The file has mode 0600, in directories of mode 0700. What it has already is left out. What is missing before
    ``offset`` was acknowledged, so the file has been emptied or removed since: the gap is filled with NUL bytes, as in
    the output file of any program that is emptied while the program writes on. Raises OSError when the file cannot be
    written (no space, or not a plain file of ours).
    """
    descriptor = _open(path)
    try:
        size = os.fstat(descriptor).st_size
        if offset > size:
            os.ftruncate(descriptor, offset)
            size = offset
        view = memoryview(data)[size - offset :]
        while view:
            written = os.pwrite(descriptor, view, size)
            size += written
            view = view[written:]
        return size
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except FileNotFoundError:
        _make_directories(path.parent)
        descriptor = os.open(path, _FLAGS, 0o600)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path} is not a plain file of our own")
    return descriptor


def _make_directories(directory: Path) -> None:
    """Make all missing directories with mode 0700 (``Path.mkdir`` gives it only to the last)."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)


# -- The connection of an agent that has proved its identity -------------------------------------------------
# Messages go out in order and bounded, and no caller waits for them.

LOST = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What reading from or writing to a peer may raise that is no fault of ours."""

PIECE = 16 * 1024
"""Bytes written at once: one TLS record, so that buffers of a connection never grow with the size of a message."""

UNREAD = 10_000
"""Messages that may wait for one agent to read them."""


class AgentConnection:
    """Connection to one agent."""

    def __init__(
        self, placeholder: PlaceholderId, stream: TLSStream, decoder: Decoder[AgentMessage], tasks: TaskGroup
    ) -> None:
        """``tasks``: within which messages are written."""
        self.placeholder = placeholder
        self.tasks = tasks
        """Within which all that takes time is done for the agent."""
        self.scope = anyio.CancelScope()
        """In which it is followed; cancelled to end it."""
        self.fault = ""
        """Why ``scope`` was cancelled; empty when it was not."""
        self.closed = False
        """The agent has closed it."""
        self._stream = stream
        self._decoder = decoder
        self._decoder.limit = channel.AGENT_LINE_LIMIT
        self._outgoing: list[bytes] = []
        self._writing = False
        self._written = anyio.Event()
        """Set when nothing waits to be written, or the connection ends."""

    def drop(self, fault: str) -> None:
        """End the connection."""
        self.fault = fault
        self.scope.cancel()
        self._written.set()

    async def drained(self) -> None:
        """Wait until all messages are written or the connection ends."""
        await self._written.wait()

    async def receive(self) -> Sequence[AgentMessage]:
        """Return the next messages. Raises ProtocolError when they are invalid or the connection is lost."""
        try:
            data = await self._stream.receive()
        except anyio.EndOfStream:
            self.closed = True
            raise ProtocolError("closed by the agent") from None
        except LOST as error:
            raise ProtocolError(f"connection lost: {error.__cause__ or error}") from None
        return self._decoder.feed(data)

    def post(self, message: CenterMessage) -> None:
        """Queue a message; an agent that does not read is disconnected.

        Raises ProtocolError when the message cannot be sent to any agent, such as for its size.
        """
        if len(self._outgoing) >= UNREAD:
            self.drop("does not read")
            return
        self._outgoing.append(channel.encode(message))
        if not self._writing:
            self._writing = True
            self._written = anyio.Event()
            self.tasks.start_soon(self._write)

    async def _write(self) -> None:
        try:
            while self._outgoing:
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                for start in range(0, len(data), PIECE):
                    await self._stream.send(data[start : start + PIECE])
            self._writing = False
            self._written.set()
        except LOST as error:
            self.drop(f"connection lost: {error.__cause__ or error}")


# -- Taking in what tasks leave: output, and files -----------------------------------------------------------
# Output goes to files and is reported; what cannot be written now is tried again. The agent keeps output until it is
# acknowledged. So of a stream whose file cannot be written only the first piece is kept here; when that is in the file,
# the agent is asked for what came after it. Output files of tasks are stored by the listener.

FIRST_RETRY = 0.5
"""Seconds before what could not be written is tried again; doubled with each try."""
LONGEST_RETRY = 15.0
FILES = "files"
"""Stands for a stream where what an agent says of a task's output files cannot be written."""

_Stream: TypeAlias = "tuple[str, str]"
"""Task and name of one of its output streams."""


class TaskOutput:
    """Output and output files that arrive by one connection."""

    def __init__(
        self, listener: TaskListener, connection: AgentConnection, *, resends: bool, is_current: Callable[[], bool]
    ) -> None:
        """``listener``: returns paths of output, is told of writes, and stores output files.

        ``resends``: the agent understands Resend. ``is_current``: tells whether the connection is still that of its
        agent; writing is tried again while it is.
        """
        self._listener = listener
        self._connection = connection
        self._resends = resends
        self._is_current = is_current
        self._unwritten: dict[_Stream, channel.Output | None] = {}
        """Streams whose files cannot be written, with the first piece that could not be written.

        What comes of them meanwhile is left to the agent, which keeps it. None: the piece is written now, and the agent
        was asked to send on from there.
        """
        self._retrying = False

    def is_behind(self, task: str) -> bool:
        """Return whether output of a task is still expected."""
        return any(behind == task for behind, _ in self._unwritten)

    def resending(self, task: str, stream: str) -> None:
        """Register that the agent resends a stream."""
        self._unwritten.pop((task, stream), None)

    def keep(self, piece: channel.Output) -> None:
        """Write a piece and acknowledge it, now or after retries."""
        if (piece.task, piece.stream) in self._unwritten:
            return
        if not self._take(piece):
            self._unwritten[piece.task, piece.stream] = piece
            if not self._retrying:
                self._retrying = True
                self._connection.tasks.start_soon(self._write_later)

    def _take(self, piece: channel.Output) -> bool:
        """Write, report and acknowledge a piece, if wanted; return False when it cannot be written now.

        The file is asked for with each try: when the job runs again, the former one is that of another attempt.
        """
        path = self._listener.output_path(self._connection.placeholder, piece.task)
        size = piece.offset + len(piece.data)
        if path is not None:
            file = path.with_name(f"{path.name}.{piece.stream}")
            try:
                size = append(file, piece.offset, piece.data)
                self._listener.on_output(piece.task, piece.stream, piece.offset, piece.data)
            except OSError as error:
                self._tell_unwritten(piece.task, piece.stream, file, error)
                return False
        self._connection.post(channel.OutputAck(task=piece.task, stream=piece.stream, offset=size))
        return True

    async def _write_later(self) -> None:
        """Retry failed writes at growing intervals, until done or the connection is gone."""
        pause = FIRST_RETRY
        while self._unwritten:
            await anyio.sleep(pause)
            pause = min(LONGEST_RETRY, 2 * pause)
            if not self._is_current():
                return
            for stream, piece in list(self._unwritten.items()):
                if piece is not None and self._take(piece):
                    self._unwritten[stream] = None
                    pause = FIRST_RETRY
                    self._ask_for_more(piece)
        self._retrying = False

    def _ask_for_more(self, piece: channel.Output) -> None:
        """Ask an agent to resend what came after a piece."""
        if self._resends:
            self._connection.post(channel.Resend(task=piece.task, stream=piece.stream))
        else:
            self._connection.drop("its output can be written again, which it sends when it comes back")

    def _tell_unwritten(self, task: str, stream: str, file: Path, error: OSError) -> None:
        self._listener.on_unwritten(task, stream, file, os.strerror(error.errno) if error.errno else str(error))

    def take_file(self, piece: channel.FilePiece) -> None:
        """Have a piece of an output file stored, and answer it; the last one when the whole file was checked."""
        answer = self._listener.take_file(self._connection.placeholder, piece)
        if piece.digest is None or answer.refusal or answer.offset < piece.size:
            self._connection.post(answer)
        else:
            self._connection.tasks.start_soon(self._check_file, piece)

    async def _check_file(self, piece: channel.FilePiece) -> None:
        connection = self._connection
        try:
            connection.post(await self._listener.check_file(connection.placeholder, piece))
        except Exception as error:  # noqa: BLE001 - a defect costs this connection, and the agent says all again
            report_defect("comparing the digest of an output file", error, placeholder=str(connection.placeholder))
            connection.drop(f"koala failed on a file: {error!r}")

    def conclude(self, files: channel.TaskFiles) -> None:
        """Store the final report on a task's files and acknowledge it, now or later."""
        if not self._keep_report(files):
            self._connection.tasks.start_soon(self._conclude_later, files)

    async def _conclude_later(self, files: channel.TaskFiles) -> None:
        """Retry at growing intervals while the agent is connected; after a reconnection it repeats the report."""
        pause = FIRST_RETRY
        await anyio.sleep(pause)
        while self._is_current() and not self._keep_report(files):
            pause = min(LONGEST_RETRY, 2 * pause)
            await anyio.sleep(pause)

    def _keep_report(self, files: channel.TaskFiles) -> bool:
        """Store a report on files and acknowledge it; return False when it cannot be stored now."""
        placeholder = self._connection.placeholder
        try:
            self._listener.files_done(placeholder, files)
        except OSError as error:
            path = self._listener.output_path(placeholder, files.task)
            if path is not None:
                self._tell_unwritten(files.task, FILES, path, error)
            return False
        self._connection.post(channel.FilesAck(task=files.task))
        self._listener.on_written(files.task, FILES)
        return True


# -- Sending input files -------------------------------------------------------------------------------------
# Pieces that agents ask for are read and sent one after the other, so that memory is bounded.

AT_ONCE = 64
"""Pieces that are in memory for all agents together."""


class InputSender:
    """Answers the questions of one agent for pieces of input files."""

    def __init__(self, listener: TaskListener, connection: AgentConnection, room: anyio.CapacityLimiter) -> None:
        """``room``: shared by all agents, of AT_ONCE pieces."""
        self._listener = listener
        self._connection = connection
        self._room = room
        self._wanted: deque[channel.Fetch] = deque()
        self._sending = False

    def want(self, fetch: channel.Fetch) -> None:
        """Send a piece after those asked for before. Raises ProtocolError when there are too many questions."""
        if len(self._wanted) >= channel.FETCHES:
            raise ProtocolError(f"it asks for more than {channel.FETCHES} pieces of input files at once")
        self._wanted.append(fetch)
        if not self._sending:
            self._sending = True
            self._connection.tasks.start_soon(self._send)

    async def _send(self) -> None:
        while self._wanted and not self._connection.fault:
            fetch = self._wanted[0]
            async with self._room:
                self._connection.post(await self._piece(fetch))
                await self._connection.drained()
            self._wanted.popleft()
            self._listener.on_input_sent(fetch.task, channel.INPUT_PIECE)
        self._sending = False

    async def _piece(self, fetch: channel.Fetch) -> channel.InputPiece:
        path = self._listener.input_path(self._connection.placeholder, fetch.task, fetch.digest)
        data, refusal = b"", "its job is not known any more"
        if path is not None:
            try:
                data, refusal = await anyio.to_thread.run_sync(_read, path, fetch.offset), ""
            except OSError as error:
                refusal = f"{path}: {error.strerror or error}"
        return channel.InputPiece(
            task=fetch.task, digest=fetch.digest, offset=fetch.offset, data=data, refusal=refusal[:2000]
        )


def _read(path: Path, offset: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(descriptor, channel.INPUT_PIECE, offset)
    finally:
        os.close(descriptor)
