# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the manual: Markdown pages, the furo theme, and no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import __version__
from koala_adapter.cli.manual import with_help_texts

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "koala-adapter"
author = "The koala-adapter maintainers"
project_copyright = author
release = version = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"koala-adapter {release}"
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Put the help texts of the commands into the pages that ask for them."""
    app.connect("source-read", _insert_help)


def _insert_help(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = with_help_texts(source[0])
