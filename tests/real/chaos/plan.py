# SPDX-License-Identifier: Apache-2.0
"""What happens when in a chaos run: jobs and faults with their times, a function of a seed and a length alone.

Pure: touches no file, clock or process. Whom a fault hits (which agent, which rank, whose placeholder) depends on what
is there when it comes; ``Step.choice`` decides among the candidates.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from tests.real.chaos.jobs import CLUSTERS, PlannedJob, drawn_job

NODES = {"a": ("n1", "n2"), "b": ("n1", "n2"), "c": ("localhost",)}
"""Nodes by cluster."""
BETWEEN_JOBS = 4.0
"""Mean seconds between two submissions."""
BETWEEN_FAULTS = 3.5
"""Mean seconds between two faults."""
REST = 1.0
"""Seconds for which a part that has been hit is left alone."""


class Deed(StrEnum):
    """What a step does."""

    SUBMIT = "submit"
    CANCEL = "koala cancel"
    CANCEL_BEHIND = "cancel a placeholder behind koala's back"
    CANCEL_BATCH_BEHIND = "cancel a batch of placeholders behind koala's back"
    LOCAL_JOB = "a local user's job"
    KILL_SERVICE = "kill -9 the service"
    STOP_SERVICE = "SIGSTOP the service"
    END_SERVICE = "an orderly stop of the service"
    NONSENSE = "nonsense at the sockets of the service"
    RELOAD = "another site file, taken up or refused"
    KILL_WHILE_SUBMITTING = "kill -9 the service while a job is submitted"
    FULL_DISK = "no room for any file of the service"
    EMPTY_JOURNAL = "the journal of the service lost or emptied"
    KILL_CONTROLLER = "kill -9 the controller"
    STOP_CONTROLLER = "SIGSTOP the controller"
    KILL_NODE_DAEMON = "kill -9 the daemon of a node"
    STOP_NODE_DAEMON = "SIGSTOP the daemon of a node"
    KILL_NODE = "power cut of a node"
    KILL_AGENT = "kill -9 an agent"
    STOP_AGENT = "SIGSTOP an agent"
    STARVE_AGENT = "an agent that can open no file and start no process"
    KILL_RANK = "kill -9 a rank"
    STOP_RANK = "SIGSTOP a rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How often a kind of fault occurs, and for how many seconds a part is away."""

    weight: int
    away: tuple[float, float] = (0.0, 0.0)


