# SPDX-License-Identifier: Apache-2.0
"""Real agent processes and a real control center on the loopback interface, for the tests of both."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio

from koala_adapter.errors import JournalBlockedError
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.service.results import Results
from koala_adapter.vjm.center import ControlCenter
from koala_adapter.vjm.certificate import digest, load_or_create, matches, new_token, server_context
from koala_adapter.vjm.channel import FileAck, FilePiece, TaskFiles
from koala_adapter.vjm.jobscript import AgentConfig, render_job_script
from koala_adapter.vjm.listener import AgentEvent, AgentListener, AgentRegistered, AgentReport, TaskListener

E = TypeVar("E")

BATCH = BatchKey("koala-test-1")
INDEX_VARIABLE = "TEST_ARRAY_INDEX"
ID_VARIABLE = "TEST_JOB_ID"


LIVENESS = 90.0
"""Seconds within which what is expected must have happened; generous, for other tests run on the same processors."""


def placeholder(index: int = 1) -> PlaceholderId:
    """Return the identity of a placeholder of the test batch."""
    return PlaceholderId(batch=BATCH, index=index)


class Site(AgentListener, TaskListener):
    """One control center with its files, and the agents that were started for it."""

    def __init__(self, directory: Path, *, lease: float = 120.0, heartbeat: float = 2.0) -> None:
        self.directory = directory
        self.certificate = load_or_create(directory / "state")
        self.token = new_token()
        self.lease = lease
        self.heartbeat = heartbeat
        self.port = 0
        self.events: list[AgentEvent | AgentReport] = []
        self.rejected: list[str] = []
        self.unwritten: list[tuple[str, str, Path, str]] = []
        self.written: list[tuple[str, str]] = []
        """What the center was told of pieces of output that could not be written."""
        self.unbindable = False
        """Whether the owner of a placeholder cannot be noted at present."""
        self.bound: dict[PlaceholderId, str] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.results: Results | None = None
        self.inputs: dict[str, Path] = {}
        """Input files by the digests of their contents."""
        self.sent: list[str] = []
        """A task for each piece of its input files that was sent."""
        self.after_piece: tuple[int, Callable[[], object]] = 0, lambda: None
        """What is done after so many of them."""
        self.at_end = AsyncExitStack()
        """Takes what is to be closed before the center goes."""
        self._news = anyio.Event()
        self.center = self._new_center()

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return the digest of the session that owns ``placeholder``."""
        return self.bound.get(placeholder)

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Remember the owner."""
        if self.unbindable:
            raise JournalBlockedError("the journal cannot be written")
        self.bound[placeholder] = session_hash

    def output(self, task: str, stream: str = "out") -> bytes:
        """Return what has arrived of a stream."""
        path = self.directory / "output" / f"{task}.{stream}"
        return path.read_bytes() if path.exists() else b""

    async def wait_for(self, kind: type[E], where: Callable[[E], bool] = lambda _: True, *, after: int = 0) -> E:
        """Return the first event of a kind, as soon as there is one; those before number ``after`` do not count."""
        with anyio.fail_after(LIVENESS):
            while True:
                for event in self.events[after:]:
                    if isinstance(event, kind) and where(event):
                        return event
                await self.news()

    async def registered(self, index: int) -> AgentRegistered:
        """Return the first registration of the agent in a placeholder."""
        return await self.wait_for(AgentRegistered, lambda event: event.placeholder == placeholder(index))

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, of which no event may tell: another process's doing, or files."""
        with anyio.fail_after(LIVENESS):
            while not condition():  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def wait_for_output(self, task: str, expected: bytes) -> None:
        """Wait until exactly this has arrived of a task's standard output."""
        await self.wait_until(lambda: self.output(task) == expected)

    async def news(self) -> None:
        """Wait until something has happened."""
        await self._news.wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the control center during the block, on the same port each time."""
        async with anyio.create_task_group() as tasks, AsyncExitStack() as self.at_end:
            self.center = self._new_center()
            self.port = await tasks.start(self.center.serve, "127.0.0.1", self.port)
            yield
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def serving_agent(self) -> AsyncIterator[subprocess.Popen[bytes]]:
        """Run the control center during the block, with one agent that has registered; give its process."""
        async with self.serving():
            process = self.start_agent()
            await self.wait_for(AgentRegistered)
            yield process

    def script(self, **changes: object) -> str:
        """Return the job script of the batch."""
        values: dict[str, object] = {
            "batch": BATCH, "host": "127.0.0.1", "port": self.port, "fingerprint": self.certificate.fingerprint,
            "lease": self.lease, "walltime": 600.0, "token": self.token,
        }  # fmt: skip
        agent = AgentConfig(**(values | changes))  # type: ignore[arg-type]
        return render_job_script(agent=agent, array_index_variable=INDEX_VARIABLE, job_id_variable=ID_VARIABLE)

    def start_agent(
        self, index: int = 1, *, script: str = "", environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start an agent as a batch system does: its script, a directory, an environment."""
        path = self.directory / f"script.{len(self.processes)}"
        path.touch(mode=0o600)
        path.write_text(script or self.script())
        process = subprocess.Popen(
            ["/bin/sh", str(path)],
            cwd=self.directory,
            env={
                "PATH": os.environ["PATH"],
                INDEX_VARIABLE: str(index),
                ID_VARIABLE: "77",
                "TMPDIR": str(self.directory),
            }
            | (environment or {}),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    async def ended(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Return exit status and stderr of an agent when it has ended."""
        with anyio.fail_after(LIVENESS):
            _, errors = await anyio.to_thread.run_sync(process.communicate)
        return process.returncode, errors.decode()

    def close(self) -> None:
        """End all agents that are left, and remove what they leave: pytest cannot remove trees as deep as these."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
            if process.stderr is not None:
                process.stderr.close()
        for left in self.directory.glob("koala-*"):
            subprocess.run(["chmod", "-R", "u+rwx", left], check=False, timeout=60)
            subprocess.run(["rm", "-rf", left], check=True, timeout=60)

    def _new_center(self) -> ControlCenter:
        return ControlCenter(self, self, server_context(self.certificate), lease=self.lease, heartbeat=self.heartbeat)

    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        """Admit the batch with its token."""
        return placeholder.batch == BATCH and matches(token, digest(self.token))

    def output_path(self, placeholder: PlaceholderId, task: str) -> Path:
        """Return where the output of a task goes."""
        del placeholder
        return self.directory / "output" / task

    def input_path(self, placeholder: PlaceholderId, task: str, content: str) -> Path | None:
        """Return where an input file is."""
        del placeholder, task
        return self.inputs.get(content)

    def on_input_sent(self, task: str, size: int) -> None:
        """Note a piece that was sent."""
        del size
        self.sent.append(task)
        if len(self.sent) == self.after_piece[0]:
            self.after_piece[1]()

    def take_file(self, placeholder: PlaceholderId, piece: FilePiece) -> FileAck:
        """Hand a piece of a file to the results, if there are any."""
        if self.results is None:
            return super().take_file(placeholder, piece)
        return self.results.take(placeholder, piece)

    async def check_file(self, placeholder: PlaceholderId, piece: FilePiece) -> FileAck:
        """Have the digest of a file compared."""
        assert self.results is not None
        return await self.results.check(placeholder, piece)

    def files_done(self, placeholder: PlaceholderId, files: TaskFiles) -> None:
        """Hand the report of files to the results, if there are any."""
        if self.results is not None:
            self.results.conclude(placeholder, files)

    def on_written(self, task: str, stream: str) -> None:
        """Keep what was written."""
        self.written.append((task, stream))

    def on_event(self, event: AgentEvent) -> None:
        """Keep an event."""
        self.events.append(event)
        self._wake()

    def on_report(self, placeholder: PlaceholderId, report: AgentReport) -> None:
        """Keep a message."""
        del placeholder
        self.events.append(report)
        self._wake()

    def on_rejected(self, address: str, fault: str) -> None:
        """Keep a fault."""
        del address
        self.rejected.append(fault)
        self._wake()

    def on_unwritten(self, task: str, stream: str, file: Path, why: str) -> None:
        """Keep what could not be written."""
        self.unwritten.append((task, stream, file, why))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()
