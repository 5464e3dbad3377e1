# SPDX-License-Identifier: Apache-2.0
"""Pins of held Slurm jobs to chosen nodes, and keeping cores for them until they run.

Slurm's schedulers spread a job as they like; only a reservation gives it so many cores on each node. Until 23.02 one
request does that, with a number for each node (``CoreCnt=4,2``). From 23.11 on ``CoreCnt`` is one number that Slurm
spreads over the nodes by itself. So the idle cores that are *not* wanted are reserved first, node by node; then the
wanted number over all the nodes, which leaves Slurm no choice; then the others are free again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm.listing import slots_ever
from koala_adapter.model import LrmJob, LrmJobState, Node
from koala_adapter.slots import PLAIN, Slot
from koala_adapter.wire.hostlists import expand
from koala_slurm.listing import NODE_COMMAND, parse_nodes
from koala_slurm.requests import JobDetails
from koala_slurm.words import checked, minutes, waiting_elements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from koala_adapter.lrm.contract import Submission
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_slurm.client import SlurmCommands


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
    return Pin(job=checked(job), counts=Counter(nodes))


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


# -- Reservations --------------------------------------------------------------------------------------------

TRIES = 3
"""Cores become idle or busy between a look and a request; then both are repeated so often."""

PAUSE = 0.3
"""Seconds between two tries."""

NODES_BUSY = "requested nodes are busy"
"""Slurm's complaint when there are fewer idle cores than were just listed."""

WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.UNKNOWN})

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]*", re.ASCII)
SHOW_RESERVATIONS = ("scontrol", "--oneliner", "show", "reservation")
_NAME = re.compile(r"^ReservationName=(\S+)", re.MULTILINE)
_USERS = re.compile(r"\sUsers=(\S+)")
_NODES = re.compile(r"(?:^|\s)Nodes=(\S+)")
_CORES = re.compile(r"\sNodeName=(?P<nodes>\S+) CoreIDs=(?P<cores>[0-9,-]+)")


# ---- commands (pure) ------------------------------------------------------------------------------------------------


def reserve_command(
    name: str, extent: Sequence[str], *, user: str, partition: str | None, begins: str = "now", duration: str
) -> tuple[str, ...]:
    """Return the command line that reserves an extent, in numbers of cores or nodes.

    ``duration``: minutes, or ``infinite``. Raises LrmRejectedError for a user or partition that cannot be written so.
    """
    if not all(map(_WORD.fullmatch, (name, user, "default" if partition is None else partition))):
        raise LrmRejectedError(f"cannot reserve cores for user {user!r} in partition {partition!r}")
    return (
        "scontrol",
        "create",
        "reservation",
        f"ReservationName={name}",
        f"StartTime={begins}",
        f"Duration={duration}",
        f"Users={user}",
        *(() if partition is None else (f"PartitionName={partition}",)),
        *extent,
        # If we are killed before we delete it, Slurm does.
        "Flags=PURGE_COMP=00:00:30",
    )


def needs_one_core(slot: Slot) -> bool:
    """Tell whether placeholders of a slot can run on any cores of any nodes."""
    return replace(slot.shape, queue="") == PLAIN


def extent_on_nodes(placeholders: Submission, nodes: Iterable[Node], *, cores_by_node: bool) -> tuple[str, ...]:
    """Return how many nodes are reserved for slots of several cores, or of memory or GPUs, which go with whole nodes.

    ``cores_by_node``: Slurm takes a number of cores for each node. It chooses the nodes by itself, so all of them must
    have room. Raises LrmRejectedError.
    """
    slot, queue = placeholders.slot, placeholders.queue
    serving = [one for one in nodes if not queue or not one.queues or queue in one.queues]
    featured = [one for one in serving if set(slot.features) <= set(one.features)]
    room = min((slots_ever(one, slot, queue) for one in featured), default=0)
    if not room:
        message = f"Slurm chooses the nodes of a reservation, and not all of its partition have room for {slot}"
        raise LrmRejectedError(message)
    whole, rest = divmod(placeholders.count, room)
    number = whole + bool(rest)
    words = [f"NodeCnt={number}"]
    if slot.features:
        words.append(f"Features={'&'.join(slot.features)}")
    single = all(one.grain_in(queue) == 1 for one in featured)
    if single and needs_one_core(replace(slot, threads=1, features=())) and (cores_by_node or number == 1):
        cores = [room * slot.threads] * whole + [rest * slot.threads] * bool(rest)
        words.append(f"CoreCnt={','.join(map(str, cores))}")
    return tuple(words)


