# SPDX-License-Identifier: Apache-2.0
"""Drives one cluster's LRM for the service: polls it, submits to it, cancels in it, and reports by events.

Requests of one kind go out one after the other; every answer, and every failure to answer, becomes an event.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.batchsystem.listing import answering
from koala_adapter.errors import (
    LrmError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnreachableError,
    LrmUnsupportedError,
)
from koala_adapter.host.privatedirectory import make_private_directory
from koala_adapter.model import BatchKey, ClusterName, LrmJobId
from koala_adapter.plugin import ClusterContext, Submission
from koala_adapter.plugin.commands import CommandRunner, login_name
from koala_adapter.scheduler.events import (
    BatchAbsent,
    BatchRejected,
    BatchSubmitted,
    BatchUncertain,
    Event,
    PlaceholderEnded,
)
from koala_adapter.service.listingjudge import ClusterObservation, ListingJudge
from koala_adapter.service.poller import ClusterReading, Poller
from koala_adapter.service.requestwindows import request_window
from koala_adapter.service.scriptmaker import remove_token, token_path, words_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskStatus

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.model import LrmJob, PlaceholderId
    from koala_adapter.plugin import Lrm, PluginDefinition
    from koala_adapter.scheduler.records import State

CLOSING = 5.0
"""Seconds that a plugin may take to give its resources back."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverContext:
    """What a cluster driver needs from the service."""

    state: Callable[[], State]
    clock: Callable[[], float]
    report: Callable[[Event], None]
    in_contact: Callable[[PlaceholderId], bool]
    name_prefix: str
    user: str
    """Whose jobs are ours."""
    others_matter: Callable[[ClusterName], bool] = lambda _: False
    """Whether it matters which jobs of others wait on a cluster."""
    holding: Callable[[], bool] = lambda: False
    """Whether events wait: then what a listing shows would be judged by a state that is not what is known."""
    busy: Callable[[], bool] = lambda: True
    """Whether a job of ours is unfinished."""
    growth_waits: Callable[[ClusterName], bool] = lambda _: False
    """Whether a running job would take processors that come free on a cluster."""


def make_lrm(
    config: ClusterConfig, plugins: Mapping[str, PluginDefinition], directory: Path, *, owner: bool = False
) -> tuple[Lrm, CommandRunner]:
    """Return the LRM of a cluster, not started, and what bounds its requests.

    ``directory``: the state directory, below which the plugin gets its private one. ``owner``: we own the order of all
    jobs there, and may ask more often, unless the site says how often. Raises OSError.
    """
    per_minute = config.requests_as_owner if owner else config.requests_per_minute
    window = request_window(config, plugins[config.plugin], directory)
    commands = CommandRunner(per_minute=per_minute, shared=window)
    private = directory / "clusters" / config.name
    make_private_directory(private)
    if config.output_directory is None:
        make_private_directory(words_directory(config, directory))
    context = ClusterContext(
        cluster=config.cluster_name,
        commands=commands,
        state_directory=private,
        directives=config.directives.to_directives(),
        user=login_name(),
    )
    return plugins[config.plugin].factory(context, config.settings), commands


