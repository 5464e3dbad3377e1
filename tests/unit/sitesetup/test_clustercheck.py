# SPDX-License-Identifier: Apache-2.0
"""``koala check`` of a cluster that does not answer, and what it says of a cluster's MPI."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from pydantic import BaseModel

from koala_adapter.config.sitefile import SiteConfig
from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm import Capabilities, CheckResult, PluginDefinition
from koala_adapter.model import EndReason, MpiResize, Queue, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.sitesetup import checks as clustercheck
from koala_adapter.sitesetup import checks as progress
from koala_adapter.sitesetup.checks import AskedTime, ClusterCheck, asked_times
from koala_adapter.sitesetup.trial import judged
from tests.unit.api.jobreports import job_report
from tests.unit.service.scripted_lrm import ScriptedLrm, config, node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext, Lrm
    from koala_adapter.lrm.commands import CommandRunner
    from koala_adapter.model import Node
    from koala_adapter.report.values import JobReport

pytestmark = pytest.mark.anyio


SILENT = ["sh", "-c", "sleep 600"]


class NoSettings(BaseModel, extra="forbid"):
    """The scripted plugin has none."""


class SilentLrm(ScriptedLrm):
    """An LRM whose commands do not answer, from a step on."""

    def __init__(self, commands: CommandRunner, *, starts: bool) -> None:
        super().__init__()
        self.commands = commands
        self.starts = starts

    async def start(self) -> None:
        if not self.starts:
            await self.commands.run(SILENT)

    async def check(self) -> tuple[CheckResult, ...]:
        self.order.append("check")
        if self.starts:
            # What is set right now is what a command may take: whoever starts is given its usual time.
            assert self.commands.patience is None
            with pytest.raises(LrmUnavailableError):
                await self.commands.run(SILENT, timeout=0.5)
        return ()

    async def nodes(self) -> tuple[()]:
        self.order.append("nodes")
        await self.commands.run(SILENT)
        return ()


def new_check(
    directory: Path, make: Callable[[CommandRunner], ScriptedLrm], tell: Callable[[str], None]
) -> tuple[ClusterCheck, list[ScriptedLrm]]:
    """Return the check of a cluster, and where its LRM is found afterwards."""
    made: list[ScriptedLrm] = []

    def factory(context: ClusterContext, _settings: BaseModel) -> Lrm:
        made.append(make(context.commands))
        return made[0]

    plugin = PluginDefinition(
        name="scripted", summary="a test's", settings=NoSettings, capabilities=Capabilities(), factory=factory
    )
    check = ClusterCheck(
        config=config(), plugins={"scripted": plugin}, directory=directory, tell=tell, center=None, timeout=1
    )
    return check, made


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustercheck, "REACH_TIME", 0.5)


async def test_a_cluster_that_does_not_answer_is_asked_once_for_a_short_time(tmp_path: Path) -> None:
    """The commands of the plugin would wait for half a minute each."""
    check, made = new_check(tmp_path, lambda commands: SilentLrm(commands, starts=False), lambda _: None)
    results = await check.run()
    assert [(one.subject, one.ok, one.found) for one in results] == [("start", False, "sh did not answer within 0.5 s")]
    assert "is up; this check waits 10 s for its first answer" in results[0].remedy
    assert made[0].order == ["check"]
    assert made[0].commands.unanswered == 1  # type: ignore[attr-defined]


async def test_after_a_question_without_an_answer_there_is_one_more(tmp_path: Path) -> None:
    """That for nodes, for a short time; that for queues would wait as long."""
    check, made = new_check(tmp_path, lambda commands: SilentLrm(commands, starts=True), lambda _: None)
    results = await check.run()
    assert [(one.subject, one.found) for one in results if not one.ok] == [("nodes", "sh did not answer within 0.5 s")]
    assert [one.subject for one in results] == ["version", "nodes"]
    assert set(made[0].order) == {"check", "nodes", "jobs"}


async def test_what_is_waited_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SOON", 0.0)
    monkeypatch.setattr(progress, "TOLD_EVERY", 0.01)
    told: list[str] = []
    heard = anyio.Event()

    def tell(text: str) -> None:
        told.append(text)
        if sum("no answer" in one for one in told) > 1:
            heard.set()

    class Awaited(ScriptedLrm):
        """An LRM that answers when a person has been told that it does not."""

        async def start(self) -> None:
            with commands[0].timed("scontrol"):
                await heard.wait()

    commands: list[CommandRunner] = []

    def make(runner: CommandRunner) -> ScriptedLrm:
        commands.append(runner)
        return Awaited()

    check, _ = new_check(tmp_path, make, tell)
    with anyio.fail_after(60):
        assert all(one.ok for one in await check.run())
    assert told[:2] == ["starting", "starting: no answer of scontrol for 0 s"]
    assert commands[0].awaited is None


class LimitedLrm(ScriptedLrm):
    """An LRM whose default queue grants an hour."""

    async def nodes(self) -> tuple[Node, ...]:
        return (node(),)

    async def queues(self) -> tuple[Queue, ...]:
        return (Queue(name="main", up=True, processors=4, walltime_limit=3600, default=True),)


@pytest.mark.parametrize(
    ("seconds", "clusters", "limit", "ok"),
    [
        (7200, {"a"}, None, False),
        (7200, set(), None, False),
        (7200, {"b"}, None, True),
        (7200, {"a"}, 3600, True),
        (3600, {"a"}, None, True),
    ],
)
async def test_a_queue_that_grants_less_than_waiting_jobs_ask_for(
    tmp_path: Path,
    seconds: int,
    clusters: set[str],
    limit: int | None,
    ok: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Their placeholders would wait there for ever, unless the site file says the limit."""
    check, _ = new_check(tmp_path, lambda _: LimitedLrm(), lambda _: None)
    asked = [
        AskedTime(job_id="3", seconds=60, clusters=frozenset()),
        AskedTime(job_id="4", seconds=seconds, clusters=frozenset(clusters)),
    ]
    (queue,) = [
        one
        for one in await replace(check, config=config(walltime_limit=limit), asked=asked).run()
        if one.subject == "queue"
    ]
    assert queue.ok is ok
    if not ok:
        assert queue.found == "main grants at most 3600 s; here job 4 would ask for 7200 s, and never start"
        assert "walltime_limit = 3600" in queue.remedy


