# SPDX-License-Identifier: Apache-2.0
"""Jobs of a simulated workload as live ones: bags of work units, and the server that gives them to the workers."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from koala_adapter.model import Component, InputFile, Job, JobId, JobKind, Retirement, RunnerName
from koala_adapter.sizes import PowerOfTwo
from koala_adapter.tasks.server import CONNECTION_FILE, TOKEN_BYTES, PullServer, listening_socket, node_files
from koala_adapter.vjm.certificate import load_or_create

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from koala_adapter.simulation.applications import SimulatedJob
    from koala_adapter.tasks.server import Puller


# -- Bag of work units ---------------------------------------------------------------------------------------
# The whole work of an application of the simulator is cut into units of equal size. On n workers a unit takes n times
# as long as the n-th execution time divided by the units, so that n workers that take one unit after the other need
# just the execution time on n processors, however poorly the application makes use of them.

SMALLEST = 0.1
"""Smallest part of a unit that is given out, unless less is left."""
NOTHING = 1e-9
"""What is left of many fractions is no work."""


class Bag:
    """Remaining work of one application, shared by its workers."""

    def __init__(self, times: Sequence[float], unit: float, *, at: int) -> None:
        """``times``: seconds of the whole work on 0, 1, 2 ... workers; more workers are as fast as the last number.

        ``unit``: seconds, at most, that one unit takes on ``at`` workers.
        """
        self._times = times
        self.units = max(1, ceil(times[at] * at / unit))
        self.left = float(self.units)
        """Units that no worker has."""
        self._taken: dict[int, float] = {}
        """What each worker works on, in units."""
        self._workers: set[int] = set()

    @property
    def empty(self) -> bool:
        """Whether all work is done."""
        return self.left <= 0 and not self._taken

    def join(self, worker: int) -> None:
        """Add a worker."""
        self._workers.add(worker)

    def leave(self, worker: int) -> None:
        """Remove a worker; its unfinished unit returns to the bag."""
        self._workers.discard(worker)
        self.left += self._taken.pop(worker, 0.0)

    def take(self, worker: int) -> float | None:
        """Return the seconds of a worker's next unit; None when nothing is left to be taken now."""
        if self.left <= 0:
            return None
        count = min(max(1, len(self._workers)), len(self._times) - 1)
        share = min(1.0, self.left, max(SMALLEST, self.left / count))  # small ones last, so that all end together
        self.left -= share
        if self.left < NOTHING:
            self.left = 0.0
        self._taken[worker] = share
        return share * count * self._times[count] / self.units

    def done(self, worker: int, part: float) -> None:
        """Record that a worker has done a share (0 to 1) of its unit; the rest returns to the bag."""
        self.left += self._taken.pop(worker, 0.0) * (1.0 - min(1.0, max(0.0, part)))


# -- Jobs ----------------------------------------------------------------------------------------------------
# Jobs of a simulated workload as live ones: head elsewhere, workers that take units of work from it.

WORKER, CONTACT = "worker.py", "contact"
UNIT = 0.25
"""Seconds, at most, that a unit of work takes at a job's first size."""
WALLTIME = 24 * 3600
GRACE = 10
"""Seconds after which a worker that was asked to leave is killed; it leaves at once."""


def name_of(job: SimulatedJob) -> str:
    """Return the name under which a job of the workload is submitted."""
    return f"{job.application.name.lower()}-{job.number}"


def bag_of(job: SimulatedJob, pace: float) -> Bag:
    """Return the work of a job; ``pace``: seconds of its work per second."""
    times = [time * job.work / pace for time in job.application.times()]
    return Bag(times, UNIT, at=job.initial)


def live_job(job: SimulatedJob, *, address: str, port: int, files: Sequence[Path], user: str) -> Job:
    """Return a job whose workers get units from the bag server; ``files``: what they need for that."""
    application = job.application
    low, high = (application.minimum, application.maximum) if job.malleable else (job.initial, job.initial)
    worker = Component(
        name="worker",
        command=("python3", WORKER, address, str(port), name_of(job)),
        minimum=low,
        maximum=high,
        initial=job.initial if job.malleable else None,
        input_files=tuple(InputFile(source=str(path), target=path.name) for path in files),
        sizes="power-of-two" if isinstance(application.acceptance, PowerOfTwo) else "any",
        retirement=Retirement(grace=GRACE),
    )
    return Job(
        id=JobId("0"),
        name=name_of(job),
        kind=JobKind.MALLEABLE if job.malleable else JobKind.RIGID,
        components=(worker,),
        walltime=WALLTIME,
        user=user,
        submitted_at=0.0,
        placement=job.placement,
        runner=RunnerName.WORKERS if job.malleable else RunnerName.RANKS,
    )


