# SPDX-License-Identifier: Apache-2.0
"""The journal of a live run with jobs that grow and shrink, replayed: a fresh scheduler wants exactly what was done."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.jobfile import load_job
from koala_adapter.config.sitefile import load_site
from koala_adapter.lrm import load_plugins
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import JobId
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler.events import OfferAnswered
from koala_adapter.service.journal import Journal
from tests.live_service import service_inside
from tests.local_koala import Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.events import Event

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS = """\
kind = "malleable"
runner = "workers"
walltime = 600
[[components]]
name = "worker"
command = ["sh", "-c", "until [ -e {end} ]; do sleep 0.2; done"]
minimum = 1
maximum = 8
flexible = true
"""
RIGID = "until [ -e {end} ]; do sleep 0.2; done"
CASES = [
    pytest.param("pra", "fpsma", marks=pytest.mark.nightly),
    pytest.param("pra", "egs", marks=pytest.mark.nightly),
    pytest.param("pwa", "fpsma", marks=pytest.mark.nightly),
    ("pwa", "egs"),
    pytest.param("pwa", "equipartition", marks=pytest.mark.nightly),
    pytest.param("pwa", "folding", marks=pytest.mark.nightly),
]


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors, and end all of it afterwards."""
    with closing(Koala(tmp_path)) as made:
        yield made


def run_workload(koala: Koala, site: SiteConfig, asked: Callable[[], bool]) -> None:
    """Run two jobs that grow side by side until nothing is idle, then a rigid one that needs half of it.

    ``asked``: tells whether running jobs were asked to make room for it, or need not be; then they have no more to do.
    """

    def submit(path: Path) -> None:
        job = load_job(path, job_id=JobId("0"), user=login_name(), submitted_at=0.0, site=site)
        koala.client.submit(job)

    bags, end = koala.directory / "bags", koala.directory / "end"
    for name in ("first", "second"):
        path = koala.directory / f"{name}.toml"
        path.write_text(WORKERS.format(end=bags), encoding="utf-8")
        submit(path)
    eventually(lambda: all(one.launched_at for one in koala.client.jobs()))
    eventually(lambda: sum(one.idle or 0 for one in koala.client.clusters()) == 0)
    submit(Path(koala.job(RIGID.format(end=end), name="rigid", processors=2)))
    eventually(asked)
    bags.touch()
    eventually(lambda: koala.state_of("3") == "running")
    end.touch()
    eventually(lambda: all(one.over for one in koala.client.jobs()))


def replayed(events: Sequence[Event]) -> list[Action]:
    """Return what a scheduler that knows nothing else wants on these events."""
    scheduler = Scheduler()
    return [action for event in events for action in scheduler.handle(event)]


@pytest.mark.parametrize(("approach", "policy"), CASES)
def test_a_fresh_scheduler_wants_what_was_done(koala: Koala, approach: str, policy: str) -> None:
    """Two jobs of workers and a rigid one: offers, requests, submissions, ends, all of them and in the same order."""
    steered = f'[scheduler]\napproach = "{approach}"\nmalleability = "{policy}"'
    koala.site_file.write_text(koala.site_file.read_text().replace("[scheduler]", steered))
    site = load_site(koala.site_file, load_plugins())
    with service_inside(site, koala.state) as done:
        run_workload(
            koala, site, lambda: approach == "pra" or any(isinstance(one, act.RequestProcessors) for one in [*done])
        )
    with closing(Journal(koala.state / "journal.sqlite", read_only=True)) as journal:
        state, numbered = journal.recover()
        assert state is None, "a snapshot stands for events that are no longer there"
        events = [event for _, event in numbered]
    assert replayed(events) == done
    kinds = {type(action) for action in done}
    assert {act.OfferProcessors, act.TakeProcessors, act.EndPlaceholders, act.FinishJob} <= kinds
    assert approach == "pra" or act.RequestProcessors in kinds
    assert replayed(declined(events)) != done, "any journal would do"


def declined(events: Sequence[Event]) -> list[Event]:
    """Return the events as if the first offer that was accepted had been declined."""
    first = next(one for one in events if isinstance(one, OfferAnswered) and one.accepted > 0)
    return [replace(one, accepted=0) if one is first else one for one in events]
