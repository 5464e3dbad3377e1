# SPDX-License-Identifier: Apache-2.0
"""Pins of held Slurm jobs to chosen nodes, and what jobs had before as text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_slurm.requests import JobDetails
from koala_slurm.words import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# -- Pins ----------------------------------------------------------------------------------------------------
# Tying a held job to nodes with an exact number of processors on each: which requests make Slurm do that.
#
# Seen in 22.05 and 25.11 with select/cons_tres:
#
# - as many processors on each of its nodes, or only one node: ``ReqNodeList``, ``NumNodes`` and ``MinCPUsNode``; any
#   owner may ask for it;
# - different numbers: only a reservation of so many cores on each node does it (below), which needs an operator's
#   rights. The job leaves it as soon as it runs, and stays where it is.
#
# ``NumNodes`` is changed only where it has to be, because what it was cannot always be told: from 23.11 on ``1-1`` may
# be what a user asked for or not, and a change without an upper bound sets one.
#
# An update of ``NumNodes`` or ``MinCPUsNode`` makes ``NumCPUs`` their product, without a word: a job of six processors
# would start with two. Where that is not the right number ``NumCPUs`` is set again, in a request of its own, because
# Slurm reads it first.

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)

NO_BOUND = 100_000
"""More nodes than any cluster has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Nodes for a job's start, with processors on each in the order asked for."""

    job: str
    counts: Mapping[str, int]

    @property
    def processors(self) -> int:
        """Processors on all nodes."""
        return sum(self.counts.values())

    @property
    def is_even(self) -> bool:
        """Whether all nodes have the same number of processors."""
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


def pin_commands(pin: Pin, before: JobDetails) -> tuple[tuple[str, ...], ...]:
    """Return the command lines that tie a pending job to nodes; an uneven one in the reservation made for it."""
    nodes = f"ReqNodeList={','.join(pin.counts)}"
    if pin.processors == 1:
        return (_update(pin, nodes),)
    number, least = len(pin.counts), min(pin.counts.values())
    range_ = (f"NumNodes={number}-{number}",) if _changes_range(pin, before) else ()
    reservation = () if pin.is_even else (f"Reservation={pin.reservation}",)
    first = _update(pin, nodes, *range_, f"MinCPUsNode={least}", *reservation)
    return (first,) if pin.is_even else (first, _update(pin, f"NumCPUs={pin.processors}"))


def unpin_commands(pin: Pin, before: JobDetails) -> tuple[tuple[str, ...], ...]:
    """Return the command lines that give a pending job back what it had before it was tied."""
    nodes = f"ReqNodeList={','.join(before.requested_nodes)}"
    if pin.processors == 1:
        return (_update(pin, nodes),)
    changes = [nodes, "MinCPUsNode=1"]
    if before.node_range and _changes_range(pin, before):
        # Without an upper bound Slurm keeps ours.
        changes.append(f"NumNodes={before.node_range}{'' if '-' in before.node_range else f'-{NO_BOUND}'}")
    if not pin.is_even:
        changes.append("Reservation=")
    return (_update(pin, *changes), _update(pin, f"NumCPUs={before.processors or pin.processors}"))


def _changes_range(pin: Pin, before: JobDetails) -> bool:
    number = len(pin.counts)
    # With an upper bound above one, Slurm takes more nodes than the one that is asked for.
    return before.node_range not in {f"{number}-{number}", *(("1",) if number == 1 else ())}


def leave_reservation_command(pin: Pin) -> tuple[str, ...]:
    """Return the command line that takes a running job out of its reservation, which can then be deleted."""
    return _update(pin, "Reservation=")


def _update(pin: Pin, *changes: str) -> tuple[str, ...]:
    return ("scontrol", "update", f"JobId={pin.job}", *changes)


def natural_order(nodes: Sequence[str]) -> tuple[str, ...]:
    """Sort nodes numerically (n2 before n10), the likely order in slurm.conf."""
    return tuple(sorted(nodes, key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    pieces = (piece for piece in re.split(r"([0-9]+)", name) if piece)
    return [(int(piece), "") if piece.isdecimal() else (0, piece) for piece in pieces]


# -- What a job asked for before it was tied -----------------------------------------------------------------
# Between two of the requests that tie it, Slurm has the job smaller than it is, and a job that has run and is queued
# again comes back tied. So the core keeps this text of ours on disk while it starts a job, and until the job is over.


def original_text(details: JobDetails) -> str:
    """Return as text what unpin_commands must know of a job."""
    return json.dumps(
        {
            "processors": details.processors,
            "node_range": details.node_range,
            "requested_nodes": details.requested_nodes,
            "reason": details.reason,
        }
    )


def parse_original(text: str) -> JobDetails | None:
    """Parse the text of original_text; None for an empty or unreadable one."""
    try:
        values = json.loads(text)
        return JobDetails(**{**values, "requested_nodes": tuple(values["requested_nodes"])})
    except (ValueError, KeyError, TypeError):
        return None
