# SPDX-License-Identifier: Apache-2.0
"""Sweeps and arrays of a job file: parameters, their values, and what must fit together."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from koala_adapter.config.jobtables import (
    ComponentTable,
    JobHeader,
    JobTable,
    SweepTable,
    ValuesFile,
)
from koala_adapter.host.regularfile import read_regular
from koala_adapter.model import (
    Component,
    JobKind,
    RunnerName,
    Sweep,
    SweepAxis,
)
from koala_adapter.tasks.sweep import (
    MOST_LAUNCHERS,
    MOST_TASKS,
    array_axis,
    count_tasks,
    lines_of,
    list_axis,
    places_in,
    range_axis,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.config.jobtables import Values
    from koala_adapter.config.tomlfile import KeyPath


LARGEST_FILE = 64 * 1024 * 1024


def sweep_problems(
    header: JobHeader, components: Sequence[tuple[int, ComponentTable]], data: object, directory: Path
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what does not fit together, by the place in the file. ``data``: the table, as it is in the file."""
    if header.array is not None:
        return
    if header.runner is not RunnerName.SWEEP:
        if data is not None:
            yield ("sweep",), f'found with runner = "{header.runner}", allowed with runner = "sweep" only'
        return
    if data is None:
        yield ("sweep",), "the table [sweep] is missing, which has the parameters"
        return
    if len(components) > 1:
        yield ("components",), 'allowed with runner = "sweep" is one component'
    for index, component in components[:1]:
        if component.output_files:
            text = 'not with runner = "sweep": what a task prints is kept; let it write files below working_directory'
            yield ("components", index, "output_files"), text
    try:
        table = SweepTable.model_validate(data)
    except ValidationError:
        return  # said already
    found = list(_table_problems(table, components[0][1].command if components else None))
    yield from found
    if not found:
        yield from _file_problems(table, directory)


def _table_problems(table: SweepTable, command: Sequence[str] | None) -> Iterator[tuple[KeyPath, str]]:
    columns = tuple(table.table[0]) if table.table else ()
    for index, row in enumerate(table.table):
        if set(row) != set(columns):
            yield ("sweep", "table", index), f"allowed are the names of the first one: {', '.join(columns)}"
    for name in columns:
        if name in table.parameters:
            yield ("sweep", "parameters", name), "it is in sweep.table, too: allowed is one of them"
    names = (*table.parameters, *columns)
    if not names:
        yield ("sweep", "parameters"), "there is none: allowed is at least one here, or in sweep.table"
    for name in names:
        if command is not None and name not in places_in(command):
            where = ("sweep", "parameters", name) if name in table.parameters else ("sweep", "table")
            yield where, f"no argument of the command has {{{name}}}: every parameter must be used"


def _file_problems(table: SweepTable, directory: Path) -> Iterator[tuple[KeyPath, str]]:
    axes = []
    for name, values in table.parameters.items():
        try:
            axes.append(_axis(name, values, directory))
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            file = f"the file {directory / values.file}" if isinstance(values, ValuesFile) else "it"
            yield ("sweep", "parameters", name), f"{file} cannot be used: {said}"
            return
        if not axes[-1].count:
            yield ("sweep", "parameters", name), f"the file {axes[-1].file} has no line with a value"
            return
    axes.extend(_table_axis(table))
    counts = {axis.count for axis in axes}
    if table.combine == "together" and len(counts) > 1:
        found = ", ".join(f"{'+'.join(axis.names)} {axis.count}" for axis in axes)
        yield ("sweep", "combine"), f'found {found} values, allowed with "together" is as many for each'
    total = count_tasks(axes, together=table.combine == "together")
    if total > MOST_TASKS:
        yield ("sweep", "parameters"), f"found {total:,} tasks, allowed are at most {MOST_TASKS:,}"


OF_ARRAY = {"kind": JobKind.MALLEABLE, "runner": RunnerName.SWEEP}
"""How a job with an array runs."""


def array_problems(
    components: Sequence[tuple[int, ComponentTable]], data: Mapping[str, object]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what a job with an array cannot have, by the place in the file. ``data``: the whole file."""
    for key in ("kind", "runner", "sweep"):
        if key in data:
            yield (key,), "given together with array: allowed is one of them, as an array is a sweep of its own"
    if len(components) > 1:
        yield ("components",), f"found {len(components)}, allowed with array is one: each task is one process"
    for index, component in components[:1]:
        for key in ("processors", "minimum", "maximum"):
            if getattr(component, key) not in {None, 1}:
                text = f"found {getattr(component, key)}, allowed with array is 1: each task is one process"
                yield ("components", index, key), f"{text}, with as many processors as threads says"
        if component.output_files:
            text = "not with array: what a task prints is kept; let it write files below working_directory"
            yield ("components", index, "output_files"), text


def launchers(array: str, components: Sequence[tuple[int, ComponentTable]]) -> list[tuple[int, ComponentTable]]:
    """Return components in the size that launchers of an array have."""
    _, most = array_axis(array)
    size = {"processors": None, "minimum": 1, "maximum": most or MOST_LAUNCHERS}
    return [(index, one.model_copy(update={**size, "flexible": one.cluster is None})) for index, one in components]


def sweep_of(job: JobTable, directory: Path) -> Sweep | None:
    """Return the sweep of a job that has no problems; None: it has none. Raises OSError."""
    if job.array is not None:
        return Sweep(axes=(array_axis(job.array)[0],), repeats=job.retries, is_array=True)
    if (table := job.sweep) is None:
        return None
    axes = [_axis(name, values, directory) for name, values in table.parameters.items()]
    return Sweep(axes=(*axes, *_table_axis(table)), together=table.combine == "together", repeats=table.repeats)


def within_tasks(components: tuple[Component, ...], sweep: Sweep) -> tuple[Component, ...]:
    """Return the component of a sweep with no more processors than there are tasks: more would find nothing to do."""
    tasks = count_tasks(sweep.axes, together=sweep.together)
    return tuple(replace(one, maximum=max(one.minimum, min(one.maximum, tasks))) for one in components)


def _table_axis(table: SweepTable) -> Iterator[SweepAxis]:
    if table.table:
        names = tuple(table.table[0])
        rows = tuple(tuple(row[name] for name in names) for row in table.table)
        yield SweepAxis(names=names, count=len(rows), rows=rows)


def _axis(name: str, values: Values, directory: Path) -> SweepAxis:
    if isinstance(values, ValuesFile):
        path = Path(os.path.abspath(directory / values.file))  # noqa: PTH100 - resolves "..", but follows no links
        count = len(lines_of(read_regular(str(path), LARGEST_FILE)[0]))
        return SweepAxis(names=(name,), count=count, file=str(path))
    if isinstance(values, str):
        found = range_axis(name, values)
        if found is None:
            raise AssertionError("the model has checked it")
        return found
    return list_axis(name, values)