def parse_reservations(output: str, user: str) -> Mapping[str, str]:
    """Return the reservations for a user by name, each with the word by which sbatch is told of it."""
    lines = (line for line in output.splitlines() if user in (_USERS.search(line) or ("", ""))[1].split(","))
    return {found[1]: found[1] for line in lines if (found := _NAME.search(line))}


def unreserve_command(name: str) -> tuple[str, ...]:
    """Return the command line that deletes a reservation."""
    return ("scontrol", "delete", f"ReservationName={name}")


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


def unpromised(idle: Mapping[str, int], promised: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return idle cores of nodes that are not promised to other jobs; ``promised``: those of each job."""
    taken = Counter[str]()
    for counts in promised:
        taken.update(counts)
    return {node: max(0, number - taken[node]) for node, number in idle.items()}


# ---- doing it -------------------------------------------------------------------------------------------------------


class CoreReservations:
    """Reservations for starts on one cluster."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self.threads: Mapping[str, int] = {}
        """Processors of a core, by node, where they are more than one."""
        self.promised: dict[str, Mapping[str, int]] = {}
        """Cores, by job, that are reserved for its start, which is not over."""
        self._natural = False
        """slurm.conf has its nodes in the order of their names, which need be looked at once."""
        self._lock = anyio.Lock()
        """One start at a time looks for idle cores and takes them."""
        self._left: frozenset[str] | None = None
        """Reservations that an earlier process may have left; None: they were not looked for yet."""

    async def make(self, pin: Pin, job: LrmJob, *, by_node: bool) -> None:
        """Reserve the cores of a pin. Raises LrmError, with nothing reserved.

        ``by_node``: this Slurm takes a number of cores for each node.
        """
        threads = {node: self.threads.get(node, 1) for node in pin.counts}
        pin = replace(pin, counts={node: job.cores(count, threads[node]) for node, count in pin.counts.items()})
        async with self._lock:
            try:
                await self._until_idle(pin, partial(self._try_by_node if by_node else self._try_from_idle, pin, job))
            except BaseException:
                # Where there is no answer something may be left, and is looked for again.
                self._left = None
                with anyio.CancelScope(shield=True):
                    await self._delete(pin.reservation)
                raise
            self.promised[pin.job] = pin.counts

    async def give_back(self, pin: Pin) -> None:
        """Remove the job from the reservation and delete that. Raises LrmError.

        Also those that a process has left which was killed in the middle of making them.
        """
        names = [pin.reservation]
        if pin.job not in self.promised:
            left = await self._reservations_left()
            names = [name for name in (pin.reservation, *_spare_names(pin).values()) if name in left]
        # A running job is taken out of its reservation, which can then be deleted.
        commands = map(unreserve_command, names)
        for command in (_update(pin, "Reservation="), *commands) if names else ():
            with suppress(LrmRejectedError, LrmNotFoundError):  # it is in none, or there is none
                await self._commands.change(command, action="start_on")
        self.promised.pop(pin.job, None)

    async def _reservations_left(self) -> frozenset[str]:
        """Return reservations that existed at the first look, left by earlier processes."""
        if self._left is None:
            shown = await self._commands.read(SHOW_RESERVATIONS, action="listing of reservations")
            self._left = frozenset(_NAME.findall(shown))
        return self._left

    def distrust_order(self) -> None:
        """Read the order of nodes again, as a job ran on the wrong ones."""
        self._natural = False

    async def _try_by_node(self, pin: Pin, job: LrmJob) -> bool:
        order = natural_order(tuple(pin.counts))
        for _ in range(2):
            await self._reserve(pin.reservation, order, [pin.counts[node] for node in order], job)
            if self._natural:
                return True
            seen = reserved_order(await self._show(pin))
            if seen == tuple(order):
                self._natural = order == natural_order(seen)
                return True
            await self._delete(pin.reservation)
            if set(seen) != set(order):
                break
            order = seen
        raise LrmRejectedError(
            f"cores of {', '.join(order)} could not be reserved in the order of slurm.conf",
            hint="list the nodes in slurm.conf in the order of their names",
        )

    async def _until_idle(self, pin: Pin, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Retry a reservation a few times, as cores that have just come free may still seem busy."""
        for _ in range(TRIES):
            try:
                if await attempt():
                    return
            except LrmUnavailableError as error:
                if NODES_BUSY not in error.message.lower():
                    raise
            await self._delete(pin.reservation)
            await anyio.sleep(PAUSE)
        message = f"the cores for job {pin.job} could not be reserved on {', '.join(pin.counts)}"
        raise LrmUnavailableError(message, hint="the nodes are busy, or in another reservation; the job stays held")

    async def _try_from_idle(self, pin: Pin, job: LrmJob) -> bool:
        counts = pin.counts
        others = [other for other, promised in self.promised.items() if counts.keys() & promised.keys()]
        waiting = await self._waiting(others)
        command = (*NODE_COMMAND, f"--nodes={','.join(counts)}")
        listed = await self._commands.read(command, action="listing of nodes")
        cores = {node.name: node.processors_idle // self.threads.get(node.name, 1) for node in parse_nodes(listed)}
        idle = unpromised(cores, [promised for other, promised in self.promised.items() if other in waiting])
        spare = {node: idle.get(node, 0) - count for node, count in counts.items()}
        if min(spare.values()) < 0:
            return False
        names = {node: name for node, name in _spare_names(pin).items() if spare[node]}
        try:
            for node, name in names.items():
                await self._reserve(name, [node], [spare[node]], job)
            await self._reserve(pin.reservation, natural_order(tuple(counts)), [pin.processors], job)
        finally:
            with anyio.CancelScope(shield=True):
                for name in names.values():
                    await self._delete(name)
        return reserved_cores(await self._show(pin)) == counts

    async def _waiting(self, jobs: Sequence[str]) -> set[str]:
        """Return which of these jobs do not run yet."""
        if not jobs:
            return set()
        with suppress(LrmNotFoundError):
            listed = await self._commands.everything(f"--jobs={','.join(jobs)}", action="looking at jobs")
            return {str(job.id) for job in listed if job.state in WAITING}
        return set()

    async def _reserve(self, name: str, nodes: Sequence[str], cores: Sequence[int], job: LrmJob) -> None:
        user, partition = await _findable(self._commands.host, job.user), job.queue.partition(",")[0]
        # A number for each node, as slurm.conf orders them, or one for all.
        extent = (f"Nodes={','.join(nodes)}", f"CoreCnt={','.join(map(str, cores))}")
        duration = "infinite" if job.walltime is None else str(minutes(job.walltime) + 5)
        command = reserve_command(name, extent, user=user, partition=partition, duration=duration)
        await self._commands.change(command, action="start_on")

    async def _delete(self, name: str) -> None:
        with suppress(LrmError):
            await self._commands.change(unreserve_command(name), action="start_on")

    async def _show(self, pin: Pin) -> str:
        return await self._commands.read((*SHOW_RESERVATIONS, pin.reservation), action="reservation")


async def _findable(host: LrmHost, user: str) -> str:
    """Return a user's name, or the number of the account ``nobody``: Slurm 25.11 does not find it by its name."""
    if user == "nobody":
        status, output, _ = await host.run(("id", "-u", "--", user))
        return output.decode("ascii").strip() if status == 0 else user
    return user


def _spare_names(pin: Pin) -> dict[str, str]:
    return {node: f"koala_spare_{pin.job}_{place}" for place, node in enumerate(pin.counts)}
