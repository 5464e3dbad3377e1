# SPDX-License-Identifier: Apache-2.0
"""Slurm's words for states of jobs and nodes, of all releases from 20.11 to 25.11, and what they mean to us.

Sources: squeue(1) "JOB STATE CODES", sinfo(1) "NODE STATE CODES". A word that is not in a table is UNKNOWN, never a
guess: new releases add words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, LrmJobState, NodeState

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB_STATES: Mapping[str, LrmJobState] = {
    "PENDING": LrmJobState.QUEUED,
    "REQUEUED": LrmJobState.QUEUED,
    "REQUEUE_FED": LrmJobState.QUEUED,
    "EXPEDITING": LrmJobState.QUEUED,
    "REQUEUE_HOLD": LrmJobState.HELD,
    "SPECIAL_EXIT": LrmJobState.HELD,
    "RESV_DEL_HOLD": LrmJobState.HELD,
    "CONFIGURING": LrmJobState.STARTING,
    "POWER_UP_NODE": LrmJobState.STARTING,
    "RUNNING": LrmJobState.RUNNING,
    "RESIZING": LrmJobState.RUNNING,
    "SIGNALING": LrmJobState.RUNNING,
    "SUSPENDED": LrmJobState.SUSPENDED,
    "STOPPED": LrmJobState.SUSPENDED,
    "COMPLETING": LrmJobState.ENDING,
    "STAGE_OUT": LrmJobState.ENDING,
    "COMPLETED": LrmJobState.ENDED,
    "FAILED": LrmJobState.ENDED,
    "CANCELLED": LrmJobState.ENDED,
    "TIMEOUT": LrmJobState.ENDED,
    "DEADLINE": LrmJobState.ENDED,
    "OUT_OF_MEMORY": LrmJobState.ENDED,
    "NODE_FAIL": LrmJobState.ENDED,
    "BOOT_FAIL": LrmJobState.ENDED,
    "LAUNCH_FAILED": LrmJobState.ENDED,
    "RECONFIG_FAIL": LrmJobState.ENDED,
    "PREEMPTED": LrmJobState.ENDED,
    "REVOKED": LrmJobState.ENDED,
}

END_REASONS: Mapping[str, EndReason] = {
    "CANCELLED": EndReason.CANCELLED,
    "REVOKED": EndReason.CANCELLED,
    "TIMEOUT": EndReason.WALLTIME,
    "DEADLINE": EndReason.WALLTIME,
    "OUT_OF_MEMORY": EndReason.MEMORY,
    "NODE_FAIL": EndReason.NODE_LOST,
    "BOOT_FAIL": EndReason.LAUNCH_FAILED,
    "LAUNCH_FAILED": EndReason.LAUNCH_FAILED,
    "RECONFIG_FAIL": EndReason.LAUNCH_FAILED,
    # Taken away for a job of higher priority: nobody cancelled it and no node broke.
    "PREEMPTED": EndReason.LOST,
}
"""End states whose exit code says nothing; COMPLETED and FAILED are judged by theirs."""

HOLD_REASONS = frozenset({"jobheldadmin", "jobhelduser", "jobholdmaxrequeue", "reservationdeleted"})
"""Reasons of pending jobs that wait for a release, in lower case."""

NO_OUTPUT_SIGNAL = 53
"""slurmstepd's way of saying that it could not open the output file or enter the environment of a job."""

