# SPDX-License-Identifier: Apache-2.0
"""Sweeps of a service: the running sweep that hands out tasks, and all sweeps together.

Launchers connect to a port of their sweep. The port is kept, so that they find it again after a restart of the
service; it lies outside the range from which the kernel assigns ports.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from anyio import to_thread

from koala_adapter.errors import JobRefusedError, KoalaError, LrmUnreachableError
from koala_adapter.host.sockets import lasting_ports
from koala_adapter.model import EndReason, Job, JobId, RunnerName, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.report.values import MOST_NAMED, SweepProgress, end_in_words
from koala_adapter.scheduler.events import RankEnded
from koala_adapter.service.core import Core, Nudge
from koala_adapter.service.sweepfiles import FOLDER, Contact, SweepFiles, first_job, recorded_progress
from koala_adapter.tasks.launcher import SETTINGS
from koala_adapter.tasks.results import RESULTS
from koala_adapter.tasks.server import TOKEN_BYTES, Puller, PullServer, listening_socket, node_files, send
from koala_adapter.tasks.sweep import INDEX, Assignment, Book, Entry, Expansion, Pace, filled
from koala_adapter.vjm import certificate
from koala_adapter.vjm.channel import LaunchFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from koala_adapter.vjm.certificate import Certificate


# -- A running sweep: its ledger, its files, its launchers ---------------------------------------------------

LARGEST_FRAME = 80 * 1024 * 1024
"""Bytes; an answer has what a launcher keeps of two streams."""
OVER = json.dumps({"over": True}).encode()

log = structlog.get_logger()


@dataclass(slots=True)
class _Launcher:
    """Launcher at a connection, with its task."""

    cluster: str
    host: str
    given: Assignment | None = None


@dataclass(slots=True)
class _Answer:
    given: Assignment
    status: int
    seconds: float
    out: bytes = field(repr=False)
    err: bytes = field(repr=False)


def restored_book(job: Job, files: SweepFiles, expansion: Expansion) -> Book:
    """Return the state of a sweep by the entries in its files, which are not changed.

    May take long: a sweep has up to a million entries, and its file system may be slow. Raises OSError, KoalaError.
    """
    if job.sweep is None:
        raise AssertionError("a job with a sweep")
    book = Book(len(expansion), job.sweep.repeats)
    book.restored(files.entries())
    return book


class RunningSweep:
    """Hands out tasks of a sweep and records results."""

    def __init__(
        self, job: Job, files: SweepFiles, expansion: Expansion, book: Book, *, changed: Callable[[], None]
    ) -> None:
        """``book``: from :func:`restored_book`. ``changed``: called with each finished task. Raises OSError."""
        if job.sweep is None:
            raise AssertionError("a job with a sweep")
        self._job_id = job.id
        self._command = job.components[0].command
        self._is_array = job.sweep.is_array
        self._files = files
        self._expansion = expansion
        self._changed = changed
        self._pace = Pace()
        self._book = book
        files.open()
        if job.sweep.continues is not None and job.id not in files.resumed_by:
            self._enter(0, Entry.RESUMED, {"job": job.id, "at": now()})
        self._server: PullServer | None = None
        self._saved = False

    # ---- as the service sees it -------------------------------------------------------------------------------------

    def serve(self, listening: socket, contact: Contact, certificate: Certificate) -> None:
        """Serve launchers that connect to a socket on the port of ``contact``."""
        self._server = PullServer(self, bytes.fromhex(contact.token), largest_frame=LARGEST_FRAME)
        self._server.listen(listening, certificate, asyncio.get_running_loop())

    def save(self) -> None:
        """Stop accepting results and store the progress."""
        if not self._saved:
            self._saved = True
            try:
                self._files.close(self.progress, self._job_id)
            except OSError as error:
                log.warning("how far a sweep is cannot be kept", directory=str(self._files.directory), error=str(error))

    async def close(self) -> None:
        """Stop serving."""
        self.save()
        if self._server is not None:
            await self._server.close()

    @property
    def over(self) -> bool:
        """Whether every task is done, or has failed for good."""
        return self._book.over

    @property
    def progress(self) -> SweepProgress:
        """Progress of the sweep."""
        book = self._book
        launchers = 0 if self._server is None else len(self._server.pullers)
        return SweepProgress(
            total=book.total,
            done=book.done,
            failed=len(book.failed),
            running=book.out,
            first_failed=tuple(self._number(task) for task, _ in zip(book.failed, range(MOST_NAMED), strict=False)),
            seconds_left=self._pace.left(tasks=book.left, launchers=launchers),
            directory=str(self._files.directory),
            by_index=self._is_array,
        )

    # ---- what launchers ask for (Board) -----------------------------------------------------------------------------

    def came(self, puller: Puller) -> None:
        """Do nothing: a launcher's first message identifies it."""

    def work_for(self, puller: Puller) -> bytes | None:
        """Return the next task of a launcher; None: there is none now."""
        launcher = puller.work
        given = self._book.take()
        if given is None or not isinstance(launcher, _Launcher):
            return None
        launcher.given = given
        argv = list(filled(self._command, self._expansion.row(given.task)))
        index = str(self._number(given.task)) if self._is_array else None
        return json.dumps({"task": given.task, "attempt": given.attempt, "argv": argv, "index": index}).encode()

    def _number(self, task: int) -> int:
        """Return a task's number for people: in an array its index."""
        return int(self._expansion.row(task)[INDEX]) if self._is_array else task

    def heard(self, puller: Puller, frame: bytes) -> None:
        """Process a launcher's message. Raises ConnectionError when it is invalid or cannot be stored."""
        launcher = puller.work
        if self._saved:
            raise ConnectionError("the sweep is closed")
        try:
            if not isinstance(launcher, _Launcher):
                said = json.loads(frame)
                puller.work = launcher = _Launcher(cluster=str(said["cluster"]), host=str(said["host"]))
            else:
                self._answered(launcher, _answer(frame))
        except (ValueError, KeyError, TypeError, OSError) as error:
            log.warning("the answer of a launcher is not taken", directory=str(self._files.directory), error=str(error))
            raise ConnectionError(str(error)) from error
        # One that returns with the answer of a task of before has been given the next one when it said who it is.
        if not self.over and self._server is not None and launcher.given is None:
            self._server.free(puller)

    def _answered(self, launcher: _Launcher, answer: _Answer) -> None:
        """Process a result: of the current task, or of one before the connection was lost."""
        good = answer.status == 0
        given = answer.given
        entry = self._book.entry_of_success(given.task) if good else self._book.entry_of_failure(given)
        if entry is not None:
            told = {
                "parameters": self._expansion.row(given.task),
                "status": answer.status,
                "seconds": answer.seconds,
                "attempt": given.attempt,
                "cluster": launcher.cluster,
                "host": launcher.host,
                "at": now(),
                **self._files.keep_output(self._number(given.task), answer.out, answer.err),
            }
            self._enter(given.task, entry, told)
            self._pace.note(answer.seconds)
        if launcher.given == given:
            launcher.given = None
        self._report()

    def gone(self, puller: Puller) -> None:
        """Take back the tasks of a lost launcher."""
        launcher = puller.work
        if self._saved:
            return
        if not isinstance(launcher, _Launcher) or launcher.given is None:
            self._report()
            return
        given, launcher.given = launcher.given, None
        entry = None if puller.leaving else self._book.entry_of_loss(given)
        if entry is None:
            self._book.given_back(given)
        else:
            told: dict[str, Any] = {
                "attempt": given.attempt, "cluster": launcher.cluster, "host": launcher.host, "at": now(),
            }  # fmt: skip
            try:
                self._enter(given.task, entry, {"parameters": self._expansion.row(given.task), **told})
            except OSError as error:
                log.warning("a loss cannot be written down", directory=str(self._files.directory), error=str(error))
                self._book.given_back(given)
        self._report()

    def _enter(self, task: int, entry: Entry, more: dict[str, Any]) -> None:
        self._files.write(task, entry, more)
        self._book.note(task, entry)

    def _report(self) -> None:
        if self.over and self._server is not None:
            for puller in self._server.pullers:
                send(puller, OVER)
        elif self._server is not None:
            self._server.dispatch()
        self._changed()


