# SPDX-License-Identifier: Apache-2.0
"""``koala check`` of a cluster that does not answer: little is asked, for a short time, and what is awaited is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from pydantic import BaseModel

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm import Capabilities, CheckResult, PluginDefinition
from koala_adapter.sitesetup import checks as clustercheck
from koala_adapter.sitesetup import checks as progress
from koala_adapter.sitesetup.checks import ClusterCheck
from tests.unit.service.scripted_lrm import ScriptedLrm, config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext, Lrm
    from koala_adapter.lrm.commands import CommandRunner

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
        """See Lrm."""
        if not self.starts:
            await self.commands.run(SILENT)

    async def check(self) -> tuple[CheckResult, ...]:
        """See Lrm."""
        self.order.append("check")
        if self.starts:
            # What is set right now is what a command may take: whoever starts is given its usual time.
            assert self.commands.patience is None
            with pytest.raises(LrmUnavailableError):
                await self.commands.run(SILENT, timeout=0.5)
        return ()

    async def nodes(self) -> tuple[()]:
        """See Lrm."""
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
    """Have no time for what never answers."""
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
    """Which request, for how long, in which step; again and again."""
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
            """See Lrm."""
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