NODE_FLAGS: Mapping[str, str] = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Characters that sinfo appends to a state, as the words that scontrol appends to it."""

NODE_STATES: Mapping[str, NodeState] = {
    "IDLE": NodeState.UP,
    "MIXED": NodeState.UP,
    "ALLOCATED": NodeState.UP,
    "COMPLETING": NodeState.UP,
    "PLANNED": NodeState.UP,
    "POWERED_DOWN": NodeState.UP,  # a node that sleeps is woken by the job that gets it
    "POWERING_UP": NodeState.UP,
    "CLOUD": NodeState.UP,
    "RESERVED": NodeState.DRAINING,
    "DRAIN": NodeState.DRAINING,
    "DRAINED": NodeState.DRAINING,
    "DRAINING": NodeState.DRAINING,
    "FAILING": NodeState.DRAINING,
    "POWER_DOWN": NodeState.DRAINING,
    "POWERING_DOWN": NodeState.DRAINING,
    "MAINT": NodeState.DRAINING,
    "MAINTENANCE": NodeState.DRAINING,
    "REBOOT": NodeState.DRAINING,
    "REBOOT_REQUESTED": NodeState.DRAINING,
    "REBOOT_ISSUED": NodeState.DOWN,
    "DOWN": NodeState.DOWN,
    "ERROR": NodeState.DOWN,
    "FAIL": NodeState.DOWN,
    "FUTURE": NodeState.DOWN,
    "INVAL": NodeState.DOWN,
    "INVALID_REG": NodeState.DOWN,
    "BLOCKED": NodeState.DOWN,
    "NOT_RESPONDING": NodeState.DOWN,
    "NO_RESPOND": NodeState.DOWN,
    "PERFCTRS": NodeState.DOWN,
    "UNKNOWN": NodeState.UNKNOWN,
}

_WORST_FIRST = (NodeState.DOWN, NodeState.UNKNOWN, NodeState.DRAINING)


def job_state(word: str, reason: str) -> LrmJobState:
    """Return what a job's state word and its reason mean; UNKNOWN for a word of no release we know."""
    state = JOB_STATES.get(word, LrmJobState.UNKNOWN)
    return LrmJobState.HELD if state is LrmJobState.QUEUED and _is_hold(reason) else state


def hold_owner(reason: str) -> HoldOwner:
    """Return who holds a job that is in hold for a reason. Slurm shows the hold of a hook as the user's own."""
    owners = {"jobheldadmin": HoldOwner.OPERATOR, "jobhelduser": HoldOwner.USER}
    return owners.get(reason.strip("()").lower(), HoldOwner.SYSTEM)


def _is_hold(reason: str) -> bool:
    # "launch failed requeued held" and "job requeued in held state" are texts, the others are codes.
    compact = reason.strip("()").lower()
    return compact in HOLD_REASONS or compact.endswith(("requeued held", "in held state"))


def job_end(word: str, *, exit_code: int, signal: int, ran: bool = True) -> EndReason | None:
    """Return why a job with this end state ended; None when the state is no end, or its reason is not known.

    ``ran``: it was given a node. A job refused on second thoughts (BadConstraints) has a status, but never ran.
    """
    if JOB_STATES.get(word) is not LrmJobState.ENDED:
        return None
    if word in END_REASONS:
        return END_REASONS[word]
    if not ran:
        return EndReason.LAUNCH_FAILED
    if signal:
        return EndReason.LAUNCH_FAILED if signal == NO_OUTPUT_SIGNAL else EndReason.SIGNALLED
    # FAILED without any code: the job's script never ran (prolog, credentials, directory).
    return EndReason.LAUNCH_FAILED if word == "FAILED" and exit_code == 0 else EndReason.EXITED


def node_state(text: str, *, reserved_is_up: bool = False) -> NodeState:
    """Return what a node can be used for: the worst that its state word and its flags say.

    ``text`` is a word of sinfo with flag characters (``idle*``) or words joined by ``+`` (``IDLE+DRAIN``). A first word
    that is not known is UNKNOWN; flags that are not known are passed over, because releases add harmless ones.
    ``reserved_is_up``: we submit into a reservation, so reserved nodes are ours to use.
    """
    words = _node_words(text)
    if words[0] not in NODE_STATES:
        return NodeState.UNKNOWN
    up = {"RESERVED"} if reserved_is_up else set()
    states = {NODE_STATES[word] for word in words if word in NODE_STATES and word not in up}
    return next((state for state in _WORST_FIRST if state in states), NodeState.UP)


def _node_words(text: str) -> list[str]:
    flags: list[str] = []
    word = text.strip()
    while word and word[-1] in NODE_FLAGS:
        flags.append(NODE_FLAGS[word[-1]])
        word = word[:-1]
    return [*word.upper().split("+"), *flags]
