# SPDX-License-Identifier: Apache-2.0
"""Explanations of the jobs of a batch system (``koala explain``): made from the mirror, asked over Unix sockets.

In this order: why a job waits and when it starts at the latest, times as people read them, the path of a socket, the
server, and the client.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
import struct
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import TYPE_CHECKING, TypeVar

import anyio
from pydantic import TypeAdapter, ValidationError

from koala_adapter.errors import (
    ConfigurationError,
    JobNotFoundError,
    KoalaError,
    ProtocolError,
    ServiceRunningError,
    ServiceUnavailableError,
)
from koala_adapter.host.containment import report_defect
from koala_adapter.host.privatedirectory import user_name, weakness
from koala_adapter.host.sockets import peer_user, reachable
from koala_adapter.model import LrmJob, LrmJobId
from koala_adapter.ordering.jobs import JobEvent, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.host.clock import ServiceClock
    from koala_adapter.ordering.mirror import Mirror
    from koala_adapter.ordering.shadow import Difference, ShadowReport


# -- Explanations of a job and of the whole queue ------------------------------------------------------------
# No I/O; times are those of the scheduler's clock.


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """State, place and reason of one job, as told to a user."""

    job_id: str
    user: str
    name: str
    processors: int
    phase: str
    reason: str
    """Why it waits; empty when it runs."""
    estimate: int
    """Seconds that it may run."""
    estimate_assumed: bool = False
    """Neither the job nor its queue has a limit that is known, so `estimate` is the site's default."""
    position: int | None = None
    """Place in the queue, from 1."""
    queued: int = 0
    """Jobs in that queue."""
    reserved_at: float | None = None
    """When it starts at the latest, as long as all jobs end by their walltimes; None: nothing is promised yet."""
    promised_at: float | None = None
    """The first start that was reserved for it."""
    started_at: float | None = None
    nodes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Summary of the whole queue."""

    processors: int
    free: int
    waiting: int
    running: int
    starting: int
    left_out: int


def explain(mirror: Mirror, job_id: str) -> Explanation:
    """Return state, place and reason of a job as of the last decision. Raises JobNotFoundError."""
    entry = mirror.entries.get(LrmJobId(job_id))
    if entry is None:
        elements = [other.job.id for other in mirror.entries.values() if _is_element(other.job, job_id)]
        hint = "give the id as the batch system writes it"
        if elements:
            hint = f"it is an array: ask for one of its elements, such as {', '.join(elements[:3])}"
        raise JobNotFoundError(f"the batch system shows no unfinished job {job_id}", hint=hint)
    found = Explanation(
        job_id=job_id,
        user=entry.job.user,
        name=entry.job.name,
        processors=entry.job.processors,
        phase=entry.phase.value,
        reason=entry.reason,
        estimate=entry.estimate,
        estimate_assumed=entry.estimate_assumed,
        promised_at=entry.promised,
        started_at=entry.job.started_at,
        nodes=entry.nodes,
    )
    noted = mirror.standing_of(entry)
    if noted is None:
        return found
    passed_over = f"enough processors are free, but {entry.passed_over}" if entry.passed_over else ""
    return replace(
        found,
        reason=passed_over or noted.reason,
        position=noted.position or None,
        queued=noted.queued,
        reserved_at=noted.start,
    )


def _is_element(job: LrmJob, array: str) -> bool:
    return job.array is not None and job.array.rstrip("_.") == array


def overview(mirror: Mirror) -> Overview:
    """Return the summary of the whole queue."""
    phases = [entry.phase for entry in mirror.entries.values()]
    return Overview(
        processors=sum(scheduler.processors for scheduler in mirror.schedulers),
        free=sum(max(0, scheduler.free) for scheduler in mirror.schedulers),
        waiting=phases.count(Phase.WAITING),
        running=phases.count(Phase.RUNNING),
        starting=phases.count(Phase.STARTING),
        left_out=phases.count(Phase.LEFT_OUT) + phases.count(Phase.RETURNING),
    )


# -- Times as people read them -------------------------------------------------------------------------------
# Times of our clock become times of day, by the time of day as it is set now.

_Told = TypeVar("_Told", "Explanation", "JobEvent", "Difference")

_TIMES = ("time", "at", "reserved_at", "promised_at", "ours", "theirs")
"""Fields that hold a time of our clock. When a job started is told in the words of its batch system."""


def shifted(told: _Told, offset: float) -> _Told:
    """Return what is told of a job with its times shifted by ``offset`` seconds."""
    times = {name: getattr(told, name, None) for name in _TIMES}
    return replace(told, **{name: time + offset for name, time in times.items() if time is not None})


def report_shifted(report: ShadowReport, offset: float) -> ShadowReport:
    """Return a report with its times shifted by ``offset`` seconds."""
    return replace(
        report,
        since=report.since + offset,
        until=report.until + offset,
        first_earlier=tuple(shifted(one, offset) for one in report.first_earlier),
        first_later=tuple(shifted(one, offset) for one in report.first_later),
    )


# -- The path of a socket ------------------------------------------------------------------------------------
# No other user can put a socket in its place.

BACKLOG = 256
"""Connections that the kernel holds until they are accepted."""
OWNER, EVERYBODY = 0o600, 0o666
"""Modes of the socket: its owner, or every user, may connect."""
SERVER_GONE = frozenset({errno.ECONNREFUSED, errno.ENOENT})
"""Errors of connecting to a socket whose server has gone."""


@contextmanager
def listening(path: Path, *, mode: int) -> Iterator[socket.socket]:
    """Listen at a path while the context lasts, without blocking. Raises ConfigurationError, ServiceRunningError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _check(path)
            with reachable(path) as name:
                _clear(path, name)
                listener.bind(name)
            path.chmod(mode)
            listener.listen(BACKLOG)
            listener.settimeout(0)
            made = path.lstat().st_ino
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from error
        try:
            yield listener
        finally:
            # Another process may have replaced it meanwhile.
            with suppress(OSError):
                if path.lstat().st_ino == made:
                    path.unlink()


