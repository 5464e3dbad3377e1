# SPDX-License-Identifier: Apache-2.0
"""What carries out the scheduler's actions: one method for each kind, so that none can be forgotten. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, assert_never

from koala_adapter.scheduler import actions as act

if TYPE_CHECKING:
    from koala_adapter.scheduler.actions import Action


class Effector(Protocol):
    """Does things in the world, real or simulated. What comes of them is reported by events, later or at once.

    A method may raise JournalBlockedError, and is called again with the same action when the journal can be written.
    """

    def submit_placeholders(self, action: act.SubmitPlaceholders) -> None:
        """Have placeholders submitted; BatchSubmitted, or what else becomes of it."""

    def end_placeholders(self, action: act.EndPlaceholders) -> None:
        """Release or cancel placeholders; PlaceholderEnded for each."""

    def launch_job(self, action: act.LaunchJob) -> None:
        """Start an application; RankStarted and RankEnded for each rank."""

    def offer_processors(self, action: act.OfferProcessors) -> None:
        """Ask an application to grow; OfferAnswered."""

    def request_processors(self, action: act.RequestProcessors) -> None:
        """Ask an application to shrink; OfferAnswered, then ProcessorsReleased."""

    def take_processors(self, action: act.TakeProcessors) -> None:
        """Start further processes of an application; RankStarted for each."""

    def withdraw_offer(self, action: act.WithdrawOffer) -> None:
        """Tell an application that what it accepted cannot be had."""

    def grant_processors(self, action: act.GrantProcessors) -> None:
        """Tell an application what it gets of what it asked for."""

    def read_output(self, action: act.ReadPlaceholderOutput) -> None:
        """Find out what a placeholder wrote; PlaceholderSaid."""

    def finish_job(self, action: act.FinishJob) -> None:
        """Take note of the outcome of a job."""

    def correct_outcome(self, action: act.CorrectOutcome) -> None:
        """Take note that the outcome of a job is another one."""

    def report_refused_answer(self, action: act.ReportRefusedAnswer) -> None:
        """Tell the operator what is wrong with a policy of the site."""


def carry_out(action: Action, effector: Effector) -> None:  # noqa: C901, PLR0912 - one plain line per kind of action
    """Have an action carried out."""
    match action:
        case act.SubmitPlaceholders():
            effector.submit_placeholders(action)
        case act.EndPlaceholders():
            effector.end_placeholders(action)
        case act.LaunchJob():
            effector.launch_job(action)
        case act.OfferProcessors():
            effector.offer_processors(action)
        case act.RequestProcessors():
            effector.request_processors(action)
        case act.TakeProcessors():
            effector.take_processors(action)
        case act.WithdrawOffer():
            effector.withdraw_offer(action)
        case act.GrantProcessors():
            effector.grant_processors(action)
        case act.ReadPlaceholderOutput():
            effector.read_output(action)
        case act.FinishJob():
            effector.finish_job(action)
        case act.CorrectOutcome():
            effector.correct_outcome(action)
        case act.ReportRefusedAnswer():
            effector.report_refused_answer(action)
        case _:
            assert_never(action)
