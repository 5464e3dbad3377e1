# SPDX-License-Identifier: Apache-2.0
"""What ``koala check`` has found out of connections between sites, as a service takes it in."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path

from koala_adapter.config.sitefile import ClusterConfig, RemoteSiteConfig, SiteConfig
from koala_adapter.model import ClusterName
from koala_adapter.scheduler.clusters import CONNECTIONS_LAST
from koala_adapter.scheduler.events import NodesConnect
from koala_adapter.scheduler.parameters import ClusterParameters
from koala_adapter.service.reachability import FILE, Reachability, Tried, keep_tried, read_tried, rounds
from tests.unit.scheduler.scheduler_site import A, B, Site
from tests.unit.service.standins import StandInCore


def tried(cluster: ClusterName, other: ClusterName, *, connects: bool, age: float = 0.0) -> Tried:
    return Tried(cluster=cluster, other=other, connects=connects, at=time.time() - age)


def test_a_service_takes_in_what_is_newer_than_what_it_knows(tmp_path: Path) -> None:
    """Once for each change of the file, and nothing of clusters that it does not have, or from the day before."""
    world = Site({}, None, *(ClusterParameters(name=one, site=one) for one in (A, B)), unseen=("a", "b"))
    core = StandInCore(world, tmp_path)
    core.site = SiteConfig(
        sites=(RemoteSiteConfig(name="delft", ssh="fs3"),),
        clusters=(ClusterConfig(name=A, plugin="slurm", site="delft"), ClusterConfig(name=B, plugin="slurm")),
    )
    reachability = Reachability(core)
    reachability.read()
    keep_tried(
        tmp_path,
        [
            tried(A, B, connects=False, age=60),
            tried(B, A, connects=True, age=CONNECTIONS_LAST + 1),
            tried(ClusterName("gone"), A, connects=True),
        ],
    )
    reachability.read()
    assert (world.state.connects(A, B, world.now), world.state.connects(B, A, world.now)) == (False, None)
    reachability.read()
    keep_tried(tmp_path, [tried(B, A, connects=True)])
    reachability.read()
    known = [(one.cluster, one.other, one.connects) for one in core.posted if isinstance(one, NodesConnect)]
    assert known == [(A, B, False), (B, A, True)]
    assert world.state.connects(A, B, world.now + CONNECTIONS_LAST - 61) is False
    assert world.state.connects(A, B, world.now + CONNECTIONS_LAST) is None


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('[{"cluster": 3')
    assert read_tried(tmp_path) == []
    keep_tried(tmp_path, [tried(A, B, connects=True)])
    assert [one.cluster for one in read_tried(tmp_path)] == [A]


def test_a_cluster_connects_and_is_connected_to_once_in_a_round() -> None:
    names = [ClusterName(name) for name in "abcde"]
    wanted = [(one, other) for one in names for other in names if one != other]
    shared = list(rounds(wanted))
    assert sorted(chain.from_iterable(shared)) == sorted(wanted)
    assert all(len(dict(pairs)) == len({other for _, other in pairs}) == len(pairs) for pairs in shared)
    assert len(shared) < 2 * len(names)
