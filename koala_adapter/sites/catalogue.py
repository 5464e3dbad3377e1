# SPDX-License-Identifier: Apache-2.0
"""Catalogues: which files the nodes of a cluster have. Pure: the text of a catalogue in, names and paths out.

A line is a path, or a name and the path that it stands for there, divided by blanks. What ends in a slash stands for
all that is below it. Names have no blanks and do not begin with a slash, so a path may have blanks. Empty lines and
those that begin with ``#`` count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_CATALOGUE = 4 * 1024**2
"""Bytes."""
LONGEST_PATH = 4096


class CatalogueError(ValueError):
    """A catalogue cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a catalogue says."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Paths by logical names; both end in a slash, or neither does."""
    paths: frozenset[str] = frozenset()
    """All paths that it tells of."""

    def place_of(self, name: str) -> str | None:
        """Return the path that a logical name stands for; None: it stands for none."""
        if (found := self.names.get(name)) is not None:
            return found
        for above in _above(name):
            if (found := self.names.get(above)) is not None:
                return found + name.removeprefix(above)
        return None

    def has(self, path: str) -> bool:
        """Tell whether there is a file, or a directory, under a path."""
        return path in self.paths or f"{path}/" in self.paths or any(above in self.paths for above in _above(path))


def _above(path: str) -> list[str]:
    """Return the directories above a path or name, the nearest first, each with a slash at its end."""
    return [path[: at + 1] for at in range(len(path) - 2, -1, -1) if path[at] == "/"]


def read_catalogue(content: bytes) -> Catalogue:
    """Return what the text of a catalogue says. Raises CatalogueError."""
    if len(content) > LONGEST_CATALOGUE:
        raise CatalogueError(f"it is longer than {LONGEST_CATALOGUE // 1024**2} MiB: name directories in it")
    names: dict[str, str] = {}
    paths = set()
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            text = line.decode().replace("\t", " ").strip()
        except UnicodeDecodeError:
            raise CatalogueError(f"line {number} is not UTF-8: allowed is text") from None
        if not text or text.startswith("#"):
            continue
        name, path = ("", text) if text.startswith("/") else _divided(text, number)
        if not path.startswith("/") or not text.isprintable() or len(path) > LONGEST_PATH or ".." in path.split("/"):
            raise CatalogueError(f"line {number}: allowed is an absolute path, or a name and an absolute path")
        if name and name.endswith("/") != path.endswith("/"):
            raise CatalogueError(f"line {number}: a directory ends in a slash, as a name and as a path")
        if name and names.setdefault(name, path) != path:
            raise CatalogueError(f"line {number}: the name {name} stands for {names[name]} already")
        paths.add(path)
    return Catalogue(names, frozenset(paths))


def _divided(text: str, number: int) -> tuple[str, str]:
    """Return name and path of a line."""
    fields = text.split(" ", 1)
    if len(fields) < 2:  # noqa: PLR2004 - a name and a path
        raise CatalogueError(f"line {number}: allowed is an absolute path, or a name and an absolute path")
    return fields[0], fields[1].strip()


def listed(content: bytes, directory: str) -> Catalogue:
    """Return the files below a directory, named by their paths in it, each of which a zero byte ends in ``content``."""
    if len(content) > LONGEST_CATALOGUE:
        raise CatalogueError("it has too many files to be listed: name it with a slash at its end in a catalogue file")
    base = directory.rstrip("/")
    # A name that is not text cannot be in a job file.
    names = [name.decode() for name in content.split(b"\0") if name and _is_text(name)]
    found = {name: f"{base}/{name}" for name in names}
    return Catalogue(found, frozenset(found.values()))


def _is_text(name: bytes) -> bool:
    try:
        return name.decode().isprintable()
    except UnicodeDecodeError:
        return False
