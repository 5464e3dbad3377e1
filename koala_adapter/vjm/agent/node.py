# SPDX-License-Identifier: Apache-2.0
"""What the agent asks its node for, and what it says there."""

import os
import socket
import sys
import time

BOOTTIME = 7  # clock_gettime(2): seconds since the node was booted, suspension included; named in Python from 3.7 on


def clock() -> float:
    """Return seconds that nobody sets and that pass while the node sleeps, too: those since it was booted."""
    return time.clock_gettime(BOOTTIME)


def say(text: str) -> None:
    """Write a line for the administrator to the placeholder's stderr; never fails, never contains a secret."""
    try:
        sys.stderr.write(f"koala agent on {socket.gethostname()}: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def random_name() -> str:
    """Return 128 random bits in hexadecimal."""
    return os.urandom(16).hex()


def word(text: str) -> str:
    """Return ``text`` without what the channel does not take in a name."""
    return "".join(character for character in text if "!" <= character <= "~")[:255]


def raw(text: str) -> bytes:
    """Return the bytes of a name or argument: UTF-8 whatever the node's locale (Python 3.6 has ASCII under LANG=C)."""
    return text.encode("utf-8", "surrogateescape")
