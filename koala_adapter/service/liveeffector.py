# SPDX-License-Identifier: Apache-2.0
"""Carries out the scheduler's actions on real clusters and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from koala_adapter.errors import KoalaError
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.outcome import JobState
from koala_adapter.service.scriptmaker import last_words, leave_token, token_path, words_directory, words_paths
from koala_adapter.vjm import credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from koala_adapter.model import BatchKey, ClusterName, PlaceholderId
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.archive import Archive
    from koala_adapter.service.clusterdriver import ClusterDriver
    from koala_adapter.service.journal import Journal
    from koala_adapter.service.reception import Reception
    from koala_adapter.service.resizing import Resizing
    from koala_adapter.service.scriptmaker import ScriptMaker
    from koala_adapter.service.servicemeter import ServiceMeter

log = structlog.get_logger()


class LiveEffector:
    """Does what the scheduler of a service wants done."""

    def __init__(  # noqa: PLR0913 - all parts of a service that something can be wanted of
        self,
        directory: Path,
        *,
        journal: Journal,
        state: Callable[[], State],
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
        clusters: Mapping[ClusterName, ClusterDriver],
        reception: Reception,
        applications: Applications,
        resizing: Callable[[], Resizing],
        archive: Archive,
        meter: ServiceMeter,
        scripts: Callable[[], ScriptMaker | None],
    ) -> None:
        """``directory``: of the service's state. ``scripts``: None before the control center listens."""
        self._report = report
        self._clock = clock
        self._directory = directory
        self._journal = journal
        self._state = state
        self._clusters = clusters
        self._reception = reception
        self._applications = applications
        self._resizing = resizing
        self._archive = archive
        self._meter = meter
        self._scripts = scripts
        self.with_secrets: set[BatchKey] = set(journal.batches_with_secrets())
        """Submissions whose secrets are kept."""

    # ---- placeholders ---------------------------------------------------------------------------------------------

    def submit_placeholders(self, action: act.SubmitPlaceholders) -> None:
        """See Effector."""
        driver = self._clusters[action.cluster]
        token = credentials.new_token()
        self._journal.set_token(action.batch, token)
        self.with_secrets.add(action.batch)
        scripts = self._scripts()
        if scripts is None:
            return
        try:
            path = token_path(driver.config, action.batch)
            if path is not None:
                leave_token(path, token)
            driver.submit(scripts.submission(action, driver.config, driver.lrm, token))
        except (OSError, KoalaError) as error:
            self._report(ev.BatchRejected(time=self._clock(), batch=action.batch, reason=str(error)))

    def end_placeholders(self, action: act.EndPlaceholders) -> None:
        """See Effector."""
        driver = self._clusters.get(action.cluster)
        to_cancel = []
        for placeholder, lrm_id in zip(action.placeholders, action.lrm_ids, strict=True):
            told = self._reception.release(placeholder)
            if action.force:
                goes_by_itself = self._applications.files_under_way(placeholder)
            else:
                goes_by_itself = told or self._has_more_to_say(placeholder)
            if lrm_id and not goes_by_itself:
                to_cancel.append(lrm_id)
        if driver is not None:
            driver.cancel(to_cancel)
            driver.poller.poll_soon()

    def _has_more_to_say(self, placeholder: PlaceholderId) -> bool:
        """Tell whether an agent that is out of contact keeps output that is still wanted.

        It is then told to end when it comes back, or cancelled when that takes longer than the scheduler's patience.
        """
        record = self._state().placeholders.get(placeholder)
        if record is None or record.silent_since is None:
            return False
        job = self._state().jobs[record.job_id]
        return job.launched_at is not None and job.state is not JobState.CANCELLED

    def read_output(self, action: act.ReadPlaceholderOutput) -> None:
        """See Effector."""
        driver = self._clusters.get(action.cluster)
        if driver is None:
            return
        paths = words_paths(words_directory(driver.config, self._directory), action.placeholder)
        said = next(filter(None, map(last_words, paths)), "")
        text = said or f"nothing that can be read from here (look at {paths[0]} on its node, if it has that directory)"
        log.warning(
            "placeholder did not report", cluster=action.cluster, placeholder=str(action.placeholder), wrote=text
        )
        self._report(ev.PlaceholderSaid(time=self._clock(), cluster=action.cluster, job_id=action.job_id, text=text))

    # ---- applications ---------------------------------------------------------------------------------------------

    def launch_job(self, action: act.LaunchJob) -> None:
        """See Effector."""
        self._applications.launch(action.job_id)
        self._meter.launched(action.job_id)

    def offer_processors(self, action: act.OfferProcessors) -> None:
        """See Effector."""
        self._resizing().offer(action)

    def request_processors(self, action: act.RequestProcessors) -> None:
        """See Effector."""
        self._resizing().request(action)

    def take_processors(self, action: act.TakeProcessors) -> None:
        """See Effector."""
        self._resizing().take(action)

    def withdraw_offer(self, action: act.WithdrawOffer) -> None:
        """See Effector."""
        log.info("an offer was withdrawn", job=action.job_id, reason=action.reason)
        self._resizing().withdraw(action)

    def grant_processors(self, action: act.GrantProcessors) -> None:
        """See Effector."""
        log.info("processors were granted", job=action.job_id, processors=action.processors, reason=action.reason)
        self._resizing().grant(action)

    def finish_job(self, action: act.FinishJob) -> None:
        """See Effector."""
        outcome = action.outcome
        log.info("job ended", job=action.job_id, state=outcome.state.value, detail=outcome.detail)
        self._archive.ended(action.job_id)
        self._meter.ended(action.job_id, outcome.state)

    def report_refused_answer(self, action: act.ReportRefusedAnswer) -> None:
        """See Effector."""
        log.error("a policy of this site is at fault", reason=action.reason)

    def correct_outcome(self, action: act.CorrectOutcome) -> None:
        """See Effector."""
        log.info("job ended otherwise", job=action.job_id, detail=action.outcome.detail)
        self._archive.keep(action.job_id)
