# SPDX-License-Identifier: Apache-2.0
"""The command lines of PBS, but for qsub. Pure.

Listings are of everything, never of several ids: of these the development head of OpenPBS shows the first alone. qdel
gets one id: of several, two of them finished, 23.06 crashes and deletes none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_pbs.dialects import TORQUE
from koala_pbs.jobids import checked, is_array
from koala_pbs.jobnotes import comment_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_pbs.dialects import Dialect
    from koala_pbs.selection import Assignment

UTC = {"TZ": "UTC"}
"""Environment of listings: they tell the time as their host has it."""

_VERSION = re.compile(r"(?:pbs_version\s*=|version:)\s*(\S+)", re.IGNORECASE)


def show_job(job: str, dialect: Dialect) -> tuple[str, ...]:
    """Return the listing of one job, or element; of one that has moved to another server, as that shows it."""
    return (*dialect.list_jobs, checked(job))


def show_all(dialect: Dialect, at: str = "") -> tuple[str, ...]:
    """Return the listing of all jobs, of another server ``at`` than ours if that is given."""
    return (*dialect.list_jobs, *((f"@{at}",) if at else ()))


def show_ended(job: str, at: str = "") -> tuple[str, ...]:
    """Return the listing of one job, or of all elements of an array, that may have ended; ``at`` as above."""
    name = f"{checked(job)}@{at}" if at else checked(job)
    return ("qstat", "-x", *(("-t",) if is_array(job) else ()), "-f", "-F", "json", name)


def cancel(argument: str) -> tuple[str, ...]:
    """Return the command line that deletes a job, an array, or a range of its elements."""
    return ("qdel", argument)


def hold(jobs: Sequence[str], kinds: str) -> tuple[str, ...]:
    """Return the command line that puts jobs in hold: ``u`` of the user, ``o`` of an operator."""
    return ("qhold", "-h", kinds, *jobs)


def release(jobs: Sequence[str], kinds: str) -> tuple[str, ...]:
    """Return the command line that takes holds from jobs."""
    return ("qrls", "-h", kinds, *jobs)


def signal(jobs: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the command line that signals running jobs; ``suspend`` and ``resume`` are signals, too."""
    return ("qsig", "-s", name, *jobs)


def requeue(jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that stops running jobs and queues them again."""
    return ("qrerun", *jobs)


def make_rerunnable(jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that allows jobs to be queued again."""
    return ("qalter", "-r", "y", *jobs)


def set_walltime(job: str, seconds: int) -> tuple[str, ...]:
    """Return the command line that changes a job's walltime."""
    return ("qalter", "-l", f"walltime={int(seconds)}", checked(job))


def set_selection(job: str, select: str, place: str) -> tuple[str, ...]:
    """Return the command line that changes which chunks a waiting job asks for, and how they are arranged."""
    return ("qalter", "-l", f"select={select}", *(("-l", f"place={place}") if place else ()), checked(job))


def annotate(jobs: Sequence[str], text: str) -> tuple[str, ...]:
    """Return the command line that sets the comment of jobs, and arrays; operators may. An empty one has no effect."""
    return ("qalter", "-W", f"comment={comment_of(text) or ' '}", *jobs)


def run_on(job: str, assignment: Assignment, dialect: Dialect) -> tuple[str, ...]:
    """Return the command line that starts a job at once, be it held. OpenPBS does not look whether there is room."""
    return ("qrun", "-H", assignment.hosts if dialect is TORQUE else assignment.destination, checked(job))


def notify(job: str, text: str) -> tuple[str, ...]:
    """Return the command line that writes a line to a job's standard error."""
    line = "".join(character if character.isprintable() else " " for character in text).strip() or "(no text)"
    return ("qmsg", "-E", line if not line.startswith("-") else f" {line}", checked(job))


def parse_version(text: str) -> str | None:
    """Return the version in ``pbs_version = 23.06.06``; None when there is none."""
    found = _VERSION.search(text)
    return found[1] if found else None
