# SPDX-License-Identifier: Apache-2.0
"""What the fake Slurm knows, in one locked file, and what becomes of its jobs."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from tests.fakes.scripts import Directory, Refusal, detach, end_script, locked, run_script, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager


class Settings(TypedDict):
    """Contents of the fake's slurm.conf."""

    cluster: str
    release: str
    nodes: dict[str, int]
    """Processors of each node."""
    partition: str
    max_array_size: int
    accounting: bool
    site_hook: bool
    """The site's submission hook marks jobs as those of an outside scheduler."""
    whole_nodes: bool
    """The partition says that it gives whole nodes; jobs get single processors all the same."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One job or array element."""

    id: int
    array: int
    element: int
    """-1 for a job that is no array."""
    name: str
    user: str
    partition: str
    minutes: int
    output: str
    requeue: bool
    submitted: float
    environment: dict[str, str]
    state: str = "PENDING"
    reason: str = "None"
    node: str = ""
    processors: int = 1
    places: dict[str, int] = field(default_factory=dict)
    """Processors that it has on each node."""
    wanted: list[str] = field(default_factory=list)
    nodes_low: int = 1
    nodes_high: int = 0
    """Upper bound of its number of nodes; 0: none."""
    least: int = 1
    """Processors that it needs on each node."""
    reservation: str = ""
    comment: str = "(null)"
    admin_comment: str = "(null)"
    started: float = 0.0
    ended: float = 0.0
    status: int = 0
    """Wait status: exit code times 256, or a signal."""
    runner: int = 0
    """Process id of the process that runs the script and waits for it."""
    fate: str = ""
    """State to enter when the script has ended by our doing: CANCELLED, TIMEOUT, or PENDING for a requeue."""

    @property
    def identity(self) -> str:
        """The id as Slurm prints it."""
        return f"{self.array}" if self.element < 0 else f"{self.array}_{self.element}"

    @property
    def alive(self) -> bool:
        """True while the job holds a processor."""
        return self.state in {"RUNNING", "SUSPENDED", "COMPLETING"}


@dataclass(slots=True, kw_only=True)
class Reservation:
    """Cores that only jobs in it can have."""

    name: str
    cores: dict[str, int]


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that changes."""

    next_id: int = 1
    jobs: list[Job] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)


class Store(Directory[Settings]):
    """The directory of one fake cluster."""

    variable = "SLURM_CONF"

    @property
    def release(self) -> tuple[int, ...]:
        """Major and minor number of the release that is played."""
        return tuple(int(number) for number in self.settings["release"].split(".")[:2])

    @property
    def exclusive_apart(self) -> bool:
        """True where sinfo does not tell which partitions give whole nodes."""
        return self.release >= (26, 5)

    def script(self, job: Job) -> Path:
        """Copy of the job's script, private to its user."""
        return self.directory / "spool" / f"{job.array}.sh"

    def process(self, job: Job) -> Path:
        """File with the process group of the running script."""
        return self.directory / "spool" / f"{job.id}.pid"

    def order(self, number: int) -> Path:
        """File with what is to be run for a job."""
        return self.directory / "spool" / f"{number}.json"

    def locked(self) -> AbstractContextManager[State]:
        """Give the state, and write it back if nothing went wrong; one process at a time."""
        return locked(self.directory, _read, State)


def _read(raw: Mapping[str, Any]) -> State:
    return State(
        next_id=raw["next_id"],
        jobs=[Job(**job) for job in raw["jobs"]],
        reservations=[Reservation(**one) for one in raw["reservations"]],
    )


# Which processors of the fake are free, and which of them a job gets: as Slurm does it, one node after the other.

LIST_IS_A_CHOICE_SINCE = (23, 11)
"""From here on a list of more nodes than a job needs says where it may start, before where it must."""


def used_processors(state: State, node: str) -> int:
    return sum(job.places.get(node, 0) for job in state.jobs if job.alive)


def free_processors(store: Store, state: State, node: str, reservation: str = "") -> int:
    """Return the processors of a node that a job can have, in a reservation or outside of all."""
    inside = {one.name: one.cores.get(node, 0) for one in state.reservations}
    if reservation:
        return inside[reservation] - _used_in(state, node, reservation)
    outside = used_processors(state, node) - sum(_used_in(state, node, name) for name in inside)
    return store.settings["nodes"][node] - sum(inside.values()) - outside


def _used_in(state: State, node: str, reservation: str) -> int:
    return sum(job.places.get(node, 0) for job in state.jobs if job.alive and job.reservation == reservation)


def place(store: Store, state: State, job: Job) -> dict[str, int] | None:
    """Return the processors on each node with which a job can start now; None when there are too few."""
    choice = store.release >= LIST_IS_A_CHOICE_SINCE and len(job.wanted) > job.nodes_low
    required = [] if choice else job.wanted
    others = job.wanted if choice else [name for name in store.settings["nodes"] if name not in required]
    low = max(job.nodes_low, len(required))
    high = job.nodes_high or len(store.settings["nodes"])
    return None if low > high else _fill(store, state, job, [*required, *others], low=low, high=high)


