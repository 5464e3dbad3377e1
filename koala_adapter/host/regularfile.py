# SPDX-License-Identifier: Apache-2.0
"""Reading files whose names come from users: a FIFO, a device or an endless file must not stop the process."""

from __future__ import annotations

import errno
import os
import stat


def read_regular(path: str, most: int) -> tuple[bytes, int]:
    """Return the content of a regular file of at most ``most`` bytes, and its permission bits.

    Raises OSError, with ``filename``, for any other file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // 1024**2} MiB, or had less when it was checked", path)
    return content, stat.S_IMODE(status.st_mode)
