# SPDX-License-Identifier: Apache-2.0
"""A batch system of a few lines behind a WIKI server: jobs start when they are told, unless a test says otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import anyio

from koala_adapter.errors import LrmError, LrmNotFoundError
from koala_adapter.host.metrics import process_meter
from koala_adapter.lrm import Capabilities, Lrm, PinnedStart, RenderedSubmission, Submission
from koala_adapter.lrm.startlog import StartLog
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.wiki.codec.frames import FrameReader, Key, open_reply, read_key, seal
from koala_adapter.wiki.codec.verbs import Reply, parse_reply
from koala_adapter.wiki.resource import WikiResource
from koala_adapter.wiki.serving import RunningJobsFile, Served, ServerOptions
from tests.sqlite_watch import closed_later

KEY = read_key("1234567890")
NOW = 1_795_000_000.0


def node(name: str, *, processors: int = 8, used: int = 0, state: NodeState = NodeState.UP) -> Node:
    return Node(name=name, state=state, processors=processors, processors_used=used, queues=("main",))


def job(id_: str, processors: int = 1, *, state: LrmJobState = LrmJobState.HELD, **more: object) -> LrmJob:
    """Return a job, held by the site unless another state is given."""
    waiting = LrmJob(
        id=LrmJobId(id_),
        name="job",
        state=state,
        user="ann",
        processors=processors,
        queue="main",
        submitted_at=NOW - 60,
        walltime=600,
        hold=HoldOwner.OPERATOR if state is LrmJobState.HELD else None,
    )
    return replace(waiting, **more)  # type: ignore[arg-type]


def running(id_: str, layout: dict[str, int], **more: object) -> LrmJob:
    """Return a job that runs on so many processors of each node."""
    places = tuple(layout.items())
    found = job(id_, sum(layout.values()), state=LrmJobState.RUNNING, layout=places, nodes=tuple(layout))
    return replace(found, **{"started_at": NOW - 10, "ends_at": NOW + 590, **more})  # type: ignore[arg-type]


@dataclass
class MemorySource(Lrm):
    """Nodes and jobs in memory."""

    node_list: list[Node] = field(default_factory=lambda: [node("n1"), node("n2"), node("n3"), node("n4")])
    job_list: dict[str, LrmJob] = field(default_factory=dict)
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(hold=True, pin=True))
    failure: LrmError | None = None
    start_failure: LrmError | None = None
    undo_failure: LrmError | None = None
    starts_after: float = 0.0
    """Seconds that a start takes."""
    never_starts: bool = False
    """A start only releases the job."""
    slow: float = 0.0
    """Seconds that a listing takes."""
    reads: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    confirmed: list[LrmJobId] = field(default_factory=list)

    def add(self, *jobs: LrmJob) -> None:
        """Have these jobs."""
        self.job_list.update((str(one.id), one) for one in jobs)

    async def version(self) -> str:
        """Return a name."""
        return "memory 1"

    async def queues(self) -> tuple[Queue, ...]:
        """Return none."""
        return ()

    def render(self, submission: Submission) -> RenderedSubmission:
        """Refuse: tests add jobs themselves."""
        self._unsupported("render", [submission.key])

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Refuse: tests add jobs themselves."""
        self._unsupported("submit", [submission.key])

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return all: the first half of a listing."""
        self.reads += 1
        await anyio.sleep(self.slow)
        if self.failure:
            raise self.failure
        return tuple(found for found in self.job_list.values() if found.name.startswith(name_prefix))

    async def nodes(self) -> tuple[Node, ...]:
        if self.failure:
            raise self.failure
        nodes = []
        for one in self.node_list:
            active = (found for found in self.job_list.values() if found.state is LrmJobState.RUNNING)
            used = sum(count for found in active for where, count in found.layout if where == one.name)
            nodes.append(replace(one, processors_used=max(used, one.processors_used)))
        return tuple(nodes)

    async def start_on(self, start: PinnedStart) -> None:
        """Let a job run there."""
        job = start.job
        self.calls.append(("start", f"{job} {':'.join(start.nodes)}"))
        if self.start_failure:
            raise self.start_failure
        self.job_list[job] = replace(self.job_list[job], state=LrmJobState.QUEUED, hold=None)
        await anyio.sleep(self.starts_after)
        if self.never_starts:
            return
        layout = tuple(start.counts.items())
        self.job_list[job] = replace(self.job_list[job], state=LrmJobState.RUNNING, layout=layout)

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """End a job."""
        (job,) = ids
        self.calls.append(("cancel", job))
        found = self.job_list.get(job)
        if found is None:
            raise LrmNotFoundError(f"no job {job}")
        self.job_list[job] = replace(found, state=LrmJobState.ENDED, end=EndReason.CANCELLED, ends_at=NOW)

    async def confirm_start(self, start: PinnedStart) -> None:
        """Take note of it."""
        self.confirmed.append(start.job)

    async def undo_start(self, start: PinnedStart) -> None:
        """Hold and untie a job."""
        job = start.job
        self.calls.append(("take back", job))
        if self.undo_failure:
            raise self.undo_failure
        if job not in self.job_list:
            raise LrmNotFoundError(f"no job {job}")
        held = replace(self.job_list[job], state=LrmJobState.HELD, hold=HoldOwner.OPERATOR)
        self.job_list[job] = held

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Stop a running job for now."""
        (job,) = ids
        self.calls.append(("suspend", job))
        self.job_list[job] = replace(self.job_list[job], state=LrmJobState.SUSPENDED)

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime."""
        self.calls.append(("modify", f"{job} {walltime}"))
        self.job_list[job] = replace(self.job_list[job], walltime=walltime)


@dataclass
class SlowSource(MemorySource):
    """A source whose listings, as things are when they are asked for, come when a test says so."""

    answers: anyio.Event = field(default_factory=anyio.Event)

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return all, later."""
        found = await super().jobs(name_prefix=name_prefix)
        await self.answers.wait()
        return found

    def answer_later(self) -> None:
        """Have listings wait from now on."""
        self.answers = anyio.Event()