def now() -> float:
    """Return the time of day for entries: seconds since the epoch, in thousandths."""
    return round(time.time(), 3)


def _answer(frame: bytes) -> _Answer:
    """Parse a launcher's result. Raises ValueError, KeyError or TypeError."""
    head, _, output = frame.partition(b"\n")
    said = json.loads(head)
    given = Assignment(int(said["task"]), int(said["attempt"]))
    size = int(said["out"])
    if size + int(said["err"]) != len(output):
        raise ValueError("the output is not as long as was said")
    return _Answer(given, int(said["status"]), float(said["seconds"]), output[:size], output[size:])


# -- All sweeps of a service: opened, followed and closed with their jobs ------------------------------------

PROGRAM = "koala_sweep.py"
TELLING = 0.5
"""Seconds between two times that who watches is told of further tasks."""


READING_AT_ONCE = 4
"""Sweeps whose results are read at the same time."""
READING_LIMIT = 600.0
"""Seconds for the results of one sweep; with a million of them it takes a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """A sweep whose results are being read; launchers can connect and wait."""

    job: Job
    files: SweepFiles
    contact: Contact
    listening: socket


class Sweeps:
    """All sweeps of a service."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._jobs = core.directory / "jobs"
        self._certificates = core.directory / "certificate"
        self._site = core.site
        self._running: dict[JobId, RunningSweep] = {}
        self._opening: dict[JobId, _Opening] = {}
        self._unread: list[_Opening] = []
        """Those of which nothing has been read yet."""
        self._closing: list[RunningSweep] = []
        self._over: set[JobId] = set()
        self._changed = Nudge()
        self._urgent = Nudge()
        """Set when something is to be done at once."""

    def files(self, job: Job) -> SweepFiles:
        """Return the directory of the sweep of a job."""
        return SweepFiles(self._jobs / first_job(job) / FOLDER)

    def keep(self, job: Job) -> None:
        """Store a sweep's files. Raises OSError; JobRefusedError when another job runs the same sweep."""
        if job.sweep is None:
            return
        first = first_job(job)
        unfinished = (one.job for one in self._core.state.jobs.values() if not one.state.final)
        at_it = [one.id for one in unfinished if first_job(one) == first]
        if at_it:
            raise JobRefusedError(f"job {at_it[0]} is at this sweep", hint=f"see `koala status {at_it[0]}`")
        self.files(job).keep(job)

    def library(self, job: Job) -> tuple[LaunchFile, ...]:
        """Return a launcher's files; opens the sweep or waits for its results.

        Raises OSError, KoalaError.
        """
        contact = self._open(job)
        settings = {
            "hosts": {"": self._site.control_center.node_address}
            | {one.name: self._site.node_address(one) for one in self._site.clusters},
            "doors": self._doors(),
            "port": contact.port,
            "token": contact.token,
            "fingerprint": certificate.load_or_create(self._certificates).fingerprint,
            "grace": job.components[0].retirement.grace,
            "patience": max(60.0, *map(self._site.lease, self._site.clusters)),
        }
        files = {**node_files("koala_adapter.tasks", "launcher", PROGRAM), SETTINGS: json.dumps(settings).encode()}
        return tuple(LaunchFile(target=name, mode=0o600, content=content) for name, content in files.items())

    def _doors(self) -> dict[str, tuple[str, int]]:
        """Return where launchers at other sites find their gateways, by cluster, as far as these are connected."""
        found = {}
        for name, host in self._core.lrm_hosts.items():
            with suppress(LrmUnreachableError):
                if (door := host.door) is not None:
                    found[name] = door
        return found

    def _open(self, job: Job) -> Contact:
        """Listen for a sweep's launchers; :meth:`run` reads earlier results.

        Raises OSError, KoalaError.
        """
        if job.id in self._opening:
            return self._opening[job.id].contact
        files = self.files(job)
        if job.id in self._running:
            contact = files.contact()
            if contact is None:
                raise AssertionError("an open sweep has a contact")
            return contact
        listening, contact = self._listen(files)
        opening = _Opening(job=job, files=files, contact=contact, listening=listening)
        if (files.directory / RESULTS).exists():
            self._opening[job.id] = opening
            self._unread.append(opening)
            self._note_change()
            return contact
        try:
            self._start(opening, *_read(opening))
        except BaseException:
            listening.close()
            raise
        return contact

    def _listen(self, files: SweepFiles) -> tuple[socket, Contact]:
        known = files.contact()
        token = secrets.token_hex(TOKEN_BYTES) if known is None else known.token
        for port in (*([] if known is None else [known.port]), *lasting_ports()):
            try:
                listening = listening_socket(self._site.control_center.listen, port)
            except OSError as error:
                failure = error
            else:
                contact = Contact(port=port, token=token)
                files.keep_contact(contact)
                for host in self._core.lrm_hosts.values():
                    host.relay_to(port)
                return listening, contact
        raise KoalaError(f"no port to hand out tasks from: {failure.strerror}", hint="see control_center.listen")

    def _start(self, opening: _Opening, expansion: Expansion, book: Book) -> None:
        """Start handing out tasks. Raises OSError, KoalaError."""
        sweep = RunningSweep(opening.job, opening.files, expansion, book, changed=self._note_change)
        sweep.serve(opening.listening, opening.contact, certificate.load_or_create(self._certificates))
        self._running[opening.job.id] = sweep
        self._note_change()

    async def _read_and_start(self, opening: _Opening, limiter: anyio.CapacityLimiter) -> None:
        """Read a sweep's results in a thread and start it."""
        job_id = opening.job.id
        started = False
        try:
            async with limiter:
                with anyio.fail_after(READING_LIMIT):
                    found = await to_thread.run_sync(_read, opening, abandon_on_cancel=True)
            if self._opening.get(job_id) is opening:  # else the job has ended meanwhile
                self._start(opening, *found)
                started = True
        except (OSError, KoalaError) as error:
            # A TimeoutError is an OSError, too, and says nothing.
            why = str(error) or f"its results could not be read within {READING_LIMIT:.0f} s"
            if self._opening.get(job_id) is opening:
                self._end(job_id, 1, f"the sweep cannot go on: {why}")
        finally:
            if self._opening.get(job_id) is opening:
                del self._opening[job_id]
            if not started:
                opening.listening.close()

    def progress(self, job: Job) -> SweepProgress | None:
        """Return the progress of a job's sweep; None: it has none."""
        if job.sweep is None:
            return None
        running = self._running.get(job.id)
        return recorded_progress(self._jobs, job) if running is None else running.progress

    def forget(self, job_id: JobId) -> None:
        """Close the sweep of a job that has ended."""
        sweep = self._running.pop(job_id, None)
        self._opening.pop(job_id, None)
        self._over.discard(job_id)
        if sweep is not None:
            sweep.save()
            self._closing.append(sweep)
            self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        if (
            self._unread
            or self._closing
            or any(one.over for id_, one in self._running.items() if id_ not in self._over)
        ):
            self._urgent.set()

    async def run(self) -> None:
        """Serve sweeps of running jobs until cancelled, then close all."""
        limiter = anyio.CapacityLimiter(READING_AT_ONCE)
        try:
            for record in list(self._core.state.jobs.values()):
                if record.job.runner is RunnerName.SWEEP and record.state in {JobState.LAUNCHING, JobState.RUNNING}:
                    self._reopen(record.job)
            async with anyio.create_task_group() as readers:
                while True:
                    await self._changed.wait()
                    while self._unread:
                        readers.start_soon(self._read_and_start, self._unread.pop(0), limiter)
                    self._end_those_that_are_over()
                    while self._closing:
                        await self._closing.pop().close()
                    self._core.note_change()
                    with anyio.move_on_after(TELLING):
                        await self._urgent.wait()
                    self._urgent.clear()
        finally:
            for opening in self._unread:
                opening.listening.close()
            with anyio.CancelScope(shield=True):
                for sweep in (*self._closing, *self._running.values()):
                    await sweep.close()

    def _reopen(self, job: Job) -> None:
        try:
            self._open(job)
        except (OSError, KoalaError) as error:
            self._end(job.id, 1, f"the sweep cannot go on: {error}")

    def _end_those_that_are_over(self) -> None:
        for job_id, sweep in list(self._running.items()):
            if sweep.over and job_id not in self._over:
                progress = sweep.progress
                self._end(job_id, 1 if progress.failed else 0, end_in_words(progress) if progress.failed else "")

    def _end(self, job_id: JobId, status: int, detail: str) -> None:
        self._over.add(job_id)
        log.info("a sweep is over", job=job_id, status=status, detail=detail)
        end = TaskEnd(reason=EndReason.EXITED, exit_code=status, detail=detail)
        self._core.loop.post(RankEnded(time=self._core.now(), job_id=job_id, rank=None, end=end))


def _read(opening: _Opening) -> tuple[Expansion, Book]:
    """Read tasks and state of a sweep. Raises OSError, KoalaError."""
    sweep = opening.job.sweep
    if sweep is None:
        raise AssertionError("a job with a sweep")
    expansion = opening.files.expansion(sweep)
    return expansion, restored_book(opening.job, opening.files, expansion)
