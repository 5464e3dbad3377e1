# SPDX-License-Identifier: Apache-2.0
"""The checks of a site and ``koala init --ssh``, by a real gateway that a stand-in for ssh starts on this host."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import koala_local
from koala_adapter.config.sitefile import RemoteSiteConfig, load_site_text
from koala_adapter.errors import ConfigurationError, LoginNeededError, LrmUnreachableError
from koala_adapter.lrm import CheckResult, Discovery, FoundCluster, PluginDefinition, Surroundings
from koala_adapter.service.opening import SiteHosts
from koala_adapter.sitesetup.search import Found, search, sites_of
from koala_adapter.sitesetup.sitecheck import SiteCheck

pytestmark = pytest.mark.usefixtures("home")


# -- The checks of a site, by a real gateway that a stand-in for ssh starts on this host.


async def checked(where: Path, *, ssh: str = "far", **more: str) -> dict[str, CheckResult]:
    """Return what is found of a site, by subject."""
    config = RemoteSiteConfig(**{"name": ssh, "ssh": ssh, "directory": str(where / "there"), **more})  # type: ignore[arg-type]
    told: list[str] = []
    async with SiteHosts([config], where) as hosts:
        check = SiteCheck(config=config, host=hosts.at(ssh), center=("127.0.0.1", 9), tell=told.append)
        found = {one.subject: one for one in await check.run()}
    assert told == [f"trying its {subject}" for subject in found]
    return found


async def test_a_good_site(tmp_path: Path) -> None:
    """Nothing of what was tried is left there."""
    found = await checked(tmp_path, listen="127.0.0.1")
    assert [one.remedy for one in found.values() if not one.ok] == []
    assert "by `ssh far`, with Python 3." in found["connection"].found
    assert found["directory"].found == f"{tmp_path}/there (private)"
    assert found["address for nodes"].found.startswith("127.0.0.1, where agents report at port ")
    assert "round trip" in found["speed"].found
    assert list((tmp_path / "there").iterdir()) == []


async def test_sites_that_share_a_home_directory_are_checked_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two login nodes of one cluster do: the file that is tried for one is there while the other is tried."""
    configs = [
        RemoteSiteConfig(name=name, ssh="far", directory=str(tmp_path / "there"), listen="127.0.0.1")
        for name in ("delft", "leiden")
    ]
    async with SiteHosts(configs, tmp_path) as hosts:
        for config in configs:
            host = hosts.at(config.name)
            monkeypatch.setattr(host, "remove_soon", lambda _: None)
            check = SiteCheck(config=config, host=host, center=("127.0.0.1", 9), tell=lambda _: None)
            assert [one.remedy for one in await check.run() if not one.ok] == []
    assert len(list((tmp_path / "there").glob("check-*"))) == len(configs)


async def test_a_directory_that_others_can_enter_or_that_is_a_file(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    found = (await checked(tmp_path, listen="127.0.0.1"))["directory"]
    assert (found.found, found.remedy) == (f"{there} is open to others (mode 755)", f"there: chmod 700 {there}")
    there.rmdir()
    there.write_text("")
    found = (await checked(tmp_path, listen="127.0.0.1", directory=f"{there}/below"))["directory"]
    assert found.found == f"{there}/below cannot be written: Not a directory"
    assert "`directory` of the site" in found.remedy


@pytest.mark.parametrize(
    ("ssh", "more", "remedy"),
    [
        ("shut", {}, "log in with `koala login shut`"),
        ("changed", {}, "verify the host key"),
        ("far", {"python": "/nowhere/python"}, "as `python` of the site"),
    ],
)
async def test_nothing_more_is_tried_of_a_site_that_cannot_be_connected(
    ssh: str, more: dict[str, str], remedy: str, tmp_path: Path
) -> None:
    found = await checked(tmp_path, ssh=ssh, **more)
    assert list(found) == ["connection"]
    assert remedy in found["connection"].remedy


# -- ``koala init --ssh``: the search goes through a real gateway; a stand-in for ssh alone starts it on this host.


def discover(around: Surroundings) -> Discovery:
    """Find a cluster where a variable of the login files is."""
    if "FAR" not in around.environment:
        return Discovery()
    said = around.output(["far-tool"], {"ASKED": "politely"})
    files = around.matching(f"{around.environment['HOME']}/to*/far-*")
    described = f"{around.beside_path('far-tool')} {said} {[around.text(file)[:9] for file in files]}"
    return Discovery(clusters=(FoundCluster(name="small", described=described, settings={"processors": 3}),))


def plugins() -> dict[str, PluginDefinition]:
    return {"local": replace(koala_local.PLUGIN, sites=True, discover=discover)}


def found_at(directory: Path, *destinations: str) -> Found:
    (directory / "state").mkdir(mode=0o700, exist_ok=True)
    sites = sites_of(destinations)
    return search(plugins(), directory / "state", sites=sites, around=Surroundings(environment={}))


def test_sites_are_written_with_what_is_found_there(home: Path, tmp_path: Path) -> None:
    """The variables are those of a login, and so are the directories of programs."""
    found = found_at(tmp_path, "me@far.example.org")
    text = found.text(made="by a test")
    data = tomllib.loads(text)
    assert [(one["name"], one["ssh"]) for one in data["sites"]] == [("far-example-org", "me@far.example.org")]
    assert [(one["name"], one["site"]) for one in data["clusters"]] == [("far-example-org-small", "far-example-org")]
    assert data["control_center"]["listen"] == "127.0.0.1"
    assert found.clusters[0].candidate.found.described == f"{home}/tools said politely\n ['#!/bin/sh']"
    assert load_site_text(text, plugins()).cluster("far-example-org-small").site == "far-example-org"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("destination", "kind", "hint"),
    [("shut", LoginNeededError, "koala login"), ("changed", LrmUnreachableError, "verify the host key")],
)
def test_a_site_that_cannot_be_reached_ends_the_search(
    destination: str, kind: type[LrmUnreachableError], hint: str, tmp_path: Path
) -> None:
    """Who names a site wants it: a file without it would be no answer."""
    with pytest.raises(kind, match=f"site {destination} is away") as refusal:
        found_at(tmp_path, "far", destination)
    assert hint in refusal.value.hint


@pytest.mark.usefixtures("home")
def test_who_must_log_in_is_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []
    state = tmp_path / "state"
    with pytest.raises(LoginNeededError):
        search(plugins(), state, sites=sites_of(["far", "shut"]), log_in=lambda site: asked.append(site.ssh))
    assert asked == ["shut"]


def test_a_site_without_a_batch_system_ends_the_search(home: Path, tmp_path: Path) -> None:
    (home / ".profile").unlink()
    with pytest.raises(ConfigurationError, match="no batch system can be used at far"):
        found_at(tmp_path, "far")


def test_names_of_sites_are_made_of_those_of_hosts() -> None:
    """Each has one of its own; what is no host for ssh is refused."""
    sites = sites_of(["me@far.example.org", "ssh://far-example-org:22", "far"])
    assert [one.name for one in sites] == ["far-example-org", "far-example-org-2", "far"]
    with pytest.raises(ConfigurationError, match="-oProxyCommand=x"):
        sites_of(["-oProxyCommand=x"])
