# SPDX-License-Identifier: Apache-2.0
"""Trials of ``koala check`` in real placeholders: reaching this host from the nodes, and the MPI of a cluster.

In this order: the probe of MPI, the control center for trials, connections between sites, and the trial of a cluster.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import ConfigurationError, KoalaError, LrmError
from koala_adapter.lrm import CheckResult
from koala_adapter.lrm.listing import attribute
from koala_adapter.lrm.rate import PollPace
from koala_adapter.model import BatchKey, LrmJobState, MpiResize, PlaceholderId
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.scheduler.reports import HOLDERS
from koala_adapter.service.agents import ScriptMaker, last_words, leave_token, words_paths
from koala_adapter.service.opening import token_path, words_directory
from koala_adapter.service.reachability import Contact, Prober, Tried, keep_tried
from koala_adapter.vjm import certificate, channel
from koala_adapter.vjm import certificate as credentials
from koala_adapter.vjm import listener as agentevents
from koala_adapter.vjm.center import ControlCenter
from koala_adapter.vjm.listener import AgentListener, TaskListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.lrm import Lrm
    from koala_adapter.lrm.commands import CommandRunner
    from koala_adapter.model import ClusterName, LrmJob, LrmJobId, TaskEnd


# -- What MPI on the nodes can do ----------------------------------------------------------------------------
# A small program is compiled in a placeholder, and spawns processes by MPI.

SUBJECT = "MPI"
PROBE_TIME = 60.0
"""Seconds that building and running it may take."""

_PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPI_Comm parent, children;
    int sum, one = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL)
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children, MPI_ERRCODES_IGNORE);
    else
        children = parent;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, children);
    if (parent == MPI_COMM_NULL && sum == 1) puts("it spawns");
    MPI_Comm_disconnect(&children);
    MPI_Finalize();
    return 0;
}
"""
_SCRIPT = r"""
command -v mpiexec.hydra >/dev/null || { echo "no mpiexec.hydra"; exit 0; }
command -v mpicc >/dev/null || { echo "no mpicc"; exit 0; }
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
printf '%s' "$1" >"$directory/probe.c"
mpicc -o "$directory/probe" "$directory/probe.c" >/dev/null 2>&1 || { echo "mpicc failed"; exit 0; }
timeout 30 mpiexec.hydra -launcher fork -n 1 "$directory/probe" 2>/dev/null </dev/null
exit 0
"""
MPI_PROBE = ("/bin/sh", "-c", _SCRIPT, "koala-mpi-probe", _PROGRAM)
"""Command of the placeholder."""
_UNTRIED = {
    "no mpiexec.hydra": "no mpiexec.hydra on the node's PATH: jobs of launcher mpi must name one in their environment",
    "no mpicc": "whether it can spawn was not tried: no mpicc on the node's PATH",
    "mpicc failed": "whether it can spawn was not tried: mpicc does not compile there",
}


def judged(end: TaskEnd | None, printed: str, said: MpiResize) -> CheckResult:
    """Return the results of a trial. ``said``: the cluster's table in the site file."""
    if end is None or not end.ok:
        return _result("not tried: the probe did not come to its end", said)
    for words, found in _UNTRIED.items():
        if words in printed:
            return _result(found, said)
    if "it spawns" not in printed:
        found = "cannot spawn: malleable MPI programs are started anew with each change"
        if said is MpiResize.RESTART:
            return _result(found, said)
        remedy = 'set mpi_resize = "restart" for this cluster'
        return CheckResult(subject=SUBJECT, ok=False, found=f"{found}; the site file says that it can", remedy=remedy)
    advice = '; say mpi_resize = "spawn" in the site file, so that koala knows it'
    return _result(f"can spawn{advice if said is MpiResize.RESTART else ''}", said)


def _result(found: str, said: MpiResize) -> CheckResult:
    return CheckResult(subject=SUBJECT, ok=True, found=f'{found} (mpi_resize = "{said}")')


