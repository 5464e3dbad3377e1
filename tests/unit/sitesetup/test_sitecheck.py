# SPDX-License-Identifier: Apache-2.0
"""The checks of a site, by a real gateway that a stand-in for ssh starts on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.sitefile import RemoteSiteConfig
from koala_adapter.service.opening import SiteHosts
from koala_adapter.sitesetup.sitecheck import SiteCheck

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.lrm import CheckResult

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("home")]


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
