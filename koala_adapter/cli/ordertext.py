# SPDX-License-Identifier: Apache-2.0
"""What ``koala schedule`` and ``koala explain NAME:ID`` show of a batch system's jobs, in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from koala_adapter.cli.tables import seconds
from koala_adapter.ordering.entries import JobEventKind, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.ordering.entries import JobEvent
    from koala_adapter.ordering.explanations import Explanation, Overview
    from koala_adapter.ordering.shadow import Difference, ShadowReport

STYLES = {
    JobEventKind.START: "cyan",
    JobEventKind.STARTED: "green",
    JobEventKind.NOT_STARTED: "red",
    JobEventKind.PASSED_OVER: "yellow",
    JobEventKind.LEFT_OUT: "yellow",
    JobEventKind.RESERVED: "magenta",
}
QUIET = frozenset(
    {JobEventKind.SUBMITTED, JobEventKind.ENDED, JobEventKind.GONE, JobEventKind.ADOPTED, JobEventKind.CHANGED}
)
"""What is shown dim: it was not our doing."""
DAY = 86_400.0


def moment(at: float | None) -> str:
    """Return a local time; with the date when it is not near."""
    if at is None:
        return "-"
    near = abs(at - time.time()) < DAY / 2
    return time.strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M:%S", time.localtime(at))


def _processors(number: int) -> str:
    return f"{number} processor{'s' if number != 1 else ''}"


def places(nodes: tuple[tuple[str, int], ...]) -> str:
    """Return nodes with their processors: ``n4:3,n2:3``."""
    return ",".join(f"{name}:{count}" for name, count in nodes)


def line(happening: JobEvent) -> str:
    """Return one line for a person."""
    one = happening
    what = _processors(one.processors)
    parts = [f"on {places(one.nodes)}" if one.nodes else "", one.detail]
    if one.at is not None:
        parts.append(f"at {moment(one.at)} at the latest")
    more = "; ".join(part for part in parts if part)
    return f"{moment(one.time)}  {one.kind.value:<11}  {one.job_id:<8}  {one.user:<8}  {what}  {more}".rstrip()


def style(happening: JobEvent) -> str:
    """Return the style of its line."""
    return "dim" if happening.kind in QUIET else STYLES.get(happening.kind, "")


def status(cluster: str, found: Overview, failure: str | None) -> str:
    """Return where the queue stands, in one line."""
    if failure:
        return f"{cluster} does not answer: {failure}; nothing is decided until it does"
    starting = f", {found.starting} starting" if found.starting else ""
    left = f", {found.left_out} left out" if found.left_out else ""
    used = found.processors - found.free
    return (
        f"{cluster}: {used} of {found.processors} processors used, {found.running} running{starting}, "
        f"{found.waiting} waiting{left}"
    )


def explanation(found: Explanation, cluster: str) -> Iterator[str]:
    """Yield what is known of a job, line by line."""
    name = f" ({found.name})" if found.name else ""
    yield (
        f"job {found.job_id}{name} of {found.user} on {cluster}: {_processors(found.processors)} for at most "
        + seconds(float(found.estimate))
    )
    match found.phase:
        case Phase.RUNNING:
            yield f"It runs on {places(found.nodes)} since {moment(found.started_at)}."
        case Phase.STARTING:
            yield f"It is being started on {places(found.nodes)}."
        case Phase.WAITING:
            place = f"place {found.position} of {found.queued} in the queue: " if found.position else ""
            yield f"It waits, {place}{found.reason}."
            if found.reserved_at is not None:
                yield f"It starts at {moment(found.reserved_at)} at the latest, if all jobs end by their walltimes."
            else:
                yield "No start is reserved for it yet: it starts as soon as it is in nobody's way."
        case _:
            yield f"It waits, and is not in the queue: {found.reason}."
    if found.promised_at is not None and found.promised_at != found.reserved_at:
        yield f"The first start reserved for it was {moment(found.promised_at)}."


def shadow_report(found: ShadowReport) -> Iterator[str]:
    """Yield the report of a shadow, line by line."""
    yield f"watched for {seconds(found.until - found.since)}: {found.jobs} jobs waited at some time"
    start = "starts" if found.earlier == 1 else "start"
    yield (
        f"with this policy {found.earlier} of them {start} earlier, {found.later} later, "
        f"{found.same} at the same time (within 2 s)"
    )
    if found.left_out:
        are = "1 job is" if found.left_out == 1 else f"{found.left_out} jobs are"
        yield f"{are} not counted: in hold, or waiting for other jobs or for a time to begin"
    yield (
        f"mean wait so far: {seconds(found.mean_wait_ours)} with this policy, "
        f"{seconds(found.mean_wait_theirs)} with the batch system"
    )
    for title, jobs in (("earlier", found.first_earlier), ("later", found.first_later)):
        if jobs:
            yield f"start {title} with this policy, the largest differences:"
            yield from (f"  {_difference(job)}" for job in jobs)


def _difference(job: Difference) -> str:
    ours = "not yet" if job.ours is None else moment(job.ours)
    theirs = "not yet" if job.theirs is None else moment(job.theirs)
    return f"{job.job_id:<8}  {job.processors:>6} processors  here {ours:>8}  batch system {theirs:>8}"
