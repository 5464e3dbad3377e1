# SPDX-License-Identifier: Apache-2.0
"""Tries what was found: whether it answers, takes jobs, and which queue and limits a site file should name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.config.sitemodel import ClusterConfig, shortest_poll_interval
from koala_adapter.errors import KoalaError, LrmError
from koala_adapter.plugin import LeftOut
from koala_adapter.plugin.commands import login_name
from koala_adapter.service.clusterdriver import close_lrm, make_lrm
from koala_adapter.service.poller import read_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.discovery.candidates import Candidate
    from koala_adapter.model import Queue
    from koala_adapter.plugin import Lrm, PluginDefinition

PROBE_TIME = 90.0
"""Seconds that the questions to one batch system may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableCluster:
    """A batch system that answers and takes jobs, with what its table of a site file should say."""

    candidate: Candidate
    version: str
    nodes: int
    processors: int
    queues: tuple[Queue, ...]
    queue: str | None
    """To be named, because the batch system has no default; None: its default, or what it chooses."""
    walltime_limit: int | None
    """Seconds; that of the queue that is used."""
    poll_interval: float | None
    """Seconds, where the default is too often for what a poll costs."""


async def probe_all(
    candidates: Sequence[Candidate],
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[UsableCluster, ...], tuple[LeftOut, ...]]:
    """Try the candidates side by side; ``directory``: the state directory. ``tell`` hears what is being looked at."""
    results: dict[str, UsableCluster | LeftOut] = {}

    async def one(candidate: Candidate) -> None:
        tell(f"asking {candidate.described}")
        results[candidate.name] = await _probe(candidate, plugins, directory)

    async with anyio.create_task_group() as tasks:
        for candidate in candidates:
            tasks.start_soon(one, candidate)
    ordered = [results[candidate.name] for candidate in candidates]
    usable = tuple(one for one in ordered if isinstance(one, UsableCluster))
    return usable, tuple(one for one in ordered if isinstance(one, LeftOut))


async def _probe(
    candidate: Candidate, plugins: Mapping[str, PluginDefinition], directory: Path
) -> UsableCluster | LeftOut:
    try:
        settings = plugins[candidate.plugin].settings(**candidate.found.settings)
        config = ClusterConfig(name=candidate.name, plugin=candidate.plugin, settings=settings)
        lrm, _ = make_lrm(config, plugins, directory)
    except (OSError, ValueError, KoalaError) as error:
        return LeftOut(what=candidate.found.described, why=str(error))
    try:
        with anyio.fail_after(PROBE_TIME):
            return await _look(candidate, config, lrm)
    except TimeoutError:
        return LeftOut(what=candidate.found.described, why=f"no answer within {PROBE_TIME:.0f} s")
    except LrmError as error:
        return LeftOut(what=candidate.found.described, why=error.message, remedy=error.hint)
    finally:
        await close_lrm(lrm)


async def _look(candidate: Candidate, config: ClusterConfig, lrm: Lrm) -> UsableCluster | LeftOut:
    await lrm.start()
    for result in await lrm.check():
        if not result.ok:
            why = f"{result.subject}: {result.found}"
            return LeftOut(what=candidate.found.described, why=why, remedy=result.remedy)
    queues = tuple(await lrm.queues())
    chosen = _chosen(queues)
    reading = await read_cluster(config, lrm, name_prefix="koala-", user=login_name(), read_at=0.0)
    if not reading.processors:
        return LeftOut(what=candidate.found.described, why="it lists no processors")
    shortest = shortest_poll_interval(config.requests_per_minute, lrm.requests_per_poll)
    return UsableCluster(
        candidate=candidate,
        version=await lrm.version(),
        nodes=len(reading.nodes),
        processors=reading.processors,
        queues=queues,
        queue=chosen.name if chosen is not None and not chosen.default else None,
        walltime_limit=chosen.walltime_limit if chosen is not None else None,
        poll_interval=math.ceil(shortest) if shortest > config.poll_interval else None,
    )


def _chosen(queues: Sequence[Queue]) -> Queue | None:
    """Return the default queue, or the largest that is open where there is one choice to be made; None: no need.

    A batch system whose queues are none of them a default chooses by itself; so does one whose default is closed
    not, and then the site file must name another.
    """
    default = next((queue for queue in queues if queue.default), None)
    if default is not None and default.up:
        return default
    return max((queue for queue in queues if queue.up), key=lambda queue: queue.processors, default=None)
