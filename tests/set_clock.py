# SPDX-License-Identifier: Apache-2.0
"""``koala`` on a machine whose time of day is set while it runs: by as many seconds as a file says, read each time.

Run as a program: ``python set_clock.py FILE ARGUMENTS``. Only what asks for the time of day is deceived, as by a real
step: the time since boot and monotonic time pass as they do. Nothing of koala may be imported before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    """Be ``koala``."""
    step = Path(sys.argv.pop(1))
    right = time.time
    time.time = lambda: right() + float(step.read_text(encoding="ascii"))
    from koala_adapter.cli.koala import koala  # noqa: PLC0415 - it shall see that clock only

    koala(prog_name="koala")


if __name__ == "__main__":
    main()
