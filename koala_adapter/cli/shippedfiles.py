# SPDX-License-Identifier: Apache-2.0
"""The files that come with koala: examples of what an administrator copies, and the pages of the manual.

In a wheel they are below ``koala_adapter/shipped``; in a source tree they are where they are written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1]
COMMENT_MARKS = ("#", "--")


def shipped(kind: str, pattern: str) -> tuple[Path, ...]:
    """Return the files of a kind (``conf``, ``docs``), in order of name."""
    return tuple(sorted(file for file in _directory(kind).glob(pattern) if file.is_file()))


def _directory(kind: str) -> Path:
    directory = PACKAGE / "shipped" / kind
    return directory if directory.is_dir() else PACKAGE.parent / kind


def copy_examples(directory: Path) -> None:
    """Write the examples of the manual into a directory that is made for them.

    Raises ConfigurationError when there is something of that name, or it cannot be made.
    """
    try:
        shutil.copytree(
            _directory("examples"), directory, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache")
        )
    except FileExistsError as error:
        raise ConfigurationError(f"{directory} exists", hint="name a directory that is to be made") from error
    except (OSError, shutil.Error) as error:
        raise ConfigurationError(f"the examples cannot be written to {directory}: {error}") from error


def chosen(files: tuple[Path, ...], name: str, *, listed_by: str) -> Path:
    """Return the file of a name, given with or without its ending. Raises ConfigurationError that names all."""
    for file in files:
        if name in {file.name, file.stem}:
            return file
    names = ", ".join(shown_name(file) for file in files)
    raise ConfigurationError(f"there is no {name!r}; there are: {names}", hint=f"`{listed_by}` lists them")


def shown_name(file: Path) -> str:
    """Return what a file is asked for by: without the ending that most of its kind have."""
    return file.stem if file.suffix in {".toml", ".md"} else file.name


def summary(file: Path) -> str:
    """Return what a file says of itself: its heading, or the first sentence of its comments."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return str(json.loads(text)["description"]).partition("; ")[0].rstrip(".")
    text = " ".join(_opening(text))
    return text.partition(". ")[0].rstrip(".:")


def _opening(text: str) -> Iterator[str]:
    """Return the lines of the first paragraph of comments that says something."""
    for line in text.splitlines():
        said = line.strip().lstrip("#-").strip().strip('"')
        if line.startswith(("#!", "#:schema", "# ruff")) or "SPDX-License" in line or not said:
            continue
        yield said
        if text.startswith("# ") and not text.startswith("# SPDX"):
            return  # a page, whose heading is all
        if said.endswith((".", ":")) or not line.startswith(COMMENT_MARKS):
            return
