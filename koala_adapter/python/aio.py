# SPDX-License-Identifier: Apache-2.0
"""``koala.aio``: the functions of koala for programs with an event loop of their own, asyncio's or Trio's.

    handle = await koala.aio.submit(koala.Job(["./simulate"], processors=4))
    result = await handle.result()

Cancelling a wait leaves the job alone, except in :func:`run`, which cancels its job.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from koala_adapter.api.asyncclient import AsyncClient
from koala_adapter.api.client import LOOK_AGAIN, new_submission
from koala_adapter.errors import JobTimeoutError, KoalaError, ServiceUnavailableError
from koala_adapter.model import Job as CheckedJob
from koala_adapter.python.jobs import MOST_STARTS, JobResult, OutputFollower, SweepResults, mimebundle, text_of
from koala_adapter.python.site import ENDING, LATEST, Site

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Container
    from os import PathLike
    from types import TracebackType
    from typing import Self

    from koala_adapter.outcome import JobState
    from koala_adapter.python.description import Job
    from koala_adapter.report.sitevalues import ClusterReport
    from koala_adapter.report.values import JobReport

__all__ = ["AsyncJobHandle", "clusters", "job", "jobs", "run", "submit"]


class AsyncJobHandle:
    """A job at a site, by its id: :class:`koala_adapter.JobHandle` for a program with an event loop.

    As an asynchronous context manager it sees to it that the job is over at the end of the block.
    """

    def __init__(self, site: Site, job_id: str) -> None:
        """``job_id``: as `koala status` shows it."""
        self.site = site
        self.id = job_id
        self._client = AsyncClient(site.directory)
        self._last: JobReport | None = None

    def __repr__(self) -> str:
        """Name the job, and the state in which it was seen last."""
        state = "" if self._last is None else f" {self._last.state.value}"
        return f"<koala.aio.AsyncJobHandle {self.id}{state}>"

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        """Return what a notebook shows: the job as it was seen last."""
        del include, exclude
        return {"text/plain": repr(self)} if self._last is None else mimebundle(self._last)

    async def report(self) -> JobReport:
        """Return all that is known of the job now. Without a service it is what the journal says.

        Raises JobNotFoundError, and ServiceUnavailableError when there has never been a service.
        """
        if self._last is None or not self._last.over:
            try:
                self._last = await self._client.job(self.id)
            except ServiceUnavailableError:
                self._last = await to_thread.run_sync(self.site.job(self.id).report)
        return self._last

    async def status(self) -> JobState:
        """Return the state of the job now; raises as :meth:`report`."""
        return (await self.report()).state

    async def done(self) -> bool:
        """Tell whether the job has ended, well or not."""
        return (await self.report()).outcome is not None

    async def explain(self) -> str:
        """Return why the job waits, what it holds, and what would let it start."""
        return (await self.report()).explanation

    async def logs(self, component: str | None = None, rank: int | None = None, *, stderr: bool = False) -> str:
        """Return what its processes have written so far, as :meth:`koala_adapter.JobHandle.logs`."""
        report = await self.report()
        return await to_thread.run_sync(partial(text_of, report, component, rank, stderr=stderr))

    async def results(self) -> SweepResults:
        """Return the results of the tasks of a sweep so far, as :meth:`koala_adapter.JobHandle.results`."""
        return SweepResults(await self.report())

    async def lines(
        self, component: str | None = None, rank: int | None = None, *, stderr: bool = False
    ) -> AsyncGenerator[str, None]:
        """Yield the lines that the processes write as they come, as :meth:`koala_adapter.JobHandle.lines`."""
        follower: OutputFollower | None = None
        async with aclosing(self.reports()) as reports:
            async for report in reports:
                follower = follower or OutputFollower(report, component, rank, stderr=stderr)
                for line in await to_thread.run_sync(follower.new_lines, report):
                    yield line
                if report.outcome is not None:
                    return

    async def cancel(self) -> None:
        """Cancel the job in all batch systems. Returns at once; :meth:`wait` returns when the job has ended."""
        if self._last is not None and self._last.outcome is not None:
            return
        try:
            self._last = await self._client.cancel(self.id)
        except ServiceUnavailableError:
            await to_thread.run_sync(self.site.begin_service)
            self._last = await self._client.cancel(self.id)

    async def resize(self, processors: int, component: str = "") -> None:
        """Bring a running malleable job to another size. Raises JobRefusedError."""
        self._last = await self._client.resize(self.id, processors, component)

    async def reports(self) -> AsyncGenerator[JobReport, None]:
        """Yield the report of the job now and after each change, until it is over and nothing is left of it."""
        in_vain = 0
        while True:
            try:
                async with aclosing(self._client.watch(self.id)) as reports:
                    async for report in reports:
                        self._last, in_vain = report, 0
                        yield report
                return
            except ServiceUnavailableError:
                if self._last is not None and self._last.over:
                    return
                in_vain += 1
                if in_vain > MOST_STARTS:
                    raise
                await to_thread.run_sync(self.site.begin_service)

    async def wait(self, timeout: float | None = None) -> JobResult:
        """Wait until the job has ended, well or not, and return how; ``timeout``: seconds until JobTimeoutError."""
        try:
            with anyio.fail_after(timeout):
                return JobResult(await self._ended())
        except TimeoutError as error:
            raise JobTimeoutError(f"job {self.id} is not over yet", hint="it goes on") from error

    async def result(self, timeout: float | None = None) -> JobResult:
        """Wait until the job has ended well, as :meth:`wait`; raise JobFailedError when it ended otherwise."""
        result = await self.wait(timeout)
        result.check()
        return result

    async def wait_until_over(self) -> JobResult:
        """Wait as :meth:`wait`, and until nothing of the job is left in any batch system."""
        return JobResult(await self._ended(over=True))

    async def _ended(self, *, over: bool = False) -> JobReport:
        last = self._last
        if last is None or last.outcome is None or (over and not last.over):
            async with aclosing(self.reports()) as reports:
                async for last in reports:
                    if last.outcome is not None and not over:
                        break
        if last is None:
            raise AssertionError("a watch gives at least one report")
        return last

    async def __aenter__(self) -> Self:
        """Begin a block at whose end the job is over."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the end of the job; after an exception, or when cancelled, cancel it first."""
        with anyio.CancelScope(shield=kind is not None):
            if kind is not None:
                with suppress(KoalaError):
                    await self.cancel()
            await self.wait_until_over()


