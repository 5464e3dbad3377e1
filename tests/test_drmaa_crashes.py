# SPDX-License-Identifier: Apache-2.0
"""The plugin ``drmaa`` with a library, compiled here, that really crashes: it costs one helper process, and no job."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.drmaa.client import SINGLE_AT_ONCE
from koala_adapter.model import BatchKey, LrmJobState
from koala_adapter.testing import eventually, new_context
from koala_drmaa.lrm import DrmaaLrm, DrmaaSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

SOURCE = Path(__file__).parent / "fakes" / "crashinglibrary.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library."""
    if shutil.which("gcc") is None:
        pytest.skip("missing: gcc")
    path = tmp_path_factory.mktemp("library") / "libdrmaa.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", path, SOURCE], check=True)
    return path


class Crashing:
    """The plugin on that library, and what makes it crash."""

    def __init__(self, library: Path, directory: Path) -> None:
        """Nothing is started yet."""
        self._where = directory / "where"
        self._jobs = directory / "jobs"
        self.gate = directory / "gate"
        """While this file is there, no submission ends."""
        variables = {
            "CRASHING_AT": str(self._where),
            "CRASHING_JOBS": str(self._jobs),
            "CRASHING_GATE": str(self.gate),
        }
        settings = DrmaaSettings(library=library, processors=4, environment=variables, request_timeout=60)
        self.lrm = DrmaaLrm(new_context(directory), settings)

    def crash_at(self, function: str) -> None:
        """Have a function crash from now on; none with an empty name."""
        self._where.write_text(function)

    def submitted(self) -> list[str]:
        """Return the ids of all jobs that the library has submitted."""
        return self._jobs.read_text().split()

    async def states(self, key: str) -> list[LrmJobState]:
        """Return the states of a batch in the order of its indices."""
        jobs = {job.array_index: job.state for job in await self.lrm.jobs(name_prefix=key)}
        return [state for _, state in sorted(jobs.items(), key=lambda item: item[0] or 0)]


@pytest.fixture
async def crashing(library: Path, tmp_path: Path) -> AsyncIterator[Crashing]:
    """Give the plugin, started, with two jobs that run."""
    crashing = Crashing(library, tmp_path)
    await crashing.lrm.start()
    await crashing.lrm.submit(submission("before"))
    yield crashing
    await crashing.lrm.close()


def submission(key: str, count: int = 2) -> Submission:
    """Return a submission."""
    return Submission(key=BatchKey(key), count=count, script="#!/bin/sh\n", walltime=60)


@pytest.mark.parametrize("function", ["control", "job_ps"])
async def test_crash_of_a_request(crashing: Crashing, function: str) -> None:
    first = crashing.lrm.client.helper_pid
    ids = [job.id for job in await crashing.lrm.jobs()]
    crashing.crash_at(function)
    with pytest.raises(LrmUnavailableError, match="died"):
        await (crashing.lrm.hold(ids) if function == "control" else crashing.lrm.jobs())
    crashing.crash_at("")

    async def back() -> list[LrmJobState]:
        try:
            return await crashing.states("before")
        except LrmUnavailableError:
            return []

    await eventually(back, lambda seen: seen == [LrmJobState.RUNNING] * 2, what="both are known", seconds=120)
    assert crashing.lrm.client.helper_pid not in {None, first}
    assert crashing.submitted() == ids


async def test_crash_of_a_submission(crashing: Crashing) -> None:
    """What may be in is UNKNOWN, never absent, so that it is not submitted a second time; the rest goes on."""
    crashing.crash_at("run_job")
    with pytest.raises(LrmUnavailableError, match="died"):
        await crashing.lrm.submit(submission("torn", 3))
    crashing.crash_at("")
    assert len(crashing.submitted()) == 3
    assert await crashing.states("torn") == [LrmJobState.UNKNOWN] * 3
    assert await crashing.states("before") == [LrmJobState.RUNNING] * 2
    assert len(await crashing.lrm.submit(submission("after"))) == 2


async def test_a_cancel_does_not_wait_for_a_long_submission(crashing: Crashing) -> None:
    first = [job.id for job in await crashing.lrm.jobs()]
    done: list[str] = []

    async def submit() -> None:
        await crashing.lrm.submit(submission("long", 5 * SINGLE_AT_ONCE))
        done.append("submitted")

    async def cancel() -> None:
        await crashing.lrm.cancel(first)
        done.append("cancelled")

    async def number() -> int:
        return len(crashing.submitted())

    async def waiting() -> int:
        return crashing.lrm.client._lock.statistics().tasks_waiting

    crashing.gate.touch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(submit)
        await eventually(number, lambda seen: seen > len(first), what="the first portion is on its way", seconds=120)
        tasks.start_soon(cancel)
        await eventually(waiting, bool, what="the cancel waits for its turn", seconds=120)
        crashing.gate.unlink()
    assert done == ["cancelled", "submitted"]
    assert await crashing.states("long") == [LrmJobState.RUNNING] * 5 * SINGLE_AT_ONCE


async def test_crash_at_the_start(library: Path, tmp_path: Path) -> None:
    crashing = Crashing(library, tmp_path)
    crashing.crash_at("init")
    await crashing.lrm.start()
    found, _ = await crashing.lrm.check()
    assert not found.ok
    assert found.remedy
    crashing.crash_at("")

    async def answers() -> str:
        try:
            return await crashing.lrm.version()
        except LrmUnavailableError:
            return ""

    version = await eventually(answers, bool, what="the library answers", seconds=120)
    assert version == "PBS that crashes (DRMAA 1.0)"
    await crashing.lrm.close()
