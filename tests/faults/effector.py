# SPDX-License-Identifier: Apache-2.0
"""Carries the scheduler's actions out in the simulated world, and checks each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from koala_adapter.model import EndReason, JobId, RunnerName, TaskEnd
from koala_adapter.outcome import LAUNCHED_STATES, PlaceholderState
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import Approach
from tests.faults.adaptive import Adaptive
from tests.faults.applications import FOR_EVER, Applications, Sized, Workers
from tests.faults.faults import SubmissionFate
from tests.faults.files import Transfers
from tests.faults.lrm import TO_AGENT, TO_CENTER, SimulatedAgent, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import BatchKey, ClusterName, LrmJobId, PlaceholderId
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord
    from tests.faults.driver import SimulatedService
    from tests.faults.lrm import Element, SimulatedLrm

STRANGER = "mallory"
OF_OTHERS = re.compile(r"for (a job that waits|jobs that wait) in ")
"""How the reason of a step reads that frees processors for jobs of others."""
UNUSED = 100_000
"""Submissions of so high a number are none of ours, although their names look so."""


class SimulatedEffector:
    """The hands of one service."""

    def __init__(self, service: SimulatedService) -> None:
        """What is done here is done by the process that the service is at that moment."""
        self._service = service
        self._clock = service.clock
        self._faults = service.faults
        self.applications = Applications(service)
        self.transfers = Transfers(service)
        self.workers = Workers(service)
        self.adaptive = Adaptive(service)
        self.sized = Sized(service, self.workers, self.adaptive)
        self._keys: set[str] = set()
        self.shrunk_for_others = 0
        """Processors that were asked for because others wait."""
        self.agents: dict[str, SimulatedAgent] = {}
        self.refused: list[str] = []
        """What was wrong with policies of the site."""

    def carry_out(self, action: act.Action) -> None:  # noqa: C901, PLR0912 - one case for each kind of action
        match action:
            case act.SubmitPlaceholders():
                self._submit_placeholders(action)
            case act.EndPlaceholders():
                self._end_placeholders(action)
            case act.ReadPlaceholderOutput():
                self._read_output(action)
            case act.ReserveProcessors():
                self.transfers.reserve(action)
            case act.EndReservation():
                self.transfers.remove_reservations()
            case act.StageFiles():
                self.transfers.begin(action)
            case act.StopStaging():
                self.transfers.stop(action)
            case act.LaunchJob():
                self._launch_job(action)
            case act.OfferProcessors():
                self._tell(action)
            case act.RequestProcessors():
                self._request_processors(action)
            case act.TakeProcessors():
                self._take_processors(action)
            case act.WithdrawOffer() | act.GrantProcessors():
                # Those jobs whose size the service's own code does not change count on no offer, and take what comes.
                if self._changes(action.job_id):
                    self.sized.carry_out(action)
            case act.EndAttempt():
                self._end_attempt(action)
            case act.FinishJob():
                self._finish_job(action)
            case act.CorrectOutcome():
                assert self._service.outcomes[action.job_id], "corrected before it was told"
            case act.ReportRefusedAnswer():
                self.refused.append(action.reason)
            case _:
                assert_never(action)

    # ---- submissions -----------------------------------------------------------------------------------------------

    def _submit_placeholders(self, action: act.SubmitPlaceholders) -> None:
        key, service = action.batch, self._service
        assert key not in self._keys, "a submission is repeated under the same key"
        self._keys.add(key)
        service.judges[action.cluster].under_way.add(key)
        fate = self._faults.fate()
        if fate is SubmissionFate.REFUSED:
            refusal = ev.BatchRejected(time=service.now, batch=key, reason="refused")
            service.later(1.0, lambda: self._answer(action.cluster, key, refusal))
            return
        if fate is not SubmissionFate.TAKEN:
            doubt = ev.BatchUncertain(time=service.now, batch=key, reason="no answer")
            service.later(30.0, lambda: self._answer(action.cluster, key, doubt))
        if fate is not SubmissionFate.UNKNOWN_OUT:
            # The command runs in a process of its own, so it may outlive the service.
            late = fate is SubmissionFate.UNKNOWN_LATE
            delay = self._faults.chance.uniform(30.0, 40.0) if late else 0.3
            self._clock.after(delay, lambda: self._arrive(action, answered=fate is SubmissionFate.TAKEN))

    def _arrive(self, action: act.SubmitPlaceholders, *, answered: bool) -> None:
        service, key = self._service, action.batch
        lrm = service.lrms[action.cluster]
        if not lrm.up:
            doubt = ev.BatchUncertain(time=service.now, batch=key, reason="down")
            service.later(0.0, lambda: self._answer(action.cluster, key, doubt))
            return
        ids = lrm.submit(
            key,
            action.count,
            walltime=action.walltime,
            user=service.user,
            on_start=lambda element: self._started(lrm, element),
            on_killed=lambda element: self.agents.pop(element.id).killed(),
            processors=action.slot.threads,
        )
        if self._faults.imitated():
            for name in (key, f"{service.prefix}{UNUSED + len(lrm.submissions)}"):
                lrm.imitate(name, action.count + 1, user=STRANGER)
        answer = ev.BatchSubmitted(time=service.now, batch=key, lrm_ids=ids)
        if answered:
            service.later(self._faults.delay(), lambda: self._answer(action.cluster, key, answer))

    def _answer(self, cluster: ClusterName, key: BatchKey, event: ev.Event) -> None:
        self._service.judges[cluster].under_way.discard(key)
        self._service.post(replace(event, time=self._service.now))

    def _started(self, lrm: SimulatedLrm, element: Element) -> None:
        service = self._service
        agent = SimulatedAgent(self._clock, lrm, element, service, lease=service.parameters.lease)
        agent.mute = self._faults.hit(self._faults.mute)
        self.agents[element.id] = agent

    # ---- ends ------------------------------------------------------------------------------------------------------

    def _end_placeholders(self, action: act.EndPlaceholders) -> None:
        to_cancel = []
        for placeholder, lrm_id in zip(action.placeholders, action.lrm_ids, strict=True):
            agent = self._service.connected.get(placeholder)
            if agent is not None and agent.connection is not None:
                agent.connection.send(TO_AGENT, agent.finish)
            if lrm_id and (action.force or agent is None):
                to_cancel.append(lrm_id)
        self.cancel(action.cluster, to_cancel)

    def cancel(self, cluster: ClusterName, ids: list[LrmJobId]) -> None:
        """Have elements cancelled after a while; the judge of the cluster hears of it when nobody answers."""
        lrm = self._service.lrms[cluster]

        def reach() -> None:
            if lrm.up:
                lrm.cancel(ids)
            else:
                self._service.judges[cluster].not_cancelled.update(ids)

        if ids:
            self._service.later(self._faults.delay(), reach)

    def _read_output(self, action: act.ReadPlaceholderOutput) -> None:
        service = self._service

        def said() -> None:
            service.post(
                ev.PlaceholderSaid(time=service.now, cluster=action.cluster, job_id=action.job_id, text="nothing")
            )

        service.later(self._faults.delay(), said)

    # ---- applications ----------------------------------------------------------------------------------------------

    def _launch_job(self, action: act.LaunchJob) -> None:
        state = self._service.state
        record = state.jobs[action.job_id]
        self.transfers.check_launch(record)
        slots: dict[str, Counter[PlaceholderId]] = {claim.component: Counter() for claim in record.claims}
        for rank in action.ranks:
            slots[rank.component][rank.placeholder] += 1
            placeholder = state.placeholders[rank.placeholder]
            assert placeholder.held_at is not None, "launched into a placeholder that was never held"
            assert not self._was_silent(placeholder), "launched into a silent placeholder"
            assert placeholder.job_id == action.job_id, "launched into another job's placeholder"
        for component in record.job.components:
            own = slots[component.name]
            assert component.minimum <= len(own) <= component.maximum, "launched on a wrong size"
            assert set(own.values()) == {component.slot.ranks}, "a slot has another number of ranks"
        assert sum(map(len, slots.values())) == len({rank.placeholder for rank in action.ranks})
        for id_ in dict.fromkeys(rank.placeholder for rank in action.ranks):
            self.start_in(id_)

    def _take_processors(self, action: act.TakeProcessors) -> None:
        state = self._service.state
        record = state.jobs[action.job_id]
        assert all(state.placeholders[rank.placeholder].held_at is not None for rank in action.ranks)
        assert not any(self._was_silent(state.placeholders[rank.placeholder]) for rank in action.ranks)
        first = action.ranks[0].rank
        assert action.ranks == record.ranks[first : first + len(action.ranks)]
        self._service.taken.append(action)
        if self._changes(action.job_id):
            self.sized.carry_out(action)
            return
        for rank in action.ranks:
            self.start_in(rank.placeholder)

    def _was_silent(self, placeholder: PlaceholderRecord) -> bool:
        # What is due is decided before the event that comes late, which may be the news of the silence itself.
        return placeholder.silent_since is not None and placeholder.silent_since != self._service.state.now

    def _request_processors(self, action: act.RequestProcessors) -> None:
        state = self._service.state
        step = state.clusters[action.cluster].step
        # Beside a step, jobs are asked for what their owners no longer want.
        change = state.jobs[action.job_id].changes.get(action.number)
        in_step = change is not None and change.in_step
        if step is not None and in_step and OF_OTHERS.search(step.reason):
            assert state.parameters.approach is Approach.PWA, "shrunk for others under another approach"
            wanted = sum(job.processors for job in state.clusters[action.cluster].others_waiting)
            assert step.value <= wanted or step.step.rounds > 1, "more than others want"
            self.shrunk_for_others += action.processors
        self._tell(action)

    def _tell(self, action: act.OfferProcessors | act.RequestProcessors) -> None:
        if self._changes(action.job_id):
            self.sized.carry_out(action)
        else:
            self.applications.told(action)

    def _changes(self, job_id: JobId) -> bool:
        """Tell whether the service's own code changes the size of a job; False: its application does as it pleases."""
        return self._service.state.jobs[job_id].job.runner in {RunnerName.WORKERS, RunnerName.ADAPTIVE}

    def resume(self) -> None:
        """Take up what the records say is under way, as the service does when it begins."""
        self.sized.resume()
        self.transfers.remove_reservations()

    def stir(self) -> None:
        self.applications.stir()

    def start_in(self, id_: PlaceholderId) -> None:
        """Send an agent the tasks that it should have; it passes over what it knows."""
        service = self._service
        agent, placeholder = service.connected.get(id_), service.state.placeholders.get(id_)
        if agent is None or agent.connection is None or placeholder is None:
            return
        record = service.state.jobs[placeholder.job_id]
        if placeholder.state is not PlaceholderState.LAUNCHED or record.state not in LAUNCHED_STATES:
            return
        for rank in [rank.rank for rank in record.ranks if rank.placeholder == id_]:
            self._start(agent, record, rank)

    def _start(self, agent: SimulatedAgent, record: JobRecord, rank: int) -> None:
        service = self._service
        seconds, end = service.runs.get(record.job.id, (50.0, TaskEnd(reason=EndReason.EXITED, exit_code=0)))
        if record.job.runner is RunnerName.WORKERS and not record.job.is_head(record.ranks[rank].component):
            seconds, end = self.workers.life(record.job, rank)
        adapts = record.job.adapts(record.ranks[rank].component)
        if adapts:
            seconds = FOR_EVER
        delivery = self._delivery(agent, Task(record.job.id, rank), seconds, end, record if adapts else None)
        if agent.connection is not None:
            agent.connection.send(TO_AGENT, delivery)

    def _delivery(
        self, agent: SimulatedAgent, task: Task, seconds: float, end: TaskEnd, adaptive: JobRecord | None
    ) -> Callable[[], None]:
        service = self._service
        attempt = service.state.jobs[JobId(task.job)].attempts_over

        def tell(news: Task) -> None:
            if news.end is not None:
                service.process_ends[news.job, news.rank] = news.end
            if agent.connection is not None and service.up:
                said = Task(news.job, news.rank, news.end)
                agent.connection.send(TO_CENTER, lambda: service.heard(agent.id, said))

        def deliver() -> None:
            if agent.start(task.job, task.rank, seconds, end, tell):
                started = (task.job, attempt, task.rank)
                service.process_starts[started] = service.process_starts.get(started, 0) + 1
                if adaptive is not None:
                    self.adaptive.start(agent, agent.tasks[task.rank], adaptive)

        return deliver

    # ---- outcomes --------------------------------------------------------------------------------------------------

    def _end_attempt(self, action: act.EndAttempt) -> None:
        seconds, end = self._service.runs.get(action.job_id, (50.0, TaskEnd(reason=EndReason.EXITED, exit_code=0)))
        if action.outcome.reason is EndReason.WALLTIME:  # it goes on from what it has saved
            walltime = self._service.state.jobs[action.job_id].job.walltime
            self._service.runs[action.job_id] = (max(1.0, seconds - walltime / 2), end)

    def _finish_job(self, action: act.FinishJob) -> None:
        assert not self.transfers.of(action.job_id), "files of a job that has ended are still brought"
        self._service.outcomes.setdefault(action.job_id, []).append(action.outcome)
        self.workers.finished(action.job_id)
        self.adaptive.finished(action.job_id)
