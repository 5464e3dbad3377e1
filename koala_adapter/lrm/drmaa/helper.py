# SPDX-License-Identifier: Apache-2.0
"""The DRMAA helper process: reads requests from stdin and writes results to stdout, as lines.

Started as ``python -m koala_adapter.lrm.drmaa.helper``. It ends when its stdin is closed, so it cannot outlive the
plugin that started it; a request in progress may first be completed, so that the ids of a submission still reach the
ledger. In order: the DRMAA session, the program.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import ProtocolError
from koala_adapter.lrm.drmaa.ledger import JobEnd, Ledger
from koala_adapter.lrm.drmaa.libraries import OTHER, FailureKind, is_ending, kind_of_exception, library_of
from koala_adapter.lrm.drmaa.protocol import (
    LONGEST_LINE,
    AbandonBatches,
    ControlAction,
    ControlJobs,
    Controlled,
    Done,
    Failure,
    JobStatus,
    ListBatches,
    Listed,
    ListedBatch,
    ListedJob,
    NumberedResult,
    Opened,
    OpenSession,
    ReachLrm,
    Refusal,
    SubmitJobs,
    Submitted,
    decode_request,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from koala_adapter.lrm.drmaa.ledger import LedgerBatch
    from koala_adapter.lrm.drmaa.protocol import NumberedRequest, Request, Result, Template


# -- The DRMAA session: the only part that uses the drmaa library --------------------------------------------
# The library is imported when the session is opened, not with this module: it loads libdrmaa at import, and may fail
# there.

LOADER_VARIABLES = ("GLIBC_TUNABLES", "LD_PRELOAD", "DRMAA_LIBRARY_PATH", "PYTHONPATH", "LC_ALL")
"""Needed to load libdrmaa into Python, which takes its encoding from LC_ALL, and of no use to any job: slurm-drmaa, and
Grid Engine's `-V`, pass them on."""

NOT_YET = frozenset(
    {
        JobStatus.UNDETERMINED,
        JobStatus.QUEUED_ACTIVE,
        JobStatus.SYSTEM_ON_HOLD,
        JobStatus.USER_ON_HOLD,
        JobStatus.USER_SYSTEM_ON_HOLD,
    }
)
"""States of jobs that have not begun: one that is said to end already has ended, because nothing of it takes time."""

WATCHED = {JobStatus.DONE, JobStatus.FAILED, JobStatus.GONE}
NO_WAIT = 0
PROBE_ID = "999999999"
"""Id of a job that never was."""

COMMUNICATION = frozenset({"DrmCommunicationException", "TryLaterException", "NoActiveSessionException"})
"""Exceptions that mean no answer; what else the library complains of is one."""


