# SPDX-License-Identifier: Apache-2.0
"""What Slurm lists, as values: jobs, nodes and partitions, ends of jobs, and the controller.

Each part has the command line of a listing and the function that reads what it prints; nothing is run here.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.model import EndReason, LrmJob, LrmJobId, LrmJobState, Node, NodeGpus, NodeState, Queue
from koala_adapter.wire.hostlists import expand
from koala_slurm import releases
from koala_slurm.words import (
    LASTS,
    START_MAY_SHOW,
    TIME_FORMAT,
    array_index,
    duration,
    hold_owner,
    job_end,
    job_state,
    moment,
    node_state,
    wait_kind,
    waiting_elements,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# -- Jobs ----------------------------------------------------------------------------------------------------
# The command line of squeue(1), and its rows as jobs.
#
# The fields exist under these names in all releases from 20.11 to 26.05; JSON differs from release to release. A suffix
# after the colon makes a field as long as it is. Fields are ended by a control character (ASCII "unit separator"), and
# the text that a user can choose comes last. It can hold any character, line breaks too (seen in 22.05), so it is ended
# by a word that is new for each listing and that no job can contain. The format is passed in the environment, because
# every user can read a command line while the command runs.
#
# The elements of an array that wait together are listed as one row, ``12_[1-40,43%5]``, and told apart here: squeue's
# own option for that (--array) takes longer, and loses the last element of ``12_[2-1000:2]`` (seen in 20.11 to 26.05).

SEPARATOR = "\x1f"

ENVIRONMENT = {**TIME_FORMAT, "SLURM_BITSTR_LEN": "0"}
"""Times in seconds, and the elements of an array in full: they are cut to 64 characters otherwise (squeue(1))."""

JOB_FIELDS = (
    "JobArrayID",
    "UserName",
    "State",
    "NumCPUs",
    "Partition",
    "NodeList",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "exit_code",
    "Reason",
    "Name",
)

EVERY_JOB = ("squeue", "--local", "--noheader", "--states=all", "--sort=-p,i")
"""Lists all jobs, of equal priority (0 in hold) the oldest first; by itself squeue has the newest first.