class Asked:
    """An installation whose service has some jobs, or does not run."""

    def __init__(self, *jobs: JobReport, runs: bool = True) -> None:
        self.site = SiteConfig(clusters=(config(),))
        self.client = self
        self._jobs, self._runs = jobs, runs

    def pid(self) -> int | None:
        return 1 if self._runs else None

    def jobs(self, _limit: int) -> list[JobReport]:
        if not self._runs:
            raise AssertionError("a service that does not run is not asked")
        return list(self._jobs)


async def test_walltimes_of_waiting_jobs_are_taken_from_the_service() -> None:
    """With the time that placeholders have for the start; of jobs that run or are over nothing is to come."""
    jobs = [job_report(id=str(number), state=state, walltime=600) for number, state in enumerate(JobState)]
    asked = asked_times(Asked(*jobs))  # type: ignore[arg-type] # all that is used of one
    parameters = SiteConfig(clusters=(config(),)).parameters
    whole = 600 + int(parameters.launch_margin + parameters.placeholder_life)
    waiting = [str(number) for number, state in enumerate(JobState) if state in {JobState.WAITING, JobState.CLAIMING}]
    assert [(one.job_id, one.seconds) for one in asked] == [(number, whole) for number in waiting]
    assert asked_times(Asked(*jobs, runs=False)) == []  # type: ignore[arg-type]


# What koala check says of a cluster's MPI.

WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)


@pytest.mark.parametrize(
    ("printed", "said", "ok", "expected"),
    [
        ("it spawns\n", MpiResize.RESTART, True, 'say mpi_resize = "spawn" in the site file'),
        ("it spawns\n", MpiResize.SPAWN, True, "can spawn ("),
        ("", MpiResize.RESTART, True, "cannot spawn"),
        ("Abort(1)\n", MpiResize.SPAWN, False, "the site file says that it can"),
        ("no mpicc\n", MpiResize.SPAWN, True, "not tried"),
        ("no mpiexec.hydra\n", MpiResize.RESTART, True, "must name one in their environment"),
    ],
)
def test_what_was_found_is_told(*, printed: str, said: MpiResize, ok: bool, expected: str) -> None:
    found = judged(WELL, printed, said)
    assert found.ok is ok
    assert expected in found.found
    assert bool(found.remedy) is not ok


def test_a_probe_that_does_not_end_says_nothing_of_mpi() -> None:
    """It may be the node."""
    assert "not tried" in judged(None, "it spawns", MpiResize.SPAWN).found
