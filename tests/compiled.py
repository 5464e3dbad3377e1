# SPDX-License-Identifier: Apache-2.0
"""Programs in C for tests: each is built once for all processes of a test run, as building takes seconds."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from koala_adapter.application import c as c_library

C_LIBRARY = Path(c_library.__file__).parent
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O1")
MEMORY_CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""Options for checks of every access to memory."""


def compiled(factory: pytest.TempPathFactory, main: Path, *options: str, name: str = "") -> Path:
    """Return a program made of a file and the part of the library that it includes.

    ``name``: of the program, where one file is built with different options.
    """
    directory = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    program = directory / (name or main.stem)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            parts = ["koala_nt.c", *(["koala_app.c"] if "koala_app.h" in main.read_text() else [])]
            sources = [str(main), *(str(C_LIBRARY / part) for part in parts)]
            unfinished = program.with_suffix(".unfinished")
            command = ["cc", *WARNINGS, "-pthread", *options, "-I", str(C_LIBRARY), "-o", str(unfinished), *sources]
            subprocess.run(command, check=True)
            unfinished.rename(program)
    return program
