# SPDX-License-Identifier: Apache-2.0
"""Submissions: sent again they become one job; where placeholders keep what they say."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketStream, TaskGroup, TaskStatus

from koala_adapter.api import client as clients
from koala_adapter.api import protocol
from koala_adapter.api.client import Client
from koala_adapter.api.reporting import live_report
from koala_adapter.api.statedirectory import SOCKET_NAME
from koala_adapter.config.sitefile import load_site
from koala_adapter.driver.loop import EventLoop
from koala_adapter.errors import JobRefusedError, LrmUnavailableError, ServiceAbsentError, ServiceUnavailableError
from koala_adapter.lrm import Submission, load_plugins
from koala_adapter.lrm.rate import Priority
from koala_adapter.model import BatchKey, ClusterName, JobId, LrmJobId, PlaceholderId
from koala_adapter.outcome import JobState
from koala_adapter.service.agents import last_words, tidy_words, words_paths
from koala_adapter.service.opening import make_lrm, words_directory
from koala_adapter.service.service import Service
from tests.unit.scheduler.scheduler_site import component, job
from tests.unit.service.scripted_lrm import ScriptedLrm, config
from tests.unit.service.test_service import Served, completed, running, until


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def submit(service: Service, name: str) -> JobId:
    return service.submit(lambda id_, now: job(id_, component("x", 1), submitted_at=now), submission=name)


async def test_a_submission_that_comes_again_is_answered_with_the_same_job(served: Served) -> None:
    """Also by the next service, when the job has ended, and when it was cleaned away."""
    async with served.running() as service:
        first = submit(service, "one")
        assert submit(service, "one") == first
        assert submit(service, "two") != first
    async with served.running() as service:
        assert submit(service, "one") == first
        service.cancel(first)
        await until(
            lambda: service.state.jobs[first].state is JobState.CANCELLED and not service.state.jobs[first].live,
            service,
        )
        service.forget((first,))
        assert first not in service.state.jobs
        assert submit(service, "one") == first
        service.journal.finished.clean([first], service.now())
        assert submit(service, "one") == first


async def test_a_submission_that_was_killed_before_its_event_is_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served.running() as service:
        with monkeypatch.context() as patch:
            patch.setattr(EventLoop, "enter", lambda _self, _event: (_ for _ in ()).throw(JobRefusedError("killed")))
            with pytest.raises(JobRefusedError):
                submit(service, "one")
        assert service.journal.submitted("one") is not None
        id_ = submit(service, "one")
        assert list(service.state.jobs) == [id_]


OBSTACLE = "libdrmaa.so cannot be used: it is too old (name another one)"


async def test_job_for_which_nothing_can_be_submitted_is_refused(served: Served) -> None:
    served.others[ClusterName("b")] = ScriptedLrm()
    async with served.running() as service:
        earlier = submit(service, "one")
        for lrm in (served.lrm, *served.others.values()):
            submit(service, "")
            lrm.obstacle = OBSTACLE
        with pytest.raises(JobRefusedError, match=r"component 'x': a: .* too old .*; b: .* too old"):
            submit(service, "")
        assert submit(service, "one") == earlier
        served.others[ClusterName("b")].obstacle = ""
        submit(service, "")
        with pytest.raises(JobRefusedError, match="component 'y': a: "):
            service.submit(lambda id_, now: job(id_, component("y", 1, cluster="a"), submitted_at=now))


async def test_obstacle_is_looked_for_before_a_job_is_refused_for_it(served: Served) -> None:
    async with served.hosted():
        served.lrm.obstacle = OBSTACLE
        reports = await to_thread.run_sync(Client(served.directory).clusters)
        assert OBSTACLE in str(reports[0].closed)
        await to_thread.run_sync(Client(served.directory).submit, job("0", component("x", 1)))
        assert served.lrm.obstacle == ""


async def lose_answers(
    directory: Path, served: Served, losses: list[bytes], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Pass requests on to a service; the answers to the first ones are lost, as if it was killed in between."""

    async def pass_on(stream: SocketStream) -> None:
        async with stream, await anyio.connect_unix(served.directory / SOCKET_NAME) as service:
            await service.send(await stream.receive())
            answer = await service.receive()
            if len(losses) < 2:
                losses.append(answer)
            else:
                await stream.send(answer)

    async with await anyio.create_unix_listener(directory / SOCKET_NAME) as listener:
        task_status.started()
        await listener.serve(pass_on)


async def test_a_client_sends_again_what_was_not_answered(served: Served, tmp_path: Path) -> None:
    wanted, losses = job("0", component("x", 1)), list[bytes]()
    async with served.hosted():
        async with anyio.create_task_group() as between:
            await between.start(lose_answers, tmp_path, served, losses)
            id_ = await to_thread.run_sync(partial(Client(tmp_path).submit, wanted))
            between.cancel_scope.cancel()
        assert [protocol.decode_reply(one).result["job_id"] for one in losses] == [id_, id_]
        assert [one.id for one in await to_thread.run_sync(Client(served.directory).jobs)] == [id_]


