# SPDX-License-Identifier: Apache-2.0
"""What a batch system lists at one time, and how it is asked."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from koala_adapter.errors import LrmError, LrmUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from koala_adapter.model import LrmJob, Node, Queue
    from koala_adapter.plugin import Lrm

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the batch system showed at one time."""

    read_at: float
    """When it was asked for, by our own clock, which nobody sets: what came later cannot be in it."""
    jobs: tuple[LrmJob, ...]
    nodes: tuple[Node, ...]
    queues: Mapping[str, Queue] = field(default_factory=dict)
    """By name; empty when it tells of none, or was not asked for them."""
    offset: float = 0.0
    """Seconds to add to a time of our clock for the time of day, in which the batch system writes its own times."""

    @property
    def time_of_day(self) -> float:
        """When it was asked for, in the words of the batch system."""
        return self.read_at + self.offset

    def moment(self, time_of_day: float) -> float:
        """Return the time by our clock of what the batch system dates so, as the time of day is set now."""
        return time_of_day - self.offset

    @property
    def processors(self) -> int:
        """Configured processors, whatever the state of their nodes."""
        return sum(node.processors for node in self.nodes)

    @property
    def idle(self) -> int:
        """Processors a new job could get now."""
        return sum(node.processors_idle for node in self.nodes)

    @property
    def down(self) -> int:
        """Processors that nobody has and nobody could get now, as their nodes are not up."""
        return sum(node.processors_out_of_service for node in self.nodes)


def local_jobs(listing: Listing) -> tuple[LrmJob, ...]:
    """Return the jobs that are on the batch system itself: none that it has handed on to another one."""
    return tuple(job for job in listing.jobs if not job.elsewhere)


def is_another(job: LrmJob, submitted_at: float | None) -> bool:
    """Tell whether a batch system has given the number of a former job to this one.

    One that was queued again has a new time of submission.
    """
    return not job.requeues and submitted_at != job.submitted_at and None not in {submitted_at, job.submitted_at}


@contextmanager
def answering(cluster: str) -> Iterator[None]:
    """Take a defect of a plugin for an LRM that does not answer: it costs that cluster's jobs time, not the service.

    Raises LrmUnavailableError for whatever is raised in the block and is no LrmError.
    """
    try:
        yield
    except LrmError:
        raise
    except Exception as error:
        log.exception("a plugin failed", cluster=cluster)
        raise LrmUnavailableError(f"its plugin failed: {error!r}", hint="the service's log tells where") from error


async def read_listing(
    lrm: Lrm, *, cluster: str, read_at: float, offset: float = 0.0, name_prefix: str = ""
) -> Listing:
    """Read the jobs whose names begin so, then the nodes. Raises LrmError.

    In this order a job that starts between the two makes us think less is idle, never more.
    """
    with answering(cluster):
        jobs = await lrm.jobs(name_prefix=name_prefix)
        nodes = await lrm.nodes()
    return Listing(read_at=read_at, jobs=jobs, nodes=nodes, offset=offset)
