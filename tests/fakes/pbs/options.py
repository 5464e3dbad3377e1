# SPDX-License-Identifier: Apache-2.0
"""Command lines of the fake, and the words in which PBS refuses."""

from __future__ import annotations

import getopt
import re
import sys
from typing import TYPE_CHECKING

from tests.fakes.pbs.state import MOVED, NO_ELEMENT, OVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.pbs.state import Job, State, Store

UNKNOWN_JOB, FINISHED_JOB, INVALID_REQUEST, BAD_STATE, UNAUTHORIZED = 153, 35, 156, 168, 159

_ID = re.compile(r"(\d+)(?:\[(?:(\d*)|(\d+)-(\d+))\])?(\.[\w.-]+)?")


class Refusal(Exception):  # noqa: N818 - no error of the fake, but what it plays
    """The command complains with this text and ends with this status."""

    def __init__(self, text: str, status: int = 1) -> None:
        """``text`` goes to stderr as it is, behind the name of the program."""
        super().__init__(text)
        self.text = text
        self.status = status


def parse(arguments: Sequence[str], known: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each option, and the words behind them; ``known`` as for getopt(3)."""
    try:
        pairs, words = getopt.getopt(list(arguments), known)
    except getopt.GetoptError as error:
        raise Refusal(f"illegal -{error.opt} value\nusage: see the manual", 2) from error
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found, words


def selected(store: Store, state: State, text: str, *, ended: bool = False) -> list[Job]:
    """Return the jobs that an id, or a range of elements, names. Raises Refusal in PBS's words.

    ``ended``: those that are over are meant, too.
    """
    match = _ID.fullmatch(text)
    shown = text if match and match[5] else f"{text}.{store.settings['server']}"
    given = text.partition(".")[2] or store.settings["server"]
    found = [
        job
        for job in state.jobs
        if match
        and (job.known_as == text if job.known_as or given != store.settings["server"] else job.number == int(match[1]))
        and (ended or job.letter != MOVED)
    ]
    if not match or not found or ("[" in text) != (found[0].element != NO_ELEMENT):
        raise Refusal(f"Unknown Job Id {shown}", UNKNOWN_JOB)
    if not ended and all(job.letter == "F" for job in found):
        raise Refusal(f"Job has finished {shown}", FINISHED_JOB)
    wanted = _elements(match)
    if wanted is not None:
        found = [job for job in found if job.element in wanted]
        if not found:
            raise Refusal(f"Invalid request {shown}", INVALID_REQUEST)
    return found


def _elements(match: re.Match[str]) -> range | None:
    if match[2]:
        return range(int(match[2]), int(match[2]) + 1)
    return range(int(match[3]), int(match[4]) + 1) if match[3] else None


def whole(store: Store, state: State, text: str) -> Job:
    """Return a job, or any element of an array. Raises Refusal for what can be done to whole arrays only."""
    found = selected(store, state, text)
    if "[" in text and "[]" not in text:
        raise Refusal(f"Invalid request {text}", INVALID_REQUEST)
    return found[0]


def is_over(job: Job) -> bool:
    """Tell whether a job has ended."""
    return job.letter in OVER


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
