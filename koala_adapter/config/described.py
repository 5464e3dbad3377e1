# SPDX-License-Identifier: Apache-2.0
"""Jobs as they were written, for the process that checks them. Light: the types of job files take long to import."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedJob:
    """A job file, or the keys of one, with all that its meaning depends on beside the site file."""

    source: str
    """What refusals call it: the path of the file."""
    name: str
    """Name of the job where it gives none."""
    directory: str
    """Absolute; where relative input files are."""
    text: str | None = None
    """Content of the file; None: ``values`` are given in its place, and refusals name no line."""
    values: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the submitter, of which a job takes along those that it exports."""

    @classmethod
    def of_file(cls, path: Path, text: str) -> Self:
        """Return the job of a file that has been read."""
        directory = str(path.absolute().parent)
        return cls(source=str(path), name=path.stem, directory=directory, text=text, environment=dict(os.environ))

    @classmethod
    def of_values(cls, values: Mapping[str, object], *, source: str) -> Self:
        """Return the job that a program, or a command line, describes. Input files are relative to this directory."""
        return cls(
            source=source, name=source, directory=str(Path.cwd()), values=dict(values), environment=dict(os.environ)
        )
