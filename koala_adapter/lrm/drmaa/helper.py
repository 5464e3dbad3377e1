# SPDX-License-Identifier: Apache-2.0
"""The DRMAA helper process: reads requests from stdin and writes results to stdout, as lines.

Started as ``python -m koala_adapter.lrm.drmaa.helper``, and at a site by what ``site_command`` of ``client`` makes of
it. It ends when its stdin is closed, so it cannot outlive the plugin that started it; a request in progress may first
be completed, so that the ids of a submission still reach the ledger. In order: the DRMAA session, the program.

Python 3.6 or newer, and nothing of koala but ``complaints`` and ``ledger``: requests and results are the dictionaries
of JSON, whose keys are the fields of the classes of ``protocol``.
"""

import importlib
import json
import os
import queue
import signal
import sys
import threading
import time

from koala_adapter.lrm.drmaa.complaints import FailureKind, is_ending, kind_of_exception
from koala_adapter.lrm.drmaa.ledger import JobEnd, Ledger, LedgerBatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Optional

    Message = Dict[str, Any]


# -- The DRMAA session: the only part that uses the drmaa library --------------------------------------------
# The library is imported when the session is opened, not with this module: it loads libdrmaa at import, and may fail
# there.

LOADER_VARIABLES = ("GLIBC_TUNABLES", "LD_PRELOAD", "DRMAA_LIBRARY_PATH", "PYTHONPATH", "LC_ALL")
"""Needed to load libdrmaa into Python, which takes its encoding from LC_ALL, and of no use to any job: slurm-drmaa, and
Grid Engine's `-V`, pass them on."""

UNDETERMINED, DONE, FAILED, GONE = "undetermined", "done", "failed", "gone"
NOT_YET = frozenset({UNDETERMINED, "queued_active", "system_on_hold", "user_on_hold", "user_system_on_hold"})
"""States of jobs that have not begun: one that is said to end already has ended, because nothing of it takes time."""

BEGUN = frozenset({"running", "system_suspended", "user_suspended", "user_system_suspended"})
WATCHED = frozenset({DONE, FAILED, GONE})
NO_WAIT = 0
TERMINATE = "terminate"
PROBE_ID = "999999999"
"""Id of a job that never was."""

COMMUNICATION = frozenset({"DrmCommunicationException", "TryLaterException", "NoActiveSessionException"})
"""Exceptions that mean no answer; what else the library complains of is one."""