# -- The control center of trials ----------------------------------------------------------------------------
# It serves ``koala check`` alone.

LEASE = 60.0
"""Should we be killed, a placeholder ends by itself so many seconds later."""
HEARTBEAT = 5.0


@dataclass(slots=True)
class Visit:
    """State of one trial placeholder."""

    token: str
    registered: anyio.Event = field(default_factory=anyio.Event)
    agent: agentevents.AgentRegistered | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    end: TaskEnd | None = None
    session: str | None = None


class TrialCenter(AgentListener, TaskListener):
    """A control center for trials only."""

    def __init__(self, site: SiteConfig, directory: Path, *, state: Path) -> None:
        """``directory``: private and temporary; ``state``: the service's. Nothing listens before :meth:`serve`."""
        self.state = state
        self._site = site
        self._directory = directory
        self._visits: dict[PlaceholderId, Visit] = {}
        self.rejected: list[str] = []
        """Peers that connected and did not prove themselves: address and fault."""
        own = certificate.load_or_create(directory / "certificate")
        self._fingerprint = own.fingerprint
        self.center = ControlCenter(self, self, certificate.server_context(own), lease=LEASE, heartbeat=HEARTBEAT)
        self.prober = Prober(self.center)
        self.port = 0

    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        """Admit expected placeholders."""
        visit = self._visits.get(placeholder)
        return visit is not None and secrets.compare_digest(visit.token, token)

    def output_path(self, placeholder: PlaceholderId, task: str) -> Path:
        """Return where the output of a command goes."""
        return self._directory / f"{placeholder}.{task}"

    def on_rejected(self, address: str, fault: str) -> None:
        """Keep what was wrong with a peer."""
        self.rejected.append(f"{address}: {fault}")

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return the digest of the session that owns a placeholder; None when there is none."""
        return self._visits[placeholder].session

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Give a placeholder to a session."""
        self._visits[placeholder].session = session_hash

    @property
    def address_here(self) -> tuple[str, int]:
        """Address and port at which this host reaches the trial's control center."""
        return self._site.control_center.address_here, self.port

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

    def expect(self, *placeholders: PlaceholderId) -> list[Visit]:
        """Make a token for the placeholders of a submission and let them in."""
        token = credentials.new_token()
        visits = [Visit(token=token) for _ in placeholders]
        self._visits.update(zip(placeholders, visits, strict=True))
        return visits

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

    def on_event(self, event: agentevents.AgentEvent) -> None:
        """Note the registration of an agent."""
        visit = self._visits.get(event.placeholder)
        if visit is not None and isinstance(event, agentevents.AgentRegistered):
            visit.agent = event
            visit.registered.set()

    def on_report(self, placeholder: PlaceholderId, report: agentevents.AgentReport) -> None:
        """Note the end of a task, and what an agent says of a connection."""
        if isinstance(report, channel.Probing | channel.Probed):
            self.prober.answered(report)
            return
        visit = self._visits.get(placeholder)
        if visit is not None and isinstance(report, channel.TaskEnded):
            visit.end = report.end
            visit.ended.set()


# -- Agents of several sites try whether they can connect ----------------------------------------------------

MEETING_TIME = 180.0
"""Seconds that one of them holds its processor for the others, and for what all of them try, at most."""


