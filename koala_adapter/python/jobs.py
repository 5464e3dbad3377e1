# SPDX-License-Identifier: Apache-2.0
"""A submitted job in Python: how it is shown, its result and output, and the handle that follows it."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from koala_adapter import tasks
from koala_adapter.api.statedirectory import LogPrinter
from koala_adapter.config.tomlfile import printable
from koala_adapter.errors import JobFailedError, JobNotFoundError, KoalaError, ServiceUnavailableError
from koala_adapter.host.regularfile import paths_below, paths_matching

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from koala_adapter.api.client import Client
    from koala_adapter.api.closedjournal import ClosedJournal
    from koala_adapter.api.offline import JournalView
    from koala_adapter.outcome import JobState
    from koala_adapter.python.description import Job
    from koala_adapter.report.values import ComponentReport, HoldReport, JobReport, UsageReport
    from koala_adapter.tasks.results import TaskResult


# -- Showing a job: one line, or a table that a notebook updates ---------------------------------------------

HEADINGS = ("component", "cluster", "held", "hosts")
MOST_HOSTS = 4
"""Hosts of a component that are named."""


_NUMBERS = re.compile(r"[0-9]+(?:[.:][0-9]+)*( (s|min|h|d)\b)?( [0-9]+ (min|h)\b)?")


class Shown(Protocol):
    """Something that a notebook shows and that can be shown anew in its place."""

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        """Replace what is shown."""


def one_line(report: JobReport) -> str:
    """Return where a job stands, in one line without times, so that it changes only when the job does."""
    parts = [f"{c.name} {c.held} of {c.processors} on {c.cluster or '-'}{in_hold(c)}" for c in report.components]
    text = f"job {report.id} {report.state.value}"
    if report.sweep is not None and report.sweep.total:
        tenths = 10 * (report.sweep.done + report.sweep.failed) // report.sweep.total
        parts.append(f"{10 * tenths} % of {report.sweep.total} tasks")
    return text if report.outcome else f"{text}: {', '.join(parts)}"


LONG_ENDING = 1.0
"""Seconds after its end for which what is left of a job may stay without being told of."""


def awaited(report: JobReport) -> str:
    """Return what a job that is followed waits for: to be launched, or for its placeholders to be gone."""
    ended = report.finished_at is not None and report.reported_at - report.finished_at >= LONG_ENDING
    starts = report.launched_at is None and report.outcome is None
    return report.explanation if starts or (ended and report.placeholders_left) else ""


class Progress:
    """Chooses what is to be printed of a job that is followed without a terminal: each line when it changes."""

    def __init__(self) -> None:
        """Create a display that has printed nothing."""
        self._line = ""
        self._reason = ""

    def new_lines(self, report: JobReport) -> list[str]:
        """Return where the job stands, and what it waits for, as far as either is new.

        A reason that differs in numbers alone, such as the seconds since something, is not new.
        """
        lines = []
        if (line := one_line(report)) != self._line:
            self._line = line
            lines.append(line)
        reason = _NUMBERS.sub("#", awaited(report))
        if reason and reason != self._reason:
            self._reason = reason
            lines.append(f"  {report.explanation}")
        return lines


def in_hold(component: ComponentReport) -> str:
    """Return what of a component waits in its batch system for something else than processors; empty: nothing."""
    said = ", ".join(_held(one) for one in component.holds)
    return f" ({said})" if said else ""


def _held(one: HoldReport) -> str:
    if not one.in_hold:
        return f"{one.placeholders} kept waiting there: {one.reason}"
    return f"{one.placeholders} in hold there: {one.holder} {one.reason}".rstrip()


def mimebundle(report: JobReport) -> dict[str, str]:
    """Return a job in the forms from which a notebook chooses."""
    return {"text/plain": one_line(report), "text/html": as_html(report)}


def as_html(report: JobReport) -> str:
    """Return a job as a table."""
    head = f"job <b>{escape(report.id)}</b> {escape(report.name)}: <b>{escape(report.state.value)}</b>"
    said = report.explanation if report.outcome is None else report.outcome.detail
    titles = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = "".join(_row(report, component) for component in report.components)
    note = f"<div>{escape(said)}</div>" if said else ""
    return f"<div>{head}</div><table><tr>{titles}</tr>{rows}</table>{note}"


def _row(report: JobReport, component: ComponentReport) -> str:
    held = component.processors if report.finished_at and report.launched_at is not None else component.held
    bar = f'<progress max="{component.processors}" value="{held}"></progress> {held} of {component.processors}'
    hosts = ", ".join(component.hosts[:MOST_HOSTS]) + (" …" if len(component.hosts) > MOST_HOSTS else "")
    cells = (escape(component.name), escape(component.cluster or "-"), bar, escape(hosts))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def show_reports(reports: Iterable[JobReport]) -> JobReport:
    """Show a job at each change; return its last report."""
    last: JobReport | None = None
    shown: Shown | None = None
    progress = Progress()
    notebook = in_notebook()
    for last in reports:
        if notebook:
            if shown is None:
                shown = _begun(mimebundle(last))
            else:
                shown.update(mimebundle(last), raw=True)
        else:
            for line in progress.new_lines(last):
                print(printable(line), file=sys.stderr, flush=True)
    if last is None:
        raise AssertionError("a watch gives at least one report")
    return last


def in_notebook() -> bool:
    """Tell whether this program is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _begun(bundle: dict[str, str]) -> Shown:
    shown: Shown = import_module("IPython.display").display(bundle, raw=True, display_id=True)
    return shown


