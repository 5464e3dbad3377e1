# SPDX-License-Identifier: Apache-2.0
"""A table that loses nothing on a narrow terminal: where its columns do not fit, each row becomes some short lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

GAP = 2
"""Columns between two cells."""
LONG = 16
"""Cells that are longer may go on below themselves before the table is given up."""
INDENT = "  "


class FittingTable(Table):
    """Columns with a heading each, the first of which names the row; cells are texts with markup."""

    def __init__(self, *headings: str) -> None:
        """Have no rows yet."""
        super().__init__(*headings, box=None, pad_edge=False, header_style="dim")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Return the table if it fits, else its rows one below the other."""
        if self.row_count and self._least_width() > options.max_width:
            yield from self._stacked(options.max_width)
        else:
            yield from super().__rich_console__(console, options)

    def _least_width(self) -> int:
        """Return the columns that it takes to show every cell, the long ones on several lines where they may be."""
        widths = []
        for column in self.columns:
            longest = max(len(_text(cell).plain) for cell in (column.header, *column.cells))
            widths.append(longest if column.no_wrap else min(LONG, longest))
        return sum(widths) + GAP * (len(widths) - 1)

    def _stacked(self, width: int) -> Iterator[RenderableType]:
        columns = [(_text(column.header).plain, list(column.cells)) for column in self.columns]
        for number in range(self.row_count):
            name, *cells = [(heading, _text(values[number])) for heading, values in columns]
            line = Text.assemble(name[1], style="bold")
            for heading, value in cells:
                if not value.plain:
                    continue
                part = Text.assemble((f"{heading} " if heading else "", "dim"), value)
                if line.cell_len + GAP + part.cell_len > width and line.plain.strip():
                    yield line
                    line = Text(INDENT)
                line.append_text(Text("" if line.plain == INDENT else " " * GAP)).append_text(part)
            yield line


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))
