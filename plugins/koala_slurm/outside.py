# SPDX-License-Identifier: Apache-2.0
"""All users' jobs as an outside scheduler must know them, and checks of starting from outside."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError, LrmNotFoundError
from koala_adapter.lrm.commands import portions
from koala_adapter.model import WAITING, LrmJob, LrmJobId, LrmJobState
from koala_slurm import client
from koala_slurm.limits import (
    GresOnNodes,
    PartitionLimits,
    by_number,
    first_served,
    gres_shares,
    parse_gres_on_nodes,
    parse_partition_limits,
    unfulfilled,
    within_limits,
)
from koala_slurm.listing import ENVIRONMENT, PARTITION_COMMAND
from koala_slurm.requests import (
    DETAILS_COMMAND,
    GRES_COMMAND,
    LICENSES_COMMAND,
    JobDetails,
    forgotten,
    nodes_with_gres,
    parse_details,
    parse_held_by_hook,
    parse_licenses,
    state_key,
    with_details,
    worth_asking,
)
from koala_slurm.words import ARGUMENTS_PER_COMMAND, checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_slurm.client import SlurmCommands
    from koala_slurm.library import LibraryAccess, ToldJob
    from koala_slurm.requests import Restrictions, StateKey


# -- Jobs of all users ---------------------------------------------------------------------------------------
# Read with everything an outside scheduler must know, in one request or two.

LIMITS_KEPT = 30.0
"""Seconds for which the limits of partitions are believed."""
DIRECTORY_TIME = 20.0
"""Seconds that the users' directory of the host may take to tell the groups of users."""
NOT_YET_KNOWN = "what it asks for is not known yet: texts of other jobs look like it"


