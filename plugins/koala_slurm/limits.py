# SPDX-License-Identifier: Apache-2.0
"""What associations and QOS let jobs have, and how much of it is left: `scontrol show assoc_mgr`. Pure.

A limit of a QOS takes the place of the same limit of an association, that of a partition's QOS of the job's (Slurm's
"Resource Limits"). Limits of groups hold for an account and all accounts above it. Only processors and numbers of jobs
are counted: how many nodes, how much memory or how many generic resources a job adds is not known before it runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import LrmJob, LrmJobId

ACCOUNTING_COMMAND = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos")

_PAIR = re.compile(r"(?<!\S)(?:\w+/)*(\w+)=(\S*)")
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


# -- reading ---------------------------------------------------------------------------------------------------------


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
            values = dict(_PAIR.findall(line))
            user, uid = _named(values.get("UserName", ""))
            account = values.get("Account", "")
            holder = Holder(
                name=f"user {user} in account {account}" if user else f"account {account}",
                limits=_limits(values),
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
    values = dict(_PAIR.findall(whole))
    name = _named(values["QOS"])[0]
    called = f"QOS {name}"
    return name, Qos(
        whole=Holder(name=called, limits=_limits(values)),
        accounts=_of_each(f"{called} of account", of_accounts, {}),
        users=_of_each(f"{called} of user", of_users, users),
    )


def _of_each(called: str, text: str, names: Mapping[str, str]) -> dict[str, Holder]:
    found = {match["name"]: dict(_PAIR.findall(match["values"])) for match in _OF_ONE.finditer(text)}
    return {
        one: Holder(name=f"{called} {names.get(one, one)}", limits=_limits(values)) for one, values in found.items()
    }


def _named(text: str) -> tuple[str, str]:
    """Return name and number of ``phys(3)``."""
    match = _NAMED.fullmatch(text)
    return (match["name"], match["number"]) if match else (text, "")


def _limits(values: Mapping[str, str]) -> dict[str, Limit]:
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