class Meeting:
    """The agents of trials, one for each cluster, that try to connect to each other."""

    def __init__(self, center: TrialCenter, clusters: Sequence[ClusterConfig]) -> None:
        """The agents of all ``clusters`` are awaited, where these are at several sites."""
        self._center = center
        several = len({one.site for one in clusters}) > 1
        self.sites = {one.cluster_name: one.site for one in clusters} if several else {}
        """Clusters that take part, with their sites."""
        self._awaited = set(self.sites)
        self._agents: dict[ClusterName, Contact] = {}
        self._changed = anyio.Event()
        self.tried: list[Tried] = []
        """What was found out."""
        self.over = anyio.Event()
        self._not_kept = ""

    async def attend(self, cluster: ClusterName, agent: Contact) -> None:
        """Take part with an agent, and return when all is tried, or it has waited long enough."""
        self._agents[cluster] = agent
        self.stay_away(cluster)
        with anyio.move_on_after(MEETING_TIME):
            await self.over.wait()
        self._agents.pop(cluster, None)

    def stay_away(self, cluster: ClusterName) -> None:
        """Note that no agent of a cluster is to be waited for any more."""
        self._awaited.discard(cluster)
        self._changed.set()

    async def run(self) -> None:
        """Wait for the agents, and have them try."""
        while self._awaited:
            await self._changed.wait()
            self._changed = anyio.Event()
        agents = dict(self._agents)
        wanted = [(one, other) for one in agents for other in agents if self.sites[one] != self.sites[other]]
        await self._center.prober.try_all(wanted, agents, self._found)
        try:
            keep_tried(self._center.state, self.tried)
        except OSError as error:
            self._not_kept = str(error)
        self.over.set()

    def _found(self, cluster: ClusterName, other: ClusterName, connects: bool) -> None:  # noqa: FBT001 - what was found
        self.tried.append(Tried(cluster=cluster, other=other, connects=connects, at=time.time()))

    def results(self) -> list[CheckResult]:
        """Return for each cluster to which others its nodes connect."""
        kept = [_bad("kept", self._not_kept, "make room in the state directory")] if self._not_kept else []
        return [*map(self._result, self.sites), *kept]

    def _result(self, cluster: ClusterName) -> CheckResult:
        found = {one.other: one.connects for one in self.tried if one.cluster == cluster}
        others = [name for name, site in self.sites.items() if site != self.sites[cluster]]
        kinds = {
            "connect to": [name for name in others if found.get(name) is True],
            "do not connect to": [name for name in others if found.get(name) is False],
            "did not try": [name for name in others if name not in found],
        }
        said = "; ".join(f"{words} {', '.join(names)}" for words, names in kinds.items() if names)
        return _good(f"nodes of {cluster}", said)


# -- The trial of one cluster --------------------------------------------------------------------------------
# Real placeholders show whether its nodes reach this host.
#
# Two are submitted, because a batch system may give all of a submission the same number, and then a job with several
# placeholders would never be complete. One is used. They use the same scripts, certificate and channel as those of
# jobs, with a control center of their own, so that they need no service and disturb none.

COMMAND_TIME = 60.0
"""Seconds that a command in the placeholder may take, there and back."""
SOFTWARE_TIME = 60.0
"""Seconds for all lines that make software available together."""
GOING_TIME = 60.0
"""Seconds that a placeholder may take to go once it was told to; a listing that was asked for later decides."""
LEAVING_TIME = 30.0
"""Seconds for placeholders to end when this process must end; the lease ends those that are slower."""
PYTHON_PROBE = ("/bin/sh", "-c", 'exec "$(readlink /proc/$PPID/exe)" --version 2>&1')
"""Asks the interpreter that runs the agent for its version."""
COUNT = 2
"""Placeholders of a trial."""
SECOND_TIME = 60.0
"""Seconds that the second may take to report after the first, when it runs."""
WAITING_TIME = 4.0
"""Seconds for a placeholder that waits to be seen: there may be no room for it."""
GONE = frozenset({LrmJobState.ENDED})
WORTH_TELLING = 5.0
"""Seconds for which the bound of requests has kept us from looking, at least, where it is told."""


