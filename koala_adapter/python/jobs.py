# SPDX-License-Identifier: Apache-2.0
"""A handle on one job: its state, its end, what it writes, and cancelling it."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Protocol

from koala_adapter.errors import JobNotFoundError, KoalaError, ServiceUnavailableError
from koala_adapter.python.display import mimebundle, show_reports
from koala_adapter.python.result import JobResult, OutputFollower, text_of

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterator
    from types import TracebackType
    from typing import Self

    from koala_adapter.api.client import Client
    from koala_adapter.api.closedjournal import ClosedJournal
    from koala_adapter.api.offline import JournalView
    from koala_adapter.api.reports import JobReport
    from koala_adapter.scheduler.outcome import JobState

MOST_STARTS = 3
"""Services that are started, one after the other, to hear of a job whose state none of them tells."""


class JobService(Protocol):
    """Where a job is: what a handle needs of a :class:`koala_adapter.Site`."""

    @property
    def client(self) -> Client:
        """The service, whether it runs or not."""

    def information(self) -> Client | ClosedJournal | JournalView:
        """Return who tells of jobs. Raises ServiceUnavailableError when there has never been a service."""

    def begin_service(self) -> int | None:
        """See to it that a service answers. Raises ServiceRunningError and ServiceUnavailableError."""


class JobHandle:
    """A job at a site, by its id. It can be used by several threads at once, and made again with ``site.job(id)``.

    A wait goes on when the service is ended, or fails, by starting it again: the job is not lost with it.

    As a context manager it sees to it that the job is over at the end of the block: it is waited for, or cancelled if
    the block ends with an exception.
    """

    def __init__(self, site: JobService, job_id: str) -> None:
        """``job_id``: as `koala status` shows it."""
        self.site = site
        self.id = job_id
        self._last: JobReport | None = None

    def __repr__(self) -> str:
        """Name the job, and the state in which it was seen last."""
        state = "" if self._last is None else f" {self._last.state.value}"
        return f"<koala.JobHandle {self.id}{state}>"

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        """Return what a notebook shows: the job as it is now."""
        del include, exclude
        try:
            return mimebundle(self.report())
        except KoalaError as error:
            return {"text/plain": f"{self!r}: {error}"}

    # ---- what is so now ---------------------------------------------------------------------------------------------

    def report(self) -> JobReport:
        """Return all that is known of the job now. Without a service it is what the journal says.

        Raises JobNotFoundError, and ServiceUnavailableError when there has never been a service.
        """
        if self._last is None or not self._last.over:
            try:
                self._last = self.site.client.job(self.id)
            except ServiceUnavailableError:
                self._last = self.site.information().job(self.id)
        return self._last

    @property
    def status(self) -> JobState:
        """The state of the job now; raises as :meth:`report`."""
        return self.report().state

    def done(self) -> bool:
        """Tell whether the job has ended, well or not."""
        return self.report().outcome is not None

    def explain(self) -> str:
        """Return why the job waits, what it holds, and what would let it start."""
        return self.report().explanation

    def logs(self, component: str | None = None, rank: int | None = None, *, stderr: bool = False) -> str:
        """Return what its processes have written so far; lines are marked component/rank when there are several.

        ``component``, ``rank``: only of those; ranks count from 0 in each component. Raises JobNotFoundError.
        """
        report = self.report()
        names = {one.name for one in report.components}
        if component is not None and component not in names:
            said = ", ".join(sorted(names))
            raise JobNotFoundError(f"job {self.id} has no component {component!r}; it has: {said}")
        return text_of(report, component, rank, stderr=stderr)

    # ---- what is to be ----------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the job and everything of it in all batch systems; returns at once, :meth:`wait` tells when it is so.

        A job that has ended already is left as it is. Raises JobNotFoundError and ServiceUnavailableError.
        """
        if self._last is not None and self._last.outcome is not None:
            return
        try:
            self._last = self.site.client.cancel(self.id)
        except ServiceUnavailableError:
            self.site.begin_service()
            self._last = self.site.client.cancel(self.id)

    def resize(self, processors: int, component: str = "") -> None:
        """Bring a running malleable job to another size, as `koala resize` does. Raises JobRefusedError."""
        self._last = self.site.client.resize(self.id, processors, component)

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def reports(self, timeout: float | None = None) -> Generator[JobReport, None, None]:
        """Yield the report of the job now and after each change, until it is over and nothing is left of it.

        ``timeout``: seconds from now until JobTimeoutError. Raises JobNotFoundError, and ServiceUnavailableError when
        the service goes away and cannot be started again.
        """
        until = None if timeout is None else time.monotonic() + timeout
        in_vain = 0
        while True:
            try:
                for report in self.site.client.watch(self.id, until=until):
                    self._last, in_vain = report, 0
                    yield report
                return
            except ServiceUnavailableError:
                if self._last is not None and self._last.over:
                    return
                in_vain += 1
                if in_vain > MOST_STARTS:
                    raise
                self.site.begin_service()

    def wait(self, timeout: float | None = None) -> JobResult:
        """Wait until the job has ended, well or not, and return how.

        ``timeout``: seconds until JobTimeoutError, which is a TimeoutError; the job goes on. None: no limit.
        """
        return self.ended(timeout, check=False)

    def result(self, timeout: float | None = None) -> JobResult:
        """Wait until the job has ended well, as :meth:`wait`; raise JobFailedError when it ended otherwise."""
        return self.ended(timeout)

    def ended(self, timeout: float | None = None, *, check: bool = True, show: bool = False) -> JobResult:
        """Wait as :meth:`result`, or as :meth:`wait` without ``check``; ``show``: see :meth:`show`."""
        if self._last is None or self._last.outcome is None:
            with closing(self._until_ended(timeout)) as reports:
                self._last = show_reports(reports) if show else _last_of(reports)
        result = JobResult(self._last)
        if check:
            result.check()
        return result

    def _until_ended(self, timeout: float | None) -> Generator[JobReport, None, None]:
        with closing(self.reports(timeout)) as reports:
            for report in reports:
                yield report
                if report.outcome is not None:
                    return

    def wait_until_over(self, timeout: float | None = None) -> JobResult:
        """Wait as :meth:`wait`, and until nothing of the job is left in any batch system."""
        if self._last is None or not self._last.over:
            with closing(self.reports(timeout)) as reports:
                self._last = _last_of(reports)
        return JobResult(self._last)

    def show(self, timeout: float | None = None) -> JobResult:
        """Wait as :meth:`wait` and show how the job gets on: live in a notebook, else in lines on standard error."""
        return self.ended(timeout, check=False, show=True)

    def lines(
        self,
        component: str | None = None,
        rank: int | None = None,
        *,
        stderr: bool = False,
        timeout: float | None = None,
    ) -> Generator[str, None, None]:
        """Yield the lines that the processes write as they come, without their ends, until the job has ended.

        They are marked as in :meth:`logs`. Raises as :meth:`reports`.
        """
        follower: OutputFollower | None = None
        with closing(self.reports(timeout)) as reports:
            for report in reports:
                follower = follower or OutputFollower(report, component, rank, stderr=stderr)
                yield from follower.new_lines(report)
                if report.outcome is not None:
                    return

    def __enter__(self) -> Self:
        """Begin a block at whose end the job is over."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the end of the job; after an exception, cancel it first."""
        if kind is not None:
            with suppress(KoalaError):
                self.cancel()
        self.wait_until_over()


def _last_of(reports: Iterator[JobReport]) -> JobReport:
    return deque(reports, maxlen=1).pop()
