# SPDX-License-Identifier: Apache-2.0
"""Gives the queue of a batch system back to its own scheduler: what the site's hook holds is released, and that only.

Needs no ``koala schedule`` and no record of one. What was done is what a listing confirms afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.model import LrmJobState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from koala_adapter.model import LrmJob, LrmJobId
    from koala_adapter.plugin import Lrm

ROUNDS = 5
"""Listings after which what is still held stays so: new jobs come in as long as the hook is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """What became of the jobs."""

    released: tuple[LrmJobId, ...]
    """They waited in the hook's hold, and are in it no more."""
    running: tuple[LrmJobId, ...]
    """They run, and would have come back in that hold."""
    still_held: Mapping[LrmJobId, str]
    """Why, by job."""


async def give_back(
    lrm: Lrm, *, tied: Collection[LrmJobId] = (), tell: Callable[[str], None] = lambda _: None
) -> GivenBack:
    """Release what the site's hook holds. ``tied``: jobs that we may have tied to nodes and that did not start.

    Raises LrmUnavailableError when the batch system does not answer; then it can be repeated.
    """
    held = await _untied(lrm, await lrm.held_by_hook(), tied, tell)
    await _take_notes_away(lrm, held, tell)
    running = [job.id for job in held if job.state is not LrmJobState.HELD]
    await _release(lrm, running)
    waiting: dict[LrmJobId, None] = {}
    failures: dict[LrmJobId, str] = {}
    now_held = _waiting(held)
    for _ in range(ROUNDS):
        tell(f"releasing {len(now_held)} jobs")
        waiting |= dict.fromkeys(now_held)
        failures = await _release(lrm, now_held)
        left = _waiting(await lrm.held_by_hook())
        if not left or set(left) <= failures.keys():
            now_held = left
            break
        now_held = left
    still = {job: failures.get(job, "it came in meanwhile") for job in now_held}
    released = tuple(job for job in waiting if job not in still)
    return GivenBack(released=released, running=tuple(running), still_held=still)


async def _untied(
    lrm: Lrm, held: Sequence[LrmJob], tied: Collection[LrmJobId], tell: Callable[[str], None]
) -> Sequence[LrmJob]:
    """Untie jobs whose start was cut short, and return what is held then."""
    ours = [job.id for job in held if job.state is LrmJobState.HELD and (job.tied or job.id in tied)]
    for job in ours:
        tell(f"untying {job} from its nodes")
        try:
            await lrm.undo_start(job)
        except LrmUnavailableError:
            raise
        except LrmError:
            # It is gone, or will not be untied: it is released all the same.
            continue
    return await lrm.held_by_hook() if ours else held


async def _take_notes_away(lrm: Lrm, held: Sequence[LrmJob], tell: Callable[[str], None]) -> None:
    """Have no job show a place in our queue any more. What cannot be taken away stays: it says as of when it is."""
    noted = [job.id for job in held if job.note]
    if not noted or not lrm.capabilities.annotate:
        return
    tell(f"taking the notes from {len(noted)} jobs")
    try:
        await lrm.annotate(noted, "")
    except LrmUnavailableError:
        raise
    except LrmError as error:
        tell(f"the notes of some jobs stay: {error.message}")


def _waiting(jobs: Sequence[LrmJob]) -> list[LrmJobId]:
    return [job.id for job in jobs if job.state is LrmJobState.HELD]


async def _release(lrm: Lrm, jobs: Sequence[LrmJobId]) -> dict[LrmJobId, str]:
    """Release jobs, singly where all together are refused; return those that are refused, with the reasons."""
    if not jobs:
        return {}
    try:
        await lrm.give_back(jobs)
    except LrmUnavailableError:
        raise
    except LrmError as error:
        if len(jobs) == 1:
            return {jobs[0]: error.message}
    else:
        return {}
    middle = len(jobs) // 2
    return {**await _release(lrm, jobs[:middle]), **await _release(lrm, jobs[middle:])}
