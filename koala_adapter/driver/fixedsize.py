# SPDX-License-Identifier: Apache-2.0
"""What an effector answers for applications that cannot grow and shrink, so that the scheduler goes on without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from koala_adapter.scheduler import events as ev

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.scheduler import actions as act

log = structlog.get_logger()


class FixedSizeApplications:
    """The part of an effector that concerns the size of running applications: it declines, and says so in the log.

    No runner can tell a live application to grow or shrink yet.
    """

    def __init__(self, *, report: Callable[[ev.Event], None], clock: Callable[[], float]) -> None:
        """``report`` takes the answers in."""
        self._report = report
        self._clock = clock

    def offer_processors(self, action: act.OfferProcessors) -> None:
        """Decline to grow."""
        self._decline(action)

    def request_processors(self, action: act.RequestProcessors) -> None:
        """Decline to shrink."""
        self._decline(action)

    def _decline(self, action: act.OfferProcessors | act.RequestProcessors) -> None:
        log.warning("declined, as applications keep their size", job=action.job_id, asked=type(action).__name__)
        self._report(ev.OfferAnswered(time=self._clock(), job_id=action.job_id, number=action.number, accepted=0))

    def take_processors(self, action: act.TakeProcessors) -> None:
        """Give processors that come nevertheless back at once; the application goes on as it is."""
        log.warning("gave back, as applications keep their size", job=action.job_id, processors=len(action.ranks))
        for rank in action.ranks:
            self._report(ev.RankStarted(time=self._clock(), job_id=action.job_id, rank=rank.rank))
        going = tuple(rank.placeholder for rank in action.ranks)
        self._report(ev.ProcessorsReleased(time=self._clock(), job_id=action.job_id, placeholders=going))

    def withdraw_offer(self, action: act.WithdrawOffer) -> None:
        """Say so in the log only: no application was told of an offer."""
        log.info("an offer was withdrawn", job=action.job_id, reason=action.reason)

    def grant_processors(self, action: act.GrantProcessors) -> None:
        """Say so in the log only: what is granted is given back when it comes."""
        log.info("processors were granted", job=action.job_id, processors=action.processors, reason=action.reason)
