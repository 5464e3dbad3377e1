# SPDX-License-Identifier: Apache-2.0
"""What Slurm's jobs ask for, in full: restrictions, and listing for an outside scheduler.

Command lines and what they print; nothing is run here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.model import ACTIVE, WAITING, HoldOwner, LrmJob, LrmJobState
from koala_adapter.wire.hostlists import expand
from koala_slurm.listing import ENVIRONMENT, FORMAT_VARIABLE, JOB_FIELDS, NOT_CONSUMED, parse_row
from koala_slurm.words import duration, hold_owner, moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# -- Restrictions --------------------------------------------------------------------------------------------
# What of a job's request, as scontrol shows it, restricts where or when it may run beyond numbers and names.
#
# What an outside scheduler cannot respect, because nothing tells it enough, is an obstacle: Slurm would refuse the
# start, and others would wait for that.

NAMES = (
    "Features",
    "OverSubscribe",
    "Exclusive",
    "Contiguous",
    "Licenses",
    "TresPerNode",
    "TresPerJob",
    "TresPerTask",
    "TresPerSocket",
    "CpusPerTres",
    "MemPerTres",
    "ArrayTaskThrottle",
    "HetJobId",
    "CoreSpec",
    "ThreadSpec",
    "Reservation",
    "ReqB:S:C:T",
    "NtasksPerN:B:S:C",
    "ReqSwitch",
    "Switches",
    "MinTmpDiskNode",
    "QOS",
)
"""What is read here of ``scontrol show job``."""

LICENSES_COMMAND = ("scontrol", "--oneliner", "show", "licenses")
GRES_COMMAND = (
    "sinfo",
    "--local",
    "--noheader",
    "--Node",
    "--Format=NodeList:\x1f,Gres:\x1f,GresUsed:\x1f,CPUsState:\x1f",
)

_WORD = r"[A-Za-z0-9_.-]+"
_EVERY = re.compile(rf"{_WORD}(?:&{_WORD})*")
_SOME = re.compile(rf"{_WORD}(?:\|{_WORD})+")
_LICENSE = re.compile(r"LicenseName=(?P<name>\S+)\s+Total=[0-9]+\s+Used=[0-9]+\s+Free=(?P<free>[0-9]+)")
_AMOUNT = re.compile(r"(?P<number>[0-9]+)(?P<unit>[kKmMgGtTpP]?)", re.ASCII)
_PROCESSORS_OF_TASK = re.compile(r"(?:^|,)cpu[:=][0-9]+(?=,|$)")
_GRES_PREFIX = re.compile(r"\bgres[:/]")
_SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>[KMGT]?)", re.ASCII)
_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_UNITS_OF_COUNTS = ("", "K", "M", "G", "T", "P")
_NO_RESTRICTION = frozenset({"", "(null)", "*", "N/A", "0", "None"})
OURS = "koala_start_"
HETEROGENEOUS = "the components of a heterogeneous job start together, which cannot be asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """A job's requests beside processors, memory and named nodes."""

    exclusive: bool = False
    gres: tuple[tuple[str, int], ...] = ()
    """On each node: name, with its type if one is asked for, and number."""
    gpus: int = 0
    """On each node, or at least one where they are counted otherwise."""
    processors_by_gres: int = 0
    """On each node, by its generic resources there (sbatch --cpus-per-gpu)."""
    memory_by_gres_mib: int = 0
    """Likewise (sbatch --mem-per-gpu)."""
    licenses: tuple[tuple[str, int], ...] = ()
    disk_mib: int | None = None
    threads_per_core: int | None = None
    tasks_per_core: int | None = None
    throttle: int = 0
    """Elements of its array that may run at the same time; 0: any number."""
    qos: str = ""
    obstacle: str = ""


