# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the manual: Markdown pages, the furo theme, and no network."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "koala_adapter" / "__init__.py"


def _version() -> str:
    """Return the version that the package states, read without importing it."""
    for node in ast.parse(PACKAGE.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str(version))):
                return version
    message = f"{PACKAGE} has no line __version__ = '...'"
    raise ValueError(message)


project = "koala-adapter"
author = "The koala-adapter maintainers"
project_copyright = author
release = version = _version()

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"koala-adapter {release}"
html_copy_source = False
