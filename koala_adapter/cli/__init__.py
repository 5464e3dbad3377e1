# SPDX-License-Identifier: Apache-2.0
"""The command line ``koala``: one module per group of commands."""

from __future__ import annotations

import signal
import sys

from koala_adapter.cli.terminal import survive_hangup

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback from the first moment on, imports included."""
    try:
        survive_hangup()
        from koala_adapter.cli.koala import koala

        koala(prog_name="koala")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
