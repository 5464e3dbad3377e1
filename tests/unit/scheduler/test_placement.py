# SPDX-License-Identifier: Apache-2.0
"""Where components are placed: by policies on counts, and by names of places."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import ClusterName, EndReason, Launcher
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import SubmitPlaceholders, TakeProcessors
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from koala_adapter.scheduler.placement.policies import PLACEMENT_POLICIES
from koala_adapter.scheduler.placement.policy import (
    ClusterView,
    ComponentRequest,
    Infeasible,
    Insufficient,
    Piece,
    Placed,
    PlacementResult,
    infeasibility,
    pack,
)
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import component, ends, job, of_kind, submissions
from tests.unit.scheduler.test_workers import FAILED, headed, workers

# -- Worst fit: what it promises for any clusters and components, and how never differs from not now.


Views = dict[ClusterName, ClusterView]


def view(
    name: str,
    capacity: int | None,
    room: int | None = None,
    idle: int | None = None,
    *,
    walltime_limit: int | None = None,
    closed: str | None = None,
    in_flight: int | None = None,
) -> ClusterView:
    """Return a cluster with this capacity, as much room and as many idle processors unless told otherwise."""
    room = (capacity or 0) if room is None else room
    idle = room if idle is None else idle
    return ClusterView(
        name=ClusterName(name),
        capacity=capacity,
        in_flight=in_flight,
        room=room,
        available=max(0, min(room, idle)),
        load_free=idle,
        walltime_limit=walltime_limit,
        closed=closed,
    )


def site(*views: ClusterView) -> Views:
    return {one.name: one for one in views}


def request(
    name: str, minimum: int, maximum: int | None = None, *, cluster: str | None = None, excluded: tuple[str, ...] = ()
) -> ComponentRequest:
    """Return a request of a component with a walltime of 600 s."""
    return ComponentRequest(
        component=component(name, minimum, maximum, cluster=cluster),
        walltime=600,
        excluded=frozenset(map(ClusterName, excluded)),
    )


def place(views: Views, *requests: ComponentRequest) -> PlacementResult:
    return PLACEMENT_POLICIES["worst-fit"].place(requests, views)


def placed(views: Views, *requests: ComponentRequest) -> dict[str, tuple[str, int]]:
    result = place(views, *requests)
    assert isinstance(result, Placed)
    return {one.component: (one.cluster, one.processors) for one in result.components}


@st.composite
def view_sets(draw: st.DrawFn) -> Views:
    """Draw up to five clusters, some closed, some busy."""
    made = []
    for name in draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True)):
        capacity = draw(st.integers(0, 12))
        room = draw(st.integers(-2, capacity))
        idle = draw(st.integers(-4, capacity))
        closed = draw(st.sampled_from([None, None, None, "out of reach"]))
        made.append(view(name, capacity, room, idle, closed=closed))
    return site(*made)


@st.composite
def request_sets(draw: st.DrawFn) -> list[ComponentRequest]:
    """Draw up to four components, some moldable, some bound to a cluster, some refused somewhere."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        minimum = draw(st.integers(1, 8))
        maximum = minimum + draw(st.sampled_from([0, 0, 3, 10]))
        cluster = draw(st.sampled_from([None, None, None, "a", "b"]))
        excluded = tuple(draw(st.lists(st.sampled_from("abc"), max_size=1)))
        made.append(request(f"c{number}", minimum, maximum, cluster=cluster, excluded=excluded))
    return made


def some_fit(views: Views, requests: list[ComponentRequest], room: dict[ClusterName, int]) -> bool:
    """Tell by trying everything whether all components fit into the rooms at once."""
    names = [[v.name for v in views.values() if r.never(v) is None and v.name in room] for r in requests]
    for choice in product(*names):
        used = dict.fromkeys(room, 0)
        for one, name in zip(requests, choice, strict=True):
            used[name] += one.component.minimum
        if all(used[name] <= max(0, room[name]) for name in used):
            return True
    return False