def parse_features(text: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return features that all nodes need, those of which each needs one, and expressions that are not supported."""
    if not text:
        return (), (), ""
    if _EVERY.fullmatch(text):
        return tuple(text.split("&")), (), ""
    if _SOME.fullmatch(text):
        return (), tuple(text.split("|")), ""
    return (), (), f"its features {text} are more than a list of which a node must have all, or one"


def restrictions(values: Mapping[str, str]) -> Restrictions:
    """Return what the values of a job say."""
    given = {name: values.get(name, "") for name in NAMES}
    # The processors of a task are told by squeue, too (sbatch --cpus-per-task).
    given["TresPerTask"] = _PROCESSORS_OF_TASK.sub("", given["TresPerTask"]).strip(",")
    asked = {name: value for name, value in given.items() if value not in _NO_RESTRICTION}
    gres = _numbers(_GRES_PREFIX.sub("", asked.get("TresPerNode", "")))
    throttle = asked.get("ArrayTaskThrottle", "")
    return Restrictions(
        exclusive=_exclusive(asked),
        gres=gres,
        gpus=_gpus_of_node(gres, asked),
        processors_by_gres=_by_gres(gres, _of_each(asked.get("CpusPerTres", ""))),
        memory_by_gres_mib=_by_gres(gres, _of_each(asked.get("MemPerTres", ""))),
        licenses=_numbers(asked.get("Licenses", "")),
        disk_mib=_mebibytes(asked.get("MinTmpDiskNode", "")),
        threads_per_core=_last_number(asked.get("ReqB:S:C:T", "")),
        tasks_per_core=_last_number(asked.get("NtasksPerN:B:S:C", "")),
        throttle=int(throttle) if throttle.isdecimal() else 0,
        qos=asked.get("QOS", ""),
        obstacle=_obstacle(asked),
    )


def _gpus_of_node(gres: Iterable[tuple[str, int]], asked: Mapping[str, str]) -> int:
    """Return how many GPUs a job needs on a node, at least. ``gres``: what it asks for on each."""
    otherwise = (asked.get(name, "") for name in ("TresPerJob", "TresPerSocket", "TresPerTask"))
    counted = sum(number for name, number in gres if name.partition(":")[0] == "gpu")
    return counted or int(any(name.partition(":")[0] == "gpu" for text in otherwise for name in _of_each(text)))


def _exclusive(asked: Mapping[str, str]) -> bool:
    """Tell whether a job has its nodes for itself: see EXCLUSIVE_APART of the table of releases."""
    if apart := asked.get("Exclusive"):
        return apart != "NO"
    return asked.get("OverSubscribe", "OK").split("(")[0] in {"NO", "USER", "MCS"}


def _obstacle(asked: Mapping[str, str]) -> str:
    reservation = asked.get("Reservation", "")
    # The last of each is by core, and respected; the first of the tasks is by node, and told by squeue.
    tasks = asked.get("NtasksPerN:B:S:C", "").split(":")[1:-1]
    layout = asked.get("ReqB:S:C:T", "").split(":")[:-1]
    trackable = [name for name in ("TresPerJob", "TresPerSocket", "TresPerTask") if name in asked]
    problems = (
        ("HetJobId" in asked, HETEROGENEOUS),
        (bool(trackable), f"it asks for {' and '.join(asked[name] for name in trackable)}, not by node"),
        (reservation and not reservation.startswith(OURS), f"it runs in reservation {reservation} only"),
        (asked.get("Contiguous") == "1", "it wants nodes that are next to each other (--contiguous)"),
        ("ReqSwitch" in asked or "Switches" in asked, "it wants nodes on few switches (--switches)"),
        ("CoreSpec" in asked or "ThreadSpec" in asked, "it leaves cores to the system (--core-spec, --thread-spec)"),
        (
            any(part not in _NO_RESTRICTION for part in (*tasks, *layout)),
            "it asks for sockets, or cores of sockets, of its nodes",
        ),
        ("|" in asked.get("Licenses", ""), f"it asks for any of the licences {asked.get('Licenses', '')}"),
    )
    return next((text for so, text in problems if so), "")


def _last_number(text: str) -> int | None:
    """Return the number behind the last colon of ``0:0:*:1``; None for any."""
    last = text.rpartition(":")[2]
    return int(last) if last.isdecimal() and int(last) else None


def _numbers(text: str) -> tuple[tuple[str, int], ...]:
    """Return ``gpu:a100:2,tmp:no_consume:4G`` as names with numbers; units are powers of 1024 (gres.conf(5), Count)."""
    found = []
    for part in filter(None, re.split(r"[,;]", text)):
        words = [word for word in re.split(r"[:=]", part.partition("(")[0]) if word != NOT_CONSUMED]
        match = _AMOUNT.fullmatch(words[-1]) if len(words) > 1 else None
        if match is None:
            found.append((":".join(words), 1))
        else:
            found.append(
                (":".join(words[:-1]), int(match["number"]) * 1024 ** _UNITS_OF_COUNTS.index(match["unit"].upper()))
            )
    return tuple(found)


def not_consumed(output: str) -> frozenset[str]:
    """Return generic resources in GRES_COMMAND's output that jobs share without consuming, by name and type."""
    found: set[str] = set()
    for _, has, _, _ in gres_rows(output):
        for part in re.split(r"[,;]", has):
            if NOT_CONSUMED in part.split(":"):
                name = _numbers(part)[0][0]
                found |= {name, name.partition(":")[0]}
    return frozenset(found)


def _of_each(text: str) -> dict[str, int]:
    """Parse ``gres:gpu:4`` or ``gres/gpu:4`` into a value for each resource."""
    return dict(_numbers(_GRES_PREFIX.sub("", text)))


def _by_gres(gres: Iterable[tuple[str, int]], each: Mapping[str, int]) -> int:
    """Return a job's amount on each node of something that is allocated for each generic resource."""
    return sum(number * each.get(name, each.get(name.partition(":")[0], 0)) for name, number in gres)


def _mebibytes(text: str) -> int | None:
    """Return the MiB of ``1.50G`` or ``100``; None of none, and of what is no size."""
    match = _SIZE.fullmatch(text)
    return (round(float(match["number"]) * _UNITS[match["unit"]]) or None) if match else None


def parse_licenses(output: str) -> dict[str, int]:
    """Return how many of each licence are free."""
    return {match["name"]: int(match["free"]) for match in _LICENSE.finditer(output)}


SHARD = "shard"
"""Parts of GPUs: one with a shard in use is not given as a whole, and one that is has no shards (gres.conf(5))."""
_USED_PLACES = re.compile(r"(?P<name>gpu|shard)(?::(?P<type>[^:,(]+))?:(?P<number>[0-9]+)\((?P<places>[^)]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeGres:
    """Free generic resources of one node."""

    counts: Mapping[str, int]
    """By name, and by name and type."""
    shards_of_a_gpu: int = 0
    """All of them, free or not."""
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Free shards of each GPU, by ``shard``, and by that and the type."""

    def has(self, name: str, number: int) -> bool:
        """Return whether an amount is free; shards must be on one GPU, unless none has that many."""
        enough = self.counts.get(name, 0) >= number
        if name.partition(":")[0] != SHARD or not 0 < number <= self.shards_of_a_gpu:
            return enough
        return enough and any(free >= number for free in self.gpus.get(name, ()))

    def without(self, name: str, number: int) -> FreeGres:
        """Return the rest when an amount is taken; shards come from the fullest GPU with room."""
        counts = {**self.counts, name: self.counts.get(name, 0) - number}
        if name not in self.gpus:
            return replace(self, counts=counts)
        free = sorted(self.gpus[name])
        while number > 0 and max(free, default=0) > 0:
            place = next((at for at, one in enumerate(free) if one >= number), -1)
            taken = min(free[place], number)
            number -= taken
            free[place] -= taken
            free.sort()
        return replace(self, counts=counts, gpus={**self.gpus, name: tuple(free)})


def parse_gres(output: str) -> dict[str, FreeGres]:
    """Parse the free generic resources of each node."""
    free: dict[str, FreeGres] = {}
    for node, has, used, _ in gres_rows(output):
        counts: dict[str, int] = {}
        for text, sign in ((has, 1), (used, -1)):
            for name, number in _numbers(_without_places(text)):
                for shown in {name, name.partition(":")[0]}:
                    counts[shown] = counts.get(shown, 0) + sign * number
        free[node] = _sharing(counts, has, used) if SHARD in counts else FreeGres(counts=counts)
    return free


def _sharing(others: Mapping[str, int], has: str, used: str) -> FreeGres:
    """Return the free amounts on a node whose GPUs have shards. ``others``: counts of other resources.

    Slurm 22.05 shows as used shards the number of GPUs that have any in use, so what is left of these is not known.
    """
    there = dict(_numbers(_without_places(has)))
    totals = {name: sum(one for key, one in there.items() if key.partition(":")[0] == name) for name in ("gpu", SHARD)}
    each = totals[SHARD] // totals["gpu"] if totals["gpu"] else 0
    whole: dict[str, int] = {}
    partly: dict[str, list[int]] = {}  # of each GPU with shards in use: how many
    for match in _USED_PLACES.finditer(used):
        type_, number, places = match["type"] or "", int(match["number"]), match["places"]
        if match["name"] == "gpu":
            whole[type_] = number
        elif "/" in places.replace("N/A", ""):
            # ``-/4``, since 26.05: of a GPU that is in use as a whole.
            partly[type_] = [int(one) for one in re.findall(r"([0-9]+)/", places) if int(one)]
        else:
            partly[type_] = [each] * number
    counts = {"gpu": 0, SHARD: 0}
    gpus: dict[str, tuple[int, ...]] = {}
    for key, total in there.items():
        name, _, type_ = key.partition(":")
        if name not in {"gpu", SHARD}:
            continue
        taken = sum(whole.values()) if not type_ else whole.get(type_, 0)
        shared = [one for of, ones in partly.items() if type_ in {"", of} for one in ones]
        if name == "gpu":
            counts[key] = max(0, total - taken - len(shared)) + (counts[key] if not type_ else 0)
        else:
            untouched = max(0, total // each - taken - len(shared)) if each else 0
            free = (*[each] * untouched, *(each - one for one in shared))
            counts[key] = sum(free) + (counts[key] if not type_ else 0)
            for shown in {key, name}:
                gpus[shown] = (*gpus.get(shown, ()), *free)
        if type_:
            counts[name] += counts[key]
    return FreeGres(counts={**others, **counts}, shards_of_a_gpu=each, gpus=gpus)


def gres_rows(output: str) -> list[tuple[str, str, str, str]]:
    """Return node, resources, used ones, and states of processors (``ALLOCATED/IDLE/OTHER/TOTAL``) of each line."""
    values = [value.strip() for value in output.split("\x1f")]
    starts = range(0, len(values) - 4 + 1, 4)
    return [(values[at], values[at + 1], values[at + 2], values[at + 3]) for at in starts]


def _without_places(text: str) -> str:
    return "" if text in _NO_RESTRICTION else re.sub(r"\([^)]*\)", "", text)


def nodes_with_gres(wanted: Restrictions, free: Mapping[str, FreeGres]) -> tuple[str, ...]:
    """Return the nodes that have what a job asks for on each of its nodes free."""
    return tuple(node for node, there in free.items() if all(there.has(name, number) for name, number in wanted.gres))


# -- Listing of everything -----------------------------------------------------------------------------------
# All users' jobs for a scheduler of this cluster from outside. Names, comments and directories can hold any character,
# line breaks too (seen in 22.05), so that a user could forge the row of another's job. Here every field ends with a
# word that is new for each listing, and that no job can contain.
#
# What squeue does not tell (processors on each node, the nodes insisted on, memory by processor or by node) comes from
# ``scontrol --details show job``, asked only when a job is new or has just started.

MORE_FIELDS = (
    "TimeLimit",
    "EligibleTime",
    "Dependency",
    "cpus-per-task",
    "NTPerNode",
    "Feature",
    "ReqNodes",
    "GroupName",
    "Account",
    "RestartCnt",
    "WorkDir",
    "Comment",
    "admin_comment",
)
"""Known under these names, in any case, from 20.11 to 26.05."""

SITE_MARK = "koala outside scheduler"
"""Administrator's comment that conf/job_submit.lua gives a job which it holds for an outside scheduler."""

ANY_NODES = "any number of nodes"
"""What follows in it for a job submitted without an upper bound of its number of nodes."""

_MARKS = frozenset({SITE_MARK, f"{SITE_MARK}, {ANY_NODES}"})

USER_NODES_MARK = "koala:nodes"
"""What conf/job_submit.lua adds to the comment of such a job when its owner gives it one later."""

USER_HOLD_MARK = "koala:hold"
"""What conf/job_submit.lua adds to the comment of a marked job that its owner holds on top."""

DETAILS_COMMAND = ("scontrol", "--local", "--details", "show", "job")
"""Shows all jobs in detail."""

StateKey: TypeAlias = "tuple[str, bool, float | None]"
"""Id of a job, whether it is active, when it started: what decides whether known details are still true."""

NO_RESTRICTIONS = Restrictions()

_NO_VALUE = frozenset({"", "(null)", "N/A", "None", "NONE"})
_HEAD = re.compile(r"^JobId=(?P<id>[0-9]+)(?: ArrayJobId=(?P<array>[0-9]+) ArrayTaskId=(?P<task>\S+))?", re.MULTILINE)
_NEXT_ELEMENT = re.compile(r"^JobId=[0-9]+ ArrayJobId=", re.MULTILINE)
_VALUE = re.compile(
    r"(?:^|(?<=\s))"
    r"(?P<name>NumNodes|NumCPUs|ReqNodeList|ExcNodeList|MinMemory(?:CPU|Node)|Reason|(?:Req)?TRES"
    rf"|{'|'.join(NAMES)})=(?P<value>\S*)"
)
_ANY_NODES = re.compile(rf"^\s+AdminComment={SITE_MARK}, {ANY_NODES}\s*$", re.MULTILINE)
_NODES_ASKED = re.compile(r"(?:^|,)node=(?P<nodes>[0-9]+)(?:,|$)", re.ASCII)
_PLACE = re.compile(r"^\s+Nodes=(?P<nodes>\S+) CPU_IDs=(?P<cpus>[0-9,-]+)(?: |$)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """What only scontrol tells about a job."""

    layout: tuple[tuple[str, int], ...] = ()
    node_range: str = ""
    """Its number of nodes as scontrol writes it: ``2`` for any number, of which 2 are expected, ``2-2``, ``2-4``."""
    processors: int = 0
    requested_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    memory_per_processor_mib: int | None = None
    memory_per_node_mib: int | None = None
    reason: str = ""
    restrictions: Restrictions = NO_RESTRICTIONS

    @property
    def nodes_least(self) -> int:
        """Nodes that the user wants at least; without an upper bound Slurm shows its own estimate."""
        low, dash, _ = self.node_range.partition("-")
        return max(1, _number(low)) if dash else 1

    @property
    def nodes_most(self) -> int | None:
        """Nodes that the user wants at most; None: any number."""
        return _number(self.node_range.partition("-")[2]) or None

    @property
    def nodes_wanted(self) -> int | None:
        """Number of nodes that the user wants exactly; None: any within the bounds."""
        return self.nodes_most if self.nodes_most == self.nodes_least else None


def everything_format(separator: str) -> Mapping[str, str]:
    """Return the environment in which squeue prints all fields of jobs, each ended by ``separator``."""
    form = ",".join(f"{field}:{separator}" for field in (*JOB_FIELDS, *MORE_FIELDS))
    return {**ENVIRONMENT, FORMAT_VARIABLE: form}


def parse_everything(output: str, separator: str) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing with all fields. Raises LrmUnavailableError for text that is none."""
    return tuple(job for row in _rows(output, separator) for job in parse_wide_row(row))


def parse_held_by_hook(output: str, separator: str) -> tuple[LrmJob, ...]:
    """Return of the same listing the jobs that the site's hook marked: those it holds, and those that run.

    A running one is in hold, too, so that it comes back so. Raises LrmUnavailableError for text that is no listing.
    """
    marked = (row for row in _rows(output, separator) if row[-1].strip() in _MARKS)
    return tuple(
        job
        for row in marked
        for job in parse_wide_row(row)
        if job.state in ACTIVE or (job.state is LrmJobState.HELD and job.hold is HoldOwner.OPERATOR)
    )


def _rows(output: str, separator: str) -> Iterator[tuple[str, ...]]:
    values = output.split(separator)
    width = len(JOB_FIELDS) + len(MORE_FIELDS)
    if len(values) % width != 1 or values[-1].strip():
        raise LrmUnavailableError(f"squeue printed a listing that cannot be read: {output[-200:]!r}")
    for start in range(0, len(values) - 1, width):
        yield (values[start].lstrip("\n"), *values[start + 1 : start + width])


def parse_wide_row(row: Sequence[str]) -> Iterator[LrmJob]:
    """Yield the job, or the waiting elements of an array, of one row of values of JOB_FIELDS and MORE_FIELDS."""
    narrow, more = row[: len(JOB_FIELDS)], dict(zip(MORE_FIELDS, row[len(JOB_FIELDS) :], strict=True))
    given = {name: "" if value.strip() in _NO_VALUE else value.strip() for name, value in more.items()}
    for job in parse_row(narrow):
        waiting = job.state in WAITING
        eligible = moment(given["EligibleTime"])
        every, some, problem = parse_features(given["Feature"])
        yield replace(
            job,
            walltime=duration(given["TimeLimit"]),
            eligible_at=eligible if waiting and eligible and eligible > (job.submitted_at or 0) else None,
            dependent=waiting and bool(given["Dependency"]),
            hold=_hold_owner(job, given) if job.state is LrmJobState.HELD else None,
            layout=((job.nodes[0], job.processors),) if len(job.nodes) == 1 and job.state in ACTIVE else (),
            processors_per_task=max(1, _number(given["cpus-per-task"]) or 1),
            tasks_per_node=_number(given["NTPerNode"]) or None,
            features=every,
            any_feature=some,
            # scontrol calls its components by other ids than squeue, so what it shows of them is not found.
            obstacle=(HETEROGENEOUS if "+" in job.id else problem) if waiting else "",
            dependency=given["Dependency"] if waiting else "",
            requested_nodes=expand(given["ReqNodes"]),
            group=given["GroupName"],
            account=given["Account"],
            working_directory=given["WorkDir"],
            comment=given["Comment"],
            requeues=_number(given["RestartCnt"]),
        )


def _hold_owner(job: LrmJob, given: Mapping[str, str]) -> HoldOwner:
    marked = given["admin_comment"] in _MARKS
    if marked and USER_HOLD_MARK in given["Comment"]:
        # After a look at its dependencies Slurm shows any hold as an operator's.
        return HoldOwner.USER
    owner = hold_owner(job.reason)
    return HoldOwner.OPERATOR if marked and owner is HoldOwner.USER else owner


@dataclass(frozen=True, slots=True, kw_only=True)
class AllDetails:
    """What scontrol shows of all jobs.

    A comment can hold a line that looks like the first of another job's record. So what is shown of an id counts only
    where it is there once; for others scontrol is asked again, for each job singly: then all text is that job's.
    """

    records: Mapping[str, tuple[JobDetails, ...]]
    """By the id that squeue shows, for the waiting elements of an array by the array's or the element's."""

    def of(self, job: LrmJob) -> JobDetails | None:
        """Return the details of a job (empty when not shown), or None where they are ambiguous."""
        names = dict.fromkeys((details_id(job), str(job.id)))
        found = [details for name in names for details in self.records.get(name, ())]
        return None if len(found) > 1 else found[0] if found else JobDetails()


def parse_details(output: str) -> AllDetails:
    """Return what DETAILS_COMMAND printed."""
    heads = list(_HEAD.finditer(output))
    found: dict[str, tuple[JobDetails, ...]] = {}
    for head, following in zip(heads, (*heads[1:], None), strict=True):
        text = output[head.end() : following.start() if following else len(output)]
        task = head["task"]
        id_ = head["id"] if not task else f"{head['array']}_{task}" if task.isdecimal() else head["array"]
        found[id_] = (*found.get(id_, ()), _details(text))
    return AllDetails(records=found)


def parse_one_detailed(output: str) -> JobDetails:
    """Return what scontrol printed when it was asked for one job alone: the first record is Slurm's."""
    head = _HEAD.search(output)
    if head is None:
        return JobDetails()
    following = _NEXT_ELEMENT.search(output, head.end()) if head["array"] else None
    return _details(output[head.end() : following.start() if following else len(output)])


def _details(text: str) -> JobDetails:
    # The first of a name is Slurm's: texts of users come after them, but for the job's name.
    values = {match["name"]: match["value"] for match in reversed(list(_VALUE.finditer(text)))}
    places = {node: _count(match["cpus"]) for match in _PLACE.finditer(text) for node in expand(match["nodes"])}
    return _of_values(values, places, any_number=_ANY_NODES.search(text) is not None and USER_NODES_MARK not in text)


def job_details(
    values: Mapping[str, str], places: Mapping[str, str], *, comment: str, admin_comment: str
) -> JobDetails:
    """Return the details of a job by the values that scontrol shows, and its processors (``0-2,5``) by node."""
    any_number = admin_comment.strip() == f"{SITE_MARK}, {ANY_NODES}" and USER_NODES_MARK not in comment
    return _of_values(values, {node: _count(cpus) for node, cpus in places.items()}, any_number=any_number)


def _of_values(values: Mapping[str, str], places: Mapping[str, int], *, any_number: bool) -> JobDetails:
    return JobDetails(
        layout=tuple(places.items()),
        node_range=_node_range(values, any_number=any_number),
        processors=_number(values.get("NumCPUs", "").partition("-")[0]),
        requested_nodes=expand(values.get("ReqNodeList", "")),
        excluded_nodes=expand(values.get("ExcNodeList", "")),
        memory_per_processor_mib=_mebibytes(values.get("MinMemoryCPU", "")),
        memory_per_node_mib=_mebibytes(values.get("MinMemoryNode", "")),
        reason=values.get("Reason", ""),
        restrictions=restrictions(values),
    )


def _node_range(values: Mapping[str, str], *, any_number: bool) -> str:
    """Return the number of nodes that a waiting job insists on: ``2-3``; without a dash it may have more.

    Slurm shows ``2-2`` also for a job that cannot do with one node, because of its processors alone (RELATED_NODES of
    the table of releases); then the nodes of its TRES are the one that it asked for. ``1-1`` may be either; unless the
    site's hook has said that it is not (``any_number``), it is taken for the user's wish.

    Where Slurm bounds the nodes by the tasks (BOUNDED_BY_TASKS) the upper bound holds for each job, and the lower one
    is that of its TRES. Nothing is left to guess then. A job shows its exclusiveness apart from that release on.
    """
    shown = values.get("NumNodes", "")
    low, dash, high = shown.partition("-")
    found = _NODES_ASKED.search(values.get("ReqTRES") or values.get("TRES", ""))
    asked = _number(found["nodes"]) if found else _number(low)
    if dash and "Exclusive" in values:
        return f"{min(asked, _number(low))}-{high}"
    return low if dash and low == high and (any_number or asked < _number(low)) else shown


def _count(text: str) -> int:
    """Count the processors in ``0-2,5``."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges if first)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() else 0


def state_key(job: LrmJob) -> StateKey:
    """Return a key that changes when a job's known details may be outdated."""
    return (details_id(job), job.state in ACTIVE, job.started_at)


def details_id(job: LrmJob) -> str:
    """Return the id under which :func:`parse_details` has a job."""
    waiting_element = job.array_index is not None and job.state in WAITING
    return job.id.partition("_")[0] if waiting_element else job.id


def worth_asking(job: LrmJob) -> bool:
    """Return whether scontrol knows more about a job than squeue."""
    return job.state in WAITING or (job.state in ACTIVE and len(job.nodes) > 1)


def with_details(job: LrmJob, details: JobDetails | None) -> LrmJob:
    """Return a job with its details; with processors spread evenly when it runs and nothing else is known."""
    known = details or JobDetails()
    layout = job.layout
    if not layout and job.state in ACTIVE and job.nodes:
        fits = set(dict(known.layout)) == set(job.nodes) and sum(dict(known.layout).values()) == job.processors
        layout = known.layout if fits else _evenly(job.nodes, job.processors)
    processors = job.processors
    if job.state in WAITING:
        # Slurm shows one for `-N2-3`, and each node gives one at least.
        each = max(job.processors_per_task, known.restrictions.processors_by_gres)
        processors = max(processors, known.nodes_least * each)
    return replace(
        job,
        processors=processors,
        layout=layout,
        nodes_wanted=known.nodes_wanted,
        nodes_least=known.nodes_least,
        nodes_most=known.nodes_most,
        excluded_nodes=known.excluded_nodes,
        threads_per_core=known.restrictions.threads_per_core if job.state in WAITING else None,
        tasks_per_core=known.restrictions.tasks_per_core if job.state in WAITING else None,
        memory_per_processor_mib=known.memory_per_processor_mib,
        memory_per_node_mib=known.memory_per_node_mib or known.restrictions.memory_by_gres_mib or None,
        disk_per_node_mib=known.restrictions.disk_mib,
        gpus_per_node=known.restrictions.gpus if job.state in WAITING else 0,
        exclusive=known.restrictions.exclusive,
        obstacle=job.obstacle or (known.restrictions.obstacle if job.state in WAITING else ""),
    )


def _evenly(nodes: Sequence[str], processors: int) -> tuple[tuple[str, int], ...]:
    share, rest = divmod(processors, len(nodes))
    return tuple((node, share + (place < rest)) for place, node in enumerate(nodes))


def forgotten(known: Iterable[StateKey], jobs: Iterable[LrmJob]) -> set[StateKey]:
    """Return keys of cached details that no listed job needs."""
    return set(known) - {state_key(job) for job in jobs}
