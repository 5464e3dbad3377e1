# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the plugins that need no batch system: local, wiki, and that of docs/plugins.md."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import anyio.to_thread
import pytest

from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, eventually, new_context
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.words import Dialect
from koala_local.lrm import PLUGIN as LOCAL_PLUGIN
from koala_local.lrm import LocalLrm, LocalSettings
from koala_wiki import PLUGIN as WIKI_PLUGIN
from koala_wiki.lrm import WikiSettings
from tests.local_daemon import daemon_pid, end_daemon, foreign_job, namesake_job
from tests.local_koala import LIVENESS
from tests.undertest import started_plugin
from tests.wiki_server import WikiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from koala_adapter.lrm import ClusterContext, Lrm


ANSWER = 60.0
"""Seconds in which the daemon answers, whatever else the machine does."""


class TestLocal(LrmConformance):
    """A local cluster of two simulated nodes with two processors each."""

    @pytest.fixture
    async def under_test(self, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Start a cluster of its own for each test, and end its daemon afterwards."""
        settings = LocalSettings(
            nodes=2, processors_per_node=2, answer_seconds=ANSWER, gpus=1, gpu_kind="kind", features=("feature",)
        )
        given = {"unknown_id": LrmJobId("999999_1"), "patience": 120, "walltime_precision": 120, "poll_interval": 0.05}
        async with started_plugin(LOCAL_PLUGIN, settings, tmp_path, **given) as under:
            context, lrm = under.context, under.lrm
            assert isinstance(lrm, LocalLrm)

            async def stop_lrm() -> None:
                lrm._daemon._seconds = 2  # so that nobody has to wait a minute for who does not answer
                os.kill(daemon_pid(context.state_directory), signal.SIGSTOP)

            async def start_lrm() -> None:
                os.kill(daemon_pid(context.state_directory), signal.SIGCONT)
                lrm._daemon._seconds = ANSWER

            yield replace(
                under,
                foreign_job=foreign_job(lrm, lrm),
                namesake_job=namesake_job(context, settings),
                stop_lrm=stop_lrm,
                start_lrm=start_lrm,
            )
        await end_daemon(under.context.state_directory)


# The conformance kit on the plugin ``wiki``, in both dialects: our own server stands between it and a local cluster.

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
            WIKI_PLUGIN,
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


# The plugin of docs/plugins.md, complete with its test file and its fake, as a third party has it.

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
sys.path.append(str(EXAMPLE))
example: Any = importlib.import_module("test_koala_tinyq")

test_banners_are_no_ids = example.test_banners_are_no_ids
test_unknown_words_are_unknown = example.test_unknown_words_are_unknown
test_complaints = example.test_complaints


class TestTinyq(example.TestTinyq):  # type: ignore[misc] # a module that is found at run time
    """The kit as in the example."""

    # One test of each kind; that a job runs, the test below shows.
    BY_DAY = frozenset(
        {
            "test_cancel_what_is_not_there",
            "test_check_is_content",
            "test_definition_and_lrm_agree",
            "test_found_again_by_name",
            "test_jobs_say_whose_they_are",
            "test_nodes_add_up",
            "test_one_request_gives_ids_in_order",
            "test_queues",
            "test_rejected_submission_leaves_nothing",
            "test_unavailable",
            "test_unsupported_is_said",
            "test_what_is_rendered_is_sent",
        }
    )


def test_a_job_runs_through_the_plugin(tmp_path: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    installed = tmp_path / "koala_tinyq-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    offers = [
        f"[{group}]\n{name} = {found}"
        for group, names in project["entry-points"].items()
        for name, found in names.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(offers) + "\n")
    (tmp_path / "server").mkdir()
    site = tmp_path / "site.toml"
    site.write_text(
        '[control_center]\nlisten = "127.0.0.1"\n'
        '[[clusters]]\nname = "tiny"\nplugin = "tinyq"\npoll_interval = 1\nrequests_per_minute = 600\n'
        f'[clusters.settings]\ncommand = "{EXAMPLE / "tinyq.py"}"\nserver = "{tmp_path / "server"}"\n'
    )
    command = [sys.executable, "-m", "koala_adapter.cli", "--site", str(site), "--state", str(tmp_path / "state")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLE)])}
    done = subprocess.run(
        [*command, "run", "-n", "2", "--", "sh", "-c", "echo $KOALA_RANK of $KOALA_SIZE on $KOALA_CLUSTER"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIVENESS * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["c1/0: 0 of 2 on tiny", "c1/1: 1 of 2 on tiny"]
