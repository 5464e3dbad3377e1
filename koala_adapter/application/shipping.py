# SPDX-License-Identifier: Apache-2.0
"""The application library as files: modules joined to koala_app.py and koala_nt.py, and their installation."""

from __future__ import annotations

import ast
from functools import cache
from importlib import resources
from textwrap import fill, indent
from typing import TYPE_CHECKING

from koala_adapter import __version__
from koala_adapter.application import c as c_library
from koala_adapter.errors import KoalaError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


# -- Modules joined to one file, in one namespace, readable by people ----------------------------------------

LIBRARY = "application"
"""Folder of the modules of the library, in the package. They are read as text, and imported by no service."""
NEGOTIATION = "negotiation"
"""Folder of those that negotiate."""
FILE_NAME = "koala_app.py"
NEGOTIATION_FILE_NAME = "koala_nt.py"
NEGOTIATION_MODULES = ("templates", "document", "states", "endpoint", "connection")
"""Each after those that it imports."""
MODULES = ("notes", "sizes", "process", "bargains", "session")
"""Modules of the library in Python, in this order."""
NAMES = ("Answer", "App", "Change", "KoalaAppError", "Member", "join")
"""What a program may use."""

_BEGINNING = '''\
# SPDX-License-Identifier: Apache-2.0
"""koala_app: for programs that change their number of processes while they run, as koala has processors for them.

    import koala_app

    app = koala_app.join(contact="host:port")
    change = app.change                  # that of a process that starts later, which stands at the point of the others
    while change is not None or app.reached < steps:
        if change is None:
            change = app.point()
        if change is not None:
            ...                          # redistribute the state from change.old to change.members
            app.done()
            if change.rank is None:      # this process was taken out
                app.leave()
                break
            change = None
        ...                              # step number app.reached, as rank app.rank of app.size
    app.close()

Not under koala the program runs as it is: every call works, and there is never a change.
Needs the standard library of Python 3.6 or newer only. Made from koala-adapter; see `koala docs adaptive`.
"""
'''

_NEGOTIATION_BEGINNING = '''\
# SPDX-License-Identifier: Apache-2.0
"""koala_nt: negotiation templates for programs, over a blocking socket.

    import koala_nt as nt

    connection = nt.connect("head.example.org", 7322, token)
    connection.send(nt.template("1", "APPLICATION", "node7", "head", [nt.resource("CPU", 4)], direction="grow"))
    while True:
        event = connection.recv()
        if event.kind == "offer":
            connection.send(nt.decide(event.template, {"CPU": 6}))
        elif event.kind == "accepted":
            connection.send(nt.committed(event.template))
        else:
            break
    connection.close()

Needs the standard library of Python 3.6 or newer only. Made from koala-adapter; see `koala docs negotiation`.
"""
'''


@cache
def library_file() -> str:
    """Return the application library joined into one text; equal modules give equal texts."""
    return joined({**_texts(NEGOTIATION, NEGOTIATION_MODULES), **_texts(LIBRARY, MODULES)}, _BEGINNING, NAMES)


@cache
def negotiation_file() -> str:
    """Return the negotiation part of the library, for programs that only negotiate."""
    from koala_adapter import negotiation

    return joined(_texts(NEGOTIATION, NEGOTIATION_MODULES), _NEGOTIATION_BEGINNING, negotiation.__all__)


def _texts(folder: str, modules: Iterable[str]) -> dict[str, str]:
    room = resources.files("koala_adapter").joinpath(folder)
    return {name: room.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in modules}


def joined(modules: dict[str, str], beginning: str = _BEGINNING, names: Iterable[str] = NAMES) -> str:
    """Join modules into one namespace, without imports from each other.

    Raises KoalaError where two modules define the same name.
    """
    imports: set[str] = set()
    typing_names: set[str] = set()
    owners: dict[str, str] = {}
    sections = []
    for name, text in modules.items():
        tree = ast.parse(text)
        dropped: set[int] = set()
        for number, node in enumerate(tree.body):
            match node:
                case ast.Expr(value=ast.Constant(value=str())) if number == 0:
                    pass
                case ast.ImportFrom(module="typing", names=aliases):
                    typing_names.update(alias.name for alias in aliases)
                case ast.ImportFrom(module=str(module)) if module.startswith("koala_adapter."):
                    pass
                case ast.Import() | ast.ImportFrom():
                    imports.add(ast.unparse(node))
                case _:
                    for defined in _defined(node):
                        if owners.setdefault(defined, name) != name:
                            raise KoalaError(f"{defined} is defined in both {owners[defined]} and {name}")
                    continue
            dropped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        lines = [
            line
            for number, line in enumerate(text.splitlines(), start=1)
            if number not in dropped and not line.startswith("# SPDX")
        ]
        sections.append(f"# {name}: {(ast.get_docstring(tree) or '').splitlines()[0]}\n\n" + "\n".join(lines).strip())
    public = fill(", ".join(f'"{name}"' for name in names), 116)
    heads = [
        *sorted(imports),
        f"from typing import {', '.join(sorted(typing_names))}",
        "",
        f"__all__ = [\n{indent(public, '    ')},\n]",
    ]
    return "\n\n\n".join([beginning + "\n" + "\n".join(heads), *sections]) + "\n"


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


# -- ``koala app --install``: the library in Python and C in a directory -------------------------------------

C_FILES = ("koala_app.h", "koala_app.c", "koala_nt.h", "koala_nt.c")
PKG_CONFIG_FILE = "koala_app.pc"
_SIGNIFICANT_LINES = 2
"""Lines at the beginning of a file by which an older version of the library is told from other files."""
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
    """Return all files of the library by name, for an absolute target directory.

    Raises KoalaError where pkg-config could not read the name of the directory.
    """
    if any(c.isspace() or c in "\"'\\$#" for c in str(directory)):
        raise KoalaError(
            f"pkg-config cannot read {str(directory)!r}", hint="choose a directory without blanks, quotes, $, # and \\"
        )
    source = resources.files(c_library)
    files = {name: source.joinpath(name).read_text(encoding="utf-8") for name in C_FILES}
    return {
        FILE_NAME: library_file(),
        NEGOTIATION_FILE_NAME: negotiation_file(),
        **files,
        PKG_CONFIG_FILE: _PKG_CONFIG.format(prefix=directory, version=__version__),
    }


def install(directory: Path) -> list[Path]:
    """Write all files of the library, replacing older versions; return their paths.

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
