# SPDX-License-Identifier: Apache-2.0
"""One real placeholder in one cluster, to see whether its node reaches this host: the proof behind ``koala check``.

It goes through the same scripts, certificate and channel as those of jobs, to a control center of its own, so that it
needs no service and disturbs none.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import ConfigurationError, KoalaError, LrmError
from koala_adapter.model import BatchKey, LrmJobState, PlaceholderId
from koala_adapter.plugin import CheckResult
from koala_adapter.plugin.attribution import attribute
from koala_adapter.plugin.commands import login_name
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.service.scriptmaker import (
    ScriptMaker,
    last_words,
    leave_token,
    remove_token,
    token_path,
    words_directory,
    words_paths,
)
from koala_adapter.sitecheck import mpiprobe
from koala_adapter.vjm import agentevents, certificate, channel, credentials
from koala_adapter.vjm.center import ControlCenter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.model import LrmJob, LrmJobId, TaskEnd
    from koala_adapter.plugin import Lrm

LEASE = 60.0
"""Should we be killed, a placeholder ends by itself so many seconds later."""
HEARTBEAT = 5.0
LOOK = 1.0
"""Seconds between two looks at the LRM, at least; the bound of requests may make it more."""
COMMAND_TIME = 15.0
"""Seconds that a command in the placeholder may take, there and back."""
GOING_TIME = 30.0
"""Seconds that a placeholder may take to go once it was told to."""
LEAVING_TIME = 15.0
"""The same when we must go ourselves; its lease ends what is slower."""
PROBE = ("/bin/sh", "-c", 'exec "$(readlink /proc/$PPID/exe)" --version 2>&1')
"""Asks the interpreter that runs the agent for its version."""
GONE = frozenset({LrmJobState.ENDED})


@dataclass(slots=True)
class _Visit:
    """What is known of one placeholder."""

    token: str
    registered: anyio.Event = field(default_factory=anyio.Event)
    agent: agentevents.AgentRegistered | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    end: TaskEnd | None = None
    session: str | None = None


class TrialCenter:
    """A control center for trials only."""

    def __init__(self, site: SiteConfig, directory: Path, *, state: Path) -> None:
        """``directory``: private and temporary; ``state``: the service's. Nothing listens before :meth:`serve`."""
        self.state = state
        self._site = site
        self._directory = directory
        self._visits: dict[PlaceholderId, _Visit] = {}
        self.rejected: list[str] = []
        """Peers that connected and did not prove themselves: address and fault."""
        own = certificate.load_or_create(directory / "certificate")
        self._fingerprint = own.fingerprint
        self.center = ControlCenter(
            ssl_context=certificate.server_context(own),
            authenticate=lambda id_, token: (
                id_ in self._visits and secrets.compare_digest(self._visits[id_].token, token)
            ),
            sessions=self,
            on_event=self._on_event,
            output_path=lambda placeholder, task: directory / f"{placeholder}.{task}",
            lease=LEASE,
            heartbeat=HEARTBEAT,
            on_rejected=lambda address, fault: self.rejected.append(f"{address}: {fault}"),
        )
        self.port = 0

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """See SessionRegistry."""
        return self._visits[placeholder].session

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """See SessionRegistry."""
        self._visits[placeholder].session = session_hash

    async def serve(self, tasks: TaskGroup) -> None:
        """Listen where the service would, on its own port if that is free, else on another.

        Raises ConfigurationError when it cannot listen at all.
        """
        settings = self._site.control_center
        try:
            self.port = await tasks.start(self.center.serve, settings.listen, settings.port)
        except ConfigurationError:
            if not settings.port:
                raise
            self.port = await tasks.start(self.center.serve, settings.listen, 0)

    def expect(self, placeholder: PlaceholderId) -> _Visit:
        """Make a token for a placeholder and let it in."""
        visit = self._visits[placeholder] = _Visit(token=credentials.new_token())
        return visit

    @property
    def scripts(self) -> ScriptMaker:
        """What makes job scripts that report here."""
        return ScriptMaker(site=self._site, port=self.port, fingerprint=self._fingerprint, directory=self.state)

    def printed(self, placeholder: PlaceholderId, task: str) -> str:
        """Return what a command in a placeholder printed."""
        try:
            return (self._directory / f"{placeholder}.{task}.out").read_text(errors="replace").strip()
        except OSError:
            return ""

    def _on_event(self, event: agentevents.AgentEvent) -> None:
        visit = self._visits.get(event.placeholder)
        if visit is None:
            return
        if isinstance(event, agentevents.AgentRegistered):
            visit.agent = event
            visit.registered.set()
        elif isinstance(event, agentevents.AgentTaskEnded):
            visit.end = event.end
            visit.ended.set()


