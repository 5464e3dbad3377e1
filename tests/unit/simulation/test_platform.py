# SPDX-License-Identifier: Apache-2.0
"""Platform files and their refusals, the event queue, local users and failures."""

from __future__ import annotations

from itertools import islice, takewhile
from pathlib import Path

import pytest

from koala_adapter.errors import ConfigurationError
from koala_adapter.simulation.platform import (
    DAS3,
    BackgroundLoad,
    ClusterModel,
    Failures,
    Platform,
    load_platform,
    load_platform_text,
    named_platform,
)
from koala_adapter.simulation.world import FIRST, LAST, Engine, local_users, outages

EXAMPLES = Path(__file__).parents[3] / "examples" / "platforms"


def test_das3_is_the_testbed_of_the_paper() -> None:
    """Five clusters with 85, 41, 68, 46 and 32 nodes of one processor each, 272 in all; the file says the same."""
    assert [cluster.processors for cluster in DAS3.clusters] == [85, 41, 68, 46, 32]
    assert DAS3.processors == DAS3.capacity == 272
    assert load_platform(EXAMPLES / "das3.toml") == DAS3 == named_platform("DAS-3")


def test_a_file_can_say_everything() -> None:
    """The example with every table is read as it was meant."""
    platform = load_platform(EXAMPLES / "two-sites.toml")
    north, south = platform.clusters
    assert (north.processors, north.threshold, north.speed) == (128, 16, 1.5)
    assert platform.capacity == 128 - 16 + 16
    assert platform.background_of(south) == BackgroundLoad(utilization=0.5, mean_run=7200, mean_size=8)
    assert platform.background_of(north) == BackgroundLoad(utilization=0.2, mean_run=600, mean_size=4)
    assert platform.failures_of(north) == Failures(mean_time_between=90 * 86_400, mean_repair=4 * 3600)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "clusters: this key is required"),
        ('[[clusters]]\nname = "a"\nnodes = 0\n', "p:3: clusters[0].nodes: found 0, allowed is a whole number from 1"),
        ('[[clusters]]\nname = "a"\nnodes = "4"\n', 'p:3: clusters[0].nodes: found "4", allowed is a whole number'),
        ('[[clusters]]\nname = "a"\nnode = 4\n', "p:3: clusters[0].node: unknown key, allowed is name, nodes"),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\nthreshold = 4\n',
            "p:4: clusters[0].threshold: found 4, allowed is less than the cluster's 4 processors",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\n[[clusters]]\nname = "a"\nnodes = 4\n',
            'p:5: clusters[1].name: found "a", the name of clusters[0]: allowed is a name of its own',
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\n[[network.links]]\nbetween = ["a", "b"]\n',
            "network: simulations have no network: leave this out",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\ndomain = "campus"\n',
            "p:4: clusters[0].domain: simulations have no network: leave this out",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\nspeed = -1.0\n',
            "p:4: clusters[0].speed: found -1.0, allowed is a number above 0",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\n[background]\nutilization = 1.5\n',
            "p:5: background.utilization: found 1.5, allowed is a number from 0 to 1",
        ),
    ],
)
def test_refusals_name_line_key_and_what_is_allowed(text: str, expected: str) -> None:
    """Whatever is wrong with a platform file is said with its place and the way out."""
    with pytest.raises(ConfigurationError) as refused:
        load_platform_text(text, source="p")
    assert expected in str(refused.value)
    assert "koala docs simulation" in str(refused.value)


def test_an_unknown_platform_name_is_refused_with_the_known_ones() -> None:
    """The refusal lists what there is and says that a path would do."""
    with pytest.raises(ConfigurationError, match=r'"das3".*path of a platform file'):
        named_platform("grid5000")


def test_background_can_be_set_for_all_clusters() -> None:
    """A utilization replaces what the clusters had; 0 takes all local users away."""
    platform = load_platform(EXAMPLES / "two-sites.toml")
    loaded = platform.with_background(0.3)
    assert {loaded.background_of(cluster) for cluster in loaded.clusters} == {BackgroundLoad(utilization=0.3)}
    quiet = platform.with_background(0.0)
    assert {quiet.background_of(cluster) for cluster in quiet.clusters} == {None}


