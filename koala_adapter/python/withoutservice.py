# SPDX-License-Identifier: Apache-2.0
"""What a site answers while no service runs: from its journal, and from the batch systems themselves.

``Site`` imports this when it is needed; a client of a running service does without.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from koala_adapter.api.offline import (
    NO_INSTANCE,
    answer_report,
    ask_clusters,
    clean,
    next_submissions,
    read_record,
    recorded,
    tell_of,
)
from koala_adapter.api.reporting import plan_report
from koala_adapter.api.statedirectory import prepare_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.api.offline import ClusterAnswer, JournalView
    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.lrm import PluginDefinition
    from koala_adapter.model import Job
    from koala_adapter.report.sitevalues import CleanReport, ClusterReport, PlanReport, SampleSubmission
    from koala_adapter.scheduler.knownpolicies import Policies

    Plugins = Mapping[str, PluginDefinition]

ASKING = 60.0
"""Seconds that a cluster may take to answer."""


class WithoutService:
    """Answers from the journal of a state directory, and from the clusters of a site."""

    def __init__(self, directory: Path, policies: Policies) -> None:
        """``directory``: the state directory, there or not."""
        self._directory = directory
        self._policies = policies

    def recorded(self) -> JournalView:
        """Return what the journal says. Raises ServiceUnavailableError when there has never been a service."""
        return recorded(self._directory, self._policies)

    def plan(self, site: SiteConfig, plugins: Plugins, job: Job, tell: Callable[[str], None]) -> PlanReport:
        """Return where a job would go now. ``tell`` gets the names of clusters that have not answered yet."""
        record, answers = self._asked(site, plugins, tell)
        tell_of(record, answers, job)
        return plan_report(record.scheduler, job, now=record.now)

    def clusters(self, site: SiteConfig, plugins: Plugins, tell: Callable[[str], None]) -> list[ClusterReport]:
        """Return the clusters as they answer now. ``tell`` gets the names of those that have not answered yet."""
        record, answers = self._asked(site, plugins, tell)
        return [answer_report(record, answer, site) for answer in answers]

    def script(self, site: SiteConfig, plugins: Plugins, job: Job, cluster: str) -> tuple[list[SampleSubmission], str]:
        """Return the submissions as the next service would make them, and what in them is not certain yet."""
        config, record = site.cluster(cluster), self._record()
        samples = next_submissions(site, plugins, record, job, config)
        if record.instance != NO_INSTANCE:
            return samples, ""
        first = f"the first one replaces {NO_INSTANCE} in the names, and may choose another port"
        return samples, f"No service has run here yet: {first}."

    def clean(self, older: float, *, dry_run: bool) -> CleanReport:
        """Remove what is left of jobs that ended more than ``older`` seconds ago, or only tell."""
        return clean(self._directory, self._policies, older=older, dry_run=dry_run)

    def _record(self) -> JournalView:
        prepare_directory(self._directory)
        return read_record(self._directory, self._policies)

    def _asked(
        self, site: SiteConfig, plugins: Plugins, tell: Callable[[str], None]
    ) -> tuple[JournalView, Sequence[ClusterAnswer]]:
        """Return the record, with what the clusters have answered taken in, and these answers."""
        record = self._record()
        ask = partial(ask_clusters, site, plugins, record, timeout=ASKING, tell=tell)
        with start_blocking_portal() as portal:  # in a thread: the caller may have an event loop running in this one
            return record, portal.call(ask)
