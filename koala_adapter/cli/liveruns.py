# SPDX-License-Identifier: Apache-2.0
"""Runs workloads live for ``koala experiment``: a service inside this process, clusters, jobs at their times."""

from __future__ import annotations

import io
import shutil
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from koala_adapter.api.offline import read_record
from koala_adapter.api.statedirectory import ownership
from koala_adapter.api.temporaryclusters import end_daemons, temporary_directory
from koala_adapter.cli.innerservice import inner_service
from koala_adapter.cli.interrupts import Interrupts
from koala_adapter.cli.session import Session
from koala_adapter.cli.temporarysite import temporary_site
from koala_adapter.errors import KoalaError, SimulationError
from koala_adapter.liveworkload.bagserver import bag_server
from koala_adapter.liveworkload.jobs import bag_of, live_job, name_of
from koala_adapter.liveworkload.journalrecord import JournalRecord, mean
from koala_adapter.liveworkload.localsite import site_text
from koala_adapter.plugin.commands import login_name
from koala_adapter.service.journal import Journal
from koala_adapter.simulation.live_runs import LiveOutcome
from koala_adapter.simulation.platform import ClusterModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.liveworkload.bag import Bag
    from koala_adapter.liveworkload.bagserver import BagServer
    from koala_adapter.simulation.live_runs import LiveRun
    from koala_adapter.simulation.simulated_jobs import SimulatedJob

PREFIX = "koala-live-"
LOOK = 0.25
"""Seconds between two looks at the jobs."""
ENDING = 60.0
"""Seconds within which jobs that are cancelled on the clusters of a site must have ended."""
SEEN = 60.0
"""Seconds within which each cluster must have answered."""
NEVER = 10**9
"""Events after which a snapshot is taken: the journal of a run is read as a whole."""


def run_live(run: LiveRun, ended: Callable[[int], None]) -> LiveOutcome:
    """See RunsLive."""
    return carried_out(run, lambda running: _by_the_clock(running, ended))


def carried_out(run: LiveRun, work: Callable[[RunningService], None]) -> LiveOutcome:
    """Return what came out of a run whose jobs are submitted, and followed to their ends, by ``work``.

    Whatever comes between, the jobs that it submitted are cancelled first. Raises KoalaError.
    """
    with Interrupts() as interrupts, _site(run, interrupts) as session:
        session.progress = Console(file=io.StringIO())  # how far the experiment is shown moves on the terminal already
        with (
            bag_server(session.site.control_center.listen) as bags,
            ownership(session.directory, "koala experiment"),
            inner_service(session, interrupts, snapshot_interval=NEVER),
        ):
            clusters = _clusters(run, session)
            running = RunningService(run, session, bags)
            try:
                work(running)
            except BaseException:
                with interrupts.deferred():
                    running.cancel()
                raise
        return _outcome(run, session.directory, clusters, bags)


@contextmanager
def _site(run: LiveRun, interrupts: Interrupts) -> Iterator[Session]:
    """Yield a session on the clusters of a run, with a state directory of its own."""
    if not run.site:
        files = partial(_local, run)
        with temporary_site(interrupts, files, prefix=PREFIX) as session:
            yield session
        return
    session = Session(site_option=Path(run.site), state_option=temporary_directory(PREFIX))
    session.here.config = _steered(session.site, run)
    try:
        yield session
    finally:
        with interrupts.deferred():
            remove_session(session)


def _steered(site: SiteConfig, run: LiveRun) -> SiteConfig:
    """Return a site with the approach and the policy of a run."""
    how = {"approach": run.approach, "malleability": run.malleability}
    scheduler = site.scheduler.model_copy(update=how)
    clusters = tuple(one.model_copy(update={"malleability": None}) for one in site.clusters)
    return site.model_copy(update={"scheduler": scheduler, "clusters": clusters})


def remove_session(session: Session) -> None:
    """Remove the state directory, unless `koala reap` needs it."""
    if read_record(session.directory, session.policies).unfinished:
        return
    end_daemons(session.directory)
    shutil.rmtree(session.directory, ignore_errors=True)


