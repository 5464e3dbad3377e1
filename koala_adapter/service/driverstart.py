# SPDX-License-Identifier: Apache-2.0
"""Which clusters are driven when a service starts, and for how long it waits for their first answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.scheduler.records import State
    from koala_adapter.service.clusterdriver import ClusterDriver

FIRST_ANSWERS = 2.0
"""Seconds within which a cluster that is well has answered for the first time; one that hangs must not keep the others
waiting."""

log = structlog.get_logger()


def drivers_needed(drivers: Iterable[ClusterDriver], state: State) -> list[ClusterDriver]:
    """Return those to be started: a cluster that is not enabled is left alone, unless something of ours is there."""
    left_there = {record.parameters.name for record in state.clusters.values() if record.managed}
    return [one for one in drivers if one.config.enabled or one.name in left_there]


async def start_drivers(drivers: Sequence[ClusterDriver], tasks: TaskGroup) -> None:
    """Drive the clusters within ``tasks``; return when all have been tried, or those that hang are late."""
    tried = anyio.Event()
    untried = {driver.name for driver in drivers}

    async def start(driver: ClusterDriver) -> None:
        await tasks.start(driver.run)
        untried.discard(driver.name)
        if not untried:
            tried.set()

    for driver in drivers:
        tasks.start_soon(start, driver)
    with anyio.move_on_after(FIRST_ANSWERS):
        await tried.wait()
    if untried:
        log.warning("clusters that have not answered yet are not waited for", clusters=sorted(untried))
