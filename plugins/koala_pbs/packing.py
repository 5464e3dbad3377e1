# SPDX-License-Identifier: Apache-2.0
"""Job scripts that Torque 6.1 takes: of a longer one its server starts what has come with the first 64 KiB. Pure.

What is longer goes packed, and is unpacked into a shell through pipes: it holds a secret, so neither a file nor a
command line has it.
"""

from __future__ import annotations

import base64
import gzip

LARGEST_SCRIPT = 65_536
"""Bytes that Torque's commands send at once (SCRIPT_CHUNK_Z)."""

_END = "END_OF_PACKED_SCRIPT"
_PACKED = f"""\
#!/bin/sh
# koala-adapter: packed, because Torque 6.1 takes no script of more than 64 KiB.
base64 -d <<'{_END}' | gzip -dc | /bin/sh
%s{_END}
"""


def packed(script: str) -> str:
    """Return a script that does what ``script`` does, and is short enough where that can be; short ones as they are."""
    raw = script.encode()
    if len(raw) <= LARGEST_SCRIPT:
        return script
    return _PACKED % base64.encodebytes(gzip.compress(raw, mtime=0)).decode("ascii")
