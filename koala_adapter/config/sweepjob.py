# SPDX-License-Identifier: Apache-2.0
"""What a job file says of the tasks of a sweep: parameters and their values, and what of it fits together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
)

from koala_adapter.config.fields import NotAllowedError, PlainText, Whole
from koala_adapter.model import Component, RunnerName, Sweep, SweepAxis
from koala_adapter.sweeps.parameters import MOST_TASKS, count_tasks, lines_of, list_axis, places_in, range_axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Protocol

    from koala_adapter.config.tomlfile import KeyPath

    class _Header(Protocol):
        """What of the top of a job file matters here."""

        @property
        def runner(self) -> RunnerName:
            """What runs the job."""

    class _Component(Protocol):
        """What of a component matters here."""

        @property
        def command(self) -> tuple[str, ...]:
            """Program and arguments."""

        @property
        def minimum(self) -> int | None:
            """Fewest launchers."""

        @property
        def maximum(self) -> int | None:
            """Most launchers."""

        @property
        def output_files(self) -> tuple[str, ...]:
            """Files that are fetched."""


LARGEST_FILE = 64 * 1024 * 1024
MOST_REPEATS = 1000


KINDS = 'a range such as "1..100" or "0..1..0.25", a list of values, or { file = "FILE" }'


def _value(value: object) -> str:
    """Take numbers as they are written; of truth values nobody knows how the program writes them."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise NotAllowedError("a text in quotes, or a number")
    return value


def _file(value: object) -> object:
    """Take a table that names a file, and nothing else."""
    if isinstance(value, Mapping):
        file = value.get("file")
        if len(value) != 1 or not isinstance(file, str) or not file:
            raise NotAllowedError('{ file = "FILE" }, with a value on each line of it')
    return value


def _kind(value: object) -> str | None:
    """Tell which of the kinds of values this is meant to be."""
    if isinstance(value, str):
        return "range"
    if isinstance(value, list | tuple):
        return "list"
    return "values file" if isinstance(value, Mapping | ValuesFile) else None


def _ranged(value: str) -> str:
    try:
        found = range_axis("x", value)
    except ValueError as error:
        raise NotAllowedError(str(error)) from None
    if found is None:
        raise NotAllowedError(KINDS)
    return value


class ValuesFile(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A file with a value on each line."""

    file: Annotated[str, StringConstraints(min_length=1)] = Field(
        description="Path on this host, relative to the directory of the job file, or absolute."
    )


Value: TypeAlias = Annotated[PlainText, BeforeValidator(_value)]
ParameterName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
Values: TypeAlias = Annotated[
    Annotated[str, AfterValidator(_ranged), Tag("range")]
    | Annotated[tuple[Value, ...], Field(min_length=1), Tag("list")]
    | Annotated[ValuesFile, BeforeValidator(_file), Tag("values file")],
    Discriminator(_kind, custom_error_type="kind_of_values", custom_error_message=KINDS),
]


class SweepTable(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The tasks of a sweep."""

    parameters: dict[ParameterName, Values] = Field(
        default={},
        description='The values of each parameter: a range with both ends ("1..100", "0..1..0.25"), a list of '
        'values, or a file with one on each line ({ file = "names.txt" }). {name} in the command stands for a value.',
    )
    table: tuple[dict[ParameterName, Value], ...] = Field(
        default=(),
        description="Parameters whose values belong together: a table for each combination, all with the same names. "
        "Beside others it is combined with these like one parameter.",
    )
    combine: Literal["product", "together"] = Field(
        default="product",
        description="product: each value with each value of the others, the last parameter changing fastest. together: "
        "the first values of all are a task, then the second ones and so on; all must have as many.",
    )
    repeats: Whole = Field(default=2, ge=0, le=MOST_REPEATS, description="How often a task that fails is tried again.")


def sweep_problems(
    header: _Header, components: Sequence[tuple[int, _Component]], data: object, directory: Path
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what does not fit together, by the place in the file. ``data``: the table, as it is in the file."""
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
        yield from _component_problems(index, component)
    try:
        table = SweepTable.model_validate(data)
    except ValidationError:
        return  # said already
    found = list(_table_problems(table, components[0][1].command if components else None))
    yield from found
    if not found:
        yield from _file_problems(table, directory)


def _component_problems(index: int, component: _Component) -> Iterator[tuple[KeyPath, str]]:
    if component.output_files:
        text = 'not with runner = "sweep": what a task prints is kept; let it write files below working_directory'
        yield ("components", index, "output_files"), text


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


def sweep_of(table: SweepTable, directory: Path) -> Sweep:
    """Return the sweep that a table describes which has no problems. Raises OSError."""
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
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"it has more than {LARGEST_FILE // 1024**2} MiB")
        count = len(lines_of(path.read_text(encoding="utf-8")))
        return SweepAxis(names=(name,), count=count, file=str(path))
    if isinstance(values, str):
        found = range_axis(name, values)
        if found is None:
            raise AssertionError("the model has checked it")
        return found
    return list_axis(name, values)
