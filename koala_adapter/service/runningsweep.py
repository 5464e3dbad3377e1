# SPDX-License-Identifier: Apache-2.0
"""One sweep while its job runs: its book, its files, and the launchers that pull its tasks."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from koala_adapter.pull.server import Puller, PullServer, listening_socket, send
from koala_adapter.sweeps.book import Assignment, Book, Entry
from koala_adapter.sweeps.estimate import Pace
from koala_adapter.sweeps.parameters import filled
from koala_adapter.sweeps.progress import MOST_NAMED, SweepProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import Job
    from koala_adapter.service.sweepfiles import Contact, SweepFiles
    from koala_adapter.sweeps.parameters import Expansion
    from koala_adapter.vjm.certificate import Certificate

LARGEST_FRAME = 80 * 1024 * 1024
"""Bytes; an answer has what a launcher keeps of two streams."""
OVER = json.dumps({"over": True}).encode()

log = structlog.get_logger()


@dataclass(slots=True)
class _Launcher:
    """What a connection has told of itself, and what it is at."""

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


class RunningSweep:
    """Hands out the tasks of a sweep and takes in what becomes of them."""

    def __init__(self, job: Job, files: SweepFiles, expansion: Expansion, *, changed: Callable[[], None]) -> None:
        """``changed`` hears of each task that is over. Raises OSError, KoalaError."""
        if job.sweep is None:
            raise AssertionError("a job with a sweep")
        self._job_id = job.id
        self._command = job.components[0].command
        self._files = files
        self._expansion = expansion
        self._changed = changed
        self._pace = Pace()
        self._book = Book(len(expansion), job.sweep.repeats)
        self._book.restored(files.open())
        if job.sweep.continues is not None and job.id not in files.resumed_by:
            self._enter(0, Entry.RESUMED, {"job": job.id, "at": now()})
        self._server: PullServer | None = None
        self._saved = False

    # ---- as the service sees it -------------------------------------------------------------------------------------

    def listen(self, host: str, contact: Contact, certificate: Certificate) -> None:
        """Be there for launchers. Raises OSError when the port is taken."""
        listening = listening_socket(host, contact.port)
        self._server = PullServer(self, bytes.fromhex(contact.token), largest_frame=LARGEST_FRAME)
        self._server.listen(listening, certificate, asyncio.get_running_loop())

    def save(self) -> None:
        """Take in nothing more, and keep how far the sweep is."""
        if not self._saved:
            self._saved = True
            try:
                self._files.close(self.progress, self._job_id)
            except OSError as error:
                log.warning("how far a sweep is cannot be kept", directory=str(self._files.directory), error=str(error))

    async def close(self) -> None:
        """Be there no more."""
        self.save()
        if self._server is not None:
            await self._server.close()

    @property
    def over(self) -> bool:
        """Whether every task is done, or has failed for good."""
        return self._book.over

    @property
    def progress(self) -> SweepProgress:
        """How far the sweep is."""
        book = self._book
        launchers = 0 if self._server is None else len(self._server.pullers)
        return SweepProgress(
            total=book.total,
            done=book.done,
            failed=len(book.failed),
            running=book.out,
            first_failed=tuple(task for task, _ in zip(book.failed, range(MOST_NAMED), strict=False)),
            seconds_left=self._pace.left(tasks=book.left, launchers=launchers),
            directory=str(self._files.directory),
        )

    # ---- as the launchers see it: see Board -------------------------------------------------------------------------

    def came(self, puller: Puller) -> None:
        """See Board; it says who it is first."""

    def work_for(self, puller: Puller) -> bytes | None:
        """See Board."""
        launcher = puller.work
        given = self._book.take()
        if given is None or not isinstance(launcher, _Launcher):
            return None
        launcher.given = given
        argv = list(filled(self._command, self._expansion.row(given.task)))
        return json.dumps({"task": given.task, "attempt": given.attempt, "argv": argv}).encode()

    def heard(self, puller: Puller, frame: bytes) -> None:
        """See Board. Raises ConnectionError, which ends the conversation, where it cannot be understood or kept."""
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
        """Take in what became of a task: of the one that it was given, or of one before the connection was lost."""
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
                **self._files.keep_output(given.task, answer.out, answer.err),
            }
            self._enter(given.task, entry, told)
            self._pace.note(answer.seconds)
        if launcher.given == given:
            launcher.given = None
        self._report()

    def gone(self, puller: Puller) -> None:
        """See Board."""
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
    """Return the time of day as it is written down: seconds since the epoch, in thousandths."""
    return round(time.time(), 3)


def _answer(frame: bytes) -> _Answer:
    """Return what a launcher says of a task. Raises ValueError, KeyError or TypeError for what makes no sense."""
    head, _, output = frame.partition(b"\n")
    said = json.loads(head)
    given = Assignment(int(said["task"]), int(said["attempt"]))
    size = int(said["out"])
    if size + int(said["err"]) != len(output):
        raise ValueError("the output is not as long as was said")
    return _Answer(given, int(said["status"]), float(said["seconds"]), output[:size], output[size:])
