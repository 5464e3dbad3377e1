# SPDX-License-Identifier: Apache-2.0
"""What is simulated is what runs: the same workload gives the same decisions, in the same order, in both.

The live service runs it on two local clusters with time scaled down; the simulator runs it in its own
time, with the same settings. What each journal leads to is compared: which component is claimed where and on how many
processors, which job is launched when, and in which order jobs end.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api.client import Client
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.config.sitefile import load_site
from koala_adapter.lrm import load_plugins
from koala_adapter.model import JobId
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.service.journal import Journal
from koala_adapter.service.service import configuration
from koala_adapter.simulation.placeholders import BatchSystem, Delays, Rigid, SimulatedService, run_to_end
from koala_adapter.simulation.world import Engine
from tests.local_koala import Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.model import Job
    from koala_adapter.scheduler.events import Event

SCALES = (12.0, 4.0)
"""So many simulated seconds are one second of the live run: first the quick way; where a busy machine upset that, once
more with time to spare."""
PROCESSORS = {"alpha": 4, "beta": 3}


@dataclass(frozen=True)
class Work:
    """A job of the workload, in simulated seconds."""

    at: float
    run: float
    sizes: tuple[int, ...]
    placement: str = "worst-fit"
    flexible: bool = False
    priority: int = 0

    def text(self, scale: float) -> str:
        """Return its job file for the live run."""
        head = f'placement = "{self.placement}"\nwalltime = 600\npriority = {self.priority}\n'
        parts = [
            f'[[components]]\ncommand = ["sleep", "{self.run / scale}"]\nprocessors = {size}\n'
            f"flexible = {str(self.flexible).lower()}\n"
            for size in self.sizes
        ]
        return head + "".join(parts)


WORKLOAD = (
    Work(at=0, run=65, sizes=(2, 2)),
    Work(at=15, run=110, sizes=(2,)),
    Work(at=28, run=40, sizes=(3,)),  # waits for beta
    Work(at=38, run=40, sizes=(1,)),  # passes it
    Work(at=45, run=20, sizes=(5,), placement="flexible-cluster-minimization", flexible=True),  # waits for both
    Work(at=52, run=35, sizes=(2, 2), placement="cluster-minimization", priority=1),  # goes before both
)


def job(number: int, work: Work, directory: Path, site: SiteConfig, now: float, scale: float) -> Job:  # noqa: PLR0917
    """Return a job of the workload."""
    return load_job_text(
        work.text(scale), directory=directory, job_id=JobId(str(number)), user="me", submitted_at=now, site=site
    )


def decisions(journal: Sequence[Event]) -> list[str]:
    """Return what the scheduler decides on these events, in order."""
    scheduler = Scheduler()
    found = []
    for event in journal:
        for action in scheduler.handle(event):
            match action:
                case act.SubmitPlaceholders():
                    batch = scheduler.state.batches[action.batch]
                    found.append(
                        f"claim {action.count} on {action.cluster} for {batch.component} of job {batch.job_id}"
                    )
                case act.LaunchJob():
                    ranks = len(action.ranks)
                    found.append(f"launch job {action.job_id} on {ranks} processors")
                case act.FinishJob():
                    found.append(f"job {action.job_id} {action.outcome.state.value}")
                case _:
                    pass
    return found


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give the command on two local clusters of 4 and 3 processors, which look at themselves twice a second."""
    with closing(Koala(tmp_path)) as made:
        text = made.site_file.read_text(encoding="utf-8")
        head, beta = text.rsplit("processors = 4", 1)
        made.site_file.write_text(f"{head}processors = {PROCESSORS['beta']}{beta}", encoding="utf-8")
        yield made


def live(koala: Koala, site: SiteConfig, scale: float) -> list[Event]:
    """Run the workload on the live service; return its journal."""
    service = koala.serve()
    client = Client(koala.state)
    begin = time.time()
    for number, work in enumerate(WORKLOAD, start=1):
        time.sleep(max(0.0, begin + work.at / scale - time.time()))
        assert client.submit(job(number, work, koala.directory, site, time.time(), scale)) == str(number)
    eventually(lambda: all(report.over for report in client.jobs()))
    service.terminate()
    service.communicate()
    with closing(Journal(koala.state / "journal.sqlite")) as journal:
        return [event for _, event in journal.recover()[1]]


def simulated(directory: Path, site: SiteConfig, scale: float) -> list[Event]:
    """Run the workload through the simulator, in its own time."""
    engine = Engine()
    systems = [BatchSystem(engine, one.cluster_name, PROCESSORS[one.name]) for one in site.enabled_clusters]
    configured = configuration(site, "sim", 0.0)
    parameters = replace(
        configured.parameters,
        scan_interval=configured.parameters.scan_interval * scale,
        placeholder_life=configured.parameters.placeholder_life * scale,
    )
    service = SimulatedService(
        engine,
        systems,
        parameters,
        configured.clusters,
        program_of=lambda record: Rigid(WORKLOAD[int(record.job.id) - 1].run),
        delays=Delays(submit=1.0, agent=(3.0, 5.0), release=3.0, poll=5.0),
    )
    engine.run(until=1.0)
    for number, work in enumerate(WORKLOAD, start=1):
        at = 1.0 + work.at
        one = job(number, work, directory, site, at, scale)
        engine.at(at, partial(service.submit, replace(one, walltime=int(one.walltime * scale))))
    engine.run(until=1.0 + WORKLOAD[-1].at)
    assert run_to_end(engine, [service], until=1e5)
    return service.journal


@pytest.mark.nightly  # it goes by the clock; tests/test_malleable_as_simulated.py compares step by step
def test_live_service_decides_as_the_simulator_does(koala: Koala) -> None:
    """Claims, launches and ends come in the same order, on the same clusters, with the same processors."""
    site = load_site(koala.site_file, load_plugins())
    quick, slow = (decisions(simulated(koala.directory, site, scale)) for scale in SCALES)
    assert quick == slow
    expected = quick
    assert sum(one.startswith("launch") for one in expected) == len(WORKLOAD)
    assert expected.index("claim 1 on beta for c1 of job 4") < expected.index("claim 3 on beta for c1 of job 3")
    found = decisions(live(koala, site, SCALES[0]))
    if found != expected:
        koala.close()
        shutil.rmtree(koala.state)
        found = decisions(live(koala, site, SCALES[1]))
    assert found == expected
