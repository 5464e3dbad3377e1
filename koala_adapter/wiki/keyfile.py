# SPDX-License-Identifier: Apache-2.0
"""Reading the key that a scheduler and we share, from a file that nobody else can read or change."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError
from koala_adapter.wiki.codec.checksum import read_key

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.wiki.codec.checksum import Key

LONGEST_KEY = 200
"""Bytes; Slurm keeps 31 characters of a key, Maui 63."""


def load_key(path: Path) -> Key:
    """Return the key in the first line of a file. Raises ConfigurationError when others could know or change it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        hint = "write the key that the scheduler has into a file of mode 0600 (Maui: $MAUIHOMEDIR/.moab.key)"
        raise ConfigurationError(f"cannot read the key file {path}: {error.strerror}", hint=hint) from error
    try:
        _require_private(path, os.fstat(descriptor))
        first = os.read(descriptor, LONGEST_KEY + 1).split(b"\n", 1)[0].strip()
    finally:
        os.close(descriptor)
    if not first or len(first) > LONGEST_KEY:
        message = f"the key file {path} has no key of at most {LONGEST_KEY} bytes in its first line"
        raise ConfigurationError(message, hint="one number, such as 1234567890 or 0x499602d2")
    key = read_key(first.decode("utf-8", "replace"))
    if not first[:1].isdigit():
        message = f"the key in {path} does not begin with a digit, so every peer takes it for 0"
        raise ConfigurationError(message, hint="one number, such as 1234567890 or 0x499602d2")
    return key


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"the key file {path} is no ordinary file")
    if status.st_uid != os.geteuid():
        message = f"the key file {path} belongs to user {status.st_uid}, not to us ({os.geteuid()})"
        raise ConfigurationError(message, hint=f"chown it: whoever owns {path} decides who may start and cancel jobs")
    if status.st_mode & 0o077:
        message = f"the key file {path} has mode {stat.S_IMODE(status.st_mode):04o}: others could read it"
        raise ConfigurationError(message, hint=f"chmod 600 {path}, and choose another key")
