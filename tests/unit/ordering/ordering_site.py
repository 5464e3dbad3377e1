# SPDX-License-Identifier: Apache-2.0
"""A batch system for tests of the live scheduler that exists as listings only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from koala_adapter.errors import LrmError
from koala_adapter.lrm.listing import Listing
from koala_adapter.lrm.startlog import Pin
from koala_adapter.lrm.starts import Patience, Stage, Starts
from koala_adapter.model import HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.ordering.jobs import JobEvent, JobEventKind, Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.passes import MisfitRules, decide
from koala_adapter.queueing.backfill import make_cluster_scheduler

PATIENCE = Patience(start=10.0, backoff=5.0, refused=60.0, longest=600.0)


class Listed:
    """Four nodes of eight processors, jobs that come in held, and a mirror of it."""

    def __init__(
        self,
        policy: str = "easy",
        *,
        depth: int = 1,
        rules: Rules | None = None,
        pins: Iterable[Pin] = (),
        nodes: Iterable[Node] | None = None,
    ) -> None:
        self.now = 1000.0
        self.set_by = 0.0
        """Seconds by which the time of day was set, in which the batch system writes its times."""
        self.jobs: dict[str, LrmJob] = {}
        self.nodes = {f"n{n}": node(f"n{n}") for n in range(1, 5)} if nodes is None else {n.name: n for n in nodes}
        self.queues: dict[str, Queue] = {}
        self.misfit_rules = MisfitRules.of(policy, depth)
        self.mirror = Mirror(
            lambda: make_cluster_scheduler(policy, 0, depth=depth), rules or Rules(), Starts(PATIENCE, pins=pins)
        )

    @property
    def time_of_day(self) -> float:
        """What the clocks of people and of the batch system show."""
        return self.now + self.set_by

    def submit(self, job_id: str, processors: int, walltime: int = 100, **values: Any) -> None:  # noqa: ANN401
        """Have a job come in, in hold by the site."""
        given: dict[str, Any] = {
            "state": LrmJobState.HELD,
            "hold": HoldOwner.OPERATOR,
            "submitted_at": self.time_of_day,
            "user": "u",
            "queue": "",
            **values,
        }
        self.jobs[job_id] = LrmJob(id=LrmJobId(job_id), name=job_id, processors=processors, walltime=walltime, **given)

    def submit_all(self, *jobs: tuple[str, int] | tuple[str, int, int]) -> None:
        """Have jobs come in, each known by its id, processors, and perhaps walltime."""
        for one in jobs:
            self.submit(*one)

    def change(self, job_id: str, **values: Any) -> None:  # noqa: ANN401 - fields of many types
        """Have the batch system show something else of a job."""
        self.jobs[job_id] = replace(self.jobs[job_id], **values)

    def run(self, start: Pin) -> None:
        """Have a job run where it was to be started."""
        nodes = start.nodes
        self.change(
            start.job_id,
            state=LrmJobState.RUNNING,
            hold=None,
            layout=nodes,
            nodes=tuple(name for name, _ in nodes),
            started_at=self.time_of_day,
            requested_nodes=tuple(name for name, _ in nodes),
        )

    def look(self, after: float = 1.0) -> list[Pin]:
        """Let time pass, list everything, and return what is to be started."""
        self.now += after
        self.observe()
        return decide(self.mirror, self.misfit_rules, self.now)

    def observe(self) -> None:
        """List everything as it is; what runs is confirmed."""
        used = dict.fromkeys(self.nodes, 0)
        for job in self.jobs.values():
            for name, count in job.layout:
                used[name] += count
        nodes = tuple(replace(one, processors_used=one.processors_used + used[one.name]) for one in self.nodes.values())
        jobs = tuple(self.jobs.values())
        self.mirror.observe(Listing(read_at=self.now, jobs=jobs, nodes=nodes, queues=self.queues, offset=self.set_by))
        for job_id in self.mirror.starts.in_stage(Stage.RUNS):
            self.mirror.starts.advance(job_id, Stage.CONFIRMED, self.now)

    def step(self, after: float = 1.0) -> list[str]:
        """Look, have what is started run at once, and return the ids."""
        starts = self.look(after)
        for start in starts:
            self.run(start)
            self.accept(start.job_id)
        return [start.job_id for start in starts]

    def accept(self, job_id: LrmJobId) -> None:
        self.mirror.starts.advance(job_id, Stage.ACCEPTED, self.now)

    def refuse(self, job_id: LrmJobId, error: LrmError) -> None:
        self.mirror.starts.advance(job_id, Stage.REFUSED, self.now, error=error)

    def start_undone(self, job_id: LrmJobId) -> None:
        self.mirror.starts.advance(job_id, Stage.TAKEN_BACK, self.now)

    def end(self, *job_ids: str) -> None:
        for job_id in job_ids:
            del self.jobs[job_id]

    def told(self, kind: JobEventKind) -> list[JobEvent]:
        return [one for one in self.mirror.happened if one.kind is kind]


def node(name: str, processors: int = 8, **values: Any) -> Node:  # noqa: ANN401 - fields of many types
    return Node(name=name, processors=processors, **{"state": NodeState.UP, "processors_used": 0, **values})


def starting(processors: int, walltime: int = 100, **values: Any) -> tuple[Listed, Pin]:  # noqa: ANN401 - likewise
    """Return a site where job 1 is to be started."""
    site = Listed()
    site.submit("1", processors, walltime, **values)
    (start,) = site.look()
    return site, start


def accepted(processors: int, walltime: int = 100, **values: Any) -> tuple[Listed, Pin]:  # noqa: ANN401 - likewise
    """Return a site where the batch system has accepted the start of job 1, and does not show it yet."""
    site, start = starting(processors, walltime, **values)
    site.accept(start.job_id)
    return site, start