async def test_who_cannot_know_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody answers for long; what certainly did not arrive is said at once."""
    monkeypatch.setattr(clients, "AGAIN", 0.0)
    with pytest.raises(ServiceAbsentError):
        await to_thread.run_sync(partial(Client(tmp_path).submit, job("0", component("x", 1))))

    async def hang_up(stream: SocketStream) -> None:
        await stream.aclose()

    async with await anyio.create_unix_listener(tmp_path / SOCKET_NAME) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        with pytest.raises(ServiceUnavailableError, match="not known whether"):
            await to_thread.run_sync(partial(Client(tmp_path).submit, job("0", component("x", 1))))
        tasks.cancel_scope.cancel()


async def test_a_submission_that_waits_for_the_bound_of_requests_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who starts many short jobs learns why the next one is not queued yet."""
    served.requests_per_minute = 1500
    async with served.running() as service:
        (driver, *_) = service.clusters.values()
        while not driver.commands.window.take(Priority.SUBMISSION):
            pass  # until the minute is full

        async def asks(_: Submission) -> tuple[LrmJobId, ...]:
            await driver.commands.admit()
            return ()

        for each in service.clusters.values():
            monkeypatch.setattr(each.lrm, "submit", asks)
        id_ = submit(service, "one")
        await until(
            lambda: "(requests_per_minute) allows: the submission goes in" in live_report(service, id_).explanation,
            service,
        )


async def test_what_waits_for_a_look_that_is_put_off_says_so(served: Served) -> None:
    """A job that waits for the first look at a cluster, and one that has ended but whose placeholders stay."""

    async def put_off(service: Service, tasks: TaskGroup) -> None:
        (driver, *_) = service.clusters.values()
        while not driver.commands.window.take():
            pass  # until the minute is full
        tasks.start_soon(driver.commands.admit)

    def says(service: Service, id_: JobId) -> bool:
        return "it is looked at again in" in live_report(service, id_).explanation

    served.requests_per_minute = 1500
    served.lrm.errors["nodes"] = served.lrm.errors["jobs"] = LrmUnavailableError("away")
    async with served.running() as service, anyio.create_task_group() as tasks:
        id_ = submit(service, "one")
        await put_off(service, tasks)
        await until(lambda: says(service, id_), service)
        service.cancel(id_)
        tasks.cancel_scope.cancel()
    served.lrm.errors.clear()
    async with served.running() as service, anyio.create_task_group() as tasks:
        id_, agent = await running(served, service, tasks)
        await completed(service, id_, agent)
        assert not says(service, id_)
        await put_off(service, tasks)
        await until(lambda: says(service, id_), service)
        tasks.cancel_scope.cancel()


# Where placeholders keep what they say, and what becomes of it.

ONE = PlaceholderId(batch=BatchKey("koala-k-1"), index=1)


def test_words_are_kept_in_the_state_directory_unless_the_site_says_otherwise(tmp_path: Path) -> None:
    """There nobody else can put anything in the way; what the site names is not made by us."""
    plugins = load_plugins()
    text = '[[clusters]]\nname = "a"\nplugin = "local"\n'
    (tmp_path / "site.toml").write_text(text)
    own = load_site(tmp_path / "site.toml", plugins).clusters[0]
    make_lrm(own, plugins, tmp_path / "state")
    directory = words_directory(own, tmp_path / "state")
    assert directory == tmp_path / "state" / "clusters" / "a" / "output"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert words_directory(config(output_directory="/scratch"), tmp_path).as_posix() == "/scratch"


def test_files_in_which_nothing_was_said_are_removed(tmp_path: Path) -> None:
    spoken, silent, other = (tmp_path / name for name in ("koala-k-1.1.out", "koala-k-1.2.out", "koala-k-11.1.out"))
    spoken.write_text("no way\n")
    silent.touch()
    other.touch()
    tidy_words(tmp_path, ONE.batch)
    assert sorted(tmp_path.iterdir()) == [spoken, other]


def test_words_are_read_where_they_can_be(tmp_path: Path) -> None:
    """In the directory or one level deeper; a pipe or a link in the place of a file is not words."""
    plain, deeper = words_paths(tmp_path, ONE)
    deeper.parent.mkdir()
    deeper.write_text("deeper\n")
    os.mkfifo(plain)
    assert [last_words(path) for path in (plain, deeper)] == ["", "deeper"]
    plain.unlink()
    plain.symlink_to(deeper)
    assert last_words(plain) == ""
