# SPDX-License-Identifier: Apache-2.0
"""A whole service in the process of the test: scheduler, journal, control center and socket, with a scripted LRM."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from anyio import to_thread
from anyio.abc import TaskGroup
from click.testing import CliRunner
from pydantic import BaseModel

from koala_adapter.api import server as server_module
from koala_adapter.api.client import Client
from koala_adapter.api.closedjournal import ClosedJournal, closed_journal
from koala_adapter.api.offline import WithoutService, ask_cluster
from koala_adapter.api.protocol import Request
from koala_adapter.api.server import Server, host
from koala_adapter.api.statedirectory import JOURNAL_NAME
from koala_adapter.cli.koala import koala
from koala_adapter.config.jobfile import job_as_described
from koala_adapter.config.sitefile import SiteConfig, load_site_text
from koala_adapter.config.written import DescribedJob
from koala_adapter.errors import (
    EXIT_SERVICE,
    ConfigurationError,
    DefectError,
    JobNotFoundError,
    JournalBlockedError,
    LrmUnavailableError,
    RecoveryError,
    ServiceAbsentError,
    ServiceUnavailableError,
)
from koala_adapter.lrm import Capabilities, PluginDefinition
from koala_adapter.lrm.commands import LocalHost, login_name
from koala_adapter.model import (
    BatchKey,
    ClusterName,
    Component,
    InputFile,
    Job,
    JobId,
    LrmJob,
    LrmJobId,
    LrmJobState,
    PlaceholderId,
)
from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.context import RecordedBatches
from koala_adapter.scheduler.core import Scheduler
from koala_adapter.scheduler.knownpolicies import OWN
from koala_adapter.scheduler.records import State
from koala_adapter.service import replicas, upkeep
from koala_adapter.service.journal import Journal
from koala_adapter.service.leftovers import Cleaning, Seen
from koala_adapter.service.records import KeptNegotiation, Message
from koala_adapter.service.service import Service
from tests.unit.api.jobreports import job_report
from tests.unit.scheduler.scheduler_site import WELL, component, job
from tests.unit.service.scripted_lrm import ScriptedLrm, node
from tests.unit.service.standins import ScriptedAgent

LIVENESS = 60.0
"""Seconds within which what must come has come, however slow the machine is."""


class NoSettings(BaseModel, extra="forbid"):
    """The scripted plugin has none."""


Agent = TypeVar("Agent", bound=ScriptedAgent)


class Served:
    """A service on a state directory, whose LRM and agents are in the test's hands."""

    def __init__(self, directory: Path) -> None:
        self.lrm = ScriptedLrm()
        self.others: dict[ClusterName, ScriptedLrm] = {}
        """Those of further clusters."""
        self.requests_per_minute = 6000
        self.directory = directory / "state"
        self.directory.mkdir(mode=0o700)
        self.tokens = directory / "tokens"
        self.plugins = {
            "scripted": PluginDefinition(
                name="scripted",
                summary="a test's",
                settings=NoSettings,
                capabilities=Capabilities(),
                factory=lambda context, _settings: self.others.get(context.cluster, self.lrm),
            )
        }
        self.service: Service | None = None

    @property
    def site(self) -> SiteConfig:
        clusters = "".join(
            f"""
            [[clusters]]
            name = "{name}"
            plugin = "scripted"
            poll_interval = 0.1
            requests_per_minute = {self.requests_per_minute}
            token_directory = "{self.tokens}"
            """
            for name in ("a", *self.others)
        )
        return load_site_text(f'control_center = {{ listen = "127.0.0.1" }}\n{clusters}', self.plugins)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        service = self.service = Service(
            self.site, self.plugins, self.directory, make_report=lambda _, id_: f"report of {id_}"
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            yield service
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def hosted(self) -> AsyncIterator[tuple[Server, Client]]:
        async with anyio.create_task_group() as tasks:
            server = await tasks.start(host, self.site, self.plugins, self.directory)
            yield server, Client(self.directory)
            server.stop_wanted.set()

    def lists(self, batch: BatchKey) -> None:
        self.lrm.all_jobs = (
            LrmJob(
                id=LrmJobId(f"{batch}:1"),
                name=batch,
                state=LrmJobState.RUNNING,
                user=login_name(),
                processors=1,
                array_index=1,
            ),
        )

    def agent(self, service: Service, batch: BatchKey, kind: type[Agent]) -> Agent:
        """Return the agent of a submission of one, which is not connected yet."""
        token = (self.tokens / f"{batch}.token").read_text(encoding="utf-8")
        port = int(service.journal.value("port") or "0")
        return kind(PlaceholderId(batch=batch, index=1), port=port, token=token)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


async def until(met: Callable[[], bool], service: Service) -> None:
    with anyio.fail_after(60):
        while not met():
            with anyio.move_on_after(0.2):
                await service.core.changed.wait()


def submit(service: Service) -> JobId:
    return service.submit(lambda id_, now: job(id_, component("x", 1), submitted_at=now))


def failing_on(monkeypatch: pytest.MonkeyPatch, fails: Callable[[ev.Event], bool]) -> None:
    """Have the scheduler fail at the end of some events, whenever they are handled."""
    handle = Scheduler.handle

    def failing(scheduler: Scheduler, event: ev.Event, recorded: RecordedBatches | None = None) -> list[act.Action]:
        actions = handle(scheduler, event, recorded)
        if fails(event):
            raise KeyError("a defect")
        return actions

    monkeypatch.setattr(Scheduler, "handle", failing)


async def queued(served: Served, service: Service, id_: JobId) -> BatchKey:
    """Wait until the only submission has been sent to the batch system."""
    await until(lambda: "submit" in served.lrm.order and bool(service.state.jobs[id_].claims[0].placeholders), service)
    (batch,) = service.state.batches
    return batch


async def started(served: Served, service: Service) -> tuple[JobId, ScriptedAgent]:
    id_ = submit(service)
    batch = await queued(served, service, id_)
    served.lists(batch)
    return id_, served.agent(service, batch, ScriptedAgent)


async def running(served: Served, service: Service, tasks: TaskGroup) -> tuple[JobId, ScriptedAgent]:
    """Submit a job and bring it as far as its process."""
    id_, agent = await started(served, service)
    tasks.start_soon(agent.run)
    await until(lambda: service.state.jobs[id_].state is JobState.RUNNING, service)
    return id_, agent


async def completed(service: Service, id_: JobId, agent: ScriptedAgent) -> None:
    agent.end_task.set()
    await until(lambda: service.state.jobs[id_].state is JobState.COMPLETED, service)


async def cancelled(service: Service) -> JobId:
    id_ = submit(service)
    service.cancel(id_)
    await until(lambda: not service.unfinished, service)
    return id_


async def submitted(client: Client) -> str:
    return await to_thread.run_sync(lambda: client.submit(job("0", component("x", 1))))


async def test_a_job_from_its_submission_to_its_end(served: Served) -> None:
    async with served.running() as service, anyio.create_task_group() as tasks:
        id_, agent = await running(served, service, tasks)
        await completed(service, id_, agent)
        served.lrm.all_jobs = ()
        await until(lambda: not service.state.placeholders, service)
        assert service.journal.finished.report(id_) == f"report of {id_}"
        await until(lambda: not service.core.busy, service)


class SlowLrm(ScriptedLrm):
    """An LRM that does not answer its first question before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = anyio.Event(), anyio.Event()

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        self.asked.set()
        await self.answers.wait()
        return await super().jobs(name_prefix=name_prefix)


async def test_a_job_is_queued_nowhere_before_every_cluster_has_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koala_adapter.scheduler.claiming.waiting.FIRST_LOOK", 3600.0)
    served.lrm.all_nodes = (node(used=4),)
    slow = served.others[ClusterName("b")] = SlowLrm()
    async with served.running() as service:
        await slow.asked.wait()
        id_ = submit(service)
        await until(lambda: service.state.clusters[ClusterName("a")].polled_at is not None, service)
        assert service.state.jobs[id_].state is JobState.WAITING
        slow.answers.set()
        await until(lambda: "submit" in slow.order, service)
        assert "submit" not in served.lrm.order


async def test_nothing_is_placed_by_what_an_earlier_service_has_seen(served: Served) -> None:
    """The cluster may be out of reach now: it has to answer first."""
    async with served.running() as service:
        await until(lambda: service.state.clusters[ClusterName("a")].polled_at is not None, service)
    served.lrm = slow = SlowLrm()
    async with served.running() as service:
        id_ = submit(service)
        assert service.state.jobs[id_].state is JobState.WAITING
        assert service.state.clusters[ClusterName("a")].unavailable == "it has not answered yet"
        slow.answers.set()
        await until(lambda: "submit" in slow.order, service)


class LearningLrm(ScriptedLrm):
    """An LRM that learns from its batch system what it can be asked for."""

    async def start(self) -> None:
        await super().start()
        self.capabilities = replace(self.capabilities, slots=frozenset({"threads"}))


async def test_what_a_cluster_can_be_asked_for_is_known_once_it_has_answered(served: Served) -> None:
    """Before that no job is refused for what a slot needs: the batch system may have it."""
    served.lrm = LearningLrm()
    silent = served.others[ClusterName("b")] = LearningLrm()
    silent.errors["start"] = LrmUnavailableError("no answer")
    async with served.running() as service:
        keys = {name: one.parameters.slot_keys for name, one in service.state.clusters.items()}
        assert keys == {"a": ("threads",), "b": None}


async def test_a_defect_costs_one_event(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[ev.Event] = []

    def once(event: ev.Event) -> bool:
        if isinstance(event, ev.RankEnded) and not failed:
            failed.append(event)
        return event in failed and isinstance(event, ev.RankEnded)

    async with served.running() as service, anyio.create_task_group() as tasks:
        id_, agent = await running(served, service, tasks)
        failing_on(monkeypatch, once)
        agent.end_task.set()
        await until(lambda: agent.connections > 1, service)
        await until(lambda: service.state.jobs[id_].state is JobState.COMPLETED, service)
        (told,) = service.journal.defects_told(service.now())
        assert "(RankEnded) was set aside 0 min ago: KeyError: 'a defect'" in told
        tasks.cancel_scope.cancel()


async def test_a_defect_in_what_comes_again_and_again_cuts_nobody_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every poll fails, and every timer: agents, which have told nothing of that, stay connected, and jobs go on."""
    async with served.running() as service, anyio.create_task_group() as tasks:
        id_, agent = await running(served, service, tasks)
        begun = service.now()
        failing_on(monkeypatch, lambda e: e.time > begun and isinstance(e, ev.ClusterPolled | ev.TimeReached))
        for _ in range(3):
            service.core.loop.post(
                ev.ClusterPolled(time=service.now(), cluster=ClusterName("a"), processors=9, idle=9, ours=0)
            )
            service.core.loop.post(ev.TimeReached(time=service.now()))
        assert len(service.journal.events_set_aside()) >= 6
        assert all(placeholder.silent_since is None for placeholder in service.state.placeholders.values())
        await completed(service, id_, agent)
        assert agent.connections == 1
        tasks.cancel_scope.cancel()


async def test_what_an_agent_tells_in_vain_is_asked_for_less_and_less_often(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it comes back at once; with a defect for ever it would do nothing else."""
    monkeypatch.setattr(upkeep, "FIRST_ASKING_PAUSE", 0.2)
    async with served.running() as service, anyio.create_task_group() as tasks:
        id_, agent = await running(served, service, tasks)
        with monkeypatch.context() as patch:
            failing_on(patch, lambda event: isinstance(event, ev.RankEnded))
            agent.end_task.set()
            await until(lambda: agent.connections >= 3 and len(service.journal.events_set_aside()) >= 3, service)
        assert agent.admitted_at[2] - agent.admitted_at[1] >= 0.2
        await until(lambda: service.state.jobs[id_].state is JobState.COMPLETED, service)
        tasks.cancel_scope.cancel()


async def test_who_asks_for_what_koala_fails_on_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_on(monkeypatch, lambda event: isinstance(event, ev.JobSubmitted) and event.job.id == "1")
    async with served.running() as service:
        with pytest.raises(DefectError, match="nothing was changed"):
            submit(service)
        assert submit(service) == "2"
    async with served.running() as service:
        assert list(service.state.jobs) == ["2"]
        assert len(service.journal.events_set_aside()) == 1
    assert "JobSubmitted" in WithoutService(served.directory, OWN).recorded().defects()[0]


async def test_a_service_whose_state_cannot_be_built_stops(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clear message and the exit code of a service that cannot run; the journal stays as it was."""
    with pytest.RaisesGroup(RecoveryError, flatten_subgroups=True, allow_unwrapped=True) as stopped:
        async with served.running() as service:
            for number in range(15):
                service.core.loop.post(
                    ev.ClusterUnavailable(time=service.now(), cluster=ClusterName("a"), reason=str(number))
                )
            failing_on(monkeypatch, lambda event: isinstance(event, ev.ClusterUnavailable))
            service.core.loop.post(ev.ClusterUnavailable(time=service.now(), cluster=ClusterName("a"), reason="last"))
            with anyio.fail_after(LIVENESS):
                await anyio.sleep_forever()
    assert stopped.value.exceptions
    assert RecoveryError.exit_code == EXIT_SERVICE


async def test_live_applications_keep_their_size(served: Served) -> None:
    async with served.running() as service:
        id_ = submit(service)
        offer = act.OfferProcessors(job_id=id_, component="x", cluster=ClusterName("a"), number=1, processors=1)
        service._effector.carry_out(offer)
        (number, answer) = list(service.journal.recover()[1])[-1]
        assert number
        assert isinstance(answer, ev.OfferAnswered)
        assert (answer.number, answer.accepted) == (1, 0)


async def test_hosted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_on(monkeypatch, lambda event: isinstance(event, ev.CancelRequested))
    async with served.hosted() as (_, client):
        id_ = await submitted(client)
        with pytest.raises(DefectError):
            await to_thread.run_sync(lambda: client.cancel(id_))
        assert "(CancelRequested)" in (await to_thread.run_sync(client.defects))[0]
        assert (await to_thread.run_sync(client.jobs))[0].id == id_
    shown = CliRunner().invoke(koala, ["--state", str(served.directory), "status"])
    assert "(CancelRequested) was set aside" in " ".join(shown.output.split())


async def test_a_stop_goes_before_a_reload(served: Served) -> None:
    """Whichever comes first: who has asked for the stop waits until the service has ended."""
    stop, reload = Request(operation="stop"), Request(operation="reload")
    async with served.running() as service:
        server = Server(service, read_again=lambda: None)
        await server._result(reload)
        assert server.reload_wanted
        await server._result(stop)
        assert not server.reload_wanted
        with pytest.raises(ServiceAbsentError, match="is about to end"):
            await server._result(reload)
        assert not server.reload_wanted


ARRAY = 'walltime = "1m"\narray = "1-9%3"\n[[components]]\ncommand = ["./a"]\nprocessors = 1\n'
WRITTEN = """
walltime = "10m"
retries = 2
retry_on = ["memory", 3]
export = ["LANG_OF_*"]
after = ["12:any"]
[[components]]
command = ["./a"]
cluster = "a"
processors = 4
ranks_per_slot = 2
memory = "1GiB"
licenses = { matlab = 1 }
input_files = ["data"]
[[components]]
command = ["./b"]
processors = 1
"""


@pytest.mark.parametrize(
    "text",
    [
        WRITTEN,
        ARRAY,
        WRITTEN.replace('"10m"', "true"),
        WRITTEN.replace('"a"', '"z"'),
        WRITTEN.replace('"data"', '"missing"'),
        "walltime = \n",
    ],
    ids=["several keys", "array", "value", "cluster", "input file", "syntax"],
)
async def test_the_service_checks_a_job_as_its_callers_would(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A good job comes back whole, a bad one is refused in the same words."""
    monkeypatch.setenv("LANG_OF_ALICE", "fr")
    (tmp_path / "data").touch()
    path = tmp_path / "job.toml"
    path.write_text(text)
    described = DescribedJob.of_file(path, text)
    monkeypatch.delenv("LANG_OF_ALICE")

    def outcome(check: Callable[[], Job]) -> object:
        try:
            return check()
        except ConfigurationError as error:
            return str(error)

    async with served.hosted() as (_, client):
        found = await to_thread.run_sync(outcome, lambda: client.check(described))
    assert found == outcome(lambda: job_as_described(described, user=login_name(), site=served.site))
    assert isinstance(found, Job) == (text in {WRITTEN, ARRAY})
    assert text != WRITTEN or (isinstance(found, Job) and ("LANG_OF_ALICE", "fr") in found.environment)


async def one_over_of_two(client: Client) -> list[str]:
    over, goes_on = [await submitted(client) for _ in range(2)]
    await to_thread.run_sync(lambda: client.cancel(over))
    await to_thread.run_sync(lambda: list(client.watch(over)))
    return [over, goes_on]


async def test_others_are_served_while_a_cleaning_looks_through_a_slow_directory(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is submitted meanwhile stays, whatever is chosen then."""
    begun, allowed = threading.Event(), threading.Event()
    look = Cleaning.look

    def slowly(cleaning: Cleaning, known: Collection[str]) -> Seen:
        begun.set()
        assert allowed.wait(LIVENESS)
        return look(cleaning, known)

    monkeypatch.setattr(Cleaning, "look", slowly)
    async with served.hosted() as (_, client):
        over, goes_on = await one_over_of_two(client)
        for id_ in (over, goes_on):
            (served.directory / "jobs" / id_).mkdir(parents=True)
        async with anyio.create_task_group() as cleaning:
            cleaning.start_soon(to_thread.run_sync, lambda: Client(served.directory).clean(0.0, dry_run=False))
            assert await to_thread.run_sync(begun.wait, LIVENESS)
            assert (await to_thread.run_sync(lambda: client.job(over))).id == over
            later = await submitted(client)
            (served.directory / "jobs" / later).mkdir(parents=True, exist_ok=True)
            allowed.set()
        assert {path.name for path in (served.directory / "jobs").iterdir()} == {goes_on, later}


async def test_a_cleaning_that_cannot_look_through_the_directory_in_time_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes nothing, and the service goes on and stops as ever."""
    allowed = threading.Event()
    monkeypatch.setattr(Cleaning, "look", lambda *_: allowed.wait(LIVENESS))
    monkeypatch.setattr(server_module, "LOOKING_LIMIT", 0.0)
    async with served.hosted() as (_, client):
        over, _ = await one_over_of_two(client)
        with pytest.raises(ServiceUnavailableError, match="could not be looked through within 0 minutes"):
            await to_thread.run_sync(lambda: client.clean(0.0, dry_run=False))
        assert (await to_thread.run_sync(lambda: client.job(over))).id == over
    allowed.set()


async def test_cleaning_by_the_socket(served: Served) -> None:
    """What is over goes, from memory and disk; what goes on stays; who asks for what is gone is told so."""
    async with served.hosted() as (_, client):
        over, goes_on = await one_over_of_two(client)
        for id_ in (over, goes_on):
            (served.directory / "jobs" / id_).mkdir(parents=True)
        told = await to_thread.run_sync(lambda: client.clean(0.0, dry_run=True))
        assert told.jobs == (over,)
        assert (await to_thread.run_sync(lambda: client.job(over))).id == over
        done = await to_thread.run_sync(lambda: client.clean(0.0, dry_run=False))
        assert (done.jobs, done.unfinished, done.trouble) == ((over,), 1, ())
        assert [path.name for path in (served.directory / "jobs").iterdir()] == [goes_on]
        assert [one.id for one in await to_thread.run_sync(client.jobs)] == [goes_on]
        with pytest.raises(JobNotFoundError, match=f"job {over} was removed by `koala clean`"):
            await to_thread.run_sync(lambda: client.job(over))
    with pytest.raises(JobNotFoundError, match="was removed"):
        WithoutService(served.directory, OWN).recorded().job(over)


def read_at_once(directory: Path) -> ClosedJournal | None:
    """Return what the journal says where it need not be replayed."""
    return closed_journal(directory / JOURNAL_NAME, lambda: WithoutService(directory, OWN).recorded())


def timeless(report: JobReport) -> JobReport:
    """Return a report without the moment at which it was made, and the seconds from then until something happens."""
    return replace(report, reported_at=0.0, explanation=re.sub(r" in \d+ s", " soon", report.explanation))


async def test_a_journal_that_was_closed_well_need_not_be_replayed(served: Served) -> None:
    """It says the same of jobs as a replay does, until anything has happened since; and not before its end."""
    async with served.hosted() as (_, client):
        over, goes_on = await one_over_of_two(client)
        assert read_at_once(served.directory) is None
    closed, replayed = read_at_once(served.directory), WithoutService(served.directory, OWN).recorded()
    assert closed is not None
    assert list(closed.unfinished) == replayed.unfinished == [goes_on]
    assert [one.id for one in closed.jobs(1)] == [goes_on]
    assert closed.negotiations() == replayed.negotiations() == []
    for id_ in (over, goes_on):
        assert timeless(closed.job(id_)) == timeless(replayed.job(id_))
    assert WithoutService(served.directory, OWN).clean(0.0, dry_run=False).jobs == (over,)
    cleaned = read_at_once(served.directory)
    assert cleaned is not None
    with pytest.raises(JobNotFoundError, match="was removed"):
        cleaned.job(over)
    with Journal(served.directory / JOURNAL_NAME) as journal:
        journal.append(ev.TimeReached(time=time.time()))
        assert not journal.closed_well
    assert read_at_once(served.directory) is None


async def test_jobs_of_a_closed_journal_are_listed_as_a_replay_lists_them(served: Served) -> None:
    async with served.hosted() as (_, client):
        ids = [await submitted(client) for _ in range(3)]
        for id_ in reversed(ids):
            await to_thread.run_sync(client.cancel, id_)
            await to_thread.run_sync(list, client.watch(id_))
    closed, replayed = read_at_once(served.directory), WithoutService(served.directory, OWN).recorded()
    assert closed is not None
    assert closed.unfinished == ()
    assert [one.id for one in closed.jobs(2)] == [one.id for one in replayed.jobs(2)] == ids[1:]
    assert [one.explanation for one in closed.jobs(9)] == [one.explanation for one in replayed.jobs(9)]


class StuckHost(LocalHost):
    """A host on which the size of one file is known, and the file system of another one does not answer."""

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, bytes]:
        if argv[-1] == "/data/known":
            return 0, b"regular file|5", b""
        if argv[-1] == "/data/stuck":
            await anyio.sleep_forever()
        return await super().run(argv, stdin=stdin, environment=environment)


async def test_a_file_system_that_does_not_answer_costs_no_listing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a service: the cluster has answered; only the sizes of files that are not told are unknown."""
    monkeypatch.setattr(replicas, "STAT_SECONDS", 0.01)
    catalogue = tmp_path / "catalogue"
    catalogue.write_text("known /data/known\nstuck /data/stuck\n")
    os.utime(catalogue, (1_000_000_000, 1_000_000_000))
    cluster = served.site.clusters[0].model_copy(update={"catalogue": str(catalogue)})
    files = [InputFile(source=f"lfn:{name}", target=name) for name in ("known", "stuck")]
    answer = await ask_cluster(
        cluster, StuckHost(), served.plugins, served.directory, prefix="koala-", timeout=LIVENESS, files=files
    )
    assert (answer.trouble, answer.untold) == ("", "")
    assert answer.reading is not None
    assert answer.sizes == {"lfn:known": 5}


async def test_how_long_ago_a_job_negotiated_is_told_as_of_now(served: Served) -> None:
    async with served.running() as service:
        id_ = await cancelled(service)
        service.journal.finished.keep(id_, 0.0, job_report(id=id_, explanation="as of then").to_json())
    closed = read_at_once(served.directory)
    assert closed is not None
    assert closed.job(id_).explanation == closed.jobs(1)[0].explanation == "as of then"
    with Journal(served.directory / JOURNAL_NAME) as journal:
        kept = KeptNegotiation(job_id=id_, component="x", rank=0, initiator="rm", agreement_id="1")
        journal.negotiations.keep(kept, Message(at=1.0, sender="rm", template="<template/>"))
    closed = read_at_once(served.directory)
    assert closed is not None
    assert (
        closed.job(id_).explanation
        == closed.jobs(1)[0].explanation
        == WithoutService(served.directory, OWN).recorded().job(id_).explanation
    )
    assert closed.job(id_).explanation.startswith("The job was cancelled by the user")


async def test_what_kept_koala_or_the_program_from_going_on_is_told_without_a_service(served: Served) -> None:
    """Such as a wrong call of the program: no event has it, but the report that was kept at the end of the job."""
    async with served.running() as service:
        id_ = await cancelled(service)
        report = job_report(id=id_, trouble="Process 0 made a wrong call: done() without a change.")
        service.journal.finished.keep(id_, 0.0, report.to_json())
    told = WithoutService(served.directory, OWN).recorded().job(id_)
    assert told.explanation.startswith("The job was cancelled by the user")
    assert told.explanation.endswith(f". {report.trouble}")
    assert told.trouble == report.trouble


async def test_a_corrected_end_that_was_not_kept_is_kept_by_the_next_service(served: Served) -> None:
    """As when it was killed between the event and the report."""
    async with served.running() as service:
        id_ = await cancelled(service)
        kept = service.journal.finished
        kept.keep(id_, 0.0, '{"outcome": {"state": "lost"}}')
    async with served.running() as service:
        assert service.journal.finished.report(id_) == f"report of {id_}"


async def test_callers_are_answered_while_a_snapshot_is_written(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who only asks is answered at once; a submission and a cancellation wait, and so do events, for the end of it."""
    begun, end = threading.Event(), threading.Event()
    write = Journal.snapshot_in_groups

    def held_open(journal: Journal, state: State, number: int) -> Generator[None, None, None]:
        begun.set()
        until = time.monotonic() + 10.0  # so that who does not wait for it ends the test, and is found
        while not end.is_set() and time.monotonic() < until:
            yield
        yield from write(journal, state, number)

    monkeypatch.setattr(Journal, "snapshot_in_groups", held_open)
    ended: list[str] = []
    async with served.hosted() as (server, client):

        async def change(name: str, request: Callable[[], object]) -> None:
            await to_thread.run_sync(request)
            ended.append(name)

        first = await submitted(client)
        server._service._loop._snapshot_interval = 1  # a poll of the cluster is one
        assert await to_thread.run_sync(begun.wait, 30.0)
        async with anyio.create_task_group() as callers:
            callers.start_soon(change, "cancel", lambda: client.cancel(first))
            callers.start_soon(change, "submit", lambda: client.submit(job("0", component("x", 1))))
            for _ in range(3):
                reports = await to_thread.run_sync(client.jobs)
                assert [(one.id, one.state is JobState.CANCELLED) for one in reports] == [(first, False)]
                assert await to_thread.run_sync(client.clusters)
            assert ended == []
            end.set()
        assert sorted(ended) == ["cancel", "submit"]
        assert [one.id for one in await to_thread.run_sync(client.jobs)] == ["1", "2"]
    with Journal(served.directory / "journal.sqlite", read_only=True) as journal:
        assert journal.recover()[0] is not None


async def test_a_stop_while_a_snapshot_is_written_and_events_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = anyio.Event()

    def held_open(journal: Journal, state: State, number: int) -> Generator[None, None, None]:
        begun.set()
        for _ in range(100_000):  # the end comes earlier
            yield
        yield from write(journal, state, number)

    async with served.running() as service, anyio.create_task_group() as tasks:
        id_, agent = await running(served, service, tasks)
        write, service._loop._snapshot_interval = Journal.snapshot_in_groups, 1
        monkeypatch.setattr(Journal, "snapshot_in_groups", held_open)
        service.core.loop.post(ev.FilesFound(time=service.now(), cluster=ClusterName("a")))  # any event
        with anyio.fail_after(LIVENESS):
            await begun.wait()
        service.core.loop.post(ev.RankEnded(time=service.now(), job_id=id_, rank=0, end=WELL))
        assert service._loop.in_snapshot
        tasks.cancel_scope.cancel()
    monkeypatch.undo()
    with Journal(served.directory / "journal.sqlite", read_only=True) as journal:
        assert journal.closed_well
        assert journal.recover()[0] is not None
    async with served.running() as service, anyio.create_task_group() as tasks:
        assert service.state.jobs[id_].state is JobState.RUNNING
        agent.end_task.set()
        tasks.start_soon(agent.run)
        await until(lambda: service.state.jobs[id_].state is JobState.COMPLETED, service)
        tasks.cancel_scope.cancel()


async def test_old_jobs_are_known_after_an_orderly_stop(served: Served) -> None:
    """However many have ended since, with a report of the journal alone or of all that it says."""
    async with served.running() as service:
        id_ = await cancelled(service)
        service.journal.finished.keep(id_, 0.0, job_report(id=id_).to_json())
        for number in range(2000, 3100):
            service.journal.finished.keep(str(number), float(number), job_report(id=str(number)).to_json())
        service.forget((id_,))
    closed = read_at_once(served.directory)
    assert closed is not None
    assert closed.job(id_).id == WithoutService(served.directory, OWN).recorded().job(id_).id == id_
    assert [one.id for one in closed.jobs(2)] == ["3098", "3099"]
    assert len(closed.jobs(5000)) == len(WithoutService(served.directory, OWN).recorded().jobs(5000)) == 1101
    with pytest.raises(JobNotFoundError):
        closed.job("1999")


@pytest.mark.parametrize("loss", ["removed", "emptied", "older"])
async def test_a_job_never_gets_the_files_of_another(served: Served, loss: str) -> None:
    """Where the journal is lost, numbers go on after what is in the jobs' directories."""
    journal = served.directory / "journal.sqlite"
    async with served.running() as service:
        earlier = service.applications.directory / submit(service)
    backup = journal.read_bytes()
    async with served.running() as service:
        later = service.applications.directory / submit(service)
    for one in (earlier, later):
        (one / "x").mkdir(parents=True)
    for name in ("", "-wal", "-shm"):
        journal.with_name(f"{journal.name}{name}").unlink(missing_ok=True)
    if loss != "removed":
        journal.write_bytes(b"" if loss == "emptied" else backup)
        journal.chmod(0o600)
    async with served.running() as service:
        assert submit(service) == "3"


def without_patience(served: Served) -> Service:
    """Return a service that is there for one command, and ends as soon as a full disk keeps it from all work."""
    site, plugins, directory = served.site, served.plugins, served.directory
    return Service(site, plugins, directory, make_report=lambda _, id_: f"report of {id_}", journal_patience=0.0)


def fill_the_disk(service: Service) -> None:
    """Leave the journal no more pages than it has, and write until these are full."""
    service.journal._database.execute("PRAGMA max_page_count = 1")
    while not service.core.trouble:
        service.core.loop.post(ev.TimeReached(time=service.now()))


@pytest.fixture
def soon_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a journal that cannot be written tried again without a long pause."""
    monkeypatch.setattr(upkeep, "FIRST_JOURNAL_PAUSE", 0.05)


@pytest.mark.usefixtures("soon_tried_again")
async def test_a_service_for_one_command_ends_where_the_disk_is_full(served: Served) -> None:
    service = without_patience(served)
    with pytest.RaisesGroup(pytest.RaisesExc(JournalBlockedError, match="disk is full"), flatten_subgroups=True):
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            await started(served, service)
            fill_the_disk(service)
            with anyio.fail_after(60):
                await anyio.sleep_forever()


@pytest.mark.usefixtures("soon_tried_again")
async def test_an_application_that_runs_goes_on_while_the_disk_is_full(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did is not lost: its service waits until there is room, for as long as it takes."""
    service, tries = without_patience(served), 0
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        id_, agent = await running(served, service, tasks)
        try_again = service._loop.try_again

        def counted() -> None:
            nonlocal tries
            tries += 1
            try_again()

        monkeypatch.setattr(service._loop, "try_again", counted)
        fill_the_disk(service)
        await until(lambda: tries > 1 and bool(service.core.trouble), service)
        service.journal._database.execute("PRAGMA max_page_count = 1000000")
        await completed(service, id_, agent)
        tasks.cancel_scope.cancel()


def job_of(one: Component, id_: JobId, now: float) -> Job:
    return job(id_, one, submitted_at=now)


async def test_a_submission_polls_the_clusters_that_it_names(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand clusters, the others are not asked for it; all are where it may go to any."""
    served.others = {ClusterName(name): ScriptedLrm() for name in ("b", "c")}
    async with served.running() as service:
        polled: list[str] = []
        for name, driver in service.clusters.items():
            monkeypatch.setattr(driver.poller, "refresh", partial(polled.append, name))
        for cluster, expected in (("b", ["b"]), (None, ["a", "b", "c"])):
            polled.clear()
            one = component("x", 1, cluster=cluster)
            service.submit(partial(job_of, one))
            assert sorted(set(polled)) == expected


async def test_what_is_left_of_a_submission_is_removed_on_its_cluster_alone(served: Served) -> None:
    """The others are not looked through for it; after a restart, when its cluster is not known, all are."""
    other = served.others[ClusterName("b")] = ScriptedLrm()
    async with served.running() as service, anyio.create_task_group() as tasks:
        one = component("x", 1, cluster="a")
        id_ = service.submit(lambda id_, now: job(id_, one, submitted_at=now))
        batch = await queued(served, service, id_)
        service.cancel(id_)
        await until(lambda: batch in served.lrm.forgotten, service)
        assert other.forgotten == []
        tasks.cancel_scope.cancel()
