# SPDX-License-Identifier: Apache-2.0
"""Which jobs a listing has, and the latest of them. Pure.

Reports are looked at as JSON documents, because an archive has many of them and a listing shows few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from koala_adapter.outcome import JobState
from koala_adapter.report.values import by_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Document: TypeAlias = Mapping[str, Any]
"""The JSON form of a JobReport."""
FAILED = frozenset({JobState.FAILED, JobState.LOST, JobState.NOT_PLACED, JobState.REFUSED})
"""States of jobs that ended otherwise than well, without having been cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection:
    """Conditions for a job to be listed, all of which must hold. Times are seconds since the epoch."""

    since: float | None = None
    """Jobs that ended at this time or later, or have not ended."""
    until: float | None = None
    """Jobs that were submitted at this time or earlier."""
    user: str = ""
    name: str = ""
    """Pattern as of shells, with ``*``, ``?`` and ``[...]``."""
    states: tuple[JobState, ...] = ()
    """Jobs in one of these states; empty: in any."""
    cluster: str = ""
    """Jobs with a component on this cluster."""
    failed: bool = False
    """Jobs that failed, were lost, refused or not placed."""
    word: str = ""
    """Text in the name, a command, a host, an id of a batch system, the explanation or the detail of the outcome.

    Case is ignored.
    """

    def takes(self, report: Document) -> bool:
        """Return whether a job fulfils all conditions."""
        ended = report["finished_at"]
        return (
            (self.since is None or ended is None or ended >= self.since)
            and (self.until is None or report["submitted_at"] <= self.until)
            and (not self.user or report["user"] == self.user)
            and (not self.name or fnmatchcase(report["name"], self.name))
            and (not self.states or report["state"] in self.states)
            and (not self.failed or report["state"] in FAILED)
            and (not self.cluster or any(one["cluster"] == self.cluster for one in report["components"]))
            and (not self.word or any(self.word.casefold() in text.casefold() for text in _texts(report)))
        )


def _texts(report: Document) -> Iterator[str]:
    """Yield the texts of a job that a search looks through."""
    yield from (report["id"], report["name"], report["explanation"])
    if report["outcome"] is not None:
        yield report["outcome"]["detail"]
    for one in report["components"]:
        yield from (one["name"], " ".join(one["command"]), one["cluster"] or "", *one["hosts"], *one["lrm_ids"])


def latest_of(live: Iterable[Document], kept: Iterable[str], selection: JobSelection, limit: int) -> list[Document]:
    """Return the latest ``limit`` jobs of a selection in order of submission.

    ``live``: the jobs of the scheduler. ``kept``: reports of ended jobs (JSON), the latest ones first; a job that is
    among the live ones, too, is taken from there.
    """
    found: dict[str, Document] = {one["id"]: one for one in live}
    known = set(found)
    found = {job_id: one for job_id, one in found.items() if selection.takes(one)}
    left = limit
    for text in kept if limit else ():
        report = json.loads(text)
        if report["id"] not in known and selection.takes(report):
            found[report["id"]] = report
            left -= 1
            if not left:
                break
    return sorted(found.values(), key=lambda one: by_number(one["id"]))[-limit:]
