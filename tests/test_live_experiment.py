# SPDX-License-Identifier: Apache-2.0
"""Live experiments beside simulated ones, and their journals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from koala_adapter.api.client import Client
from koala_adapter.api.server import host
from koala_adapter.api.statedirectory import ownership
from koala_adapter.config.jobfile import load_job, load_job_text
from koala_adapter.config.sitefile import SiteConfig, load_site
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.lrm import load_plugins
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import Job, JobId
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler.actions import Action
from koala_adapter.scheduler.events import Event, OfferAnswered
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.service.agents import LiveEffector
from koala_adapter.service.journal import Journal
from koala_adapter.service.service import configuration
from koala_adapter.simulation.placeholders import BatchSystem, Delays, Rigid, SimulatedService, run_to_end
from koala_adapter.simulation.world import Engine
from koala_experiments.framework import LiveRun
from koala_experiments.live import clusters_in_small, workload_in_small
from koala_experiments.liveruns import run_live
from tests.local_koala import Koala, eventually, processes_naming

# -- A service inside the test's process, of which every action is seen that it carries out.


@contextmanager
def service_inside(site: SiteConfig, directory: Path) -> Iterator[list[Action]]:
    """Run a service during the block; yield the actions that it has carried out so far, in their order."""
    done: list[Action] = []

    carry_out = LiveEffector.carry_out

    def noted(effector: LiveEffector, action: Action) -> None:
        carry_out(effector, action)
        done.append(action)

    with ownership(directory), pytest.MonkeyPatch.context() as patch, start_blocking_portal() as portal:
        patch.setattr(LiveEffector, "carry_out", noted)
        future, server = portal.start_task(partial(host, site, load_plugins(), directory))
        try:
            yield done
        finally:
            portal.call(server.quiet)
            future.cancel()


# -- ``koala experiment run koala-live``: a tiny one from the command to its page, and nothing is left of it.


WHOLE = 400.0
"""Seconds that a whole experiment may take; four runs of two jobs took 140 on two cores with a load of 28."""


@pytest.fixture
def koala() -> Iterator[Koala]:
    """Give a site in a directory with a path so short that whatever is temporary is made in it."""
    directory = Path(tempfile.mkdtemp(prefix="kl", dir="/tmp"))
    try:
        with closing(Koala(directory)) as made:
            yield made
    finally:
        shutil.rmtree(directory)


def left(koala: Koala) -> list[str]:
    """Return what else is in the directory in which all that is temporary is made."""
    return sorted(path.name for path in koala.directory.iterdir() if path.name not in {"site.toml", "out"})


def jobs_run(koala: Koala) -> bool:
    """Tell whether a service of an experiment has launched a job."""
    for state in koala.directory.glob("koala-live-*/state"):
        with suppress(ServiceUnavailableError):
            return any(one.launched_at for one in Client(state).jobs())
    return False


@pytest.mark.nightly
def test_a_tiny_experiment_writes_its_page(koala: Koala) -> None:
    """Two jobs in each of four runs: live and simulated values of each stand in the data, and all is gone."""
    settings = ["jobs=2", "pace=400", "approaches=pwa"]
    options = [word for one in settings for word in ("--set", one)]
    koala.run("experiment", "run", "koala-live", *options, "--out", str(koala.directory / "out"), timeout=WHOLE)
    result = json.loads((koala.directory / "out" / "result.json").read_text())
    rows = result["tables"]["live-and-simulated"]
    assert [(row["approach"], row["policy"], row["workload"]) for row in rows] == [
        ("PWA", policy, workload) for policy in ("FPSMA", "EGS") for workload in ("W'm", "W'mr")
    ]
    for row in rows:
        live, simulated = row["execution (s) live"], row["execution (s) simulated"]
        assert row["execution (s) difference (%)"] == pytest.approx(100 * (simulated / live - 1), abs=0.06)
        assert live > 60.0, "no job takes less than FT at its best"
    assert all(row["until held (s)"] > 0 for row in result["tables"]["delays"])
    jobs = result["tables"]["jobs"]
    assert len(jobs) == 8
    for row in rows:
        mine = [
            one["response (s) live"] for one in jobs if all(one[name] == row[name] for name in ("policy", "workload"))
        ]
        assert sum(mine) / len(mine) == pytest.approx(row["response (s) live"], abs=0.1)
    figures = {path.name for path in (koala.directory / "out" / "figures").glob("*.png")}
    assert {f"figure-8{part}.png" for part in "abcdef"} <= figures
    assert {"compared-execution.png", "compared-response.png", "compared-used.png"} <= figures
    assert len([name for name in figures if name.startswith("used-pwa-")]) == 4
    assert left(koala) == []
    assert processes_naming(str(koala.directory)) == []


SMALLEST = {
    "koala-live": ("jobs=2", "pace=1000", "divisor=20", "approaches=pra"),
    "negotiation": ("steps=6", "work=0.05"),
}
"""Live experiments with settings at the ends of what is allowed."""


def refuse(word: str) -> None:
    """Take no number that JSON does not have."""
    pytest.fail(f"{word} in the JSON of the result")


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("koala-live", 0),
        *(pytest.param(name, seed, marks=pytest.mark.nightly) for name in SMALLEST for seed in (1, 2)),
    ],
)
def test_live_experiments_end_with_a_result_at_their_smallest(koala: Koala, name: str, seed: int) -> None:
    """Whatever its claims come to, where hardly anything is run; and nothing is left."""
    options = [word for one in SMALLEST[name] for word in ("--set", one)]
    out = koala.directory / "out"
    koala.run("experiment", "run", name, "--seed", str(seed), *options, "--out", str(out), timeout=WHOLE)
    result = json.loads((out / "result.json").read_text(), parse_constant=refuse)
    assert result["findings"]
    assert all(rows for rows in result["tables"].values())
    assert (out / "index.html").exists()
    assert left(koala) == []
    assert processes_naming(str(koala.directory)) == []


@pytest.mark.nightly
def test_an_interrupted_experiment_leaves_nothing(koala: Koala) -> None:
    process = koala.start("experiment", "run", "koala-live", "--set", "pace=5", "--out", str(koala.directory / "out"))
    eventually(lambda: jobs_run(koala))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert "interrupted" in said
    assert process.returncode == 130
    assert left(koala) == []
    assert processes_naming(str(koala.directory)) == []


@pytest.mark.nightly
def test_on_the_clusters_of_a_site_file(koala: Koala, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(koala.directory))
    koala.change_site("[scheduler]", '[scheduler]\napproach = "none"')
    jobs = workload_in_small("W'm", 0, jobs=2, divisor=8)
    ended: list[int] = []
    outcome = run_live(
        LiveRun(
            approach=Approach.PRA,
            malleability="egs",
            jobs=jobs,
            clusters=clusters_in_small(8),
            pace=100,
            site=str(koala.site_file),
        ),
        ended.append,
    )
    assert [(one.name, one.processors) for one in outcome.clusters] == [("alpha", 4), ("beta", 4)]
    assert ended[-1] == 2
    assert len(outcome.outcome.jobs) == 2
    assert all(max(size for _, size in steps) > 2 for steps in outcome.sizes.values()), "jobs grow"
    assert all(steps[-1][1] == 0 for steps in outcome.sizes.values())
    until = time.monotonic() + 60
    while processes_naming(str(koala.directory)) and time.monotonic() < until:
        time.sleep(0.1)
    assert processes_naming(str(koala.directory)) == []
    assert left(koala) == []
    assert os.path.lexists(koala.site_file)


@pytest.mark.nightly
def test_the_published_negotiations_write_their_page(koala: Koala) -> None:
    """All four scenarios go as published; timelines and templates stand beside the page, and nothing is left."""
    out = koala.directory / "out"
    koala.run("experiment", "run", "negotiation", "--set", "steps=9", "--out", str(out), timeout=WHOLE)
    result = json.loads((out / "result.json").read_text())
    assert [one["holds"] for one in result["findings"][:4]] == [True] * 4, result["findings"]
    assert {row["status"] for row in result["tables"]["messages"]} >= {"NT_NEGOTIATION", "NT_REJECTED", "NT_CONSUMED"}
    assert len(list((out / "figures").glob("timeline-*.png"))) == 4
    assert "<NT NT_AgreementID=" in (out / "data" / "templates-asks-for-14.txt").read_text()
    assert "&lt;NT_Status&gt;NT_COMMITTED" in (out / "index.html").read_text()
    assert left(koala) == []


# -- What is simulated is what runs: the same workload gives the same decisions, in the same order, in both.
# The live service runs it on two local clusters with time scaled down; the simulator runs it in its own
# time, with the same settings. What each journal leads to is compared: which component is claimed where and on how many
# processors, which job is launched when, and in which order jobs end.


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
def uneven(tmp_path: Path) -> Iterator[Koala]:
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
    configured = configuration(site, "sim", 0.0, {})
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


@pytest.mark.nightly  # it goes by the clock; tests/test_malleable_local.py compares step by step
def test_live_service_decides_as_the_simulator_does(uneven: Koala) -> None:
    """Claims, launches and ends come in the same order, on the same clusters, with the same processors."""
    site = load_site(uneven.site_file, load_plugins())
    quick, slow = (decisions(simulated(uneven.directory, site, scale)) for scale in SCALES)
    assert quick == slow
    expected = quick
    assert sum(one.startswith("launch") for one in expected) == len(WORKLOAD)
    assert expected.index("claim 1 on beta for c1 of job 4") < expected.index("claim 3 on beta for c1 of job 3")
    found = decisions(live(uneven, site, SCALES[0]))
    if found != expected:
        uneven.close()
        shutil.rmtree(uneven.state)
        found = decisions(live(uneven, site, SCALES[1]))
    assert found == expected


# -- The journal of a live run with jobs that grow and shrink, replayed: a fresh scheduler wants exactly what was done.


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
def local(tmp_path: Path) -> Iterator[Koala]:
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
def test_a_fresh_scheduler_wants_what_was_done(local: Koala, approach: str, policy: str) -> None:
    """Two jobs of workers and a rigid one: offers, requests, submissions, ends, all of them and in the same order."""
    steered = f'[scheduler]\napproach = "{approach}"\nmalleability = "{policy}"'
    local.change_site("[scheduler]", steered)
    site = load_site(local.site_file, load_plugins())
    with service_inside(site, local.state) as done:
        run_workload(
            local,
            site,
            lambda: approach == "pra" or any(isinstance(one, act.RequestProcessors) for one in [*done]),
        )
    with closing(Journal(local.state / "journal.sqlite", read_only=True)) as journal:
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


# -- Reorganization on clusters that run: agents in exchanged placeholders serve the job that has them now.


WIDE = """\
walltime = 600
[[components]]
name = "left"
cluster = "alpha"
processors = 2
command = ["sh", "-c", "echo wide $KOALA_RANK on $KOALA_CLUSTER"]
[[components]]
name = "right"
cluster = "beta"
processors = 2
command = ["sh", "-c", "echo wide $KOALA_RANK on $KOALA_CLUSTER"]
"""
NARROW = """\
walltime = 600
[[components]]
cluster = "alpha"
processors = 2
command = ["sh", "-c", "echo narrow $KOALA_RANK on $KOALA_CLUSTER"]
"""


@pytest.fixture
def brief(tmp_path: Path) -> Iterator[Koala]:
    """Give two local clusters of 4 processors where what is held is exchanged after fifteen seconds."""
    with closing(Koala(tmp_path)) as made:
        made.change_site("placeholder_life = 30", "placeholder_life = 15")
        yield made


def test_exchanged_placeholders_run_their_new_jobs(brief: Koala) -> None:
    for name, text in (("wide", WIDE), ("narrow", NARROW)):
        (brief.directory / f"{name}.toml").write_text(text, encoding="utf-8")
    # There is room for one of them on alpha, and both are there from the first: whenever the wide one gives back what
    # it holds, the narrow one waits for it.
    on_beta = brief.submit_foreign("local-users", 4, "beta")
    on_alpha = brief.submit_foreign("local-users", 2, "alpha")
    service = brief.serve()
    brief.inside("submit", *(str(brief.directory / f"{name}.toml") for name in ("wide", "narrow")))
    eventually(lambda: brief.state_of("2") == "completed")
    assert brief.state_of("1") == "claiming"
    assert "exchanged for places in the queue" in brief.inside("explain", "1").stdout
    os.killpg(service.pid, signal.SIGKILL)
    service.communicate()
    brief.serve()
    for ids, cluster in ((on_alpha, "alpha"), (on_beta, "beta")):
        brief.cancel_foreign(ids, cluster)
    eventually(lambda: brief.state_of("1") == "completed")
    eventually(lambda: not brief.placeholders())
    said = brief.run("logs", "1").stdout + brief.run("logs", "2").stdout
    lines = sorted(line.partition(": ")[2] for line in said.splitlines())
    assert lines == [
        *(f"narrow {rank} on alpha" for rank in (0, 1)),
        *(f"wide {rank} on {'alpha' if rank < 2 else 'beta'}" for rank in range(4)),
    ]
