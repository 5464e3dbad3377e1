# SPDX-License-Identifier: Apache-2.0
"""Notes of an outside scheduler in the comments of jobs, in which only PBS itself and operators write. Pure."""

from __future__ import annotations

_BEGINNING = "koala: "


def comment_of(note: str) -> str:
    """Return the comment that says a note; a comma would end it (``qalter -W``). An empty note is none."""
    return f"{_BEGINNING}{note.replace(',', ';')}" if note else ""


def note_in(comment: str) -> str:
    """Return the note in a comment; empty when it is none of ours."""
    return comment.removeprefix(_BEGINNING).replace(";", ",") if comment.startswith(_BEGINNING) else ""