def software_tries(config: ClusterConfig) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return commands, and the lines of a shell before each, that try what a site file says of the software there."""
    tries: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    if config.setup:
        tries["setup"] = (("true",), config.setup)
    for name, lines in config.software.items():
        tries[f"software {name}"] = (("true",), (*config.setup, *lines))
    if config.container_runtime is not None:
        tries["container_runtime"] = ((config.container_runtime, "--version"), config.setup)
    return tries


class Trial:
    """The trial of one cluster."""

    def __init__(
        self,
        center: TrialCenter,
        config: ClusterConfig,
        lrm: Lrm,
        commands: CommandRunner,
        *,
        timeout: float,
        tell: Callable[[str], None],
        meeting: Meeting | None = None,
    ) -> None:
        """``lrm`` is started. ``timeout``: seconds for the placeholder to report; ``tell`` hears of the progress.

        ``meeting``: of agents at other sites, with which its own one is to try connections.
        """
        self._center = center
        self._config = config
        self._lrm = lrm
        self._timeout = timeout
        self._tell = tell
        self._commands = commands
        self._meeting = meeting if meeting is not None and config.cluster_name in meeting.sites else None
        self._paused = 0.0
        self._batch = BatchKey(f"koala-{secrets.token_hex(4)}-1")
        count = min(COUNT, config.parameters.placeholders_in_flight)
        numbers = [PlaceholderId(batch=self._batch, index=index) for index in range(1, count + 1)]
        self._visits = dict(zip(numbers, center.expect(*numbers), strict=True))
        self._ids: dict[PlaceholderId, LrmJobId] = {}
        self._seen: dict[PlaceholderId, LrmJob] = {}
        self._trouble = ""
        self._left = False
        self._pace = PollPace(config.requests_per_minute)

    async def run(self) -> tuple[CheckResult, ...]:
        """Submit the placeholders, wait for them, use one, and see them gone. Raises nothing but cancellation."""
        token_file = token_path(self._config, self._batch)
        started = time.monotonic()
        try:
            if token_file is not None:
                leave_token(token_file, next(iter(self._visits.values())).token)
            self._tell("submitting placeholders")
            self._ids = dict(zip(self._visits, await self._submit(), strict=False))
            with anyio.move_on_after(self._timeout):
                await self._wait_for_agents()
            if len(self._silent()) == len(self._visits):
                # The last look may be old, or not have come about at all: the bound of requests puts looks off.
                await self._look()
            reported = next((id_ for id_, visit in self._visits.items() if visit.agent is not None), None)
            if reported is None:
                return (await self._silence(),)
            held = await self._use(reported, time.monotonic() - started)
            mpi = [await self._try_mpi(reported), *await self._try_software(reported)] if held.ok else []
            told_apart = self._told_apart()
            await self._meet(reported)
            self._tell("waiting until the placeholders have gone")
            # Those first that have not reported: one that waits would start when another goes.
            await self._cancel(self._silent())
            self._release(1.0)
            return (held, *mpi, told_apart, await self._leave())
        except (OSError, KoalaError) as error:
            hint = error.hint if isinstance(error, KoalaError) else ""
            said = error.message if isinstance(error, KoalaError) else str(error)
            return (_bad("placeholder", said, hint or "`koala script` shows what is submitted"),)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVING_TIME):
                await self._clean_up()
            if token_file is not None:
                token_file.unlink(missing_ok=True)

    async def _cancel(self, placeholders: Iterable[PlaceholderId]) -> None:
        seen = [self._seen[id_] for id_ in placeholders if id_ in self._seen]
        left = [job.id for job in seen if job.state not in GONE]
        if left:
            await self._lrm.cancel(left)

    def _release(self, seconds: float) -> None:
        for placeholder in self._visits:
            self._center.center.tell(placeholder, channel.Release(grace=seconds))

    async def _submit(self) -> tuple[LrmJobId, ...]:
        limit = self._config.parameters.walltime_limit
        walltime = int(self._timeout + COMMAND_TIME + PROBE_TIME + GOING_TIME)
        walltime += int(SOFTWARE_TIME) if software_tries(self._config) else 0
        walltime += 0 if self._meeting is None else int(MEETING_TIME)
        action = SubmitPlaceholders(
            batch=self._batch,
            cluster=self._config.cluster_name,
            count=len(self._visits),
            walltime=walltime if limit is None else min(walltime, limit),
        )
        submission = self._center.scripts.submission(
            action,
            self._config,
            self._lrm,
            next(iter(self._visits.values())).token,
            door=self._commands.host.door,
        )
        with self._commands.submitting():
            return await self._lrm.submit(submission)

    async def _wait_for_agents(self) -> None:
        """Return when the agents have reported, or when it is clear that no more of them will soon."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_until_over, tasks.cancel_scope)
            for visit in self._visits.values():
                await visit.registered.wait()
            tasks.cancel_scope.cancel()

    async def _look_until_over(self, scope: anyio.CancelScope) -> None:
        first_at: float | None = None
        while True:
            await self._look()
            if any(visit.agent is not None for visit in self._visits.values()):
                first_at = time.monotonic() if first_at is None else first_at
                if time.monotonic() > first_at + (SECOND_TIME if self._others_run() else WAITING_TIME):
                    scope.cancel()
            elif len(self._seen) == len(self._visits) and all(job.state in GONE for job in self._seen.values()):
                await self._pause()
                scope.cancel()
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the LRM should be looked at again: check must not use up the requests that it needs itself."""
        begun = anyio.current_time()
        await anyio.sleep(self._pace.pause(begun))
        self._paused += anyio.current_time() - begun

    def _silent(self) -> list[PlaceholderId]:
        return [id_ for id_, visit in self._visits.items() if visit.agent is None]

    def _others_run(self) -> bool:
        """Tell whether a placeholder that has not reported is on a node: it may do so any moment."""
        return any(id_ in self._seen and self._seen[id_].nodes for id_ in self._silent())

    async def _look(self) -> bool:
        """Read the LRM's word on the placeholders; tell whether one is listed and has not ended."""
        before = self._commands.window.total
        try:
            listing = await self._lrm.jobs(name_prefix=self._batch)
        except LrmError as error:
            self._trouble = error.message
            return True
        finally:
            self._pace.polled(anyio.current_time(), self._commands.window.total - before)
        self._trouble = ""
        user = self._commands.host.user
        jobs = attribute(listing, {id_: self._ids.get(id_) for id_ in self._visits}, user=user).jobs
        self._seen |= jobs
        if not jobs:
            ours = set(self._ids.values())
            owners = ", ".join(sorted({other.user for other in listing if other.id in ours} - {user}))
            self._trouble = f"(the batch system shows it as a job of {owners}, koala runs as {user})" if owners else ""
            return False
        waiting = next((job for id_, job in jobs.items() if self._visits[id_].agent is None), None)
        if waiting is not None:
            reason = f" ({waiting.reason})" if waiting.reason else ""
            node = f" on {waiting.nodes[0]}, its agent has not reported yet" if waiting.nodes else ""
            self._tell(f"a placeholder is {waiting.state.value}{node or reason}")
        return any(job.state not in GONE for job in jobs.values())

    def _told_apart(self) -> CheckResult:
        """Check that each placeholder of a submission knows its index."""
        subject, variable = "numbers", self._lrm.array_index_variable
        count, silent = len(self._visits), self._silent()
        if count == 1:
            return _good(subject, "not tried: the site file allows one placeholder at a time (placeholders_in_flight)")
        if not silent:
            return _good(subject, f"the {count} placeholders of a submission told them apart ({variable})")
        job = self._seen.get(silent[0])
        if job is not None and not job.nodes and job.state not in GONE:
            return _good(subject, f"not tried: only one of {count} placeholders found room")
        said = _joined(self._words(), self._center.rejected[-2:])
        found = f"of {count} placeholders of one submission only one reported{said}"
        remedy = (
            f"each must find a number of its own in {variable}: see what sets it in jobs of this batch system; "
            "for plugin drmaa, submission = 'single' makes each a job of its own"
        )
        return _bad(subject, found, remedy)

    async def _use(self, placeholder: PlaceholderId, waited: float) -> CheckResult:
        """Run a command in a placeholder; its output must come back."""
        agent = self._visits[placeholder].agent
        if agent is None:
            raise LrmError("the placeholder has not reported")
        where = f"{agent.host} ({agent.address}) reported {waited:.1f} s after its submission"
        sent = time.monotonic()
        end = await self._run(placeholder, "probe", PYTHON_PROBE, COMMAND_TIME)
        taken, python = (time.monotonic() - sent) * 1000, self._center.printed(placeholder, "probe")
        if end is None or not end.ok:
            said = "did not come back" if end is None else f"ended badly: {end.reason.value} {end.detail} {python}"
            return _bad("placeholder", f"agent on {where}, but a command {said}", "see the agent's output on the node")
        return _good("placeholder", f"agent on {where}; {python}; a command and its output took {taken:.0f} ms")

    async def _run(
        self, placeholder: PlaceholderId, task: str, argv: tuple[str, ...], seconds: float, setup: tuple[str, ...] = ()
    ) -> TaskEnd | None:
        """Run a command in a placeholder; return how it ended, or None when nothing is known of that in time."""
        visit = self._visits[placeholder]
        visit.ended, visit.end = anyio.Event(), None
        self._center.center.tell(placeholder, channel.Launch(task=task, argv=argv, setup=setup, time_limit=seconds))
        with anyio.move_on_after(seconds):
            await visit.ended.wait()
        return visit.end

    async def _try_mpi(self, placeholder: PlaceholderId) -> CheckResult:
        """Find out whether MPI programs can spawn processes there."""
        self._tell("trying what MPI can do there")
        end = await self._run(placeholder, "mpi", MPI_PROBE, PROBE_TIME, self._config.setup)
        return judged(end, self._center.printed(placeholder, "mpi"), self._config.mpi_resize)

    async def _try_software(self, placeholder: PlaceholderId) -> list[CheckResult]:
        """Run the lines of the site file that make software available there, and ask for the container runtime."""
        until = time.monotonic() + SOFTWARE_TIME
        results = []
        for number, (subject, (argv, setup)) in enumerate(software_tries(self._config).items(), start=1):
            self._tell(f"trying {subject}")
            left = until - time.monotonic()
            task = f"software{number}"
            end = await self._run(placeholder, task, argv, left, setup) if left > 0 else None
            said = self._center.printed(placeholder, task) or "its lines ran"
            if end is not None and end.ok:
                results.append(_good(subject, said))
                continue
            found = f"not over in {SOFTWARE_TIME:g} s" if end is None else f"{end.reason.value}: {end.detail or said}"
            results.append(_bad(subject, found, "see setup, software and container_runtime of this cluster"))
        return results

    async def _meet(self, placeholder: PlaceholderId) -> None:
        """Have the agent try to connect to those at other sites, when they have reported."""
        agent = self._visits[placeholder].agent
        if self._meeting is not None and agent is not None:
            self._tell("waiting for agents at other sites, to try whether nodes connect")
            contact = Contact(placeholder, agent.address)
            await self._meeting.attend(self._config.cluster_name, contact)

    async def _leave(self) -> CheckResult:
        """Wait until the placeholders are gone. Looks are counted, not seconds: the rate limit may delay them."""
        begun, unseen_before = time.monotonic(), self._unseen()
        while True:
            asked_after = time.monotonic() - begun
            if not await self._look():
                self._left = True
                found = f"seen gone {time.monotonic() - begun:.1f} s after it was released"
                unseen = self._unseen() - unseen_before
                if unseen >= WORTH_TELLING:
                    found += f", for {unseen:.1f} s of which nobody looked, to stay within the bound of requests"
                return _good("released", found)
            if asked_after >= GOING_TIME:
                break
            await self._pause()
        remedy = "it ends by its lease; `koala reap --all` cancels what stays"
        if self._trouble:
            return _bad("released", f"nobody knows whether it has gone: {self._trouble}", remedy)
        return _bad("released", f"still listed {asked_after:.0f} s after it was released", remedy)

    def _unseen(self) -> float:
        """Return the seconds since the last look that the rate limit has allowed."""
        return self._paused + self._commands.put_off

    async def _clean_up(self) -> None:
        if not self._left:
            self._release(0.0)
            with suppress(KoalaError):
                await self._see_off()
        with suppress(KoalaError):
            self._lrm.forget(self._batch)
        for path in self._output_files():
            with suppress(OSError):
                path.unlink()
            with suppress(OSError):
                if path.parent.name in {str(id_) for id_ in self._visits}:
                    path.parent.rmdir()

    async def _see_off(self) -> None:
        """Cancel placeholders and wait until they are gone."""
        # At once what is known: cancels do not wait for the bound of requests, looks do.
        await self._cancel(self._visits)
        if await self._look():
            await self._cancel(self._visits)
            while await self._look():
                await self._pause()

    # ---- when nobody reports --------------------------------------------------------------------------------------

    async def _silence(self) -> CheckResult:
        job, address = self._most_telling(), self._site_address
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
        if job.state is LrmJobState.HELD:
            return await self._in_hold(job)
        if not job.nodes:
            reason = f" ({job.reason})" if job.reason else ""
            found = f"not tried: still {job.state.value} after {self._timeout:.0f} s{reason}"
            return _bad("placeholder", found, "try again when the cluster is less full, with --timeout, or --no-submit")
        found = f"runs on {job.nodes[0]}, but its agent has not reported; it was told to go to {address}{said}"
        setting = "control_center.address to an address of this host that they reach, and control_center.port for a "
        if not self._commands.host.here:
            setting = "`listen` of the site to an address of its login node that they reach; the port is kept for a "
        remedy = f"let the nodes connect to {address} (TCP; a firewall?), or set {setting}firewall rule"
        return _bad("placeholder", found, remedy)

    async def _in_hold(self, job: LrmJob) -> CheckResult:
        """Say who keeps a placeholder from starting, and who could let it."""
        name = self._config.name
        by_hook = False
        if self._lrm.capabilities.hold:
            with suppress(LrmError):
                by_hook = job.id in {held.id for held in await self._lrm.held_by_hook()}
        holder = "the site's hook for an outside scheduler" if by_hook else HOLDERS[job.hold]
        reason = f" ({job.reason})" if job.reason not in ("", job.state.value) else ""
        found = f"not tried: in hold by {holder.removeprefix('by ')}{reason} for {self._timeout:.0f} s"
        remedy = (
            f"nobody releases it: start what does (`koala schedule --cluster {name}`, `koala wiki serve`), or give the "
            f"queue back to the batch system (`koala schedule --give-back {name}`)"
            if by_hook
            else "whoever holds it must release it; `koala check --outside` tells whether the site holds all jobs"
        )
        return _bad("placeholder", found, remedy)

    def _most_telling(self) -> LrmJob | None:
        """Return the placeholder that came farthest: running, else waiting, else ended."""
        jobs = sorted(self._seen.values(), key=lambda job: (job.state in GONE, not job.nodes))
        return next(iter(jobs), None)

    @property
    def _site_address(self) -> str:
        door = self._commands.host.door
        host, port = door or (self._center.scripts.site.node_address(self._config), self._center.port)
        return f"{host}:{port}"

    def _output_files(self) -> tuple[Path, ...]:
        """Return the placeholder's own output, where the directory is shared with the node."""
        directory = words_directory(self._config, self._center.state)
        return tuple(path for id_ in self._visits for path in words_paths(directory, id_))

    def _words(self) -> list[str]:
        """Return the last that the placeholder itself said."""
        return [text for path in self._output_files() if (text := last_words(path))]


def _joined(*groups: Sequence[str]) -> str:
    return "".join(f"\n{line}" for group in groups for line in group)


def _good(subject: str, found: str) -> CheckResult:
    return CheckResult(subject=subject, ok=True, found=found)


def _bad(subject: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
