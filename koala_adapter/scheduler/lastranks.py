# SPDX-License-Identifier: Apache-2.0
"""MPI jobs whose launcher has ended well: they are done when their processes have ended, too.

mpiexec ends after all processes, and the end of each is told on its output, so that none is left when its own end is
heard of. That it says 0 does not mean as much: of programs that spawn it reports the status of the first process group
only, and when a process of another one is killed it gives all of them up, and ends with 0 (MPICH 5.0.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, MpiResize, RunnerName
from koala_adapter.scheduler.outcome import JobOutcome, JobState
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord

PATIENCE = 10.0
"""Seconds in which the processes must have ended after a launcher that ended well."""


def await_last_ranks(context: Context, record: JobRecord) -> None:
    """Give the processes of a job whose launcher has ended well the time to end.

    Where the program is started anew with each change, agents watch over each process by itself, and tell of its end
    when its files have come: that takes its time, up to the walltime.
    """
    if (record.job.runner, record.job.mpi_resize) != (RunnerName.ADAPTIVE, MpiResize.RESTART):
        context.timetable.for_job(record, TimerKind.LAST_RANKS, context.now + PATIENCE)


def last_ranks_timer(context: Context, record: JobRecord) -> None:
    """End a job whose launcher is gone while processes run: nobody can say any more that they did their work.

    What an agent has to tell that is out of contact is waited for: it comes back, or is taken as lost.
    """
    left = record.ranks_awaited()
    placeholders = [context.state.placeholders.get(record.ranks[rank].placeholder) for rank in left]
    if any(one is not None and one.silent_since is not None for one in placeholders):
        await_last_ranks(context, record)
        return
    over = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
    context.outcomes.append((record, _left_behind(left) if left else over))


def _left_behind(ranks: list[int]) -> JobOutcome:
    were = "1 process was running: rank" if len(ranks) == 1 else f"{len(ranks)} processes were running: ranks"
    detail = f"mpiexec ended with status 0 while {were} {', '.join(map(str, ranks))}"
    return JobOutcome(state=JobState.FAILED, reason=EndReason.LOST, exit_code=1, detail=detail)
