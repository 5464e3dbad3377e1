# SPDX-License-Identifier: Apache-2.0
"""Output files of a task: patterns of their names, and sending those that are wanted."""

import collections
import contextlib
import errno
import hashlib
import os
import re
import stat

from koala_adapter.vjm.agent.node import raw
from koala_adapter.vjm.agent.processes import base64, file_identity

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple


# -- Patterns ------------------------------------------------------------------------------------------------


class NamePattern:
    """One segment of a glob pattern. Matching takes no backtracking, whatever the pattern."""

    def __init__(self, segment: str) -> None:
        self.hidden = segment.startswith(".")
        pieces: "List[List[str]]" = [[]]
        for part in re.findall(r"\[(?:!.|[^!])[^\]]*\]|.", segment, re.DOTALL):
            if part == "*":
                pieces.append([])
            else:
                pieces[-1].append(self._expression(part))
        # What stands between two stars has a fixed length.
        self._pieces = [(self._compiled("".join(piece)), len(piece)) for piece in pieces]

    @staticmethod
    def _expression(part: str) -> str:
        if part == "?":
            return "."
        if len(part) == 1:
            return re.escape(part)
        inner = part[1:-1]
        negated = inner.startswith("!") and len(inner) > 1
        inner = inner[1:] if negated else inner
        return ("[^" if negated else "[") + "".join(c if c == "-" else re.escape(c) for c in inner) + "]"

    @staticmethod
    def _compiled(expression: str) -> "re.Pattern[str]":
        try:
            return re.compile(expression, re.DOTALL)
        except re.error:  # such as [z-a]
            return re.compile("(?!)")

    def matches(self, name: str) -> bool:
        """Tell whether a name matches; one that begins with a dot only if the pattern does, as in a shell."""
        if name.startswith(".") and not self.hidden:
            return False
        (first, size), (last, tail) = self._pieces[0], self._pieces[-1]
        if len(self._pieces) == 1:
            return first.fullmatch(name) is not None
        at, end = size, len(name) - tail
        if first.match(name) is None or end < at or last.fullmatch(name, end) is None:
            return False
        for piece, _ in self._pieces[1:-1]:
            found = piece.search(name, at, end)
            if found is None:
                return False
            at = found.end()
        return True


class Patterns:
    """Glob patterns for paths, followed from directory to directory; ``**`` is any number of directories.

    A *state* is a pattern and the segment of it that the next name is to match.
    """

    def __init__(self, patterns: "List[str]") -> None:
        self._patterns = [
            [None if segment == "**" else NamePattern(segment) for segment in pattern.split("/")]
            for pattern in patterns
        ]
        self.start = self._with_skipped({(number, 0) for number in range(len(patterns))})

    def step(self, states: "Set[Tuple[int, int]]", name: str) -> "Tuple[bool, Set[Tuple[int, int]]]":
        """Return whether the path ending in ``name`` matches, and the state for its subdirectory."""
        matched = False
        below: "Set[Tuple[int, int]]" = set()
        for number, index in states:
            segment = self._patterns[number][index]
            if not (segment.matches(name) if segment else not name.startswith(".")):
                continue
            if segment is None:
                below.add((number, index))
            if index + 1 == len(self._patterns[number]):
                matched = True
            elif segment is not None:
                below.add((number, index + 1))
        return matched, self._with_skipped(below)

    def _with_skipped(self, states: "Set[Tuple[int, int]]") -> "Set[Tuple[int, int]]":
        for number, first in list(states):
            segments = self._patterns[number]
            index = first
            while segments[index] is None and index + 1 < len(segments):
                index += 1
                states.add((number, index))
        return states


# -- Finding and sending the files ---------------------------------------------------------------------------

PIECE = 256 * 1024  # bytes of a file after one line
FILES = 10000  # most files of a task that are sent
LARGEST = 2**50  # most bytes of one of them, however few a sparse file occupies
STEP = 10  # entries that are looked at in one step
SEEN = 100000  # most entries of its directory that are looked at for them
LONGEST_PATH = 3500  # bytes of a path below it; what is deeper is not looked at
NAMED = 20  # most files that are named among those which do not arrive
LONGEST_NAME = 200  # characters of such a name


