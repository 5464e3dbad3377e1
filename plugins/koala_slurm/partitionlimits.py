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
    groups: frozenset[str] = frozenset()
    """Of users, the only ones that may use it; empty: all."""
    allowed_qos: frozenset[str] = frozenset()
    denied_qos: frozenset[str] = frozenset()
    qos: str = ""
    """That belongs to it, and may allow more nodes and time than it says."""

    def problem(self, job: LrmJob, qos: str = "", groups: frozenset[str] | None = None) -> str:
        """Return why a job cannot start here as things are; empty when it can.

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
        """Return a job that asks for no more or fewer nodes than it can have here."""
        least, most = job.node_bounds
        if self.qos or job.nodes_wanted is not None:
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
    """Return a waiting job with what its partitions keep it from, or bound: one that lets it start is enough."""
    known = [limits.get(name) for name in job.queue.split(",")]
    problems = ["" if one is None else one.problem(job, qos, groups) for one in known]
    if all(problems):
        return replace(job, obstacle=job.obstacle or problems[0])
    only = known[0] if len(known) == 1 else None
    return job if only is None else only.bounding(job)
