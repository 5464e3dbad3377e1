# SPDX-License-Identifier: Apache-2.0
"""What keeps a Slurm job from starting: partitions, dependencies, generic resources.

Slurm says so of a job in hold only once it is released, so it is worked out here. No part of this does I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_slurm.listing import records
from koala_slurm.requests import FreeGres, Restrictions, gres_rows, nodes_with_gres, not_consumed, parse_gres
from koala_slurm.words import duration, job_number, turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# -- Limits of partitions ------------------------------------------------------------------------------------
# What partitions let no job exceed.

STARTS_NOTHING = frozenset({"DOWN", "INACTIVE"})
"""States in which jobs may wait, but none starts."""

_NO_LIST = frozenset({"", "ALL", "N/A", "(null)", "NONE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """Limits of one partition."""

    name: str
    state: str = "UP"
    walltime: int | None = None
    nodes_least: int = 1
    nodes_most: int | None = None
    accounts: frozenset[str] = frozenset()
    """The only ones that may use it; empty: all but those denied."""
    denied: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    """Of users, the only ones that may use it; empty: all."""
    allowed_qos: frozenset[str] = frozenset()
    denied_qos: frozenset[str] = frozenset()
    qos: str = ""
    """That belongs to it, and may allow more nodes and time than it says."""

    def problem(self, job: LrmJob, qos: str = "", groups: frozenset[str] | None = None) -> str:
        """Return why a job cannot start in the partition as things are; empty when it can.

        ``qos``: that of the job, empty when it is not known; ``groups`` of its user, None when they are not known.
        """
        if self.state in STARTS_NOTHING:
            return f"partition {self.name} is {self.state}"
        found = self._closed_to(job, qos, groups) or ("" if self.qos else self._exceeded_by(job))
        return f"partition {self.name} {found}" if found else ""

    def _closed_to(self, job: LrmJob, qos: str, groups: frozenset[str] | None) -> str:
        account = (self.accounts and job.account not in self.accounts) or job.account in self.denied
        other_qos = qos and ((self.allowed_qos and qos not in self.allowed_qos) or qos in self.denied_qos)
        problems = (
            (account, f"does not serve account {job.account}"),
            (other_qos, f"does not serve QOS {qos}"),
            (self.groups and groups is not None and not self.groups & groups, f"serves no group of {job.user}"),
        )
        return next((text for so, text in problems if so), "")

    def _exceeded_by(self, job: LrmJob) -> str:
        least, most = job.node_bounds
        problems = (
            (self.nodes_most is not None and least > self.nodes_most, f"gives at most {self.nodes_most} nodes"),
            (most is not None and most < self.nodes_least, f"gives at least {self.nodes_least} nodes"),
            (
                None not in {self.walltime, job.walltime} and (job.walltime or 0) > (self.walltime or 0),
                f"lets jobs run for {(self.walltime or 0) // 60} minutes at most",
            ),
        )
        return next((text for so, text in problems if so), "")

    def bounding(self, job: LrmJob) -> LrmJob:
        """Return the job with its bounds of nodes narrowed to those of the partition."""
        least, most = job.node_bounds
        if self.qos or job.nodes_wanted is not None:
            return job
        bounds = [number for number in (most, self.nodes_most) if number is not None]
        return replace(job, nodes_least=max(least, self.nodes_least), nodes_most=min(bounds, default=None))


def parse_partition_limits(output: str) -> dict[str, PartitionLimits]:
    """Return the limits of ``scontrol -o show partition``, by the names of the partitions."""
    return {values["PartitionName"]: _limits(values) for values in records(output) if "PartitionName" in values}


def _limits(values: Mapping[str, str]) -> PartitionLimits:
    least, most = values.get("MinNodes", ""), values.get("MaxNodes", "")
    return PartitionLimits(
        name=values["PartitionName"],
        state=values.get("State", "UP"),
        walltime=duration(values.get("MaxTime", "")),
        nodes_least=int(least) if least.isdecimal() else 1,
        nodes_most=int(most) if most.isdecimal() else None,
        accounts=_names(values.get("AllowAccounts", "")),
        denied=_names(values.get("DenyAccounts", "")),
        groups=_names(values.get("AllowGroups", "")),
        allowed_qos=_names(values.get("AllowQos", "")),
        denied_qos=_names(values.get("DenyQos", "")),
        qos="" if values.get("QoS", "") in _NO_LIST else values["QoS"],
    )


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in _NO_LIST else frozenset(text.split(","))


def within_limits(
    job: LrmJob, limits: Mapping[str, PartitionLimits], *, qos: str = "", groups: frozenset[str] | None = None
) -> LrmJob:
    """Return a waiting job with obstacles and bounds by its partitions; one suitable partition is enough."""
    known = [limits.get(name) for name in job.queue.split(",")]
    problems = ["" if one is None else one.problem(job, qos, groups) for one in known]
    if all(problems):
        return replace(job, obstacle=job.obstacle or problems[0])
    only = known[0] if len(known) == 1 else None
    return job if only is None else only.bounding(job)


# -- Dependencies --------------------------------------------------------------------------------------------
# Whether a job's dependencies are fulfilled, worked out from its parents (sbatch(1), --dependency).
#
# Slurm looks at the dependencies of a job in hold seldom or never, and shows them as unfulfilled. A parent that has
# left Slurm's memory counts as Slurm counts it: the dependency is lifted.

_PART = re.compile(r"(?P<kind>[a-z]+)(?::(?P<job>[0-9]+)(?P<element>_(?:[0-9]+|\*))?(?:\+(?P<minutes>[0-9]+))?)?")
_NOTE = re.compile(r"\([a-z]*\)")
_WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.UNKNOWN})

_ENDS = frozenset({"afterok", "aftercorr", "afternotok", "afterany"})

NOT_YET = "it waits for other jobs"


def unfulfilled(job: LrmJob, text: str, jobs: Mapping[str, Sequence[LrmJob]], *, now: float) -> str:
    """Return why a job's dependencies keep it from starting, now or for ever; empty when they do not.

    ``text``: as squeue writes them; ``jobs``: all that are listed, by the number of the job or array; ``now``: the time
    of day.
    """
    any_will_do = "?" in text
    problems = [_problem(job, part, jobs, now) for part in _NOTE.sub("", text).replace("?", ",").split(",") if part]
    if any_will_do and "" in problems:
        return ""
    return next((problem for problem in problems if problem), "")


def by_number(jobs: Iterable[LrmJob]) -> dict[str, list[LrmJob]]:
    """Group jobs by their numbers, so that elements of an array are together."""
    found: dict[str, list[LrmJob]] = {}
    for job in jobs:
        found.setdefault(job_number(job.id), []).append(job)
    return found


def _problem(job: LrmJob, part: str, jobs: Mapping[str, Sequence[LrmJob]], now: float) -> str:
    match = _PART.fullmatch(part.strip())
    if match is not None and match["kind"] == "singleton":
        return _same_name(job, jobs)
    if match is None or not match["job"]:
        return f"{NOT_YET} ({part})"
    parents = jobs.get(match["job"], ())
    element = (match["element"] or "").lstrip("_")
    if match["kind"] == "aftercorr" and job.array_index is not None:
        element = str(job.array_index)
    if element.isdecimal():
        parents = [parent for parent in parents if parent.array_index == int(element)]
    if match["kind"] == "after":
        delay = 60 * int(match["minutes"] or 0)
        begun = all(parent.state not in _WAITING for parent in parents)
        late = all((parent.started_at or parent.ends_at or now) + delay <= now for parent in parents)
        return "" if begun and late else f"{NOT_YET} ({part})"
    return _of_ended(match["kind"], part, parents)


def _of_ended(kind: str, part: str, parents: Sequence[LrmJob]) -> str:
    """Return why a dependency on ended jobs is not met."""
    if kind not in _ENDS or any(parent.state is not LrmJobState.ENDED for parent in parents):
        return f"{NOT_YET} ({part})"
    well = [parent.end is EndReason.EXITED and parent.exit_code == 0 for parent in parents]
    if kind in {"afterok", "aftercorr"} and not all(well):
        return f"it waits for the success of a job that has failed ({part})"
    if kind == "afternotok" and parents and all(well):
        return f"it waits for the failure of a job that has ended well ({part})"
    return ""


def _same_name(job: LrmJob, jobs: Mapping[str, Sequence[LrmJob]]) -> str:
    number = int(job_number(job.id))
    for known, others in jobs.items():
        for other in others:
            alike = (other.name, other.user) == (job.name, job.user) and other.state is not LrmJobState.ENDED
            if alike and int(known) < number:
                return f"{NOT_YET} (singleton: {other.id} has the same name)"
    return ""


# -- Shares of generic resources -----------------------------------------------------------------------------
# Which nodes' generic resources each of several waiting jobs may count on, so that none finds them gone.
#
# A peer that is told where a job may run knows nothing of generic resources: two jobs with the same list would both be
# sent to one node. So what is free is dealt out, in the order of the jobs' numbers, those that were released first.


@dataclass(frozen=True, slots=True, kw_only=True)
class GresOnNodes:
    """Free generic resources (such as GPUs) of each node."""

    free: Mapping[str, FreeGres]
    """Generic resources, by node."""
    idle: Mapping[str, int]
    """Processors."""
    kept: frozenset[str] = frozenset()
    """Resources of which jobs take none away."""


def parse_gres_on_nodes(output: str) -> GresOnNodes:
    """Parse the output of GRES_COMMAND."""
    states = {node: state.split("/") for node, _, _, state in gres_rows(output)}
    idle = {node: int(numbers[1]) for node, numbers in states.items() if len(numbers) > 1 and numbers[1].isdecimal()}
    return GresOnNodes(free=parse_gres(output), idle=idle, kept=not_consumed(output))


def first_served(job: LrmJob) -> tuple[bool, bool, tuple[int, int]]:
    """Sort key of waiting jobs that compete: released ones first, then by number; user holds last.

    A job in its user's hold is scheduled only where holds cannot be told apart, and takes nothing from others.
    """
    return job.state is LrmJobState.HELD, job.hold is HoldOwner.USER, turn(job)


def gres_shares(
    jobs: Sequence[LrmJob], asked: Mapping[LrmJobId, Restrictions], on_nodes: GresOnNodes
) -> dict[LrmJobId, tuple[str, ...]]:
    """Return nodes on which waiting jobs with generic resources may run; none when earlier jobs need them."""
    free = dict(on_nodes.free)
    idle = dict(on_nodes.idle)
    wanting = sorted((job for job in jobs if asked[job.id].gres), key=first_served)
    shares: dict[LrmJobId, tuple[str, ...]] = {}
    for place, job in enumerate(wanting, start=1):
        able = nodes_with_gres(asked[job.id], free)
        contended = place < len(wanting)
        share = _share(job, able, idle) if contended else able
        shares[job.id] = share
        for node in share:
            idle[node] = idle.get(node, 0) - _each(job)
            for name, number in asked[job.id].gres:
                for shown in {name, name.partition(":")[0]} - on_nodes.kept:
                    free[node] = free[node].without(shown, number)
    return shares


def _share(job: LrmJob, able: Sequence[str], idle: Mapping[str, int]) -> tuple[str, ...]:
    """Choose the nodes kept for a job: those it names, or as many as it needs, idle ones first."""
    if job.requested_nodes:
        return tuple(node for node in able if node in job.requested_nodes)
    if job.features or job.any_feature or job.excluded_nodes or "," in job.queue:
        # Which of them it may have is not known here.
        return tuple(able)
    ordered = sorted(able, key=lambda node: (idle.get(node, 0) < _each(job), node))
    return tuple(sorted(ordered[: job.node_bounds[0]]))


def _each(job: LrmJob) -> int:
    """Return a job's processors on each node when they are the minimum."""
    return -(-job.processors // job.node_bounds[0])
