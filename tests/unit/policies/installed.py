# SPDX-License-Identifier: Apache-2.0
"""The distribution of the example policies, as if it were installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koala_adapter.lrm.contract import installed_entry_points

EXAMPLES = Path(__file__).parents[3] / "examples" / "policies"
ENTRY_POINTS = """\
[koala_adapter.policies]
placement.first-listed = koala_site_policies:FIRST_LISTED
malleability.smallest-first = koala_site_policies:SMALLEST_FIRST
queue.shortest-first = koala_site_policies:SHORTEST_FIRST
sizes.square-grids = koala_site_policies:SQUARE_GRIDS
"""


def install(directory: Path, entry_points: str = ENTRY_POINTS) -> None:
    """Write what an installer leaves of a distribution with these entry points."""
    metadata = directory / "koala_site_policies-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: koala-site-policies\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def example_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the examples installed during a test."""
    directory = tmp_path / "site-packages"
    directory.mkdir()
    install(directory)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.syspath_prepend(EXAMPLES)
    installed_entry_points.cache_clear()
    yield
    installed_entry_points.cache_clear()
