# SPDX-License-Identifier: Apache-2.0
"""Applications: launches follow agents that come and go, and no agent speaks for a rank that is not its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from koala_adapter.errors import JobRefusedError, ProtocolError
from koala_adapter.model import LARGEST_SENT, EndReason, InputFile, Job, JobKind, PlaceholderId, RunnerName, TaskEnd
from koala_adapter.outcome import JobState, TaskUsage
from koala_adapter.scheduler.actions import LaunchJob
from koala_adapter.scheduler.events import RankMeasured
from koala_adapter.service.applications import Applications
from koala_adapter.service.information import Information
from koala_adapter.service.sweeps import Sweeps
from koala_adapter.vjm.channel import CenterMessage, FilePiece, Launch, Signal, TaskFiles, TaskReport
from tests.unit.scheduler.scheduler_site import WELL, Site, component, job, of_kind
from tests.unit.service.standins import Center, StandInCore

BAD = TaskEnd(reason=EndReason.EXITED, exit_code=3)


class Orders(Center):
    """In the place of the control center: keeps what agents are told, as far as they are connected."""

    def __init__(self) -> None:
        self.connected: set[PlaceholderId] = set()
        self.sent: list[tuple[PlaceholderId, Launch]] = []
        self.signals: list[tuple[PlaceholderId, Signal]] = []
        self.refuse = False

    def tell(self, placeholder: PlaceholderId, message: CenterMessage) -> bool:
        if isinstance(message, Signal):
            self.signals.append((placeholder, message))
        elif self.refuse:
            raise ProtocolError("a launch message of 40000000 bytes is longer than the channel takes")
        elif isinstance(message, Launch) and placeholder in self.connected:
            self.sent.append((placeholder, message))
        return placeholder in self.connected

    @property
    def tasks(self) -> list[str]:
        return [launch.task for _, launch in self.sent]


class Launched:
    """A job of two ranks that has all its placeholders, and whose agents are connected unless told otherwise."""

    def __init__(self, directory: Path, one: Job | None = None, *, mpi: bool = False, connected: bool = True) -> None:
        self.site = Site({"a": 8})
        self.orders = Orders()
        (directory / "jobs").mkdir(parents=True, exist_ok=True)
        self.core = StandInCore(self.site, directory, self.orders)
        self.applications = Applications(self.core, Information(self.core), Sweeps(self.core))
        made = one or job("1", component("x", 2, cluster="a", mpi=mpi))
        self.applications.keep_input(made)
        self.site.submit(made)
        self.site.take_all()
        self.ranks = [placeholder.id for placeholder in self.site.claimed("1")]
        if connected:
            self.orders.connected = set(self.ranks)
        self.site.hold_all("1")
        assert [action.job_id for action in of_kind(LaunchJob, self.site.actions)] == ["1"]
        self.applications.launch(made.id)

    @property
    def state(self) -> JobState:
        return self.site.record("1").state


def test_an_agent_that_was_away_is_told_when_it_registers(tmp_path: Path) -> None:
    """Only what is for it, and nothing that it runs already."""
    launched = Launched(tmp_path, connected=False)
    assert launched.orders.tasks == []
    launched.orders.connected = set(launched.ranks)
    launched.applications.registered(launched.ranks[1], ())
    assert launched.orders.tasks == ["1:1"]
    launched.applications.registered(launched.ranks[0], (TaskReport(task="1:0", running=True, end=None),))
    assert launched.orders.tasks == ["1:1"]
    assert launched.site.record("1").started == {0}


def test_ends_that_were_missed_are_told_by_the_agent(tmp_path: Path) -> None:
    """What ended while nobody listened counts when the agent registers again; told twice, it counts once."""
    launched = Launched(tmp_path)
    for _ in range(2):
        launched.applications.registered(launched.ranks[0], (TaskReport(task="1:0", running=False, end=WELL),))
    assert launched.site.record("1").ends == {0: WELL}
    launched.applications.ended(launched.ranks[1], "1:1", WELL)
    assert launched.state is JobState.COMPLETED


@pytest.mark.parametrize("mpi", [False, True])
def test_what_a_rank_has_used_is_kept_once(tmp_path: Path, *, mpi: bool) -> None:
    """With the end of a proxy, too, which ends no rank of MPI; an agent that was away tells of it when it is back."""
    launched = Launched(tmp_path, mpi=mpi)
    usage = TaskUsage(user_seconds=3.0, system_seconds=1.0, memory_bytes=5, read_bytes=6, written_bytes=7)
    end = replace(WELL, usage=usage)
    launched.applications.ended(launched.ranks[0], "1:0", end)
    launched.applications.registered(launched.ranks[0], (TaskReport(task="1:0", running=False, end=end),))
    launched.applications.ended(launched.ranks[0], "1:1", end)
    record = launched.site.record("1")
    assert record.usages == {0: usage}
    assert [event for event in launched.site.events if isinstance(event, RankMeasured)] == [
        RankMeasured(time=launched.site.now, job_id=record.job.id, rank=0, usage=usage)
    ]
    assert all(known.usage is None for known in record.ends.values())
    assert set(record.ends) == (set() if mpi else {0})


def test_ranks_of_a_job_that_is_over_are_measured(tmp_path: Path) -> None:
    launched = Launched(tmp_path)
    usage = TaskUsage(user_seconds=3.0, system_seconds=1.0, memory_bytes=5, read_bytes=6, written_bytes=7)
    launched.applications.ended(launched.ranks[0], "1:0", BAD)
    assert launched.state is JobState.FAILED
    launched.applications.ended(launched.ranks[1], "1:1", replace(BAD, usage=usage))
    assert launched.site.record("1").usages == {1: usage}


def test_an_agent_speaks_for_its_own_rank_only(tmp_path: Path) -> None:
    """Whoever has stolen one placeholder can end neither the other ranks nor other jobs."""
    launched = Launched(tmp_path)
    thief = launched.ranks[0]
    launched.applications.started(thief, "1:1")
    launched.applications.registered(thief, (TaskReport(task="1:1", running=False, end=BAD),))
    for task in ("1:1", "1:launcher:0", "2:0", "1:99", "1:-1", "1:../../x", "1:", "nonsense", ""):
        launched.applications.ended(thief, task, BAD)
        assert launched.applications.output_path(thief, task) is None
    assert launched.state is JobState.LAUNCHING
    assert (launched.site.record("1").ends, launched.site.record("1").started) == ({}, set())


def test_the_launcher_speaks_from_the_first_placeholder_only(tmp_path: Path) -> None:
    launched = Launched(tmp_path, mpi=True)
    assert launched.orders.tasks == ["1:launcher"]
    launched.applications.on_output("1:launcher", "out", 0, b"koala: rank 0 ended with 0\nkoala: rank 1 ended with 0\n")
    for number, placeholder in enumerate(launched.ranks):
        launched.applications.ended(placeholder, f"1:{number}", WELL)
    launched.applications.ended(launched.ranks[1], "1:launcher", WELL)
    assert launched.site.record("1").outcome is None
    launched.applications.ended(launched.ranks[0], "1:launcher", WELL)
    assert launched.state is JobState.COMPLETED


def test_a_restart_goes_on_where_mpiexec_was(tmp_path: Path) -> None:
    launched = Launched(tmp_path, mpi=True)
    (tmp_path / "jobs" / "1").mkdir(exist_ok=True)
    (tmp_path / "jobs" / "1" / "launcher.out").write_bytes(b"HYDRA_LAUNCH: proxy --pgid 0 --rmk user --proxy-id 1\n")
    again = Applications(launched.core, Information(launched.core), Sweeps(launched.core))
    launched.orders.sent.clear()
    again.registered(launched.ranks[0], (TaskReport(task="1:launcher", running=True, end=None),))
    again.registered(launched.ranks[1], ())
    assert set(launched.orders.tasks) == {"1:1"}
    assert launched.orders.sent[-1][0] == launched.ranks[1]


def test_what_cannot_be_sent_ends_its_job_only(tmp_path: Path) -> None:
    """The user is told; the service, and its other jobs, go on."""
    launched = Launched(tmp_path, connected=False)
    launched.orders.refuse = True
    launched.applications.registered(launched.ranks[0], ())
    outcome = launched.site.outcome("1")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, EndReason.LAUNCH_FAILED)
    assert "longer than the channel takes" in outcome.detail


def with_input(directory: Path) -> tuple[Path, Job]:
    """Return an input file, and a job of one rank that has it."""
    source = directory / "program"
    source.write_text("before")
    source.chmod(0o755)
    file = InputFile(source=str(source), target="run")
    return source, job("1", replace(component("x", 1, cluster="a"), input_files=(file,)))


def test_input_files_are_those_of_the_submission(tmp_path: Path) -> None:
    source, one = with_input(tmp_path)
    launched = Launched(tmp_path, one, connected=False)
    source.write_text("after")
    launched.orders.connected = set(launched.ranks)
    launched.applications.registered(launched.ranks[0], ())
    ((_, launch),) = launched.orders.sent
    (file,) = launch.files
    assert (file.target, file.mode, file.content) == ("run", 0o700, b"before")
    launched.applications.forget(launched.site.record("1").job.id)
    assert list((tmp_path / "jobs" / "1").iterdir()) == []


def test_output_of_a_component_named_as_input_files_stays(tmp_path: Path) -> None:
    launched = Launched(tmp_path, job("1", component("input", 1, cluster="a")))
    output = tmp_path / "jobs" / "1" / "input" / "0.out"
    output.parent.mkdir(parents=True)
    output.write_text("found")
    launched.applications.forget(launched.site.record("1").job.id)
    assert output.read_text() == "found"


def test_a_growth_does_not_read_input_files_again(tmp_path: Path) -> None:
    """They are those of the submission, and in memory."""
    _, one = with_input(tmp_path)
    launched = Launched(tmp_path, replace(one, kind=JobKind.MALLEABLE, runner=RunnerName.WORKERS))
    for kept in (tmp_path / "jobs" / "1" / "_input").rglob("*"):
        if kept.is_file():
            kept.write_text("after")
    launched.applications.started(launched.ranks[0], "1:0")
    launched.applications.grow(launched.site.record("1"), [0])
    assert launched.orders.tasks == ["1:0", "1:0"]
    assert [launch.files[0].content for _, launch in launched.orders.sent] == [b"before"] * 2


@pytest.mark.parametrize("change", ["gone", "grown", "pipe"])
def test_input_files_that_changed_since_they_were_looked_at_are_refused(tmp_path: Path, change: str) -> None:
    """The submission fails, without a wait or a full disk, and leaves nothing."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.touch()
    if change == "grown":
        with bad.open("wb") as file:
            file.truncate(LARGEST_SENT + 1)
    elif change == "pipe":
        os.mkfifo(bad)
    files = tuple(InputFile(source=str(path), target=path.name) for path in (good, bad))
    with pytest.raises(JobRefusedError, match="bad"):
        Launched(tmp_path, job("1", replace(component("x", 1, cluster="a"), input_files=files)))
    assert [path for path in (tmp_path / "jobs").rglob("*") if path.is_file()] == []


