# SPDX-License-Identifier: Apache-2.0
"""What the clusters answer when no service runs and they are asked once, for a look at them or a plan.

Nothing here changes anything: not the journal, not the LRMs, and not what a service that runs meanwhile believes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.api.clusterreports import ClusterReport
from koala_adapter.errors import LrmError
from koala_adapter.model import LrmJobState
from koala_adapter.plugin.commands import login_name
from koala_adapter.scheduler.events import ClusterPolled, ClusterUnavailable
from koala_adapter.service.clusterdriver import close_lrm, make_lrm
from koala_adapter.service.poller import read_cluster
from koala_adapter.service.siteparameters import configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from koala_adapter.api.offline import JournalView
    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.plugin import PluginDefinition
    from koala_adapter.service.poller import ClusterReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAnswer:
    """What one cluster said when it was asked once."""

    config: ClusterConfig
    version: str | None = None
    reading: ClusterReading | None = None
    trouble: str = ""
    """Why there is no reading."""
    requests: int = 0


async def ask_cluster(
    config: ClusterConfig, plugins: Mapping[str, PluginDefinition], directory: Path, *, prefix: str, timeout: float
) -> ClusterAnswer:
    """Ask one cluster for its jobs and nodes. Never raises LrmError: what goes wrong is in the answer."""
    lrm, commands = make_lrm(config, plugins, directory)
    version: str | None = None
    try:
        with anyio.fail_after(timeout):
            await lrm.start()
            version = await lrm.version()
            reading = await read_cluster(config, lrm, name_prefix=prefix, user=login_name(), read_at=time.time())
    except LrmError as error:
        return ClusterAnswer(config=config, version=version, trouble=error.message, requests=commands.window.total)
    except TimeoutError:
        trouble = f"no answer within {timeout:g} s"
        return ClusterAnswer(config=config, version=version, trouble=trouble, requests=commands.window.total)
    finally:
        await close_lrm(lrm)
    return ClusterAnswer(config=config, version=version, reading=reading, requests=commands.window.total)


async def ask_clusters(
    site: SiteConfig,
    plugins: Mapping[str, PluginDefinition],
    record: JournalView,
    *,
    timeout: float,
    tell: Callable[[str], None],
) -> list[ClusterAnswer]:
    """Ask all enabled clusters side by side and tell the scheduler of the record what they say.

    ``tell`` hears which clusters have not answered yet.
    """
    waiting = [config.name for config in site.enabled_clusters]
    answers: dict[str, ClusterAnswer] = {}

    async def ask(config: ClusterConfig) -> None:
        prefix = f"koala-{record.instance}-"
        answers[config.name] = await ask_cluster(config, plugins, record.directory, prefix=prefix, timeout=timeout)
        waiting.remove(config.name)
        tell(", ".join(waiting))

    tell(", ".join(waiting))
    async with anyio.create_task_group() as tasks:
        for config in site.enabled_clusters:
            tasks.start_soon(ask, config)
    found = [answers[config.name] for config in site.enabled_clusters]
    _take_in(site, record, found)
    return found


def _take_in(site: SiteConfig, record: JournalView, answers: list[ClusterAnswer]) -> None:
    now = record.now
    record.scheduler.handle(configuration(site, record.instance, now))
    for answer in answers:
        cluster, reading = answer.config.cluster_name, answer.reading
        if reading is None:
            record.scheduler.handle(ClusterUnavailable(time=now, cluster=cluster, reason=answer.trouble))
        else:
            record.scheduler.handle(
                ClusterPolled(
                    time=now, cluster=cluster, processors=reading.processors, idle=reading.idle, ours=reading.ours
                )
            )


def answer_report(record: JournalView, answer: ClusterAnswer) -> ClusterReport:
    """Return the report of a cluster that was asked once."""
    known = record.scheduler.state.clusters[answer.config.cluster_name]
    reading = answer.reading
    # Some batch systems go on listing jobs that have ended.
    states = [] if reading is None else [job.state for job in reading.jobs if job.state is not LrmJobState.ENDED]
    down = 0 if reading is None else reading.down
    return ClusterReport(
        name=answer.config.name,
        plugin=answer.config.plugin,
        lrm=answer.version,
        closed=None if reading is not None else f"out of reach: {answer.trouble}",
        processors=None if reading is None else reading.processors,
        idle=None if reading is None else reading.idle,
        others=None if reading is None else max(0, reading.processors - reading.idle - reading.ours - down),
        threshold=answer.config.parameters.threshold,
        placeholders=len(states),
        placeholders_queued=sum(state in {LrmJobState.QUEUED, LrmJobState.HELD} for state in states),
        available=known.available if reading is not None else 0,
        polled_at=None if reading is None else reading.read_at,
        requests=answer.requests,
        largest_requests_per_minute=answer.requests,
        requests_per_minute=answer.config.requests_per_minute,
        requests_last_minute=answer.requests,
        down=down,
    )
