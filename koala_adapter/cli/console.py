# SPDX-License-Identifier: Apache-2.0
"""The console on which commands draw: no text from outside can act on the terminal, and a lost reader is an error."""

from __future__ import annotations

import io
import re
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment

from koala_adapter.config.tomlfile import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

_WITHIN_LINE = re.compile(r"[^\n\t]+")


class AsWritten:
    """Text of the user's own processes, printed with its escape sequences (renderable of rich)."""

    def __init__(self, text: str) -> None:
        """Show ``text`` without its last line feeds."""
        self._text = text.rstrip("\n") + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the text unchanged."""
        yield Segment(self._text)


class SafeConsole(Console):
    """Rich console that escapes control characters in all text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of a renderable, with unprintable characters escaped."""
        if isinstance(renderable, AsWritten):
            return super().render(renderable, options)
        return map(_safe, super().render(renderable, options))

    def render_str(self, text: str, **how: Any) -> Text:  # noqa: ANN401 - options of rich
        """Return text with markup, escaped before it is measured, so that widths of cells are right."""
        return super().render_str(_escaped(text), **how)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process with exit code 1."""
        raise  # noqa: PLE0704 - rich calls it while it handles the error


def _safe(segment: Segment) -> Segment:
    escaped = segment.text if segment.control else _escaped(segment.text)
    return segment if escaped is segment.text else Segment(escaped, segment.style)


def _escaped(text: str) -> str:
    return text if text.isprintable() else _WITHIN_LINE.sub(lambda found: printable(found[0]), text)


class LineEnds(io.TextIOBase):
    """Output stream that drops trailing spaces of lines, which tables leave."""

    def __init__(self, file: IO[str]) -> None:
        """Write to ``file``."""
        self._file = file

    @property
    def encoding(self) -> str:  # type: ignore[override] # by which rich chooses what it draws with
        """Encoding of the file."""
        return getattr(self._file, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write text without blanks at the ends of lines."""
        self._file.write(re.sub(" +(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def close(self) -> None:
        """Do nothing: the file belongs to its owner, who may have closed it before this is collected."""
