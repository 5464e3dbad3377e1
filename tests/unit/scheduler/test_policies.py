# SPDX-License-Identifier: Apache-2.0
"""Close to files, cluster minimization, flexible cluster minimization and waiting history, on clusters as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import ClusterName, EndReason, InputFile
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.clusters import WAITS_KEPT
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.placement.policies import (
    PLACEMENT_POLICIES,
    Travel,
    WaitingHistory,
    missing_files,
    transfer_seconds,
    travels,
)
from koala_adapter.scheduler.placement.policy import (
    ClusterView,
    ComponentRequest,
    Infeasible,
    Insufficient,
    Piece,
    Placed,
    PlacementResult,
    pack_fewest,
)
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job, submissions
from tests.unit.scheduler.test_placement import Views, request, request_sets, site, some_fit, view, view_sets

GIB = 1024**3


def near(one: ClusterView, *files: str, rate: float | None = None, **rates: float) -> ClusterView:
    """Return a cluster that holds files, with its bandwidth from the host and from other clusters (MiB/s)."""
    bandwidths = tuple((ClusterName(name), rate) for name, rate in rates.items())
    return replace(one, files=files, bandwidth=rate, bandwidth_from=bandwidths)


def waiting(one: ClusterView, seconds: float | None) -> ClusterView:
    return replace(one, expected_wait=seconds)


def reading(one: ComponentRequest, *files: tuple[str, int]) -> ComponentRequest:
    made = tuple(InputFile(source=source, target="f", size=size) for source, size in files)
    return replace(one, component=replace(one.component, input_files=made))


def flexible(name: str, minimum: int, maximum: int | None = None) -> ComponentRequest:
    return replace(request(name, minimum, maximum), splittable=True)


def ask(policy: str, views: Views, *requests: ComponentRequest) -> PlacementResult:
    return PLACEMENT_POLICIES[policy].place(requests, views)


def parts(result: PlacementResult) -> list[tuple[str, str, int]]:
    assert isinstance(result, Placed), result
    return [(one.component, one.cluster, one.processors) for one in result.components]


def clusters_of(result: Placed) -> set[ClusterName]:
    return {one.cluster for one in result.components}


@st.composite
def all_requests(draw: st.DrawFn) -> list[ComponentRequest]:
    """Draw components of which some may be split."""
    made = draw(request_sets())
    return [replace(one, splittable=one.component.cluster is None and draw(st.booleans())) for one in made]


@pytest.mark.parametrize("policy", sorted(PLACEMENT_POLICIES))
@given(view_sets(), all_requests())
def test_no_policy_exceeds_room_or_size(policy: str, views: Views, requests: list[ComponentRequest]) -> None:
    """Whatever a policy prefers: allowed open clusters, within their room, each component in its size."""
    if not PLACEMENT_POLICIES[policy].splits:
        requests = [replace(one, splittable=False) for one in requests]
    result = ask(policy, views, *requests)
    if not isinstance(result, Placed):
        return
    used: Counter[ClusterName] = Counter()
    sizes: Counter[str] = Counter()
    shares: Counter[str] = Counter()
    asked = {one.component.name: one for one in requests}
    for one in result.components:
        used[one.cluster] += one.processors
        sizes[one.component] += one.processors
        shares[one.component] += one.processors if one.piece is None else one.piece
        assert views[one.cluster].closed is None
        assert asked[one.component].never(views[one.cluster]) is None
    assert [one.component for one in result.components] == sorted(one.component for one in result.components)
    assert all(count <= max(0, views[name].room) for name, count in used.items())
    pieces = Counter(one.component for one in result.components)
    for name, wanted in asked.items():
        assert wanted.component.minimum <= sizes[name] <= wanted.component.maximum
        assert pieces[name] == 1 or (wanted.splittable and shares[name] == wanted.component.minimum)


@pytest.mark.parametrize("policy", sorted(PLACEMENT_POLICIES))
@given(view_sets(), request_sets())
def test_every_policy_places_what_fits(policy: str, views: Views, requests: list[ComponentRequest]) -> None:
    """Preferences never make a job wait that fits, and what never fits is refused by each."""
    result = ask(policy, views, *requests)
    rooms = {one.name: one.room for one in views.values() if one.closed is None}
    assert isinstance(result, Placed) == some_fit(views, requests, rooms)
    possible = some_fit(views, requests, {one.name: one.capacity or 0 for one in views.values()})
    assert isinstance(result, Infeasible) == (not possible)


# ---- close to files -------------------------------------------------------------------------------------------------


X = ("/data/x", GIB)


@pytest.mark.parametrize(
    ("views", "files", "where"),
    [
        ([view("big", 20), near(view("a", 4), "/data/x")], [X], "a"),
        # A path counts with all below it, and with nothing that only begins like it.
        ([view("big", 20), near(view("a", 4), "/data")], [X], "a"),
        ([view("big", 20), near(view("a", 4), "/data/")], [X], "a"),
        ([view("big", 20), near(view("a", 4), "/dat")], [X], "big"),
        ([view("big", 20), near(view("a", 4), "/data/xy")], [X], "big"),
        # Nobody has the file: 1 GiB over 100 MiB/s takes 10.24 s, over 50 MiB/s twice that.
        ([near(view("slow", 20), rate=50.0), near(view("fast", 4), rate=100.0), view("unknown", 30)], [X], "fast"),
        # The cluster of this host needs no transfer from it, unless it is told how long that takes.
        ([near(view("site", 20), rate=100.0), replace(view("here", 4), here=True)], [X], "here"),
        ([near(view("site", 4), "/data/x"), replace(view("here", 20), here=True)], [X], "site"),
        ([near(view("site", 4), rate=100.0), replace(near(view("here", 20), rate=50.0), here=True)], [X], "site"),
        # b gets the file from c at 200 MiB/s, which holds it but is full; a only from the host at 100.
        (
            [
                near(view("a", 8), rate=100.0),
                near(view("b", 4), rate=10.0, c=200.0),
                near(view("c", 8, room=0), "/data/x", rate=100.0),
            ],
            [X],
            "b",
        ),
        # a has the large file and lacks the small one, b the other way round, at the same bandwidth or none.
        (
            [near(view("b", 9), "/small", rate=10.0), near(view("a", 4), "/large", rate=10.0)],
            [("/large", GIB), ("/small", 1024)],
            "a",
        ),
        ([view("b", 9), near(view("a", 4), "/large")], [("/large", GIB), ("/small", 1)], "a"),
        ([near(view("a", 8, idle=0), "/data/x"), view("b", 8)], [X], "b"),
    ],
    ids=["the file is there", "below", "below /", "other name", "longer name", "least transfer time",
         "this host", "this host, others have the file", "this host, others are quicker",
         "from where it is fastest", "less is missing", "less is missing, no bandwidth",
         "starting now goes before being near"],
)  # fmt: skip
def test_components_are_placed_close_to_their_files(
    views: list[ClusterView], files: list[tuple[str, int]], where: str
) -> None:
    asked = reading(request("c", 2), *files)
    assert parts(ask("close-to-files", site(*views), asked)) == [("c", where, 2)]


@pytest.mark.parametrize("policy", sorted(PLACEMENT_POLICIES))
def test_a_logical_name_is_used_where_a_catalogue_has_it(policy: str) -> None:
    asked = reading(request("c", 2), ("lfn:genome", 0), X)
    holder = replace(view("a", 4), found={"lfn:genome": "/data/genome"})
    assert parts(ask(policy, site(view("big", 20), holder), asked)) == [("c", "a", 2)]
    assert [file.source for file in missing_files(asked.component, holder)] == [X[0]], "it never travels"
    waits = ask(policy, site(view("big", 20), replace(holder, found={})), asked)
    assert isinstance(waits, Insufficient), "a catalogue may get the name"
    assert "big: its catalogue, as it was read last, has no lfn:genome" in waits.reason
    large = reading(request("c", 9), ("lfn:genome", 0))
    assert isinstance(ask(policy, site(view("big", 1), holder), large), Infeasible)


def test_a_file_with_a_logical_name_comes_from_where_it_is() -> None:
    """A component may go where it can be brought; the way from here counts where no other one is known."""
    asked = reading(request("c", 2), ("lfn:genome", 0))
    holder = replace(view("a", 4, room=0), found={"lfn:genome": "/data/genome"})
    able = replace(near(view("b", 8), rate=200.0, a=50.0), bringable={"lfn:genome": GIB})
    there = site(holder, able)
    assert parts(ask("close-to-files", there, asked)) == [("c", "b", 2)]
    missing = missing_files(asked.component, able)
    assert travels(missing, able, there) == [Travel(source=holder.name, mib=1024.0, rate=50.0)]
    far = replace(able, bandwidth_from=())
    assert travels(missing, far, site(holder, far)) == [Travel(source=None, mib=1024.0, rate=200.0)]
    assert transfer_seconds(missing, able, there) == 1024 / 50
    here = replace(able, name=ClusterName("here"), here=True, bandwidth=None, bandwidth_from=())
    assert transfer_seconds(missing, here, there) == inf, "it is not on this host"
    assert parts(ask("close-to-files", site(holder, here, able), asked)) == [("c", "b", 2)]


def test_jobs_whose_names_are_in_no_catalogue_any_more_wait_and_hold_up_no_others() -> None:
    """They are not refused, whatever is polled: a catalogue that was written badly can be mended."""
    there = Site({"a": 4})
    names = {"2": "lfn:one", "3": "lfn:two"}
    there.post(ev.FilesFound(time=there.now, cluster=A, found=tuple((name, "/data") for name in names.values())))
    there.start(job("1", 4))
    for id_, name in names.items():
        there.submit(job(id_, replace(component("c", 4), input_files=(InputFile(source=name, target="f"),))))
    there.post(ev.FilesFound(time=there.now, cluster=A, gone=("lfn:one",)))
    there.finish("1")
    there.poll("a", 5)
    assert [there.record(id_).state for id_ in names] == [JobState.WAITING, JobState.LAUNCHING]
    assert "(its catalogue, as it was read last, has no lfn:one)" in there.explained("2")
    there.cancel("3")
    there.end_ending()
    there.pass_time(60)
    there.poll("a", 4)
    assert there.record("2").state is JobState.WAITING
    there.post(ev.FilesFound(time=there.now, cluster=A, found=(("lfn:one", "/data"),)))
    assert there.record("2").state is JobState.CLAIMING


@given(view_sets(), request_sets())
def test_without_files_it_is_worst_fit(views: Views, requests: list[ComponentRequest]) -> None:
    assert ask("close-to-files", views, *requests) == ask("worst-fit", views, *requests)


# ---- cluster minimization -------------------------------------------------------------------------------------------


def fewest_by_force(views: Views, requests: list[ComponentRequest], rooms: dict[ClusterName, int]) -> int | None:
    """Return the least number of clusters by trying all sets of them."""
    for count in range(1, len(rooms) + 1):
        for names in combinations(rooms, count):
            if some_fit({name: views[name] for name in names}, requests, {name: rooms[name] for name in names}):
                return count
    return None


@given(view_sets(), request_sets())
def test_as_few_clusters_as_possible(views: Views, requests: list[ComponentRequest]) -> None:
    """No set of fewer clusters holds the job: idle now if that is possible at all, else by queueing."""
    result = ask("cluster-minimization", views, *requests)
    opened = [one for one in views.values() if one.closed is None]
    at_once = fewest_by_force(views, requests, {one.name: one.available for one in opened})
    ever = fewest_by_force(views, requests, {one.name: one.room for one in opened})
    assert isinstance(result, Placed) == (ever is not None)
    if isinstance(result, Placed):
        assert len(clusters_of(result)) == (ever if at_once is None else at_once)
        worst = ask("worst-fit", views, *requests)
        assert isinstance(worst, Placed)
        used: Counter[ClusterName] = Counter()
        for one in worst.components:
            used[one.cluster] += one.processors
        if all(count <= views[name].available for name, count in used.items()):
            assert len(clusters_of(result)) <= len(clusters_of(worst))


def test_packing_of_many_pieces_ends() -> None:
    """A puzzle beyond the bound of the search ends with a fit that need not be the best."""
    names = [ClusterName(f"n{number}") for number in range(40)]
    pieces = [Piece(name=f"c{number}", size=3 + number % 5, clusters=frozenset(names)) for number in range(60)]
    found = pack_fewest(pieces, dict.fromkeys(names, 11))
    assert found is not None
    assert len(found) == 60


# ---- flexible cluster minimization ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("views", "asked", "expected"),
    [
        # The two largest hold 11, so a third gives the last one.
        (
            [view("a", 6), view("b", 5), view("c", 4)],
            [flexible("x", 12)],
            [("x", "a", 6), ("x", "b", 5), ("x", "c", 1)],
        ),
        ([view("a", 6), view("b", 8)], [flexible("x", 7)], [("x", "b", 7)]),
        # It needs no second cluster beside the rigid one.
        ([view("a", 9), view("b", 8)], [flexible("x", 4), request("y", 5)], [("x", "a", 4), ("y", "a", 5)]),
        # The minimum decides on the clusters, the rest is taken there.
        ([view("a", 6), view("b", 5)], [flexible("x", 7, 10)], [("x", "a", 6), ("x", "b", 4)]),
    ],
    ids=["split by what is idle", "whole where it fits", "used clusters are filled first", "moldable"],
)
def test_flexible_components_are_placed_on_the_fewest_clusters(
    views: list[ClusterView], asked: list[ComponentRequest], expected: list[tuple[str, str, int]]
) -> None:
    assert parts(ask("flexible-cluster-minimization", site(*views), *asked)) == expected


def test_flexible_component_that_does_not_fit_says_why() -> None:
    views = site(view("a", 6), view("b", 5))
    result = ask("flexible-cluster-minimization", views, flexible("x", 12))
    assert result == Infeasible(reason="component 'x' needs 12 processors, all its clusters have 11 to use")
    views = site(view("a", 6, room=2), view("b", 5, room=1))
    result = ask("flexible-cluster-minimization", views, flexible("x", 7))
    assert result == Insufficient(reason="component 'x' needs 7 processors (a: room for 2; b: room for 1)")


@given(view_sets(), st.integers(1, 30))
def test_flexible_job_starts_when_enough_is_idle_anywhere(views: Views, size: int) -> None:
    """The pieces sum up to the request, are on the fewest clusters, and nothing but the sum of what is idle matters."""
    result = ask("flexible-cluster-minimization", views, flexible("x", size))
    idle = sorted((one.available for one in views.values() if one.closed is None), reverse=True)
    if sum(idle) >= size:
        assert isinstance(result, Placed)
        assert sum(one.processors for one in result.components) == size
        assert all(one.processors <= views[one.cluster].available for one in result.components)
        count = next(count for count in range(len(idle) + 1) if sum(idle[:count]) >= size)
        assert len(result.components) == count == len(clusters_of(result))


# ---- waiting history ------------------------------------------------------------------------------------------------


def choose(cost: float, views: Views, *requests: ComponentRequest) -> PlacementResult:
    """Return what waiting history says when a cluster more costs this."""
    return WaitingHistory(cost).place(requests, views)


@pytest.mark.parametrize(
    ("views", "where"),
    [
        ([waiting(view("a", 20), 500.0), waiting(view("b", 4), 20.0)], "b"),
        ([waiting(view("a", 20), 5.0), waiting(view("b", 4), None)], "b"),
        (
            [
                waiting(view("a", 8, room=2), 1.0),
                waiting(view("b", 8, closed="paused"), 1.0),
                waiting(view("c", 8), 9e2),
            ],
            "c",
        ),
    ],
    ids=["shortest wait goes before most idle", "where nothing is known", "where it cannot be is left out"],
)
def test_where_the_shortest_wait_is_expected(views: list[ClusterView], where: str) -> None:
    assert parts(choose(30.0, site(*views), request("x", 3))) == [("x", where, 3)]


@given(view_sets(), request_sets(), st.data(), st.integers(0, 40))
def test_selection_is_the_best_there_is(
    views: Views, requests: list[ComponentRequest], data: st.DataObject, cost: int
) -> None:
    """No other set of clusters that holds the job has a shorter longest wait plus cost of clusters."""
    waits = {name: data.draw(st.sampled_from([0, 10, 25, 60])) for name in views}
    known: Views = {name: waiting(one, float(waits[name])) for name, one in views.items()}
    result = choose(float(cost), known, *requests)
    rooms = {one.name: one.room for one in views.values() if one.closed is None}
    values = [
        max(waits[name] for name in names) + cost * (len(names) - 1)
        for count in range(1, len(rooms) + 1)
        for names in combinations(rooms, count)
        if some_fit({name: views[name] for name in names}, requests, {name: rooms[name] for name in names})
    ]
    assert isinstance(result, Placed) == bool(values)
    if isinstance(result, Placed):
        used = clusters_of(result)
        assert max(waits[name] for name in used) + cost * (len(used) - 1) == min(values)


# -- The waiting history of clusters: what is written into it, what it leads to, and that it is bounded and ke


SELECTED = "waiting-history"


def expected(site: Site) -> list[float | None]:
    return [site.state.expected_wait(site.state.clusters[name], site.now) for name in (A, B)]


def after_waits(a: float, b: float) -> Site:
    """Return a site where a job of one processor on each cluster waited for so long, and is gone."""
    site = Site({"a": 20, "b": 10}, Parameters(placeholder_life=10_000.0))
    site.queue(job("a", component("x", 1, cluster="a")), job("b", component("x", 1, cluster="b")))
    for name, seconds in sorted((("a", a), ("b", b)), key=lambda one: one[1]):
        site.now = 1000.0 + seconds
        site.hold_all(name)
    for name in ("a", "b"):
        site.complete(name)
    site.end_ending()
    return site


def test_job_goes_where_earlier_ones_waited_least() -> None:
    """Although more is idle on a, b is chosen."""
    assert expected(Site({"a": 4, "b": 4})) == [None, None]
    site = after_waits(300.0, 40.0)
    assert expected(site) == [300.0, 40.0]
    assert submissions(site.submit(job("1", 5, placement=SELECTED))) == {"b": 5}
    assert submissions(site.submit(job("2", 5))) == {"a": 5}


def test_a_submission_is_one_entry_of_its_longest_wait() -> None:
    """A job waits for its last processor, so that is what counts, and a large job does not fill the log."""
    site = Site({"a": 4, "b": 4}, Parameters(placeholder_life=10_000.0))
    site.queue(job("1", component("x", 3, cluster="a")))
    for placeholder in site.claimed("1"):
        site.now += 50.0
        site.hold(placeholder.id)
    assert [wait.seconds for wait in site.state.clusters[A].waits] == [150.0]


def test_what_waits_now_counts_once_it_exceeds_the_mean() -> None:
    site = after_waits(30.0, 40.0)
    site.queue(job("1", component("x", 2, cluster="a")))
    site.now += 25.0
    assert expected(site) == [30.0, 40.0]
    site.now += 75.0
    assert expected(site) == [100.0, 40.0]


@pytest.mark.parametrize(("waited", "known"), [(20.0, 30.0), (90.0, 60.0)])
def test_wait_in_vain_counts_only_when_it_was_long(waited: float, known: float) -> None:
    """A job cancelled early says nothing of the queue; one that had waited longer than usual does."""
    site = after_waits(30.0, 40.0)
    site.queue(job("1", component("x", 2, cluster="a")))
    site.now += waited
    site.cancel("1")
    for placeholder in list(site.state.placeholders):
        site.ended(placeholder, EndReason.CANCELLED)
    assert expected(site)[0] == known


def test_history_is_bounded_and_forgets_the_oldest() -> None:
    site = Site({"a": 4, "b": 4})
    for number in range(WAITS_KEPT + 5):
        site.queue(job(str(number), component("x", 1, cluster="a")))
        site.now += 500.0 if number < 5 else 7.0
        site.run(str(number))
        site.finish(str(number))
    assert len(site.state.clusters[A].waits) == WAITS_KEPT
    assert expected(site)[0] == 7.0


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