def _check(path: Path) -> None:
    """Refuse a directory in which another user could replace the socket. Raises OSError."""
    directory = path.parent
    found = weakness(path)
    if found:
        raise _unusable(path, found)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise _unusable(path, f"{directory} belongs to {user_name(status.st_uid)}, not to you")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise _unusable(path, f"others can write to {directory} (mode {mode:04o})")


def _clear(path: Path, name: str) -> None:
    """Remove the socket of a process that was killed. Raises OSError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise _unusable(path, "there is a file of that name that is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(0)
            if other.connect_ex(name) not in SERVER_GONE:
                raise ServiceRunningError(
                    f"somebody answers at {path} already", hint="give each cluster a socket of its own"
                )
        path.unlink()


def _unusable(path: Path, why: str) -> ConfigurationError:
    hint = f"give a path in a directory that only {user_name(os.geteuid())} can write to and others can enter"
    return ConfigurationError(
        f"cannot listen at {path}: {why}", hint=f"{hint}, such as one made by `install -d -m 0755 /run/koala`"
    )


# -- The server ----------------------------------------------------------------------------------------------
# The process that orders the jobs of a batch system answers on a socket of its own, which only its user may reach, and,
# where its administrator wants that, on one that every user may reach. A question is one short line, the answer is one
# line, then the connection is closed. Users are told apart by the kernel's peer credentials, so that no user can hold
# all places. The cost to the scheduler, in whose process this runs, is bounded: after each answer, and after each round
# of admission, it rests for many times as long as that took. Answers are read from what the scheduler has noted; no
# question reaches a policy, a record, or the batch system.

PLACES = 32
"""Connections at once."""
PLACES_OF_ONE = 4
"""Of one user."""
QUESTION_LIMIT = 512
"""Bytes of a question."""
QUESTION_SECONDS = 5.0
"""A question has arrived by then."""
ANSWER_SECONDS = 30.0
"""A place is free again by then, whatever the client does."""
REST = 19
"""Times as long as something took is rested after it: letting in and answering get a twentieth of a processor each."""
ROUND = 64
"""Connections that are taken in before it rests."""
SHORTEST_REST = 0.001
WITHOUT_ACCEPT = 0.1
"""Seconds of rest when no connection can be accepted for lack of descriptors."""

BUSY = json.dumps({"busy": True}).encode() + b"\n"
JOB_ID = re.compile(r"[!-~]{1,128}")

EXPLANATION = TypeAdapter(Explanation)


def explainer(mirror: Mirror, clock: ServiceClock) -> Callable[[str], Explanation]:
    """Return the function that explains jobs of a mirror in time of day; ``clock``: that of the mirror."""
    return lambda job_id: shifted(explain(mirror, job_id), clock.offset)


class ExplainServer:
    """Answers questions about the jobs of one batch system.

    The owner of a job, root and the user of this process are told all that is known of it, others no names and nodes.
    """

    def __init__(self, explain_job: Callable[[str], Explanation], path: Path, *, mode: int = OWNER) -> None:
        """Listen at ``path``. ``explain_job`` raises JobNotFoundError; it changes nothing."""
        self._explain_job = explain_job
        self._path = path
        self._mode = mode
        self._held: Counter[int] = Counter()
        """Places by user id."""
        self._turn = anyio.Lock()
        self._rests_until = 0.0
        """Time of the event loop before which no further question is answered."""

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled.

        Raises ConfigurationError when another user could put something else in its place, and ServiceRunningError when
        another server answers there already.
        """
        with listening(self._path, mode=self._mode) as listener:
            async with anyio.create_task_group() as tasks:
                task_status.started()
                while True:
                    await anyio.wait_readable(listener)
                    begun = time.perf_counter()
                    went_well = self._admit(listener, tasks)
                    rest = max(SHORTEST_REST, REST * (time.perf_counter() - begun))
                    await anyio.sleep(rest if went_well else WITHOUT_ACCEPT)

    def _admit(self, listener: socket.socket, tasks: TaskGroup) -> bool:
        """Accept waiting connections up to the bound; return False when none could be accepted."""
        for _ in range(ROUND):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return True
            except OSError:
                return False
            self._give_place(connection, tasks)
        return True

    def _give_place(self, connection: socket.socket, tasks: TaskGroup) -> None:
        try:
            connection.settimeout(0)
            user = peer_user(connection)
            if self._held[user] >= PLACES_OF_ONE or self._held.total() >= PLACES:
                with connection:
                    connection.send(BUSY)
                return
        except OSError:
            connection.close()
            return
        self._held[user] += 1
        tasks.start_soon(self._converse, connection, user)

    async def _converse(self, connection: socket.socket, user: int) -> None:
        try:
            with connection, suppress(OSError), anyio.move_on_after(ANSWER_SECONDS):
                question = await _read_line(connection)
                if question is not None:
                    async with self._turn:
                        await anyio.sleep_until(self._rests_until)
                        begun = time.perf_counter()
                        answer = self._answer(question, user)
                        self._rests_until = anyio.current_time() + REST * (time.perf_counter() - begun)
                    await _send(connection, answer)
        finally:
            self._held[user] -= 1
            if not self._held[user]:
                del self._held[user]

    def _answer(self, line: bytes, user: int) -> bytes:
        job_id = parse_question(line)
        if job_id is None:
            return _refusal("malformed question: one job id is expected")
        try:
            return EXPLANATION.dump_json(as_seen_by(user, self._explain_job(job_id))) + b"\n"
        except JobNotFoundError as error:
            return _refusal(error.message, error.hint)
        except Exception as error:  # noqa: BLE001 - whatever a stranger asks for must not end the scheduler
            report_defect("a question about a job", error, job=job_id)
            return _refusal(f"job {job_id} cannot be explained now")


