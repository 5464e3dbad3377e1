# SPDX-License-Identifier: Apache-2.0
"""``koala.Executor``: a concurrent.futures.Executor whose workers are the processes of one malleable job."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import Executor as AnyExecutor
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from koala_adapter.errors import ConfigurationError, JobFailedError, KoalaError
from koala_adapter.pull.nodefiles import node_files
from koala_adapter.python import taskworker
from koala_adapter.python.description import Component, Job
from koala_adapter.python.site import Site
from koala_adapter.python.taskserver import Task, TaskServer
from koala_adapter.python.taskworker import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.python.description import InputFile
    from koala_adapter.python.handle import JobHandle

PROGRAM = "taskworker.py"
"""What a worker runs."""

P = ParamSpec("P")
R = TypeVar("R")


class Executor(AnyExecutor):
    """Calls functions on processors of all clusters of a site, as many as can be had at a time.

    The workers come and go as koala's malleable jobs do: where others want their processors, a worker finishes its
    call and leaves; one that has to go before that leaves its call to another worker, which begins it again. So a call
    may be begun more than once, and gives one result.

    Functions, arguments and results are pickled; by cloudpickle where it is installed, here and there, so that
    functions of the program itself can be called, too. An exception has the traceback of the node as its cause. A call
    that has begun cannot be cancelled.

    Its methods may be called by several threads. It ends with :meth:`shutdown` or at the end of its ``with`` block:
    then the job is cancelled, and a service that was started for it ends. When the program ends without that, its
    workers find nobody any more and end, and so does the job.
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
        priority: int | None = None,
        placement: str | None = None,
        environment: Mapping[str, str] | None = None,
        input_files: Sequence[InputFile] = (),
        python: str = sys.executable,
        retire_grace: float | str | None = None,
        host: str | None = None,
    ) -> None:
        """Submit the job of ``minimum`` to ``maximum`` workers, one processor each; calls wait until there is one.

        site: Default :meth:`Site.load`.
        cluster, walltime, priority, placement, environment, input_files, retire_grace: As in a job file.
        python: The Python of the nodes; pickles of this one must be good for it.
        host: Name or address by which nodes reach this process. Default: as they reach koala's control center.

        Raises ConfigurationError, JobRefusedError, and ServiceUnavailableError.
        """
        if not 1 <= minimum < maximum:
            message = f"koala.Executor: found minimum {minimum} and maximum {maximum}, allowed is a larger maximum"
            raise ConfigurationError(message, hint="workers come and go between the two")
        self._site = (site or Site.load()).for_a_block()
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._closed = False
        self._ending: threading.Thread | None = None
        center = self._site.config.control_center
        with TemporaryDirectory(prefix="koala-executor-") as directory:
            self._server, settings = _listening(Path(directory), center.listen, host or center.node_address)
            programs = _programs(Path(directory))
            worker = Component(
                [python, PROGRAM],
                name="worker",
                minimum=minimum,
                maximum=maximum,
                initial=maximum,
                flexible=cluster is None,
                cluster=cluster,
                environment=environment or {},
                input_files=[*programs, settings, *input_files],
                retire_grace=retire_grace,
            )
            job = Job(
                components=[worker],
                name=name,
                kind="malleable",
                runner="workers",
                walltime=walltime,
                priority=priority,
                placement=placement,
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
        """How many workers are there now."""
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
        with suppress(KoalaError):
            self.job.cancel()  # first: workers that lose their connection end, and the job with them, by themselves
        self._server.close()
        with suppress(KoalaError):
            self._site.__exit__(None, None, None)

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
    from koala_adapter.vjm.certificate import load_or_create

    certificate = load_or_create(directory / "certificate")
    server = TaskServer(listen, certificate)
    settings = directory / taskworker.SETTINGS
    settings.touch(mode=0o600)
    said = {
        "host": node_address,
        "port": server.port,
        "fingerprint": certificate.fingerprint,
        "token": server.token.hex(),
    }
    settings.write_text(json.dumps(said), encoding="ascii")
    return server, settings