@given(view_sets(), request_sets())
def test_placement_keeps_to_room_size_and_wishes(views: Views, requests: list[ComponentRequest]) -> None:
    """A placement uses open, allowed clusters, never more than their room, and sizes between minimum and maximum."""
    result = place(views, *requests)
    if not isinstance(result, Placed):
        return
    used = dict.fromkeys(views, 0)
    assert [one.component for one in result.components] == [r.component.name for r in requests]
    for asked, one in zip(requests, result.components, strict=True):
        assert asked.component.minimum <= one.processors <= asked.component.maximum
        assert views[one.cluster].closed is None
        assert asked.never(views[one.cluster]) is None
        used[one.cluster] += one.processors
    assert all(count <= max(0, views[name].room) for name, count in used.items())


@given(view_sets(), request_sets())
def test_placed_whenever_anything_fits(views: Views, requests: list[ComponentRequest]) -> None:
    """A job is placed exactly when some assignment fits the room, and infeasible exactly when none ever could."""
    result = place(views, *requests)
    open_rooms = {v.name: v.room for v in views.values() if v.closed is None}
    assert isinstance(result, Placed) == some_fit(views, requests, open_rooms)
    capacities = {v.name: v.capacity or 0 for v in views.values()}
    possible = some_fit(views, requests, capacities)
    assert isinstance(result, Infeasible) == (not possible)
    assert (infeasibility(requests, views) is None) == possible


@given(view_sets(), st.integers(1, 8))
def test_single_component_goes_where_most_is_idle(views: Views, minimum: int) -> None:
    """Among the clusters that could start it at once, the one with the most idle processors gets it."""
    result = place(views, request("c", minimum))
    at_once = [v for v in views.values() if v.closed is None and v.available >= minimum]
    if at_once:
        assert isinstance(result, Placed)
        assert views[result.components[0].cluster].load_free == max(v.load_free for v in at_once)
        assert views[result.components[0].cluster] in at_once


@pytest.mark.parametrize(
    ("views", "asked", "expected"),
    [
        ([view("b", 4), view("a", 4)], [request("c", 2)], {"c": ("b", 2)}),
        (
            [view("a", 8), view("b", 3)],
            [request("small", 3), request("large", 6)],
            {"small": ("b", 3), "large": ("a", 6)},
        ),
        ([view("a", 8, room=8, idle=-3), view("b", 8, room=8, idle=-1)], [request("c", 4)], {"c": ("b", 4)}),
        ([view("a", 20, room=2, idle=9), view("b", 4, room=4, idle=4)], [request("c", 3)], {"c": ("b", 3)}),
        ([view("a", 10)], [request("x", 2, 10), request("y", 4)], {"x": ("a", 6), "y": ("a", 4)}),
        ([view("a", 3), view("b", 30)], [request("c", 2, cluster="a")], {"c": ("a", 2)}),
        (
            [view("a", 6), view("b", 5)],
            [request("free", 5), request("bound", 4, cluster="a")],
            {"free": ("b", 5), "bound": ("a", 4)},
        ),
    ],
    ids=["equal: the order of the site file", "the largest chooses first", "queued where the load is least",
         "idle beats less loaded", "a moldable one leaves the minimum of others", "pinned", "pinned beside a free one"],
)  # fmt: skip
def test_where_worst_fit_places(
    views: list[ClusterView], asked: list[ComponentRequest], expected: dict[str, tuple[str, int]]
) -> None:
    assert placed(site(*views), *asked) == expected


@pytest.mark.parametrize(("idle", "size"), [(10, 8), (6, 6), (3, 3), (1, 2), (-5, 2)])
def test_moldable_takes_what_is_idle(idle: int, size: int) -> None:
    """A moldable component gets the idle processors up to its maximum, and only its minimum when it must queue."""
    assert placed(site(view("a", 10, idle=idle)), request("c", 2, 8)) == {"c": ("a", size)}


def test_not_now_tells_the_room_there_is() -> None:
    result = place(site(view("a", 8, room=3), view("b", 8, closed="out of reach: no answer")), request("c", 5))
    assert result == Insufficient(reason="component 'c' needs 5 processors (a: room for 3; b: out of reach: no answer)")
    result = place(site(view("a", 8, room=5)), request("c", 4), request("d", 4))
    assert result == Insufficient(reason="its 2 components need 8 processors together (a: room for 5)")


