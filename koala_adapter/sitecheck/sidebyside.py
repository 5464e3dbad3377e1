# SPDX-License-Identifier: Apache-2.0
"""Checks all clusters of a site side by side, and tells what was found in the order of the site file."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import KoalaError
from koala_adapter.plugin import CheckResult
from koala_adapter.sitecheck.clustercheck import ClusterCheck
from koala_adapter.sitecheck.trialcenter import TrialCenter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.sitecheck.hostcheck import Installation


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What a user wants to know."""

    timeout: float | None
    """Seconds that a placeholder may take to report; None: none is submitted."""
    outside: bool
    """Look also at what an outside scheduler needs."""
    only: tuple[str, ...] = ()
    """Names of the clusters to be looked at; empty: all that are in use."""


async def check_clusters(
    installation: Installation,
    options: CheckOptions,
    *,
    tell: Callable[[Mapping[str, str]], None],
    found: Callable[[str, Sequence[CheckResult]], None],
) -> None:
    """Check the clusters side by side.

    ``tell`` hears what is being looked at in each cluster that is not checked yet. ``found`` gets the results of each
    cluster when those before it are there; and, without the name of a cluster, what keeps placeholders from being
    tried at all.
    """
    progress: dict[str, str] = {}
    done: dict[str, list[CheckResult]] = {}
    clusters = [config for config in installation.site.clusters if _is_checked(installation, config, options)]
    awaited = [config.name for config in clusters]

    def show(name: str, text: str) -> None:
        progress[name] = text
        tell(progress)

    async def one(check: ClusterCheck, name: str) -> None:
        done[name] = await check.run()
        progress.pop(name, None)
        while awaited and awaited[0] in done:
            found(awaited[0], done[awaited.pop(0)])

    async with AsyncExitStack() as stack:
        center_tasks = await stack.enter_async_context(anyio.create_task_group())
        center: TrialCenter | None = None
        if options.timeout is not None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koala-check-")))
            center, trouble = await _listen(installation, directory, center_tasks)
            if trouble is not None:
                found("", [trouble])
        async with anyio.create_task_group() as tasks:
            for config in clusters:
                check = ClusterCheck(
                    config=config,
                    plugins=installation.plugins,
                    directory=installation.directory,
                    tell=partial(show, config.name),
                    center=center,
                    timeout=options.timeout or 0.0,
                    outside=options.outside,
                )
                tasks.start_soon(one, check, config.name)
        center_tasks.cancel_scope.cancel()


def _is_checked(installation: Installation, config: ClusterConfig, options: CheckOptions) -> bool:
    """Tell whether it is asked for, or in use.

    Where nothing can be submitted it is not enabled, and yet scheduled from outside.
    """
    if options.only:
        return config.name in options.only
    return config.enabled or not installation.plugins[config.plugin].capabilities.submit


async def _listen(
    installation: Installation, directory: Path, tasks: TaskGroup
) -> tuple[TrialCenter | None, CheckResult | None]:
    """Return a control center that listens, or why it cannot."""
    center = TrialCenter(installation.site, directory, state=installation.directory)
    try:
        await center.serve(tasks)
    except KoalaError as error:
        return None, CheckResult(subject="control center", ok=False, found=error.message, remedy=error.hint)
    return center, None
