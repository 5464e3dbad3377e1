# SPDX-License-Identifier: Apache-2.0
"""Reading all users' jobs with everything an outside scheduler must know, in one request or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from koala_adapter.model import LrmJob
    from koala_slurm.client import SlurmCommands
    from koala_slurm.details import StateKey


class OutsideReader:
    """Lists the jobs of all users; remembers the details of those it has seen."""

    requests = 2

    def __init__(self, commands: SlurmCommands) -> None:
        """Nothing is known yet."""
        self._commands = commands
        self._known: dict[StateKey, JobDetails] = {}
        self._latest: dict[str, LrmJob] = {}

    def known(self, job: str) -> tuple[LrmJob, JobDetails] | None:
        """Return a waiting job of the latest listing and its details; None when they are not known."""
        listed = self._latest.get(job)
        details = self._known.get(state_key(listed)) if listed is not None else None
        return None if listed is None or details is None or not details.processors else (listed, details)

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
        return tuple(with_details(job, self._known.get(state_key(job))) for job in jobs)
