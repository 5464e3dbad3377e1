# SPDX-License-Identifier: Apache-2.0
"""Pins of held Slurm jobs to chosen nodes, and notes on disk of what jobs had before."""

from __future__ import annotations

import fcntl
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError, LrmUnreachableError
from koala_slurm.requests import (
    JobDetails,
)
from koala_slurm.words import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from koala_adapter.model import LrmJob

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
    """Return nodes as sites usually number them (n2 before n10): the first guess at slurm.conf's order."""
    return tuple(sorted(nodes, key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    pieces = (piece for piece in re.split(r"([0-9]+)", name) if piece)
    return [(int(piece), "") if piece.isdecimal() else (0, piece) for piece in pieces]


# -- Notes of tied jobs --------------------------------------------------------------------------------------
# What a job had before it was tied to nodes, on disk as long as it is tied. Between two of the requests that tie it,
# Slurm has the job smaller than it is, and a job that has run and is queued again comes back tied; only such a note can
# tell what its user had asked for. While a start is tried its note is locked by the process that wrote it; the kernel
# unlocks it when that process ends, however it ends. Afterwards it is kept until the job is over, or has been untied.


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNote:
    """What one job asked for before it was tied, and the nodes of its start."""

    job: str
    nodes: tuple[str, ...]
    """One entry for each processor."""
    processors: int
    node_range: str
    requested_nodes: tuple[str, ...]
    reason: str
    user: str = ""
    submitted_at: float | None = None
    started: bool = False
    """It is over with the start; the job ran there, or may still be tied."""
    free: bool = False
    """The job was queued again and has been untied; Slurm does not show its range of nodes any more."""

    def is_of(self, job: LrmJob) -> bool:
        """Tell whether a job is the one of this note, and not a later one with its number."""
        if self.user and self.user != job.user:
            return False
        return job.requeues > 0 or self.submitted_at in {None, job.submitted_at}

    def asked(self, shown: JobDetails) -> JobDetails:
        """Return what the user of a waiting job asks for, of which Slurm shows this."""
        if not self.free:
            return self.before()
        return shown if "-" in shown.node_range else replace(shown, node_range=self.node_range)

    def before(self) -> JobDetails:
        """Return what the job had."""
        return JobDetails(
            processors=self.processors,
            node_range=self.node_range,
            requested_nodes=self.requested_nodes,
            reason=self.reason,
        )


class StartNotes:
    """The notes of one cluster, each a file of mode 0600."""

    def __init__(self, directory: Path) -> None:
        """The directory is made with the first note."""
        self._directory = directory
        self._locked: dict[str, int] = {}
        self.kept: dict[str, StartNote] = {}
        """Notes of jobs that were started, by job."""
        self._written: dict[str, StartNote] = {}

    def write(self, pin: Pin, before: JobDetails, job: LrmJob) -> None:
        """Write the note of a start, for certain. Raises LrmUnreachableError: then nothing may be changed."""
        note = StartNote(
            job=pin.job,
            nodes=tuple(node for node, count in pin.counts.items() for _ in range(count)),
            processors=before.processors,
            node_range=before.node_range,
            requested_nodes=before.requested_nodes,
            reason=before.reason,
            user=job.user,
            submitted_at=job.submitted_at,
        )
        path = self._path(pin.job)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._locked[pin.job] = descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(asdict(note)).encode())
            os.fsync(descriptor)
            path.with_suffix(".new").replace(path)
            self.kept.pop(pin.job, None)
            self._written[pin.job] = note
        except OSError as error:
            self._unlock(pin.job)
            message = f"cannot note the start of job {pin.job} in {self._directory}: {error.strerror}"
            raise LrmUnreachableError(message, hint="is the disk full?") from error

    def of(self, job: str) -> StartNote | None:
        """Return the note of a start of ours, under way or over."""
        return self._written.get(job) or self.kept.get(job)

    def is_open(self, job: str) -> bool:
        """Tell whether a start of ours is not over."""
        return job in self._written

    def keep(self, job: str, *, free: bool = False) -> None:
        """Keep the note of a start that is over; harmless when there is none. ``free``: the job is not tied any more.

        It is not forced to disk: a process that finds it as it was before looks at the job again.
        """
        note = self._written.pop(job, None) or self.kept.get(job)
        if note is not None:
            self.kept[job] = note = replace(note, started=True, free=free)
            temporary = self._path(job).with_suffix(".new")
            with suppress(OSError):
                temporary.write_text(json.dumps(asdict(note)))
                temporary.chmod(0o600)
                temporary.replace(self._path(job))
        self._unlock(job)

    def remove(self, job: str) -> None:
        """Remove a note; harmless when there is none."""
        self._path(job).unlink(missing_ok=True)
        self.kept.pop(job, None)
        self._written.pop(job, None)
        self._unlock(job)

    def _unlock(self, job: str) -> None:
        descriptor = self._locked.pop(job, None)
        if descriptor is not None:
            os.close(descriptor)

    def left(self) -> tuple[StartNote, ...]:
        """Return the notes of starts whose writers have ended in the middle; those of starts that are over are kept.

        One that cannot be read was never acted upon, and is removed.
        """
        found: list[StartNote] = []
        for path in sorted(self._directory.glob("*.json")):
            if _is_locked(path):
                continue
            try:
                values = json.loads(path.read_text())
                lists = {name: tuple(map(str, values[name])) for name in ("nodes", "requested_nodes")}
                note = StartNote(**{**values, **lists})
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
                continue
            if note.started:
                self.kept.setdefault(note.job, note)
            else:
                self._written[note.job] = note
                found.append(note)
        return tuple(found)

    def _path(self, job: str) -> Path:
        return self._directory / f"{job}.json"


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
