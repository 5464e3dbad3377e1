# SPDX-License-Identifier: Apache-2.0
"""Passing by Debian's wrapper around the commands of Grid Engine.

There each command in /usr/bin is a script that finds out the machine's architecture, with thirty processes and a
compiler, then sets SGE_ROOT and SGE_CELL where they are missing, and becomes the program. We set these ourselves, and
ask often: qstat itself takes a tenth of the processor time.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_sge.settings import SgeSettings

WRAPPER = "gridengine-wrapper"
PROGRAMS = Path("/usr/lib/gridengine")


def behind_wrapper(settings: SgeSettings, *, search_path: str | None = None, programs: Path = PROGRAMS) -> SgeSettings:
    """Return the settings with the directory of the programs themselves, where the commands in PATH are the wrapper.

    A directory that the site gives stays. ``search_path``: PATH, by default that of this process.
    """
    if settings.bin_directory is not None:
        return settings
    found = shutil.which("qstat", path=search_path)
    if found is None or Path(found).resolve().name != WRAPPER or not (programs / "qstat").is_file():
        return settings
    return settings.model_copy(update={"bin_directory": programs})