KINDS = {
    Deed.CANCEL: Kind(weight=5),
    Deed.CANCEL_BEHIND: Kind(weight=5),
    Deed.CANCEL_BATCH_BEHIND: Kind(weight=3),
    Deed.LOCAL_JOB: Kind(weight=10),
    Deed.KILL_SERVICE: Kind(weight=9, away=(0.1, 6.0)),
    Deed.STOP_SERVICE: Kind(weight=5, away=(0.5, 6.0)),
    Deed.END_SERVICE: Kind(weight=4, away=(0.1, 4.0)),
    Deed.NONSENSE: Kind(weight=4),
    Deed.RELOAD: Kind(weight=3),
    Deed.KILL_WHILE_SUBMITTING: Kind(weight=4),
    Deed.FULL_DISK: Kind(weight=4, away=(0.5, 8.0)),
    Deed.EMPTY_JOURNAL: Kind(weight=1),
    Deed.KILL_CONTROLLER: Kind(weight=4, away=(0.1, 8.0)),
    Deed.STOP_CONTROLLER: Kind(weight=5, away=(0.5, 8.0)),
    Deed.KILL_NODE_DAEMON: Kind(weight=4, away=(0.1, 4.0)),
    Deed.STOP_NODE_DAEMON: Kind(weight=4, away=(0.5, 4.0)),
    Deed.KILL_NODE: Kind(weight=2, away=(0.5, 8.0)),
    Deed.KILL_AGENT: Kind(weight=5),
    Deed.STOP_AGENT: Kind(weight=5, away=(0.5, 8.0)),
    Deed.STARVE_AGENT: Kind(weight=5, away=(0.5, 6.0)),
    Deed.KILL_RANK: Kind(weight=5),
    Deed.STOP_RANK: Kind(weight=5, away=(0.5, 5.0)),
}
NEED_SERVICE = frozenset(
    {Deed.SUBMIT, Deed.CANCEL, Deed.NONSENSE, Deed.RELOAD, Deed.KILL_WHILE_SUBMITTING, Deed.EMPTY_JOURNAL}
)
NEED_CONTROLLER = frozenset({Deed.CANCEL_BEHIND, Deed.CANCEL_BATCH_BEHIND, Deed.LOCAL_JOB})
OF_SERVICE = frozenset({Deed.KILL_SERVICE, Deed.STOP_SERVICE, Deed.END_SERVICE, Deed.FULL_DISK})
OF_CONTROLLER = frozenset({Deed.KILL_CONTROLLER, Deed.STOP_CONTROLLER})
OF_NODE = frozenset({Deed.KILL_NODE_DAEMON, Deed.STOP_NODE_DAEMON, Deed.KILL_NODE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something to be done at a time, in seconds from the beginning."""

    at: float
    deed: Deed
    number: int
    """Steps of one fault, its beginning and its end, have the same number."""
    undo: bool = False
    """The end of a fault: start again what was killed, SIGCONT what was stopped."""
    job: PlannedJob | None = None
    cluster: str = ""
    node: str = ""
    choice: float = 0.0
    """From 0 to 1: which of the candidates."""
    processors: int = 0
    seconds: float = 0.0
    """Of a local user's job."""

    def __str__(self) -> str:
        """Return a line for people."""
        what = f"end of: {self.deed}" if self.undo else str(self.deed)
        where = "/".join(one for one in (self.cluster, self.node) if one)
        more = "" if self.job is None else f" {self.job}"
        size = f", {self.processors} processors for {self.seconds:g} s" if self.processors else ""
        return f"{self.at:6.1f} s  {what}{f' on {where}' if where else ''}{size}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All steps of a run in order of time."""

    seed: int
    seconds: float
    steps: tuple[Step, ...]

    @property
    def jobs(self) -> tuple[PlannedJob, ...]:
        """The jobs in order of submission."""
        return tuple(step.job for step in self.steps if step.job is not None)

    @property
    def faults(self) -> int:
        """Number of faults."""
        return sum(not step.undo and step.deed is not Deed.SUBMIT for step in self.steps)

    def __str__(self) -> str:
        """Return the plan for people, one line for each step."""
        return "\n".join([f"plan of seed {self.seed} for {self.seconds:g} s", *map(str, self.steps), ""])


class _Absences:
    """When which part is away."""

    def __init__(self) -> None:
        self._away: dict[str, list[tuple[float, float]]] = {}

    def add(self, part: str, begin: float, end: float) -> bool:
        """Let a part be away for a time; False, and nothing done, when it is away, or hardly back, in that time."""
        kept = self._away.setdefault(part, [])
        if any(begin < until + REST and since - REST < end for since, until in kept):
            return False
        kept.append((begin, end))
        return True

    def back(self, part: str, at: float) -> float:
        """Return the first moment from ``at`` on in which a part is there."""
        for since, until in sorted(self._away.get(part, ())):
            if since <= at <= until:
                at = until + 0.1
        return at


def make_plan(seed: int, seconds: float) -> Plan:
    """Return the plan of a seed: the same each time."""
    chance = random.Random(f"{seed} {seconds:g}")
    absences = _Absences()
    faults = _faults(chance, seconds, absences)
    steps = [step for step in faults if not _needs_the_absent(step, absences)]
    at = 0.0
    number = 0
    while at < seconds * 0.9:
        number += 1
        step = Step(
            at=round(absences.back("service", round(at, 1)), 1),
            deed=Deed.SUBMIT,
            number=-number,
            job=drawn_job(chance, f"job{number}"),
        )
        steps.append(step)
        at += chance.expovariate(1 / BETWEEN_JOBS)
    # What ends at a time goes before what begins then.
    steps.sort(key=lambda step: (step.at, not step.undo, step.number))
    return Plan(seed=seed, seconds=seconds, steps=tuple(steps))


def _faults(chance: random.Random, seconds: float, absences: _Absences) -> list[Step]:
    steps: list[Step] = []
    at = chance.uniform(1.0, 3.0)
    number = 0
    while at < seconds:
        number += 1
        deed = chance.choices(list(KINDS), weights=[kind.weight for kind in KINDS.values()])[0]
        away = round(chance.uniform(*KINDS[deed].away), 1)
        cluster = chance.choice(CLUSTERS) if deed in OF_CONTROLLER | OF_NODE | NEED_CONTROLLER else ""
        first = Step(
            at=round(at, 1),
            deed=deed,
            number=number,
            cluster=cluster,
            node=chance.choice(NODES[cluster]) if deed in OF_NODE else "",
            choice=round(chance.random(), 3),
            processors=chance.randint(1, 6) if deed is Deed.LOCAL_JOB else 0,
            seconds=round(chance.uniform(1.0, 12.0), 1) if deed is Deed.LOCAL_JOB else 0.0,
            # Not by a command: one that finds no service is the service itself.
            job=replace(drawn_job(chance, f"killed{number}"), followed=False)
            if deed is Deed.KILL_WHILE_SUBMITTING
            else None,
        )
        at += chance.expovariate(1 / BETWEEN_FAULTS)
        part = _part(first)
        end = round(first.at + away, 1)
        if part and not absences.add(part, first.at, end):
            continue
        steps.append(first)
        if KINDS[deed].away[1] > 0:
            steps.append(Step(at=end, deed=deed, number=number, undo=True, cluster=cluster, node=first.node))
    return steps


def _part(step: Step) -> str:
    """Return the part that a step takes away; empty: one that is not in the plan, or none."""
    if step.deed in OF_SERVICE:
        return "service"
    if step.deed in OF_CONTROLLER:
        return step.cluster
    return f"{step.cluster}/{step.node}" if step.deed in OF_NODE else ""


def _needs_the_absent(step: Step, absences: _Absences) -> bool:
    """Tell whether a step asks a part that is away: the command would only wait for it."""
    part = "service" if step.deed in NEED_SERVICE else step.cluster if step.deed in NEED_CONTROLLER else ""
    return bool(part) and absences.back(part, step.at) != step.at
