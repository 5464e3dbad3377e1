# SPDX-License-Identifier: Apache-2.0
"""The input files of a job file: where they are, what ranks call them, and whether they can be sent at all.

They travel to every rank through the control center, so they are for programs and parameters, not for data sets.
"""

from __future__ import annotations

import math
import os
import posixpath
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, Field, model_validator

from koala_adapter.config.diagnosis import show_value
from koala_adapter.config.fields import NotAllowedError, path_fault
from koala_adapter.model import InputFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.config.diagnosis import Problems
    from koala_adapter.config.tomlfile import KeyPath

PRIVATE_DIRECTORY = 256
"""Bytes that are left for the path of a rank's private directory on a node (TMPDIR may be long), and a slash."""
LARGEST_SUM = 20 * 1024 * 1024
"""Bytes of the input files of a component together: each of its ranks gets them all in one message."""


def _source(value: str) -> str:
    if not value or "\0" in value:
        raise NotAllowedError("the path of a file, relative to the job file or absolute")
    if value.startswith("~"):
        raise NotAllowedError("a path relative to the job file or absolute: ~ is not expanded here")
    return value


def _target(value: str) -> str:
    parts = value.split("/")
    if not value or "\0" in value or value.startswith("/") or ".." in parts or parts[-1] in {"", "."}:
        raise NotAllowedError("a path below the working directory of the rank: relative, without .., with a file name")
    return posixpath.normpath(value)


class InputFileTable(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A file that each rank of a component finds before it starts."""

    source: Annotated[str, AfterValidator(_source)] = Field(
        description="Path on this host, relative to the directory of the job file, or absolute."
    )
    target: Annotated[str, AfterValidator(_target)] | None = Field(
        default=None,
        description="Path in the working directory of the rank. Default: the file name of source.",
    )

    @property
    def name(self) -> str:
        """The target, or its default."""
        return self.target or posixpath.basename(self.source)

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: object) -> object:
        """A path alone stands for a table with this source."""
        return {"source": value} if isinstance(value, str) else value


def collect_input_files(
    problems: Problems,
    components: Sequence[tuple[int, Sequence[InputFileTable]]],
    directory: Path,
    *,
    before: int | None = None,
) -> list[tuple[InputFile, ...]]:
    """Return the input files of each component, given with its index; note in ``problems`` what cannot be sent.

    ``before``: bytes that a target has in front of it on the nodes; None: those of a private directory.
    """
    collected = []
    for index, tables in components:
        total = 0
        targets: dict[str, int] = {}
        files = []
        for number, table in enumerate(tables):
            path: KeyPath = ("components", index, "input_files", number)
            source = os.path.abspath(directory / table.source)  # noqa: PTH100 - resolves "..", but follows no links
            problem, size = _problem_and_size(source)
            total += size
            if problem:
                problems.add(path, f"found {show_value(table.source)}, {problem}")
            elif targets.setdefault(table.name, number) != number:
                problems.add(path, f"another input file is already called {show_value(table.name)}: give it a target")
            elif fault := path_fault(table.name, before=PRIVATE_DIRECTORY if before is None else before):
                where = path if table.target is None else (*path, "target")
                problems.add(where, f"found {show_value(table.name)}, allowed is {fault}: give it a shorter target")
            files.append(InputFile(source=source, target=table.name, size=size))
        _check_nesting(problems, index, targets)
        collected.append(tuple(files))
        if total > LARGEST_SUM:
            found, most = math.ceil(total / 1024**2), LARGEST_SUM // 1024**2
            text = f"the input files have {found} MiB, allowed are {most} MiB: put large data on the nodes"
            problems.add(("components", index, "input_files"), text)
    return collected


def _check_nesting(problems: Problems, index: int, targets: Mapping[str, int]) -> None:
    """Note each target below another one, which would have to be a file and a directory."""
    for target, number in targets.items():
        at = target.find("/")
        while at >= 0:
            if (above := target[:at]) in targets:
                text = (
                    f"found {show_value(target)}, but input_files[{targets[above]}] is a file called "
                    f"{show_value(above)}, which cannot be a directory, too: give one of them another target"
                )
                problems.add(("components", index, "input_files", number), text)
                break
            at = target.find("/", at + 1)


def _problem_and_size(source: str) -> tuple[str, int]:
    """Return what is wrong with a file, or nothing, and its size in bytes."""
    try:
        status = Path(source).stat()
        readable = os.access(source, os.R_OK)
    except FileNotFoundError:
        return f"allowed is an existing file: there is none at {source}", 0
    except (OSError, ValueError) as error:
        return f"which cannot be read: {getattr(error, 'strerror', None) or error}", 0
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
        return f"allowed is a regular file: {source} is {kind}", 0
    if not readable:
        return f"allowed is a file that you may read: {source}", 0
    return "", status.st_size