def _local(run: LiveRun, directory: Path) -> Mapping[str, str]:
    return {"site.toml": site_text(run.clusters, run.approach, run.malleability, str(directory))}


def _clusters(run: LiveRun, session: Session) -> Sequence[ClusterModel]:
    """Return the clusters as they are; of those of a site, what nobody else uses now."""
    if not run.site:
        return run.clusters
    session.client.wait_until_seen(SEEN)
    open_ones = [one for one in session.client.clusters() if one.closed is None]
    usable = [(one, (one.processors or 0) - (one.others or 0) - one.down) for one in open_ones]
    found = [
        ClusterModel(name=one.name, nodes=processors, threshold=one.threshold)
        for one, processors in usable
        if processors > one.threshold
    ]
    if not found:
        raise SimulationError(f"{run.site}: no cluster has a free processor", hint="see `koala clusters`")
    return found


@dataclass(slots=True)
class RunningService:
    """The service of a run: takes its jobs, and tells of them."""

    run: LiveRun
    session: Session
    bags: BagServer
    submitted: list[str] = field(default_factory=list)

    def submit(self, job: SimulatedJob, bag: Bag) -> str:
        """Submit a job whose work is in a bag; return its id."""
        key = self.session.directory / "authkey"
        key.touch(mode=0o600)
        key.write_bytes(self.bags.key)
        self.bags.put({name_of(job): bag})
        live = live_job(
            job,
            address=self.session.site.control_center.node_address,
            port=self.bags.port,
            key=key,
            user=login_name(),
        )
        self.submitted.append(self.session.client.submit(live))
        return self.submitted[-1]

    def follow(self, ended: Callable[[int], None], *, until: float | None) -> bool:
        """Tell how many jobs have ended until all have, or a time has come; tell which of the two."""
        while True:
            reports = self.session.client.jobs(max(1, len(self.submitted)))
            over = sum(one.over for one in reports)
            ended(over)
            if until is None and over == len(self.submitted):
                return True
            left = LOOK if until is None else min(LOOK, until - time.monotonic())
            if left <= 0:
                return over == len(self.submitted)
            time.sleep(left)

    def cancel(self) -> None:
        """Cancel all jobs and wait for their ends. Raises KoalaError when these do not come."""
        for job_id in self.submitted:
            self.session.client.cancel(job_id)
        if not self.follow(lambda _ended: None, until=time.monotonic() + ENDING):
            where = f"--site {self.run.site} --state {self.session.directory}"
            raise KoalaError("jobs of the experiment have not ended", hint=f"see `koala {where} reap`") from None


def _by_the_clock(running: RunningService, ended: Callable[[int], None]) -> None:
    """Submit the jobs of a run at their times; return when all have ended."""
    run, begin = running.run, time.monotonic()
    for job in run.jobs:
        running.follow(ended, until=begin + job.submitted_at / run.pace)
        running.submit(job, bag_of(job, run.pace))
    running.follow(ended, until=None)


def _outcome(run: LiveRun, directory: Path, clusters: Sequence[ClusterModel], bags: BagServer) -> LiveOutcome:
    record = JournalRecord({name_of(job): job for job in run.jobs})
    with closing(Journal(directory / "journal.sqlite", read_only=True)) as journal:
        record.read(event for _, event in journal.recover()[1])
    if record.failed:
        raise SimulationError(f"jobs of the live run failed: {', '.join(record.failed)}", hint="see `koala check`")
    return LiveOutcome(
        outcome=record.outcome(run.pace),
        clusters=clusters,
        sizes=record.sizes(run.pace),
        held_after=mean(record.held_after, run.pace),
        computes_after=mean(record.computes_after(bags.joined_at), run.pace),
        known_after=mean(record.known_after(bags.emptied_at), run.pace),
        free_after=mean(record.free_after, run.pace),
    )