def as_seen_by(user: int, found: Explanation) -> Explanation:
    """Return an explanation as a user may see it: without owner, name and nodes of other users' jobs."""
    if user in {0, os.geteuid()} or found.user == user_name(user):
        return found
    return replace(found, user="", name="", nodes=())


def parse_question(line: bytes) -> str | None:
    """Return the job id in a question; None when the question is malformed."""
    try:
        question = json.loads(line)
    except (ValueError, RecursionError):
        return None
    job_id = question.get("job_id") if isinstance(question, dict) and len(question) == 1 else None
    return job_id if isinstance(job_id, str) and JOB_ID.fullmatch(job_id) else None


def _refusal(message: str, hint: str = "") -> bytes:
    return json.dumps({"error": message, "hint": hint}).encode() + b"\n"


async def _read_line(connection: socket.socket) -> bytes | None:
    """Return the bytes up to a line end or the limit of length; None when the peer is too slow."""
    read = b""
    with anyio.move_on_after(QUESTION_SECONDS):
        while len(read) <= QUESTION_LIMIT:
            await anyio.wait_readable(connection)
            with suppress(BlockingIOError):
                more = connection.recv(QUESTION_LIMIT + 1 - len(read))
                read += more
                line, end, _ = read.partition(b"\n")
                if end:
                    return line
                if not more:
                    return None
        return read
    return None


