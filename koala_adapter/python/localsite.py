# SPDX-License-Identifier: Apache-2.0
"""Temporary sites inside this machine, for trials, tests and demonstrations; all of it is removed at the end."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from koala_adapter.api.offline import ENDING, cancel_all, end_daemons, everywhere, temporary_directory
from koala_adapter.api.statedirectory import ended_within
from koala_adapter.config.tomlfile import toml_of
from koala_adapter.errors import KoalaError
from koala_adapter.python.site import Site

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from koala_adapter.lrm import Lrm


@contextmanager
def local_site(clusters: Sequence[str] = ("alpha", "beta"), *, processors: int = 4) -> Iterator[Site]:
    """Have clusters of ``processors`` processors each, inside this machine, with a service of their own.

    They are batch systems with queues, only small. At the end of the block jobs that are left are waited for, or
    cancelled if it ends with an exception, and everything is removed.

    >>> with local_site(["alpha"], processors=2) as site:
    ...     [(cluster.name, cluster.processors) for cluster in site.clusters()]
    [('alpha', 2)]
    """

    def files(directory: Path) -> Mapping[str, str]:
        return {"site.toml": local_site_text(directory, dict.fromkeys(clusters, processors))}

    with temporary_site(files, prefix="koala-") as site, site:
        yield site


@contextmanager
def temporary_site(
    files: Callable[[Path], Mapping[str, str]],
    *,
    prefix: str,
    undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Site]:
    """Yield a site in a temporary directory; at the end all that ran there is stopped, and all files are removed.

    ``files``: texts by their names for the directory that it is given, ``site.toml`` among them. ``prefix``: of the
    name of the directory. ``undisturbed``: makes a block in which no interrupt comes, for the stopping.
    """
    directory = temporary_directory(prefix)
    try:
        state = directory / "state"
        state.mkdir(mode=0o700)
        for name, text in files(directory).items():
            (directory / name).write_text(text, encoding="utf-8")
            (directory / name).chmod(0o700 if text.startswith("#!") else 0o600)
        site = Site.load(directory / "site.toml", state=state)
        try:
            yield site
        finally:
            with undisturbed():
                _end_all(site, state)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def local_site_text(
    directory: Path,
    clusters: Mapping[str, int],
    scheduler: Mapping[str, str | float] | None = None,
    cluster: Mapping[str, float] | None = None,
    sites: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Return a site file of clusters inside this machine.

    ``directory``: for what placeholders print. ``clusters``: the processors of each, by name. ``scheduler`` and
    ``cluster``: settings of these tables beside, or in place of, the usual ones. ``sites``: the table of the site that
    a cluster is at, by the name of the cluster; others are here.
    """
    tables = [
        {
            "name": name,
            "plugin": "local",
            "poll_interval": 0.5,
            "requests_per_minute": 600,
            "output_directory": str(directory),
            **({"site": sites[name]["name"]} if sites and name in sites else {}),
            **(cluster or {}),
            "settings": {"processors": processors, "idle_seconds": 60},
        }
        for name, processors in clusters.items()
    ]
    return toml_of(
        {
            "control_center": {"listen": "127.0.0.1", "lease": 60, "heartbeat": 1},
            "scheduler": {"scan_interval": 0.5, "launch_margin": 20, "placeholder_life": 300, **(scheduler or {})},
            **({"sites": list(sites.values())} if sites else {}),
            "clusters": tables,
        }
    )


def _end_all(site: Site, state: Path) -> None:
    """End what the block has left: a service that another one of its programs began, jobs, and the clusters."""
    pid = site.client.pid()
    if pid is not None:
        with suppress(KoalaError):
            site.client.stop()
            ended_within(pid, ENDING)
    on_all_clusters(site, cancel_all)
    end_daemons(state)


def on_all_clusters(site: Site, do: Callable[[str, Lrm], Awaitable[None]]) -> None:
    """Run a coroutine for every cluster of a site at the same time."""
    with start_blocking_portal() as portal:  # in a thread: the caller may have an event loop running in this one
        portal.call(everywhere, site.config, site.plugins, site.directory, do)
