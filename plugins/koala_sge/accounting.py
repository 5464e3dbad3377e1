# SPDX-License-Identifier: Apache-2.0
"""Ends of jobs in the accounting of Grid Engine, as qacct prints them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.lrm.commands import utc
from koala_adapter.model import EndReason, LrmJob, LrmJobId, LrmJobState

if TYPE_CHECKING:
    from collections.abc import Mapping

from koala_sge.listing import number_of, seconds_of

NOT_STARTED = frozenset({1, 3, 4, 6, 7, 8, 9, 10, 11, 26, 27, 28, 29, 33, 36, 38})
"""Codes of sge_status(5) with which the job never began to run."""

LIMIT_ENFORCED = 37
"""``failed 37: qmaster enforced h_rt, h_cpu, or h_vmem limit``."""

WALLTIME_ENFORCED = 44
"""Failure code of a job ended by h_rt, of later Grid Engines."""

KILLED = 100
"""``failed 100: assumedly after job``: it was killed. ``deleted_by`` of the heirs says whether by qdel."""

NO_USER = "NONE"
"""``deleted_by`` of a job that no user has deleted."""

WALLTIME_SLACK = 1
"""Seconds: execd looks at limits that seldom, and times are whole seconds."""

SIGKILL = 9
SIGNAL_BASE = 128
LARGEST_SIGNAL = 64
_SEPARATOR = re.compile(r"^=+$", re.MULTILINE)


NOTHING_ENDED = "no jobs running since startup"
"""What qacct prints where no job has ended yet, so that there is no accounting file."""


def parse_accounting(text: str) -> tuple[LrmJob, ...]:
    """Return the ended jobs of a ``qacct -j`` listing. A job that ran several times counts with its last end.

    Numbers of jobs are used again: the jobs of one number but another user or name are other jobs. Times are read as
    UTC: the command must run with TZ=UTC.
    """
    jobs: dict[tuple[LrmJobId, str, str], LrmJob] = {}
    for block in _SEPARATOR.split(text):
        record = {
            word: value.strip() for word, _, value in (line.partition(" ") for line in block.splitlines()) if word
        }
        if record.get("jobnumber", "").isdigit():
            job = _ended_job(record)
            identity = (job.id, job.user, job.name)
            known = jobs.get(identity)
            if known is None or (known.ends_at or 0) <= (job.ends_at or 0):
                jobs[identity] = job
    return tuple(jobs.values())


def _ended_job(record: Mapping[str, str]) -> LrmJob:
    number, task = record["jobnumber"], record.get("taskid", "")
    index = int(task) if task.isdigit() else None
    started, ended = _moment(record.get("start_time", "")), _moment(record.get("end_time", ""))
    host = record.get("hostname", "")
    failed = number_of(record.get("failed", "").partition(":")[0])
    status = number_of(record.get("exit_status", "").partition("(")[0])
    end, code, signal = _end(record, failed, status, started, ended)
    return LrmJob(
        id=LrmJobId(f"{number}.{index}" if index is not None else number),
        name=record.get("jobname", ""),
        state=LrmJobState.ENDED,
        user=record.get("owner", ""),
        processors=max(1, number_of(record.get("slots", ""), 1)),
        array_index=index,
        nodes=(host,) if host and started is not None else (),
        queue=record.get("qname", ""),
        reason=_reason(record.get("failed", "")),
        end=end,
        exit_code=code,
        signal=signal,
        submitted_at=_moment(record.get("qsub_time", "")),
        started_at=started,
        ends_at=ended,
        raw_state=f"failed {failed}, exit_status {status}",
    )


def _end(
    record: Mapping[str, str], failed: int, status: int, started: float | None, ended: float | None
) -> tuple[EndReason | None, int | None, int | None]:
    """Return reason, exit code and signal. Grid Engine tells a kill, but not whose: at its walltime, or by qdel."""
    signal = status - SIGNAL_BASE if SIGNAL_BASE < status <= SIGNAL_BASE + LARGEST_SIGNAL else None
    if failed in NOT_STARTED:
        return EndReason.LAUNCH_FAILED, None, None
    if failed == 0:
        return EndReason.EXITED, status, None
    told = _told_by_heirs(record, failed)
    if told is not None or signal is None:
        return told, None, signal
    # The heirs of Grid Engine print no category, but the command of the submission.
    category = record.get("category", "")
    limit = _requested_walltime(category) or _requested_walltime(record.get("submit_cmd", ""))
    if limit is not None and started is not None and ended is not None and ended - started >= limit - WALLTIME_SLACK:
        return EndReason.WALLTIME, None, signal
    if failed == LIMIT_ENFORCED and "_vmem=" in category:
        return EndReason.MEMORY, None, signal
    # SIGKILL is what qdel and the job itself have in common.
    return (None if signal == SIGKILL else EndReason.SIGNALLED), None, signal


def _told_by_heirs(record: Mapping[str, str], failed: int) -> EndReason | None:
    if failed == WALLTIME_ENFORCED:
        return EndReason.WALLTIME
    deleted = failed == KILLED and record.get("deleted_by", NO_USER) not in {NO_USER, ""}
    return EndReason.CANCELLED if deleted else None


def _requested_walltime(category: str) -> int | None:
    found = re.search(r"\bh_rt=([0-9:.]+)", category)
    return seconds_of(found.group(1)) if found else None


def _reason(failed: str) -> str:
    code, _, words = failed.partition(":")
    return f"failed {code.strip()}: {words.strip()}" if words.strip() else ""


def _moment(text: str) -> float | None:
    """Return seconds since the epoch of ``Sat Nov 21 11:04:38 2026`` or ``11/21/2026 11:04:38.000`` in UTC."""
    return utc(text.strip().partition(".")[0], "%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S")