async def _send(connection: socket.socket, text: bytes) -> None:
    left = memoryview(text)
    while left:
        with suppress(BlockingIOError):
            left = left[connection.send(left) :]
            continue
        await anyio.wait_writable(connection)


# -- The client ----------------------------------------------------------------------------------------------

SOCKET_NAME = "schedule.sock"
"""Of the socket for its own user, in the directory of a scheduler."""
ASK_SECONDS = 60
"""So long it is tried while too many others ask."""
ANSWER_LIMIT = 4_194_304
"""Bytes of an answer, which names the nodes of a job."""
PAUSE = 0.1
"""Seconds, or up to twice as many, between two tries."""


def ask_explanation(path: Path, cluster: str, job_id: str, *, hint: str) -> Explanation:
    """Ask the scheduler of a cluster about a job, at its socket.

    Raises JobNotFoundError, and ServiceUnavailableError, with ``hint``, when no scheduler answers there.
    """
    question = json.dumps({"job_id": job_id}).encode() + b"\n"
    until = time.monotonic() + ASK_SECONDS
    while time.monotonic() < until:
        try:
            line = _ask_once(path, question)
        except OSError as error:
            raise ServiceUnavailableError(
                f"no `koala schedule` (or `koala wiki serve`) for cluster {cluster} answers at {path}: "
                f"{error.strerror or error}",
                hint=hint,
            ) from error
        if line is not None:
            return read_answer(line)
        time.sleep(SystemRandom().uniform(PAUSE, 2 * PAUSE))
    raise ServiceUnavailableError(
        f"too many others ask at {path}: no answer within {ASK_SECONDS} s", hint="ask again later"
    )


def read_answer(line: bytes) -> Explanation:
    """Parse the answer of a scheduler. Raises JobNotFoundError, and ProtocolError for an unreadable one."""
    try:
        return EXPLANATION.validate_json(line)
    except ValidationError:
        raise _refusal_in(line) from None


def _refusal_in(line: bytes) -> KoalaError:
    try:
        told = json.loads(line)
        return JobNotFoundError(str(told["error"]), hint=str(told["hint"]))
    except (ValueError, LookupError, TypeError):
        return ProtocolError("the scheduler gave an answer that cannot be read")


def _ask_once(path: Path, question: bytes) -> bytes | None:
    """Ask once and return the answer; None when the server had no place free. Raises OSError."""
    with reachable(path) as name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Unlike a time-out of Python's it has the kernel queue us while too many others connect, socket(7).
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", ASK_SECONDS, 0))
        try:
            connection.connect(name)
        except BlockingIOError:
            return None
        connection.settimeout(ASK_SECONDS)
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(question)
        with connection.makefile("rb") as lines:
            try:
                line = lines.readline(ANSWER_LIMIT)
            except ConnectionResetError:
                return None
    return line if line.endswith(b"\n") and not _is_busy(line) else None


def _is_busy(line: bytes) -> bool:
    try:
        told = json.loads(line)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("busy") is True
