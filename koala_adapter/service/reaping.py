# SPDX-License-Identifier: Apache-2.0
"""Finds placeholders that no record of ours owns, and ends them.

What is listed first and owned by nobody in a journal that is read afterwards is certainly no submission under way:
a submission is in the journal before the LRM hears of it. So this is safe beside a running service, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState, PlaceholderId
from koala_adapter.plugin.attribution import is_users
from koala_adapter.plugin.commands import login_name
from koala_adapter.service.clusterdriver import close_lrm, make_lrm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.model import LrmJob
    from koala_adapter.plugin import Lrm, PluginDefinition

PREFIX = "koala-"
NAME = re.compile(r"koala-([0-9a-f]{8})-\d+")
"""Names of our LRM jobs: koala, the instance (one for each state directory), the number of the submission."""
ASKING = 60.0
"""Seconds that a cluster may take to answer."""
LOOK = 1.0
"""Seconds between two looks at what was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What a state directory owns, by its journal."""

    instance: str
    """Part of the names of its LRM jobs."""
    placeholders: Collection[PlaceholderId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A placeholder that nobody owns."""

    cluster: str
    id: str
    name: str
    instance: str
    ours: bool
    """True when it is of this state directory."""
    state: str
    node: str


def leftovers(
    cluster: str, listing: Iterable[LrmJob], owned: Owned, *, user: str, all_instances: bool
) -> list[Leftover]:
    """Return the jobs in a listing that are placeholders of this user's and that nobody is known to own.

    ``all_instances``: also those of other state directories, of which nothing is known.
    """
    found = []
    for job in listing:
        name = NAME.fullmatch(job.name)
        if name is None or not is_users(job, user) or job.state in {LrmJobState.ENDED, LrmJobState.ENDING}:
            continue
        ours = name[1] == owned.instance
        known = PlaceholderId(batch=BatchKey(job.name), index=job.array_index or 1) in owned.placeholders
        if (ours and not known) or (all_instances and not ours):
            found.append(
                Leftover(
                    cluster=cluster,
                    id=job.id,
                    name=job.name,
                    instance=name[1],
                    ours=ours,
                    state=job.state.value,
                    node=", ".join(job.nodes),
                )
            )
    return found


class Reaper:
    """Looks for leftovers in all clusters of a site, and cancels them."""

    def __init__(self, site: SiteConfig, plugins: Mapping[str, PluginDefinition], directory: Path) -> None:
        """``directory``: the state directory."""
        self._site = site
        self._plugins = plugins
        self._directory = directory
        self.found: list[Leftover] = []
        self.stayed: list[Leftover] = []
        """Still there after they were cancelled."""
        self.trouble: dict[str, str] = {}
        """Clusters that did not answer, and why."""

    async def find(self, read_owned: Callable[[], Owned], *, all_instances: bool, tell: Callable[[str], None]) -> None:
        """Ask all clusters, and then what is owned; see :func:`leftovers`."""
        listings: dict[str, tuple[LrmJob, ...]] = {}

        async def ask(config: ClusterConfig) -> None:
            async def jobs(lrm: Lrm) -> None:
                listings[config.name] = await lrm.jobs(name_prefix=PREFIX)

            await self._with_lrm(config, jobs)

        async with anyio.create_task_group() as tasks:
            for config in self._site.clusters:
                tell(f"asking {config.name}")
                tasks.start_soon(ask, config)
        owned = read_owned()  # only now: see the module's docstring
        for name, listing in listings.items():
            self.found += leftovers(name, listing, owned, user=login_name(), all_instances=all_instances)

    async def cancel(self, timeout: float, *, tell: Callable[[str], None]) -> None:
        """Cancel what was found, and wait until it has gone, ``timeout`` seconds at most."""
        by_cluster: dict[str, dict[LrmJobId, Leftover]] = {}
        for one in self.found:
            by_cluster.setdefault(one.cluster, {})[LrmJobId(one.id)] = one
        left = dict(by_cluster)

        async def end(name: str, wanted: dict[LrmJobId, Leftover]) -> None:
            async def cancel(lrm: Lrm) -> None:
                await lrm.cancel(list(wanted))
                with anyio.move_on_after(timeout):
                    while left[name]:
                        listing = {job.id: job for job in await lrm.jobs(name_prefix=PREFIX)}
                        left[name] = {id_: one for id_, one in wanted.items() if _is_there(listing.get(id_))}
                        tell(f"{sum(map(len, left.values()))} are still ending")
                        if left[name]:
                            await anyio.sleep(LOOK)

            await self._with_lrm(self._site.cluster(name), cancel)

        async with anyio.create_task_group() as tasks:
            for name, wanted in by_cluster.items():
                tasks.start_soon(end, name, wanted)
        self.stayed = [one for wanted in left.values() for one in wanted.values()]

    async def _with_lrm(self, config: ClusterConfig, do: Callable[[Lrm], Awaitable[None]]) -> None:
        """Do something with a cluster's LRM; what goes wrong is noted."""
        lrm, _ = make_lrm(config, self._plugins, self._directory)
        try:
            with anyio.fail_after(ASKING):
                await lrm.start()
            await do(lrm)
        except LrmError as error:
            self.trouble[config.name] = error.message
        except TimeoutError:
            self.trouble[config.name] = f"no answer within {ASKING:.0f} s"
        finally:
            await close_lrm(lrm)


def _is_there(job: LrmJob | None) -> bool:
    return job is not None and job.state is not LrmJobState.ENDED
