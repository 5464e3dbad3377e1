# SPDX-License-Identifier: Apache-2.0
"""What becomes of the size of a component by changes that are under way on other clusters. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from koala_adapter.scheduler.malleable.jointgrowth import dispensable, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import Claim, JobRecord

    Amount: TypeAlias = Callable[[Claim, Change], int]


def other_changes(record: JobRecord, claim: Claim, amount: Amount) -> list[int]:
    """Return by how many processors each other change of the component of a claim may alter its size, 0 left out.

    ``amount`` tells this of the change of a claim, below 0: it gives them up. Changes that are parts of one growth come
    together, or not at all, and are one.
    """
    own = None if claim.change is None else name_of(claim.change)
    amounts: Counter[int] = Counter()
    for other in record.claims:
        change = other.change
        if other is not claim and other.component == claim.component and change is not None and name_of(change) != own:
            amounts[name_of(change)] += amount(other, change)
    return [one for one in amounts.values() if one]


def without_dispensable(record: JobRecord, amount: Amount) -> Amount:
    """Return ``amount``, but for growths that can be handed back: as if they had been."""
    return lambda claim, change: 0 if dispensable(record, change) else amount(claim, change)


def dispensable_growths(record: JobRecord, claim: Claim) -> tuple[int, ...]:
    """Return the numbers of the growths of the component of a claim elsewhere that can be handed back."""
    others = (one.change for one in record.claims if one is not claim and one.component == claim.component)
    return tuple(change.number for change in others if change is not None and dispensable(record, change))
