# SPDX-License-Identifier: Apache-2.0
"""The numbers in the names of submissions, of which none is handed out twice. Pure.

A number is more than a count of what the scheduler did: its batch system knows the submission by it. So the journal
keeps what each was handed out for, and a replay that leaves an event out, and so comes to other submissions than were
made, finds the same number for the same submission, and a new one for any other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import BatchKey, ClusterName, JobId

Contents: TypeAlias = "tuple[float, JobId, str, ClusterName, int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedBatch:
    """A submission, and the name it was given."""

    key: BatchKey
    submitted_at: float
    job_id: JobId
    component: str
    cluster: ClusterName
    count: int

    @property
    def contents(self) -> Contents:
        """All but the name."""
        return self.submitted_at, self.job_id, self.component, self.cluster, self.count


class RecordedBatches:
    """The submissions whose numbers a replay may hand out again, each once."""

    def __init__(self, batches: Iterable[NumberedBatch] = (), *, after: int = 0) -> None:
        """``after``: numbers up to this one belong to what was there before the replay."""
        self.largest = after
        """The largest number that was handed out."""
        self._waiting: dict[Contents, deque[int]] = {}
        for batch in batches:
            number = batch_number(batch.key)
            if number > after:
                self._waiting.setdefault(batch.contents, deque()).append(number)
                self.largest = max(self.largest, number)

    def number_of(self, contents: Contents) -> int | None:
        """Return the number that a submission was given; None for one that was never made."""
        numbers = self._waiting.get(contents)
        return numbers.popleft() if numbers else None


def batch_number(key: BatchKey) -> int:
    """Return the number in the name of a submission; 0 for a name that is none of ours."""
    number = key.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0
