# SPDX-License-Identifier: Apache-2.0
"""The plugins that need no batch system on the conformance kit, and jobs of the plugin ``local`` beyond it."""

from __future__ import annotations

import importlib
import os
import pwd
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

from koala_adapter.config.sitefile import ClusterConfig
from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.lrm import ClusterContext, Lrm
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import BatchKey, EndReason, LrmJobId, LrmJobState
from koala_adapter.service.clusters import read_cluster
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial, eventually, new_context
from koala_adapter.testing.trial import begin_start
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.words import Dialect
from koala_local import processes as process
from koala_local.lrm import PLUGIN as LOCAL_PLUGIN
from koala_local.lrm import LocalLrm, LocalSettings
from koala_wiki import PLUGIN as WIKI_PLUGIN
from koala_wiki.lrm import WikiSettings
from tests.local_koala import LIVENESS, daemon_pid, end_daemon, foreign_job, namesake_job
from tests.test_local_daemon import job_of, start_trial, state_of, wait_gone
from tests.undertest import started_plugin
from tests.unit.plugins.test_local_parts import SAMPLE
from tests.wiki_server import WikiServer

# -- The conformance kit on the plugins that need no batch system: local, wiki, and that of docs/plugins.md.

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
                lrm._daemon._seconds = 0.5  # so that nobody has to wait a minute for who does not answer
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
    # What is worded in another way; the rest is as in the other dialect.
    BY_DAY = frozenset(
        {
            "test_cancel_all_kinds_at_once",
            "test_check_is_content",
            "test_exit_code",
            "test_foreign_job_is_seen",
            "test_modify_walltime",
            "test_nodes_add_up",
            "test_queues",
            "test_requeue",
            "test_start_on_chosen_node",
            "test_states_go_forward",
            "test_suspend_and_resume",
            "test_times_are_told",
            "test_unavailable",
        }
    )


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


# -- Jobs of the plugin ``local`` beyond the conformance kit: their processes, environment, files and limits.


@pytest.fixture
async def trial(tmp_path: Path) -> AsyncIterator[Trial]:
    """Start a cluster of two nodes with one processor each."""
    trial = await start_trial(tmp_path, processors=None, nodes=2, walltime_limit=3600)
    yield trial
    await trial.close()
    await end_daemon(state_of(trial))


@pytest.fixture
async def gentle(tmp_path: Path) -> AsyncIterator[Trial]:
    """Start a cluster of a processor, where jobs have all the time that they need to end."""
    trial = await start_trial(tmp_path, processors=1, kill_wait=600)
    yield trial
    await trial.close()
    await end_daemon(state_of(trial))


@pytest.fixture
async def stern(tmp_path: Path) -> AsyncIterator[Trial]:
    """Start a cluster of a processor, where jobs have next to no time to end."""
    trial = await start_trial(tmp_path, processors=1, kill_wait=0.1)
    yield trial
    await trial.close()
    await end_daemon(state_of(trial))


async def read_pid(trial: Trial, path: Path) -> int:
    """Wait for a process id that a job has written."""
    return int(await trial.wait_file(path))


async def test_others_that_wait_are_counted(trial: Trial) -> None:
    running = await trial.submit(count=2)
    await trial.wait_states(running, LrmJobState.RUNNING, LrmJobState.RUNNING)
    waiting, _ = await trial.submit(count=3), await trial.submit(held=True)
    settings = ClusterConfig.model_validate({"name": "a", "plugin": "local"})

    async def others_of(prefix: str) -> tuple[int, ...]:
        user = login_name()
        reading = await read_cluster(settings, trial.lrm, name_prefix=prefix, user=user, read_at=0.0, others=True)
        return reading.others_waiting

    assert await others_of("koala-k-") == (1, 1, 1)
    assert await others_of(waiting.key) == ()


STRAY = 'setsid sh -c \'echo $$ > "$0/.stray"; mv "$0/.stray" "$0/stray"; exec sleep 300\' "$d" &'
"""Starts a process in a session of its own."""


async def test_strays_end_with_their_job(trial: Trial) -> None:
    batch = await trial.submit(body=STRAY)
    pid = await read_pid(trial, batch.directory / "stray")
    assert process.process_birth(pid)
    batch.go()
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).exit_code == 0
    await wait_gone(trial, pid)