@pytest.mark.parametrize(
    ("views", "asked", "reason"),
    [
        (
            site(view("a", 4), view("b", 2)),
            [request("c", 5)],
            (
                "component 'c' fits nowhere (a: needs 5 processors, at most 4 can be used there; "
                "b: needs 5 processors, at most 2 can be used there)"
                "; split over several clusters it fits: `koala run --split`, or `flexible = true` in the job file"
            ),
        ),
        (
            site(view("a", 4), view("b", 2)),
            [request("c", 7)],
            (
                "component 'c' fits nowhere (a: needs 7 processors, at most 4 can be used there; "
                "b: needs 7 processors, at most 2 can be used there)"
            ),
        ),
        (
            site(view("a", 4), view("b", 9)),
            [request("c", 5, cluster="a")],
            "component 'c' fits nowhere (a: needs 5 processors, at most 4 can be used there)",
        ),
        (site(view("a", 4)), [request("c", 1, cluster="z")], "component 'c' fits nowhere (z: not in the site file)"),
        ({}, [request("c", 1)], "component 'c' fits nowhere (no cluster is configured)"),
        (
            site(view("a", 4, walltime_limit=599)),
            [request("c", 1)],
            "component 'c' fits nowhere (a: needs a walltime of 600 s there, the limit is 599 s)",
        ),
        (
            site(view("a", 900, in_flight=500)),
            [request("c", 501)],
            "component 'c' fits nowhere (a: needs 501 placeholders at once, the limit there is 500)",
        ),
        (
            site(view("a", 4)),
            [request("c", 1, excluded=("a",))],
            "component 'c' fits nowhere (a: its batch system refused the submission)",
        ),
        (
            site(view("a", 8), view("b", 8)),
            [request("c", 5, cluster="a"), request("d", 4, cluster="a")],
            "its components need 9 processors on a together, at most 8 can be used there",
        ),
        (
            site(view("a", 4), view("b", 4)),
            [request("c", 3), request("d", 3), request("e", 3)],
            "the job needs 9 processors at once, the clusters that suit it have 8 together (a: 4; b: 4)",
        ),
        (
            site(view("a", 6), view("b", 6)),
            [request("c", 4), request("d", 4), request("e", 4)],
            "its components (4, 4, 4 processors) do not fit into the clusters at the same time (a: 6; b: 6)",
        ),
        (  # what a cluster has that neither may use does not count, and is not told as room
            site(view("a", 6), view("b", 90)),
            [request("c", 4, excluded=("b",)), request("d", 4, excluded=("b",))],
            "the job needs 8 processors at once, the clusters that suit it have 6 together (a: 6)",
        ),
        (
            site(view("a", 6), view("b", 90), view("c", 6)),
            [request(name, 4, excluded=("b",)) for name in "cde"],
            "its components (4, 4, 4 processors) do not fit into the clusters at the same time (a: 6; c: 6)",
        ),
    ],
)
def test_never_says_why(views: Views, asked: list[ComponentRequest], reason: str) -> None:
    assert place(views, *asked) == Infeasible(reason=reason)


@pytest.mark.parametrize(
    ("wanted", "has", "lack"),
    [
        ({"software": ("gromacs",)}, {"software": ("gromacs", "lammps")}, None),
        (
            {"software": ("gromacs", "cp2k", "vasp")},
            {"software": ("gromacs",)},
            "its software in the site file does not include cp2k, vasp",
        ),
        ({"container": "image.sif"}, {"container_runtime": "podman"}, None),
        ({"container": "image.sif"}, {}, "the site file names no container_runtime for it"),
        ({"container": "image.sif", "launcher": Launcher.MPI}, {"container_runtime": "apptainer"}, None),
        (
            {"container": "image.sif", "launcher": Launcher.MPI},
            {"container_runtime": "podman"},
            "its container_runtime, podman, cannot run the ranks of an MPI program",
        ),
    ],
)
def test_clusters_without_software_or_containers_are_left_out(
    wanted: dict[str, Any], has: dict[str, Any], lack: str | None
) -> None:
    """A component goes only where all that it needs on its nodes is, even if more is idle elsewhere."""
    asked = replace(request("c", 1), component=replace(component("c", 1), **wanted))
    small, large = replace(view("a", 2), **has), view("b", 9)
    assert asked.never(small) == lack
    result = place(site(small, large), asked)
    if lack is None:
        assert isinstance(result, Placed)
        assert [one.cluster for one in result.components] == ["a"]
    else:
        assert isinstance(result, Infeasible)
        assert f"a: {lack}; b: " in result.reason


