# SPDX-License-Identifier: Apache-2.0
"""The starts of one batch system's held jobs: how far each has come, judged by what is listed. Pure.

Every start that was asked for comes to one end: the job is seen to run and the plugin is told so (``confirm_start``),
or the job is taken back (``undo_start``). The plugin gives back with either what it had reserved for the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.batchsystem.listing import is_another
from koala_adapter.model import LrmJobState, NodeState

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from koala_adapter.batchsystem.startlog import Pin
    from koala_adapter.errors import LrmError
    from koala_adapter.model import LrmJob, LrmJobId, Node

Layout: TypeAlias = "tuple[tuple[str, int], ...]"

PATIENCE = 30.0
"""Seconds in which an accepted start must show."""
BACKOFF = 5.0
"""Seconds before a failed start is tried again; doubled with each try."""
LONGEST_BACKOFF = 600.0
REFUSED_BACKOFF = 10.0
"""Seconds at least when the batch system refused: asking again at once would be refused again."""

BLOCKED_AFTER = 1.5
"""Seconds after which a released job that waits for something else than processors is not started: until then the batch
system may still show a reason of before."""

REQUEUED = "it was queued again"

WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD})
OCCUPYING = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a start to show, and how long to leave a job alone that did not start (seconds)."""

    start: float = PATIENCE
    backoff: float = BACKOFF
    refused: float = REFUSED_BACKOFF
    longest: float = LONGEST_BACKOFF

    def after(self, failures: int, *, refused: bool) -> float:
        """Return the pause after so many failed starts."""
        least = self.refused if refused else 0.0
        return min(self.longest, max(least, self.backoff * 2.0 ** min(failures - 1, 20)))


class Stage(StrEnum):
    """How far a start has come."""

    DECIDED = "decided"
    ASKED = "asked for"
    ACCEPTED = "accepted"
    UNCERTAIN = "perhaps accepted"
    """There was no answer: what is listed tells whether it was."""
    REFUSED = "refused"
    """The job is in hold as it was."""
    RUNS = "seen to run"
    """The plugin is to be told so."""
    CONFIRMED = "confirmed"
    FAILED = "failed"
    """The job is to be taken back: it did not start in time, or was queued again."""
    TAKEN_BACK = "taken back"
    GONE = "gone"
    """The job is not there any more; what was reserved for its start is to be given back."""


