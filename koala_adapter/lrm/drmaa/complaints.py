# SPDX-License-Identifier: Apache-2.0
"""What kind of failure a complaint means, of a DRMAA library or of a Grid Engine command.

The wording is that of Grid Engine 8.1.9 (recorded in tests/wire/samples/sge819), of Slurm and PBS as their libraries
pass it on, and of the names of DRMAA 1.0's exceptions. A complaint that is not recognized counts as unavailable,
because that promises nothing. The helper process uses it, so Python 3.6 or newer.
"""

from enum import Enum


class FailureKind(str, Enum):
    """Kinds of failures: the four LRM errors, and a library that cannot be loaded."""

    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    NOT_FOUND = "not found"
    UNSUPPORTED = "unsupported"
    LIBRARY = "library"


UNAVAILABLE_PHRASES = (
    "unable to contact qmaster",
    "unable to send message to qmaster",
    "cannot reach",
    "got send error",
    "got select error",
    "got read error",
    "commlib error",
    "connection refused",
    "connection timed out",
    "can't resolve host name",
    "failed receiving gdi request",
    "try again later",
    "qmaster is not responding",
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "cannot connect to",
    "could not connect to",
    "end of file",
)
NOT_FOUND_PHRASES = (
    "does not exist",
    "do not exist",
    "invalid queue or job",
    "there are no jobs registered",
    "job id not found",
    "not found",
    "invalid job id",
    "unknown job id",
    "job has finished",
    "job has already finished",
    "already completing or completed",
)
REJECTED_PHRASES = (
    "denied",
    "was rejected",
    "unknown queue",
    "unknown resource",
    "unknown option",
    "invalid option argument",
    "no suitable queues",
    "not a valid object name",
    "is not a time value",
    "is not a memory value",
    "necessary privileges",
    "requires manager privileges",
    "not allowed",
    "must be at least owner",
    "request invalid for state of job",
    "unauthorized request",
    "invalid native specification",
    "invalid date/time format",
    "invalid partition",
)
ENDING_PHRASES = (
    "already completing or completed",
    "job has finished",
    "job has already finished",
    "request invalid for state of job",
    "delete already in progress",
)
"""What is said to who ends a job that is on its way to its end."""

EXCEPTION_KINDS = {
    "DrmCommunicationException": FailureKind.UNAVAILABLE,
    "TryLaterException": FailureKind.UNAVAILABLE,
    "NoActiveSessionException": FailureKind.UNAVAILABLE,
    "InternalException": FailureKind.UNAVAILABLE,
    "OutOfMemoryException": FailureKind.UNAVAILABLE,
    "DrmsInitException": FailureKind.UNAVAILABLE,
    "DefaultContactStringException": FailureKind.REJECTED,
    "InvalidContactStringException": FailureKind.REJECTED,
    "DeniedByDrmException": FailureKind.REJECTED,
    "AuthorizationException": FailureKind.REJECTED,
    "AuthorizationFailureException": FailureKind.REJECTED,
    "InvalidArgumentException": FailureKind.REJECTED,
    "InvalidAttributeFormatException": FailureKind.REJECTED,
    "InvalidAttributeValueException": FailureKind.REJECTED,
    "ConflictingAttributeValuesException": FailureKind.REJECTED,
    "HoldInconsistentStateException": FailureKind.REJECTED,
    "ReleaseInconsistentStateException": FailureKind.REJECTED,
    "SuspendInconsistentStateException": FailureKind.REJECTED,
    "ResumeInconsistentStateException": FailureKind.REJECTED,
    "InvalidJobException": FailureKind.NOT_FOUND,
    "UnsupportedAttributeException": FailureKind.UNSUPPORTED,
    "NotImplementedError": FailureKind.UNSUPPORTED,
}
"""DRMAA 1.0 section 3.2.8, under the names of the drmaa library."""

VAGUE = frozenset({"InternalException"})
"""What slurm-drmaa and pbs-drmaa raise for whatever a control request is refused for: there the wording decides."""


def kind_of_text(text: str, default: FailureKind = FailureKind.UNAVAILABLE) -> FailureKind:
    """Return the kind of a complaint by its wording.

    "No answer" goes first: a message may name a job that "does not exist" for want of an answer, never the reverse.
    """
    lowered = text.lower()
    for phrases, kind in (
        (UNAVAILABLE_PHRASES, FailureKind.UNAVAILABLE),
        (NOT_FOUND_PHRASES, FailureKind.NOT_FOUND),
        (REJECTED_PHRASES, FailureKind.REJECTED),
    ):
        if any(phrase in lowered for phrase in phrases):
            return kind
    return default


def kind_of_exception(name: str, text: str) -> FailureKind:
    """Return the kind of an exception of the drmaa library: by its class, except where only the wording is sure."""
    known = EXCEPTION_KINDS.get(name)
    if known is None or name in VAGUE:
        return kind_of_text(text)
    by_text = kind_of_text(text, known)
    return by_text if by_text is FailureKind.UNAVAILABLE else known


def is_ending(text: str) -> bool:
    """Return whether an error of ending a job means that it is ending or has ended."""
    lowered = text.lower()
    return any(phrase in lowered for phrase in ENDING_PHRASES)