def test_jobs_with_other_software_do_not_wait_for_each_other() -> None:
    """A job that finds no place keeps back only those that need the same on the nodes."""
    bare, full = (ClusterParameters(name=ClusterName(n), software=s) for n, s in (("a", ()), ("b", ("gromacs",))))
    scene = MalleableSite({"a": 2, "b": 0}, clusters=(bare, replace(full, placeholders_in_flight=1)))
    scene.submit(job("filler", component("x", 1, cluster="b")))
    scene.submit(job("1", replace(component("x", 1), software=("gromacs",))))
    assert submissions(scene.submit(job("2", component("x", 1)))) == {"a": 1}


def test_a_flexible_component_grows_only_where_its_software_is() -> None:
    """Clusters that lack it get no claim of a running malleable job."""
    has = ClusterParameters(name=ClusterName("a"), software=("gromacs",))
    members = replace(component("m", 1, 6), flexible=True)
    for software, clusters in (((), {"a", "b"}), (("gromacs",), {"a"})):
        scene = MalleableSite({"a": 8, "b": 2}, clusters=(has,))
        scene.start(malleable("1", replace(members, software=software)))
        assert {claim.cluster for claim in scene.record("1").claims} == clusters


def test_what_can_never_run_does_not_depend_on_polls() -> None:
    """A cluster out of reach does not make an impossible job merely wait; one that was never seen may hold anything."""
    assert isinstance(place(site(view("a", 4, closed="out of reach")), request("c", 5)), Infeasible)
    views = site(view("a", 4), view("b", None, closed="not seen yet"))
    assert isinstance(place(views, request("c", 50)), Insufficient)


def test_message_about_many_clusters_stays_short() -> None:
    views = site(*(view(f"n{number}", 1) for number in range(1000)))
    result = place(views, request("c", 2))
    assert isinstance(result, Infeasible)
    assert len(result.reason) < 1000
    assert "; …)" in result.reason


def test_packing_gives_up_in_bounded_time() -> None:
    names = [ClusterName(f"n{number}") for number in range(20)]
    pieces = [Piece(name=f"c{number}", size=3, clusters=frozenset(names)) for number in range(25)]
    packing = pack(pieces, dict.fromkeys(names, 4))
    assert packing.clusters is None
    assert not packing.exhaustive
    # Thousands of components do not exhaust the stack.
    name = ClusterName("a")
    pieces = [Piece(name=f"c{number}", size=1, clusters=frozenset([name])) for number in range(5000)]
    assert not pack(pieces, {name: 10}).exhaustive


# -- Workers that an owner wants and that have no idle processors: what is queued, taken in, kept and given up.


def crowded(approach: Approach = Approach.NONE, *, flexible: bool = False, threshold: int = 0) -> MalleableSite:
    """Return a site on whose cluster a a job of a head and one worker runs; local users have all the rest of 10."""
    names = {"a": 10, "b": 10} if flexible else {"a": 10}
    site = MalleableSite(names, approach, clusters=(ClusterParameters(name=ClusterName("a"), threshold=threshold),))
    one = headed(1, 6, flexible=flexible)
    if flexible:
        site.poll("b", 10, idle=0)
    site.start(one)
    site.poll("a", 10, idle=0, ours=2)
    return site


