# SPDX-License-Identifier: Apache-2.0
"""The plugin ``local`` at a site: its daemon is sent there, and outlives the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

import koala_local
from koala_adapter.config.sitefile import RemoteSiteConfig
from koala_adapter.errors import ConfigurationError
from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey, LrmJobState
from koala_adapter.service.opening import SiteHosts
from koala_adapter.testing import eventually, new_context
from koala_local.lrm import LocalLrm, LocalSettings
from tests.local_daemon import end_daemon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from koala_adapter.lrm.lrmhost import LrmHost

pytestmark = pytest.mark.anyio

SSH = '#!/bin/sh\nwhile [ "$#" -gt 1 ]; do shift; done\nexec sh -c "$1"\n'
"""Stands for ssh: the site is this host."""


@pytest.fixture
async def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RemoteSiteConfig]:
    """Return a site; daemons that are left there are ended."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin")
    yield RemoteSiteConfig(name="far", ssh="far", directory=str(tmp_path / "there"))
    for cluster in (tmp_path / "there" / "local").iterdir():
        await end_daemon(cluster)


def new_lrm(directory: Path, host: LrmHost) -> LocalLrm:
    return LocalLrm(new_context(directory, host=host), LocalSettings(processors=2))


async def test_jobs_go_on_without_a_connection(there: RemoteSiteConfig, tmp_path: Path) -> None:
    """They are found again by the next connection, with the way in which they ended."""
    go, done = tmp_path / "go", tmp_path / "done"
    script = f"#!/bin/sh\nuntil [ -e {go} ]; do sleep 0.05; done\ntouch {done}\n"
    async with SiteHosts([there], tmp_path) as hosts:
        lrm = new_lrm(tmp_path, hosts.at("far"))
        await lrm.start()
        assert sum(node.processors for node in await lrm.nodes()) == 2
        submitted = await lrm.submit(Submission(key=BatchKey("kk-1"), count=1, script=script, walltime=60))
    go.touch()
    async with SiteHosts([there], tmp_path) as hosts:
        lrm = new_lrm(tmp_path, hosts.at("far"))
        await eventually(
            lrm.jobs,
            lambda jobs: [(job.id, job.state) for job in jobs] == [(submitted[0], LrmJobState.ENDED)],
            what="it is over",
            seconds=30,
        )
        assert {job.user for job in await lrm.jobs()} == {hosts.at("far").user}
        assert [one.found for one in await lrm.check() if not one.ok] == []
    assert done.exists()


async def test_how_many_processors_of_a_login_node_is_to_be_said(there: RemoteSiteConfig, tmp_path: Path) -> None:
    (tmp_path / "there" / "local").mkdir(parents=True)
    async with SiteHosts([there], tmp_path) as hosts:
        with pytest.raises(ConfigurationError, match="not all for jobs"):
            koala_local.PLUGIN.factory(new_context(tmp_path, host=hosts.at("far")), LocalSettings())
        await anyio.lowlevel.checkpoint()