# -- Server of work units ------------------------------------------------------------------------------------
# Hands the work units of running applications out to their workers: the head, elsewhere, of all of them.

ASK_AGAIN = 0.05
"""Seconds after which a worker for which there was nothing to do asks again."""
OVER = -1.0
"""Seconds of a unit that says that there are no more."""
LONGEST_FRAME = 100


@dataclass(slots=True)
class _Worker:
    name: str
    """Of its bag."""
    number: int


class BagBoard:
    """Bags by name, as source of tasks for the task server."""

    def __init__(self, token: bytes) -> None:
        """``token``: secret that workers must present."""
        self.bags: dict[str, Bag] = {}
        self.joined_at: dict[tuple[str, int], float] = {}
        """When, by the time of day, the worker of each bag and rank was ready to work for the first time."""
        self.emptied_at: dict[str, float] = {}
        """When the work of each bag was done."""
        self.server = PullServer(self, token, largest_frame=LONGEST_FRAME)
        self._numbers = count(1)

    def came(self, puller: Puller) -> None:
        """Do nothing: a worker's first message names its bag and rank."""

    def heard(self, puller: Puller, frame: bytes) -> None:
        """Process a worker's message: its name, or the result of its unit."""
        word, _, number = frame.decode(errors="replace").partition(" ")
        worker = puller.work
        try:
            if not isinstance(worker, _Worker):
                self.joined_at.setdefault((word, int(number)), time.time())
                puller.work = worker = _Worker(word, next(self._numbers))
                self.bags[word].join(worker.number)
            else:
                self.bags[worker.name].done(worker.number, float(number))
                if word != "done":
                    return
        except (KeyError, ValueError):  # it says what no worker says
            puller.writer.transport.abort()
            return
        self.server.free(puller)

    def gone(self, puller: Puller) -> None:
        """Return the unit of a lost worker to its bag."""
        worker = puller.work
        if isinstance(worker, _Worker) and worker.name in self.bags:
            self.bags[worker.name].leave(worker.number)
            self._over(worker.name)

    def work_for(self, puller: Puller) -> bytes:
        """Return the seconds of a worker's next unit; a short pause when others have all; OVER at the end."""
        seconds: float | None = OVER
        if isinstance(worker := puller.work, _Worker):
            bag = self.bags[worker.name]
            seconds = bag.take(worker.number)
            if seconds is None:
                seconds = OVER if self._over(worker.name) else ASK_AGAIN
        return f"{seconds:.6f}".encode()

    def _over(self, name: str) -> bool:
        """Return whether a bag's work is done; record the time of it."""
        if self.bags[name].empty:
            self.emptied_at.setdefault(name, time.time())
        return name in self.emptied_at


class BagServer:
    """Task server for bags, in a thread of its own."""

    def __init__(self, address: str, directory: Path) -> None:
        """``address``: of this host. ``directory``: for certificate and workers' files."""
        self._certificate = load_or_create(directory)
        self._listening = listening_socket(address)
        self.port = int(self._listening.getsockname()[1])
        token = secrets.token_bytes(TOKEN_BYTES)
        self.board = BagBoard(token)
        contact = f"{self._certificate.fingerprint} {token.hex()}".encode()
        self.files = [directory / name for name in (WORKER, CONNECTION_FILE, CONTACT)]
        """What a worker needs: its program, the connection, and what it proves itself by."""
        texts = {**node_files("koala_experiments", "worker", WORKER), CONTACT: contact}
        for path in self.files:
            path.touch(mode=0o600)
            path.write_bytes(texts[path.name])

    async def begin(self) -> None:
        """Start accepting workers."""
        self.board.server.listen(self._listening, self._certificate, asyncio.get_running_loop())


@contextmanager
def bag_server(address: str, directory: Path) -> Iterator[BagServer]:
    """Run a server during the block."""
    with start_blocking_portal() as portal:
        server = BagServer(address, directory)
        portal.call(server.begin)
        try:
            yield server
        finally:
            portal.call(server.board.server.close)
