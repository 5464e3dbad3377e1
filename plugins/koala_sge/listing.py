# SPDX-License-Identifier: Apache-2.0
"""Jobs from ``qstat -xml -r -u '*'``. Pure."""

from __future__ import annotations

import calendar
import re
from dataclasses import replace
from itertools import chain
from time import strptime
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_sge.states import job_reason, job_state
from koala_sge.values import seconds_of
from koala_sge.xml import number_of, parse_xml, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lxml.etree import _Element

LONGEST_EXPANSION = 10_000
"""Waiting tasks of one array that are listed singly; what a user submits beyond that is one entry for all."""

_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?")


def parse_jobs(raw: bytes, *, name_prefix: str = "", by_queue: bool = False) -> tuple[LrmJob, ...]:
    """Return jobs (array tasks singly) whose name begins with ``name_prefix``. Raises LrmUnavailableError.

    Times are read as UTC: the command must run with TZ=UTC. A job listed twice (it moved while it was listed) counts
    once, as it was seen last.
    """
    root = parse_xml(raw, root="job_info", source="qstat")
    jobs: dict[LrmJobId, LrmJob] = {}
    for element in root.iter("job_list"):
        name = text_of(element, "full_job_name") or text_of(element, "JB_name")
        if name.startswith(name_prefix):
            jobs.update((job.id, job) for job in _jobs(element, name, by_queue=by_queue))
    return tuple(jobs.values())


def _jobs(element: _Element, name: str, *, by_queue: bool) -> Iterator[LrmJob]:
    number, tasks, slots = (text_of(element, tag) for tag in ("JB_job_number", "tasks", "slots"))
    processors = max(1, number_of(slots, 1))
    if not number:
        return
    if not tasks:
        yield _job(element, name, LrmJobId(number), None, processors, by_queue=by_queue)
        return
    ranges = task_ranges(tasks)
    count = sum(map(len, ranges))
    if count > LONGEST_EXPANSION:
        yield _job(element, name, LrmJobId(number), None, processors * count, by_queue=by_queue)
        return
    for index in chain.from_iterable(ranges):
        yield _job(element, name, LrmJobId(f"{number}.{index}"), index, processors, by_queue=by_queue)


def task_ranges(text: str) -> tuple[range, ...]:
    """Return the task numbers of a list such as ``1,4-9:1,12-20:2``; pieces that are no range are left out."""
    matches = (_RANGE.fullmatch(piece.strip()) for piece in text.split(","))
    return tuple(
        range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1))) for match in matches if match
    )


def _job(element: _Element, name: str, id_: LrmJobId, index: int | None, processors: int, *, by_queue: bool) -> LrmJob:
    letters = text_of(element, "state")
    state = job_state(letters)
    queue, _, host = text_of(element, "queue_name").partition("@")
    node = f"{queue}@{host}" if by_queue else host
    # JAT_start_time is also set while a task is being transferred, and stays after a restart.
    started = moment_of(text_of(element, "JAT_start_time")) if host else None
    limit = _walltime(element)
    return LrmJob(
        id=id_,
        name=name,
        state=state,
        user=text_of(element, "JB_owner"),
        processors=processors,
        array_index=index,
        nodes=(node,) if host else (),
        queue=queue or text_of(element, "hard_req_queue").partition("@")[0],
        reason=job_reason(letters),
        end=EndReason.CANCELLED if state is LrmJobState.ENDING else None,
        submitted_at=moment_of(text_of(element, "JB_submission_time")),
        started_at=started,
        ends_at=started + limit if started is not None and limit is not None else None,
        raw_state=letters,
        walltime=limit,
        dependent=element.find("predecessor_jobs") is not None and not host,
        # The letters do not tell whose hold it is; that of our own submission defaults is the owner's.
        hold=_hold_owner(letters) if state is LrmJobState.HELD else None,
        requeues=int("R" in letters),
        layout=((node, processors),) if host and state is not LrmJobState.HELD else (),
    )


def _hold_owner(letters: str) -> HoldOwner:
    return HoldOwner.SYSTEM if "E" in letters else HoldOwner.USER


def parse_layouts(raw: bytes, *, by_queue: bool = False) -> dict[LrmJobId, tuple[tuple[str, int], ...]]:
    """Return where the slots of running jobs are, of ``qstat -xml -g t``, which has a row for each slot.

    Where the first task of a parallel job takes no slot, its row is one too many (sge_pe(5), job_is_first_task).
    """
    counts: dict[LrmJobId, dict[str, int]] = {}
    masters: dict[LrmJobId, tuple[str, int]] = {}
    for element in parse_xml(raw, root="job_info", source="qstat").iter("job_list"):
        queue, _, host = text_of(element, "queue_name").partition("@")
        if not host:
            continue
        number, task = text_of(element, "JB_job_number"), text_of(element, "tasks")
        job, node = LrmJobId(f"{number}.{task}" if task else number), f"{queue}@{host}" if by_queue else host
        places = counts.setdefault(job, {})
        places[node] = places.get(node, 0) + 1
        if text_of(element, "master") == "MASTER":
            masters[job] = (node, number_of(text_of(element, "granted_pe"), 1))
    for job, (node, slots) in masters.items():
        if sum(counts[job].values()) == slots + 1:
            counts[job][node] -= 1
    return {job: tuple((node, count) for node, count in places.items() if count) for job, places in counts.items()}


def with_layout(job: LrmJob, layout: tuple[tuple[str, int], ...] | None) -> LrmJob:
    """Return a running job on the nodes of its layout; as it is when that is not known."""
    return replace(job, layout=layout, nodes=tuple(node for node, _ in layout)) if layout else job


def _walltime(element: _Element) -> int | None:
    limits = [
        seconds_of((request.text or "").strip())
        for request in element.iterfind("hard_request")
        if request.get("name") in {"h_rt", "s_rt"}
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def moment_of(text: str) -> float | None:
    """Return seconds since the epoch of ``2026-11-21T11:04:38`` in UTC; None for anything else."""
    try:
        return float(calendar.timegm(strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None
