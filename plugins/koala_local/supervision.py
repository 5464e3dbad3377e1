# SPDX-License-Identifier: Apache-2.0
"""The processes of running jobs: each is started, watched, given its time, ended; events only, nothing is polled."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_local import process

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.model import LrmJobId
    from koala_local.record import JobRecord


@dataclass(slots=True, kw_only=True)
class _Watched:
    pid: int
    mark: str
    descriptor: int
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class Supervisor:
    """Follows the processes of jobs and says when one has ended or its walltime is over."""

    def __init__(
        self,
        directory: Path,
        loop: asyncio.AbstractEventLoop,
        *,
        ended: Callable[[LrmJobId, int | None], None],
        overdue: Callable[[LrmJobId], None],
    ) -> None:
        """``ended`` gets the exit status: negative for a signal, None when it cannot be known."""
        self._directory = directory
        self._loop = loop
        self._ended = ended
        self._overdue = overdue
        self._watched: dict[LrmJobId, _Watched] = {}
        self._leftovers: dict[int, str] = {}

    def start(self, job: JobRecord, *, script: Path) -> process.Gated:
        """Start a job's process behind its gate. Raises OSError."""
        environment = process.job_environment(self._directory, job)
        return process.start_gated(job, script=script, environment=environment)

    def follow(self, job: JobRecord) -> bool:
        """Watch a job's process until its end; False when it has ended already and is not our child."""
        if job.pid is None:
            return False

        def on_end() -> None:
            self._on_end(job.id)

        try:
            descriptor = process.watch(job.pid, self._loop.add_reader, on_end)
        except ProcessLookupError:
            return False
        mark = process.job_mark(self._directory, job)
        self._watched[job.id] = _Watched(pid=job.pid, mark=mark, descriptor=descriptor)
        self.set_walltime(job)
        return True

    def set_walltime(self, job: JobRecord) -> None:
        """Set the timer of a running job's walltime, in place of an earlier one."""
        watched = self._watched[job.id]
        self._drop_timers(watched)
        if job.started_at is not None:
            since_boot = job.started_since_boot
            # What an earlier version has started has only the time of day.
            ran = time.time() - job.started_at if since_boot is None else process.since_boot() - since_boot
            left = job.walltime - ran
            watched.timers.append(self._loop.call_later(max(0.0, left), self._overdue, job.id))

    def end(self, job: JobRecord, *, kill_wait: float) -> None:
        """Begin to end a job: SIGTERM now, SIGKILL to all its processes after ``kill_wait`` seconds."""
        watched = self._watched[job.id]
        self._drop_timers(watched)
        process.signal_group(watched.pid, signal.SIGTERM)
        # A stopped process gets no SIGTERM before it goes on.
        process.signal_group(watched.pid, signal.SIGCONT)
        watched.timers.append(self._loop.call_later(kill_wait, self._kill, job.id))

    def signal_script(self, job: JobRecord, number: int) -> None:
        """Send a signal to the process group of a job's script."""
        process.signal_group(self._watched[job.id].pid, number)

    def signal_all(self, jobs: list[JobRecord], number: int) -> None:
        """Send a signal to all processes of these jobs."""
        watched = [self._watched[job.id] for job in jobs]
        process.signal_all({item.pid: item.mark for item in watched}, number)

    def close(self) -> None:
        """Stop watching; the processes run on."""
        for watched in self._watched.values():
            self._drop_timers(watched)
            self._loop.remove_reader(watched.descriptor)
            os.close(watched.descriptor)
        self._watched = {}

    def _kill(self, id_: LrmJobId) -> None:
        watched = self._watched[id_]
        process.signal_all({watched.pid: watched.mark}, signal.SIGKILL)

    def _on_end(self, id_: LrmJobId) -> None:
        watched = self._watched.pop(id_)
        self._drop_timers(watched)
        self._loop.remove_reader(watched.descriptor)
        os.close(watched.descriptor)
        # One look at the host's processes serves all jobs that end in the same turn of the loop.
        if not self._leftovers:
            self._loop.call_soon(self._kill_leftovers)
        self._leftovers[watched.pid] = watched.mark
        self._ended(id_, process.reap(watched.pid))

    def _kill_leftovers(self) -> None:
        leftovers, self._leftovers = self._leftovers, {}
        process.signal_all(leftovers, signal.SIGKILL)

    @staticmethod
    def _drop_timers(watched: _Watched) -> None:
        for timer in watched.timers:
            timer.cancel()
        watched.timers.clear()
