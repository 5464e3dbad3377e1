# SPDX-License-Identifier: Apache-2.0
"""Site files of temporary sites are valid in whatever directory temporary files are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.sitefile import load_site_text
from koala_adapter.lrm import load_plugins
from koala_adapter.python.localsite import local_site_text
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.platform import ClusterModel
from koala_experiments.liveruns import site_text

if TYPE_CHECKING:
    from collections.abc import Callable

SITES: dict[str, Callable[[Path], str]] = {
    "local_site": lambda directory: local_site_text(directory, {"alpha": 2}, {"approach": "pwa"}),
    "experiment": lambda directory: site_text([ClusterModel(name="a", nodes=2)], Approach.PRA, "fpsma", directory),
}


@pytest.mark.parametrize("kind", SITES)
@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\U0001f40ab", "a{c}"])
def test_any_directory_is_written_as_toml(kind: str, name: str) -> None:
    """Quotes, backslashes, and characters beyond 16 bits."""
    directory = Path("/tmp") / name
    site = load_site_text(SITES[kind](directory), load_plugins())
    assert {cluster.output_directory for cluster in site.clusters} == {str(directory)}
