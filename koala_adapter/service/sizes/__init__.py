# SPDX-License-Identifier: Apache-2.0
"""Changes of size of running applications: the part of a service made with the first job that can change its size.

The door is :class:`SizeChanges`, which imports the rest on demand: most services of one short job never change a
size, and this code, negotiations above all, is a tenth of the program. Then the rules for which jobs can change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import JobRefusedError, PolicyAnswerError
from koala_adapter.model import JobId, JobKind, RunnerName
from koala_adapter.sizes import OWN_SIZES, SizeRules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyio.abc import TaskGroup

    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.core import Core
    from koala_adapter.service.sizes.loop import Sizes


class SizeChanges:
    """Door to all that changes sizes of jobs: created when a job needs it."""

    def __init__(self, core: Core, applications: Applications) -> None:
        self._core = core
        self._applications = applications
        self._tasks: TaskGroup | None = None
        self._made: Sizes | None = None

    @property
    def made(self) -> Sizes:
        """The :class:`Sizes`, created at first use."""
        return self._made or self._make()

    def _make(self) -> Sizes:
        from koala_adapter.service.sizes.loop import Sizes

        self._made = Sizes(self._core, self._applications)
        if self._tasks is not None:
            self._made.start(self._tasks)
        return self._made

    def start(self, tasks: TaskGroup) -> None:
        """Prepare for jobs and programs within ``tasks``; create :class:`Sizes` if a job needs it now."""
        self._tasks = tasks
        if self._concerns(id_ for id_, record in self._core.state.jobs.items() if not record.state.final):
            self._make()

    def resume(self) -> None:
        """Continue what the records show as under way, after a restart."""
        if self._made is not None:
            self._made.resume()

    def follow(self, touched: Iterable[JobId]) -> None:
        """Update jobs' applications from the records."""
        following = list(touched)  # what they report may be handled, and touch others, before they are through
        if self._made is not None or self._concerns(following):
            self.made.follow(following)

    def _concerns(self, job_ids: Iterable[JobId]) -> bool:
        """Return whether any of these jobs may change its size."""
        jobs = self._core.state.jobs
        return any(id_ in jobs and jobs[id_].job.runner is not RunnerName.RANKS for id_ in job_ids)

    def warned(self, job_id: JobId) -> str:
        """Return a sentence on how many processes know of the near end of their walltime; empty: none."""
        return "" if self._made is None else self._made.warned(job_id)

    def complaint(self, job_id: JobId) -> str:
        """Return the last complaint about processes of a job; empty: none."""
        return "" if self._made is None else self._made.complaint(job_id)


# -- Which jobs can change their size ------------------------------------------------------------------------


def resizable(record: JobRecord, name: str, processors: int, rules: SizeRules = OWN_SIZES) -> str:
    """Return the component to be resized. Raises JobRefusedError with a remedy."""
    job = record.job
    able = [one.name for one in job.components if job.changes_size(one.name)]
    if record.state.final:
        raise JobRefusedError(f"job {job.id} has ended", hint="`koala status` shows the jobs that run")
    if job.kind is JobKind.EVOLVING:
        raise JobRefusedError(
            f"job {job.id} is evolving: its application alone changes its size",
            hint='`koala resize` is for jobs of kind = "malleable"',
        )
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
