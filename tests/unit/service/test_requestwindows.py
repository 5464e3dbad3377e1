# SPDX-License-Identifier: Apache-2.0
"""Which requests are counted together: those of one user to one batch system, whatever the state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.sitefile import load_site
from koala_adapter.lrm import load_plugins
from koala_adapter.service.opening import make_lrm, request_window

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.config.sitefile import ClusterConfig

SITE = """
[[clusters]]
name = "alpha"
plugin = "slurm"
settings = { conf = "/etc/slurm/alpha.conf" }

[[clusters]]
name = "again"
plugin = "slurm"
settings = { conf = "/etc/slurm/alpha.conf", account = "physics" }

[[clusters]]
name = "beta"
plugin = "slurm"
settings = { conf = "/etc/slurm/beta.conf" }

[[clusters]]
name = "here"
plugin = "local"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def clusters(tmp_path: Path) -> dict[str, ClusterConfig]:
    (tmp_path / "site.toml").write_text(SITE)
    return {cluster.name: cluster for cluster in load_site(tmp_path / "site.toml", load_plugins()).clusters}


def window(config: ClusterConfig, directory: Path) -> Path:
    return request_window(config, load_plugins()[config.plugin], directory)


def test_one_batch_system_has_one_window(clusters: dict[str, ClusterConfig], tmp_path: Path, home: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    alpha = window(clusters["alpha"], one)
    assert alpha.is_relative_to(home / ".local/state/koala/requests")
    assert alpha == window(clusters["alpha"], two) == window(clusters["again"], one)
    assert alpha != window(clusters["beta"], one)


def test_a_batch_system_in_the_state_directory_is_its_own(clusters: dict[str, ClusterConfig], tmp_path: Path) -> None:
    here = clusters["here"]
    assert window(here, tmp_path / "one") == window(here, tmp_path / "one") != window(here, tmp_path / "two")
    assert window(here, tmp_path / "one").is_relative_to(tmp_path / "one")


def test_without_a_usable_home_the_state_directory_serves(
    clusters: dict[str, ClusterConfig], tmp_path: Path, home: Path
) -> None:
    """Then the processes of one state directory are counted together."""
    (home / ".local").write_text("no directory")
    assert window(clusters["alpha"], tmp_path / "one").parent == tmp_path / "one" / "requests"


def test_those_who_ask_the_same_system_are_counted_together(clusters: dict[str, ClusterConfig], tmp_path: Path) -> None:
    plugins, config = load_plugins(), clusters["alpha"].model_copy(update={"requests_per_minute": 10})
    (_, service), (_, scheduler) = (make_lrm(config, plugins, tmp_path / name) for name in ("one", "two"))
    assert [service.window.take() for _ in range(8)] == [0.0] * 8
    assert scheduler.window.take() > 50
