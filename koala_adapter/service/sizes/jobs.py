# SPDX-License-Identifier: Apache-2.0
"""Running applications grow and shrink: each by what its runner can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from koala_adapter.dynaco.sizerules import OWN_SIZES, SizeRules
from koala_adapter.errors import JobRefusedError, PolicyAnswerError
from koala_adapter.model import RunnerName

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import JobId
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import JobRecord, State


class Resizer(Protocol):
    """Brings the applications of one kind of runner to other sizes."""

    def offer(self, action: act.OfferProcessors) -> None:
        """Ask an application how many further processors it takes; OfferAnswered."""

    def request(self, action: act.RequestProcessors) -> None:
        """Ask an application to give processors up; OfferAnswered, and then it begins."""

    def take(self, action: act.TakeProcessors) -> None:
        """Start the processes of new ranks."""

    def withdraw(self, action: act.WithdrawOffer) -> None:
        """Tell an application that it does not get what it has accepted."""

    def grant(self, action: act.GrantProcessors) -> None:
        """Answer a wish of an application."""

    def resume(self) -> None:
        """Go on with what the records say is under way, after a restart."""


def resizable(record: JobRecord, name: str, processors: int, rules: SizeRules = OWN_SIZES) -> str:
    """Return the component that is to have a size. Raises JobRefusedError, with the way out, when it cannot."""
    job = record.job
    able = [one.name for one in job.components if job.changes_size(one.name)]
    if record.state.final:
        raise JobRefusedError(f"job {job.id} has ended", hint="`koala status` shows the jobs that run")
    if not able:
        raise JobRefusedError(f"job {job.id} keeps its size", hint='only jobs of kind = "malleable" change it')
    if name not in able and (name or len(able) > 1):
        known = ", ".join(able)
        said = f"component {name!r} keeps its size, or there is none" if name else "several components can change"
        raise JobRefusedError(f"job {job.id}: {said}", hint=f"name one of: {known}")
    component = job.component(name or able[0])
    if not component.minimum <= processors <= component.maximum:
        bounds_ = f"{component.minimum} to {component.maximum}"
        message = f"job {job.id}: component {component.name!r} cannot have {processors} processors"
        raise JobRefusedError(message, hint=f"its job file allows {bounds_}")
    try:
        rule = rules.named(component.sizes)
        usable = {rule.largest(processors), rule.smallest(processors)}
    except PolicyAnswerError as error:
        raise JobRefusedError(f"job {job.id}: {error.message}", hint=error.hint) from error
    if processors not in usable:
        near = [str(size) for size in sorted(usable) if component.minimum <= size <= component.maximum]
        message = f"job {job.id}: component {component.name!r} cannot use {processors} processors"
        hint = f'its job file says sizes = "{component.sizes}"' + (f"; near are {' and '.join(near)}" if near else "")
        raise JobRefusedError(message, hint=hint)
    return component.name


class Resizing:
    """The part of a service that brings running applications to other sizes."""

    def __init__(self, *, workers: Resizer, adaptive: Resizer, state: Callable[[], State]) -> None:
        """``workers`` and ``adaptive`` serve the runners of these names."""
        self._workers = workers
        self._adaptive = adaptive
        self._state = state

    def offer(self, action: act.OfferProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).offer(action)

    def request(self, action: act.RequestProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).request(action)

    def take(self, action: act.TakeProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).take(action)

    def withdraw(self, action: act.WithdrawOffer) -> None:
        """See Resizer."""
        self._of(action.job_id).withdraw(action)

    def grant(self, action: act.GrantProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).grant(action)

    def resume(self) -> None:
        """See Resizer."""
        self._workers.resume()
        self._adaptive.resume()

    def _of(self, job_id: JobId) -> Resizer:
        record = self._state().jobs.get(job_id)
        adaptive = record is not None and record.job.runner is RunnerName.ADAPTIVE
        return self._adaptive if adaptive else self._workers