async def close_lrm(lrm: Lrm) -> None:
    """Give an LRM's resources back, also when we are being cancelled."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING), suppress(LrmError):
        await lrm.close()


class ClusterDriver:
    """One cluster of the site."""

    def __init__(self, config: ClusterConfig, lrm: Lrm, commands: CommandRunner, context: DriverContext) -> None:
        """``lrm`` is made but not started; :meth:`run` starts it, as often as needed."""
        self.config = config
        self.name: ClusterName = config.cluster_name
        self.lrm = lrm
        self.commands = commands
        self._context = context
        self.judge = ListingJudge(self.name, user=context.user, begun_at=context.clock())
        self._to_submit, self._submissions = anyio.create_memory_object_stream[Submission](1_000_000)
        self._to_cancel, self._cancels = anyio.create_memory_object_stream[tuple[LrmJobId, ...]](1_000_000)
        self._to_refine, self._lost = anyio.create_memory_object_stream[tuple[PlaceholderEnded, ...]](1_000_000)
        self.version: str | None = None
        """Name and version of the LRM, once it answered."""
        self._passed_over = False
        self.poller = Poller(
            config,
            lrm,
            name_prefix=context.name_prefix,
            user=context.user,
            clock=context.clock,
            on_reading=self._examine,
            on_failure=self._unavailable,
            others_matter=lambda: context.others_matter(self.name),
            busy=context.busy,
            growth_waits=lambda: context.growth_waits(self.name),
        )

    def look_again(self) -> None:
        """Have the cluster polled soon if what it showed last was passed over, since events waited."""
        if self._passed_over:
            self.poller.poll_soon()

    def submit(self, submission: Submission) -> None:
        """Have a submission sent; its outcome comes as an event."""
        self.judge.sending(submission.key)
        self._to_submit.send_nowait(submission)

    def cancel(self, ids: Iterable[LrmJobId]) -> None:
        """Have LRM jobs cancelled; their ends show in the next polls."""
        known = tuple(id_ for id_ in ids if id_)
        if known:
            self._to_cancel.send_nowait(known)

    def forget(self, batch: BatchKey) -> None:
        """Drop what was kept of a submission of which nothing is left; harmless for those of other clusters."""
        path = token_path(self.config, batch)
        try:
            if path is not None:
                remove_token(path)
            with answering(self.name):
                self.lrm.forget(batch)
        except (OSError, LrmError) as error:
            log.warning("what a submission needed cannot be removed", cluster=self.name, batch=batch, error=str(error))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve this cluster until cancelled. ``task_status`` is told after the first attempt to reach the LRM."""
        try:
            await self._start(task_status)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.poller.run)
                tasks.start_soon(self._submit_all)
                tasks.start_soon(self._cancel_all)
                tasks.start_soon(self._refine_all)
        finally:
            for sender in (self._to_submit, self._to_cancel, self._to_refine):
                sender.close()
            for receiver in (self._submissions, self._cancels, self._lost):
                receiver.close()
            with anyio.CancelScope(shield=True), anyio.move_on_after(5), suppress(LrmError), answering(self.name):
                await self.lrm.close()

    async def _start(self, task_status: TaskStatus[None]) -> None:
        pause = 1.0
        started = False
        while not started:
            try:
                with answering(self.name):
                    await self.lrm.start()
                    self.version = await self.lrm.version()
                started = True
            except LrmError as error:
                self._unavailable(error.message)
                log.warning("cluster cannot be started", cluster=self.name, error=str(error))
            task_status.started()
            task_status = anyio.TASK_STATUS_IGNORED
            if not started:
                await anyio.sleep(pause)
                pause = min(60.0, pause * 2)

    # ---- reading --------------------------------------------------------------------------------------------------

    def _examine(self, reading: ClusterReading) -> bool:
        if self._context.holding():
            self._passed_over = True
            return False
        self._passed_over = False
        capabilities = self.lrm.capabilities
        look = ClusterObservation(
            read_at=reading.read_at,
            processors=reading.processors,
            idle=reading.idle,
            ours=reading.ours,
            jobs=reading.jobs,
            tells_holders=capabilities.tells_holders or (capabilities.tells_own_holders and not reading.of_all_users),
            others_waiting=reading.others_waiting,
        )
        now = self._context.clock()
        judgement = self.judge.judge(self._context.state(), look, now=now, in_contact=self._context.in_contact)
        for event in judgement.events:
            self._context.report(event)
        if judgement.lost:
            self._to_refine.send_nowait(judgement.lost)
        self.cancel(judgement.cancel_again)
        if judgement.orphans:
            log.warning("cancelling placeholders that nobody owns", cluster=self.name, ids=list(judgement.orphans))
            self.cancel(judgement.orphans)
        return judgement.restless

    def _unavailable(self, reason: str) -> None:
        if self._context.holding():
            return
        event = self.judge.failed(self._context.state(), reason, now=self._context.clock())
        if event is not None:
            self._context.report(event)

    # ---- writing --------------------------------------------------------------------------------------------------

    async def _submit_all(self) -> None:
        async for submission in self._submissions:
            event = await self._submit_one(submission)
            self.judge.answered(submission.key)
            self._context.report(event)
            self.poller.poll_soon()

    async def _submit_one(self, submission: Submission) -> Event:
        key = submission.key
        if not self.poller.breaker.may_ask(anyio.current_time()):
            reason = self.poller.failure or "out of reach"
            return BatchAbsent(time=self._context.clock(), batch=key, reason=reason)
        try:
            with answering(self.name):
                ids = await self.lrm.submit(submission)
        except (LrmRejectedError, LrmUnsupportedError) as error:
            return BatchRejected(time=self._context.clock(), batch=key, reason=str(error))
        except LrmUnreachableError as error:
            self.poller.breaker.failed(anyio.current_time())
            return BatchAbsent(time=self._context.clock(), batch=key, reason=error.message)
        except LrmUnavailableError as error:
            self.poller.breaker.failed(anyio.current_time())
            log.warning("outcome of a submission is unknown", cluster=self.name, batch=key, error=str(error))
            return BatchUncertain(time=self._context.clock(), batch=key, reason=error.message)
        except LrmError as error:
            return BatchRejected(time=self._context.clock(), batch=key, reason=str(error))
        return BatchSubmitted(time=self._context.clock(), batch=key, lrm_ids=ids)

    async def _cancel_all(self) -> None:
        async for ids in self._cancels:
            gathered = list(ids)
            while self._cancels.statistics().current_buffer_used:
                gathered += self._cancels.receive_nowait()
            await self._cancel_now(gathered)

    async def _cancel_now(self, ids: Sequence[LrmJobId]) -> None:
        try:
            with answering(self.name):
                await self.lrm.cancel(tuple(dict.fromkeys(ids)))
        except LrmError as error:
            # The scheduler's own timer asks again, too, until the placeholders are seen gone.
            log.warning("cancelling failed", cluster=self.name, ids=list(ids), error=str(error))
            if isinstance(error, LrmUnavailableError):
                self.judge.not_cancelled(ids)
        self.poller.poll_soon()

    async def _refine_all(self) -> None:
        """Ask where placeholders are that the listing no longer shows, and of accounting how they ended.

        Of those that were moved to another LRM nothing is told: the next listing shows them.
        """
        async for events in self._lost:
            lost = await self._not_moved(events)
            ends = await self._history(lost) if self.lrm.capabilities.accounting else {}
            for event in lost:
                job = ends.get(event.placeholder)
                if job is not None and job.end is not None:
                    detail = job.reason or event.detail
                    event = replace(event, reason=job.end, detail=detail)  # noqa: PLW2901 - the same, told better
                self._context.report(event)

    async def _not_moved(self, events: Sequence[PlaceholderEnded]) -> Sequence[PlaceholderEnded]:
        ids = self.judge.unexplained(self._context.state(), events)
        if not ids:
            return events
        try:
            with answering(self.name):
                moved = await self.lrm.moved(list(ids.values()))
        except LrmError as error:
            # Missing at the next look, too, they are asked about again: without an answer nothing is known of them.
            log.warning("nothing is known of placeholders", cluster=self.name, ids=[*ids.values()], error=str(error))
            return [event for event in events if event.placeholder not in ids]
        for job in moved:
            log.info("a placeholder was moved", cluster=self.name, id=job.id, elsewhere=job.elsewhere)
        found = self.judge.explained(ids, moved)
        return [event for event in events if event.placeholder not in found]

    async def _history(self, events: Sequence[PlaceholderEnded]) -> dict[PlaceholderId, LrmJob]:
        ids = self.judge.unexplained(self._context.state(), events)
        if not ids:
            return {}
        try:
            with answering(self.name):
                told = await self.lrm.history(list(ids.values()))
        except LrmError as error:
            log.info("accounting does not tell", cluster=self.name, error=str(error))
            return {}
        return self.judge.explained(ids, told)
