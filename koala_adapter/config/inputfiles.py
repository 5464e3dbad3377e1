# SPDX-License-Identifier: Apache-2.0
"""Input files of a job file: where they are, what ranks call them, and whether they can be sent."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.config.diagnosis import show_value
from koala_adapter.config.fields import path_fault
from koala_adapter.host.regularfile import files_below
from koala_adapter.model import LOGICAL, InputFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.config.diagnosis import Problems
    from koala_adapter.config.jobtables import InputFileTable
    from koala_adapter.config.tomlfile import KeyPath

PRIVATE_DIRECTORY = 256
"""Bytes that are left for the path of a rank's private directory on a node (TMPDIR may be long), and a slash."""


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
        targets: dict[str, int] = {}
        files = []
        for number, table in enumerate(tables):
            path: KeyPath = ("components", index, "input_files", number)
            source, (problem, size, longest) = table.source, ("", None, "")
            if not source.startswith(LOGICAL):
                source = os.path.abspath(directory / source)  # noqa: PTH100 - resolves "..", but follows no links
                problem, size, longest = _examined(source)
            if problem:
                problems.add(path, f"found {show_value(table.source)}, {problem}")
            elif table.name in {".", ".."}:
                problems.add(
                    path, f"found {show_value(table.source)}, which has no name for the ranks: give it a target"
                )
            elif targets.setdefault(table.name, number) != number:
                problems.add(path, f"another input file is already called {show_value(table.name)}: give it a target")
            elif fault := path_fault(f"{table.name}{longest}", before=PRIVATE_DIRECTORY if before is None else before):
                where = path if table.target is None else (*path, "target")
                problems.add(where, f"found {show_value(table.name)}, allowed is {fault}: give it a shorter target")
            files.append(InputFile(source=source, target=table.name, size=size))
        _check_nesting(problems, index, targets)
        collected.append(tuple(files))
    return collected


def _check_nesting(problems: Problems, index: int, targets: Mapping[str, int]) -> None:
    """Note each target below another one."""
    for target, number in targets.items():
        at = target.find("/")
        while at >= 0:
            if (above := target[:at]) in targets:
                text = (
                    f"found {show_value(target)}, but input_files[{targets[above]}] is called "
                    f"{show_value(above)}, and would be mixed with it: give one of them another target"
                )
                problems.add(("components", index, "input_files", number), text)
                break
            at = target.find("/", at + 1)


def _examined(source: str) -> tuple[str, int | None, str]:
    """Return what is wrong with a file or directory, or nothing; its bytes; the longest path in it, with a slash."""
    try:
        status = Path(source).stat()
        if stat.S_ISDIR(status.st_mode):
            found = files_below(source)
            unreadable = next((file.path for file in found if not os.access(file.path, os.R_OK)), "")
            longest = max((f"/{file.below}" for file in found), key=len, default="")
            size = sum(file.size for file in found)
        else:
            unreadable = "" if os.access(source, os.R_OK) else source
            size, longest = status.st_size, ""
    except FileNotFoundError:
        return f"allowed is an existing file: there is none at {source}", 0, ""
    except (OSError, ValueError) as error:
        where = getattr(error, "filename", None) or source
        return f"which cannot be read: {where}: {getattr(error, 'strerror', None) or error}", 0, ""
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return f"allowed is a regular file or a directory: {source} is neither", 0, ""
    if unreadable:
        return f"allowed is a file that you may read: {unreadable}", 0, ""
    return "", size, longest
