# SPDX-License-Identifier: Apache-2.0
"""Starts of held Slurm jobs on chosen nodes: pins, notes on disk, reserved cores, and the start."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.model import LrmJobState
from koala_adapter.wire.hostlists import expand
from koala_slurm import client
from koala_slurm.listing import ENVIRONMENT, EVERY_JOB, idle_command, new_separator, parse_nodes
from koala_slurm.requests import (
    JobDetails,
    details_command,
    everything_format,
    parse_everything,
    parse_one_detailed,
    with_details,
)
from koala_slurm.words import checked, minutes, waiting_elements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.model import LrmJob
    from koala_slurm.client import SlurmCommands
    from koala_slurm.library import LibraryAccess


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


# -- Reserved cores ------------------------------------------------------------------------------------------
# Keeping different numbers of cores on several nodes for one job, until it runs: the commands, and doing it.
#
# Slurm's schedulers spread a job as they like; only a reservation gives it so many cores on each node. Until 23.02 one
# request does that, with a number for each node (``CoreCnt=4,2``). From 23.11 on ``CoreCnt`` is one number that Slurm
# spreads over the nodes by itself. So the idle cores that are *not* wanted are reserved first, node by node; then the
# wanted number over all the nodes, which leaves Slurm no choice; then the others are free again.

TRIES = 3
"""Cores become idle or busy between a look and a request; then both are repeated so often."""

PAUSE = 0.3
"""Seconds between two tries."""

NODES_BUSY = "requested nodes are busy"
"""Slurm's complaint when there are fewer idle cores than were just listed."""

WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.UNKNOWN})

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]*", re.ASCII)
_NODES = re.compile(r"(?:^|\s)Nodes=(\S+)")
_CORES = re.compile(r"\sNodeName=(?P<nodes>\S+) CoreIDs=(?P<cores>[0-9,-]+)")


@dataclass(slots=True)
class Reserved:
    """What the starts on one cluster know of each other."""

    natural: bool = False
    """slurm.conf has its nodes in the order of their names, which need be looked at once."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """One start at a time looks for idle cores and takes them."""
    promised: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Cores, by job, that are reserved for its start, which is not over."""

    def on(self, nodes: Iterable[str]) -> list[str]:
        """Return the jobs for whose starts cores of these nodes are reserved."""
        wanted = set(nodes)
        return [job for job, counts in self.promised.items() if wanted & counts.keys()]

    def idle(self, idle: Mapping[str, int], waiting: Container[str]) -> dict[str, int]:
        """Return which of the idle cores of nodes are not promised to another job; those that run have theirs."""
        promised = [counts for job, counts in self.promised.items() if job in waiting]
        taken = {node: sum(counts.get(node, 0) for counts in promised) for node in idle}
        return {node: max(0, number - taken[node]) for node, number in idle.items()}


# ---- commands (pure) ------------------------------------------------------------------------------------------------


def reserve_command(
    name: str, nodes: Sequence[str], cores: Sequence[int], *, user: str, partition: str, walltime: int | None
) -> tuple[str, ...]:
    """Return the command line that reserves cores: a number for each node, as slurm.conf orders them, or one for all.

    Raises LrmRejectedError for a user or partition that cannot be written so.
    """
    if not (_USER.fullmatch(user) and _USER.fullmatch(partition)):
        raise LrmRejectedError(f"cannot reserve cores for user {user!r} in partition {partition!r}")
    return (
        "scontrol",
        "create",
        "reservation",
        f"ReservationName={name}",
        "StartTime=now",
        f"Duration={'infinite' if walltime is None else minutes(walltime) + 5}",
        f"Users={user}",
        f"PartitionName={partition}",
        f"Nodes={','.join(nodes)}",
        f"CoreCnt={','.join(map(str, cores))}",
        # If we are killed before we delete it, Slurm does.
        "Flags=PURGE_COMP=00:00:30",
    )


def unreserve_command(name: str) -> tuple[str, ...]:
    """Return the command line that deletes a reservation."""
    return ("scontrol", "delete", f"ReservationName={name}")


def show_reservation_command(name: str) -> tuple[str, ...]:
    """Return the command line that shows a reservation."""
    return ("scontrol", "--oneliner", "show", "reservation", name)


