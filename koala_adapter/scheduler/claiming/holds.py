# SPDX-License-Identifier: Apache-2.0
"""Placeholders that wait in a batch system because somebody put them in hold there: whose holds, since when.

Nothing is decided by it: only whoever holds a job can release it, so the one who waits is told who that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import HoldOwner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.events import HoldsSeen
    from koala_adapter.scheduler.records import PlaceholderRecord

HOLDERS = {
    HoldOwner.USER: "by its user or a submission hook",
    HoldOwner.OPERATOR: "by an operator",
    HoldOwner.SYSTEM: "by the batch system itself",
    None: "by somebody that it does not name",
}
"""Who holds, in words. Slurm shows what a hook holds at the submission as the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldGroup:
    """Placeholders that are in hold for the same reason."""

    holder: HoldOwner | None
    reason: str
    count: int
    since: float
    """When the first of them was seen so."""

    @property
    def who(self) -> str:
        """Who holds them, in words, with the batch system's own word."""
        return f"{HOLDERS[self.holder]} ({self.reason})" if self.reason else HOLDERS[self.holder]


def holds_seen(context: Context, event: HoldsSeen) -> None:
    """Note whose holds the placeholders on a cluster are in."""
    seen = {hold.placeholder: hold for hold in event.holds}
    for placeholder in context.state.placeholders.on(event.cluster).values():
        hold = seen.get(placeholder.id)
        if hold is None:
            placeholder.on_hold_since, placeholder.holder, placeholder.hold_reason = None, None, ""
        else:
            since = placeholder.on_hold_since
            placeholder.on_hold_since = context.now if since is None else since
            placeholder.holder, placeholder.hold_reason = hold.holder, hold.reason


def hold_groups(placeholders: Iterable[PlaceholderRecord]) -> tuple[HoldGroup, ...]:
    """Return the holds in which waiting placeholders are, equal ones together, in the order of the placeholders."""
    since: dict[tuple[HoldOwner | None, str], list[float]] = {}
    for one in placeholders:
        if one.waiting and one.on_hold_since is not None:
            since.setdefault((one.holder, one.hold_reason), []).append(one.on_hold_since)
    return tuple(
        HoldGroup(holder=holder, reason=reason, count=len(times), since=min(times))
        for (holder, reason), times in since.items()
    )
