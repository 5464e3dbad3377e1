# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the plugin ``wiki``, in both dialects: our own server stands between it and a local cluster.

The kit's jobs are submitted to the local cluster itself, as users of a batch system that is scheduled from outside do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import anyio
import anyio.to_thread
import pytest

from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, eventually, new_context
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.words import Dialect
from koala_local.lrm import LocalLrm, LocalSettings
from koala_wiki import PLUGIN
from koala_wiki.lrm import WikiSettings
from tests.local_daemon import end_daemon, foreign_job, namesake_job
from tests.undertest import started_plugin
from tests.wiki_server import WikiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext, Lrm

KEY = "0xfeedbeef"
PROCESSORS = 4
LOCAL = LocalSettings(nodes=2, processors_per_node=2, answer_seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A local cluster and the WIKI server on it."""

    context: ClusterContext
    server: WikiServer
    settings: WikiSettings


async def occupied(lrm: Lrm) -> list[object]:
    """Return the nodes that are not all idle, and the jobs that are not over."""
    nodes = [node for node in await lrm.nodes() if node.processors_used]
    return [*nodes, *(job for job in await lrm.jobs() if job.state is not LrmJobState.ENDED)]


def make_served(dialect: Dialect, directory: Path) -> Served:
    """Serve a local cluster of its own in a dialect."""
    context = new_context(directory)
    key_file = directory / "key"
    key_file.touch(mode=0o600)
    key_file.write_text(f"{KEY}\n")
    server = WikiServer(
        lambda: LocalLrm(context, LOCAL), dialect=dialect, key=read_key(KEY), directory=directory / "starts"
    )
    server.start()
    settings = WikiSettings(port=server.port, dialect=dialect, key_file=key_file, answer_seconds=60)
    return Served(context=context, server=server, settings=settings)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Dialect], Served]]:
    """Give one served cluster for all tests of a dialect: each leaves it empty."""
    made: dict[Dialect, Served] = {}

    def serve(dialect: Dialect) -> Served:
        if dialect not in made:
            made[dialect] = make_served(dialect, tmp_path_factory.mktemp(dialect))
        return made[dialect]

    yield serve
    for served in made.values():
        served.server.stop()
        anyio.run(end_daemon, served.context.state_directory)


class WikiConformance(LrmConformance):
    """What both dialects have in common."""

    dialect: ClassVar[Dialect]

    @pytest.fixture
    async def under_test(self, tmp_path: Path, serve: Callable[[Dialect], Served]) -> AsyncIterator[LrmUnderTest]:
        """Start the plugin as a client of the server, and a session of the local cluster itself to submit with."""
        served = await anyio.to_thread.run_sync(serve, self.dialect)
        local = LocalLrm(served.context, LOCAL)
        await local.start()

        async def stop_lrm() -> None:
            await anyio.to_thread.run_sync(served.server.stop)

        async def start_lrm() -> None:
            await anyio.to_thread.run_sync(served.server.start)

        async with started_plugin(
            PLUGIN,
            served.settings,
            tmp_path,
            processors=PROCESSORS,
            unknown_id=LrmJobId("999999_1"),
            namesake_job=namesake_job(served.context, LOCAL),
            stop_lrm=stop_lrm,
            start_lrm=start_lrm,
            patience=120,
            walltime_precision=120,
            poll_interval=0.05,
            submitter=local,
            waiting=LrmJobState.HELD,
        ) as under:
            await eventually(lambda: occupied(under.lrm), [].__eq__, what="the last test's jobs are gone", seconds=120)
            # As the plugin sees them: the server answers from a listing that may be some moments old.
            yield replace(under, foreign_job=foreign_job(local, under.lrm))
        await local.close()


class TestWiki(WikiConformance):
    """The dialect of Maui and of Slurm's sched/wiki."""

    dialect = Dialect.WIKI


class TestWiki2(WikiConformance):
    """The dialect of Moab and of Slurm's sched/wiki2."""

    dialect = Dialect.WIKI2
