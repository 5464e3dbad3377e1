# SPDX-License-Identifier: Apache-2.0
"""Nodes by sinfo(1) and partitions by scontrol(1): command lines, and what they print as nodes and queues."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.model import Node, NodeState, Queue
from koala_slurm.durations import duration
from koala_slurm.listing import SEPARATOR
from koala_slurm.states import node_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NODE_FIELDS = ("%N", "%P", "%T", "%C", "%m", "%O")
"""Name, partition, state with flags, processors (allocated/idle/other/total), memory in MiB, load average."""

MORE_NODE_FIELDS = ("%b", "%d")
"""Active features, and temporary disk in MB (MiB); a reader that does not have them leaves both out."""

NODE_COMMAND = ("sinfo", "--noheader", "--Node", f"--format={SEPARATOR.join((*NODE_FIELDS, *MORE_NODE_FIELDS))}")
PARTITION_COMMAND = ("scontrol", "--oneliner", "show", "partition")


def idle_command(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that lists some nodes as NODE_COMMAND lists all."""
    return (*NODE_COMMAND, f"--nodes={','.join(nodes)}")


_PROCESSORS = re.compile(r"([0-9]+)/([0-9]+)/([0-9]+)/([0-9]+)", re.ASCII)
_PAIR = re.compile(r"(?:^|\s)(\w+)=(\S*)")


def parse_nodes(output: str, *, reserved_is_up: bool = False) -> tuple[Node, ...]:
    """Return the nodes of a listing, each once with all its partitions.

    Raises LrmUnavailableError for text that is no listing.
    """
    return merge_nodes(
        parse_node(line.split(SEPARATOR), reserved_is_up=reserved_is_up) for line in output.splitlines() if line.strip()
    )


def parse_node(row: Sequence[str], *, reserved_is_up: bool = False) -> Node:
    """Return the node of one row of values of NODE_FIELDS, and perhaps of MORE_NODE_FIELDS.

    Raises LrmUnavailableError when it is no such row.
    """
    widths = (len(NODE_FIELDS), len(NODE_FIELDS) + len(MORE_NODE_FIELDS))
    counts = _PROCESSORS.fullmatch(row[3].strip()) if len(row) in widths else None
    if counts is None:
        raise LrmUnavailableError(f"sinfo printed a line that is no node: {SEPARATOR.join(row)[:200]!r}")
    name, partition, word, _, memory, load, features, disk = (*(value.strip() for value in row), "", "")[:8]
    allocated, idle, _other, total = (int(count) for count in counts.groups())
    state = node_state(word, reserved_is_up=reserved_is_up)
    return Node(
        name=name,
        state=state,
        processors=total,
        # A node that is up can have processors that are neither allocated nor idle; nobody can get those.
        processors_used=total - idle if state is NodeState.UP else allocated,
        memory_mib=int(memory) if memory.isdecimal() else None,
        load=_number(load),
        queues=(partition.removesuffix("*"),) if partition not in {"", "N/A"} else (),
        raw_state=word,
        features=tuple(feature for feature in features.split(",") if feature and feature != "(null)"),
        disk_mib=int(disk) if disk.isdecimal() and int(disk) else None,
    )


def merge_nodes(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return each node once: a node in several partitions is listed for each of them."""
    merged: dict[str, Node] = {}
    for node in nodes:
        seen = merged.get(node.name, node)
        queues = tuple(dict.fromkeys((*seen.queues, *node.queues)))
        merged[node.name] = replace(seen, queues=queues)
    return tuple(merged.values())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