class Trial:
    """The trial of one cluster."""

    def __init__(
        self, center: TrialCenter, config: ClusterConfig, lrm: Lrm, *, timeout: float, tell: Callable[[str], None]
    ) -> None:
        """``lrm`` is started. ``timeout``: seconds for the placeholder to report; ``tell`` hears of the progress."""
        self._center = center
        self._config = config
        self._lrm = lrm
        self._timeout = timeout
        self._tell = tell
        self._id = PlaceholderId(batch=BatchKey(f"koala-{secrets.token_hex(4)}-1"), index=1)
        self._visit = center.expect(self._id)
        self._ids: tuple[LrmJobId, ...] = ()
        self._seen: LrmJob | None = None
        self._trouble = ""

    async def run(self) -> tuple[CheckResult, ...]:
        """Submit the placeholder, wait for it, use it, and see it gone. Raises nothing but cancellation."""
        token_file = token_path(self._config, self._id.batch)
        started = time.monotonic()
        try:
            if token_file is not None:
                leave_token(token_file, self._visit.token)
            self._tell("submitting a placeholder")
            self._ids = await self._submit()
            with anyio.move_on_after(self._timeout):
                await self._wait_for_agent()
            if self._visit.agent is None:
                return (self._silence(),)
            held = await self._use(self._visit.agent, time.monotonic() - started)
            mpi = [await self._try_mpi()] if held.ok else []
            self._tell("waiting until the placeholder has gone")
            self._center.center.release(self._id, 1.0)
            return (held, *mpi, await self._leave())
        except (OSError, KoalaError) as error:
            hint = error.hint if isinstance(error, KoalaError) else ""
            said = error.message if isinstance(error, KoalaError) else str(error)
            return (_bad("placeholder", said, hint or "`koala script` shows what is submitted"),)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVING_TIME):
                await self._clean_up()
            if token_file is not None:
                remove_token(token_file)

    async def _submit(self) -> tuple[LrmJobId, ...]:
        limit = self._config.parameters.walltime_limit
        walltime = int(self._timeout + COMMAND_TIME + mpiprobe.PROBE_TIME + GOING_TIME)
        action = SubmitPlaceholders(
            batch=self._id.batch,
            cluster=self._config.cluster_name,
            count=1,
            walltime=walltime if limit is None else min(walltime, limit),
        )
        return await self._lrm.submit(
            self._center.scripts.submission(action, self._config, self._lrm, self._visit.token)
        )

    async def _wait_for_agent(self) -> None:
        """Return when the agent has reported, or when its job has ended without."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_until_over, tasks.cancel_scope)
            await self._visit.registered.wait()
            tasks.cancel_scope.cancel()

    async def _look_until_over(self, scope: anyio.CancelScope) -> None:
        while True:
            await self._look()
            if self._seen is not None and self._seen.state in GONE:
                await anyio.sleep(LOOK)
                scope.cancel()
            await anyio.sleep(LOOK)

    async def _look(self) -> bool:
        """Read the LRM's word on the placeholder; tell whether it is listed and has not ended."""
        try:
            listing = await self._lrm.jobs(name_prefix=self._id.batch)
        except LrmError as error:
            self._trouble = error.message
            return True
        user = login_name()
        job = attribute(listing, {self._id: next(iter(self._ids), None)}, user=user).jobs.get(self._id)
        self._seen = job or self._seen
        if job is None:
            owners = ", ".join(sorted({other.user for other in listing if other.id in self._ids} - {user}))
            self._trouble = f"(the batch system shows it as a job of {owners}, koala runs as {user})" if owners else ""
            return False
        if self._visit.agent is None:
            reason = f" ({job.reason})" if job.reason else ""
            node = f" on {job.nodes[0]}, its agent has not reported yet" if job.nodes else ""
            self._tell(f"the placeholder is {job.state.value}{node or reason}")
        return job.state not in GONE

    async def _use(self, agent: agentevents.AgentRegistered, waited: float) -> CheckResult:
        """Run a command in the placeholder: what it prints must come back."""
        where = f"{agent.host} ({agent.address}) reported {waited:.1f} s after its submission"
        sent = time.monotonic()
        end = await self._run("probe", PROBE, COMMAND_TIME)
        taken, python = (time.monotonic() - sent) * 1000, self._center.printed(self._id, "probe")
        if end is None or not end.ok:
            said = "did not come back" if end is None else f"ended badly: {end.reason.value} {end.detail} {python}"
            return _bad("placeholder", f"agent on {where}, but a command {said}", "see the agent's output on the node")
        return _good("placeholder", f"agent on {where}; {python}; a command and its output took {taken:.0f} ms")

    async def _run(self, task: str, argv: tuple[str, ...], seconds: float) -> TaskEnd | None:
        """Run a command in the placeholder; return how it ended, or None when nothing is known of that in time."""
        self._visit.ended, self._visit.end = anyio.Event(), None
        self._center.center.launch(self._id, channel.Launch(task=task, argv=argv, time_limit=seconds))
        with anyio.move_on_after(seconds):
            await self._visit.ended.wait()
        return self._visit.end

    async def _try_mpi(self) -> CheckResult:
        """Find out whether MPI programs can spawn processes there."""
        self._tell("trying what MPI can do there")
        end = await self._run("mpi", mpiprobe.PROBE, mpiprobe.PROBE_TIME)
        return mpiprobe.judged(end, self._center.printed(self._id, "mpi"), self._config.mpi_resize)

    async def _leave(self) -> CheckResult:
        """See the placeholder gone."""
        begun = time.monotonic()
        with anyio.move_on_after(GOING_TIME):
            while await self._look():  # noqa: ASYNC110 - the LRM is asked, it does not tell
                await anyio.sleep(LOOK / 2)
            self._ids = ()
            return _good("released", f"gone {time.monotonic() - begun:.1f} s after it was released")
        remedy = "it ends by its lease; `koala reap --all` cancels what stays"
        return _bad("released", f"still listed after {GOING_TIME:.0f} s", remedy)

    async def _clean_up(self) -> None:
        self._center.center.release(self._id, 0.0)
        with suppress(KoalaError):
            if await self._look() and self._seen is not None:
                await self._lrm.cancel([self._seen.id])
                while await self._look():  # noqa: ASYNC110 - the LRM is asked, it does not tell
                    await anyio.sleep(LOOK)
        for path in self._output_files():
            with suppress(OSError):
                path.unlink()
            with suppress(OSError):
                if path.parent.name == str(self._id):
                    path.parent.rmdir()

    # ---- when nobody reports --------------------------------------------------------------------------------------

    def _silence(self) -> CheckResult:
        job, address = self._seen, f"{self._site_address}:{self._center.port}"
        said = _joined(self._words(), self._center.rejected[-2:])
        if job is None:
            why = f"was submitted, but is not listed after {self._timeout:.0f} s {self._trouble}".strip()
            return _bad(
                "placeholder", f"{why}{said}", "look for it in the LRM; `koala reap --all` cancels what is there"
            )
        if job.state in GONE:
            end = job.end.value if job.end else "ended"
            code = "" if job.exit_code is None else f", status {job.exit_code}"
            found = f"its job ended before its agent reported: {end}{code} {job.reason}".rstrip()
            return _bad("placeholder", f"{found}{said}", f"nodes need Python 3.6 or newer, and a way to {address}")
        if not job.nodes:
            reason = f" ({job.reason})" if job.reason else ""
            found = f"not tried: still {job.state.value} after {self._timeout:.0f} s{reason}"
            return _bad("placeholder", found, "try again when the cluster is less full, with --timeout, or --no-submit")
        found = f"runs on {job.nodes[0]}, but its agent has not reported; it was told to go to {address}{said}"
        remedy = (
            f"let the nodes connect to {address} (TCP; a firewall?), or set control_center.address to an address of "
            "this host that they reach, and control_center.port for a firewall rule"
        )
        return _bad("placeholder", found, remedy)

    @property
    def _site_address(self) -> str:
        return self._center.scripts.site.node_address(self._config)

    def _output_files(self) -> tuple[Path, ...]:
        """Return the placeholder's own output, where the directory is shared with the node."""
        return words_paths(words_directory(self._config, self._center.state), self._id)

    def _words(self) -> list[str]:
        """Return the last that the placeholder itself said."""
        return [text for path in self._output_files() if (text := last_words(path))]


def _joined(*groups: Sequence[str]) -> str:
    return "".join(f"\n{line}" for group in groups for line in group)


def _good(subject: str, found: str) -> CheckResult:
    return CheckResult(subject=subject, ok=True, found=found)


def _bad(subject: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