def test_input_files_that_are_gone_end_the_job(tmp_path: Path) -> None:
    """Somebody emptied the state directory: the job fails with the reason, and nothing else does."""
    launched = Launched(tmp_path, with_input(tmp_path)[1], connected=False)
    for kept in (tmp_path / "jobs" / "1" / "_input").iterdir():
        kept.unlink()
    fresh = Applications(launched.core, Information(launched.core), Sweeps(launched.core))
    fresh.registered(launched.ranks[0], ())
    assert launched.site.outcome("1").reason is EndReason.LAUNCH_FAILED


def test_output_stays_that_of_its_attempt_when_the_next_was_never_launched(tmp_path: Path) -> None:
    """The service was killed before it could launch it, and its placeholders ended meanwhile."""
    launched = Launched(tmp_path, replace(job("1", component("x", 1, cluster="a")), retries=2))
    site, directory = launched.site, tmp_path / "jobs" / "1"
    output = directory / "x" / "0.out"
    output.parent.mkdir(parents=True)
    output.write_text("first")
    launched.applications.unwritten.note("1:0", "err", output, "No space left on device")
    launched.applications.end_attempt(site.record("1").job.id, 1)
    for _ in range(2):
        placeholder = site.claimed("1")[0].id
        site.ended(placeholder, EndReason.NODE_LOST)
        site.pass_time(10)
        site.take_all()
        site.hold_all("1")
    assert site.record("1").attempts_over == 2
    launched.applications.launch(site.record("1").job.id)
    assert (directory / "_attempts" / "1" / "x" / "0.out").read_text() == "first"
    assert list((directory / "_attempts" / "2").iterdir()) == []
    assert not output.exists()
    assert not launched.applications.unwritten.trouble(site.record("1").job.id, over=False)


