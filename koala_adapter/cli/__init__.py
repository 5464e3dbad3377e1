# SPDX-License-Identifier: Apache-2.0
"""The command line ``koala``: one module per group of commands."""

from __future__ import annotations

import gc
import signal
import sys

from koala_adapter.cli.terminal import survive_hangup

__all__ = ["main"]

NEW_OBJECTS = 50_000
"""Objects made between two looks for garbage. With Python's 700, looking again and again through all that was imported
takes a tenth of the processor time of a short command, and finds nothing."""


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback from the first moment on, imports included."""
    gc.set_threshold(NEW_OBJECTS)
    try:
        survive_hangup()
        from koala_adapter.cli.koala import koala

        koala(prog_name="koala")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
