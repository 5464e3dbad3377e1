# SPDX-License-Identifier: Apache-2.0
"""The command line ``koala``: its entry point, and one module for each group of commands.

The door is :func:`main`. Importing this package loads no command: main imports them, after it has set when Python looks
for garbage. What draws (``display``, ``following``) is imported by a command that may print JSON when it draws,
and what only some calls of a command need, when they do.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

from koala_adapter import on_demand
from koala_adapter.cli.terminal import open_standard_descriptors, survive_hangup

if TYPE_CHECKING:
    from koala_adapter.cli import display, following, schedule

__all__ = [
    "display",
    "following",
    "main",
    "schedule",
]

__getattr__, __dir__ = on_demand(__name__, {name: (name,) for name in ("display", "following", "schedule")})


# -- Garbage collection --------------------------------------------------------------------------------------
# Python looks for garbage rarely, and not at all in what is imported for one short job, all of which stays.

NEW_OBJECTS = 100_000
"""Objects made between two looks for garbage. With Python's 700, looking again and again through all that was imported
takes a tenth of the processor time of a short command, and finds nothing. A command that only asks makes fewer."""
OBJECTS_OF_A_SERVICE = 1_000_000
"""More than the imports of a service make."""


def collect_rarely() -> None:
    """Run the garbage collector rarely: a short command leaves little for it."""
    gc.set_threshold(NEW_OBJECTS)


def collect_hardly_ever() -> None:
    """Run the garbage collector even more rarely while a service is imported, until :func:`collect_only_new`."""
    gc.set_threshold(OBJECTS_OF_A_SERVICE)


def collect_only_new() -> None:
    """Exempt all present objects from garbage collection, and run it rarely for new ones."""
    gc.freeze()
    collect_rarely()


# -- Entry point ---------------------------------------------------------------------------------------------

NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Tells pydantic not to look for plugins of its own, for which it would read a file of every installed distribution."""


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback from the first moment on, imports included."""
    open_standard_descriptors()
    collect_rarely()
    os.environ.setdefault(NO_PLUGINS, "__all__")
    try:
        survive_hangup()
        from koala_adapter.cli.koala import koala

        koala(prog_name="koala")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