def reserved_order(output: str) -> tuple[str, ...]:
    """Return the nodes of a reservation in the order in which Slurm read the numbers of cores."""
    match = _NODES.search(output)
    return expand(match[1]) if match else ()


def reserved_cores(output: str) -> dict[str, int]:
    """Return how many cores of each node are in a reservation; nothing for text that cannot be read."""
    found: dict[str, int] = {}
    for match in _CORES.finditer(output):
        try:
            number = len(waiting_elements(match["cores"]))
        except ValueError:
            return {}
        for node in expand(match["nodes"]):
            found[node] = found.get(node, 0) + number
    return found


# ---- doing it -------------------------------------------------------------------------------------------------------


class CoreReservation:
    """The reservation of one start."""

    def __init__(
        self,
        commands: SlurmCommands,
        pin: Pin,
        reserved: Reserved,
        *,
        numbers_by_node: bool,
        threads: Mapping[str, int] | None = None,
    ) -> None:
        """Nothing is asked yet. ``numbers_by_node``: this Slurm takes a number of cores for each node.

        ``threads``: processors of a core, by node, where they are more than one.
        """
        self._commands = commands
        self._threads = threads or {}
        self._pin = pin
        self._reserved = reserved
        self._numbers_by_node = numbers_by_node

    async def make(self, job: LrmJob) -> None:
        """Reserve the cores of the pin. Raises LrmError, with nothing reserved."""
        threads = {node: self._threads.get(node, 1) for node in self._pin.counts}
        cores = {node: job.cores(count, threads[node]) for node, count in self._pin.counts.items()}
        self._pin = replace(self._pin, counts=cores)
        async with self._reserved.lock:
            try:
                await (self._make_by_node(job) if self._numbers_by_node else self._make_from_idle(job))
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._delete(self._pin.reservation)
                raise
            self._reserved.promised[self._pin.job] = self._pin.counts

    async def give_back(self, *, after_kill: bool = False) -> None:
        """Take the job out of the reservation, if it is in it, and delete that. Raises LrmUnavailableError.

        ``after_kill``: whoever made it was killed, perhaps in the middle of that.
        """
        spare = self._spare_names().values() if after_kill and not self._numbers_by_node else ()
        leave = leave_reservation_command(self._pin)
        for command in (leave, *map(unreserve_command, (self._pin.reservation, *spare))):
            with suppress(LrmRejectedError, LrmNotFoundError):  # it is in none, or there is none
                await self._commands.change(command, action="start_on")
        self._reserved.promised.pop(self._pin.job, None)

    def distrust_order(self) -> None:
        """Look at the order of the nodes again next time: a job came to run elsewhere than it should."""
        self._reserved.natural = False

    async def _make_by_node(self, job: LrmJob) -> None:
        await self._until_idle(partial(self._try_by_node, job))

    async def _try_by_node(self, job: LrmJob) -> bool:
        order = natural_order(tuple(self._pin.counts))
        for _ in range(2):
            await self._reserve(self._pin.reservation, order, [self._pin.counts[node] for node in order], job)
            if self._reserved.natural:
                return True
            seen = reserved_order(await self._show())
            if seen == tuple(order):
                self._reserved.natural = order == natural_order(seen)
                return True
            await self._delete(self._pin.reservation)
            if set(seen) != set(order):
                break
            order = seen
        raise LrmRejectedError(
            f"cores of {', '.join(order)} could not be reserved in the order of slurm.conf",
            hint="list the nodes in slurm.conf in the order of their names",
        )

    async def _make_from_idle(self, job: LrmJob) -> None:
        await self._until_idle(partial(self._try_from_idle, job))

    async def _until_idle(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Try to reserve a few times: cores of a job that has just ended, or just left its reservation, seem busy."""
        for _ in range(TRIES):
            try:
                if await attempt():
                    return
            except LrmUnavailableError as error:
                if NODES_BUSY not in error.message.lower():
                    raise
            await self._delete(self._pin.reservation)
            await anyio.sleep(PAUSE)
        message = f"the cores for job {self._pin.job} could not be reserved on {', '.join(self._pin.counts)}"
        raise LrmUnavailableError(message, hint="the nodes are busy, or in another reservation; the job stays held")

    async def _try_from_idle(self, job: LrmJob) -> bool:
        counts = self._pin.counts
        waiting = await self._waiting(self._reserved.on(counts))
        listed = await self._commands.read(idle_command(tuple(counts)), action="listing of nodes")
        cores = {node.name: node.processors_idle // self._threads.get(node.name, 1) for node in parse_nodes(listed)}
        idle = self._reserved.idle(cores, waiting)
        spare = {node: idle.get(node, 0) - count for node, count in counts.items()}
        if min(spare.values()) < 0:
            return False
        names = {node: name for node, name in self._spare_names().items() if spare[node]}
        try:
            for node, name in names.items():
                await self._reserve(name, [node], [spare[node]], job)
            await self._reserve(self._pin.reservation, natural_order(tuple(counts)), [self._pin.processors], job)
        finally:
            with anyio.CancelScope(shield=True):
                for name in names.values():
                    await self._delete(name)
        return reserved_cores(await self._show()) == counts

    async def _waiting(self, jobs: Sequence[str]) -> set[str]:
        """Return which of these jobs do not run yet."""
        if not jobs:
            return set()
        separator = new_separator()
        command = (*EVERY_JOB, f"--jobs={','.join(jobs)}")
        with suppress(LrmNotFoundError):
            listed = await self._commands.read(
                command, action="looking at jobs", environment=everything_format(separator)
            )
            return {str(job.id) for job in parse_everything(listed, separator) if job.state in WAITING}
        return set()

    def _spare_names(self) -> dict[str, str]:
        return {node: f"koala_spare_{self._pin.job}_{place}" for place, node in enumerate(self._pin.counts)}

    async def _reserve(self, name: str, nodes: Sequence[str], cores: Sequence[int], job: LrmJob) -> None:
        user, partition = _findable(job.user), job.queue.partition(",")[0]
        command = reserve_command(name, nodes, cores, user=user, partition=partition, walltime=job.walltime)
        await self._commands.change(command, action="start_on")

    async def _delete(self, name: str) -> None:
        with suppress(LrmError):
            await self._commands.change(unreserve_command(name), action="start_on")

    async def _show(self) -> str:
        return await self._commands.read(show_reservation_command(self._pin.reservation), action="reservation")


def _findable(user: str) -> str:
    """Return a user as Slurm finds him: 25.11 does not find who is called nobody, but by his number."""
    if user == "nobody":
        with suppress(KeyError):
            return str(pwd.getpwnam(user).pw_uid)
    return user


# -- One start -----------------------------------------------------------------------------------------------
# A held job is tied to nodes and released; its start ends when it runs, or when it is held and untied again. Between
# the two, the cores of an uneven pin are reserved, and a note is on disk of what the job had before.


def hold_verb(before: JobDetails) -> str:
    """Return what puts a job in hold again as it was."""
    return "hold" if before.reason == "JobHeldAdmin" else "uhold"


class Starting:
    """One start of a job on chosen nodes."""

    def __init__(
        self,
        commands: SlurmCommands,
        pin: Pin,
        notes: StartNotes,
        *,
        reservation: CoreReservation,
        library: LibraryAccess | None = None,
    ) -> None:
        """Nothing is asked yet. ``reservation``: for an uneven pin. ``library``: pyslurm, for what it can change."""
        self._library = library
        self._commands = commands
        self._pin = pin
        self._notes = notes
        self._reservation = reservation
        self._after_kill = False

    # -- asking ------------------------------------------------------------------------------------------------------

    async def begin(self, known: tuple[LrmJob, JobDetails] | None = None) -> None:
        """Tie the job and release it. Raises LrmError; after LrmRejectedError it is in hold as it was before.

        ``known``: the waiting job as it was listed lately, which saves asking for it.
        """
        job, shown = known or (await self._job(), await self._details())
        kept = self._notes.kept.get(self._pin.job)
        ran_before = kept is not None and kept.is_of(job)
        before = kept.asked(shown) if kept is not None and ran_before else shown
        self._require_number_of_nodes(before)
        self._notes.write(self._pin, before, job)
        try:
            if not self._pin.is_even:
                await self._reservation.make(with_details(job, shown))
            # pyslurm cannot change more than the list of nodes.
            if self._pin.processors > 1 or not await self._by_library("pin", next(iter(self._pin.counts))):
                for command in pin_commands(self._pin, before):
                    await self._change(command)
            # Not with the last of these: Slurm does not take a priority for a job in hold.
            if not await self._by_library("release"):
                await self._change(client.job_command("release", [self._pin.job]))
        except (LrmRejectedError, LrmNotFoundError):
            with anyio.CancelScope(shield=True):
                await self._undo(before, ran_before=ran_before)
            raise

    def _require_number_of_nodes(self, asked: JobDetails) -> None:
        """Raise LrmRejectedError when the user asked for another number of nodes: tying would overwrite that."""
        given = len(self._pin.counts)
        if not asked.nodes_least <= given <= (asked.nodes_most or given):
            message = f"job {self._pin.job} asks for {asked.node_range} nodes (sbatch -N), and {given} are given"
            raise LrmRejectedError(message, hint="name as many nodes as its user allows")

    async def _undo(self, before: JobDetails, *, ran_before: bool) -> None:
        """Give a job that Slurm does not start what it had. Raises LrmUnavailableError."""
        # It may be gone, or nobody may change it. Between two of the requests that tie it it is smaller than it is.
        with suppress(LrmRejectedError, LrmNotFoundError):
            await self._untie(before)
        await self._close(ran_before=ran_before, free=True)

    # -- ending ------------------------------------------------------------------------------------------------------

    async def confirm(self) -> None:
        """End the start of a job that runs, and has been put in hold. Raises LrmError."""
        await self._close(ran_before=True, free=False)

    async def undo_start(self, note: StartNote, *, after_kill: bool = False) -> None:
        """Hold and untie a job that waits; leave it alone if Slurm has started it. Raises LrmError.

        ``after_kill``: who asked for the start was killed in the middle of it.
        """
        self._reservation.distrust_order()
        self._after_kill = after_kill
        before = note.before()
        try:
            seen = await self._job()
            if seen.state not in {LrmJobState.HELD, LrmJobState.ENDED}:
                seen = await self._held(before)
        except LrmNotFoundError:
            await self._close(ran_before=False, free=True)
            return
        waits = seen.state in WAITING
        if waits:
            await self._untie(before)
        await self._close(ran_before=seen.requeues > 0 or not waits, free=waits)

    async def _held(self, before: JobDetails) -> LrmJob:
        """Hold the job and return it as it is then. Raises LrmRejectedError when it waits and cannot be held."""
        refusal: LrmRejectedError | None = None
        try:
            await self._hold(before)
        except LrmRejectedError as error:  # it may have ended meanwhile
            refusal = error
        # What gives a waiting job its nodes back would take nodes from one that has started meanwhile.
        seen = await self._job()
        if refusal is not None and seen.state in WAITING - {LrmJobState.HELD}:
            raise refusal
        return seen

    async def _close(self, *, ran_before: bool, free: bool) -> None:
        """Give the cores back if they are reserved still, and the note away when the job is as it was."""
        if not self._pin.is_even and self._notes.is_open(self._pin.job):
            await self._reservation.give_back(after_kill=self._after_kill)
        if ran_before:
            self._notes.keep(self._pin.job, free=free)
        else:
            self._notes.remove(self._pin.job)

    async def _hold(self, before: JobDetails) -> None:
        await self._change(client.job_command(hold_verb(before), [self._pin.job]))

    async def _untie(self, before: JobDetails) -> None:
        for command in unpin_commands(self._pin, before):
            await self._change(command)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _job(self) -> LrmJob:
        separator = new_separator()
        command = (*EVERY_JOB, f"--jobs={self._pin.job}")
        jobs = parse_everything(await self._read(command, everything_format(separator)), separator)
        found = next((job for job in jobs if job.id == self._pin.job), None)
        if found is None:
            raise LrmNotFoundError(f"job {self._pin.job} has gone while it was started")
        return found

    async def _details(self) -> JobDetails:
        return parse_one_detailed(await self._read(details_command(self._pin.job), ENVIRONMENT))

    async def _read(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        return await self._commands.read(command, action="looking at a job", environment=environment)

    async def _by_library(self, verb: str, value: object = None) -> bool:
        return self._library is not None and await self._library.change(verb, [self._pin.job], value)

    async def _change(self, command: Sequence[str]) -> None:
        await self._commands.change(command, action="start_on")
