# SPDX-License-Identifier: Apache-2.0
"""What ``koala check`` looks at in one cluster, from the outside in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from koala_adapter.config.sitemodel import shortest_poll_interval
from koala_adapter.errors import KoalaError, LrmError
from koala_adapter.plugin import CheckResult
from koala_adapter.plugin.commands import login_name
from koala_adapter.plugin.limits import URGENT_SHARE, WINDOW
from koala_adapter.service.clusterdriver import close_lrm, make_lrm
from koala_adapter.service.poller import read_cluster
from koala_adapter.sitecheck.progress import Progress
from koala_adapter.sitecheck.trialplaceholder import Trial

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.model import Queue
    from koala_adapter.plugin import Lrm, PluginDefinition
    from koala_adapter.plugin.commands import CommandRunner
    from koala_adapter.sitecheck.trialcenter import TrialCenter

LISTINGS_AS_OWNER = 30
"""In a minute, by whoever starts all jobs."""
LEAST_RATE = 60
"""Starts a minute below which an outside scheduler keeps processors idle."""
REACH_TIME = 10.0
"""Seconds that a request may take until its cluster is known to answer: a person waits for it, and Slurm's own commands
give up after as long (MessageTimeout)."""
UNANSWERED = (
    f"see whether the batch system is up; this check waits {REACH_TIME:.0f} s for its first answer, "
    "jobs as long as the settings of the cluster say"
)
STEP_TIME = 60.0 + WINDOW
"""Seconds that each step of a cluster's check may take, its wait for the bound of requests included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCheck:
    """Checks one cluster."""

    config: ClusterConfig
    plugins: Mapping[str, PluginDefinition]
    directory: Path
    """The state directory."""
    tell: Callable[[str], None]
    """Hears what is being looked at."""
    center: TrialCenter | None
    """Where a placeholder is to report; None: none is submitted."""
    timeout: float
    """Seconds that a placeholder may take to report."""
    outside: bool = False
    """Look also at what an outside scheduler needs."""

    async def run(self) -> list[CheckResult]:
        """Return what was found; what builds on a failure is left out."""
        try:
            lrm, commands = make_lrm(self.config, self.plugins, self.directory)
        except (OSError, KoalaError) as error:
            return [CheckResult(subject="plugin", ok=False, found=str(error))]
        progress = Progress(self.tell, commands)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(progress.tell_waits)
                results = await replace(self, tell=progress).look(lrm, commands)
                tasks.cancel_scope.cancel()
            return results
        finally:
            await close_lrm(lrm)

    async def look(self, lrm: Lrm, commands: CommandRunner) -> list[CheckResult]:
        """Return what was found of a cluster whose plugin has not started yet."""
        self.tell("starting")
        commands.patience = REACH_TIME
        try:
            with anyio.fail_after(STEP_TIME):
                await lrm.start()
        except (LrmError, TimeoutError) as error:
            remedy = UNANSWERED if commands.unanswered else _hint(error)
            start = CheckResult(subject="start", ok=False, found=_said(error), remedy=remedy)
            return [start, *await self._plugin_checks(lrm)]
        commands.patience = REACH_TIME if commands.unanswered else None
        results = await self._plugin_checks(lrm)
        commands.patience = REACH_TIME if commands.unanswered else None
        if not any(result.subject == "version" for result in results):
            results.append(await self._step("version", lrm.version))
        results.append(await self._step("nodes", lambda: self._nodes(lrm)))
        answers = results[-1].ok
        if not answers and commands.unanswered:
            return results  # each further question would wait as long
        results.append(await self._queue(lrm))
        results.append(self._requests(lrm))
        if answers and self.outside:
            self.tell("trying whether jobs come in held")
            results += [self._rate_of_starts(lrm), *await lrm.check_outside()]
        if answers and self.center is not None and lrm.capabilities.submit:
            trial = Trial(
                self.center,
                self.config,
                lrm,
                timeout=self.timeout,
                tell=self.tell,
                put_off=lambda: commands.put_off,
            )
            results += await trial.run()
        return results

    async def _plugin_checks(self, lrm: Lrm) -> list[CheckResult]:
        self.tell("looking at commands and libraries")
        try:
            with anyio.fail_after(2 * STEP_TIME):
                return list(await lrm.check())
        except TimeoutError as error:
            return [CheckResult(subject="plugin", ok=False, found=_said(error))]

    async def _step(self, subject: str, look: Callable[[], Awaitable[str]]) -> CheckResult:
        self.tell(f"asking for {subject}")
        try:
            with anyio.fail_after(STEP_TIME):
                return CheckResult(subject=subject, ok=True, found=await look())
        except (LrmError, TimeoutError) as error:
            return CheckResult(subject=subject, ok=False, found=_said(error), remedy=_hint(error))

    async def _nodes(self, lrm: Lrm) -> str:
        reading = await read_cluster(self.config, lrm, name_prefix="koala-", user=login_name(), read_at=0.0)
        if not reading.processors:
            raise LrmError("it lists no processors", hint="check the queue, and the settings, of this cluster")
        kept = self.config.parameters.threshold
        threshold = f", {kept} of them left to local users" if kept else ""
        if kept >= reading.processors:
            raise LrmError(
                f"threshold {kept} leaves nothing of its {reading.processors} processors",
                hint="lower `threshold` in the site file",
            )
        nodes = f"{len(reading.nodes)} node{'s' if len(reading.nodes) != 1 else ''}"
        return f"{nodes}, {reading.processors} processors, {reading.idle} idle{threshold}"

    async def _queue(self, lrm: Lrm) -> CheckResult:
        name = self.config.queue
        return await self._step(f"queue {name}" if name else "queue", lambda: self._queue_found(lrm))

    async def _queue_found(self, lrm: Lrm) -> str:
        queues = await lrm.queues()
        name = self.config.queue
        chosen = [queue for queue in queues if (queue.name == name if name else queue.default)]
        if name and not chosen and not lrm.capabilities.lists_queues:
            return f"{name} is asked for by its name; the LRM does not say whether there is such a queue"
        if name and not chosen:
            known = ", ".join(queue.name for queue in queues) or "none"
            raise LrmError(f"there is no queue {name!r}; there are: {known}", hint="correct `queue` in the site file")
        if not chosen:
            return f"the LRM chooses among {', '.join(queue.name for queue in queues) or 'its own'}"
        return self._described(chosen[0])

    def _described(self, queue: Queue) -> str:
        if not queue.up:
            raise LrmError(f"{queue.name} is not open", hint="wait until it is, or name another `queue`")
        limit, ours = queue.walltime_limit, self.config.parameters.walltime_limit
        if limit is None:
            return f"{queue.name}, no walltime limit"
        if ours is not None and ours > limit:
            raise LrmError(
                f"{queue.name} grants at most {limit} s, the site file promises {ours} s",
                hint=f"set walltime_limit = {limit} for this cluster",
            )
        advice = "" if ours is not None else f"; say walltime_limit = {limit} in the site file, so that koala knows it"
        return f"{queue.name}, walltime limit {limit} s{advice}"

    def _requests(self, lrm: Lrm) -> CheckResult:
        config, each = self.config, lrm.requests_per_poll
        shortest = shortest_poll_interval(config.requests_per_minute, each)
        found = f"a poll costs up to {each}, every {config.poll_interval:g} s, of {config.requests_per_minute} a minute"
        remedy = f"set poll_interval to {shortest:g} s or more, or raise requests_per_minute"
        return CheckResult(subject="requests", ok=config.poll_interval >= shortest, found=found, remedy=remedy)

    def _rate_of_starts(self, lrm: Lrm) -> CheckResult:
        """Say how many jobs a minute can be started within the bound, listings every other second counted."""
        bound, listings = self.config.requests_as_owner, LISTINGS_AS_OWNER * lrm.requests_per_poll
        rate = max(0, int(bound * (1 - URGENT_SHARE)) - listings) // lrm.requests_per_start
        wanted = -(-(LEAST_RATE * lrm.requests_per_start + listings) * 5 // 4)
        found = f"about {rate} starts a minute, of {bound} requests a minute"
        remedy = f"leave requests_per_minute out of the site file, or give {wanted} or more"
        return CheckResult(subject="rate of starts", ok=rate >= LEAST_RATE, found=found, remedy=remedy)


def _said(error: BaseException) -> str:
    if isinstance(error, KoalaError):
        return error.message
    return f"no answer within {STEP_TIME:.0f} s"


def _hint(error: BaseException) -> str:
    return error.hint if isinstance(error, KoalaError) else "is the batch system up?"
