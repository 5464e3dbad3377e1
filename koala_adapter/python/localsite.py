# SPDX-License-Identifier: Apache-2.0
"""A site of small clusters inside this machine, for trying things out and for tests; all of it is gone afterwards."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from koala_adapter.errors import KoalaError
from koala_adapter.python.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SITE = """\
[control_center]
listen = "127.0.0.1"
lease = 60
heartbeat = 1

[scheduler]
scan_interval = 0.5
launch_margin = 20
placeholder_life = 300
"""
CLUSTER = """
[[clusters]]
name = {name}
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = {directory}
settings = {{ processors = {processors}, idle_seconds = 60 }}
"""


@contextmanager
def local_site(clusters: Sequence[str] = ("alpha", "beta"), *, processors: int = 4) -> Iterator[Site]:
    """Have clusters of ``processors`` processors each, inside this machine, with a service of their own.

    They are batch systems with queues, only small. At the end of the block jobs that are left are waited for, or
    cancelled if it ends with an exception, and everything is removed.

    >>> with local_site(["alpha"], processors=2) as site:
    ...     [(cluster.name, cluster.processors) for cluster in site.clusters()]
    [('alpha', 2)]
    """
    from koala_adapter.api.temporaryclusters import temporary_directory

    directory = temporary_directory("koala-")
    try:
        file, state = directory / "site.toml", directory / "state"
        state.mkdir(mode=0o700)
        file.write_text(_site_text(directory, clusters, processors), encoding="utf-8")
        site = Site.load(file, state=state)
        try:
            with site:
                yield site
        finally:
            _end_all(site, state)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _site_text(directory: Path, clusters: Sequence[str], processors: int) -> str:
    tables = [
        CLUSTER.format(name=json.dumps(name), directory=json.dumps(str(directory)), processors=processors)
        for name in clusters
    ]
    return "".join([SITE, *tables])


def _end_all(site: Site, state: Path) -> None:
    """End what the block has left: a service that another one of its programs began, jobs, and the clusters."""
    from anyio.from_thread import start_blocking_portal

    from koala_adapter.api.backgroundservice import ended_within
    from koala_adapter.api.temporaryclusters import ENDING, cancel_all, end_daemons, everywhere

    pid = site.client.pid()
    if pid is not None:
        with suppress(KoalaError):
            site.client.stop()
            ended_within(pid, ENDING)
    with start_blocking_portal() as portal:
        portal.call(everywhere, site.config, site.plugins, site.directory, cancel_all)
    end_daemons(state)
