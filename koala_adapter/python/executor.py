# SPDX-License-Identifier: Apache-2.0
"""``koala.Executor``: a concurrent.futures.Executor whose workers are the processes of one malleable job.

The server that hands tasks to the workers comes first.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import secrets
import sys
import threading
from collections import deque
from concurrent.futures import Executor as AnyExecutor
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from koala_adapter.errors import ConfigurationError, JobFailedError, JobTimeoutError, KoalaError
from koala_adapter.host.privatedirectory import transient_directory
from koala_adapter.python import taskworker
from koala_adapter.python.description import Component, InputFile, Job, SlotKeys, require_slot_keys
from koala_adapter.python.site import Site
from koala_adapter.python.taskworker import dumps
from koala_adapter.tasks.connection import LEAVING
from koala_adapter.tasks.server import TOKEN_BYTES, Puller, PullServer, listening_socket, node_files, send
from koala_adapter.vjm.certificate import Certificate, load_or_create

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.python.jobs import JobHandle


# -- Server of tasks -----------------------------------------------------------------------------------------
# It runs an event loop in a thread of its own; tasks and results pass between that thread and the caller's. A task
# lost with its worker is given to another one, so it may begin more than once; its future gets one result. Only
# workers that show the token get tasks.

LOSSES = 3
"""Workers that may be lost with one task before it is taken as what ends them."""


class RemoteTracebackError(Exception):
    """Stands as the cause of an exception for where it was raised on a node."""

    def __str__(self) -> str:
        """Return the traceback of the node."""
        return f"\n{self.args[0]}"


@dataclass(slots=True, eq=False)
class Task:
    """A call that is to be made once, and its future."""

    payload: bytes
    future: Future[Any]
    begun: bool = False
    losses: int = 0


class TaskServer:
    """Listens for workers and hands out tasks."""

    def __init__(self, host: str, certificate: Certificate) -> None:
        """Listen on an address, at a free port. Raises OSError."""
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._waiting: deque[Task] = deque()
        """Tasks that no worker has; as what follows, used in the event loop alone."""
        self._failure: KoalaError | None = None
        self._dismissing = False
        """Workers that have nothing to do are sent away."""
        self._server = PullServer(self, self.token)
        self._loop = asyncio.new_event_loop()
        listening = listening_socket(host)
        self.port = int(listening.getsockname()[1])
        self._server.listen(listening, certificate, self._loop)
        self._thread = threading.Thread(target=self._run, name="koala.Executor", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> int:
        """Number of workers that are connected."""
        return len(self._server.pullers)

    def add(self, task: Task) -> None:
        """Queue a task for the workers."""
        self._loop.call_soon_threadsafe(self._add, task)

    def fail(self, error: KoalaError) -> None:
        """Let all that is not done, and all that comes, end with this."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def dismiss(self) -> None:
        """Say goodbye to the workers that have nothing to do, now and from now on; each ends well by that."""
        self._loop.call_soon_threadsafe(self._dismiss)

    def close(self) -> None:
        """Say goodbye to the workers and end. What is not done ends as cancelled, or with an error."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._fail(KoalaError("the executor was shut down"))
            self._loop.run_until_complete(self._all_ended())
            self._loop.close()

    async def _all_ended(self) -> None:
        """Close all connections, those being made included, and wait until their tasks have ended."""
        await self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for one in others:
            one.cancel()  # the event loop's own, at a handshake
        await asyncio.gather(*others, return_exceptions=True)

    # ---- in the event loop ------------------------------------------------------------------------------------------

    def _add(self, task: Task) -> None:
        if self._failure is not None:
            _end(task, self._failure)
            return
        self._waiting.append(task)
        self._server.dispatch()

    def _dismiss(self) -> None:
        self._dismissing = True
        for worker in self._server.pullers:
            self._free(worker)

    def _free(self, worker: Puller) -> None:
        """Give work to a worker, or its leave."""
        if not self._dismissing:
            self._server.free(worker)
        elif worker.work is None:
            send(worker, LEAVING)
            worker.writer.close()

    def _fail(self, error: KoalaError) -> None:
        self._failure = self._failure or error
        at_work = [one for worker in self._server.pullers if (one := _taken(worker)) is not None]
        for task in (*at_work, *self._waiting):
            _end(task, self._failure)
        self._waiting.clear()

    def came(self, puller: Puller) -> None:
        """Take note of a worker that has connected."""
        self._free(puller)

    def work_for(self, puller: Puller) -> bytes | None:
        """Return the next task as a frame; None: there is none now."""
        while self._waiting:
            task = self._waiting.popleft()
            if task.begun or task.future.set_running_or_notify_cancel():
                task.begun = True
                puller.work = task
                return task.payload
        return None

    def heard(self, puller: Puller, frame: bytes) -> None:
        """Record the answer of a worker to a call."""
        task = _taken(puller)
        if task is not None:
            _settle(task, frame)
        self._free(puller)

    def gone(self, puller: Puller) -> None:
        """Take note that a worker has gone: its task is handed out again."""
        task = _taken(puller)
        if task is None:
            return
        task.losses += not puller.leaving
        if task.losses >= LOSSES:
            message = f"the task was lost with each of {LOSSES} workers that were at it"
            _end(task, KoalaError(message, hint="see what they wrote: executor.job.logs(stderr=True)"))
        else:
            self._waiting.appendleft(task)
            self._server.dispatch()


def _taken(puller: Puller) -> Task | None:
    """Return the task that a worker had, which it has no longer."""
    task, puller.work = puller.work, None
    return task if isinstance(task, Task) else None


def _settle(task: Task, frame: bytes) -> None:
    """Give a future what its worker answered. The workers are ours, they have shown the token."""
    try:
        good, *found = pickle.loads(frame)  # noqa: S301 - see above
    except Exception as error:  # noqa: BLE001 - of a class that cannot be made here
        task.future.set_exception(error)
        return
    if good:
        task.future.set_result(found[0])
        return
    raised, text = found
    raised.__cause__ = RemoteTracebackError(text)
    task.future.set_exception(raised)


def _end(task: Task, error: KoalaError) -> None:
    if task.begun or task.future.set_running_or_notify_cancel():
        task.future.set_exception(error)


# -- The executor --------------------------------------------------------------------------------------------

PROGRAM = "taskworker.py"
"""What a worker runs."""

P = ParamSpec("P")
R = TypeVar("R")


def require_known_to_workers(function: Callable[..., object]) -> None:
    """Raise KoalaError for a function of the program itself where cloudpickle is missing.

    pickle would send its name alone, by which a worker finds nothing.
    """
    if not taskworker.BY_VALUE and getattr(function, "__module__", None) == "__main__":
        raise KoalaError(
            f"the function {getattr(function, '__name__', function)} is of the program itself, which workers have not",
            hint="pip install cloudpickle, here and for the Python of the nodes, or define it in a module they find",
        )


PRIVATE = "executors"
"""Directory of the state directory in which keys are while a job is submitted."""
SPLITS = "flexible-cluster-minimization"
"""Placement policy of workers whose number does not change: they may be on several clusters."""
LEAVING_TIME = 20.0
"""Seconds that workers which are dismissed have to end, and the job with them. The service may have to start first."""


class Executor(AnyExecutor):
    """Calls functions on all clusters of a site, with as many workers as can be had at a time.

    The workers come and go as koala's malleable jobs do: where others want their processors, a worker finishes its
    call and leaves; one that has to go before that leaves its call to another worker, which begins it again. So a call
    may be begun more than once, and gives one result.

    Functions, arguments and results are pickled; by cloudpickle where it is installed, here and there, so that
    functions of the program itself can be called, too. An exception has the traceback of the node as its cause. A call
    that has begun cannot be cancelled.

    Its methods may be called by several threads. It ends with :meth:`shutdown` or at the end of its ``with`` block:
    then the job is cancelled, and a service that was started for it ends. When the program ends without that, its
    workers find no executor any more and end, and so does the job.
    """

    def __init__(  # noqa: PLR0913 - as many as there are things to say of a job
        self,
        maximum: int,
        *,
        minimum: int = 1,
        site: Site | None = None,
        cluster: str | None = None,
        walltime: float | str = "1h",
        name: str = "executor",
        priority: int | str | None = None,
        placement: str | None = None,
        environment: Mapping[str, str] | None = None,
        export: str | Sequence[str] = (),
        setup: str | Sequence[str] = (),
        software: str | Sequence[str] = (),
        container: str | None = None,
        input_files: Sequence[InputFile] = (),
        python: str = sys.executable,
        retire_grace: float | str | None = None,
        host: str | None = None,
        **slot: Unpack[SlotKeys],
    ) -> None:
        """Submit the job of ``minimum`` to ``maximum`` workers; calls wait until there is one.

        site: Default :meth:`Site.load`.
        cluster, walltime, priority, placement, environment, input_files, retire_grace: As in a job file, as are
            export, setup, software and container. In a container, ``python`` is that of the image.
        python: The Python of the nodes; pickles of this one must be good for it.
        host: Name or address by which nodes reach this process. Default: as they reach koala's control center; from
            other sites through koala.
        slot: What each worker needs, by the keys of a job file: threads, memory, gpus, exclusive, scratch, features,
            licenses, queue, account, qos, directives. Default: a processor.

        Raises ConfigurationError, JobRefusedError, and ServiceUnavailableError.
        """
        if not 1 <= minimum <= maximum:
            message = f"koala.Executor: found minimum {minimum} and maximum {maximum}"
            raise ConfigurationError(message, hint="allowed is 1 <= minimum <= maximum")
        require_slot_keys("koala.Executor", slot)
        self._site = (site or Site.load()).for_a_block()
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._closed = False
        self._ending: threading.Thread | None = None
        center = self._site.config.control_center
        changes, flexible = minimum < maximum, cluster is None and maximum > 1
        with transient_directory(self._site.directory / PRIVATE) as directory:
            programs = _programs(directory)
            self._server, settings = _listening(directory, center.listen, host or center.node_address)
            worker = Component(
                [python, PROGRAM],
                name="worker",
                environment=environment or {},
                export=export,
                setup=setup,
                software=software,
                container=container,
                input_files=[*programs, settings, *input_files],
                cluster=cluster,
                flexible=flexible,
                processors=None if changes else maximum,
                minimum=minimum if changes else None,
                maximum=maximum if changes else None,
                initial=maximum if changes else None,
                retire_grace=retire_grace if changes else None,
                **slot,
            )
            through_koala = host is None and self._site.config.may_be_far(cluster)
            job = Job(
                components=[worker],
                name=name,
                host_ports=[self._server.port] if through_koala else (),
                kind="malleable" if changes else "rigid",
                runner="workers" if changes else None,
                walltime=walltime,
                priority=priority,
                placement=placement or (SPLITS if flexible and not changes else None),
            )
            self._site.__enter__()
            try:
                self.job: JobHandle = self._site.submit(job)
            except BaseException:
                self._server.close()
                self._site.__exit__(*sys.exc_info())
                raise
        threading.Thread(target=self._watch, name="koala.Executor: its job", daemon=True).start()

    @property
    def workers(self) -> int:
        """Number of workers that are connected."""
        return self._server.workers

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function called. Raises RuntimeError after :meth:`shutdown`; what is wrong else is in the future."""
        future: Future[R] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._futures.add(future)
        future.add_done_callback(self._forget)
        try:
            require_known_to_workers(fn)
            payload = dumps((fn, args, kwargs))
        except Exception as error:  # noqa: BLE001 - whatever the methods of arguments raise
            future.set_exception(error)
        else:
            self._server.add(Task(payload, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as it was defined there
        """Take no more calls, and end the job when all are done; ``cancel_futures``: those that have not begun are not.

        ``wait``: return when that has come about.
        """
        with self._lock:
            self._closed = True
            left = list(self._futures)
            if self._ending is None:
                self._ending = threading.Thread(target=self._end, name="koala.Executor: its end")
                begin = True
            else:
                begin = False
        if cancel_futures:
            for future in left:
                future.cancel()
        if begin:
            self._ending.start()
        if wait:
            self._ending.join()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)

    def _end(self) -> None:
        with self._lock:
            left = list(self._futures)
        wait(left)
        self._server.dismiss()
        with suppress(KoalaError):
            self._end_job()
        self._server.close()
        with suppress(KoalaError):
            self._site.__exit__(None, None, None)

    def _end_job(self) -> None:
        """Wait for a moment until the job has ended well with its workers; otherwise cancel it."""
        report = self.job.report()
        if report.launched_at is not None:
            with suppress(JobTimeoutError):
                self.job.wait(LEAVING_TIME)
                return
        self.job.cancel()

    def _watch(self) -> None:
        """Let the calls fail when the job ends by itself."""
        try:
            result = self._site.job(self.job.id).wait()
        except KoalaError as error:
            failure = error
        else:
            said = result.detail or result.state.value
            hint = f"`koala logs {result.id} -e`"
            message = f"job {result.id} of the executor has ended by itself: {said}"
            failure = JobFailedError(message, hint=hint, job_id=result.id, job_exit_code=result.exit_code)
        with self._lock:
            if self._closed and self._ending is not None and not self._futures:
                return
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._server.fail(failure)


def _programs(directory: Path) -> list[Path]:
    """Write what a worker runs into a directory; return the files."""
    files = node_files("koala_adapter.python", "taskworker", PROGRAM)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return [directory / name for name in files]


def _listening(directory: Path, listen: str, node_address: str) -> tuple[TaskServer, Path]:
    """Listen for workers; return what they need to get there, in a private file."""
    certificate = load_or_create(directory / "certificate")
    server = TaskServer(listen, certificate)
    settings = directory / taskworker.SETTINGS
    said = {
        "host": node_address,
        "port": server.port,
        "fingerprint": certificate.fingerprint,
        "token": server.token.hex(),
    }
    try:
        settings.touch(mode=0o600)
        settings.write_text(json.dumps(said), encoding="ascii")
    except BaseException:
        server.close()
        raise
    return server, settings
