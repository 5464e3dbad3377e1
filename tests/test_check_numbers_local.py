# SPDX-License-Identifier: Apache-2.0
"""``koala check`` tries two placeholders of one submission: whether each knows its number, and whether they go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from koala_adapter.config.sitefile import ClusterConfig, load_site_text
from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm import CheckResult
from koala_adapter.model import BatchKey, ClusterName, LrmJob, LrmJobState
from koala_adapter.service.reachability import connections_tried
from koala_adapter.sitesetup import trial as trialplaceholder
from koala_adapter.sitesetup.trial import Meeting, Trial, TrialCenter
from koala_adapter.testing import new_context
from koala_adapter.testing.trial import eventually
from koala_local import PLUGIN
from koala_local.lrm import LocalLrm, LocalSettings
from tests.local_koala import end_daemon

SITE = """
[control_center]
address = "127.0.0.1"
[[clusters]]
name = "a"
plugin = "local"
settings.processors = 2
"""


class Numberless(LocalLrm):
    """Tells the elements of an array no index."""

    array_index_variable = "KOALA_NOBODY_SETS_THIS"


def has_ended(jobs: Sequence[LrmJob]) -> bool:
    return all(job.state is LrmJobState.ENDED for job in jobs)


class Leaving(LocalLrm):
    """Hears when the placeholders have been told to go."""

    told = False

    def hear(self, progress: str) -> None:
        """Take in what a trial says of its progress."""
        self.told = self.told or "have gone" in progress


class Delayed(Leaving):
    """Lists jobs late, as where the bound of requests is used up: what it lists then is true."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs; once the placeholders go, not before they have gone."""
        while True:
            jobs = await super().jobs(name_prefix=name_prefix)
            if not self.told or has_ended(jobs):
                self._context.commands.put_off += 30.0 * self.told
                return jobs
            await anyio.sleep(0.05)


class Staying(Leaving):
    """Shows placeholders that were told to go as they were before."""

    shown: tuple[LrmJob, ...] = ()

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        if not self.told:
            self.shown = await super().jobs(name_prefix=name_prefix)
        return self.shown


class Silent(Leaving):
    """Does not answer any more when placeholders have been told to go."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs, or raise LrmUnavailableError."""
        if self.told:
            raise LrmUnavailableError("nobody is there")
        return await super().jobs(name_prefix=name_prefix)


async def tried(kind: type[LocalLrm], processors: int, directory: Path) -> dict[str, CheckResult]:
    """Return what a trial of a plugin says, by subject; nothing of it stays behind."""
    site = load_site_text(SITE, {"local": PLUGIN})
    center = TrialCenter(site, directory, state=directory)
    context = new_context(directory)
    lrm = kind(context, LocalSettings(processors=processors))
    await lrm.start()
    try:
        async with anyio.create_task_group() as tasks:
            await center.serve(tasks)
            leaving = lrm if isinstance(lrm, Leaving) else Leaving(new_context(directory), LocalSettings(processors=1))
            trial = Trial(center, site.clusters[0], lrm, context.commands, timeout=120, tell=leaving.hear)
            results = await trial.run()
            tasks.cancel_scope.cancel()
        await eventually(lambda: LocalLrm.jobs(lrm), has_ended, what="nothing stays behind", seconds=60)
    finally:
        await lrm.close()
        await end_daemon(directory / "state")
    return {result.subject: result for result in results}


async def test_agents_of_two_sites_try_to_connect(tmp_path: Path) -> None:
    """Both ways are told and kept for a service; an agent that does not come is not waited for."""
    site = load_site_text(SITE, {"local": PLUGIN})
    center = TrialCenter(site, tmp_path, state=tmp_path)
    a, b, c = (ClusterConfig(name=ClusterName(name), plugin="local", site=f"at-{name}") for name in "abc")
    meeting = Meeting(center, [a, b, c])
    lrms: list[LocalLrm] = []
    told: list[str] = []

    async def try_out(config: ClusterConfig) -> None:
        context = new_context(tmp_path / config.name)
        lrms.append(lrm := LocalLrm(context, LocalSettings(processors=1)))
        await lrm.start()
        here = config.model_copy(update={"site": None})
        trial = Trial(center, here, lrm, context.commands, timeout=120, tell=told.append, meeting=meeting)
        assert all(result.ok for result in await trial.run())

    try:
        async with anyio.create_task_group() as tasks:
            await center.serve(tasks)
            async with anyio.create_task_group() as trials:
                trials.start_soon(meeting.run)
                trials.start_soon(try_out, a)
                trials.start_soon(try_out, b)
                meeting.stay_away(c.cluster_name)
            tasks.cancel_scope.cancel()
    finally:
        for lrm, config in zip(lrms, (a, b), strict=True):
            await lrm.close()
            await end_daemon(tmp_path / config.name / "state")
    assert [one.found for one in meeting.results()] == [
        "connect to b; did not try c",
        "connect to a; did not try c",
        "did not try a, b",
    ]
    read = {(one.cluster, one.other): one.connects for one in connections_tried(tmp_path, 0.0)}
    assert read == {("a", "b"): True, ("b", "a"): True}


class Forgetting(LocalLrm):
    """Notes what it is to forget, such as a script that is kept for its jobs."""

    forgotten: ClassVar[list[BatchKey]] = []

    def forget(self, key: BatchKey) -> None:
        """Take note."""
        self.forgotten.append(key)


async def test_two_numbers(tmp_path: Path) -> None:
    found = await tried(Forgetting, 2, tmp_path)
    assert len(Forgetting.forgotten) == 1
    assert all(result.ok for result in found.values())
    assert "told them apart" in found["numbers"].found


async def test_one_number_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is turned away, as it would be in every job of several placeholders: a FAIL, with the variable."""
    # It will never report.
    monkeypatch.setattr(trialplaceholder, "SECOND_TIME", 1.0)
    found = await tried(Numberless, 2, tmp_path)
    assert found["placeholder"].ok
    assert not found["numbers"].ok
    assert "KOALA_NOBODY_SETS_THIS" in found["numbers"].remedy


async def test_no_room_for_two(tmp_path: Path) -> None:
    found = await tried(LocalLrm, 1, tmp_path)
    assert all(result.ok for result in found.values())
    assert "not tried" in found["numbers"].found


async def test_a_listing_that_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That koala had to wait before it could ask is not held against the placeholders: what is listed then decides."""
    monkeypatch.setattr(trialplaceholder, "GOING_TIME", 0.01)
    found = await tried(Delayed, 2, tmp_path)
    assert all(result.ok for result in found.values())
    told = re.search(r"for (\S+) s of which nobody looked, to stay within the bound", found["released"].found)
    assert told is not None
    assert float(told[1]) >= 30.0


async def test_placeholders_that_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is listed for longer than it may take to go is a FAIL."""
    monkeypatch.setattr(trialplaceholder, "GOING_TIME", 0.01)
    monkeypatch.setattr(trialplaceholder, "LEAVING_TIME", 0.01)
    found = await tried(Staying, 2, tmp_path)
    assert not found["released"].ok
    assert "still listed" in found["released"].found


async def test_a_batch_system_that_falls_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can say then whether the placeholders have gone: a FAIL that says why."""
    monkeypatch.setattr(trialplaceholder, "GOING_TIME", 0.01)
    monkeypatch.setattr(trialplaceholder, "LEAVING_TIME", 0.01)
    found = await tried(Silent, 2, tmp_path)
    assert not found["released"].ok
    assert "nobody is there" in found["released"].found
