# SPDX-License-Identifier: Apache-2.0
"""What keeps a Slurm job from starting: partitions, dependencies, generic resources, accounting.

Slurm says so of a job in hold only once it is released, so it is worked out here. No part of this does I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, LrmJobState
from koala_slurm.requests import gres_rows, gres_taken, nodes_with_gres, not_consumed, parse_gres
from koala_slurm.words import duration, turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import LrmJob, LrmJobId
    from koala_slurm.requests import Restrictions


# -- Limits of partitions ------------------------------------------------------------------------------------
# What partitions let no job exceed.

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
    """Return why a job may not start yet, or never, by its dependencies; empty when it may.

    ``text``: as squeue writes them; ``jobs``: all that are listed, by the number of the job or array; ``now``: the time
    of day.
    """
    any_will_do = "?" in text
    problems = [_problem(job, part, jobs, now) for part in _NOTE.sub("", text).replace("?", ",").split(",") if part]
    if any_will_do and "" in problems:
        return ""
    return next((problem for problem in problems if problem), "")


def by_number(jobs: Iterable[LrmJob]) -> dict[str, list[LrmJob]]:
    """Return jobs by their numbers, the elements of an array together."""
    found: dict[str, list[LrmJob]] = {}
    for job in jobs:
        found.setdefault(job.id.partition("_")[0].partition("+")[0], []).append(job)
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
    """Return the problem of a dependency on how jobs have ended."""
    if kind not in _ENDS or any(parent.state is not LrmJobState.ENDED for parent in parents):
        return f"{NOT_YET} ({part})"
    well = [parent.end is EndReason.EXITED and parent.exit_code == 0 for parent in parents]
    if kind in {"afterok", "aftercorr"} and not all(well):
        return f"it waits for the success of a job that has failed ({part})"
    if kind == "afternotok" and parents and all(well):
        return f"it waits for the failure of a job that has ended well ({part})"
    return ""


def _same_name(job: LrmJob, jobs: Mapping[str, Sequence[LrmJob]]) -> str:
    number = int(job.id.partition("_")[0].partition("+")[0])
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
    """What nodes have free."""

    free: Mapping[str, Mapping[str, int]]
    """Of each resource, by name, and by name and type; by node."""
    idle: Mapping[str, int]
    """Processors."""
    kept: frozenset[str] = frozenset()
    """Resources of which jobs take none away."""


def parse_gres_on_nodes(output: str) -> GresOnNodes:
    """Return what GRES_COMMAND shows."""
    states = {node: state.split("/") for node, _, _, state in gres_rows(output)}
    idle = {node: int(numbers[1]) for node, numbers in states.items() if len(numbers) > 1 and numbers[1].isdecimal()}
    return GresOnNodes(free=parse_gres(output), idle=idle, kept=not_consumed(output))


def first_served(job: LrmJob) -> tuple[bool, bool, tuple[int, int]]:
    """Return what orders waiting jobs that share something: released ones, then by number, users' holds last.

    A job in its user's hold is scheduled only where holds cannot be told apart, and takes nothing from others.
    """
    return job.state is LrmJobState.HELD, job.hold is HoldOwner.USER, turn(job)


def gres_shares(
    jobs: Sequence[LrmJob], asked: Mapping[LrmJobId, Restrictions], on_nodes: GresOnNodes
) -> dict[LrmJobId, tuple[str, ...]]:
    """Return the nodes on which each of these waiting jobs may run; none when others have what it asks for."""
    free = {node: dict(counts) for node, counts in on_nodes.free.items()}
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
                taken = gres_taken(free[node], name, number)
                for shown in {name, name.partition(":")[0]} - on_nodes.kept:
                    free[node][shown] = free[node].get(shown, 0) - taken
    return shares


def _share(job: LrmJob, able: Sequence[str], idle: Mapping[str, int]) -> tuple[str, ...]:
    """Return the nodes that are kept for a job: those that it names, or as many as it needs, idle ones first."""
    if job.requested_nodes:
        return tuple(node for node in able if node in job.requested_nodes)
    if job.features or job.any_feature or job.excluded_nodes or "," in job.queue:
        # Which of them it may have is not known here.
        return tuple(able)
    ordered = sorted(able, key=lambda node: (idle.get(node, 0) < _each(job), node))
    return tuple(sorted(ordered[: job.node_bounds[0]]))


def _each(job: LrmJob) -> int:
    """Return the processors that a job has on each of its nodes, if they are the fewest."""
    return -(-job.processors // job.node_bounds[0])


# -- Limits of associations and QOS --------------------------------------------------------------------------
# What they let jobs have, and how much of it is left: `scontrol show assoc_mgr`.
#
# A limit of a QOS takes the place of the same limit of an association, that of a partition's QOS of the job's (Slurm's
# "Resource Limits"). Limits of groups hold for an account and all accounts above it. Only processors and numbers of
# jobs are counted: how many nodes, how much memory or how many generic resources a job adds is not known before it
# runs.

ACCOUNTING_COMMAND = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos")

_SLASHED_PAIR = re.compile(r"(?<!\S)(?:\w+/)*(\w+)=(\S*)")
_COUNT = re.compile(r"(?P<limit>N|[0-9]+)(?:\((?P<used>[0-9]+)(?:\.[0-9]+)?\))?", re.ASCII)
_NAMED = re.compile(r"(?P<name>[^\s()]+)\((?P<number>[0-9]+)\)", re.ASCII)
_OF_ONE = re.compile(r"(?P<name>[^\s={}]+)=\{(?P<values>[^{}]*)\}")
_SECONDS = 60
"""In a minute, in which Slurm counts here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit that is set, and how much of it running jobs have."""

    text: str
    """As Slurm writes it: ``GrpTRES=cpu=8``."""
    most: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An association, a QOS, or a user or an account within a QOS."""

    name: str
    """In words: ``QOS short``."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """By name, such as ``GrpJobs``, or ``GrpTRES:cpu`` for a limit of processors."""
    parent: str = ""
    """Of an association: the number of the account above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """One quality of service."""

    whole: Holder
    users: Mapping[str, Holder] = field(default_factory=dict)
    """By user id: of those who have jobs."""
    accounts: Mapping[str, Holder] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How much of a limit a job takes while it runs."""

    holder: str
    limit: Limit
    amount: int

    @property
    def key(self) -> str:
        """Tells this limit from all others."""
        return f"{self.holder}: {self.limit.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingLimits:
    """All that is known of one cluster."""

    associations: Mapping[tuple[str, str, str], Holder] = field(default_factory=dict)
    """By account, user and partition; those of accounts have no user, most no partition."""
    accounts: Mapping[str, Holder] = field(default_factory=dict)
    """Those of accounts, by their numbers."""
    qos: Mapping[str, Qos] = field(default_factory=dict)
    uids: Mapping[str, str] = field(default_factory=dict)

    def chain(self, job: LrmJob) -> tuple[Holder, ...]:
        """Return the association of a job, and those of the accounts above it; empty when it has none."""
        own = self.associations.get((job.account, job.user, job.queue)) or self.associations.get(
            (job.account, job.user, "")
        )
        if own is None:
            return ()
        above: list[Holder] = []
        account = self.associations.get((job.account, "", ""))
        while account is not None and account not in above:
            above.append(account)
            account = self.accounts.get(account.parent)
        return (own, *above)

    def problem(self, job: LrmJob, names: Sequence[str]) -> str:
        """Return which limit a job alone exceeds; empty when none. ``names`` of its QOS, that which counts first."""
        holders = self._of_job(job, names)
        least, most = job.node_bounds
        minutes = None if job.walltime is None else job.walltime // _SECONDS
        for name, amount in (("MaxWallPJ", minutes), ("MaxTRESPJ:cpu", job.processors), ("MaxTRESPJ:node", least)):
            holder = next((one for one in holders if name in one.limits), None)
            if holder is not None and amount is not None and amount > holder.limits[name].most:
                return f"{holder.name} has {holder.limits[name].text}, and it asks for {amount}"
        for name, amount in (("MinTRESPJ:cpu", job.processors), ("MinTRESPJ:node", most)):
            holder = next((one for one in holders if name in one.limits), None)
            if holder is not None and amount is not None and amount < holder.limits[name].most:
                return f"{holder.name} has {holder.limits[name].text}, and it asks for {amount}"
        return ""

    def bounding(self, job: LrmJob, names: Sequence[str]) -> LrmJob:
        """Return a job that asks for no more nodes than it may have."""
        holder = next((one for one in self._of_job(job, names) if "MaxTRESPJ:node" in one.limits), None)
        least, most = job.node_bounds
        if holder is None or job.nodes_wanted is not None:
            return job
        bound = holder.limits["MaxTRESPJ:node"].most
        return replace(job, nodes_least=least, nodes_most=bound if most is None else min(most, bound))

    def _of_job(self, job: LrmJob, names: Sequence[str]) -> list[Holder]:
        """Return whose limits hold for a job alone, what counts first in front."""
        return [*(self.qos[name].whole for name in names if name in self.qos), *self.chain(job)[:1]]

    def demands(self, job: LrmJob, names: Sequence[str]) -> Iterator[Demand]:
        """Return what a job takes of the limits that it shares with others."""
        known = [self.qos[name] for name in names if name in self.qos]
        chain = self.chain(job)
        run = job.processors * (job.walltime or 0) // _SECONDS
        amounts = {"GrpJobs": 1, "GrpTRES:cpu": job.processors, "GrpTRESRunMins:cpu": run, "GrpTRESMins:cpu": 1}
        for name, amount in amounts.items():
            yield from _first([[one.whole for one in known], chain], name, amount)
        uid = self.uids.get(job.user, "")
        users = [one.users[uid] for one in known if uid in one.users]
        accounts = [one.accounts[job.account] for one in known if job.account in one.accounts]
        yield from _first([users], "MaxTRESPU:cpu", job.processors)
        yield from _first([accounts], "MaxTRESPA:cpu", job.processors)
        jobs = [*_first([users], "MaxJobsPU", 1), *_first([accounts], "MaxJobsPA", 1)]
        yield from jobs or _first([chain[:1]], "MaxJobs", 1)


def _first(groups: Iterable[Sequence[Holder]], name: str, amount: int) -> Iterator[Demand]:
    """Return the demand on the first QOS that has such a limit, or else on each association of the chain that has."""
    for at, holders in enumerate(groups):
        having = [holder for holder in holders if name in holder.limits]
        for holder in having if at else having[:1]:
            yield Demand(holder=holder.name, limit=holder.limits[name], amount=amount)
        if having:
            return


def over_limits(
    jobs: Sequence[LrmJob], qos: Mapping[LrmJobId, Sequence[str]], limits: AccountingLimits
) -> dict[LrmJobId, str]:
    """Return which waiting jobs a limit keeps from starting now, and which one.

    ``jobs`` in the order in which they are to have what is left; those that were released have taken it already.
    """
    taken: dict[str, int] = {}
    found: dict[LrmJobId, str] = {}
    for job in jobs:
        names = qos.get(job.id, ())
        demands = list(limits.demands(job, names))
        problem = limits.problem(job, names) or next(filter(None, (_lack(one, taken) for one in demands)), "")
        if problem and job.state is LrmJobState.HELD:
            found[job.id] = problem
            continue
        for one in demands:
            taken[one.key] = taken.get(one.key, 0) + one.amount
    return found


def _lack(demand: Demand, taken: Mapping[str, int]) -> str:
    left = max(0, demand.limit.most - demand.limit.used - taken.get(demand.key, 0))
    if demand.amount <= left:
        return ""
    return f"{demand.holder} has {left} left of {demand.limit.text}, and it asks for {demand.amount}"


# ---- reading --------------------------------------------------------------------------------------------------------


def parse_accounting_limits(output: str) -> AccountingLimits:
    """Return what ACCOUNTING_COMMAND printed."""
    associations: dict[tuple[str, str, str], Holder] = {}
    accounts: dict[str, Holder] = {}
    qos: dict[str, Qos] = {}
    uids: dict[str, str] = {}
    for line in output.splitlines():
        if line.startswith("QOS="):
            name, one = _qos(line, {uid: user for user, uid in uids.items()})
            qos[name] = one
        elif line.startswith("ClusterName="):
            values = dict(_SLASHED_PAIR.findall(line))
            user, uid = _named(values.get("UserName", ""))
            account = values.get("Account", "")
            holder = Holder(
                name=f"user {user} in account {account}" if user else f"account {account}",
                limits=_set_limits(values),
                parent=_named(values.get("ParentAccount", ""))[1],
            )
            associations[account, user, values.get("Partition", "")] = holder
            if user:
                uids[user] = uid
            else:
                accounts[values.get("ID", "")] = holder
    return AccountingLimits(associations=associations, accounts=accounts, qos=qos, uids=uids)


def _qos(line: str, users: Mapping[str, str]) -> tuple[str, Qos]:
    """Return one QOS and its name. ``users``: names by numbers."""
    whole, _, rest = line.partition(" Account Limits=")
    of_accounts, _, of_users = rest.partition(" User Limits=")
    values = dict(_SLASHED_PAIR.findall(whole))
    name = _named(values["QOS"])[0]
    called = f"QOS {name}"
    return name, Qos(
        whole=Holder(name=called, limits=_set_limits(values)),
        accounts=_of_each(f"{called} of account", of_accounts, {}),
        users=_of_each(f"{called} of user", of_users, users),
    )


def _of_each(called: str, text: str, names: Mapping[str, str]) -> dict[str, Holder]:
    found = {match["name"]: dict(_SLASHED_PAIR.findall(match["values"])) for match in _OF_ONE.finditer(text)}
    return {
        one: Holder(name=f"{called} {names.get(one, one)}", limits=_set_limits(values)) for one, values in found.items()
    }


def _named(text: str) -> tuple[str, str]:
    """Return name and number of ``phys(3)``."""
    match = _NAMED.fullmatch(text)
    return (match["name"], match["number"]) if match else (text, "")


def _set_limits(values: Mapping[str, str]) -> dict[str, Limit]:
    """Return the limits that are set: of numbers, and of each resource."""
    found: dict[str, Limit] = {}
    for name, text in values.items():
        if not name.startswith(("Grp", "Max", "Min")):
            continue
        for part in text.split(","):
            resource, _, number = part.rpartition("=")
            match = _COUNT.fullmatch(number)
            if match and match["limit"] != "N":
                shown = f"{name}={resource}={match['limit']}" if resource else f"{name}={match['limit']}"
                limit = Limit(text=shown, most=int(match["limit"]), used=int(match["used"] or 0))
                found[f"{name}:{resource}" if resource else name] = limit
    return found