# -- Result and output of a job ------------------------------------------------------------------------------

LAST_LINES = 5
"""Lines of standard error in the message of a job that failed."""


@dataclass(frozen=True, slots=True, repr=False)
class JobResult:
    """A job that has ended."""

    report: JobReport
    """Everything that is known of it."""

    def __repr__(self) -> str:
        """Say which job it is and how it ended."""
        return f"<koala.JobResult {self.id} {self.report.name}: {self.state.value}, exit code {self.exit_code}>"

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        """Return the result as a notebook shows it."""
        del include, exclude
        return mimebundle(self.report)

    @property
    def id(self) -> str:
        """The id of the job, for `koala status` and `koala logs`."""
        return self.report.id

    @property
    def state(self) -> JobState:
        """Its final state."""
        return self.report.state

    @property
    def exit_code(self) -> int:
        """Its own exit code, or what `koala run` ends with: 241 not placed, 242 lost, 243 cancelled, 244 walltime."""
        return 1 if self.report.outcome is None else self.report.outcome.exit_code

    @property
    def ok(self) -> bool:
        """True when the job has ended with exit code 0."""
        return self.exit_code == 0

    @property
    def detail(self) -> str:
        """The reason for the job's end, in one sentence; empty when there is nothing to say."""
        return "" if self.report.outcome is None else self.report.outcome.detail

    @property
    def usage(self) -> UsageReport | None:
        """The processor time and memory that the job has used; None if it has held no processor."""
        return self.report.usage

    @property
    def directory(self) -> Path:
        """Where its output is: ``COMPONENT/RANK.out``, ``.err``, and the output files in ``COMPONENT/RANK``."""
        return Path(self.report.output_directory)

    @property
    def stdout(self) -> str:
        """What its processes wrote to standard output; lines are marked component/rank when there are several."""
        return text_of(self.report)

    @property
    def stderr(self) -> str:
        """What its processes wrote to standard error, in the same way."""
        return text_of(self.report, stderr=True)

    def output(self, component: str | None = None, rank: int | None = None, *, stderr: bool = False) -> str:
        """Return what one process wrote, or those of a component; ``rank`` counts from 0 in each component."""
        return text_of(self.report, component, rank, stderr=stderr)

    @property
    def files(self) -> tuple[Path, ...]:
        """The output files of all processes that have arrived, in order."""
        found: list[Path] = []
        for name in sorted({one.name for one in self.report.components}):
            beside = paths_matching(self.directory / name, "*")
            ranks = [path for path in beside if path.name.isdecimal() and path.is_dir()]
            for rank in sorted(ranks, key=lambda path: int(path.name)):
                found += sorted(path for path in paths_below(rank) if path.is_file() and not path.is_symlink())
        return tuple(found)

    def check(self) -> None:
        """Raise JobFailedError unless the job ended well."""
        if self.ok:
            return
        said = f": {self.detail}" if self.detail else ""
        last = self.stderr.splitlines()[-LAST_LINES:]
        lines = "".join(f"\n  {line}" for line in last)
        raise JobFailedError(
            f"job {self.id} {self.report.name}: {self.state.value}{said}{lines}",
            hint=f"all that it wrote is in {self.directory}",
            job_id=self.id,
            job_exit_code=self.exit_code,
        )