def places(site: MalleableSite) -> list[int]:
    """Return how many placeholders job 1 has in queues, claim by claim."""
    return [len(claim.places) for claim in site.record("1").claims]


def test_what_is_not_idle_is_queued_for() -> None:
    """For the time that the job has left; it is told, and the cluster need not be looked at more often for it."""
    site = crowded()
    site.pass_time(200)
    assert submissions(site.want(4)) == {"a": 3}
    assert of_kind(SubmitPlaceholders, site.actions)[-1].walltime == 400 + site.parameters.launch_margin
    assert "3 placeholders wait in the queue of a for a growth to 4." in site.explained()
    assert not site.scheduler.growth_waits(ClusterName("a"))
    assert submissions(site.poll("a", 10, idle=0, ours=2)) == {}


def test_each_is_taken_in_when_it_is_held() -> None:
    """The first one does not wait for the others; those that are held meanwhile come together after it."""
    site = crowded()
    site.want(4)
    site.take_all()
    first, second, third = site.stubs()
    (taking,) = of_kind(TakeProcessors, site.hold(second))
    assert [rank.placeholder for rank in taking.ranks] == [second]
    assert site.sizes("1") == [1, 2]
    assert of_kind(TakeProcessors, [*site.hold(first), *site.hold(third)]) == []
    assert "wait in the queue" not in site.explained()
    (both,) = of_kind(TakeProcessors, site.take(taking))
    site.take(both)
    assert (site.sizes("1"), places(site)) == ([1, 4], [0, 0])
    assert [one.reason for one in site.record("1").size_changes] == ["its owner wants 4"] * 2


def test_the_rest_of_what_is_idle_in_part_is_queued_for() -> None:
    """What is idle is gathered as ever; what waits in the queue does not keep it from being taken in."""
    site = crowded()
    site.poll("a", 10, idle=2, ours=2)
    assert [one.count for one in of_kind(SubmitPlaceholders, site.want(5))] == [2, 2]
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    (rest,) = of_kind(TakeProcessors, site.take(taking))
    site.take(rest)
    assert site.sizes("1") == [1, 5]


def test_a_threshold_is_never_passed() -> None:
    """Of ten processors seven are left to local users, and two are the job's."""
    site = crowded(threshold=7)
    assert submissions(site.want(6)) == {"a": 1}


def test_what_is_wanted_no_more_is_given_up() -> None:
    site = crowded()
    site.want(6)
    site.take_all()
    (taking,) = of_kind(TakeProcessors, site.hold(site.stubs()[4]))
    site.hold(site.stubs()[3])
    first, *_, held = site.stubs()
    assert len(ends(site.want(4))) == 2
    assert site.stubs() == [first, held]
    assert len(ends(site.want(3))) == 1
    assert site.stubs() == [held]
    (more,) = of_kind(TakeProcessors, site.take(taking))
    site.take(more)
    assert site.sizes("1") == [1, 3]


def test_idle_processors_of_another_cluster_come_first() -> None:
    """The places that they stand for are given up; which are on a cluster where something is idle, stand for that."""
    site = crowded(flexible=True)
    site.want(4)
    assert sum(places(site)) == 3
    (where,) = (claim.cluster for claim in site.record("1").claims if claim.places)
    other = "b" if where == "a" else "a"
    site.take_all()
    ours = {"a": 2, "b": 0}
    assert submissions(site.poll(str(where), 10, idle=3, ours=ours[str(where)])) == {}
    site.poll(str(where), 10, idle=0, ours=ours[str(where)])
    assert site.scheduler.growth_waits(ClusterName(other))
    actions = site.poll(other, 10, idle=2, ours=ours[other])
    assert submissions(actions) == {other: 2}
    assert len(ends(actions)) == 2
    assert sum(places(site)) == 1


def test_waiting_jobs_have_the_room() -> None:
    site = crowded()
    site.submit(job("2", component("x", 9, cluster="a")))
    assert submissions(site.want(4)) == {}
    assert submissions(site.cancel("2")) == {"a": 3}


