# SPDX-License-Identifier: Apache-2.0
"""A site of local clusters in a temporary directory, which is gone afterwards with all that ran there."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from koala_adapter.api.temporaryclusters import cancel_all, end_daemons, temporary_directory
from koala_adapter.api.temporaryclusters import everywhere as on_all_clusters
from koala_adapter.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from koala_adapter.cli.interrupts import Interrupts
    from koala_adapter.plugin import Lrm


@contextmanager
def temporary_site(
    interrupts: Interrupts, files: Callable[[Path], Mapping[str, str]], *, prefix: str = "koala-demo-"
) -> Iterator[Session]:
    """Yield a session with a site of its own; afterwards its clusters end, and everything is removed.

    ``files``: texts by their names for the directory that it is given, ``site.toml`` among them. ``prefix``: of the
    name of the directory.
    """
    directory = temporary_directory(prefix)
    try:
        state = directory / "state"
        state.mkdir(mode=0o700)
        for name, text in files(directory).items():
            (directory / name).write_text(text, encoding="utf-8")
        inner = Session(site_option=directory / "site.toml", state_option=state)
        try:
            yield inner
        finally:
            with interrupts.deferred():
                everywhere(inner, cancel_all)
                end_daemons(state)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def everywhere(session: Session, do: Callable[[str, Lrm], Awaitable[None]]) -> None:
    """Do something with all clusters, side by side."""
    anyio.run(on_all_clusters, session.site, session.plugins, session.directory, do)