def _fill(store: Store, state: State, job: Job, nodes: Sequence[str], *, low: int, high: int) -> dict[str, int] | None:
    chosen: dict[str, int] = {}
    missing = job.processors
    for name in nodes:
        if len(chosen) == high or (missing == 0 and len(chosen) >= low):
            break
        kept = job.least * max(0, low - len(chosen) - 1)
        count = min(free_processors(store, state, name, job.reservation), missing - kept)
        if count >= job.least:
            chosen[name] = count
            missing -= count
    return chosen if missing == 0 and len(chosen) >= low else None


# Command lines of the fake: an option that is not declared is refused in the words of the real command.


class Parser(argparse.ArgumentParser):
    """Knows options by their full names only."""

    def __init__(self, program: str) -> None:
        """``program`` begins its complaints."""
        super().__init__(prog=program, add_help=False, allow_abbrev=False)

    def flags(self, *names: str) -> None:
        """Declare options without values."""
        for name in names:
            self.add_argument(name, action="store_true")

    def values(self, *names: str) -> None:
        """Declare options with values."""
        for name in names:
            self.add_argument(name, default="")

    def error(self, message: str) -> NoReturn:
        """Refuse as getopt does."""
        option = message.rpartition(" ")[2]
        raise Refusal(
            f"{self.prog}: unrecognized option '{option}'\nTry \"{self.prog} --help\" for more information", 255
        )


def selected(state: State, text: str) -> list[Job]:
    """Return the jobs that an argument such as ``12``, ``12_3`` or ``12_[1-3,5]`` names; none for a wrong one."""
    array, _, rest = text.partition("_")
    if not rest:
        return [job for job in state.jobs if str(job.array) == array]
    elements: set[int] = set()
    for item in rest.strip("[]").split(","):
        first, _, last = item.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return []
        elements |= set(range(int(first), int(last or first) + 1))
    return [job for job in state.jobs if str(job.array) == array and job.element in elements]


def split_jobs(text: str) -> list[str]:
    """Split a list of jobs at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


# Starting jobs on fake nodes, running their scripts, and noting how they end.


def schedule(store: Store, state: State) -> None:
    """Start every pending job that fits, in order of submission."""
    for job in sorted(state.jobs, key=lambda job: job.id):
        if job.state != "PENDING" or job.reason.startswith("JobHeld"):
            continue
        places = place(store, state, job)
        if places:
            _start(store, job, places)
        else:
            job.reason = "Resources"


def _start(store: Store, job: Job, places: dict[str, int]) -> None:
    job.state, job.reason, job.started, job.ended, job.status = "RUNNING", "None", time.time(), 0.0, 0
    job.places, job.node = places, next(iter(places))
    job.fate = ""
    store.process(job).unlink(missing_ok=True)
    # The script does not read the state: a command that cancels the job holds its lock until the script has a process.
    store.order(job.id).write_text(json.dumps(asdict(job)))
    number = job.id
    job.runner = detach(lambda: run(store, number))


def end(store: Store, job: Job, fate: str) -> None:
    """Take a running job's processes away; it enters the state ``fate`` when they are gone."""
    job.state, job.fate = "COMPLETING", fate
    end_script(store.process(job), job.runner)


def run(store: Store, number: int) -> None:
    """Run the script of a job to its end, note that, and start what now fits."""
    job = Job(**json.loads(store.order(number).read_text()))
    name = job.output.replace("%%", "\0").replace("%x", job.name).replace("%a", str(job.element)).replace("\0", "%")
    ended = run_script(
        store.script(job),
        output=Path(name),
        environment={
            **job.environment,
            "SLURM_JOB_ID": str(job.id),
            "SLURM_ARRAY_JOB_ID": str(job.array),
            "SLURM_ARRAY_TASK_ID": str(job.element),
            "SLURMD_NODENAME": job.node,
        },
        process_file=store.process(job),
        seconds=job.minutes * 60,
    )
    with store.locked() as state:
        job = next(job for job in state.jobs if job.id == number)
        _note_end(job, ended.status, "TIMEOUT" if ended.timed_out and not job.fate else job.fate)
        schedule(store, state)


def _note_end(job: Job, status: int, fate: str) -> None:
    job.status = -status if status < 0 else status << 8
    job.ended = time.time()
    if fate == "PENDING":
        job.reason = job.reason if job.reason == "JobHeldUser" else "None"
        job.state, job.node, job.started, job.ended = "PENDING", "", 0.0, 0.0
        job.places = {}
    elif fate:
        job.state = fate
    else:
        job.state = "FAILED" if status else "COMPLETED"
        job.reason = "NonZeroExitCode" if status else "None"


# ``scontrol update`` of the fake's jobs, with what Slurm does besides what it was asked for.

ONE_NUMBER_IS_BOTH_SINCE = (23, 11)
"""From here on ``NumNodes=2`` is an upper bound, too."""

