# SPDX-License-Identifier: Apache-2.0
"""A page of the manual as text: the files that it includes stand in it, as they do in the rendered manual."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

INCLUSION = re.compile(
    r"^(?P<indent> *)```\{literalinclude\} (?P<path>\S+)\n(?P<options>(?: *:\w+:.*\n)*) *```$", re.MULTILINE
)
_OPTION = re.compile(r":(\w+): *(.*)")


def page_text(file: Path) -> str:
    """Return the text of a page. Raises OSError when a file that it includes is not there."""
    return INCLUSION.sub(lambda found: _included(found, file.parent), file.read_text(encoding="utf-8"))


def _included(found: re.Match[str], directory: Path) -> str:
    options = dict(_OPTION.findall(found["options"]))
    text = (directory / found["path"]).read_text(encoding="utf-8")
    lines = text.splitlines()
    if "pyobject" in options:
        lines = _definition(text, options["pyobject"])
    if "lines" in options:
        first, _, last = options["lines"].partition("-")
        lines = lines[int(first) - 1 : int(last) if last else None]
    fenced = [f"```{options.get('language', 'text')}", *lines, "```"]
    return "\n".join(f"{found['indent']}{line}".rstrip() for line in fenced)


def _definition(text: str, name: str) -> list[str]:
    """Return the lines of the function of a name at the top of a program."""
    (node,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return text.splitlines()[node.lineno - 1 : node.end_lineno]
