# SPDX-License-Identifier: Apache-2.0
"""Which jobs of a listing are ours. Pure.

A job's name is public, and anybody may give jobs of his own the same one. So a job is ours when its name is one of
ours, its user is the one who runs this service, and, once the LRM has told us the id of that placeholder, its id is
that one. A user that the LRM does not tell proves nothing: such a job is believed to be a placeholder of ours only by
its id; it is never adopted by its name alone, and never cancelled as an orphan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import BatchKey, LrmJobState, PlaceholderId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import LrmJob, LrmJobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What a listing holds of ours."""

    jobs: Mapping[PlaceholderId, LrmJob]
    """The job of each placeholder that is listed."""
    unaccounted: tuple[LrmJob, ...]
    """Certainly this user's, with names of ours, but of no placeholder that is known."""


def is_users(job: LrmJob, user: str) -> bool:
    """Tell whether a job certainly belongs to a user."""
    return bool(user) and job.user == user


def possibly_ours(listing: Iterable[LrmJob], *, user: str, name_prefix: str) -> tuple[LrmJob, ...]:
    """Return the jobs that have names of ours and are not certainly another user's."""
    return tuple(job for job in listing if job.name.startswith(name_prefix) and _may_be_users(job, user))


def placeholder_of(job: LrmJob) -> PlaceholderId:
    """Return which placeholder a job is by its name, if it is one of ours."""
    return PlaceholderId(batch=BatchKey(job.name), index=job.array_index or 1)


def attribute(listing: Iterable[LrmJob], known: Mapping[PlaceholderId, LrmJobId | None], *, user: str) -> Attribution:
    """Find the jobs of known placeholders in a listing. ``known``: their ids in the LRM; None or empty: not told yet.

    Of several jobs that could be the same placeholder, one that has not ended comes first, then the latest submitted.
    """
    jobs: dict[PlaceholderId, LrmJob] = {}
    unaccounted: list[LrmJob] = []
    for job in listing:
        id_ = placeholder_of(job)
        if id_ not in known:
            if is_users(job, user):
                unaccounted.append(job)
        elif _is_that(job, known[id_], user) and (id_ not in jobs or _rank(jobs[id_]) <= _rank(job)):
            jobs[id_] = job
    return Attribution(jobs=jobs, unaccounted=tuple(unaccounted))


def tells_of(job: LrmJob, placeholder: PlaceholderId, lrm_id: LrmJobId, *, user: str) -> bool:
    """Tell whether a record of accounting is about a placeholder: ids are used again after years."""
    return job.id == lrm_id and job.name in {placeholder.batch, ""} and _may_be_users(job, user)


def _is_that(job: LrmJob, lrm_id: LrmJobId | None, user: str) -> bool:
    return job.id == lrm_id and _may_be_users(job, user) if lrm_id else is_users(job, user)


def _may_be_users(job: LrmJob, user: str) -> bool:
    return job.user in {user, ""}


def _rank(job: LrmJob) -> tuple[bool, float]:
    return job.state is not LrmJobState.ENDED, job.submitted_at or 0.0