class ResultFile:
    """An output file that has not arrived completely."""

    def __init__(self, number: int, path: str, source: str, status: os.stat_result) -> None:
        self.number = number
        self.path = path
        self.source = source  # another one than ``path`` for a link
        self.size = status.st_size
        self.mode = stat.S_IMODE(status.st_mode) & 0o700
        self.begin()

    def begin(self) -> None:
        """Send the whole file, from its first byte."""
        self.digest = hashlib.sha256()  # of its first ``hashed`` bytes
        self.hashed = 0
        self.rewind()

    def rewind(self) -> None:
        """Restart sending; the first piece goes alone, as its answer tells what arrived before."""
        self.sent = 0
        self.answered = False


class Results:
    """Output files of a task: sends wanted ones and names those that are lost with its directory."""

    def __init__(
        self, task: str, directory: str, message: "Dict[str, Any]", inputs: "Dict[str, Tuple[int, int, int]]"
    ) -> None:
        """``inputs``: identities of input files, which are no results when unchanged."""
        self._task = task
        self._directory = directory
        self._patterns = Patterns(message["output_files"])
        self._wanted = bool(message["output_files"])
        self._private = message["working_directory"] is None
        self._inputs = inputs
        self._files: "Dict[int, ResultFile]" = {}
        self._turn: "collections.deque[ResultFile]" = collections.deque()
        self._found = self._arrived = self._bytes = self._left = self._omitted = 0
        self._left_names: "List[str]" = []
        self._omissions: "List[Dict[str, str]]" = []
        self._collected = False
        self.said = False  # all that there is was sent
        self.safe = False  # and has arrived
        self.progress = 0  # answers of the control center

    @property
    def has_files(self) -> bool:
        """Whether files are still to be sent, or not searched for yet."""
        return bool(self._files) or not self._collected

    def collect(self) -> "Iterator[None]":
        """Search for output files in short steps, as file systems may be slow."""
        try:
            top = os.open(raw(self._directory), os.O_RDONLY | os.O_DIRECTORY)
            try:
                for _ in self._walk(top):
                    yield
            finally:
                os.close(top)
        except OSError as error:
            self._omit(".", f"cannot be read: {error.strerror}")
        if self._found or not self._private:  # with files that arrive, somebody chose what is wanted
            self._left, self._left_names = 0, []
        self._collected = True
        self.rewind()
        if not (self._wanted or self._left or self._omitted):
            self.said = self.safe = True

    def rewind(self) -> None:
        """Send unconfirmed files again, on a new connection."""
        for file in self._files.values():
            file.rewind()
        self._turn = collections.deque(self._files.values())
        self.said = self.safe

    def next(self) -> "Optional[Tuple[Dict[str, Any], bytes]]":
        """Return the next message that can be sent now, and the bytes that follow it."""
        while self._turn and self._collected:
            file = self._turn[0]
            try:
                data = self._read(file)
            except OSError as error:
                del self._files[file.number]
                self._turn.popleft()
                self._omit(file.path, f"cannot be read: {error.strerror}")
                continue
            offset, file.sent = file.sent, file.sent + len(data)
            if file.sent > file.hashed:
                file.digest.update(data[file.hashed - offset :])
                file.hashed = file.sent
            whole = file.sent == file.size
            if not file.answered or whole:
                self._turn.popleft()
            return {
                "kind": "file", "task": self._task, "number": file.number, "path": base64(raw(file.path)),
                "mode": file.mode, "size": file.size, "offset": offset, "follows": len(data),
                "digest": file.digest.hexdigest() if whole else None,
            }, data  # fmt: skip
        if self.said or not self._collected or self._files:
            return None
        self.said = True
        return {
            "kind": "files", "task": self._task, "arrived": self._arrived, "size": self._bytes, "left": self._left,
            "left_names": self._left_names, "omitted": self._omitted, "omissions": self._omissions,
        }, b""  # fmt: skip

    def acknowledge(self, number: int, offset: int, refusal: str, *, again: bool = False) -> None:
        """Process the answer to a piece: bytes that are safe, a refusal, or the wish to have all of it ``again``."""
        self.progress += 1
        file = self._files.get(number)
        if file is None:
            return
        if again:
            file.begin()
            if file not in self._turn:
                self._turn.append(file)
        elif refusal or offset >= file.size:
            del self._files[number]
            if file.answered and file in self._turn:
                self._turn.remove(file)
            if refusal:
                self._omit(file.path, refusal)
            else:
                self._arrived += 1
                self._bytes += file.size
        elif not file.answered:
            file.answered = True
            file.sent = min(offset, file.hashed)
            self._turn.appendleft(file)

    def _read(self, file: ResultFile) -> bytes:
        path = raw(os.path.join(self._directory, file.source))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            data = os.pread(descriptor, min(PIECE, file.size - file.sent), file.sent)
        finally:
            os.close(descriptor)
        if not data and file.size > file.sent:
            raise OSError(errno.ESTALE, "it became shorter while it was being sent")
        return data

    def _omit(self, path: str, reason: str) -> None:
        self._omitted += 1
        if len(self._omissions) < NAMED:
            self._omissions.append({"path": speakable(path), "reason": reason[:500]})

    def _walk(self, top: int) -> "Iterator[None]":
        seen = 0
        # Level by level, so that what is named and granted first is near the top.
        directories: "collections.deque[Tuple[str, Optional[Set[Tuple[int, int]]]]]" = collections.deque()
        directories.append(("", self._patterns.start))
        while directories:
            path, states = directories.popleft()
            try:
                place = os.open(raw(path or "."), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            except OSError as error:
                if states is None:
                    self._omit(path, f"cannot be read: {error.strerror}")
                continue
            try:
                for name in sorted(os.listdir(place)):
                    seen += 1
                    if seen > SEEN:
                        if self._wanted:
                            self._omit(path or ".", f"not all looked at: there are more than {SEEN} files")
                        return
                    if seen % STEP == 0:
                        yield
                    with contextlib.suppress(OSError):  # it is gone: somebody else works in the same directory
                        status = os.stat(name, dir_fd=place, follow_symlinks=False)
                        directories += self._look(
                            path, os.fsencode(name).decode("utf-8", "surrogateescape"), status, states
                        )
            finally:
                os.close(place)

    def _look(
        self, path: str, name: str, status: os.stat_result, states: "Optional[Set[Tuple[int, int]]]"
    ) -> "List[Tuple[str, Optional[Set[Tuple[int, int]]]]]":
        """Add a file; return a directory to be searched."""
        matched, below = (True, None) if states is None else self._patterns.step(states, name)
        path = f"{path}/{name}" if path else name
        if stat.S_ISDIR(status.st_mode):
            if not (matched or below or self._private):
                return []
            if len(raw(path)) > LONGEST_PATH:
                if matched or below:
                    self._omit(path, f"its path is longer than {LONGEST_PATH} bytes")
                return []
            return [(path, None if matched else below)]
        if self._inputs.get(path) == file_identity(status):
            return []
        if matched:
            self._take(path, status)
        elif stat.S_ISREG(status.st_mode):
            self._left += 1
            if len(self._left_names) < NAMED:
                self._left_names.append(speakable(path))
        return []

    def _take(self, path: str, status: os.stat_result) -> None:
        source = path
        if stat.S_ISLNK(status.st_mode):
            top = os.path.realpath(raw(self._directory)) + b"/"
            there = os.path.realpath(raw(os.path.join(self._directory, path)))
            if not there.startswith(top):
                self._omit(path, "a link that leads out of the directory")
                return
            source = there[len(top) :].decode("utf-8", "surrogateescape")
            with contextlib.suppress(OSError):
                status = os.stat(there)
        if not stat.S_ISREG(status.st_mode):
            self._omit(path, "no regular file, nor a link to one")
        elif status.st_size > LARGEST:
            self._omit(path, f"its size of {status.st_size} bytes is beyond all measure")
        elif self._found == FILES:
            self._omit(path, f"a rank may send {FILES} files")
        else:
            self._found += 1
            self._files[self._found] = ResultFile(self._found, path, source, status)


def speakable(path: str) -> str:
    """Return a path in a form that fits into a message."""
    text = raw(path).decode("utf-8", "replace")
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "\u2026"