class HelperSession:
    """Answers requests with one DRMAA session. Never raises: what goes wrong becomes a Failure."""

    def __init__(self) -> None:
        self._drmaa: Any = None
        self._session: Any = None
        self._ledger: Ledger | None = None
        self._library = OTHER

    def answer(self, request: Request) -> Result:
        """Carry out one request."""
        try:
            return self._answer(request)
        except Exception as error:  # noqa: BLE001 - the library raises classes that do not exist before it is loaded
            return _failure(error)

    def close(self) -> None:
        """End the session; jobs go on."""
        if self._session is not None:
            self._session.exit()
            self._session = None
        if self._ledger is not None:
            self._ledger.close()

    def _answer(self, request: Request) -> Result:
        match request:
            case OpenSession():
                return self._open(request)
            case SubmitJobs():
                return self._submit(request)
            case ControlJobs():
                return self._control(request)
            case ListBatches():
                return self._list(request)
            case ReachLrm():
                self._reach()
                return Done()
            case AbandonBatches():
                if self._ledger is not None:
                    self._ledger.settle(request.keys)
                return Done()

    def _open(self, request: OpenSession) -> Result:
        if request.ledger is not None:
            if self._ledger is None:
                self._ledger = Ledger(Path(request.ledger))
            self._ledger.tidy(time.time())
        if self._drmaa is None:
            try:
                self._drmaa = importlib.import_module("drmaa")
            except (RuntimeError, OSError, ImportError) as error:
                return Failure(kind=FailureKind.LIBRARY, message=str(error))
            for variable in LOADER_VARIABLES:
                os.environ.pop(variable, None)
        session = self._drmaa.Session()
        if self._session is None:
            session.initialize(request.contact or None)
            self._session = session
        self._library = library_of(str(session.drmsInfo), str(session.drmaaImplementation))
        return Opened(
            system=str(session.drmsInfo),
            implementation=str(session.drmaaImplementation),
            version=str(session.version),
            contact=str(session.contact),
        )

    # -- submission ----------------------------------------------------------------------------------------------

    def _submit(self, request: SubmitJobs) -> Result:
        if self._ledger is not None and request.first == 1:
            self._ledger.intend(
                request.template.name,
                request.total or request.count,
                time.time(),
                processors=request.template.processors,
            )
        return self._submit_bulk(request) if request.index_variable is None else self._submit_singly(request)

    def _submit_bulk(self, request: SubmitJobs) -> Result:
        key, count = request.template.name, request.count
        template = self._template(request.template)
        try:
            ids = tuple(str(id_) for id_ in self._session.runBulkJobs(template, 1, count, 1))
        except Exception as error:  # noqa: BLE001 - see `answer`
            failure = _failure(error)
            if failure.kind is not FailureKind.UNAVAILABLE:
                self._settle(key)
            return failure
        finally:
            self._session.deleteJobTemplate(template)
        self._add(key, ids)
        if len(ids) != count:
            message = f"{count} jobs were asked for, {len(ids)} ids were returned"
            return Failure(kind=FailureKind.UNAVAILABLE, message=message)
        return Submitted(ids=ids)

    def _submit_singly(self, request: SubmitJobs) -> Result:
        """Submit one job for each index of a portion. When one is refused, those of the portion before it are ended."""
        key, ids = request.template.name, list[str]()
        for index in range(request.first, request.first + request.count):
            template = self._template(request.template, index)
            template.jobEnvironment = {str(request.index_variable): str(index)}
            try:
                ids.append(str(self._session.runJob(template)))
            except Exception as error:  # noqa: BLE001 - see `answer`
                failure = _failure(error)
                if failure.kind is not FailureKind.UNAVAILABLE:
                    self._take_back(key, ids)
                return failure
            finally:
                self._session.deleteJobTemplate(template)
            self._add(key, ids[-1:])
        return Submitted(ids=tuple(ids))

    def _take_back(self, key: str, ids: list[str]) -> None:
        """End the jobs of a partly refused submission; they stay listed until they have ended."""
        self._settle(key)
        if ids:
            self._control(ControlJobs(action=ControlAction.TERMINATE, ids=tuple(ids)))

    def _template(self, wanted: Template, index: int | None = None) -> Any:  # noqa: ANN401 - the library has no types
        template = self._session.createJobTemplate()
        template.jobName = wanted.name
        template.remoteCommand = wanted.remote_command
        if wanted.arguments:
            template.args = list(wanted.arguments)
        template.workingDirectory = wanted.working_directory
        number = template.PARAMETRIC_INDEX if index is None else str(index)
        template.outputPath = f":{wanted.output_path.replace('{index}', number)}"
        template.joinFiles = True
        states = self._drmaa.JobSubmissionState
        template.jobSubmissionState = states.HOLD_STATE if wanted.held else states.ACTIVE_STATE
        if wanted.native_specification:
            template.nativeSpecification = wanted.native_specification
        return template

    # -- control -------------------------------------------------------------------------------------------------

    def _control(self, request: ControlJobs) -> Result:
        refusals: list[Refusal] = []
        ended: list[str] = []
        for id_ in request.ids:
            try:
                self._session.control(id_, request.action.value)
            except Exception as error:  # noqa: BLE001 - see `answer`
                failure = _failure(error)
                if failure.kind is FailureKind.UNAVAILABLE:
                    return failure
                if request.action is ControlAction.TERMINATE:
                    if failure.kind is FailureKind.NOT_FOUND:
                        ended.append(id_)
                    if is_ending(failure.message):
                        continue
                refusals.append(Refusal(id=id_, kind=failure.kind, message=failure.message))
        self._note_ends(ended)
        return Controlled(refusals=tuple(refusals))

    def _note_ends(self, ids: Iterable[str]) -> None:
        """Record the ends of jobs that the library still shows as not begun.

        slurm-drmaa does so for ever with elements of a bulk that were cancelled while they waited.
        """
        wanted = set(ids)
        if self._ledger is None or not wanted:
            return
        live = {id_ for batch in self._ledger.batches().values() for id_ in batch.live()}
        gone = [id_ for id_ in sorted(wanted & live) if self._status(id_) in NOT_YET]
        self._ledger.end({id_: JobEnd(at=time.time()) for id_ in gone})

    # -- reading -------------------------------------------------------------------------------------------------

    def _list(self, request: ListBatches) -> Result:
        if self._ledger is None:
            return Failure(kind=FailureKind.UNSUPPORTED, message="this helper keeps no ledger")
        self._ledger.tidy(time.time())
        batches = list(self._ledger.batches(request.prefix).values())
        if not any(batch.live() for batch in batches):
            self._reach()
        return Listed(batches=tuple(self._look(batch, self._ledger) for batch in batches))

    def _reach(self) -> None:
        """Raise when the LRM does not answer; an empty list must not mean that nobody was asked."""
        try:
            self._session.jobStatus(PROBE_ID)
        except Exception as error:
            if type(error).__name__ in COMMUNICATION:
                raise

    def _look(self, batch: LedgerBatch, ledger: Ledger) -> ListedBatch:
        ends = dict(batch.ends)
        states: dict[str, JobStatus] = {}
        for id_ in batch.live():
            states[id_] = status = self._status(id_)
            if status in WATCHED:
                ends[id_] = self._end(id_, status)
                ledger.end({id_: ends[id_]})
        jobs = tuple(
            _ended(id_, ends[id_]) if id_ in ends else ListedJob(id=id_, status=states[id_]) for id_ in batch.ids
        )
        return ListedBatch(
            key=batch.key,
            count=batch.count,
            submitted_at=batch.submitted_at,
            processors=batch.processors,
            jobs=jobs,
        )

    def _status(self, id_: str) -> JobStatus:
        try:
            return JobStatus(str(self._session.jobStatus(id_)))
        except ValueError:
            return JobStatus.UNDETERMINED
        except Exception as error:
            if _failure(error).kind is FailureKind.NOT_FOUND:
                return JobStatus.GONE
            raise

    def _end(self, id_: str, status: JobStatus) -> JobEnd:
        """Return how a job ended; the library knows nothing of jobs of an earlier session."""
        at, failed = time.time(), status is JobStatus.FAILED
        try:
            info = self._session.wait(id_, NO_WAIT)
        except Exception as error:
            if type(error).__name__ in COMMUNICATION:
                raise
            return JobEnd(at=at, failed=failed)
        signal = _signal_number(str(info.terminatedSignal)) if info.hasSignal else None
        exited = (
            bool(info.hasExited) and not info.wasAborted and (info.exitStatus != 0 or self._believed(failed=failed))
        )
        return JobEnd(
            at=at,
            failed=failed,
            exit_code=int(info.exitStatus) if exited else None,
            signal=signal,
            aborted=bool(info.wasAborted),
        )

    def _believed(self, *, failed: bool) -> bool:
        """Return whether exit code 0 can be trusted."""
        return self._library.tells_success and not failed

    def _add(self, key: str, ids: Iterable[str]) -> None:
        if self._ledger is not None:
            self._ledger.add(key, ids)

    def _settle(self, key: str) -> None:
        if self._ledger is not None:
            self._ledger.settle([key])


