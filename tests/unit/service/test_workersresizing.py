# SPDX-License-Identifier: Apache-2.0
"""Workers on several clusters: offers and requests lead to sizes that they can have."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import JobId, RunnerName
from koala_adapter.runners.runner import Application
from koala_adapter.runners.workers import AddressedSignal, WorkersRunner
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import OfferProcessors, RequestProcessors, TakeProcessors
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.service.sizes.loop import Sizes
from tests.unit.scheduler.malleable_site import MalleableSite, malleable
from tests.unit.scheduler.scheduler_site import component, job, of_kind
from tests.unit.service.standincore import StandInCore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from koala_adapter.runners.workers import Order
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.records import JobRecord, State


class Scene:
    """One job of workers that may grow on all clusters, served by the part of the service that asks it."""

    def __init__(
        self,
        clusters: dict[str, int],
        sizes: str,
        minimum: int = 1,
        maximum: int = 16,
        *,
        approach: Approach,
        warn_before: int = 0,
    ) -> None:
        self.site = MalleableSite(clusters, approach)
        self._runner: WorkersRunner | None = None
        self.said: list[ev.Event] = []
        self.ordered: list[Order] = []
        self.sizes = Sizes(StandInCore(self), self)  # type: ignore[arg-type]  # it is all that is asked of them
        workers = replace(component("w", minimum, maximum, cluster=None), flexible=True, sizes=sizes)
        head = component("head", 1, cluster=next(iter(clusters)))
        job_ = replace(malleable("1", head, workers), runner=RunnerName.WORKERS, warn_before=warn_before)
        self.actions = self.site.start(job_)

    @property
    def state(self) -> State:
        return self.site.state

    @property
    def now(self) -> float:
        """Of the site."""
        return self.site.now

    def post(self, event: ev.Event) -> None:
        """Keep an event, for a test to take in."""
        self.said.append(event)

    # ---- Applications -----------------------------------------------------------------------------------------------

    def workers(self, record: JobRecord) -> WorkersRunner | None:
        application = Application(
            job=record.job,
            ranks=tuple(rank for rank in record.ranks if rank.rank not in record.departed),
            clusters={one.component: one.cluster or "" for one in record.claims},
            files={},
        )
        if self._runner is None:
            self._runner = WorkersRunner(application)
        self._runner.application = application
        return self._runner

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        """Start nothing: the tests tell what has started."""

    def order(self, orders: Iterable[Order]) -> None:
        self.ordered.extend(orders)

    # ---- what happens -----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return sum(one.processors for one in self.site.record("1").claims if one.component == "w")

    def ask(self, actions: Sequence[Action]) -> list[int]:
        """Have the job asked all that the scheduler wants, and only then its answers taken in; return these."""
        asked = [one for one in actions if isinstance(one, OfferProcessors | RequestProcessors)]
        for one in asked:
            self.sizes.carry_out(one)
        answers = [one for one in self.said if isinstance(one, ev.OfferAnswered)]
        self.said.clear()
        for answer in answers:
            self.site.post(answer)
        assert len(answers) == len(asked)
        return [one.accepted for one in answers]

    def gather(self) -> None:
        for taken in of_kind(TakeProcessors, self.site.hold_stubs()):
            self.site.take(taken)

    def lose(self, cluster: str) -> None:
        for batch in [b.key for b in self.site.state.batches.values() if b.cluster == cluster and b.lrm_ids is None]:
            self.site.post(ev.BatchRejected(time=self.site.now, batch=batch, reason="no"))


def offered(actions: Sequence[Action]) -> list[tuple[str, int]]:
    return [(one.cluster, one.processors) for one in of_kind(OfferProcessors, list(actions))]


@pytest.mark.parametrize("lost", [False, True])
def test_what_cannot_have_any_size_grows_on_one_cluster_at_a_time(lost: bool) -> None:  # noqa: FBT001
    """One worker that could have three more here and four there takes three, and four when it has the three."""
    scene = Scene({"a": 5, "b": 4}, "multiple-of-4", approach=Approach.PWA)
    assert offered(scene.actions) == [("a", 3)]
    assert scene.ask(scene.actions) == [3]
    before = len(scene.site.actions)
    if lost:
        scene.lose("a")
    scene.gather()
    assert offered(scene.site.actions[before:]) == [("b", 4)]
    assert scene.ask(scene.site.actions[before:]) == [3 if lost else 4]
    scene.gather()
    assert scene.size == (4 if lost else 8)


def test_what_has_any_size_takes_all_at_the_same_moment() -> None:
    scene = Scene({"a": 5, "b": 3}, "any", approach=Approach.PWA)
    assert scene.ask(scene.actions) == [3, 3]
    scene.gather()
    assert scene.size == 7


def test_what_is_wanted_back_leaves_a_usable_size_or_is_not_given() -> None:
    """Of four, which are two here and two there, one is wanted on each cluster: no power of two is left by it here."""
    scene = Scene({"a": 2, "b": 3}, "power-of-two", approach=Approach.PWA)
    for grown in (2, 4):
        assert sum(scene.ask(scene.actions)) == grown // 2
        before = len(scene.site.actions)
        scene.gather()
        assert scene.size == grown
        scene.actions = scene.site.actions[before:]
    before = len(scene.site.actions)
    scene.site.submit(job("2", component("x", 1, cluster="a"), component("y", 1, cluster="b")))
    asked = of_kind(RequestProcessors, scene.site.actions[before:])
    assert [(one.cluster, one.processors) for one in asked] == [("a", 1)], "on one cluster at a time"
    assert scene.ask(asked) == [0]
    told = scene.site.record("1").last_trouble
    assert told == 'asked for 1 back on a, w gives none: it cannot have 3 (sizes = "power-of-two")'


def test_what_is_wanted_back_waits_for_what_is_gathered_elsewhere() -> None:
    """The rule is asked about the size that the workers will have."""
    scene = Scene({"a": 5, "b": 4}, "power-of-two", maximum=8, approach=Approach.PWA)
    assert scene.ask(scene.actions) == [3]
    before = len(scene.site.actions)
    scene.gather()
    assert scene.ask(scene.site.actions[before:]) == [4]
    before = len(scene.site.actions)
    scene.site.submit(job("2", component("x", 1, cluster="a")))
    assert of_kind(RequestProcessors, scene.site.actions[before:]) == []
    scene.gather()
    asked = of_kind(RequestProcessors, scene.site.actions[before:])
    assert [(one.cluster, one.processors) for one in asked] == [("a", 1)]
    assert scene.ask(asked) == [4]
    scene.site.release("1", 4, "w")
    assert scene.size == 4


def signalled(scene: Scene) -> list[tuple[str, int]]:
    """Return which tasks were sent which signals since this was asked last."""
    sent = [(one.signal.task, one.signal.signal) for one in scene.ordered if isinstance(one, AddressedSignal)]
    scene.ordered.clear()
    return sent


def test_workers_are_asked_to_end_before_the_walltime_does() -> None:
    scene = Scene({"a": 4}, "any", 3, 4, approach=Approach.NONE, warn_before=60)
    record = scene.site.record("1")
    assert record.launched_at is not None
    end = record.launched_at + record.job.walltime
    assert scene.sizes.next_deadline() == inf, "nothing of the job was handled yet"
    scene.site.hold(record.ranks[2].placeholder, ends_at=end - 190)
    scene.sizes.follow([record.job.id, JobId("2")])
    assert scene.sizes.next_deadline() == end - 260
    scene.site.now = end - 260
    scene.sizes.time_passed()
    assert signalled(scene) == [("1:2", 15)]
    assert scene.sizes.next_deadline() == end - 230, "when it is killed"
    scene.site.now = end - 60
    scene.sizes.time_passed()
    assert signalled(scene) == [("1:1", 15), ("1:3", 15), ("1:2", 9)]
    scene.sizes.follow([record.job.id])
    assert scene.sizes.next_deadline() == end - 30
