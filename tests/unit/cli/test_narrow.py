# SPDX-License-Identifier: Apache-2.0
"""Sixty columns: what a table would have to cut off stands in lines below each other; wide terminals get the table."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from koala_adapter.cli.display import FittingTable, changes_table, clusters_table, components_table, jobs_table
from koala_adapter.cli.run import plan_table
from koala_adapter.report.sitevalues import PlannedComponent
from tests.unit.cli.test_top import cluster, component, running

if TYPE_CHECKING:
    from rich.console import RenderableType

CLOSED = "out of reach: cannot run squeue: No such file or directory"
JOB = replace(
    running(4711, 12, (150.0, 2, 12)),
    name="n-body",
    components=(component(8, on="delft-das5"), component(4, on="amsterdam-uva")),
)
CLUSTERS = (
    replace(cluster("delft-das5"), plugin="slurm", lrm="slurm 22.05.8", placeholders_queued=12),
    replace(cluster("amsterdam-uva"), closed=CLOSED),
)
PLANNED = PlannedComponent(component="simulation", cluster="amsterdam-uva", processors=1000, idle=10)


def shown(renderable: RenderableType, width: int) -> list[str]:
    """Return the lines that are shown."""
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(renderable)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (
            clusters_table(CLUSTERS, 10.0),
            ["delft-das5", "slurm 22.05.8", "16", "10 (12 queued)", "12/60", "open", "amsterdam-uva", CLOSED],
        ),
        (jobs_table([JOB]), ["4711", "n-body", "running", "12", "amsterdam-uva, delft-das5", "10 s", "100 s"]),
        (components_table(JOB), ["worker", "delft-das5", "8 of 8", "amsterdam-uva", "4 of 4", "1.0 s"]),
        (changes_table(JOB), ["50 s", "worker", "alpha", "2 to 12", "processors are free"]),
        (plan_table((PLANNED,)), ["simulation", "amsterdam-uva", "1000", "10", "990 would wait in its queue"]),
    ],
    ids=["clusters", "jobs", "components", "changes", "plan"],
)
@pytest.mark.parametrize("width", [60, 70, 80, 200])
def test_no_value_is_lost(table: FittingTable, values: list[str], width: int) -> None:
    """Whatever the width, nothing is cut short, and no line is longer."""
    lines = shown(table, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    words = " ".join(" ".join(lines).split())
    for value in values:
        assert all(word in words for word in value.split())


def test_what_fits_is_a_table() -> None:
    """With its headings on one line; also on sixty columns, if there is little to show."""
    little = jobs_table([replace(running(1, 4), name="job")])
    assert shown(little, 60)[0].split() == ["id", "name", "state", "processors", "clusters", "waited", "ran", "exit"]
    assert shown(jobs_table([JOB]), 200)[0].split()[0] == "id"


def test_rows_that_do_not_fit_are_named_and_have_all_cells() -> None:
    """Except those that are empty; markup in cells counts as nothing."""
    table = FittingTable("name", "one", "two", "three")
    table.add_row("a", "[red]1[/]", "", "x" * 15)
    table.add_row("b" * 15, "1", "2", "3")
    assert shown(table, 31) == ["a  one 1  three xxxxxxxxxxxxxxx", "bbbbbbbbbbbbbbb  one 1  two 2", "  three 3"]


def test_a_table_without_rows_is_its_headings() -> None:
    """As before."""
    assert shown(FittingTable("name", "one"), 10) == ["name  one"]