def test_events_of_one_instant_go_by_rank_then_by_entry() -> None:
    """The order in which things happen does not depend on chance."""
    engine = Engine()
    seen: list[str] = []
    engine.at(5.0, lambda: seen.append("decision"), rank=LAST)
    engine.at(5.0, lambda: seen.append("first"))
    engine.at(5.0, lambda: seen.append("second"))
    engine.at(5.0, lambda: seen.append("end"), rank=FIRST)
    engine.at(1.0, lambda: engine.at(0.5, lambda: seen.append(f"late at {engine.now}")))
    cancelled = engine.at(5.0, lambda: seen.append("cancelled"))
    cancelled.cancel()
    engine.run()
    assert seen == ["late at 1.0", "end", "first", "second", "decision"]
    assert (engine.now, engine.handled, engine.next_time) == (5.0, 6, None)


def test_the_clock_stops_where_it_is_told() -> None:
    """What lies beyond ``until`` stays ahead, and a time that is none is refused."""
    engine = Engine(start=10.0)
    seen: list[float] = []
    for time in (11.0, 12.0, 13.0):
        engine.at(time, lambda: seen.append(engine.now))
    engine.run(until=12.0)
    assert (seen, engine.now, engine.next_time) == ([11.0, 12.0], 12.0, 13.0)
    with pytest.raises(ValueError, match="nan"):
        engine.at(float("nan"), engine.step)


@pytest.mark.parametrize(("utilization", "mean_size"), [(0.3, 4.0), (0.8, 30.0), (0.1, 1.0)])
def test_local_users_ask_for_what_they_are_said_to(utilization: float, mean_size: float) -> None:
    """The mean demand is the share of the cluster that was asked for, also where sizes are cut at its size."""
    cluster = ClusterModel(name="c", nodes=32)
    load = BackgroundLoad(utilization=utilization, mean_run=100.0, mean_size=mean_size)
    horizon = 3_000_000.0
    work = 0.0
    for use in takewhile(lambda one: one.submitted_at < horizon, local_users(cluster, load, seed=3)):
        assert 1 <= use.processors <= 32
        work += use.processors * use.run
    assert work / (32 * horizon) == pytest.approx(utilization, rel=0.05)


def test_chance_is_repeatable_and_belongs_to_one_cluster() -> None:
    """The same seed gives the same local users, another seed or another cluster others; no load gives none."""
    load = BackgroundLoad(utilization=0.5)
    one, other = ClusterModel(name="one", nodes=8), ClusterModel(name="other", nodes=8)
    first = list(islice(local_users(one, load, 1), 50))
    assert first == list(islice(local_users(one, load, 1), 50))
    assert first != list(islice(local_users(one, load, 2), 50))
    assert first != list(islice(local_users(other, load, 1), 50))
    assert list(local_users(one, BackgroundLoad(utilization=0.0), 1)) == []


def test_nodes_fail_as_often_as_said_and_never_while_they_are_away() -> None:
    """100 nodes that fail every 1000 s bring nearly 0.1 failures per second, less what is in repair."""
    cluster = ClusterModel(name="c", nodes=100)
    failures = Failures(mean_time_between=1000.0, mean_repair=10.0)
    found = list(takewhile(lambda one: one.begins_at < 100_000.0, outages(cluster, failures, seed=5)))
    assert len(found) == pytest.approx(10_000 / 1.01, rel=0.05)
    back: dict[int, float] = {}
    for outage in found:
        assert back.get(outage.node, 0.0) <= outage.begins_at < outage.ends_at
        back[outage.node] = outage.ends_at


def test_one_cluster_from_a_trace_header() -> None:
    """A platform needs no file: the number of processors is enough."""
    platform = Platform(clusters=(ClusterModel(name="trace", nodes=128),))
    assert (platform.processors, platform.capacity) == (128, 128)