class Server:
    """A WIKI server on a source in memory, asked without a socket."""

    def __init__(
        self,
        path: Path,
        source: MemorySource | None = None,
        *,
        key: Key | None = KEY,
        memory: RunningJobsFile | None = None,
        **options: object,
    ) -> None:
        """``options`` of the server."""
        self.source = source or MemorySource()
        self.options = replace(
            ServerOptions(cluster="alpha", cache=0.0, reply_within=60.0, start_reply_within=60.0, start_within=1.0),
            **options,  # type: ignore[arg-type]
        )
        self.key = key
        self.now = NOW
        self.set_by = 0.0
        """Seconds by which somebody has set the time of day, ``now``."""
        path.mkdir(exist_ok=True)
        self.starts = closed_later(StartLog(path / "starts.sqlite"))
        served = Served(
            self.source,
            self.options,
            self.starts,
            clock=lambda: self.now,
            steady=lambda: self.now - self.set_by,
            memory=memory,
        )
        self.resource = WikiResource(served, key, process_meter("wiki"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Have starts asked for and followed, and readings made, as a server does that runs."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.resource.readings.run)
            await tasks.start(self.resource.starts.run)
            yield self
            tasks.cancel_scope.cancel()

    async def until(self, happened: Callable[[], object]) -> None:
        """Wait until something has happened that is not announced."""
        with anyio.fail_after(60):
            while not happened():  # noqa: ASYNC110 - see above
                await anyio.sleep(0.01)

    async def seen(self, id_: str, *states: str) -> str:
        """Return the state of a job once it is one of these."""
        with anyio.fail_after(60):
            while (found := (await self.states())[id_]) not in states:  # noqa: ASYNC110 - it is not announced
                await anyio.sleep(0.01)
        return found

    def set_clock(self, seconds: float) -> None:
        """Set the time of day forward, or back."""
        self.now += seconds
        self.set_by += seconds

    async def frame(self, message: str | bytes, *, timestamp: float | None = None) -> bytes | None:
        text = message.encode() if isinstance(message, str) else message
        sealed = seal(text, key=self.key, timestamp=int(timestamp or self.now), user="maui")
        return await self.resource.answer(sealed[9:], "127.0.0.1")

    async def ask(self, message: str, *, timestamp: float | None = None) -> Reply:
        """Return the reply to a message such as ``GETJOBS ARG=0:ALL``."""
        frame = await self.frame(f"CMD={message}", timestamp=timestamp)
        assert frame is not None
        return parse_reply(self.opened(frame))

    def opened(self, frame: bytes) -> bytes:
        """Return a reply's message after Maui's checks."""
        payload = FrameReader().feed(frame)
        assert payload is not None
        return open_reply(payload, key=self.key, now=self.now)

    def opened_unsigned(self, frame: bytes) -> bytes:
        """Return the message of a reply to a stranger, which must not be signed."""
        payload = FrameReader().feed(frame)
        assert payload is not None
        assert b"CK=" not in payload
        return open_reply(payload, key=None, now=self.now)

    async def expect(self, message: str, status: int, words: str = "") -> None:
        """Check the status of a reply, and words in its text."""
        reply = await self.ask(message)
        assert (reply.status, words in reply.text) == (status, True), reply

    async def start(self, id_: str, *tasks: str, status: int = 0, words: str = "") -> None:
        """Ask for a start, on n3 where no tasks are given, and check the answer."""
        found = self.source.job_list.get(LrmJobId(id_))
        hosts = tasks or ("n3",) * (found.processors if found else 1)
        await self.expect(f"STARTJOB ARG={id_} TASKLIST={':'.join(hosts)}", status, words)

    async def record(self, id_: str) -> str:
        """Return the record of a job."""
        return (await self.records(f"GETJOBS ARG=0:{id_}"))[id_]

    async def records(self, message: str) -> dict[str, str]:
        """Return the records of a list, by their ids."""
        argument = (await self.ask(message)).require()
        count, _, rest = argument.partition("#")
        found = dict(text.partition(":")[::2] for text in rest.split("#") if text)
        assert len(found) == int(count)
        return found

    async def states(self) -> dict[str, str]:
        """Return the states of all jobs."""
        found = await self.records("GETJOBS ARG=0:ALL")
        return {id_: text.removeprefix("STATE=").partition(";")[0] for id_, text in found.items()}
