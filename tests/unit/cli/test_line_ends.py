# SPDX-License-Identifier: Apache-2.0
"""What is printed through a file that takes away the blanks at the ends of lines."""

from __future__ import annotations

import io

from koala_adapter.cli.session import LineEnds


def test_blanks_at_the_ends_of_lines_are_not_written() -> None:
    """Those within a line stay."""
    file = io.StringIO()
    LineEnds(file).write("a  b   \n c \n")
    assert file.getvalue() == "a  b\n c\n"


def test_the_file_may_be_closed_first() -> None:
    """Collected after its owner has closed the file, nothing is flushed, and nothing raised."""
    file = io.StringIO()
    ends = LineEnds(file)
    file.close()
    ends.close()
    open_file = io.StringIO()
    LineEnds(open_file).close()
    assert not open_file.closed
