# SPDX-License-Identifier: Apache-2.0
"""Reading all users' jobs with everything an outside scheduler must know, in one request or two."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState
from koala_slurm.details import (
    EVERYTHING_COMMAND,
    JobDetails,
    details_id,
    everything_command,
    forgotten,
    new_separator,
    parse_details,
    parse_everything,
    state_key,
    with_details,
    worth_asking,
)
from koala_slurm.listing import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import LrmJob
    from koala_slurm.client import SlurmCommands
    from koala_slurm.details import StateKey
    from koala_slurm.startnotes import StartNotes


class OutsideReader:
    """Lists the jobs of all users; remembers the details of those it has seen."""

    requests = 2

    def __init__(self, commands: SlurmCommands, notes: StartNotes) -> None:
        """Nothing is known yet. ``notes``: of the jobs that we have started."""
        self._commands = commands
        self._notes = notes
        self._known: dict[StateKey, JobDetails] = {}
        self._latest: dict[str, LrmJob] = {}

    def known(self, job: str) -> tuple[LrmJob, JobDetails] | None:
        """Return a waiting job of the latest listing and its details; None when they are not known."""
        listed = self._latest.get(job)
        details = self._known.get(state_key(listed)) if listed is not None else None
        return None if listed is None or details is None or not details.processors else (listed, details)

    def forget(self, job: str) -> None:
        """Drop what is known of a waiting job: it has just been changed."""
        listed = self._latest.pop(job, None)
        if listed is not None:
            self._known.pop(state_key(listed), None)

    async def jobs(self) -> tuple[LrmJob, ...]:
        """Return all jobs, array elements singly. Raises LrmError."""
        separator = new_separator()
        output = await self._commands.read(
            everything_command(separator), action="listing of jobs", environment=ENVIRONMENT
        )
        jobs = parse_everything(output, separator)
        wanting = [job for job in jobs if worth_asking(job)]
        self._latest = {str(job.id): job for job in wanting}
        for key in forgotten(self._known, wanting):
            del self._known[key]
        missing = [job for job in wanting if state_key(job) not in self._known]
        if missing:
            details = parse_details(
                await self._commands.read(EVERYTHING_COMMAND, action="details of jobs", environment=ENVIRONMENT)
            )
            nothing = JobDetails()
            self._known.update((state_key(job), details.get(details_id(job), nothing)) for job in missing)
        self._drop_notes(jobs)
        return tuple(self._as_asked(with_details(job, self._known.get(state_key(job)))) for job in jobs)

    def _drop_notes(self, jobs: Sequence[LrmJob]) -> None:
        """Drop the notes of jobs that are over."""
        if self._notes.kept:
            there = {str(job.id): job for job in jobs if job.state is not LrmJobState.ENDED}
            for id_, note in list(self._notes.kept.items()):
                if id_ not in there or not note.is_of(there[id_]):
                    self._notes.remove(id_)

    def _as_asked(self, job: LrmJob) -> LrmJob:
        """Return a job that waits again after we had tied it to nodes with what its user asked for."""
        note = self._notes.kept.get(job.id)
        if note is None or job.state not in {LrmJobState.QUEUED, LrmJobState.HELD}:
            return job
        shown = self._known.get(state_key(job), JobDetails())
        asked = note.asked(replace(shown, processors=job.processors, requested_nodes=job.requested_nodes))
        return replace(
            job,
            processors=max(asked.processors or job.processors, asked.nodes_least * job.processors_per_task),
            requested_nodes=asked.requested_nodes,
            nodes_wanted=asked.nodes_wanted,
            nodes_least=asked.nodes_least,
            nodes_most=asked.nodes_most,
            tied=not note.free,
        )
