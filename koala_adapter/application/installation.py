# SPDX-License-Identifier: Apache-2.0
"""``koala app --install``: the library for programs, in Python and in C, written to a directory of the user's."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from koala_adapter import __version__
from koala_adapter.application import clibrary
from koala_adapter.application.libraryfile import FILE_NAME, NEGOTIATION_FILE_NAME, library_file, negotiation_file
from koala_adapter.errors import KoalaError

if TYPE_CHECKING:
    from pathlib import Path

C_FILES = ("koala_app.h", "koala_app.c", "koala_nt.h", "koala_nt.c")
PKG_CONFIG_FILE = "koala_app.pc"
_SIGNIFICANT_LINES = 2
"""At the beginning of a file; they tell an older version of ours from a file of somebody else."""
_PKG_CONFIG = """\
# SPDX-License-Identifier: Apache-2.0
# Written by koala app --install: what a compiler needs for programs that change their size under koala.
prefix={prefix}
sources=${{prefix}}/koala_app.c ${{prefix}}/koala_nt.c

Name: koala_app
Description: Programs that change their number of processes while they run, under koala
Version: {version}
Cflags: -I${{prefix}}
Libs: -pthread
"""


def library_files(directory: Path) -> dict[str, str]:
    """Return the texts of all files by their names, as they are for this directory, which is absolute.

    Raises KoalaError where pkg-config could not read the name of the directory.
    """
    if any(c.isspace() or c in "\"'\\$#" for c in str(directory)):
        raise KoalaError(
            f"pkg-config cannot read {str(directory)!r}", hint="choose a directory without blanks, quotes, $, # and \\"
        )
    source = resources.files(clibrary)
    files = {name: source.joinpath(name).read_text(encoding="utf-8") for name in C_FILES}
    return {
        FILE_NAME: library_file(),
        NEGOTIATION_FILE_NAME: negotiation_file(),
        **files,
        PKG_CONFIG_FILE: _PKG_CONFIG.format(prefix=directory, version=__version__),
    }


def install(directory: Path) -> list[Path]:
    """Write all files, over older versions of them, and return their paths.

    Raises KoalaError, before anything is written, where another file has the name of one; OSError.
    """
    directory = directory.absolute()
    files = library_files(directory)
    for name, text in files.items():
        path = directory / name
        if (path.exists() or path.is_symlink()) and not _is_ours(path, text):
            raise KoalaError(
                f"{path} exists and is not one that koala has written", hint="move it away, or choose another directory"
            )
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in files]


def _is_ours(path: Path, text: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    beginning = text.split("\n")[:_SIGNIFICANT_LINES]
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[:_SIGNIFICANT_LINES] == beginning