SHOWS_SOON = frozenset({Stage.ACCEPTED, Stage.UNCERTAIN})
UNDONE_LATER = frozenset({Stage.FAILED, Stage.GONE})
OVER = frozenset({Stage.REFUSED, Stage.CONFIRMED, Stage.TAKEN_BACK})


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start."""

    nodes: Layout
    stage: Stage = Stage.DECIDED
    since: float = 0.0
    """When it came to this stage."""
    until: float | None = None
    """By when it must show; None: as the patience says."""
    error: LrmError | None = None
    """What the batch system said, or why it is not known whether it was accepted."""
    elsewhere: str = ""
    """How the job was placed, when that is not what was asked for: it is to be sent back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a start has failed."""

    reason: str
    at: float
    refused: bool = False


class Starts:
    """The starts under way, and what is to be on record of them; times are of one clock that nobody sets."""

    def __init__(self, patience: Patience | None = None, *, pins: Iterable[Pin] = ()) -> None:
        """``pins``: what an earlier process has left on record."""
        self.patience = patience or Patience()
        self.pins = {pin.job_id: pin for pin in pins}
        """To be on disk before anything is asked for."""
        self.attempts: dict[LrmJobId, Attempt] = {}
        self._observed_at = -inf

    # -- what is done ------------------------------------------------------------------------------------------------

    def begin(self, pin: Pin, *, until: float | None = None) -> None:
        """Take note of a start that was decided."""
        self.pins[pin.job_id] = pin
        self.attempts[pin.job_id] = Attempt(nodes=pin.nodes, until=until)

    def resume(self, pin: Pin, stage: Stage) -> None:
        """Go on with a start that an earlier process had asked for."""
        self.attempts[pin.job_id] = Attempt(nodes=pin.nodes, stage=stage, since=pin.at)

    def advance(self, job_id: LrmJobId, stage: Stage, now: float, *, error: LrmError | None = None) -> None:
        """Take note of what was done, or answered.

        What a listing has told meanwhile stays: that the job runs, or is gone.
        """
        attempt = self.attempts.get(job_id)
        if attempt is None or (attempt.stage is Stage.RUNS and stage is not Stage.CONFIRMED):
            return
        if attempt.stage is not Stage.GONE:
            attempt.stage, attempt.error = stage, error or attempt.error
        elif stage in OVER:
            del self.attempts[job_id]
        attempt.since = now

    def observe(self, jobs: Iterable[LrmJob], read_at: float) -> Mapping[LrmJobId, Failure]:
        """Judge all starts by a listing, for whoever keeps no picture of the queue; return those that have failed."""
        self._observed_at = read_at
        failures: dict[LrmJobId, Failure] = {}
        listed = by_id(jobs)
        for job_id in list(self.attempts):
            job, pin = listed.get(job_id), self.pins.get(job_id)
            if job is not None and pin is not None and is_another(job, pin.submitted_at):
                self.forget(job_id)
            elif job is None or job.state is LrmJobState.ENDED:
                self.gone(job_id)
            elif job.state in OCCUPYING:
                self.shown(job, read_at)
                if elsewhere := self.attempts[job_id].elsewhere:
                    failures[job_id] = Failure(reason=elsewhere, at=read_at, refused=True)
            elif pin is not None and (failure := self.failure(job, read_at)) is not None:
                self.failed(job_id, failure)
                failures[job_id] = failure
        return failures

    def is_over(self, job_id: LrmJobId) -> bool:
        """Tell whether a start has come to its end; what was taken back is when a later listing has shown it.

        Then it is certain that the job has not started meanwhile.
        """
        attempt = self.attempts.get(job_id)
        if attempt is None or attempt.stage not in OVER:
            return attempt is None
        return attempt.stage is not Stage.TAKEN_BACK or self._observed_at >= attempt.since

    # -- what is listed ----------------------------------------------------------------------------------------------

    def failure(self, job: LrmJob, now: float) -> Failure | None:
        """Return why the start of a job that was listed at ``now`` as waiting has failed; None while it may show."""
        attempt = self.attempts.get(job.id)
        if attempt is None:
            return None
        if attempt.stage is Stage.REFUSED:
            return Failure(reason=str(attempt.error), at=attempt.since, refused=True)
        if attempt.stage not in SHOWS_SOON or now <= attempt.since:
            return None
        return self._not_shown(job, attempt, now)

    def _not_shown(self, job: LrmJob, attempt: Attempt, now: float) -> Failure | None:
        if attempt.stage is Stage.UNCERTAIN and job.state is LrmJobState.HELD:
            return Failure(reason=str(attempt.error), at=now)
        if job.blocked and now > attempt.since + BLOCKED_AFTER:
            return Failure(reason=f"the batch system does not start it: {job.reason}", at=now, refused=True)
        if now <= self.due(job.id):
            return None
        waited = f"it did not start within {now - attempt.since:.0f} s"
        return Failure(reason=f"{waited} ({job.reason})" if job.reason else waited, at=now)

    def due(self, job_id: LrmJobId) -> float:
        """Return by when a start that was accepted must show."""
        attempt = self.attempts[job_id]
        return attempt.since + self.patience.start if attempt.until is None else attempt.until

    def failed(self, job_id: LrmJobId, failure: Failure) -> float:
        """Take note that a start has failed; return for how long (seconds) the job is left alone."""
        pin, attempt = self.pins[job_id], self.attempts.get(job_id)
        failures = pin.failures + 1
        pause = self.patience.after(failures, refused=failure.refused)
        not_before = failure.at + pause
        self.pins[job_id] = replace(pin, not_before=not_before, failure=failure.reason, failures=failures)
        if attempt is not None and attempt.stage is not Stage.REFUSED:
            attempt.stage, attempt.since = Stage.FAILED, failure.at
        return pause

    def shown(self, job: LrmJob, now: float) -> None:
        """Take note that a job of ours was listed as running; on other nodes than it should, it is to be sent back."""
        pin = self.pins.get(job.id)
        if pin is None:
            return
        attempt = self.attempts.setdefault(job.id, Attempt(nodes=pin.nodes))
        if attempt.stage in {Stage.RUNS, Stage.CONFIRMED}:
            return
        attempt.elsewhere = placed_elsewhere(job, pin.nodes) if attempt.stage in SHOWS_SOON else ""
        attempt.stage, attempt.since = Stage.RUNS, now
        if attempt.elsewhere:
            self.failed(job.id, Failure(reason=attempt.elsewhere, at=now, refused=True))
            attempt.stage = Stage.RUNS
            self.pins[job.id] = replace(self.pins[job.id], started=True)
        else:
            self.pins[job.id] = replace(pin, started=True, failures=0, not_before=0.0, failure="")

    def requeued(self, job_id: LrmJobId, now: float) -> bool:
        """Take note that a job that ran waits again; tell whether it was us who had started it."""
        pin = self.pins.get(job_id)
        if pin is None:
            return False
        failure = pin.failure or REQUEUED
        self.pins[job_id] = replace(pin, started=False, not_before=max(now, pin.not_before), failure=failure)
        self.attempts[job_id] = Attempt(nodes=(), stage=Stage.FAILED, since=now)
        return True

    def gone(self, job_id: LrmJobId) -> None:
        """Take note that a job is over, or not there any more."""
        self.pins.pop(job_id, None)
        attempt = self.attempts.get(job_id)
        if attempt is None or attempt.stage is Stage.GONE:
            return
        if attempt.stage is Stage.DECIDED or attempt.stage in OVER:
            del self.attempts[job_id]
        else:
            attempt.stage = Stage.GONE

    def forget(self, job_id: LrmJobId) -> None:
        """Drop all of a start: the job is held, or is another one of the same number."""
        self.pins.pop(job_id, None)
        self.attempts.pop(job_id, None)

    # -- what is to be done ------------------------------------------------------------------------------------------

    def in_stage(self, *stages: Stage) -> list[LrmJobId]:
        """Return the jobs whose starts have come so far."""
        return [job_id for job_id, attempt in self.attempts.items() if attempt.stage in stages]

    def is_tied(self, job_id: LrmJobId) -> bool:
        """Tell whether a job that waits is still to be taken back."""
        attempt = self.attempts.get(job_id)
        return attempt is not None and attempt.stage is Stage.FAILED

    def in_hand(self, read_at: float) -> set[str]:
        """Return the nodes that a listing begun at ``read_at`` may show reserved for a start of ours."""
        return {
            name
            for attempt in self.attempts.values()
            if attempt.stage not in OVER or attempt.since >= read_at
            for name, _ in attempt.nodes
        }


def up_for_us(nodes: Iterable[Node], in_hand: Container[str]) -> tuple[Node, ...]:
    """Return nodes as they are without our starts.

    A plugin may reserve processors for a job until it runs (Slurm's does, for different numbers on several nodes), and
    the batch system then shows the nodes as if they took no jobs.
    """
    return tuple(
        replace(node, state=NodeState.UP) if node.state is NodeState.DRAINING and node.name in in_hand else node
        for node in nodes
    )


def placed_elsewhere(job: LrmJob, nodes: Layout) -> str:
    """Return how a running job was placed, when that is not what was asked for; empty when it is, or is not told.

    A job that has its nodes for itself has more processors there than it asked for.
    """
    asked, found = dict(nodes), dict(job.layout)
    if sum(asked.values()) == 1 or not found or job.state not in {LrmJobState.RUNNING, LrmJobState.STARTING}:
        return ""
    if found.keys() == asked.keys() and all(found[node] >= count for node, count in asked.items()):
        return ""
    places = ", ".join(f"{count} on {node}" for node, count in found.items())
    return f"it was started with {places}, which is not what was asked"


def entries_of(nodes: Layout) -> list[str]:
    """Return one entry for each processor, as ``start_on`` takes them."""
    return [name for name, count in nodes for _ in range(count)]


def by_id(jobs: Iterable[LrmJob]) -> Mapping[LrmJobId, LrmJob]:
    """Return jobs by their ids."""
    return {job.id: job for job in jobs}