class HelperSession:
    """Answers requests with one DRMAA session. Never raises: what goes wrong becomes a failure."""

    def __init__(self) -> None:
        self._drmaa: "Any" = None
        self._session: "Any" = None
        self._ledger: "Optional[Ledger]" = None
        self._answers: "Dict[str, Callable[[Message], Message]]" = {
            "open": self._open,
            "submit": self._submit,
            "control": self._control,
            "list": self._list,
            "reach": self._reached,
            "abandon": self._abandon,
        }

    def answer(self, request: "Message") -> "Message":
        """Carry out one request."""
        try:
            return self._answers[request["op"]](request)
        except Exception as error:  # noqa: BLE001 - the library raises classes that do not exist before it is loaded
            return _failure(error)

    def close(self) -> None:
        """End the session; jobs go on."""
        if self._session is not None:
            self._session.exit()
            self._session = None
        if self._ledger is not None:
            self._ledger.close()

    def _open(self, request: "Message") -> "Message":
        if request["ledger"] is not None:
            if self._ledger is None:
                self._ledger = Ledger(request["ledger"])
            self._ledger.tidy(time.time())
        if self._drmaa is None:
            try:
                self._drmaa = importlib.import_module("drmaa")
            except (RuntimeError, OSError, ImportError) as error:
                return failure(FailureKind.LIBRARY, str(error))
            for variable in LOADER_VARIABLES:
                os.environ.pop(variable, None)
        session = self._drmaa.Session()
        if self._session is None:
            session.initialize(request["contact"] or None)
            self._session = session
        return {
            "result": "opened",
            "system": str(session.drmsInfo),
            "implementation": str(session.drmaaImplementation),
            "version": str(session.version),
            "contact": str(session.contact),
        }

    def _reached(self, _request: "Message") -> "Message":
        self._reach()
        return {"result": "done"}

    def _abandon(self, request: "Message") -> "Message":
        if self._ledger is not None:
            self._ledger.settle(request["keys"])
        return {"result": "done"}

    # -- submission ----------------------------------------------------------------------------------------------

    def _submit(self, request: "Message") -> "Message":
        wanted = request["template"]
        if self._ledger is not None and request["first"] == 1:
            total = request["total"] or request["count"]
            self._ledger.intend(wanted["name"], total, time.time(), processors=wanted["processors"])
        return self._submit_bulk(request) if request["index_variable"] is None else self._submit_singly(request)

    def _submit_bulk(self, request: "Message") -> "Message":
        key, count = request["template"]["name"], request["count"]
        template = self._template(request["template"])
        try:
            ids = tuple(str(id_) for id_ in self._session.runBulkJobs(template, 1, count, 1))
        except Exception as error:  # noqa: BLE001 - see `answer`
            failed = _failure(error)
            if failed["kind"] != FailureKind.UNAVAILABLE:
                self._settle(key)
            return failed
        finally:
            self._session.deleteJobTemplate(template)
        self._add(key, ids)
        if len(ids) != count:
            message = f"{count} jobs were asked for, {len(ids)} ids were returned"
            return failure(FailureKind.UNAVAILABLE, message)
        return {"result": "submitted", "ids": ids}

    def _submit_singly(self, request: "Message") -> "Message":
        """Submit one job for each index of a portion. When one is refused, those of the portion before it are ended."""
        key = request["template"]["name"]
        ids: "List[str]" = []
        for index in range(request["first"], request["first"] + request["count"]):
            template = self._template(request["template"], index)
            template.jobEnvironment = {request["index_variable"]: str(index)}
            try:
                ids.append(str(self._session.runJob(template)))
            except Exception as error:  # noqa: BLE001 - see `answer`
                failed = _failure(error)
                if failed["kind"] != FailureKind.UNAVAILABLE:
                    self._take_back(key, ids)
                return failed
            finally:
                self._session.deleteJobTemplate(template)
            self._add(key, ids[-1:])
        return {"result": "submitted", "ids": ids}

    def _take_back(self, key: str, ids: "List[str]") -> None:
        """End the jobs of a partly refused submission; they stay listed until they have ended."""
        self._settle(key)
        if ids:
            self._control({"action": TERMINATE, "ids": ids})

    def _template(self, wanted: "Message", index: "Optional[int]" = None) -> "Any":  # noqa: ANN401 - the library has no types
        template = self._session.createJobTemplate()
        template.jobName = wanted["name"]
        template.remoteCommand = wanted["remote_command"]
        if wanted["arguments"]:
            template.args = wanted["arguments"]
        template.workingDirectory = wanted["working_directory"]
        number = template.PARAMETRIC_INDEX if index is None else str(index)
        template.outputPath = ":" + wanted["output_path"].replace("{index}", number)
        template.joinFiles = True
        states = self._drmaa.JobSubmissionState
        template.jobSubmissionState = states.HOLD_STATE if wanted["held"] else states.ACTIVE_STATE
        if wanted["native_specification"]:
            template.nativeSpecification = wanted["native_specification"]
        return template

    # -- control -------------------------------------------------------------------------------------------------

    def _control(self, request: "Message") -> "Message":
        refusals: "List[Message]" = []
        ended: "List[str]" = []
        for id_ in request["ids"]:
            try:
                self._session.control(id_, request["action"])
            except Exception as error:  # noqa: BLE001 - see `answer`
                failed = _failure(error)
                if failed["kind"] == FailureKind.UNAVAILABLE:
                    return failed
                if request["action"] == TERMINATE:
                    if failed["kind"] == FailureKind.NOT_FOUND:
                        ended.append(id_)
                    if is_ending(failed["message"]):
                        continue
                refusals.append({"id": id_, "kind": failed["kind"], "message": failed["message"]})
        self._note_ends(ended)
        return {"result": "controlled", "refusals": refusals}

    def _note_ends(self, ids: "Iterable[str]") -> None:
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

    def _list(self, request: "Message") -> "Message":
        if self._ledger is None:
            return failure(FailureKind.UNSUPPORTED, "this helper keeps no ledger")
        self._ledger.tidy(time.time())
        batches = list(self._ledger.batches(request["prefix"]).values())
        if not any(batch.live() for batch in batches):
            self._reach()
        looked = [self._look(batch, self._ledger, trusted=request["tells_success"]) for batch in batches]
        return {"result": "listed", "batches": looked}

    def _reach(self) -> None:
        """Raise when the LRM does not answer: an empty list must mean that there are no jobs."""
        try:
            self._session.jobStatus(PROBE_ID)
        except Exception as error:
            if type(error).__name__ in COMMUNICATION:
                raise

    def _look(self, batch: "LedgerBatch", ledger: Ledger, *, trusted: bool) -> "Message":
        ends = dict(batch.ends)
        states: "Dict[str, str]" = {}
        for id_ in batch.live():
            states[id_] = status = self._status(id_)
            if status in WATCHED:
                ends[id_] = self._end(id_, status, trusted=trusted)
                ledger.end({id_: ends[id_]})
        jobs = [_ended(id_, ends[id_]) if id_ in ends else {"id": id_, "status": states[id_]} for id_ in batch.ids]
        return {
            "key": batch.key,
            "count": batch.size,
            "submitted_at": batch.submitted_at,
            "processors": batch.processors,
            "jobs": jobs,
        }

    def _status(self, id_: str) -> str:
        try:
            status = str(self._session.jobStatus(id_))
        except Exception as error:
            if _failure(error)["kind"] == FailureKind.NOT_FOUND:
                return GONE
            raise
        return status if status in NOT_YET | BEGUN | WATCHED else UNDETERMINED

    def _end(self, id_: str, status: str, *, trusted: bool) -> JobEnd:
        """Return how a job ended; the library knows nothing of jobs of an earlier session.

        ``trusted``: exit code 0 of one that has not failed is a success.
        """
        at, failed = time.time(), status == FAILED
        try:
            info = self._session.wait(id_, NO_WAIT)
        except Exception as error:
            if type(error).__name__ in COMMUNICATION:
                raise
            return JobEnd(at=at, failed=failed)
        number = _signal_number(str(info.terminatedSignal)) if info.hasSignal else None
        believed = info.exitStatus != 0 or (trusted and not failed)
        exited = bool(info.hasExited) and not info.wasAborted and believed
        return JobEnd(
            at=at,
            failed=failed,
            exit_code=int(info.exitStatus) if exited else None,
            signal=number,
            aborted=bool(info.wasAborted),
        )

    def _add(self, key: str, ids: "Iterable[str]") -> None:
        if self._ledger is not None:
            self._ledger.add(key, ids)

    def _settle(self, key: str) -> None:
        if self._ledger is not None:
            self._ledger.settle([key])


