# SPDX-License-Identifier: Apache-2.0
"""The workers' job while it runs: submitted, followed, resized and ended through the service of koala."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from koala_adapter.api.asyncclient import AsyncClient
from koala_adapter.api.client import Client
from koala_adapter.api.standby import stand_by
from koala_adapter.dask.workerjob import COMPONENT
from koala_adapter.errors import JobNotFoundError, KoalaError, ServiceUnavailableError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from koala_adapter.api.reports import JobReport
    from koala_adapter.model import Job

LOOK_AGAIN = 1.0
"""Seconds between two attempts to reach a service that went away."""
CLOSING = 5.0
"""Seconds that workers have to end by themselves once their scheduler has told them so."""
SETTLING = 10.0
"""Seconds for workers that Dask has retired to be gone from the job, too."""


class Owner(Protocol):
    """Whose job it is."""

    def described(self, scheduler: str, size: int) -> AbstractContextManager[Job]:
        """Have the job of ``size`` workers of the scheduler at an address, with its files, during the block."""

    def say(self, text: str, *, trouble: bool = False) -> None:
        """Take what a person may want to know."""

    def job_over(self, text: str, *, bad: bool) -> None:
        """Note that the job has ended by itself; ``text`` says so, ``bad``: otherwise than well."""


class WorkersJob(ProcessInterface):
    """One malleable job of koala whose processes are the workers of a Dask scheduler.

    Its ``start`` raises ServiceUnavailableError when no service runs and none can be begun, and JobRefusedError.
    """

    def __init__(
        self,
        scheduler: str,
        *,
        name: str,
        owner: Owner,
        site_file: Path,
        directory: Path,
        size: int,
    ) -> None:
        """``scheduler``: its address. ``directory``: the state directory of koala's service. ``size``: workers."""
        super().__init__(scheduler=scheduler, name=name)
        self.job_id = ""
        self.report: JobReport | None = None
        self._scheduler = scheduler
        self._site_file = site_file
        self._client = AsyncClient(directory)
        self._owner = owner
        self._wanted = size
        self._told: int | None = None
        self._changed = asyncio.Condition()
        self._follower: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Tell whether its application has ended, or is lost to us."""
        return self.status is Status.closed or (self.report is not None and self.report.outcome is not None)

    @property
    def size(self) -> int:
        """Return how many processors it has."""
        components = () if self.report is None else self.report.components
        return sum(one.processors for one in components)

    async def start(self) -> None:
        """Submit the job, where no service runs through one that is begun; returns once koala has it."""
        pid = await asyncio.to_thread(self._begin_service)
        if pid is not None:
            self._owner.say(f"no koala service was running; started one in the background (pid {pid})")
        with self._owner.described(self._scheduler, self._wanted) as job:
            self.job_id = await self._client.submit(job)
        self._owner.say(f"submitted as job {self.job_id}")
        await self.resize(self._wanted)
        await super().start()
        self._follower = asyncio.create_task(self._follow())

    def _begin_service(self) -> int | None:
        client = Client(self._client.directory)
        if client.running():
            return None
        return stand_by(client, self._site_file)

    async def resize(self, size: int) -> None:
        """Have so many workers as far as processors can be had; a service that does not answer is told once it does."""
        self._wanted = size
        if self._told == size or self.over:
            return
        try:
            await self._client.resize(self.job_id, size, COMPONENT)
        except KoalaError as error:
            if not self.over:
                self._owner.say(f"job {self.job_id} cannot be brought to {size} workers now: {error}", trouble=True)
        else:
            self._told = size

    async def settled(self, size: int) -> None:
        """Wait, for a bounded time, until the job has at most ``size`` processors."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLING), self._changed:
                await self._changed.wait_for(lambda: self.over or self.size <= size)

    async def _follow(self) -> None:
        lost = False
        while not self.over:
            try:
                async with aclosing(self._client.watch(self.job_id)) as reports:
                    async for report in reports:
                        await self._seen(report)
                        lost = False
                        if self.over:
                            return
                        await self.resize(self._wanted)
            except ServiceUnavailableError as error:
                if not lost:
                    self._owner.say(f"{error}; the workers go on", trouble=True)
                lost = True
                await asyncio.sleep(LOOK_AGAIN)
            except KoalaError as error:
                self.status = Status.closed
                self._owner.job_over(f"job {self.job_id} cannot be followed any more: {error}", bad=True)
                return

    async def _seen(self, report: JobReport) -> None:
        """Take in what koala tells of the job, and say what is new in it."""
        known = () if self.report is None else self.report.size_changes
        for one in report.size_changes:
            if one not in known:
                verb = "grew" if one.after > one.before else "shrank"
                self._owner.say(f"{verb} from {one.before} to {one.after} on {one.cluster}: {one.reason}")
        before, self.report = self.over, report
        if self.over and not before:
            if self.status is not Status.closing:
                text = f"job {self.job_id} has ended by itself: {report.explanation} (`koala logs {self.job_id}`)"
                self._owner.job_over(text, bad=report.outcome is None or report.outcome.exit_code != 0)
            self.status = Status.closed
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """End the job; returns once its application has ended, or the service knows that it is to end."""
        if self.job_id and self.status is not Status.closed:
            self.status = Status.closing
            await self._end()
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        await super().close()

    async def _end(self) -> None:
        try:
            if self.report is not None and self.report.launched_at is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLOSING), self._changed:
                        await self._changed.wait_for(lambda: self.over)
            if not self.over:
                await self._client.cancel(self.job_id)
        except JobNotFoundError:
            return
        except KoalaError as error:
            text = f"job {self.job_id} could not be cancelled: {error}; its workers end without their scheduler"
            self._owner.say(text, trouble=True)
