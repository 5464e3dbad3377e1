# SPDX-License-Identifier: Apache-2.0
"""Jobs whose starts were refused or did not come about, and for how long each is kept from being offered again. Pure.

After a refused start Maui leaves out the other starts of that iteration: a job that is refused again and again would
keep all others waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

from koala_adapter.batchsystem.starts import Patience

NO_ROOM_TRIES = 3
"""So often in a row a job may find its nodes taken meanwhile, which a peer that polls cannot always know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """One job's failed starts."""

    failures: int
    reason: str
    until: float
    """It is not offered before."""


class Setbacks:
    """The failed starts of all jobs; times are of one clock that nobody sets."""

    def __init__(self, patience: Patience | None = None) -> None:
        """``patience``: how long a job is left alone after so many failures."""
        self._patience = patience or Patience()
        self._known: dict[str, Setback] = {}

    def note(self, job: str, reason: str, now: float, *, refused: bool) -> Setback:
        """Take note of a failed start. ``refused``: the job itself is the reason, not the moment."""
        former = self._known.get(job)
        failures = 1 if former is None else former.failures + 1
        counted = failures if refused else failures - NO_ROOM_TRIES + 1
        pause = self._patience.after(counted, refused=refused) if counted > 0 else 0.0
        self._known[job] = found = Setback(failures=failures, reason=reason, until=now + pause)
        return found

    def of(self, job: str, now: float) -> Setback | None:
        """Return why a job is not offered now; None when it may be."""
        found = self._known.get(job)
        return found if found is not None and now < found.until else None

    def forget(self, job: str) -> None:
        """Drop what is known of a job that runs, or is over."""
        self._known.pop(job, None)
