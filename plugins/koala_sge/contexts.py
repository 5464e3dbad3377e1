# SPDX-License-Identifier: Apache-2.0
"""What stands in the contexts of jobs (``qalter -ac``) for an outside scheduler, as ``qstat -j`` shows them. Pure.

The context is the only place of a job in which a submission verifier and a scheduler can leave a word that nobody else
takes for something.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

USER_HOLD = "koala_user_hold"
"""Set by conf/sge_jsv.sh for a job that its user held, too."""
QUEUES = "koala_queues"
"""The queues that a job asked for before it was pinned to others."""
NOTE = "koala"
"""What an outside scheduler tells the user of a job that waits."""
ANY_QUEUE = "*"
BETWEEN_QUEUES = "+"
"""A comma ends a value, and no name of a queue has a plus sign."""

_NUMBER = re.compile(r"job_number:\s+(?P<number>[0-9]+)")
_CONTEXT = re.compile(r"context:\s+(?P<context>\S.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What is left of a job for an outside scheduler."""

    user_hold: bool = False
    queues: tuple[str, ...] | None = None
    """The queues that it asked for before it was pinned; empty: any, None: it is not pinned."""
    note: str = ""


def parse_contexts(text: str) -> dict[str, JobContext]:
    """Return the contexts of ``qstat -j``, by the numbers of the jobs; those without any included."""
    found: dict[str, JobContext] = {}
    number = ""
    for line in text.splitlines():
        if job := _NUMBER.match(line):
            number = job["number"]
            found[number] = JobContext()
        elif number and (context := _CONTEXT.match(line)):
            words = dict(word.partition("=")[::2] for word in context["context"].strip().split(","))
            note = words.get(NOTE, "").replace(";", ",")
            found[number] = JobContext(user_hold=USER_HOLD in words, queues=_queues(words.get(QUEUES)), note=note)
    return found


def noted(queues: Sequence[str]) -> str:
    """Return the word in which a context keeps the queues that a job asked for."""
    return f"{QUEUES}={BETWEEN_QUEUES.join(queues) or ANY_QUEUE}"


def note_word(text: str) -> str:
    """Return the word in which a context keeps a note: a comma would end it."""
    return f"{NOTE}={text.replace(',', ';')}"


def _queues(word: str | None) -> tuple[str, ...] | None:
    if word is None:
        return None
    return () if word == ANY_QUEUE else tuple(word.split(BETWEEN_QUEUES))
