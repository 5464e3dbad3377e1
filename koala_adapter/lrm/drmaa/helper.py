# SPDX-License-Identifier: Apache-2.0
"""The DRMAA helper process: reads requests from stdin and writes results to stdout, as lines.

Started as ``python -m koala_adapter.lrm.drmaa.helper``. It ends when its stdin is closed, so it cannot outlive the
plugin that started it; a request in progress may first be completed, so that the ids of a submission still reach the
ledger. In order: the ledger of submissions, the DRMAA session, the program.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import queue
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import ProtocolError
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
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from koala_adapter.lrm.drmaa.protocol import NumberedRequest, Request, Result, Template


# -- The ledger: a record of submissions ---------------------------------------------------------------------
# DRMAA cannot find a job by its name. So the intent (the key) is on disk before the jobs go to the LRM, their ids right
# after. Jobs of a batch that has fewer ids than jobs are *unknown*: they may be in the LRM. Several helpers may use one
# ledger, one after another or at the same time; each operation holds a lock, and each line is complete or ignored.

KEEP_SECONDS = 24 * 3600.0
"""How long batches are kept after their last job has ended."""

COMPACTED_EVERY = 3600.0
"""Seconds after which the ledger is rid again of what nobody can want to know."""

KEEP_UNKNOWN_SECONDS = 14 * 24 * 3600.0
"""How long batches of unknown outcome are kept: longer than an LRM will keep a job waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What is known of a job's end."""

    at: float
    """Time at which we saw that it had ended."""
    failed: bool = False
    exit_code: int | None = None
    signal: int | None = None
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBatch:
    """One submission."""

    key: str
    count: int
    submitted_at: float
    ids: tuple[str, ...] = ()
    ends: Mapping[str, JobEnd]

    def live(self) -> tuple[str, ...]:
        """Ids of jobs whose end has not been seen."""
        return tuple(id_ for id_ in self.ids if id_ not in self.ends)

    def forgettable(self, now: float) -> bool:
        """Tell whether nobody can want to know of this batch any more."""
        if len(self.ids) < self.count:
            return now - self.submitted_at > KEEP_UNKNOWN_SECONDS
        return not self.live() and all(now - end.at > KEEP_SECONDS for end in self.ends.values())


