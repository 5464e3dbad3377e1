# SPDX-License-Identifier: Apache-2.0
"""Notes of an outside scheduler in the comments of jobs, behind what their users have written there. Pure.

A comment is ``my text [koala: place 3]``. Slurm sets a comment as a whole, so who adds to one may undo what a user
writes at the same time. conf/job_submit.lua puts the note of an operator's request to what the comment is then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_slurm.jobids import ARGUMENTS_PER_COMMAND, compacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from koala_adapter.model import LrmJob

LONGEST_COMMENT = 900
"""Bytes of a user's comment behind which a note has room: Slurm takes 1024 in all."""

_NOTE = re.compile(r" ?\[koala: (?P<text>[^\[\]]*)\]")


def without_note(comment: str) -> tuple[str, str]:
    """Return what of a comment is its user's, and the note in it, which may be empty."""
    found = _NOTE.findall(comment)
    return (_NOTE.sub("", comment).strip(), str(found[-1])) if found else (comment, "")


def with_note(comment: str, note: str) -> str:
    """Return a user's comment with a note; an empty one is none."""
    return f"{comment} [koala: {note}]".lstrip() if note else comment


def has_room(comment: str) -> bool:
    """Tell whether a note has room behind a user's comment."""
    return len(comment.encode()) <= LONGEST_COMMENT


def annotate_commands(jobs: Iterable[LrmJob], note: str) -> Iterator[tuple[str, ...]]:
    """Yield the command lines that put a note to jobs, or take it away when it is empty: one for all like comments."""
    alike: dict[str, list[str]] = {}
    for job in jobs:
        alike.setdefault(job.comment, []).append(job.id)
    for comment, ids in alike.items():
        arguments = compacted(ids)
        for start in range(0, len(arguments), ARGUMENTS_PER_COMMAND):
            named = ",".join(arguments[start : start + ARGUMENTS_PER_COMMAND])
            yield ("scontrol", "update", f"JobId={named}", comment_change(comment, note))


def comment_change(comment: str, note: str) -> str:
    """Return the word of an update that sets a user's comment with a note."""
    return f"Comment={with_note(comment, note)}"
