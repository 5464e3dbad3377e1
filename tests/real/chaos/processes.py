# SPDX-License-Identifier: Apache-2.0
"""The agents and ranks that run now, found by what the batch systems and koala put into their environments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.real.systems import SlurmCluster
from tests.real.systems.processes import SeenProcess, find_processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.real.lrms import System

RANK_COMMANDS = frozenset({"sh", "allreduce"})


@dataclass(frozen=True, slots=True, order=True)
class Agent:
    """The agent in a placeholder."""

    cluster: str
    node: str
    lrm_id: str
    pid: int


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """A process of a job: the first of its rank, or the MPI program that this one started."""

    job: str
    rank: int
    pid: int

    @property
    def leads_its_group(self) -> bool:
        """Tell whether all processes of the rank can be stopped together."""
        try:
            return os.getpgid(self.pid) == self.pid
        except ProcessLookupError:
            return False


def agents(systems: Iterable[System]) -> list[Agent]:
    """Return all agents that run now."""
    found = []
    for process in _pythons(systems):
        parent = SeenProcess.read(process.parent)
        # The guard is a child of the agent.
        if parent is None or not parent.command.startswith("python"):
            for system in systems:
                agent = _agent(system, process)
                found += [] if agent is None else [agent]
    return sorted(found)


def _pythons(systems: Iterable[System]) -> list[SeenProcess]:
    def belongs(process: SeenProcess) -> bool:
        return process.command.startswith("python") and any(process.uses(system.directory) for system in systems)

    read = map(SeenProcess.read, find_processes(belongs))
    return [process for process in read if process is not None and belongs(process)]


def _agent(system: System, process: SeenProcess) -> Agent | None:
    environment = process.environment
    if not process.uses(system.directory):
        return None
    if isinstance(system, SlurmCluster):
        array, index = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        node = environment.get("SLURMD_NODENAME", "")
        return None if array is None else Agent(system.name, node, f"{array}_{index}", process.pid)
    number, index = environment.get("JOB_ID"), environment.get("SGE_TASK_ID")
    return None if number is None else Agent(system.name, "localhost", f"{number}.{index}", process.pid)


def ranks(mark: Mapping[str, str]) -> list[Rank]:
    """Return the ranks whose processes have a mark in their environments."""
    name, value = next(iter(mark.items()))
    found = []
    for pid in find_processes(lambda process: process.environment.get(name) == value):
        process = SeenProcess.read(pid)
        if process is None or process.command not in RANK_COMMANDS or "KOALA_RANK" not in process.environment:
            continue
        parent = SeenProcess.read(process.parent)
        # What a rank's shell is about to start is for a moment a shell, too.
        if process.command == "allreduce" or parent is None or parent.command != "sh":
            environment = process.environment
            found.append(Rank(environment["KOALA_JOB_ID"], int(environment["KOALA_RANK"]), pid))
    return sorted(found)
