# SPDX-License-Identifier: Apache-2.0
"""Many negotiations at once: 10,000 open ones on one listener, and the decision of a service with 1,000 adaptive jobs.

*Open at once*: applications connect by TCP with one-time tokens, one after the other, ask for processors, are answered
with a promise from the book that all share, and stay. The listener is a process of its own, the one that `koala serve`
has. Told are the time from the connection to the answer, the listener's processor time, and what its memory has grown.

*Decision*: in one process the scheduler, the records of jobs that run, and the service's negotiation manager. A process
of one of the jobs asks for one more; the time is that from its frame to the frame of the answer: with the reading of
both templates, the scheduler's decision, and the look at all jobs that follows each event. The agents' channels are
left out. Once with as many jobs as are open at once above, each of which asks and has not committed itself at the end:
what such a negotiation takes and keeps in a whole service, with its record in a journal that is in memory, too.

    python benchmarks/negotiations_at_once.py [--open 10000] [--jobs 1000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from anyio.to_thread import run_sync

from benchmarks import cutoff
from koala_adapter import negotiation as nt
from koala_adapter.model import ClusterName
from koala_adapter.negotiation.serviceside.document import frame
from koala_adapter.negotiation.serviceside.endpoint import Endpoint, Limits
from koala_adapter.negotiation.serviceside.template import CPU, ResourceKey, Side
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.coordinator import note, payload_of
from koala_adapter.runners.runner import Application
from koala_adapter.scheduler.actions import GrantProcessors
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from koala_adapter.service.sizes.loop import Sizes
from koala_adapter.service.sizes.port import OneTimeTokens, PeerListener
from tests.granting import Conversation, Granter, Promised, ReservationBook
from tests.unit.scheduler.malleable_site import AdaptiveSite
from tests.unit.service.standincore import Center, StandInCore

if TYPE_CHECKING:
    from collections.abc import Collection
    from multiprocessing.connection import Connection

    from anyio.abc import SocketStream

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.applications import ApplicationListener

PROCESSORS = ResourceKey(type=CPU)
WANTED = 4
PATIENT = Limits(answer_within=3600.0)
"""All of them must be there before the first one's promise expires."""
ASKING = 50
"""Decisions that are measured."""


def wish(key: str = "1") -> bytes:
    """Return the frame of an application's first offer."""
    cpu = [nt.resource("CPU", 1)]
    within = 3600.0  # as long as all the others take to come
    offer = nt.template(key, "APPLICATION", "node7", "head", cpu, direction="grow", round=1, answer_within=within)
    return nt.frame(nt.build(offer))


def memory() -> float:
    """Return the KiB of memory that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1024


def serve(many: int, told: Connection) -> None:
    """Listen, and tell the port and the tokens, and when asked the memory and processor time so far."""
    book: ReservationBook[Promised] = ReservationBook({PROCESSORS: WANTED * many})

    async def converse(application: str, stream: SocketStream) -> None:
        endpoint = Endpoint(side=Side.RMS, host="head", peer=application, limits=PATIENT)
        granter = Granter(application, endpoint, book)

        def handle(event: object, now: float) -> None:
            granter.handle(event, now)  # type: ignore[arg-type]

        await Conversation(stream, endpoint, handle).run()

    async def run() -> None:
        tokens = OneTimeTokens()
        async with anyio.create_task_group() as tasks:
            listener = PeerListener(converse, tokens)
            port = await tasks.start(listener.serve_tcp)
            told.send((port, [tokens.issue(f"application {number}") for number in range(many)]))
            while True:
                await run_sync(told.recv, abandon_on_cancel=True)
                told.send((listener.connections, len(book.holders()), memory(), time.process_time()))

    anyio.run(run)


def received(stream: socket.socket, size: int) -> bytes:
    """Return so many bytes."""
    data = b""
    while len(data) < size:
        piece = stream.recv(size - len(data))
        assert piece, "the listener has closed the connection"
        data += piece
    return data


def open_at_once(many: int) -> None:
    """Print what so many open negotiations cost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard - 200
    if many > most:
        print(f"{many} connections are more than this shell allows ({soft} files): {most} instead")
        many = most
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(many, there), daemon=True)
    server.start()
    port, tokens = here.recv()
    here.send(None)
    _, _, before, began = here.recv()
    streams, times, offer = [], [], wish()
    for token in tokens:
        begin = time.perf_counter()
        stream = socket.create_connection(("127.0.0.1", port), timeout=60)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(nt.frame(nt.GREETING + token.encode()) + offer)
        answer = nt.parse(received(stream, int(received(stream, nt.HEADER_SIZE))))
        times.append(time.perf_counter() - begin)
        assert answer.status == "NT_ACCEPTED"
        streams.append(stream)
    here.send(None)
    connections, holders, after, ended = here.recv()
    assert (connections, holders) == (many, many)
    print(f"{many} open at once on one listener, by TCP")
    print(
        f"  connected, asked and answered: median {statistics.median(times) * 1e3:.2f} ms, least {min(times) * 1e3:.2f}"
    )
    print(f"  processor time of the listener: {(ended - began) / many * 1e6:.0f} us each")
    print(f"  memory of the listener: {(after - before) / many:.1f} KiB each")
    server.kill()
    server.join()
    for stream in streams:
        stream.close()