AS_GIVEN: Mapping[str, tuple[str, type[int | str]]] = {
    "Comment": ("comment", str),
    "NumCPUs": ("processors", int),
    "TimeLimit": ("minutes", int),
}
"""What is taken as it is given, and where it is kept."""

INVALID_ID = "Invalid job id specified"


def update(store: Store, text: str, changes: Sequence[str]) -> None:
    """Change jobs."""
    with store.locked() as state:
        for part in split_jobs(text):
            jobs = selected(state, part)
            if not jobs:
                raise Refusal(f"{part}: {INVALID_ID}")
            for job in jobs:
                for change in changes:
                    name, _, value = change.partition("=")
                    _change(store, state, job, name, value)


def _change(store: Store, state: State, job: Job, name: str, value: str) -> None:
    identity = job.identity
    if name == "Requeue":
        job.requeue = value == "1"
    elif name == "ReqNodeList":
        nodes = [node for node in value.split(",") if node]
        if not set(nodes) <= set(store.settings["nodes"]):
            raise Refusal(f"{identity}: Invalid node name specified")
        job.wanted = nodes
    elif name == "NumNodes":
        _change_nodes(store, job, value)
    elif name == "MinCPUsNode":
        job.least = int(value)
        job.processors = job.nodes_low * job.least
    elif name in AS_GIVEN:
        attribute, kind = AS_GIVEN[name]
        setattr(job, attribute, kind(value))
    elif name == "Reservation":
        if value and value not in {one.name for one in state.reservations}:
            raise Refusal(f"Requested reservation is invalid for job {identity}")
        job.reservation = value
    else:
        raise Refusal(f"{identity}: Invalid change")


def _change_nodes(store: Store, job: Job, value: str) -> None:
    low, dash, high = value.partition("-")
    if dash or store.release >= ONE_NUMBER_IS_BOTH_SINCE:
        job.nodes_high = int(high or low)
    elif job.nodes_high and int(low) > job.nodes_high:
        raise Refusal(f"Node count specification invalid for job {job.identity}")
    job.nodes_low = int(low)
    job.processors = job.nodes_low * job.least


# Reservations of the fake: a number of cores for each node until 23.02, one for all nodes afterwards.

ONE_NUMBER_SINCE = (23, 11)
UNKNOWN = "Requested reservation is invalid"


def create_reservation(store: Store, words: Sequence[str]) -> None:
    """Create a reservation from words such as ``Nodes=n1,n2``."""
    values = dict(word.split("=", 1) for word in words)
    one_number = store.release >= ONE_NUMBER_SINCE
    if one_number and "," in values["CoreCnt"]:
        raise Refusal("scontrol: error: Using a comma separated array for CoreCnt is no longer valid.")
    failed = "Error creating the reservation:"
    if one_number and values["Users"] == "nobody":
        raise Refusal(f"{failed} Unspecified error")
    # As slurm.conf orders them, whatever the request says.
    nodes = [name for name in store.settings["nodes"] if name in values["Nodes"].split(",")]
    numbers = [int(number) for number in values["CoreCnt"].split(",")]
    if not one_number and len(numbers) != len(nodes):
        raise Refusal(f"{failed} Core count for reservation node list is not consistent!")
    with store.locked() as state:
        free = {name: free_processors(store, state, name) for name in nodes}
        cores = _spread(free, sum(numbers)) if one_number else dict(zip(nodes, numbers, strict=True))
        if sum(cores.values()) < sum(numbers) or any(cores[name] > free[name] for name in nodes):
            raise Refusal(f"{failed} Requested nodes are busy")
        state.reservations.append(Reservation(name=values["ReservationName"], cores=cores))
    say(f"Reservation created: {values['ReservationName']}")


def _spread(free: Mapping[str, int], number: int) -> dict[str, int]:
    """Return a number spread over nodes as evenly as their free processors allow."""
    cores = dict.fromkeys(free, 0)
    for _ in range(number):
        open_ = [name for name in free if cores[name] < free[name]]
        if not open_:
            break
        cores[min(open_, key=lambda name: cores[name])] += 1
    return cores


def delete_reservation(store: Store, name: str) -> None:
    """Delete a reservation that no waiting job is in."""
    with store.locked() as state:
        state.reservations.remove(_found(state, name))


def show_reservations(store: Store, names: Sequence[str]) -> None:
    """Show the named reservations, or all, each on one line."""
    with store.locked() as state:
        shown = [_found(state, name) for name in names] or state.reservations
    if not shown:
        say("No reservations in the system")
    for one in shown:
        total, number = sum(one.cores.values()), len(one.cores)
        chosen = "".join(f"   NodeName={node} CoreIDs=0-{count - 1}" for node, count in one.cores.items())
        nodes = ",".join(one.cores)
        say(f"ReservationName={one.name} Nodes={nodes} NodeCnt={number} CoreCnt={total}{chosen} TRES=cpu={total}")


def _found(state: State, name: str) -> Reservation:
    for reservation in state.reservations:
        if reservation.name == name:
            return reservation
    raise Refusal(f"{UNKNOWN}: {name}")
