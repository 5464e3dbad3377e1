# SPDX-License-Identifier: Apache-2.0
"""What partitions let no job exceed: what Slurm says of a job in hold only once it is released. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_slurm.durations import duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import LrmJob

STARTS_NOTHING = frozenset({"DOWN", "INACTIVE"})
"""States in which jobs may wait, but none starts."""

_PAIR = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_NO_LIST = frozenset({"", "ALL", "N/A", "(null)", "NONE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """Of one partition."""

    name: str
    state: str = "UP"
    walltime: int | None = None
    nodes_least: int = 1
    nodes_most: int | None = None
    accounts: frozenset[str] = frozenset()
    """The only ones that may use it; empty: all but those denied."""
    denied: frozenset[str] = frozenset()
    overridden: bool = False
    """A QOS belongs to it, which may allow more than it says."""

    def problem(self, job: LrmJob) -> str:
        """Return why a job cannot start here as things are; empty when it can."""
        least, most = job.node_bounds
        if self.state in STARTS_NOTHING:
            return f"partition {self.name} is {self.state}"
        problems = (
            (self.accounts and job.account not in self.accounts, f"does not serve account {job.account}"),
            (job.account in self.denied, f"does not serve account {job.account}"),
            (self.nodes_most is not None and least > self.nodes_most, f"gives at most {self.nodes_most} nodes"),
            (most is not None and most < self.nodes_least, f"gives at least {self.nodes_least} nodes"),
            (
                None not in {self.walltime, job.walltime} and (job.walltime or 0) > (self.walltime or 0),
                f"lets jobs run for {(self.walltime or 0) // 60} minutes at most",
            ),
        )
        found = next((text for so, text in problems if so), "")
        return f"partition {self.name} {found}" if found and not self.overridden else ""

    def bounding(self, job: LrmJob) -> LrmJob:
        """Return a job that asks for no more or fewer nodes than it can have here."""
        least, most = job.node_bounds
        if self.overridden or job.nodes_wanted is not None:
            return job
        bounds = [number for number in (most, self.nodes_most) if number is not None]
        return replace(job, nodes_least=max(least, self.nodes_least), nodes_most=min(bounds, default=None))


def parse_partition_limits(output: str) -> dict[str, PartitionLimits]:
    """Return the limits of ``scontrol -o show partition``, by the names of the partitions."""
    lines = (dict(_PAIR.findall(line)) for line in output.splitlines())
    return {values["PartitionName"]: _limits(values) for values in lines if "PartitionName" in values}


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
        overridden=values.get("QoS", "N/A") not in _NO_LIST,
    )


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in _NO_LIST else frozenset(text.split(","))


def within_limits(job: LrmJob, limits: Mapping[str, PartitionLimits]) -> LrmJob:
    """Return a waiting job with what its partitions keep it from, or bound: one that lets it start is enough."""
    known = [limits.get(name) for name in job.queue.split(",")]
    problems = ["" if one is None else one.problem(job) for one in known]
    if all(problems):
        return replace(job, obstacle=job.obstacle or problems[0])
    only = known[0] if len(known) == 1 else None
    return job if only is None else only.bounding(job)
