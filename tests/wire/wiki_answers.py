# SPDX-License-Identifier: Apache-2.0
"""Answers to JOBWILLRUN and events as a scheduler reads them; a resource manager only writes them."""

from __future__ import annotations

import re
from typing import Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.verbs import NOT_RUNNABLE, StartInfo
from koala_adapter.wiki.codec.words import Event, expand

_OLD_START_INFO: Final = re.compile(
    r"STARTINFO=(?P<job>[^\s:]+):(?P<tasks>[0-9]{1,9})@(?P<start>[0-9]{1,15}),(?P<nodes>\S*)", re.ASCII
)
_START_INFO: Final = re.compile(
    r"STARTINFO=(?P<job>\S+) TASKS=(?P<tasks>[0-9]{1,9}) STARTTIME=(?P<start>[0-9]{1,15}) NODES=(?P<nodes>\S*)"
    r"(?: PREEMPT=(?P<preempt>\S*))?",
    re.ASCII,
)
_EVENTS: Final = {f"{event:d}\0".encode(): event for event in Event}


def parse_start_info(argument: str) -> StartInfo | None:
    """Return the answer to JOBWILLRUN from what follows ARG=; None: never. Raises WikiError for anything else."""
    if argument.startswith(NOT_RUNNABLE):
        return None
    for pattern in (_START_INFO, _OLD_START_INFO):
        found = pattern.match(argument)
        if found:
            preempt = found["preempt"] if pattern is _START_INFO else None
            return StartInfo(
                job=found["job"],
                tasks=int(found["tasks"]),
                start=int(found["start"]),
                nodes=expand(found["nodes"]),
                preempt=tuple(filter(None, (preempt or "").split(","))),
                old=pattern is _OLD_START_INFO,
            )
    raise WikiError(f"the answer to JOBWILLRUN cannot be understood: {argument[:80]!r}")


def parse_event(data: bytes) -> Event:
    """Return the event that came in at the event port. Raises WikiError."""
    event = _EVENTS.get(data[:5])
    if event is None:
        raise WikiError(f"{data[:20]!r} is no event")
    return event
