# SPDX-License-Identifier: Apache-2.0
"""Jobs of others that wait in a cluster's own queue, and the processors that are left to them (PWA only).

Koala does not start these jobs, it can only see to it that enough processors are idle: running malleable jobs are
shrunk as far as their minima allow, and what is idle for the others is not offered to them. Of several, those are
counted, in the order of their queue, that all we could give would be enough for; for one that needs more, nobody is
shrunk in vain.

A batch system may have reasons of its own not to start a job although enough is idle: limits, licences, the places of
processors. One that has not been started after a `backoff`, which is longer than batch systems need for that, counts no
more, for `longest_backoff`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.othersjob import OthersJob

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context


def others_seen(context: Context, cluster: ClusterRecord, wanted: Iterable[int]) -> None:
    """Take note of the processors that each waiting job of others asks for, in the order of their queue.

    They have no names here. Of several of the same size, those that were there first are taken to have left first.
    """
    known: dict[int, list[OthersJob]] = {}
    for job in cluster.others_waiting:
        known.setdefault(job.processors, []).append(job)
    sizes = list(wanted)
    for size, jobs in known.items():
        del jobs[: max(0, len(jobs) - sizes.count(size))]
    found = [known[size].pop(0) if known.get(size) else OthersJob(size) for size in sizes]
    for job in found:
        _doubt(context, cluster, job)
    cluster.others_waiting = found


def _doubt(context: Context, cluster: ClusterRecord, job: OthersJob) -> None:
    """Begin, or end, to doubt that a job waits for processors."""
    parameters, now = context.state.parameters, context.now
    since = job.doubted_at
    fits = job.processors <= cluster.idle
    if since is not None and (now >= since + parameters.longest_backoff or (now < since and not fits)):
        job.doubted_at = None
    if fits and job.doubted_at is None:
        job.doubted_at = now + parameters.backoff
        context.timetable.for_cluster(cluster, job.doubted_at)


def lacking_for_others(context: Context, cluster: ClusterRecord) -> int:
    """Return by how many processors jobs of a cluster are to be shrunk for others that wait; 0 or less: by none.

    A batch system is asked for its jobs, then for its nodes. Those that it starts between the two on what ours have
    left are seen both to wait and to occupy it. So nobody is asked for more before the next poll.
    """
    if not cluster.others_waiting or cluster.ours_left:
        return 0
    coming = _coming(cluster)
    wanted = _wanted(context, cluster, coming + context.roster.on(cluster.name).spare)
    return wanted - max(0, coming)


def others_lack(context: Context, cluster: ClusterRecord) -> bool:
    """Tell whether others wait for more than is coming, and running jobs could give it, those that change included."""
    if not cluster.others_waiting:
        return False
    coming = _coming(cluster)
    return _wanted(context, cluster, coming + _at_most_given(context, cluster)) > max(0, coming)


def free_for_growing(context: Context, cluster: ClusterRecord) -> int:
    """Return the processors that may be offered to running jobs: not those that others wait for."""
    if not cluster.others_waiting:
        return cluster.available
    left = _wanted(context, cluster, _coming(cluster) + _at_most_given(context, cluster))
    return max(0, min(cluster.room, cluster.load_free - left))


def _at_most_given(context: Context, cluster: ClusterRecord) -> int:
    return sum(job.size - job.minimum for job in context.roster.on(cluster.name))


def _coming(cluster: ClusterRecord) -> int:
    """Return the processors that others get at once or soon; negative: ours wait there for so many, too."""
    return cluster.load_free + cluster.offered + cluster.ending + cluster.gathering


def _wanted(context: Context, cluster: ClusterRecord, most: int) -> int:
    """Return what others wait for, in whole jobs that add up to ``most`` processors at most."""
    if not context.state.parameters.approach.shrinks_for_waiting:
        return 0
    parameters, total = context.state.parameters, 0
    for job in cluster.others_waiting:
        since = job.doubted_at
        doubted = since is not None and since <= context.now < since + parameters.longest_backoff
        if not doubted and total + job.processors <= most:
            total += job.processors
    return total
