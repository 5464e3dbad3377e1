# SPDX-License-Identifier: Apache-2.0
"""Listing jobs: the command line of squeue(1), and its rows as jobs.

The fields exist under these names in all releases from 20.11 to 26.05; JSON differs from release to release. A suffix
after the colon makes a field as long as it is. Fields are ended by a control character (ASCII "unit separator"), and
the texts that anybody can choose come last.

The elements of an array that wait together are listed as one row, ``12_[1-40,43%5]``, and told apart here: squeue's own
option for that (--array) takes longer, and loses the last element of ``12_[2-1000:2]`` (seen in 20.11 to 26.05).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.model import EndReason, LrmJob, LrmJobId, LrmJobState
from koala_slurm.durations import TIME_FORMAT, moment
from koala_slurm.hostlist import expand
from koala_slurm.jobids import array_index, checked, waiting_elements
from koala_slurm.states import hold_owner, job_end, job_state
from koala_slurm.waitreasons import START_MAY_SHOW, wait_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

SEPARATOR = "\x1f"

ENVIRONMENT = {**TIME_FORMAT, "SLURM_BITSTR_LEN": "0"}
"""Times in seconds, and the elements of an array in full: they are cut to 64 characters otherwise (squeue(1))."""

FIELDS = (
    "JobArrayID",
    "UserName",
    "State",
    "NumCPUs",
    "Partition",
    "NodeList",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "exit_code",
    "Reason",
    "Name",
)

_EXIT = re.compile(r"(?P<code>[0-9]{1,5}):(?P<signal>[0-9]{1,3})", re.ASCII)
_BEGUN = frozenset({LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING, LrmJobState.ENDED})


def squeue_command(*, user: str = "", job: str = "") -> tuple[str, ...]:
    """Return the command line that lists all jobs, also those that ended a short while ago; run it in ENVIRONMENT.

    With ``user`` only that user's, which costs slurmctld least; with ``job`` only that one.
    """
    form = ",".join(f"{field}:{SEPARATOR}" for field in FIELDS)
    chosen = (*((f"--user={user}",) if user else ()), *((f"--jobs={checked(job)}",) if job else ()))
    return ("squeue", "--noheader", "--states=all", *chosen, f"--Format={form}")


def parse_jobs(output: str) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing, array elements singly. Raises LrmUnavailableError for text that is none."""
    rows = (line.split(SEPARATOR, len(FIELDS) - 1) for line in output.split("\n") if line.strip())
    return tuple(job for row in rows for job in parse_row(row))


def parse_row(row: Sequence[str]) -> tuple[LrmJob, ...]:
    """Return the job, or the waiting elements of an array, of one row of values of FIELDS.

    Raises LrmUnavailableError when it is no such row.
    """
    job = parse_job(row)
    array, bracket, elements = job.id.partition("_[")
    if not bracket:
        return (job,)
    try:
        numbers = waiting_elements(elements.removesuffix("]"))
    except ValueError as error:
        raise LrmUnavailableError(f"squeue printed a job id that cannot be read: {job.id[:200]!r}") from error
    return tuple(replace(job, id=LrmJobId(f"{array}_{number}"), array_index=number) for number in numbers)


def parse_job(row: Sequence[str]) -> LrmJob:
    """Return one row of values of FIELDS as a job. Raises LrmUnavailableError when it is no such row."""
    if len(row) != len(FIELDS):
        raise LrmUnavailableError(f"squeue printed a line of {len(row)} fields: {SEPARATOR.join(row)[:200]!r}")
    job, user, word, processors, queue, nodes, submitted, started, ends, status, reason, name = row
    state = job_state(word, reason)
    code, signal = parse_exit(status)
    places = expand(nodes)
    end = job_end(word, exit_code=code, signal=signal, ran=bool(places))
    begun = state in _BEGUN
    return LrmJob(
        id=LrmJobId(job),
        name=name.removesuffix(SEPARATOR),
        state=state,
        user=user,
        processors=int(processors) if processors.isdecimal() else 1,
        array_index=array_index(job),
        nodes=places,
        queue=queue,
        reason="" if reason == "None" else reason,
        end=end,
        exit_code=code if end is EndReason.EXITED else None,
        signal=signal if end is EndReason.SIGNALLED else None,
        submitted_at=moment(submitted),
        # What a pending job shows here is the controller's estimate.
        started_at=moment(started) if begun else None,
        ends_at=moment(ends) if begun else None,
        raw_state=word,
        hold=hold_owner(reason) if state is LrmJobState.HELD else None,
        blocked=state is LrmJobState.QUEUED and wait_kind(reason) not in START_MAY_SHOW,
    )


def parse_exit(text: str) -> tuple[int, int]:
    """Return exit code and signal: ``3:0`` (since 23.02), or a wait status such as 768 (before)."""
    match = _EXIT.fullmatch(text)
    if match:
        return int(match["code"]), int(match["signal"])
    status = int(text) if text.isdecimal() else 0
    return status >> 8 & 0xFF, status & 0x7F
