# SPDX-License-Identifier: Apache-2.0
"""From what plugins find to a site file: names, refusals, and the text."""

from __future__ import annotations

import threading
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import anyio
import pytest

import koala_local
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import PluginError
from koala_adapter.lrm import Discovery, FoundCluster, LeftOut, Surroundings, load_plugins
from koala_adapter.model import Queue
from koala_adapter.sitesetup.find import (
    Address,
    Candidate,
    UsableCluster,
    find_candidates,
    no_site_file_here,
    search,
    site_text,
    unique_name,
)
from tests.local_daemon import end_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.lrm import PluginDefinition

NOWHERE = Surroundings(environment={})
FOUND = FoundCluster(name="here", described="this host, by a test", settings={"processors": 3})


@pytest.fixture(autouse=True)
def no_daemon_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for cluster in tmp_path.rglob("clusters/*"):
        anyio.run(end_daemon, cluster)


def plugin(*clusters: FoundCluster, left_out: tuple[LeftOut, ...] = ()) -> PluginDefinition:
    return replace(koala_local.PLUGIN, discover=lambda _: Discovery(clusters=clusters, left_out=left_out))


def broken(_: Surroundings) -> Discovery:
    raise RuntimeError("oops")


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("alpha", "alpha"),
        ("head.example.org", "head-example-org"),
        ("1st", "cluster-1st"),
        ("***", "cluster"),
        ("taken", "taken-3"),
        ("x" * 80, "x" * 63),
    ],
)
def test_names_that_a_site_file_allows(wanted: str, name: str) -> None:
    """And that no other cluster has."""
    assert unique_name(wanted, {"taken", "taken-2"}) == name


def test_a_plugin_that_fails_or_finds_nothing_leaves_the_others_alone() -> None:
    failing = replace(koala_local.PLUGIN, discover=broken)
    silent = replace(koala_local.PLUGIN, discover=None)
    candidates, left_out = find_candidates({"b": failing, "c": plugin(FOUND, FOUND), "d": silent}, NOWHERE)
    assert [(one.name, one.plugin) for one in candidates] == [("here", "c"), ("here-2", "c")]
    assert [one.what for one in left_out] == ["plugin b"]
    assert "RuntimeError: oops" in left_out[0].why


def test_a_plugin_that_hangs_leaves_the_others_alone() -> None:
    """It is not waited for beyond the limit, and that is told."""
    answered = threading.Event()

    def hanging(_: Surroundings) -> Discovery:
        answered.wait(60)
        return Discovery()

    hangs = replace(koala_local.PLUGIN, discover=hanging)
    try:
        candidates, left_out = find_candidates({"a": hangs, "c": plugin(FOUND)}, NOWHERE, limit=2)
    finally:
        answered.set()
    assert [one.name for one in candidates] == ["here"]
    assert [(one.what, one.why) for one in left_out] == [("plugin a", "its search has not ended within 2 s")]


def usable(**more: object) -> UsableCluster:
    values: dict[str, object] = {
        "candidate": Candidate(name="here", plugin="local", found=FOUND),
        "version": "local 1\n[evil]",
        "nodes": 1,
        "processors": 3,
        "queues": (
            Queue(name='q"1', up=True, processors=3, walltime_limit=90061),
            Queue(name="r", up=False, processors=0),
        ),
        "queue": 'q"1',
        "walltime_limit": 90061,
        "poll_interval": None,
    }
    return UsableCluster(**{**values, **more})  # type: ignore[arg-type]


def test_the_text_is_a_site_file_that_says_what_was_found() -> None:
    """Whatever a batch system calls its things, it stays in its place."""
    left = LeftOut(what="x", why="broken\n[[clusters]]", remedy="mend it")
    text = site_text([usable()], [left], Address(listen="0.0.0.0", address="10.0.0.1"), made="by a test")
    assert tomllib.loads(text) == {
        "control_center": {"listen": "0.0.0.0", "address": "10.0.0.1"},
        "clusters": [
            {
                "name": "here",
                "plugin": "local",
                "queue": 'q"1',
                "walltime_limit": "25:01:01",
                "threshold": 0,
                "settings": {"processors": 3},
            }
        ],
    }
    assert "broken\\n[[clusters]]; mend it" in text
    assert all(line.startswith(("#", "[")) or "=" in line or not line for line in text.splitlines())


def test_what_has_a_default_queue_names_none() -> None:
    """The line is there, for who wants another."""
    queues = (Queue(name="main", up=True, processors=3, default=True),)
    text = site_text(
        [usable(queues=queues, queue=None, walltime_limit=None)], [], Address(listen="127.0.0.1"), made="x"
    )
    (cluster,) = tomllib.loads(text)["clusters"]
    assert "queue" not in cluster
    assert "walltime_limit" not in cluster
    assert '#queue = "main"' in text


def test_a_search_tries_what_it_finds(tmp_path: Path) -> None:
    wrong = FoundCluster(name="wrong", described="nonsense", settings={"processors": -1})
    plugins = {"local": plugin(FOUND, wrong)}
    found = search(plugins, tmp_path, around=NOWHERE)
    assert [one.candidate.name for one in found.clusters] == ["here"]
    assert [one.what for one in found.left_out] == ["nonsense"]
    site = load_site_text(found.text(made="by a test"), plugins)
    assert site.cluster("here").settings.model_dump()["processors"] == 3


def test_a_missing_site_file_is_refused_with_what_is_here() -> None:
    """And with the command that writes one; where nothing is here, with the reasons and what could be set."""
    refusal = no_site_file_here({"local": plugin(FOUND)}, around=NOWHERE)
    assert "no site file found; looked for: $KOALA_SITE" in refusal.message
    assert refusal.message.endswith("batch systems of this host: here (this host, by a test)")
    assert "`koala init`" in refusal.hint
    seen = LeftOut(what="Slurm", why="no answer", remedy="wait")
    refusal = no_site_file_here({"local": plugin(left_out=(seen,))}, around=NOWHERE)
    assert "no batch system can be used from here:\n  Slurm: no answer; wait" in refusal.message
    assert "SLURM_CONF" in refusal.hint
    assert "koala demo" in refusal.hint


def test_a_definition_with_a_wrong_discover_is_refused() -> None:
    """It is a part of the contract."""
    entry = EntryPoint(name="local", value=f"{__name__}:WRONG", group="koala_adapter.plugins")
    with pytest.raises(PluginError, match="discover"):
        load_plugins([entry])["local"]


WRONG = replace(koala_local.PLUGIN, discover="everything")  # type: ignore[arg-type]
