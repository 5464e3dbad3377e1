# SPDX-License-Identifier: Apache-2.0
"""Jobs as a batch system lists them: which are ours to start, their order, their shape, where they run. Pure.

Only a job that was put in hold by the site (docs/schedule.md) waits for us. Whatever its user, or the batch system
itself, keeps from starting is left out of the queue, with the reason, until that has passed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from koala_adapter.model import HoldOwner, LrmJobState
from koala_adapter.ordering.pools import serves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import LrmJob, LrmJobId, Queue

OCCUPYING = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING})
"""States in which a job has its processors. Suspended jobs keep their memory and come back; ending ones still clean."""
WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD})

_DIGITS = re.compile(r"(\d+)")
_ELEMENT = re.compile(r"(?<=\[)\d+(?=\])|\d+$")
"""In the id of an element: ``12_3``, ``12.3`` or ``12[3].server``."""


class JobCategory(Enum):
    """What a listed job is to us."""

    OURS = "ours to start"
    LEFT_OUT = "left out"
    OCCUPYING = "occupying"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which waiting jobs are ours."""

    shadow: bool = False
    """Take what the batch system itself schedules: jobs that are queued, not those in hold."""
    user_holds: bool = False
    """Jobs in user hold are ours, too: where the site's own hold looks the same."""
    one_node: bool = False
    """A job can only be started on one node: where the batch system itself divides it among several."""
    one_by_one: bool = False
    """Elements of a job array can only be started one after the other."""
    default_walltime: int = 86_400
    """Seconds for jobs that say nothing where the queue has no limit either."""


def category_of(job: LrmJob, rules: Rules, *, now: float, ours: bool = False) -> tuple[JobCategory, str]:
    """Return what a job is to us, and the reason when it is left out.

    ``now``: the time of day. ``ours``: we put it in hold again ourselves.
    """
    if job.state is LrmJobState.ENDED:
        return JobCategory.OVER, ""
    if job.state in OCCUPYING:
        return JobCategory.OCCUPYING, ""
    if job.state not in WAITING:
        return JobCategory.LEFT_OUT, f"its state is not known to us: {job.raw_state or job.state.value}"
    problem = _hold_problem(job, rules, ours=ours) or _other_problem(job, now)
    return (JobCategory.LEFT_OUT, problem) if problem else (JobCategory.OURS, "")


def _hold_problem(job: LrmJob, rules: Rules, *, ours: bool) -> str:
    if rules.shadow:
        return "" if job.state is LrmJobState.QUEUED else "it is in hold"
    if job.state is LrmJobState.QUEUED:
        return "it is not in hold, so the batch system itself starts it (it came in past the site's submission piece)"
    if job.hold is HoldOwner.USER and not (rules.user_holds or ours):
        return "its user holds it"
    if job.hold is HoldOwner.SYSTEM:
        return "the batch system holds it" + (f" ({job.reason})" if job.reason else "")
    return ""


def _other_problem(job: LrmJob, now: float) -> str:
    if job.obstacle:
        return job.obstacle
    if job.dependent:
        # That it is in hold, too, is not why it waits.
        why = "" if "held" in job.reason.lower() else job.reason
        return "it waits for other jobs" + (f" ({why})" if why else "")
    if job.eligible_at is not None and job.eligible_at > now:
        return "its begin time has not come"
    return ""


def estimate(job: LrmJob, queues: Mapping[str, Queue], rules: Rules) -> int:
    """Return for how long (seconds) a job may run: its walltime, else its queue's limit, else the site's default."""
    if job.walltime:
        return job.walltime
    if job.started_at is not None and job.ends_at is not None and job.ends_at > job.started_at:
        return max(1, round(job.ends_at - job.started_at))
    limits = [queue.walltime_limit for name, queue in queues.items() if serves(job.queue, name)]
    known = [limit for limit in limits if limit]
    return min(known, default=rules.default_walltime)


def layout_of(job: LrmJob) -> tuple[tuple[str, int], ...]:
    """Return where the processors of a running job are, as well as the batch system tells."""
    if job.layout or not job.nodes:
        return job.layout
    each, more = divmod(job.processors, len(job.nodes))
    return tuple((name, each + (number < more)) for number, name in enumerate(job.nodes))


def array_of(job: LrmJob) -> str | None:
    """Return what the elements of a job array have in common in their ids; None for a job that is none."""
    return None if job.array_index is None else _ELEMENT.sub("", job.id)


def difference(layout: tuple[tuple[str, int], ...], nodes: tuple[tuple[str, int], ...]) -> str:
    """Return in what a job's place is not what we said."""
    if sorted(layout) == sorted(nodes):
        return ""
    if dict(layout).keys() != dict(nodes).keys():
        return "on other nodes than we said"
    alone = all(count >= dict(nodes)[name] for name, count in layout)
    return "with more processors than it asked for" if alone else "with other processors on each than we said"


def turn(id_: LrmJobId, submitted_at: float | None) -> tuple[float, tuple[int | str, ...], str]:
    """Return what brings jobs into the order of their submission: where times are equal, as their LRM counts.

    Numbers within an id count as numbers: ``9`` before ``10``, ``12_3`` and ``12.3`` before ``12_10`` and ``12.10``.
    """
    if id_.isdecimal():
        return submitted_at or 0.0, ("", int(id_), ""), id_
    parts = tuple(int(part) if part.isdecimal() else part for part in _DIGITS.split(id_))
    return submitted_at or 0.0, parts, id_


def in_order(jobs: Iterable[LrmJob]) -> list[LrmJob]:
    """Return jobs in the order of their submission: a batch system lists them in any, Slurm the newest first."""
    return sorted(jobs, key=lambda job: turn(job.id, job.submitted_at))


def shape(job: LrmJob) -> object:
    """Return all of a job that decides on which nodes it has room."""
    return (
        job.processors,
        job.queue,
        job.processors_per_task,
        job.node_bounds,
        job.tasks_per_node,
        job.memory_per_processor_mib,
        job.memory_per_node_mib,
        job.features,
        job.any_feature,
        job.possible_nodes,
        job.requested_nodes,
        job.excluded_nodes,
    )
