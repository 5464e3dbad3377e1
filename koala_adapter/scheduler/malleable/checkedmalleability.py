# SPDX-License-Identifier: Apache-2.0
"""A site's own malleability policy, whose messages are looked at before they are sent. Pure.

What an application cannot do it declines, so a message may ask for more than its bounds allow, but never for more than
is there, and never one that has declined already: else a step would not come to an end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.scheduler.malleable.policies import Direction, MalleabilityPolicy
from koala_adapter.scheduler.malleable.runningjobs import MalleableJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.scheduler.malleable.policies import J, Step
    from koala_adapter.scheduler.malleable.runningjobs import RunningJobs

MOST_ROUNDS = 10_000
"""Of one step: a policy that rebalances could take and give for ever."""


class CheckedMalleability(MalleabilityPolicy):
    """A policy that asks whom another one asks, if that can be done."""

    def __init__(self, policy: MalleabilityPolicy, described: str) -> None:
        """``described``: the policy and its entry point, as a person is told."""
        self.name = policy.name
        self.rebalances = bool(policy.rebalances)
        self._policy = policy
        self._described = described

    def messages(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        """See :meth:`MalleabilityPolicy.messages`. Raises PolicyAnswerError for messages that cannot be sent."""
        given = replace(step, unwilling=set(step.unwilling))
        try:
            round_: object = self._policy.messages(running, given)
        except Exception as error:
            raise PolicyAnswerError.raised(self._described, error) from error
        problem = messages_problem(round_, running, step, rebalances=self.rebalances)
        if problem:
            raise PolicyAnswerError.of(self._described, problem)
        sent = cast("list[tuple[J, int]]", round_)
        step.rounds += 1 if sent or given.rounds != step.rounds else 0
        return list(sent)

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        return self._policy._grow(running, step)  # noqa: SLF001 - a policy of its own kind

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        return self._policy._shrink(running, step)  # noqa: SLF001 - likewise


def messages_problem(answer: object, running: RunningJobs[J], step: Step, *, rebalances: bool) -> str:
    """Return what is wrong with a round of messages, as it goes on after "it"; nothing when it can be sent."""
    return next(_problems(answer, running, step, rebalances=rebalances), "")


def _problems(answer: object, running: RunningJobs[J], step: Step, *, rebalances: bool) -> Iterator[str]:
    """Yield what is wrong; only the first counts, as what is looked at next relies on what was looked at before."""
    if not isinstance(answer, list | tuple):
        yield f"is a {type(answer).__name__}, not a list of jobs with numbers of processors"
        return
    if answer and rebalances and step.rounds >= MOST_ROUNDS:
        yield f"goes on after {MOST_ROUNDS} rounds"
    here = {id(job) for job in running} if answer else set()
    asked: set[int] = set()
    for message in answer:
        if not (isinstance(message, tuple) and len(message) == 2):  # noqa: PLR2004 - a pair
            yield f"has a {type(message).__name__} for a job with a number of processors"
        job, amount = message
        if not isinstance(job, MalleableJob) or id(job) not in here:
            yield f"asks a {type(job).__name__} that is no malleable job that runs on the cluster"
        if id(job) in asked:
            yield "asks a job twice in one round"
        asked.add(id(job))
        yield from _problems_of_amount(job, amount, step, rebalances=rebalances)
    given_out = sum(max(0, amount) for _, amount in answer)
    if given_out > max(0, step.remaining):
        yield f"gives out {given_out} processors, there are {max(0, step.remaining)}"


def _problems_of_amount(job: MalleableJob, amount: object, step: Step, *, rebalances: bool) -> Iterator[str]:
    if not isinstance(amount, int) or isinstance(amount, bool) or amount == 0:
        yield "asks a job for a change that is no number of processors, or 0"
        return
    if job.busy:
        yield "asks a job whose size is changing already"
    if job.order in step.unwilling:
        yield "asks a job again that has declined in this step"
    grows = step.direction is Direction.GROW
    if grows and amount < 0 and not rebalances:
        yield f"takes {-amount} processors from a job in a step that gives out some"
    if not grows and amount > 0:
        yield f"gives {amount} processors to a job in a step that frees some"
    spare = job.size - job.minimum
    if amount < 0 and -amount > (spare if grows else max(spare, step.remaining)):
        yield f"asks a job of {job.size} processors, which needs {job.minimum}, to give up {-amount}"
