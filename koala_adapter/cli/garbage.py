# SPDX-License-Identifier: Apache-2.0
"""When Python looks for garbage: rarely, and not at all in what is imported for one short job, all of which stays."""

from __future__ import annotations

import gc

NEW_OBJECTS = 50_000
"""Objects made between two looks for garbage. With Python's 700, looking again and again through all that was imported
takes a tenth of the processor time of a short command, and finds nothing."""
OBJECTS_OF_A_SERVICE = 1_000_000
"""More than the imports of a service make."""


def look_rarely() -> None:
    """Do so from the beginning of a command."""
    gc.set_threshold(NEW_OBJECTS)


def import_a_service() -> None:
    """Do not look while a service is imported; :func:`look_at_the_new` ends this."""
    gc.set_threshold(OBJECTS_OF_A_SERVICE)


def look_at_the_new() -> None:
    """Look rarely again, and only through what is made from now on."""
    gc.freeze()
    look_rarely()
