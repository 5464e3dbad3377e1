# SPDX-License-Identifier: Apache-2.0
"""The first level of Metacluster: which cluster a job goes to."""

from __future__ import annotations

import pytest

from koala_adapter.errors import JobRefusedError
from koala_adapter.simulation.replay import ClusterLoad, Requirements, least_loaded


def test_the_least_loaded_cluster_that_satisfies_the_job() -> None:
    """Half used beats fully used; a cluster without the compiler, or too small, is not asked however idle it is."""
    clusters = [
        ClusterLoad(name="full", processors=64, demanded=64, features=frozenset({"gcc"})),
        ClusterLoad(name="half", processors=32, demanded=16, features=frozenset({"gcc", "linux"})),
        ClusterLoad(name="bare", processors=64, demanded=0),
        ClusterLoad(name="small", processors=4, demanded=0, features=frozenset({"gcc"})),
    ]
    assert least_loaded(Requirements(processors=8, features=frozenset({"gcc"})), clusters).name == "half"


def test_equal_load_goes_to_the_larger_then_the_first_by_name() -> None:
    """The choice does not depend on the order of the clusters."""
    clusters = [ClusterLoad(name=name, processors=size, demanded=0) for name, size in (("b", 8), ("c", 8), ("a", 4))]
    for order in (clusters, clusters[::-1]):
        assert least_loaded(Requirements(processors=1), order).name == "b"


def test_no_cluster_will_do() -> None:
    """The refusal says what each cluster lacks."""
    clusters = [ClusterLoad(name="a", processors=4, demanded=0), ClusterLoad(name="b", processors=16, demanded=0)]
    with pytest.raises(JobRefusedError, match="a: has 4 of 8 processors; b: lacks gpu, linux"):
        least_loaded(Requirements(processors=8, features=frozenset({"linux", "gpu"})), clusters)