def parse_ledger(text: str) -> dict[str, LedgerBatch]:
    """Return batches by key, in the order of their submission.

    Lines that cannot be read (torn by a crash) are skipped.
    """
    batches: dict[str, LedgerBatch] = {}
    for line in text.splitlines():
        try:
            _apply(batches, json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
    return batches


def _apply(batches: dict[str, LedgerBatch], record: Mapping[str, object]) -> None:
    key = str(record["key"])
    match record["what"]:
        case "intent":
            batches[key] = LedgerBatch(
                key=key, count=int(str(record["count"])), submitted_at=float(str(record["at"])), ends={}
            )
        case "ids":
            ids = record["ids"]
            if isinstance(ids, list):
                batches[key] = replace(batches[key], ids=tuple(str(id_) for id_ in ids))
        case "job":
            batches[key] = replace(batches[key], ids=(*batches[key].ids, str(record["id"])))
        case "cut":
            batches[key] = replace(batches[key], count=len(batches[key].ids))
        case "abandoned" if key in batches and batches[key].ids:
            batches[key] = replace(batches[key], count=len(batches[key].ids))
        case "refused" | "abandoned":
            batches.pop(key, None)
        case "end":
            end = JobEnd(
                at=float(str(record["at"])),
                failed=bool(record.get("failed")),
                exit_code=_number(record.get("exit_code")),
                signal=_number(record.get("signal")),
                aborted=bool(record.get("aborted")),
            )
            batches[key] = replace(batches[key], ends={**batches[key].ends, str(record["id"]): end})
        case _:
            return


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def intent_record(key: str, count: int, now: float) -> dict[str, object]:
    """Record: a bulk of this name is about to be submitted."""
    return {"what": "intent", "key": key, "count": count, "at": now}


def ids_record(key: str, ids: Iterable[str]) -> dict[str, object]:
    """Record: the LRM took the bulk and gave these ids."""
    return {"what": "ids", "key": key, "ids": list(ids)}


def job_record(key: str, id_: str) -> dict[str, object]:
    """Record: the LRM took the next of jobs that are submitted one by one."""
    return {"what": "job", "key": key, "id": id_}


def cut_record(key: str) -> dict[str, object]:
    """Record: the LRM refused one of several jobs; there are no more of them than have ids."""
    return {"what": "cut", "key": key}


def refused_record(key: str) -> dict[str, object]:
    """Record: the LRM refused the bulk; nothing of it exists."""
    return {"what": "refused", "key": key}


def abandoned_record(key: str) -> dict[str, object]:
    """Record: nobody wants to hear of this batch of unknown outcome any more."""
    return {"what": "abandoned", "key": key}


def end_record(key: str, id_: str, end: JobEnd) -> dict[str, object]:
    """Record: this job has ended."""
    return {
        "what": "end",
        "key": key,
        "id": id_,
        "at": end.at,
        "failed": end.failed,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "aborted": end.aborted,
    }


def batch_records(batch: LedgerBatch) -> list[dict[str, object]]:
    """Return the records that say all about a batch."""
    records = [intent_record(batch.key, batch.count, batch.submitted_at)]
    if batch.ids:
        records.append(ids_record(batch.key, batch.ids))
    return records + [end_record(batch.key, id_, end) for id_, end in batch.ends.items()]


class Ledger:
    """The ledger file. Every method is one locked step; :meth:`append` returns when the records are on disk."""

    def __init__(self, path: Path) -> None:
        """``path`` need not exist; its directory must."""
        self.path = path
        self._lock_path = path.with_name(path.name + ".lock")
        self._compacted_at: float | None = None

    def read(self) -> dict[str, LedgerBatch]:
        """Return all batches by key."""
        with self._locked():
            return self._read()

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Add records and return when they are on disk."""
        with self._locked():
            text = self._lines(records)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size and _last_byte(file.fileno(), size) != b"\n":
                    text = b"\n" + text
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if not size:
                self._sync_directory()

    def compact_if_due(self, now: float) -> None:
        """Compact the file at first, and then once in COMPACTED_EVERY seconds: each listing reads all of it."""
        if self._compacted_at is None or not 0 <= now - self._compacted_at < COMPACTED_EVERY:
            self.compact(now)
            self._compacted_at = now

    def compact(self, now: float) -> None:
        """Leave out what nobody can want to know any more."""
        with self._locked():
            kept = [batch for batch in self._read().values() if not batch.forgettable(now)]
            new = self.path.with_name(self.path.name + ".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(self._lines(batch_records(batch)) for batch in kept)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            self._sync_directory()

    def _read(self) -> dict[str, LedgerBatch]:
        try:
            return parse_ledger(self.path.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return {}

    @staticmethod
    def _lines(records: Iterable[Mapping[str, object]]) -> bytes:
        return b"".join(json.dumps(dict(record)).encode() + b"\n" for record in records)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _sync_directory(self) -> None:
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _last_byte(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, 1, size - 1)


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
                self._record([abandoned_record(key) for key in request.keys])
                return Done()

    def _open(self, request: OpenSession) -> Result:
        if request.ledger is not None:
            self._ledger = Ledger(Path(request.ledger))
            self._ledger.compact_if_due(time.time())
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
        key, count = request.template.name, request.count
        self._record([intent_record(key, count, time.time())])
        return self._submit_bulk(request) if request.index_variable is None else self._submit_singly(request)

    def _submit_bulk(self, request: SubmitJobs) -> Result:
        key, count = request.template.name, request.count
        template = self._template(request.template)
        try:
            ids = tuple(str(id_) for id_ in self._session.runBulkJobs(template, 1, count, 1))
        except Exception as error:  # noqa: BLE001 - see `answer`
            failure = _failure(error)
            if failure.kind is not FailureKind.UNAVAILABLE:
                self._record([refused_record(key)])
            return failure
        finally:
            self._session.deleteJobTemplate(template)
        self._record([ids_record(key, ids)])
        if len(ids) != count:
            message = f"{count} jobs were asked for, {len(ids)} ids were returned"
            return Failure(kind=FailureKind.UNAVAILABLE, message=message)
        return Submitted(ids=ids)

    def _submit_singly(self, request: SubmitJobs) -> Result:
        """Submit one job for each index. When one is refused, those before it are ended."""
        key, ids = request.template.name, list[str]()
        for index in range(1, request.count + 1):
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
            self._record([job_record(key, ids[-1])])
        return Submitted(ids=tuple(ids))

    def _take_back(self, key: str, ids: list[str]) -> None:
        """End the jobs of a submission that was refused in the middle; they are listed until they have ended."""
        self._record([cut_record(key) if ids else refused_record(key)])
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
        """Remember the end of jobs that need no ending any more, although the library shows them as not begun.

        slurm-drmaa does so for ever with elements of a bulk that were cancelled while they waited.
        """
        wanted = set(ids)
        if self._ledger is None or not wanted:
            return
        for batch in self._ledger.read().values():
            gone = [id_ for id_ in batch.live() if id_ in wanted and self._status(id_) in NOT_YET]
            self._record([end_record(batch.key, id_, JobEnd(at=time.time())) for id_ in gone])

    # -- reading -------------------------------------------------------------------------------------------------

    def _list(self, request: ListBatches) -> Result:
        if self._ledger is None:
            return Failure(kind=FailureKind.UNSUPPORTED, message="this helper keeps no ledger")
        self._ledger.compact_if_due(time.time())
        batches = [batch for key, batch in self._ledger.read().items() if key.startswith(request.prefix)]
        if not any(batch.live() for batch in batches):
            self._reach()
        return Listed(batches=tuple(self._look(batch) for batch in batches))

    def _reach(self) -> None:
        """Raise when the LRM does not answer; an empty list must not mean that nobody was asked."""
        try:
            self._session.jobStatus(PROBE_ID)
        except Exception as error:
            if type(error).__name__ in COMMUNICATION:
                raise

    def _look(self, batch: LedgerBatch) -> ListedBatch:
        ends = dict(batch.ends)
        states: dict[str, JobStatus] = {}
        for id_ in batch.live():
            states[id_] = status = self._status(id_)
            if status in WATCHED:
                ends[id_] = end = self._end(id_, status)
                self._record([end_record(batch.key, id_, end)])
        jobs = tuple(
            _ended(id_, ends[id_]) if id_ in ends else ListedJob(id=id_, status=states[id_]) for id_ in batch.ids
        )
        return ListedBatch(key=batch.key, count=batch.count, submitted_at=batch.submitted_at, jobs=jobs)

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
        """Ask for the end of a job; jobs of an earlier session have none. Success is never taken from `wait` alone."""
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
        """Tell whether exit code 0 can be believed."""
        return self._library.tells_success and not failed

    def _record(self, records: list[dict[str, object]]) -> None:
        if self._ledger is not None and records:
            self._ledger.append(records)


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
    """Keep stdout for results alone: what libdrmaa prints goes to stderr."""
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