Without --local, here as in other listings, a federation with fed_display shows the jobs and nodes of all its clusters.
"""

FORMAT_VARIABLE = "SQUEUE_FORMAT2"
"""What squeue takes for its option --Format (squeue(1))."""

_EXIT = re.compile(r"(?P<code>[0-9]{1,5}):(?P<signal>[0-9]{1,3})", re.ASCII)
_BEGUN = frozenset({LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING, LrmJobState.ENDED})


def new_separator() -> str:
    """Return a random word that no text in a listing can contain, as jobs were submitted before."""
    return f"\x1f{secrets.token_hex(8)}\x1f"


def job_format(end: str) -> Mapping[str, str]:
    """Return the environment in which squeue prints JOB_FIELDS, and ``end`` after each row."""
    form = ",".join(f"{field}:{SEPARATOR}" for field in JOB_FIELDS[:-1])
    return {**ENVIRONMENT, FORMAT_VARIABLE: f"{form},{JOB_FIELDS[-1]}:{end}"}


def parse_jobs(output: str, end: str = "\n") -> tuple[LrmJob, ...]:
    """Return the jobs of a listing, array elements singly; ``end`` follows each row.

    Raises LrmUnavailableError for text that is no such listing.
    """
    lines = (line.lstrip("\n") for line in output.split(end))
    rows = (line.split(SEPARATOR, len(JOB_FIELDS) - 1) for line in lines if line.strip())
    return tuple(job for row in rows for job in parse_row(row))


def parse_row(row: Sequence[str]) -> tuple[LrmJob, ...]:
    """Return the job, or the waiting elements of an array, of one row of values of JOB_FIELDS.

    Raises LrmUnavailableError when it is no such row.
    """
    job = parse_job(row)
    array, bracket, elements = job.id.partition("_[")
    if not bracket:
        return (job,)
    try:
        numbers = waiting_elements(elements.removesuffix("]"))
    except ValueError as error:
        raise LrmUnavailableError(f"squeue printed a job id that cannot be read: {job.id[:200]!r}") from error
    return tuple(replace(job, id=LrmJobId(f"{array}_{number}"), array_index=number) for number in numbers)


def parse_job(row: Sequence[str]) -> LrmJob:
    """Return one row of values of JOB_FIELDS as a job. Raises LrmUnavailableError when it is no such row."""
    if len(row) != len(JOB_FIELDS):
        raise LrmUnavailableError(f"squeue printed a line of {len(row)} fields: {SEPARATOR.join(row)[:200]!r}")
    job, user, word, processors, queue, nodes, submitted, started, ends, status, reason, name = row
    state = job_state(word, reason)
    code, signal = parse_exit(status)
    places = expand(nodes)
    end = job_end(word, exit_code=code, signal=signal, ran=bool(places))
    begun = state in _BEGUN
    return LrmJob(
        id=LrmJobId(job),
        name=name.removesuffix(SEPARATOR),
        state=state,
        user=user,
        processors=int(processors) if processors.isdecimal() else 1,
        array_index=array_index(job),
        nodes=places,
        queue=queue,
        reason="" if reason == "None" else reason,
        end=end,
        exit_code=code if end is EndReason.EXITED else None,
        signal=signal if end is EndReason.SIGNALLED else None,
        submitted_at=moment(submitted),
        # What a pending job shows here is the controller's estimate.
        started_at=moment(started) if begun else None,
        ends_at=moment(ends) if begun else None,
        raw_state=word,
        hold=hold_owner(reason) if state is LrmJobState.HELD else None,
        blocked=state is LrmJobState.QUEUED and wait_kind(reason) not in START_MAY_SHOW,
        kept=state is LrmJobState.QUEUED and wait_kind(reason) in LASTS,
    )


def parse_exit(text: str) -> tuple[int, int]:
    """Return exit code and signal: ``3:0``, or in older releases a wait status such as 768."""
    match = _EXIT.fullmatch(text)
    if match:
        return int(match["code"]), int(match["signal"])
    status = int(text) if text.isdecimal() else 0
    return status >> 8 & 0xFF, status & 0x7F


# -- Nodes and partitions ------------------------------------------------------------------------------------
# Nodes by sinfo(1) and partitions by scontrol(1).

NODE_FIELDS = ("NodeList", "Partition", "StateLong", "CPUsState", "Memory", "CPUsLoad")
"""Name, partition, state with flags, processors (allocated/idle/other/total), memory in MiB, load average."""

MORE_NODE_FIELDS = (
    *("Features_act", "Disk", "Sockets", "Cores", "Available", "OverSubscribe"),
    *("Gres", "GresUsed", "AllocMem"),
)
"""Active features, temporary disk in MB (MiB), sockets, cores of a socket; of the partition: whether it is up, and
whether jobs share its nodes; generic resources of the node, those and the memory (MiB) that jobs have.
A reader that does not have them leaves all out."""

NODE_COMMAND = (
    "sinfo",
    "--local",
    "--noheader",
    "--Node",
    f"--Format={','.join(f'{field}:{SEPARATOR}' for field in (*NODE_FIELDS, *MORE_NODE_FIELDS))}",
)
ADDRESS_COMMAND = ("sinfo", "--local", "--noheader", "--Node", f"--format={SEPARATOR.join(('%N', '%n', '%o'))}")
"""Lists the name, host and address of each node."""

PARTITION_COMMAND = ("scontrol", "--local", "--oneliner", "show", "partition")


def all_here(output: str, *, host: str) -> bool:
    """Tell whether all nodes of a listing by ADDRESS_COMMAND are this host, whose name is ``host``.

    A node is, when its address is a loopback address or this host's name. False of no nodes.
    """
    rows = [line.split(SEPARATOR) for line in output.splitlines() if line.strip()]
    return bool(rows) and all(len(row) == 3 and _is_here(row[2].strip(), host) for row in rows)  # noqa: PLR2004 - as asked


def _is_here(address: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.partition(".")[0] == host.partition(".")[0]


_PROCESSORS = re.compile(r"([0-9]+)/([0-9]+)/([0-9]+)/([0-9]+)", re.ASCII)
_PAIR = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu(?::(?P<kind>[^:,()]*[A-Za-z][^:,()]*))?:(?P<count>[0-9]+)(?=$|[,(])", re.ASCII)
"""GPUs that jobs take away: those of a kind with no_consume have one more word."""
NOT_CONSUMED = "no_consume"
"""Word in the configuration of a generic resource that jobs use without taking any of it (slurm.conf(5), Gres)."""


class Unit(StrEnum):
    """Least allocation to one job (slurm.conf(5), SelectType and SelectTypeParameters)."""

    CPU = "CPU"
    CORE = "core"
    SOCKET = "socket"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRules:
    """What decides, beside a listing of nodes, who can have their processors."""

    unit: Unit = Unit.CPU
    units: Mapping[str, Unit] = field(default_factory=dict)
    """Of partitions that give others than ``unit``."""
    whole: frozenset[str] = frozenset()
    """Partitions that give whole nodes, beside those of which the listing tells it."""
    has_default: bool = True
    """Jobs that name no partition go to the default one."""
    reserved_is_up: bool = False
    """Nodes in a reservation count as usable, because we submit into one."""


def parse_nodes(output: str, rules: AllocationRules | None = None) -> tuple[Node, ...]:
    """Return the nodes of a listing, each once with all its partitions.

    Raises LrmUnavailableError for text that is no listing.
    """
    rows = (line.removesuffix(SEPARATOR).split(SEPARATOR) for line in output.splitlines() if line.strip())
    merged: dict[str, Node] = {}
    for row in rows:
        node = _node(row, rules or AllocationRules())
        seen = merged.get(node.name, node)
        merged[node.name] = replace(
            seen,
            queues=tuple(dict.fromkeys((*seen.queues, *node.queues))),
            queue_grains=tuple(dict.fromkeys((*seen.queue_grains, *node.queue_grains))),
            whole_queues=tuple(dict.fromkeys((*seen.whole_queues, *node.whole_queues))),
            closed_queues=tuple(dict.fromkeys((*seen.closed_queues, *node.closed_queues))),
        )
    return tuple(merged.values())


def _node(row: Sequence[str], rules: AllocationRules) -> Node:
    """Return the node of one row of values of NODE_FIELDS, and perhaps of MORE_NODE_FIELDS.

    Raises LrmUnavailableError when it is no such row.
    """
    width = len(NODE_FIELDS) + len(MORE_NODE_FIELDS)
    counts = _PROCESSORS.fullmatch(row[3].strip()) if len(NODE_FIELDS) <= len(row) <= width else None
    if counts is None:
        raise LrmUnavailableError(f"sinfo printed a line that is no node: {SEPARATOR.join(row)[:200]!r}")
    values = (*(value.strip() for value in row), *("" for _ in MORE_NODE_FIELDS))
    name, partition, word, _, memory, load, features, disk, sockets, cores, available, sharing, *used = values[:width]
    gres, gres_used, memory_used = used
    allocated, idle, _other, total = (int(count) for count in counts.groups())
    state = node_state(word, reserved_is_up=rules.reserved_is_up)
    queues = (partition.removesuffix("*"),) if partition not in {"", "N/A"} else ()
    served = (*queues, *([""] if partition.endswith("*") and rules.has_default else []))
    unit, own = rules.unit, rules.units.get(partition.removesuffix("*"), rules.unit)
    whole_nodes = sharing.upper().startswith("EXCL") or partition.removesuffix("*") in rules.whole
    return Node(
        name=name,
        state=state,
        processors=total,
        # A node that is up can have processors that are neither allocated nor idle; nobody can get those.
        processors_used=total - idle if state is NodeState.UP else allocated,
        memory_mib=int(memory) if memory.isdecimal() else None,
        memory_used_mib=int(memory_used) if memory_used.isdecimal() else None,
        load=_number(load),
        queues=queues,
        raw_state=word,
        features=tuple(feature for feature in features.split(",") if feature and feature != "(null)"),
        disk_mib=int(disk) if disk.isdecimal() and int(disk) else None,
        gpus=_gpus(gres, gres_used),
        grain=_grain(total, sockets, cores, unit),
        queue_grains=() if own is unit else tuple((name, _grain(total, sockets, cores, own)) for name in served),
        # With CR_CPU the threads are counted, but jobs do not share a core that slurm.conf describes (slurm.conf(5)).
        counts_grains=unit is not Unit.CPU,
        whole_queues=served if unit is Unit.NODE or whole_nodes else (),
        closed_queues=served if available not in {"", "up"} else (),
    )


def _gpus(gres: str, used: str) -> tuple[NodeGpus, ...]:
    """Parse GPUs by kind, such as ``gpu:a100:2(S:0-1),shard:8``; ``used``: those in use, in the same notation."""
    counts, taken = _gpu_counts(gres), _gpu_counts(used)
    return tuple(NodeGpus(kind=kind, count=count, used=min(count, taken[kind])) for kind, count in counts.items())


def _gpu_counts(gres: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for match in _GPUS.finditer(gres):
        if match["kind"] != NOT_CONSUMED:
            counts[match["kind"] or ""] += int(match["count"])
    return counts


def _grain(processors: int, sockets: str, cores: str, unit: Unit) -> int:
    """Return how many of a node's processors, which may be threads or cores, a job gets at a time."""
    if unit is Unit.NODE or not (sockets.isdecimal() and cores.isdecimal()):
        return 1
    parts = int(sockets) * (1 if unit is Unit.SOCKET else int(cores))
    return max(1, processors // parts) if parts else 1


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def records(output: str) -> tuple[dict[str, str], ...]:
    """Parse the lines of ``scontrol --oneliner`` into values by name."""
    return tuple(dict(_PAIR.findall(line)) for line in output.splitlines())


def parse_partitions(output: str) -> tuple[Queue, ...]:
    """Return the partitions of ``scontrol -o show partition``. Raises LrmUnavailableError for text that is none."""
    return tuple(_partition(line) for line in output.splitlines() if line.strip() and "No partitions" not in line)


def _partition(line: str) -> Queue:
    values = dict(_PAIR.findall(line))
    if "PartitionName" not in values:
        raise LrmUnavailableError(f"scontrol printed a line that is no partition: {line[:200]!r}")
    processors = values.get("TotalCPUs", "")
    return Queue(
        name=values["PartitionName"],
        up=values.get("State") == "UP",
        processors=int(processors) if processors.isdecimal() else 0,
        walltime_limit=duration(values.get("MaxTime", "")),
        default=values.get("Default") == "YES",
    )


def parse_units(output: str, unit: Unit) -> dict[str, Unit]:
    """Return the allocation units of partitions with a setting of their own (SelectTypeParameters).

    Slurm heeds that only where the whole cluster gives cores or sockets: ``unit``.
    """
    if unit not in {Unit.CORE, Unit.SOCKET}:
        return {}
    own = {
        values.get("PartitionName", ""): _unit("", values.get("SelectTypeParameters", "")) for values in records(output)
    }
    return {name: one for name, one in own.items() if name and one in {Unit.CORE, Unit.SOCKET} and one is not unit}


def parse_whole(output: str) -> frozenset[str]:
    """Return the partitions that allocate whole nodes; in older releases sinfo tells that."""
    return frozenset(values.get("PartitionName", "") for values in records(output) if values.get("Exclusive") == "NODE")


def without_default_memory(output: str) -> tuple[str, ...]:
    """Return the partitions without a default memory of their own for jobs."""
    return tuple(
        values["PartitionName"]
        for values in records(output)
        if "PartitionName" in values and not any(_is_default(values.get(name, "")) for name in DEFAULT_MEMORY)
    )


# -- Accounting ----------------------------------------------------------------------------------------------
# How jobs ended according to the accounting database, by sacct(1).

ACCOUNTING_FIELDS = (
    "JobID",
    "User",
    "State",
    "AllocCPUS",
    "Partition",
    "NodeList",
    "Submit",
    "Start",
    "End",
    "ExitCode",
    "JobName",
)


def sacct_command(jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that lists these jobs without their steps, over all times."""
    return (
        "sacct",
        "--local",
        "--noheader",
        "--allocations",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
        f"--format={','.join(ACCOUNTING_FIELDS)}",
        f"--jobs={','.join(jobs)}",
    )


def parse_history(output: str) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing. Raises LrmUnavailableError for text that is no listing."""
    rows = (line.split(SEPARATOR, len(ACCOUNTING_FIELDS) - 1) for line in output.splitlines() if line.strip())
    return tuple(parse_job(_as_listed(row)) for row in rows)


def _as_listed(row: Sequence[str]) -> list[str]:
    # The same fields as in the listing of squeue, without a reason; "CANCELLED by 1000" is one state with a reason.
    if len(row) != len(ACCOUNTING_FIELDS):
        return list(row)
    word, _, by = row[2].partition(" ")
    return [*row[:2], word.removesuffix("+"), *row[3:10], by.removeprefix("by ") or "None", row[10]]


# -- Controller ----------------------------------------------------------------------------------------------
# What ``scontrol show config`` says about a controller, and the version that the commands print.

CONFIG_COMMAND = ("scontrol", "show", "config")
VERSION_COMMAND = ("sinfo", "--version")

DEFAULT_MAX_ARRAY_SIZE = 1001
"""slurm.conf(5), MaxArraySize."""

_LINE = re.compile(r"^(?P<name>\w[\w()]*)\s*=\s?(?P<value>.*?)\s*$", re.MULTILINE)
_VERSION = re.compile(r"\b(?P<version>[0-9]{2}\.[0-9]{2}(?:\.[0-9]+)?(?:[.-][0-9a-z]+)*)")
_NO_ACCOUNTING = frozenset({"", "(null)", "accounting_storage/none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Settings of a cluster's controller that decide what koala can ask for."""

    cluster: str
    version: str
    max_array_size: int
    """One more than the largest index of an array element."""
    accounting: bool
    """A storage for accounting is configured; that it answers is another matter."""
    slurm_user: str
    unit: Unit = Unit.CPU
    """What is given to one job alone."""
    whole_memory: bool = False
    """Memory is counted, and a job that asks for none gets that of a whole node, unless its partition has a default."""
    has_gres: bool = False
    """There are generic resources for jobs to ask for (GresTypes)."""

    @property
    def takes_cores_by_node(self) -> bool:
        """Whether a reservation can have a number of cores for each node."""
        return release_number(self.version) < releases.CORES_SPREAD.since

    @property
    def partitions_tell_more(self) -> bool:
        """Whether partitions have settings that sinfo does not show, such as units and whole nodes."""
        apart = release_number(self.version) >= releases.EXCLUSIVE_PARTITIONS.since
        return apart or self.unit in {Unit.CORE, Unit.SOCKET}

    def may_suspend(self, *, user: str, uid: int) -> bool:
        """Return whether a user may suspend jobs, which only operators may, even their own (scontrol(1)).

        root and SlurmUser are operators. Of those named in slurmdbd we learn nothing.
        """
        return uid == 0 or user == self.slurm_user


def parse_config(output: str) -> ControllerConfig:
    """Return the settings; what is missing has Slurm's default."""
    values = {match["name"]: match["value"] for match in _LINE.finditer(output)}
    size = values.get("MaxArraySize", "")
    return ControllerConfig(
        cluster=values.get("ClusterName", ""),
        version=values.get("SLURM_VERSION", ""),
        max_array_size=int(size) if size.isdecimal() else DEFAULT_MAX_ARRAY_SIZE,
        accounting=values.get("AccountingStorageType", "") not in _NO_ACCOUNTING,
        slurm_user=values.get("SlurmUser", "").partition("(")[0],
        whole_memory="MEMORY" in values.get("SelectTypeParameters", "").upper()
        and not any(_is_default(values.get(name, "")) for name in DEFAULT_MEMORY),
        unit=_unit(values.get("SelectType", ""), values.get("SelectTypeParameters", "")),
        has_gres=values.get("GresTypes", "") not in {"", "(null)"},
    )


DEFAULT_MEMORY = ("DefMemPerNode", "DefMemPerCPU")


def _is_default(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _unit(select: str, parameters: str) -> Unit:
    if select.endswith("/linear"):
        return Unit.NODE
    words = re.split(r"[,|+]", parameters.upper())
    for word, unit in (("CR_SOCKET", Unit.SOCKET), ("CR_CORE", Unit.CORE), ("CR_ONE_TASK_PER_CORE", Unit.CORE)):
        if any(one.startswith(word) for one in words):
            return unit
    return Unit.CPU


def parse_version(output: str) -> str | None:
    """Return the version in ``slurm 22.05.8`` or ``slurm-wlm 22.05.8``; None when there is none."""
    match = _VERSION.search(output)
    return match["version"] if match else None


def release_of(version: str) -> str:
    """Return major and minor number of a version; libraries of one release are compatible."""
    return ".".join(version.split(".")[:2])


def release_number(version: str) -> tuple[int, ...]:
    """Return the release of a version as numbers that can be compared; an empty one, before all, for no version."""
    found = parse_version(version)
    return tuple(int(part) for part in release_of(found).split(".")) if found else ()