@pytest.mark.parametrize("approach", [Approach.PRA, Approach.PWA])
def test_where_policies_offer_processors_nothing_is_queued(approach: Approach) -> None:
    """There what an owner wants bounds what is offered; when that becomes so, places are given up."""
    site = crowded(approach)
    assert submissions(site.want(4)) == {}
    site = crowded()
    site.want(4)
    parameters = replace(site.parameters, approach=approach)
    actions = site.post(ev.Configured(time=site.now, parameters=parameters, clusters=site.clusters))
    assert (len(ends(actions)), places(site)) == (0, [0, 0])  # their ids are not known yet
    assert site.stubs() == []


def test_sizes_of_which_not_any_is_of_use_are_not_queued_for() -> None:
    """Such a component is asked first, and needs what it accepts together."""
    site = MalleableSite({"a": 4}, Approach.NONE)
    site.start(workers("1", replace(part(2, 8), sizes="power-of-two")))
    site.poll("a", 4, idle=0, ours=2)
    assert submissions(site.want(4)) == {}


def test_the_end_of_the_job_gives_them_up() -> None:
    site = crowded()
    site.want(4)
    site.take_all()
    site.hold(site.stubs()[0])
    site.hold(site.stubs()[0])
    site.rank_ends("1", 0)
    assert len(ends(site.actions)) == 2 + 3
    site.end_ending()
    assert not site.state.placeholders


@pytest.mark.parametrize("refused", [False, True])
def test_what_is_lost_or_refused_is_queued_again_after_a_pause(*, refused: bool) -> None:
    """Whoever cancels it would have to do so without end otherwise."""
    site = crowded()
    (sent,) = of_kind(SubmitPlaceholders, site.want(2))
    if refused:
        done = site.post(ev.BatchRejected(time=site.now, batch=sent.batch, reason="no more jobs"))
    else:
        site.take_all()
        done = site.ended(site.stubs()[0], EndReason.CANCELLED)
    assert submissions(done) == {}
    assert places(site) == [0, 0]
    assert refused or "was lost" in site.explained()
    assert submissions(site.pass_time(site.parameters.backoff)) == {"a": 1}


def test_one_that_would_end_before_the_job_is_not_queued() -> None:
    """The cluster allows less time than the job has left; nor is one that turns out so taken in."""
    limit = ClusterParameters(name=ClusterName("a"), walltime_limit=2000)
    site = MalleableSite({"a": 10}, Approach.NONE, clusters=(limit,))
    site.start(headed(1, 6))
    site.poll("a", 10, idle=0, ours=2)
    site.want(2)
    site.take_all()
    assert of_kind(TakeProcessors, site.hold(site.stubs()[0], ends_at=site.now + 100)) == []
    assert site.stubs() == []
    assert "they would end before the job's walltime does" in site.explained()
    site.pass_time(site.parameters.backoff)
    limits = (replace(limit, walltime_limit=400),)
    site.end_ending()
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=limits))
    before = len(site.actions)
    site.want(3)
    assert submissions(site.actions[before:]) == {}


def test_a_job_that_rests_keeps_its_places() -> None:
    """A worker has failed: nothing is queued in its place for now, and what comes meanwhile is given back."""
    site = crowded()
    site.want(3)
    site.take_all()
    (taking,) = of_kind(TakeProcessors, site.hold(site.stubs()[0]))
    site.take(taking)
    site.rank_ends("1", 1, FAILED)
    assert (site.sizes("1"), places(site)) == ([1, 1], [0, 1])
    assert of_kind(TakeProcessors, site.hold(site.stubs()[0])) == []
    assert places(site) == [0, 0]
    later = site.pass_time(site.parameters.end_patience)
    assert submissions(later) == {"a": 2}


def test_what_the_application_asks_for_takes_the_place_of_what_is_queued() -> None:
    """Together they are never more than the owner wants."""
    site = crowded()
    site.want(4)
    site.take_all()
    site.poll("a", 10, idle=5, ours=2)
    before = len(site.actions)
    site.ask("1", 2)
    assert submissions(site.actions[before:]) == {"a": 2}
    assert places(site) == [0, 1]
