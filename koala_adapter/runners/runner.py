# SPDX-License-Identifier: Apache-2.0
"""What a runner is: a pure translator between one job and the agents that hold its processors.

The scheduler says which rank goes into which placeholder; a runner says what each agent has to start, and what the
tasks' starts and ends mean for the ranks. It keeps no state that cannot be told again: after a restart of the service
the agents report their tasks, and the runner answers with what is still to be started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from koala_adapter.scheduler.events import Event, RankEnded, RankStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.model import Component, Job, PlaceholderId, TaskEnd
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.vjm.channel import Launch, LaunchFile


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressedLaunch:
    """A launch and the placeholder whose agent is to do it."""

    placeholder: PlaceholderId
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What follows from a task's output."""

    launches: tuple[AddressedLaunch, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Application:
    """A job as it was placed: what all its runners' answers derive from."""

    job: Job
    ranks: tuple[Rank, ...]
    clusters: Mapping[str, str]
    """Component name to cluster name."""
    files: Mapping[str, tuple[LaunchFile, ...]]
    """Component name to its input files."""
    library: tuple[LaunchFile, ...] = ()
    """The application library, for ranks of adaptive components."""

    # Worked out once: thousands of ranks ask for them.

    @cached_property
    def _addresses(self) -> str:
        return ",".join(rank.address or rank.host for rank in self.ranks)

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return Counter(rank.component for rank in self.ranks)

    @cached_property
    def _head(self) -> Rank | None:
        return next((rank for rank in self.ranks if self.job.is_head(rank.component)), None)

    @cached_property
    def ranks_numbered(self) -> Mapping[int, Rank]:
        """The ranks by their numbers."""
        return {rank.rank: rank for rank in self.ranks}

    @cached_property
    def ranks_in(self) -> Mapping[PlaceholderId, Rank]:
        """The ranks by their placeholders."""
        return {rank.placeholder: rank for rank in self.ranks}

    def environment(self, rank: Rank) -> tuple[tuple[str, str], ...]:
        """Return what a rank finds in its environment beside the node's own."""
        component = self.job.component(rank.component)
        own = {
            "KOALA_JOB_ID": self.job.id,
            "KOALA_JOB_NAME": self.job.name,
            "KOALA_RANK": str(rank.rank),
            "KOALA_SIZE": str(len(self.ranks)),
            "KOALA_COMPONENT": rank.component,
            "KOALA_COMPONENT_RANK": str(rank.component_rank),
            "KOALA_COMPONENT_SIZE": str(self._sizes[rank.component]),
            "KOALA_CLUSTER": rank.cluster or self.clusters[rank.component],
            "KOALA_ADDRESSES": self._addresses,
        }
        if self._head is not None:
            own["KOALA_HEAD_ADDRESS"] = self._head.address or self._head.host
        return tuple({**dict(self.job.environment), **dict(component.environment), **own}.items())

    def component(self, rank: Rank) -> Component:
        """Return the component of a rank."""
        return self.job.component(rank.component)


class Runner(ABC):
    """Translates for one job. Pure."""

    def __init__(self, application: Application) -> None:
        """``application``: the job and its ranks."""
        self.application = application

    @abstractmethod
    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """Return what is to be started in a rank's placeholder as far as is known now."""

    def launches(self) -> Iterator[AddressedLaunch]:
        """Return everything that is to be started as far as is known now; starting a task twice is harmless."""
        for rank in self.application.ranks:
            yield from self.launches_in(rank)

    def output_of(self, task: str, stream: str, offset: int, data: bytes, now: float) -> Reaction:
        """Take in output of a task, which begins at ``offset``; what was taken in before may come again."""
        del task, stream, offset, data, now
        return Reaction()

    def started(self, task: str, now: float) -> Sequence[Event]:
        """Return what the start of a task means."""
        rank = self.rank_of(task)
        return () if rank is None else (RankStarted(time=now, job_id=self.application.job.id, rank=rank),)

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        """Return what the end of a task means."""
        return (RankEnded(time=now, job_id=self.application.job.id, rank=self.rank_of(task), end=end),)

    def task_of(self, rank: int) -> str:
        """Return the task id of a rank."""
        return f"{self.application.job.id}:{rank}"

    def rank_of(self, task: str) -> int | None:
        """Return the rank a task id stands for; None for the application's launcher."""
        _, _, tail = task.partition(":")
        return int(tail) if tail.isdecimal() else None
