# SPDX-License-Identifier: Apache-2.0
"""Which jobs' output cannot be written at present, and how that is told to the user and to the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from koala_adapter.model import JobId

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

log = structlog.get_logger()


class UnwrittenOutput:
    """By job: the streams whose files cannot be written, and why."""

    def __init__(self) -> None:
        """Begin with none."""
        self._found: dict[JobId, dict[tuple[str, str], tuple[Path, str]]] = {}

    def note(self, task: str, stream: str, file: Path, why: str) -> bool:
        """Take note that a piece could not be written; tell whether that is news."""
        job_id = _job(task)
        found = self._found.setdefault(job_id, {})
        news = found.get((task, stream)) != (file, why)
        if why not in {known for _, known in found.values()}:
            # Once for a reason: a full disk meets all ranks of a job at the same time.
            log.error("output cannot be written; it is tried again", job=job_id, file=str(file), error=why)
        found[task, stream] = (file, why)
        return news

    def written(self, task: str, stream: str) -> None:
        """Take note that a piece was written."""
        job_id = _job(task)
        found = self._found.get(job_id)
        if found is not None and found.pop((task, stream), None) is not None and not found:
            del self._found[job_id]
            log.info("output can be written again", job=job_id)

    def keep_only(self, jobs: Collection[JobId]) -> None:
        """Forget the other jobs."""
        self._found = {job_id: found for job_id, found in self._found.items() if job_id in jobs}

    def trouble(self, job_id: JobId, *, over: bool) -> str:
        """Return what a user is to know; empty when nothing. ``over``: the job has its outcome."""
        found = self._found.get(job_id)
        if not found:
            return ""
        file, why = next(iter(found.values()))
        others = "" if len(found) == 1 else f" and {len(found) - 1} other file{'s' if len(found) > 2 else ''}"  # noqa: PLR2004
        if over:
            return f"The end of its output could not be written to {file}{others}: {why}."
        return (
            f"Its output cannot be written to {file}{others}: {why}. Nothing is lost: it is tried again, and what "
            "writes more than 1 MiB waits until it works."
        )


def _job(task: str) -> JobId:
    return JobId(task.partition(":")[0])
