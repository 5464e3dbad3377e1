# SPDX-License-Identifier: Apache-2.0
"""The file that was made for the agent's own words."""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def own_output(batch: str) -> "Optional[str]":
    """Return the file that was made for our own words; one that does not bear our batch's name is not ours."""
    try:
        path = os.readlink("/proc/self/fd/2")
        kept, named = os.fstat(2), os.lstat(path)
    except OSError:
        return None
    ours = (kept.st_dev, kept.st_ino) == (named.st_dev, named.st_ino) and kept.st_uid == os.geteuid()
    regular = stat.S_ISREG(kept.st_mode) and os.path.basename(path).startswith(batch)
    return path if ours and regular else None


def remove_output(path: "Optional[str]", *, if_empty: bool = False) -> None:
    """Remove the file of ``own_output``."""
    try:
        if path is not None and not (if_empty and os.lstat(path).st_size):
            os.unlink(path)
            directory, name = os.path.split(path)
            if os.path.basename(directory) + ".out" == name:
                os.rmdir(directory)
    except OSError:
        pass