async def test_cancel_ends_what_does_not_listen(stern: Trial) -> None:
    """A job that ignores SIGTERM is killed later, with its strays, and counts as cancelled."""
    trial = stern
    batch = await trial.submit(body=f"trap '' TERM\n{STRAY}")
    pid = await read_pid(trial, batch.directory / "stray")
    await trial.lrm.cancel(batch.ids)
    await trial.wait_ended(batch)
    job = await job_of(trial, batch)
    assert (job.end, job.signal) == (EndReason.CANCELLED, signal.SIGKILL)
    await wait_gone(trial, pid)


UNTIL_ENOUGH = 'until [ -e "$d/enough" ]; do sleep 0.1; done'


async def test_cancel_lets_the_script_clean_up(gentle: Trial) -> None:
    """SIGTERM comes first, so a script can end in order; meanwhile it is shown as ending."""
    trial = gentle
    body = f'trap \'echo bye > "$d/.bye"; mv "$d/.bye" "$d/bye"; {UNTIL_ENOUGH}; exit 5\' TERM; : > "$d/ready"'
    batch = await trial.submit(body=body)
    await trial.wait_file(batch.directory / "ready")
    await trial.lrm.cancel(batch.ids)
    assert await trial.wait_file(batch.directory / "bye") == b"bye\n"
    assert await trial.states(batch) == [LrmJobState.ENDING]
    (batch.directory / "enough").touch()
    await trial.wait_ended(batch)
    job = await job_of(trial, batch)
    assert (job.end, job.exit_code) == (EndReason.CANCELLED, 5)


async def test_requeued_job_can_be_cancelled(gentle: Trial) -> None:
    """It is on its way to its end then, and does not begin again."""
    trial = gentle
    batch = await trial.submit(body=f"trap '{UNTIL_ENOUGH}; exit 0' TERM; : > \"$d/ready\"")
    await trial.wait_file(batch.directory / "ready")
    await trial.lrm.requeue(batch.ids)
    await trial.lrm.cancel(batch.ids)
    (batch.directory / "enough").touch()
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).end is EndReason.CANCELLED
    assert batch.starts(1) == 1


async def test_strays_of_the_first_run_spare_the_second(trial: Trial) -> None:
    batch = await trial.submit(body=STRAY)
    first = await read_pid(trial, batch.directory / "stray")
    (batch.directory / "stray").unlink()
    await trial.lrm.requeue(batch.ids)
    second = await read_pid(trial, batch.directory / "stray")
    await wait_gone(trial, first)
    # The daemon kills all strays of a run in one go, and answers only then.
    assert await trial.states(batch) == [LrmJobState.RUNNING]
    assert process.process_birth(second)
    batch.go()
    await trial.wait_ended(batch)
    await wait_gone(trial, second)


async def test_environment_is_built(trial: Trial) -> None:
    batch = await trial.submit(body='env -0 > "$d/.env"; mv "$d/.env" "$d/env"')
    raw = (await trial.wait_file(batch.directory / "env")).decode()
    seen = dict(item.split("=", 1) for item in raw.split("\0") if item)
    entry = pwd.getpwuid(os.geteuid())
    locale = {name for name in seen if name == "LANG" or name.startswith("LC_")}
    assert "LC_ALL" not in locale
    assert set(seen) - {"PWD", "OLDPWD", "SHLVL", "_", "TZ"} - locale == {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        process.JOB,
        process.TASK,
        process.NODE,
        process.MARK,
    }
    assert (seen["HOME"], seen["USER"]) == (entry.pw_dir, entry.pw_name)
    assert seen[process.NODE] in {"n1", "n2"}


async def test_script_file_goes_with_the_last_job(trial: Trial) -> None:
    scripts = state_of(trial) / "scripts"
    batch = await trial.submit(count=2)
    await trial.wait_running(batch)
    assert len(list(scripts.iterdir())) == 1
    await trial.lrm.cancel(batch.ids[:1])
    await trial.until(
        lambda: trial.states(batch),
        lambda states: states == [LrmJobState.ENDED, LrmJobState.RUNNING],
        what="one of two ended",
    )
    assert len(list(scripts.iterdir())) == 1
    batch.go()
    await trial.wait_ended(batch)
    assert list(scripts.iterdir()) == []