def test_files_are_taken_from_the_rank_they_belong_to(tmp_path: Path) -> None:
    """An agent cannot write into the directory of another rank, nor as the launcher."""
    launched = Launched(tmp_path)
    results = launched.applications.results
    for rank, task, refused in ((0, "1:1", True), (0, "1:launcher", True), (0, "9:0", True), (0, "1:0", False)):
        piece = FilePiece(task=task, number=1, path=b"a", mode=0, size=1, offset=0, data=b"x")
        assert bool(results.take(launched.ranks[rank], piece).refusal) is refused
    assert [str(path.relative_to(tmp_path / "jobs")) for path in tmp_path.rglob("*") if path.is_file()] == ["1/x/0/a"]


def test_an_agent_that_sends_files_is_not_cancelled(tmp_path: Path) -> None:
    """As long as wanted files come in; files that nobody asked for keep nobody waiting."""
    wanting = replace(component("x", 2, cluster="a"), output_files=("*",))
    for one, waits in ((job("1", wanting), True), (job("1", component("x", 2, cluster="a")), False)):
        launched = Launched(tmp_path / str(waits), one)
        first = launched.ranks[0]
        assert not launched.applications.files_under_way(first)
        launched.applications.started(first, "1:0")
        assert launched.applications.files_under_way(first) is waits
        files = TaskFiles(task="1:0", arrived=0, size=0, left=0, left_names=(), omitted=0, omissions=())
        launched.applications.results.conclude(first, files)
        assert not launched.applications.files_under_way(first)