class OutsideReader:
    """Lists all users' jobs with details, which are cached by job."""

    def __init__(self, commands: SlurmCommands) -> None:
        """Create a reader without cached jobs."""
        self._commands = commands
        self.access: LibraryAccess | None = None
        """pyslurm, and whether it is used; None: it is not."""
        self._asked: dict[str, tuple[LrmJob, ...]] = {}
        """Jobs that pyslurm does not tell as they are, by the id by which squeue was asked for them."""
        self._known: dict[StateKey, JobDetails] = {}
        self._latest: dict[str, LrmJob] = {}
        self._limits: Mapping[str, PartitionLimits] = {}
        self._limits_asked_at: float | None = None
        self._groups: dict[str, frozenset[str]] = {}

    def known(self, job: str) -> tuple[LrmJob, JobDetails] | None:
        """Return a waiting job of the latest listing with its details; None when they are unknown."""
        listed = self._latest.get(job)
        details = self._known.get(state_key(listed)) if listed is not None else None
        return None if listed is None or details is None or not details.processors else (listed, details)

    async def listed(self, ids: Sequence[LrmJobId]) -> list[LrmJob]:
        """Return jobs from the latest listing; others are asked for. Raises LrmError."""
        missing = [job for job in ids if job not in self._latest]
        shown = {job.id: job for job in await self._look(missing)} if missing else {}
        if gone := [job for job in missing if job not in shown]:
            raise LrmNotFoundError(f"Slurm knows no job {gone[0]}", hint="it has ended, or never was")
        return [shown.get(job) or self._latest[job] for job in ids]

    async def _look(self, ids: Sequence[LrmJobId]) -> list[LrmJob]:
        found: list[LrmJob] = []
        # squeue understands no ranges of elements; an array's number stands for all of them.
        numbers = list(dict.fromkeys(checked(job).partition("_")[0] for job in ids))
        for part in portions(numbers, ARGUMENTS_PER_COMMAND):
            found += await self._commands.everything(f"--jobs={','.join(part)}")
        return found

    def forget(self, job: str) -> None:
        """Drop the cached details of a job that was just changed."""
        listed = self._latest.pop(job, None)
        if listed is not None:
            self._known.pop(state_key(listed), None)
        if self.access is not None:
            self.access.reader.forget(job)

    async def jobs(self) -> tuple[LrmJob, ...]:
        """Return all jobs with their details, array elements singly. Raises LrmError."""
        return tuple(with_details(job, self._known.get(state_key(job))) for job in await self._read())

    async def jobs_to_schedule(self) -> tuple[LrmJob, ...]:
        """Return all jobs, with the obstacles of waiting ones. Raises LrmError."""
        jobs = await self._read()
        groups: Mapping[str, frozenset[str]] = {}
        if users := {job.user for job in jobs if job.state in WAITING}:
            await self._ask_limits()
            groups = await self._groups_of(users)
        return tuple(await self._with_obstacles([self._described(job, groups) for job in jobs]))

    async def _read(self) -> Sequence[LrmJob]:
        """List all jobs by squeue, and read details where scontrol knows more."""
        jobs = await self._by_library()
        if jobs is None:
            jobs = await self._commands.everything()
        wanting = [job for job in jobs if worth_asking(job)]
        self._latest = {str(job.id): job for job in wanting}
        for key in forgotten(self._known, wanting):
            del self._known[key]
        missing = [job for job in wanting if state_key(job) not in self._known]
        if missing:
            await self._ask_details(missing)
        return jobs

    def _described(self, job: LrmJob, groups: Mapping[str, frozenset[str]]) -> LrmJob:
        """Return a job with details and the obstacles by its partitions. ``groups``: of users."""
        details = self._known.get(state_key(job))
        asked = with_details(job, details)
        if asked.state not in WAITING:
            return asked
        if state_key(asked) not in self._known:
            asked = replace(asked, obstacle=asked.obstacle or NOT_YET_KNOWN)
        qos = self._restrictions(asked).qos
        return within_limits(asked, self._limits, qos=qos, groups=groups.get(asked.user))

    async def _by_library(self) -> Sequence[LrmJob] | None:
        """List all jobs by pyslurm and cache details of changed ones; None where it is not used."""
        access = self.access
        if access is None or not await access.is_used():
            return None
        try:
            told, changed = await access.reader.jobs()
        except LrmError as error:
            if await access.failed(error):
                return None
            raise
        for record in changed:
            if record.details is not None:
                self._known.update(dict.fromkeys(map(state_key, record.jobs), record.details))
        try:
            await self._ask_untold(told, changed)
        except BaseException:
            access.reader.repeat()
            raise
        found = {job.id: job for record in told for job in record.jobs}
        # A dictionary keeps the place of what is replaced: what pyslurm tells of an element counts.
        placed = [job for record in told for job in record.jobs or self._asked.get(record.asked, ())]
        return list({job.id: found.get(job.id, job) for job in placed}.values())

    async def _ask_untold(self, told: Sequence[ToldJob], changed: Sequence[ToldJob]) -> None:
        """List changed jobs by squeue where pyslurm is incomplete; all jobs where they are many."""
        there = {record.asked for record in told if record.asked}
        wanted = list(dict.fromkeys(record.asked for record in changed if record.asked))
        self._asked = {asked: jobs for asked, jobs in self._asked.items() if asked in there}
        if not wanted:
            return
        if len(wanted) > ARGUMENTS_PER_COMMAND:
            shown = await self._commands.everything()
        else:
            try:
                shown = await self._look([LrmJobId(asked) for asked in wanted])
            except LrmNotFoundError:  # squeue of some releases complains of the only one that has gone meanwhile
                shown = ()
        numbered = by_number(shown)
        self._asked.update({asked: tuple(numbered.get(asked, ())) for asked in wanted})

    async def _ask_details(self, missing: Sequence[LrmJob]) -> None:
        """Read details of jobs; ambiguous ones are asked for singly, some at each call."""
        shown = await self._commands.read(DETAILS_COMMAND, action="details of jobs", environment=ENVIRONMENT)
        details = parse_details(shown)
        ambiguous: dict[StateKey, LrmJob] = {}
        for job in missing:
            found = details.of(job)
            if found is None:
                ambiguous[state_key(job)] = job
            else:
                self._known[state_key(job)] = found
        for key, job in list(ambiguous.items())[: client.ASKED_SINGLY]:
            with suppress(LrmNotFoundError):
                self._known[key] = await self._commands.details(job.id)

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs that the site's hook holds, and those it would hold again. Raises LrmError."""
        held = tuple(await self._commands.everything(parse=parse_held_by_hook))
        self._latest |= {str(job.id): job for job in held if job.state in WAITING}
        return held

    async def _ask_limits(self) -> None:
        """Read the limits of the partitions, now and then."""
        now = time.monotonic()
        if self._limits_asked_at is None or now > self._limits_asked_at + LIMITS_KEPT:
            shown = await self._commands.read(
                PARTITION_COMMAND, action="listing of partitions", environment=ENVIRONMENT
            )
            self._limits, self._limits_asked_at = parse_partition_limits(shown), now
            self._groups.clear()

    async def _groups_of(self, users: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return the groups of users, where a partition is limited to groups."""
        if not any(limits.groups for limits in self._limits.values()):
            return {}
        if missing := [user for user in users if user not in self._groups]:
            self._groups.update(await groups_by_user(self._commands.host, missing))
        return self._groups

    async def _with_obstacles(self, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Add to each waiting job what keeps it from starting: other jobs and its further requests."""
        asked = {job.id: self._restrictions(job) for job in jobs if job.state in WAITING}
        licenses: dict[str, int] = {}
        gres = GresOnNodes(free={}, idle={})
        if any(one.licenses for one in asked.values()):
            licenses = parse_licenses(await self._commands.read(LICENSES_COMMAND, action="listing of licences"))
        if any(one.gres for one in asked.values()):
            gres = parse_gres_on_nodes(await self._commands.read(GRES_COMMAND, action="listing of generic resources"))
        numbered, active = by_number(jobs), _active_elements(jobs)
        now = time.time()
        waits = {job.id: unfulfilled(job, job.dependency, numbered, now=now) for job in jobs if job.dependency}
        free_to_go = [job for job in jobs if not (waits.get(job.id) or job.obstacle)]
        unlicensed = _unlicensed(free_to_go, asked, licenses)
        shares = gres_shares([job for job in free_to_go if job.id in asked], asked, gres)
        found = []
        for job in jobs:
            wanted = asked.get(job.id)
            if wanted is None:
                found.append(job)
                continue
            obstacle = job.obstacle or unlicensed.get(job.id, "") or _throttled(job, wanted.throttle, active)
            possible = shares.get(job.id, nodes_with_gres(wanted, gres.free)) if wanted.gres else None
            obstacle = obstacle or ("no node has free what else it asks for" if possible == () else "")
            blocked = waits.get(job.id) or obstacle
            found.append(replace(job, dependent=bool(waits.get(job.id)), obstacle=blocked, possible_nodes=possible))
        return found

    def _restrictions(self, job: LrmJob) -> Restrictions:
        return self._known.get(state_key(job), JobDetails()).restrictions


async def groups_by_user(host: LrmHost, users: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return group names of users known to a host; empty for others and on a time-out."""
    found: dict[str, frozenset[str]] = {}
    with anyio.move_on_after(DIRECTORY_TIME):
        for user in users:
            # Names may have blanks. A group without a name stands as its number, which harms nothing.
            _, output, _ = await host.run(("id", "-Gnz", "--", user))
            if names := output.decode("utf-8", "replace").split("\0")[:-1]:
                found[user] = frozenset(names)
    return found


def _active_elements(jobs: Iterable[LrmJob]) -> Counter[str]:
    """Return the number of running or released elements of each array."""
    return Counter(
        job.id.partition("_")[0]
        for job in jobs
        if job.array_index is not None and job.state not in {LrmJobState.HELD, LrmJobState.ENDED, LrmJobState.ENDING}
    )


def _throttled(job: LrmJob, throttle: int, active: Counter[str]) -> str:
    """Return the message that an array's limit of running elements is reached."""
    if not throttle or job.array_index is None or job.state is not LrmJobState.HELD:
        return ""
    array = job.id.partition("_")[0]
    if active[array] >= throttle:
        return f"only {throttle} elements of its array run at a time"
    active[array] += 1
    return ""


def _unlicensed(
    jobs: Iterable[LrmJob], asked: Mapping[LrmJobId, Restrictions], free: dict[str, int]
) -> dict[LrmJobId, str]:
    """Return waiting jobs that lack licences, which are given in order of release and number.

    What is free is taken by the first, so that a start does not find it gone.
    """
    found: dict[LrmJobId, str] = {}
    for job in sorted((job for job in jobs if job.id in asked), key=first_served):
        wanted = asked[job.id].licenses
        if any(free.get(name, 0) < number for name, number in wanted):
            found[job.id] = f"there are too few free licences {', '.join(name for name, _ in wanted)}"
            continue
        for name, number in wanted:
            free[name] -= number
    return found
