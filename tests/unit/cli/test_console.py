# SPDX-License-Identifier: Apache-2.0
"""Text from outside never acts on a terminal, wherever a command or a log shows it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
import structlog
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from koala_adapter.cli.console import AsWritten
from koala_adapter.cli.display import FittingTable
from koala_adapter.cli.log import set_up_log
from koala_adapter.cli.session import make_console, show_error
from koala_adapter.errors import KoalaError

if TYPE_CHECKING:
    from rich.console import RenderableType

HOSTILE = "a\x1b]0;ownedb\x9b31mc\u202ed"
SHOWN = r"a\x1b]0;ownedb\x9b31mc\u202ed"


def table() -> FittingTable:
    """Return a table whose cell is hostile."""
    found = FittingTable("name")
    found.add_row(escape(HOSTILE))
    return found


@pytest.mark.parametrize("renderable", [escape(HOSTILE), Text(HOSTILE), table()], ids=["markup", "text", "table"])
def test_what_a_terminal_would_act_on_is_escaped(renderable: RenderableType) -> None:
    """However it is drawn."""
    file = io.StringIO()
    make_console(file).print(renderable)
    assert SHOWN in file.getvalue()
    assert not any(one in file.getvalue() for one in "\x1b\x9b\u202e")


def test_lines_and_letters_stay_as_they_are() -> None:
    """Only what is not printable is changed."""
    file = io.StringIO()
    make_console(file).print("größe ━ 大\nsecond", markup=False)
    assert file.getvalue() == "größe ━ 大\nsecond\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_of_few_characters_get_what_they_can_show(encoding: str) -> None:
    """Rich draws its frames in ASCII there, and nothing fails for a character that there is not."""
    shown = io.BytesIO()
    console = make_console(io.TextIOWrapper(shown, encoding=encoding, write_through=True))
    console.print(Panel("größe ━ 大"))
    text = shown.getvalue().decode(encoding)
    assert text.isascii() == (encoding == "ascii")
    assert ("größe ? ?" in text) == (encoding == "latin-1")
    assert text.startswith("+----")


def test_output_of_own_processes_is_as_they_wrote_it() -> None:
    """Colours of a program reach its user."""
    file = io.StringIO()
    make_console(file).print(AsWritten("\x1b[31mred\x1b[0m\n"), end="")
    assert file.getvalue() == "\x1b[31mred\x1b[0m\n"


def test_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """The message and the hint."""
    show_error(KoalaError(HOSTILE, hint=HOSTILE))
    assert capsys.readouterr().err.count(SHOWN) == 2


def test_log_lines_are_escaped_and_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What is logged cannot forge a further line."""
    former = structlog.get_config()
    try:
        set_up_log(shown=True)
        structlog.get_logger().info("refused", name=HOSTILE + "\nforged")
    finally:
        structlog.configure(**former)
    said = capsys.readouterr().err
    assert SHOWN + r"\nforged" in said
    assert len(said.splitlines()) == 1