def _failure(error: Exception) -> Failure:
    name = type(error).__name__
    text = " ".join(str(error).split())
    code, separator, rest = text.partition(": ")
    if separator and code.startswith("code "):
        text = rest
    return Failure(kind=kind_of_exception(name, text), message=text or name)


def _ended(id_: str, end: JobEnd) -> ListedJob:
    return ListedJob(
        id=id_,
        status=JobStatus.FAILED if end.failed else JobStatus.DONE,
        exit_code=end.exit_code,
        signal=end.signal,
        aborted=end.aborted,
        ended_at=end.at,
    )


def _signal_number(name: str) -> int | None:
    """Return the number of a signal that DRMAA names ``SIGKILL`` or, for want of a name, ``9``."""
    signals = importlib.import_module("signal")
    if name.isdigit():
        return int(name)
    number = getattr(signals, name if name.startswith("SIG") else f"SIG{name}", None)
    return int(number) if number is not None else None


# -- The program ---------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Requests = queue.SimpleQueue[NumberedRequest | None]

LAST_REQUEST_SECONDS = 10.0
"""How long a request may still take after our parent has gone."""

EXIT_ORPHANED = 3
EXIT_GARBLED = 4


def main() -> int:
    """Answer requests until stdin ends."""
    results = _claim_stdout()
    requests: Requests = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), name="requests", daemon=True).start()
    session = HelperSession()
    while (request := requests.get()) is not None:
        result = session.answer(request.request)
        try:
            results.write(encode(NumberedResult(number=request.number, result=result)))
            results.flush()
        except OSError:
            break
    session.close()
    return 0


def _claim_stdout() -> BinaryIO:
    """Reserve stdout for results; libdrmaa's own output goes to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(descriptor, "wb")


def _read(stream: BinaryIO, requests: Requests) -> None:
    """Read requests in a thread of its own, because the main one may be held up in a library call when stdin ends."""
    while line := stream.readline(LONGEST_LINE):
        try:
            requests.put(decode_request(line))
        except ProtocolError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201 - stderr is our log
            os._exit(EXIT_GARBLED)
    requests.put(None)
    timer = threading.Timer(LAST_REQUEST_SECONDS, os._exit, (EXIT_ORPHANED,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