@pytest.mark.parametrize("obstacle", ["missing", "link", "directory"])
async def test_output_that_cannot_be_opened(trial: Trial, obstacle: str) -> None:
    batch = trial.prepare(count=1)
    output = batch.directory / "output"
    name = output / f"{batch.key}.1.out"
    if obstacle == "missing":
        output.rmdir()
    elif obstacle == "link":
        name.symlink_to(batch.directory / "elsewhere")
    else:
        name.mkdir()
    sent = await trial.send(batch)
    await trial.wait_ended(sent)
    job = await job_of(trial, sent)
    assert job.end is EndReason.LAUNCH_FAILED
    assert "cannot start" in job.reason
    assert not (batch.directory / "elsewhere").exists()
    other = await trial.submit()
    await trial.wait_running(other)


async def test_start_on_a_busy_node_waits(trial: Trial) -> None:
    busy, held = await trial.submit(), await trial.submit(held=True)
    await trial.wait_running(busy)
    (node,) = (await job_of(trial, busy)).nodes
    await begin_start(trial.lrm, held.ids[0], [node])
    other = await trial.submit()
    await trial.wait_running(other)
    assert await trial.states(held) == [LrmJobState.QUEUED]
    busy.go()
    await trial.wait_running(held)
    assert (await job_of(trial, held)).nodes == (node,)


async def test_start_on_impossible_nodes(trial: Trial) -> None:
    held = await trial.submit(held=True)
    with pytest.raises(LrmNotFoundError, match="no node n9"):
        await begin_start(trial.lrm, held.ids[0], ["n9"])
    with pytest.raises(LrmRejectedError, match="one processor"):
        await begin_start(trial.lrm, held.ids[0], ["n1", "n2"])
    assert await trial.states(held) == [LrmJobState.HELD]


async def test_wrong_states_are_refused(trial: Trial) -> None:
    running, held = await trial.submit(), await trial.submit(held=True)
    await trial.wait_running(running)
    with pytest.raises(LrmRejectedError, match="is running"):
        await trial.lrm.hold([*held.ids, *running.ids])
    with pytest.raises(LrmRejectedError, match="is held"):
        await trial.lrm.suspend([*running.ids, *held.ids])
    with pytest.raises(LrmRejectedError, match="no signal"):
        await trial.lrm.signal(running.ids, 999)
    assert await trial.states(running) == [LrmJobState.RUNNING]


async def test_walltime_limit(trial: Trial) -> None:
    with pytest.raises(LrmRejectedError, match="3601 s is not allowed"):
        await trial.submit(walltime=3601)
    batch = await trial.submit(walltime=3600)
    with pytest.raises(LrmRejectedError, match="not allowed"):
        await trial.lrm.modify(batch.ids[0], walltime=0)
    (queue,) = await trial.lrm.queues()
    assert queue.walltime_limit == 3600


async def test_shortened_walltime_ends_the_job(trial: Trial) -> None:
    batch = await trial.submit(walltime=600)
    await trial.wait_running(batch)
    started = (await job_of(trial, batch)).started_at
    assert started is not None

    async def age() -> float:
        return time.time() - started

    await trial.until(age, lambda seconds: seconds > 1, what="run of a second")
    await trial.lrm.modify(batch.ids[0], walltime=1)
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).end is EndReason.WALLTIME


@pytest.mark.parametrize("key", ["", "../x", ".hidden", "a\0b"])
async def test_impossible_names_are_refused(trial: Trial, key: str) -> None:
    """A name that would lead out of the output directory is refused."""
    batch = trial.prepare()
    with pytest.raises(LrmRejectedError, match="cannot be a job name"):
        await trial.lrm.submit(replace(batch.submission, key=BatchKey(key)))


def test_closed_gate_runs_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
    job = replace(SAMPLE, output_directory=str(tmp_path))
    gated = process.start_gated(job, script=script, environment=process.job_environment(tmp_path, job))
    os.close(gated.gate)
    assert os.waitstatus_to_exitcode(os.waitpid(gated.pid, 0)[1]) == 125
    assert not (tmp_path / "ran").exists()
    again = process.start_gated(job, script=script, environment=process.job_environment(tmp_path, job))
    again.open()
    assert os.waitstatus_to_exitcode(os.waitpid(again.pid, 0)[1]) == 0
    assert (tmp_path / "ran").exists()


def test_identity_of_processes() -> None:
    birth = process.process_birth(os.getpid())
    assert process.is_alive(os.getpid(), birth)
    assert not process.is_alive(os.getpid(), birth + "1")
    assert not process.is_alive(os.getpid(), "")
    assert process.process_birth(2**22 + 1) == ""
