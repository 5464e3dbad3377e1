# SPDX-License-Identifier: Apache-2.0
"""Tying a held job to nodes with an exact number of processors on each: which requests make Slurm do that. Pure.

Seen in 22.05 with select/cons_tres:

- as many processors on each of its nodes, or only one node: ``ReqNodeList``, ``NumNodes`` and ``MinCPUsNode``; any
  owner may ask for it;
- different numbers: only a reservation of so many cores on each node (``CoreCnt``) does it, which needs an operator's
  rights. The job leaves it as soon as it runs, and stays where it is.

An update of ``NumNodes`` or ``MinCPUsNode`` makes ``NumCPUs`` their product, without a word: a job of six processors
would start with two. Where that is not the right number ``NumCPUs`` is set again, in a request of its own, because
Slurm reads it first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_slurm.durations import minutes
from koala_slurm.hostlist import expand
from koala_slurm.jobids import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_slurm.details import JobDetails

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]*", re.ASCII)
_RESERVED_NODES = re.compile(r"(?:^|\s)Nodes=(\S+)")

NO_BOUND = 100_000
"""More nodes than any cluster has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Where a job is to start: processors on each node, in the order asked for."""

    job: str
    counts: Mapping[str, int]

    @property
    def processors(self) -> int:
        """Processors on all nodes."""
        return sum(self.counts.values())

    @property
    def is_even(self) -> bool:
        """As many processors on each node."""
        return len(set(self.counts.values())) == 1

    @property
    def reservation(self) -> str:
        """Name of the reservation of an uneven pin."""
        return f"koala_start_{self.job}"


def make_pin(job: str, nodes: Sequence[str]) -> Pin:
    """Return the pin of one entry for each processor. Raises LrmRejectedError for what is no node name."""
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise LrmRejectedError(f"{node!r} is no node name", hint="name nodes that sinfo shows")
    if not nodes:
        raise LrmRejectedError(f"no nodes given for job {job}", hint="name nodes that sinfo shows")
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node] = counts.get(node, 0) + 1
    return Pin(job=checked(job), counts=counts)


def pin_commands(pin: Pin) -> tuple[tuple[str, ...], ...]:
    """Return the command lines that tie a pending job to nodes; an uneven one in the reservation made for it."""
    nodes = f"ReqNodeList={','.join(pin.counts)}"
    if pin.processors == 1:
        return (_update(pin, nodes),)
    number, least = len(pin.counts), min(pin.counts.values())
    reservation = () if pin.is_even else (f"Reservation={pin.reservation}",)
    first = _update(pin, nodes, f"NumNodes={number}-{number}", f"MinCPUsNode={least}", *reservation)
    return (first,) if pin.is_even else (first, _update(pin, f"NumCPUs={pin.processors}"))


def unpin_commands(pin: Pin, before: JobDetails) -> tuple[tuple[str, ...], ...]:
    """Return the command lines that give a pending job back what it had before it was tied."""
    nodes = f"ReqNodeList={','.join(before.requested_nodes)}"
    if pin.processors == 1:
        return (_update(pin, nodes),)
    changes = [nodes, "MinCPUsNode=1"]
    if before.node_range:
        # Without an upper bound Slurm keeps ours.
        changes.append(f"NumNodes={before.node_range}{'' if '-' in before.node_range else f'-{NO_BOUND}'}")
    if not pin.is_even:
        changes.append("Reservation=")
    return (_update(pin, *changes), _update(pin, f"NumCPUs={before.processors or pin.processors}"))


def leave_reservation_command(pin: Pin) -> tuple[str, ...]:
    """Return the command line that takes a running job out of its reservation, which can then be deleted."""
    return _update(pin, "Reservation=")


def _update(pin: Pin, *changes: str) -> tuple[str, ...]:
    return ("scontrol", "update", f"JobId={pin.job}", *changes)


def reserve_command(
    pin: Pin, order: Sequence[str], *, user: str, partition: str, walltime: int | None
) -> tuple[str, ...]:
    """Return the command line that reserves the cores of a pin; ``order``: its nodes as slurm.conf orders them.

    Raises LrmRejectedError for a user or partition that cannot be written so.
    """
    if not (_USER.fullmatch(user) and _USER.fullmatch(partition)):
        raise LrmRejectedError(f"cannot reserve cores for user {user!r} in partition {partition!r}")
    return (
        "scontrol",
        "create",
        "reservation",
        f"ReservationName={pin.reservation}",
        "StartTime=now",
        f"Duration={'infinite' if walltime is None else minutes(walltime) + 5}",
        f"Users={user}",
        f"PartitionName={partition}",
        f"Nodes={','.join(order)}",
        f"CoreCnt={','.join(str(pin.counts[node]) for node in order)}",
        # If we are killed before we delete it, Slurm does.
        "Flags=PURGE_COMP=00:00:30",
    )


def unreserve_command(pin: Pin) -> tuple[str, ...]:
    """Return the command line that deletes the reservation of a pin."""
    return ("scontrol", "delete", f"ReservationName={pin.reservation}")


def show_reservation_command(pin: Pin) -> tuple[str, ...]:
    """Return the command line that shows the reservation of a pin."""
    return ("scontrol", "--oneliner", "show", "reservation", pin.reservation)


def reserved_order(output: str) -> tuple[str, ...]:
    """Return the nodes of a reservation in the order in which Slurm read the numbers of cores."""
    match = _RESERVED_NODES.search(output)
    return expand(match[1]) if match else ()


def natural_order(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return nodes as sites usually number them (n2 before n10): the first guess at slurm.conf's order."""
    return tuple(sorted(nodes, key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    pieces = (piece for piece in re.split(r"([0-9]+)", name) if piece)
    return [(int(piece), "") if piece.isdecimal() else (0, piece) for piece in pieces]