async def submit(job: Job | str | PathLike[str] | CheckedJob, *, site: Site | None = None) -> AsyncJobHandle:
    """Hand a job, or a job file, to the service of a site, and start one if none runs; as :meth:`Site.submit`."""
    there = await _loaded(site)
    wanted = job if isinstance(job, CheckedJob) else await to_thread.run_sync(there.checked, job)
    client = AsyncClient(there.directory)
    try:
        submission = new_submission()
        with anyio.fail_after(ENDING):
            while True:
                await to_thread.run_sync(there.begin_service)
                # Shielded, or nobody knew whether it is in. What was not answered is sent again by its name.
                with anyio.CancelScope(shield=True), suppress(ServiceUnavailableError):
                    job_id = await client.submit(wanted, submission)
                    there.note(job_id)
                    return AsyncJobHandle(there, job_id)
                await anyio.sleep(LOOK_AGAIN)
    except TimeoutError as error:
        raise ServiceUnavailableError(f"no koala service stays in {there.directory}", hint="see its log") from error


async def run(
    job: Job | str | PathLike[str] | CheckedJob,
    *,
    timeout: float | None = None,
    check: bool = True,
    site: Site | None = None,
) -> JobResult:
    """Run a job, or a job file, to its end; as :meth:`Site.run`. When this is cancelled, the job is."""
    async with (await _loaded(site)).for_a_block() as there:
        handle = await submit(job, site=there)
        try:
            result = await handle.wait(timeout)
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(KoalaError):
                await handle.cancel()
            raise
    if check:
        result.check()
    return result


async def clusters(*, site: Site | None = None) -> list[ClusterReport]:
    """Return the clusters; as :meth:`Site.clusters`."""
    there = await _loaded(site)
    return await to_thread.run_sync(there.clusters)


async def job(job_id: str, *, site: Site | None = None) -> AsyncJobHandle:
    """Return a handle on a job that was submitted earlier, by this program or any other."""
    return AsyncJobHandle(await _loaded(site), job_id)


async def jobs(limit: int = LATEST, *, site: Site | None = None) -> list[AsyncJobHandle]:
    """Return handles on the latest jobs in order of submission, ``limit`` of them at most."""
    there = await _loaded(site)
    found = await to_thread.run_sync(there.jobs, limit)
    return [AsyncJobHandle(there, one.id) for one in found]


async def _loaded(site: Site | None) -> Site:
    if site is not None:
        return site
    loaded: Site = await to_thread.run_sync(Site.load)
    return loaded
