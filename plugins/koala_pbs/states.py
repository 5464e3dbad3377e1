# SPDX-License-Identifier: Apache-2.0
"""PBS's letters and numbers for states and ends (qstat(1B), pbs_job_attributes(7B)) in our words. Pure."""

from __future__ import annotations

from koala_adapter.model import EndReason, HoldOwner, LrmJobState, NodeState

JOB_STATES = {
    "Q": LrmJobState.QUEUED,
    "H": LrmJobState.HELD,
    "W": LrmJobState.QUEUED,
    "T": LrmJobState.QUEUED,
    "R": LrmJobState.RUNNING,
    "S": LrmJobState.SUSPENDED,
    "U": LrmJobState.SUSPENDED,
    "E": LrmJobState.ENDING,
    "X": LrmJobState.ENDED,
    "F": LrmJobState.ENDED,
    "C": LrmJobState.ENDED,
}
"""W waits for its time, T moves between queues, U stands still for the owner of a workstation, X is an element that has
ended, C is Torque's."""

MOVED_LETTER = "M"
"""It was moved to another server. What became of it there is told by its substate."""

TERMINATED, FINISHED, MOVED = "91", "92", "94"
"""Substates; a job that was moved is FINISHED when it has ended on the other server."""

SIGNAL_BASE = 256
"""``Exit_status`` of a job whose shell was killed by a signal is 256 and the signal."""
LARGEST_SIGNAL = 64

NEGATIVE_ENDS = {
    -29: EndReason.WALLTIME,
    -28: EndReason.WALLTIME,
    -27: EndReason.MEMORY,
    -26: EndReason.MEMORY,
    -25: EndReason.CANCELLED,
    -24: EndReason.CANCELLED,
    -20: EndReason.NODE_LOST,
    -19: EndReason.CANCELLED,
    -6: EndReason.NODE_LOST,
    -5: EndReason.NODE_LOST,
    -4: EndReason.NODE_LOST,
}
"""Below zero PBS itself ended the job, such as one that used more processors than it had asked for (-24, -25); what is
not here kept it from starting."""

RERUN = frozenset({-3, -11, -12, -14, -15, -16, -18})
"""It was queued again; if it has ended since, somebody deleted it."""


def job_state(letter: str, substate: str = "") -> LrmJobState:
    """Return the state of a job; UNKNOWN for letters that are not known, and for one that lives on another server."""
    if letter == MOVED_LETTER and substate == FINISHED:
        return LrmJobState.ENDED
    return JOB_STATES.get(letter, LrmJobState.UNKNOWN)


def hold_owner(holds: str) -> HoldOwner | None:
    """Return whose hold a job is in, of ``Hold_Types``; the user's counts first, because only he knows why."""
    for letter, owner in (("u", HoldOwner.USER), ("o", HoldOwner.OPERATOR), ("s", HoldOwner.SYSTEM)):
        if letter in holds and holds != "n":
            return owner
    return None


def job_end(status: int | None, substate: str) -> tuple[EndReason | None, int | None, int | None]:
    """Return reason, exit code and signal of a job that has ended, of its ``Exit_status`` and substate."""
    if substate == TERMINATED:
        return EndReason.CANCELLED, None, None
    if status is None:
        return None, None, None
    if status < 0:
        return (None if status in RERUN else NEGATIVE_ENDS.get(status, EndReason.LAUNCH_FAILED)), None, None
    if SIGNAL_BASE < status <= SIGNAL_BASE + LARGEST_SIGNAL:
        return EndReason.SIGNALLED, None, status - SIGNAL_BASE
    return EndReason.EXITED, status, None


NODE_STATES = {
    "free": NodeState.UP,
    "job-busy": NodeState.UP,
    "job-exclusive": NodeState.UP,
    "job-sharing": NodeState.UP,
    "busy": NodeState.DRAINING,
    "offline": NodeState.DRAINING,
    "offline_by_mom": NodeState.DRAINING,
    "maintenance": NodeState.DRAINING,
    "provisioning": NodeState.DRAINING,
    "wait-provisioning": NodeState.DRAINING,
    "resv-exclusive": NodeState.DRAINING,
    "reserve": NodeState.DRAINING,
    "sleep": NodeState.DRAINING,
    "down": NodeState.DOWN,
    "stale": NodeState.DOWN,
    "unresolvable": NodeState.DOWN,
}
EXCLUSIVE = frozenset({"job-exclusive"})
"""A job has the whole vnode, however few of its processors it uses."""

_WORST_FIRST = (NodeState.DOWN, NodeState.UNKNOWN, NodeState.DRAINING, NodeState.UP)


def node_state(text: str) -> NodeState:
    """Return the state of a vnode from words such as ``offline,down``: the worst of them counts."""
    states = {NODE_STATES.get(word.strip(), NodeState.UNKNOWN) for word in text.split(",") if word.strip()}
    return next((state for state in _WORST_FIRST if state in states), NodeState.UNKNOWN)