class Runners:
    """The runners of the jobs, where the service keeps them."""

    def __init__(self) -> None:
        """Nothing runs."""
        self.runners: dict[JobId, AdaptiveRunner] = {}
        self.listener: ApplicationListener | None = None

    def adaptive(self, record: JobRecord) -> AdaptiveRunner | None:
        """Return that of a job."""
        return self.runners.get(record.job.id)

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        """Start nothing."""


class UncheckedSite(AdaptiveSite):
    """A site of the tests without their checks of the scheduler's sums, which look at all jobs."""

    def post(self, event: Event) -> list[Action]:
        """Give the scheduler an event and return what it wants done."""
        actions = self.scheduler.handle(event)
        self.actions += actions
        return actions


class Service(Center):
    """The scheduler with so many adaptive jobs of two processes, and the negotiation manager."""

    def __init__(self, jobs: int) -> None:
        """All of them run, and their processes have joined."""
        cluster = ClusterParameters(name=ClusterName("a"), placeholders_in_flight=max(500, jobs))
        self.site = UncheckedSite({"a": 3 * jobs}, Approach.NONE, clusters=(cluster,))
        self.applications = Runners()
        self.heard: list[bytes] = []
        core = StandInCore(self, center=self)
        self.sizes = Sizes(core, self.applications)  # type: ignore[arg-type]  # it is all that is asked of them
        hello = note("hello", version=1, state="new", change=0, at=0, reached=0, contact="", sizes="any", pid=7)
        for number in range(jobs):
            id_ = str(number + 1)
            self.site.begin(id_, most=6)
            record = self.site.record(id_)
            self.applications.runners[record.job.id] = AdaptiveRunner(
                Application(job=record.job, ranks=record.ranks, clusters={"m": "a"}, files={"m": ()})
            )
            for rank in range(2):
                self.say(id_, frame(payload_of(hello)), rank)

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self.site.state

    @property
    def now(self) -> float:
        """Time of the site."""
        return self.site.now

    def post(self, event: Event) -> None:
        """Have the scheduler handle an event, and carry out what it grants."""
        for action in self.site.post(event):
            if isinstance(action, GrantProcessors):
                self.sizes.carry_out(action)
        self.sizes.follow(self.site.scheduler.touched(event))

    def tell_application(self, _placeholder: PlaceholderId, _task: str, data: bytes) -> bool:
        """Hear a frame."""
        self.heard.append(data)
        return True

    def say(self, id_: str, data: bytes, rank: int = 0) -> None:
        """Have a process say something."""
        record = self.site.record(id_)
        self.sizes.said(record, rank, data)


def decisions(jobs: int, asking: int) -> None:
    """Print how long the manager of so many running jobs takes to answer one of them, and what an open answer keeps."""
    service, times = Service(jobs), []
    kept, began = memory(), time.process_time()
    for number in range(min(jobs, asking)):
        data, before = wish(f"0-{number + 1}"), len(service.heard)
        begin = time.perf_counter()
        service.say(str(number + 1), data)
        times.append(time.perf_counter() - begin)
        answers = [nt.parse(one[nt.HEADER_SIZE :]) for one in service.heard[before:] if b"<NT " in one]
        assert [one.status for one in answers] == ["NT_ACCEPTED"], answers
    print(f"{jobs} running adaptive jobs, from a wish to its answer:", end=" ")
    print(f"median {statistics.median(times) * 1e3:.2f} ms, least {min(times) * 1e3:.2f}, most {max(times) * 1e3:.2f}")
    used, grown = time.process_time() - began, memory() - kept
    each = f"{used / len(times) * 1e6:.0f} us of processor time, {grown / len(times):.1f} KiB each"
    print(f"  {len(times)} open at once: {each}")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    given = parser.parse_args()
    cutoff.begin()
    open_at_once(given.open)  # first: its process begins as a copy of this one, with what this one has kept
    for jobs in sorted({10, given.jobs}):
        decisions(jobs, ASKING)
    decisions(given.open, given.open)


if __name__ == "__main__":
    main()
