# SPDX-License-Identifier: Apache-2.0
"""The waiting history of clusters: what is written into it, what it leads to, and that it is bounded and kept."""

from __future__ import annotations

import pytest

from koala_adapter.model import EndReason
from koala_adapter.outcome import PlaceholderState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.records import WAITS_KEPT
from tests.unit.scheduler.scheduler_site import A, B, Site, component, copied, job, submissions

SELECTED = "waiting-history"


def expected(site: Site) -> list[float | None]:
    """Return the expected waits on clusters a and b."""
    return [site.state.expected_wait(site.state.clusters[name], site.now) for name in (A, B)]


def after_waits(a: float, b: float) -> Site:
    """Return a site where a job of one processor on each cluster waited for so long, and is gone."""
    site = Site({"a": 20, "b": 10}, Parameters(placeholder_life=10_000.0))
    site.submit(job("a", component("x", 1, cluster="a")))
    site.submit(job("b", component("x", 1, cluster="b")))
    site.take_all()
    for name, seconds in sorted((("a", a), ("b", b)), key=lambda one: one[1]):
        site.now = 1000.0 + seconds
        site.hold_all(name)
    for name in ("a", "b"):
        site.complete(name)
    site.end_ending()
    return site


def test_nothing_is_known_at_first() -> None:
    """Before the first placeholder there is no expectation."""
    assert expected(Site({"a": 4, "b": 4})) == [None, None]


def test_waits_are_written_down() -> None:
    """The expected wait is what the placeholders before waited."""
    assert expected(after_waits(300.0, 40.0)) == [300.0, 40.0]


def test_job_goes_where_earlier_ones_waited_least() -> None:
    """Although more is idle on a, b is chosen."""
    site = after_waits(300.0, 40.0)
    assert submissions(site.submit(job("1", 5, placement=SELECTED))) == {"b": 5}
    assert submissions(site.submit(job("2", 5))) == {"a": 5}


def test_a_submission_is_one_entry_of_its_longest_wait() -> None:
    """A job waits for its last processor, so that is what counts, and a large job does not fill the log."""
    site = Site({"a": 4, "b": 4}, Parameters(placeholder_life=10_000.0))
    site.submit(job("1", component("x", 3, cluster="a")))
    site.take_all()
    for placeholder in site.claimed("1"):
        site.now += 50.0
        site.hold(placeholder.id)
    assert [wait.seconds for wait in site.state.clusters[A].waits] == [150.0]


def test_what_waits_now_counts_once_it_exceeds_the_mean() -> None:
    """A queue that stands still is noticed before it delivers."""
    site = after_waits(30.0, 40.0)
    site.submit(job("1", component("x", 2, cluster="a")))
    site.take_all()
    site.now += 25.0
    assert expected(site) == [30.0, 40.0]
    site.now += 75.0
    assert expected(site) == [100.0, 40.0]


@pytest.mark.parametrize(("waited", "known"), [(20.0, 30.0), (90.0, 60.0)])
def test_wait_in_vain_counts_only_when_it_was_long(waited: float, known: float) -> None:
    """A job cancelled early says nothing of the queue; one that had waited longer than usual does."""
    site = after_waits(30.0, 40.0)
    site.submit(job("1", component("x", 2, cluster="a")))
    site.take_all()
    site.now += waited
    site.cancel("1")
    for placeholder in list(site.state.placeholders):
        site.ended(placeholder, EndReason.CANCELLED)
    assert expected(site)[0] == known


def test_history_is_bounded_and_forgets_the_oldest() -> None:
    """After many submissions only the last ones count."""
    site = Site({"a": 4, "b": 4})
    for number in range(WAITS_KEPT + 5):
        site.submit(job(str(number), component("x", 1, cluster="a")))
        site.take_all()
        site.now += 500.0 if number < 5 else 7.0
        site.run(str(number))
        site.complete(str(number))
        site.end_ending()
    assert len(site.state.clusters[A].waits) == WAITS_KEPT
    assert expected(site)[0] == 7.0


def test_history_survives_a_snapshot() -> None:
    """What was learned is not lost by a restart, and what is pending neither."""
    site = after_waits(300.0, 40.0)
    site.submit(job("1", component("x", 2, cluster="a")))
    site.now += 500.0
    site.scheduler = Scheduler(copied(site.state))
    assert expected(site) == [500.0, 40.0]


@pytest.mark.parametrize(("cost", "where"), [(10.0, {"b": 8, "c": 8}), (1000.0, {"a": 16})])
def test_cost_of_a_cluster_is_that_of_the_site(cost: float, where: dict[str, int]) -> None:
    """A holds the job and waits 100 s, b and c hold it together and wait 20 s: the site says which is better."""
    site = Site({"a": 20, "b": 8, "c": 8}, Parameters(cluster_cost=cost, placeholder_life=10_000.0))
    for name in ("a", "b", "c"):
        site.submit(job(name, component("x", 1, cluster=name)))
    site.take_all()
    for name, at in (("b", 1020.0), ("c", 1020.0), ("a", 1100.0)):
        site.now = at
        site.hold_all(name)
        site.complete(name)
    site.end_ending()
    assert submissions(site.submit(job("1", 8, 8, placement=SELECTED))) == where


def test_pending_is_kept_true() -> None:
    """What waits by submission sums up to what waits."""
    site = Site({"a": 8, "b": 8})
    site.submit(job("1", component("x", 3, cluster="a")))
    site.submit(job("2", component("x", 2, cluster="a")))
    assert list(site.state.clusters[A].pending.values()) == [3, 2]
    site.take_all()
    site.hold(site.claimed("1")[0].id)
    assert list(site.state.clusters[A].pending.values()) == [2, 2]
    site.hold_all("1")
    assert list(site.state.clusters[A].pending.values()) == [2]
    assert all(p.state is PlaceholderState.QUEUED for p in site.claimed("2"))
