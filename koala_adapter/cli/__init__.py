# SPDX-License-Identifier: Apache-2.0
"""The command line ``koala``: one module per group of commands."""

from __future__ import annotations

import os
import signal
import sys

from koala_adapter.cli.garbage import look_rarely
from koala_adapter.cli.terminal import survive_hangup

__all__ = ["main"]


NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Tells pydantic not to look for plugins of its own, for which it would read a file of every installed distribution."""


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback from the first moment on, imports included."""
    look_rarely()
    os.environ.setdefault(NO_PLUGINS, "__all__")
    try:
        survive_hangup()
        from koala_adapter.cli.koala import koala

        koala(prog_name="koala")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
