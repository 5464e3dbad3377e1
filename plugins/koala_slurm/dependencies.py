# SPDX-License-Identifier: Apache-2.0
"""Whether a job's dependencies are fulfilled, worked out from its parents (sbatch(1), --dependency). Pure.

Slurm looks at the dependencies of a job in hold seldom or never, and shows them as unfulfilled. A parent that has left
Slurm's memory counts as Slurm counts it: the dependency is lifted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, LrmJobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.model import LrmJob

_PART = re.compile(r"(?P<kind>[a-z]+)(?::(?P<job>[0-9]+)(?P<element>_(?:[0-9]+|\*))?(?:\+(?P<minutes>[0-9]+))?)?")
_NOTE = re.compile(r"\([a-z]*\)")
_WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.UNKNOWN})

_ENDS = frozenset({"afterok", "aftercorr", "afternotok", "afterany"})

NOT_YET = "it waits for other jobs"


def unfulfilled(job: LrmJob, text: str, jobs: Mapping[str, Sequence[LrmJob]], *, now: float) -> str:
    """Return why a job may not start yet, or never, by its dependencies; empty when it may.

    ``text``: as squeue writes them; ``jobs``: all that are listed, by the number of the job or array; ``now``: the time
    of day.
    """
    any_will_do = "?" in text
    problems = [_problem(job, part, jobs, now) for part in _NOTE.sub("", text).replace("?", ",").split(",") if part]
    if any_will_do and "" in problems:
        return ""
    return next((problem for problem in problems if problem), "")


def by_number(jobs: Iterable[LrmJob]) -> dict[str, list[LrmJob]]:
    """Return jobs by their numbers, the elements of an array together."""
    found: dict[str, list[LrmJob]] = {}
    for job in jobs:
        found.setdefault(job.id.partition("_")[0].partition("+")[0], []).append(job)
    return found


def _problem(job: LrmJob, part: str, jobs: Mapping[str, Sequence[LrmJob]], now: float) -> str:
    match = _PART.fullmatch(part.strip())
    if match is not None and match["kind"] == "singleton":
        return _same_name(job, jobs)
    if match is None or not match["job"]:
        return f"{NOT_YET} ({part})"
    parents = jobs.get(match["job"], ())
    element = (match["element"] or "").lstrip("_")
    if match["kind"] == "aftercorr" and job.array_index is not None:
        element = str(job.array_index)
    if element.isdecimal():
        parents = [parent for parent in parents if parent.array_index == int(element)]
    if match["kind"] == "after":
        delay = 60 * int(match["minutes"] or 0)
        begun = all(parent.state not in _WAITING for parent in parents)
        late = all((parent.started_at or parent.ends_at or now) + delay <= now for parent in parents)
        return "" if begun and late else f"{NOT_YET} ({part})"
    return _of_ended(match["kind"], part, parents)


def _of_ended(kind: str, part: str, parents: Sequence[LrmJob]) -> str:
    """Return the problem of a dependency on how jobs have ended."""
    if kind not in _ENDS or any(parent.state is not LrmJobState.ENDED for parent in parents):
        return f"{NOT_YET} ({part})"
    well = [parent.end is EndReason.EXITED and parent.exit_code == 0 for parent in parents]
    if kind in {"afterok", "aftercorr"} and not all(well):
        return f"it waits for the success of a job that has failed ({part})"
    if kind == "afternotok" and parents and all(well):
        return f"it waits for the failure of a job that has ended well ({part})"
    return ""


def _same_name(job: LrmJob, jobs: Mapping[str, Sequence[LrmJob]]) -> str:
    number = int(job.id.partition("_")[0].partition("+")[0])
    for known, others in jobs.items():
        for other in others:
            alike = (other.name, other.user) == (job.name, job.user) and other.state is not LrmJobState.ENDED
            if alike and int(known) < number:
                return f"{NOT_YET} (singleton: {other.id} has the same name)"
    return ""
