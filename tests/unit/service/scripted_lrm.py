# SPDX-License-Identifier: Apache-2.0
"""An LRM for tests of what asks one: it answers, or fails, as a test says."""

from __future__ import annotations

from collections.abc import Sequence

from koala_adapter.config.sitefile import ClusterConfig
from koala_adapter.lrm import Capabilities, Lrm, RenderedSubmission, Submission
from koala_adapter.model import BatchKey, LrmJob, LrmJobId, Node, NodeState, Queue


def config(**values: float | str | None) -> ClusterConfig:
    table = {"name": "a", "plugin": "scripted", "poll_interval": 0.1, "requests_per_minute": 6000, **values}
    return ClusterConfig.model_validate(table)


def node(name: str = "n1", *, used: int = 0, state: NodeState = NodeState.UP, queues: tuple[str, ...] = ()) -> Node:
    return Node(name=name, state=state, processors=4, processors_used=used, queues=queues)


class ScriptedLrm(Lrm):
    """An LRM that answers, or fails, as a test says; keeps what it was asked for."""

    capabilities = Capabilities()
    array_index_variable = "INDEX"
    job_id_variable = "ID"
    requests_per_poll = 2

    def __init__(self) -> None:
        self.errors: dict[str, Exception | None] = {}
        """By what is asked."""
        self.all_nodes: tuple[Node, ...] = (node(),)
        self.all_jobs: tuple[LrmJob, ...] = ()
        self.ended: tuple[LrmJob, ...] = ()
        """What accounting knows."""
        self.polls = 0
        self.order: list[str] = []
        self.prefixes: set[str] = set()
        """Those with which jobs were listed."""
        self.obstacle = ""
        """Why nothing can be submitted, until it is looked for again."""
        self.cancelled: list[LrmJobId] = []
        self.forgotten: list[BatchKey] = []

    def _answer(self, what: str) -> None:
        self.order.append(what)
        error = self.errors.get(what)
        if error is not None:
            raise error

    @property
    def submission_obstacle(self) -> str:
        return self.obstacle

    async def look_for_obstacle(self) -> None:
        self.obstacle = ""

    async def start(self) -> None:
        error = self.errors.get("start")
        if error is not None:
            raise error

    def forget(self, key: BatchKey) -> None:
        self.forgotten.append(key)
        self._answer("forget")

    async def version(self) -> str:
        return "scripted 1"

    async def nodes(self) -> tuple[Node, ...]:
        self._answer("nodes")
        return self.all_nodes

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        self.polls += 1
        self.prefixes.add(name_prefix)
        self._answer("jobs")
        return tuple(one for one in self.all_jobs if one.name.startswith(name_prefix))

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        self._answer("history")
        return tuple(one for one in self.ended if one.id in ids)

    async def queues(self) -> tuple[Queue, ...]:
        return ()

    def render(self, submission: Submission) -> RenderedSubmission:
        return RenderedSubmission(command=("submit",), script=submission.script)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """See Lrm."""
        self._answer("submit")
        return tuple(LrmJobId(f"{submission.key}:{index}") for index in range(1, submission.count + 1))

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        self._answer("cancel")
        self.cancelled += ids