def text_of(report: JobReport, component: str | None = None, rank: int | None = None, *, stderr: bool = False) -> str:
    """Return what the processes of a job have written so far. What is no UTF-8 is replaced.

    Raises JobNotFoundError for a component that the job does not have, and KoalaError when the state directory with the
    output is not there any more.
    """
    names = {one.name for one in report.components}
    if component is not None and component not in names:
        said = ", ".join(sorted(names))
        raise JobNotFoundError(f"job {report.id} has no component {component!r}; it has: {said}")
    directory = Path(report.output_directory)
    if not directory.parent.parent.is_dir():
        message = f"the output of job {report.id} is gone: its state directory, {directory.parent.parent}, was removed"
        raise KoalaError(message, hint="read it before a koala.local_site() ends")
    return OutputFollower(report, component, rank, stderr=stderr).new_text(report, rest=True)


class SweepResults:
    """The results of the tasks of a sweep or an array that are over, in order of their numbers.

    Each iteration reads them anew, so that of a sweep that goes on a later one has more.
    """

    def __init__(self, report: JobReport) -> None:
        """Read the results from the directory in the report of a sweep. Raises JobNotFoundError for another job."""
        if report.sweep is None:
            raise JobNotFoundError(f"job {report.id} is no sweep, and has no tasks")
        self._directory = Path(report.sweep.directory)

    def __iter__(self) -> Iterator[TaskResult]:
        """Read the results one by one."""
        return tasks.read_results(self._directory)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is no dependency
        """Return a pandas.DataFrame with a row for each task: its parameters, exit status and last line of output.

        Parameters and outputs that are numbers in every row are numbers. Raises KoalaError where pandas is missing.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise KoalaError("to_pandas needs pandas, which is not here", hint="pip install pandas") from error
        frame = pandas.DataFrame([tasks.row_of(one) for one in self])
        for name in frame.columns:
            with suppress(ValueError, TypeError):
                frame[name] = pandas.to_numeric(frame[name])
        return frame


class OutputFollower:
    """Reads what the processes of a job, or some of them, write, each piece of it once."""

    def __init__(self, report: JobReport, component: str | None, rank: int | None, *, stderr: bool) -> None:
        """``component``, ``rank``: None for all of them."""
        self._component, self._rank = component, rank
        self._pieces: list[bytes] = []
        suffix = ".err" if stderr else ".out"
        directory = Path(report.output_directory)
        self._printer = LogPrinter(directory, component=component, rank=rank, suffix=suffix, write=self._pieces.append)

    def new_text(self, report: JobReport, *, rest: bool) -> str:
        """Return what is new; ``rest``: also a line without an end."""
        self._printer.print_new(marked=report.processes(self._component, self._rank) > 1, rest=rest)
        text = b"".join(self._pieces).decode("utf-8", "replace")
        self._pieces.clear()
        return text

    def new_lines(self, report: JobReport) -> list[str]:
        """Return the lines that are new, and what is left of one when the job has ended."""
        text = self.new_text(report, rest=report.outcome is not None)
        return text.removesuffix("\n").split("\n") if text else []


# -- The handle of a job: state, end, output, cancelling -----------------------------------------------------

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
        """Start a service if none answers. Raises ServiceRunningError and ServiceUnavailableError."""

    def submit(self, job: Job) -> JobHandle:
        """Hand a job to the service and return a handle on it."""


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
        return text_of(self.report(), component, rank, stderr=stderr)

    def results(self) -> SweepResults:
        """Return the results of the tasks of a sweep, as far as they are over. Raises JobNotFoundError for other jobs.

        ``for one in handle.results(): print(one.parameters, one.status, one.stdout)``
        """
        return SweepResults(self.report())

    # ---- what is to be ----------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the job in all batch systems. Returns at once; :meth:`wait` returns when the job has ended.

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

    def then(self, job: Job, end: str = "ok") -> JobHandle:
        """Hand in another job that starts when this one has ended, and return a handle on it.

        ``end``: ``ok``: when this one has completed, ``failed``: when it has not, ``any``: in any case. Where this one
        ends otherwise, the other one is cancelled.
        """
        return self.site.submit(replace(job, after=(*job.after, f"{self.id}:{end}")))

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
