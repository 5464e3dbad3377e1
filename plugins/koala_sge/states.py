# SPDX-License-Identifier: Apache-2.0
"""Grid Engine's letters for states of jobs and queues (qstat(1)) in our words. Pure."""

from __future__ import annotations

from koala_adapter.model import LrmJobState, NodeState

JOB_LETTERS = frozenset("dEhrRsStTNPwqz")

HOLD = frozenset("h")
WAITING = frozenset("q")

_TELLING = (
    (frozenset("z"), LrmJobState.ENDED),
    (frozenset("d"), LrmJobState.ENDING),
    (frozenset("E"), LrmJobState.HELD),
    (frozenset("sSTNP"), LrmJobState.SUSPENDED),
    (HOLD, LrmJobState.HELD),
    (WAITING, LrmJobState.QUEUED),
    (frozenset("t"), LrmJobState.STARTING),
    (frozenset("r"), LrmJobState.RUNNING),
)
"""The first row of which a letter is present decides."""

CLOSED_BY_ADMIN = frozenset("dDsSC")
"""Queue is disabled or suspended, by somebody, by its calendar or by another queue."""

CLOSED_BY_LOAD = frozenset("aA")
"""Queue is over a load or suspend threshold: it takes no jobs until the load falls."""

BROKEN = frozenset("uEoc")
"""Host not heard of, error state, orphaned, ambiguous configuration."""


def job_state(letters: str) -> LrmJobState:
    """Return the state of a job from its letters, such as ``hqw`` or ``dr``; UNKNOWN for letters that are not known.

    An error state (``Eqw``) is HELD: like a held job it does not start until somebody acts.
    """
    seen = set(letters)
    if not seen <= JOB_LETTERS:
        return LrmJobState.UNKNOWN
    for telling, state in _TELLING:
        # A hold on a running job (hr) counts when it is started again, not now.
        if seen & telling and not (state is LrmJobState.HELD and telling == HOLD and not seen & WAITING):
            return state
    return LrmJobState.UNKNOWN


def job_reason(letters: str) -> str:
    """Return why a job waits or ends, as far as its letters tell."""
    if "E" in letters:
        return f"error state {letters}: Grid Engine could not start it and will not try again"
    if "h" in letters and "q" in letters:
        return "held"
    return "deleted from Grid Engine" if "d" in letters else ""


def queue_instance_state(letters: str) -> NodeState:
    """Return what a queue instance can be used for, from the letters of its state (empty: all is well)."""
    seen = set(letters)
    if seen & BROKEN:
        return NodeState.DOWN
    if seen & (CLOSED_BY_ADMIN | CLOSED_BY_LOAD):
        return NodeState.DRAINING
    # P (preempted) and whatever a later version may add.
    return NodeState.UNKNOWN if seen else NodeState.UP