def failure(kind: FailureKind, message: str) -> "Message":
    """Return the result of a request that failed."""
    return {"result": "failure", "kind": kind, "message": message}


def _failure(error: Exception) -> "Message":
    name = type(error).__name__
    text = " ".join(str(error).split())
    code, separator, rest = text.partition(": ")
    if separator and code.startswith("code "):
        text = rest
    return failure(kind_of_exception(name, text), text or name)


def _ended(id_: str, end: JobEnd) -> "Message":
    return {
        "id": id_,
        "status": FAILED if end.failed else DONE,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "aborted": end.aborted,
        "ended_at": end.at,
    }


def _signal_number(name: str) -> "Optional[int]":
    """Return the number of a signal that DRMAA names ``SIGKILL`` or, for want of a name, ``9``."""
    if name.isdigit():
        return int(name)
    number = getattr(signal, name if name.startswith("SIG") else "SIG" + name, None)
    return int(number) if number is not None else None


# -- The program ---------------------------------------------------------------------------------------------

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes; 100,000 jobs in one listing are about 20 MiB."""
LAST_REQUEST_SECONDS = 10.0
"""How long a request may still take after our parent has gone."""

EXIT_ORPHANED = 3
EXIT_GARBLED = 4


def main() -> int:
    """Answer requests until stdin ends."""
    results = _claim_stdout()
    requests: "queue.Queue[Optional[Message]]" = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), name="requests", daemon=True).start()
    session = HelperSession()
    while True:
        request = requests.get()
        if request is None:
            break
        answer = {"number": request["number"], "result": session.answer(request["request"])}
        try:
            results.write(json.dumps(answer).encode() + b"\n")
            results.flush()
        except OSError:
            break
    session.close()
    return 0


def _claim_stdout() -> "BinaryIO":
    """Reserve stdout for results; libdrmaa's own output goes to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(descriptor, "wb")


def _read(stream: "BinaryIO", requests: "queue.Queue[Optional[Message]]") -> None:
    """Read requests in a thread of its own, because the main one may be held up in a library call when stdin ends."""
    while True:
        line = stream.readline(LONGEST_LINE)
        if not line:
            break
        try:
            found = json.loads(line.decode())
            requests.put({"number": int(found["number"]), "request": dict(found["request"])})
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            print("line of a request not understood: {}".format(error), file=sys.stderr, flush=True)  # noqa: T201 - stderr is our log
            os._exit(EXIT_GARBLED)
    requests.put(None)
    timer = threading.Timer(LAST_REQUEST_SECONDS, os._exit, (EXIT_ORPHANED,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
