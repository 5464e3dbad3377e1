# SPDX-License-Identifier: Apache-2.0
"""The PBS plugin on the stand-in: starts, moved jobs, outside scheduling, servers side by side."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError, LrmUnsupportedError
from koala_adapter.lrm import ClusterContext, Lrm, Submission
from koala_adapter.model import BatchKey, EndReason, LrmJob, LrmJobId, LrmJobState
from koala_adapter.testing import RecordingRunner, eventually, new_context
from koala_adapter.testing.trial import begin_start
from koala_pbs import PLUGIN, PbsSettings
from koala_pbs.lrm import make_lrm
from tests.fakes.pbs import FakePbs
from tests.fakes.slurm import FakeSlurm
from tests.local_koala import Koala
from tests.pbs_scheduling import SECONDS, SITE, inside, scheduling
from tests.real.systems.processes import wait_until

# -- Starting held jobs on chosen vnodes of a fake PBS, as a user and as an operator; submissions in pieces.


SLEEP = "#!/bin/sh\nexec sleep 600\n"
OPERATOR = getpass.getuser()
SELECT = "2:ncpus=2:mem=100mb"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakePbs]:
    """Give a fake of three vnodes of four processors, whose site hook holds every job."""
    fake = FakePbs(tmp_path / "fake", nodes=3, cpus=4, site_hook=True)
    yield fake
    fake.close()


@pytest.fixture
def context(tmp_path: Path) -> ClusterContext:
    """Give what the core gives a plugin."""
    return new_context(tmp_path)


async def started(fake: FakePbs, context: ClusterContext, *, operator: bool) -> Lrm:
    """Return the started plugin."""
    lrm = PLUGIN.factory(context, PbsSettings(conf=fake.conf, bin_directory=fake.bin_directory, operator=operator))
    await lrm.start()
    return lrm


@pytest.fixture
async def user(fake: FakePbs, context: ClusterContext) -> AsyncIterator[Lrm]:
    """Give the plugin that has PBS's scheduler start jobs."""
    lrm = await started(fake, context, operator=False)
    yield lrm
    await lrm.close()


@pytest.fixture
async def operator(fake: FakePbs, context: ClusterContext) -> AsyncIterator[Lrm]:
    """Give the plugin that starts jobs itself."""
    lrm = await started(fake, context, operator=True)
    yield lrm
    await lrm.close()


def submit(fake: FakePbs, *options: str, select: str = SELECT, place: str = "scatter") -> LrmJobId:
    """Submit a job as another user does and return its id."""
    common = ("-C", "", "-N", "theirs", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")
    return LrmJobId(fake.run("qsub", *common, "-l", f"select={select}", "-l", f"place={place}", *options, stdin=SLEEP))


async def job_of(lrm: Lrm, id_: LrmJobId) -> LrmJob:
    """Return a job as it is listed."""
    return next(job for job in await lrm.jobs() if job.id == id_)


async def runs(lrm: Lrm, id_: LrmJobId) -> LrmJob:
    """Wait until a job runs, and return it."""

    async def look() -> LrmJob:
        return await job_of(lrm, id_)

    return await eventually(look, lambda job: job.state is LrmJobState.RUNNING, what="it runs", seconds=120)


class TestByScheduler:
    """As the user of a job, or whoever may alter and release it."""

    async def test_a_job_is_tied_and_comes_back_held(self, user: Lrm, fake: FakePbs) -> None:
        job = submit(fake)
        before = await job_of(user, job)
        start = await begin_start(user, job, ["n2", "n2", "n3", "n3"])
        seen = await runs(user, job)
        assert seen.layout == (("n2", 2), ("n3", 2))
        await user.confirm_start(start)
        fake.run("qrerun", job, user=OPERATOR)

        async def waits() -> LrmJob:
            return await job_of(user, job)

        seen = await eventually(waits, lambda one: one.state is LrmJobState.HELD, what="it is held", seconds=120)
        assert seen.requested_nodes == ("n2", "n3")
        await user.undo_start(start)
        seen = await job_of(user, job)
        assert (seen.hold, seen.node_bounds, seen.requested_nodes) == (before.hold, before.node_bounds, ())

    async def test_another_process_goes_on_after_a_kill(
        self, user: Lrm, fake: FakePbs, context: ClusterContext
    ) -> None:
        job = submit(fake)
        fake.set_scheduling(on=False)
        start = await begin_start(user, job, ["n2", "n2", "n3", "n3"])
        later = await started(fake, context, operator=False)
        await later.start_on(replace(start, nodes=("n1", "n1", "n3", "n3")))
        fake.set_scheduling(on=True)
        assert (await runs(later, job)).layout == (("n1", 2), ("n3", 2))
        fake.run("qdel", job)
        await eventually(later.jobs, lambda jobs: not jobs, what="it is gone", seconds=120)

    async def test_what_is_refused_leaves_the_job_as_it_was(self, fake: FakePbs, tmp_path: Path) -> None:
        """Also when only the release is refused: the site's hold needs an operator."""
        other = FakePbs(tmp_path / "other", nodes=3, cpus=4, operators=(), site_hook=True)
        lrm = await started(other, new_context(tmp_path / "context"), operator=False)
        job = submit(other)
        before = await job_of(lrm, job)
        for nodes in (["n1", "n1", "n2", "n2"], ["n1"] * 3 + ["n2"], ["n1", "n2"]):
            with pytest.raises(LrmRejectedError):
                await begin_start(lrm, job, nodes)
        assert await job_of(lrm, job) == before
        assert fake.processors == other.processors
        other.close()

    async def test_elements_are_refused(self, user: Lrm, fake: FakePbs) -> None:
        """PBS alters and releases whole arrays only; the way out is said."""
        submit(fake, "-J", "1-2", select="1:ncpus=1")
        first = (await user.jobs())[0].id
        with pytest.raises(LrmRejectedError, match="operator = true"):
            await begin_start(user, first, ["n1"])
        assert not user.capabilities.pin_elements
        with pytest.raises(LrmUnsupportedError, match="operator = true"):
            await user.suspend([first])


class TestByOperator:
    """As an operator, with qrun."""

    async def test_a_job_runs_at_once_and_keeps_its_hold(self, operator: Lrm, fake: FakePbs) -> None:
        """Also with PBS's own scheduling off; queued again it is held."""
        fake.set_scheduling(on=False)
        job = submit(fake)
        start = await begin_start(operator, job, ["n2", "n2", "n3", "n3"])
        seen = await job_of(operator, job)
        assert (seen.state, seen.layout) == (LrmJobState.RUNNING, (("n2", 2), ("n3", 2)))
        await operator.confirm_start(start)
        await operator.requeue([job])

        async def state() -> LrmJobState:
            return (await job_of(operator, job)).state

        await eventually(state, lambda now: now is LrmJobState.HELD, what="it is held again", seconds=120)
        await operator.undo_start(start)
        assert (await job_of(operator, job)).requeues == 1

    async def test_nothing_is_put_where_there_is_no_room(self, operator: Lrm, fake: FakePbs) -> None:
        """PBS would: so all starts at the same time are looked at one after the other."""
        jobs = [submit(fake, select="1:ncpus=3") for _ in range(2)]
        await begin_start(operator, jobs[0], ["n1"] * 3)
        with pytest.raises(LrmRejectedError, match="where 1 are idle"):
            await begin_start(operator, jobs[1], ["n1"] * 3)
        fake.set_offline("n2")
        for nodes in (["n2"] * 3, ["n9"] * 3):
            with pytest.raises(LrmRejectedError):
                await begin_start(operator, jobs[1], nodes)
        assert (await job_of(operator, jobs[1])).state is LrmJobState.HELD

    async def test_elements_start_one_by_one(self, operator: Lrm, fake: FakePbs) -> None:
        submit(fake, "-J", "1-3", select="1:ncpus=1")
        second = next(job.id for job in await operator.jobs() if job.array_index == 2)
        await begin_start(operator, second, ["n3"])
        seen = {job.array_index: job for job in await operator.jobs()}
        assert [seen[index].state for index in (1, 2, 3)] == [
            LrmJobState.HELD,
            LrmJobState.RUNNING,
            LrmJobState.HELD,
        ]
        assert seen[2].nodes == ("n3",)


async def test_pieces_where_arrays_are_small(tmp_path: Path) -> None:
    for largest, requests in ((2, 3), (1, 5)):
        fake = FakePbs(tmp_path / f"fake{largest}", nodes=1, cpus=1, max_array_size=largest)
        context = new_context(tmp_path / f"context{largest}")
        lrm = await started(fake, context, operator=False)
        submission = Submission(key=BatchKey("koala-p"), count=5, script=SLEEP, walltime=60)
        before = context.commands.window.total
        ids = await lrm.submit(submission)
        assert context.commands.window.total - before == requests
        jobs = {job.id: job.array_index for job in await lrm.jobs(name_prefix="koala-p")}
        assert jobs == {id_: index for index, id_ in enumerate(ids, start=1)}
        assert "first of" in lrm.render(submission).note
        await lrm.cancel(ids)
        fake.close()


async def test_a_queue_that_refuses_arrays_gets_single_jobs(tmp_path: Path) -> None:
    """Where it has not said so before, because that was set meanwhile, its refusal does; it is asked that once."""
    fake = FakePbs(tmp_path / "fake", nodes=1, cpus=1)
    context = new_context(tmp_path / "context")
    lrm = await started(fake, context, operator=False)
    fake.conf.write_text(json.dumps({**json.loads(fake.conf.read_text()), "max_array_size": 1}))
    submission = Submission(key=BatchKey("koala-p"), count=3, script=SLEEP, walltime=60)
    for requests in (4, 3):
        before = context.commands.window.total
        ids = await lrm.submit(submission)
        assert context.commands.window.total - before == requests
        assert len(set(ids)) == 3
    fake.close()


async def test_a_refusal_for_something_else_leaves_arrays_as_they_are(tmp_path: Path) -> None:
    fake = FakePbs(tmp_path / "fake", nodes=1, cpus=1)
    context = new_context(tmp_path / "context")
    lrm = await started(fake, context, operator=False)
    qsub, real = fake.bin_directory / "qsub", tmp_path / "qsub"
    qsub.rename(real)
    qsub.write_text("#!/bin/sh\necho 'qsub: Job rejected by all possible destinations' >&2\nexit 170\n")
    qsub.chmod(0o755)
    submission = Submission(key=BatchKey("koala-p"), count=3, script=SLEEP, walltime=60)
    with pytest.raises(LrmRejectedError, match="rejected by all possible destinations"):
        await lrm.submit(submission)
    real.replace(qsub)
    before = context.commands.window.total
    await lrm.submit(submission)
    assert context.commands.window.total - before == 1
    fake.close()


async def test_a_piece_that_is_refused_takes_the_others_back(tmp_path: Path) -> None:
    fake = FakePbs(tmp_path / "fake", max_array_size=2)
    context = new_context(tmp_path)
    lrm = await started(fake, context, operator=False)
    assert isinstance(context.commands, RecordingRunner)
    qsub = fake.bin_directory / "qsub"
    real = qsub.with_name("qsub.real")
    qsub.rename(real)
    refusal = "echo 'qsub: Access to queue is denied' >&2; exit 169"
    qsub.write_text(f'#!/bin/sh\nfor word; do [ "$word" != 3-4 ] || {{ {refusal}; }}; done\nexec {real} "$@"\n')
    qsub.chmod(0o755)
    # The fake tells its commands by their names.
    real.rename(tmp_path / "qsub")
    qsub.write_text(qsub.read_text().replace(str(real), str(tmp_path / "qsub")))
    submission = Submission(key=BatchKey("koala-p"), count=4, script=SLEEP, walltime=60)
    with pytest.raises(LrmRejectedError, match="Access to queue is denied"):
        await lrm.submit(submission)

    async def left() -> list[LrmJobState]:
        return [job.state for job in await lrm.jobs() if job.state is not LrmJobState.ENDED]

    await eventually(left, lambda states: not states, what="nothing is left", seconds=120)
    fake.stop_server()
    with pytest.raises(LrmUnavailableError):
        await lrm.submit(submission)
    fake.close()


# -- A placeholder that a PBS server has moved to another one: it is gone from its own, whose history says where to.


async def test_a_moved_job_is_told_as_lost(tmp_path: Path) -> None:
    home, other = FakePbs(tmp_path / "p", server="home"), FakePbs(tmp_path / "q", server="other")
    try:
        home.move_jobs_to(other)
        lrm = make_lrm(new_context(tmp_path), PbsSettings(conf=home.conf, bin_directory=home.bin_directory))
        await lrm.start()
        key = BatchKey("koala-k-1")
        (id_,) = await lrm.submit(
            Submission(key=key, count=1, walltime=600, script="#!/bin/sh\nexec sleep 60\n", held=True)
        )
        home.run("qmove", "workq@other", id_)
        assert id_ not in {job.id for job in await lrm.jobs()}
        (job,) = await lrm.history([id_])
        assert (job.end, "workq@other" in job.reason) == (EndReason.LOST, True)
        await lrm.cancel([id_])
        await lrm.close()
    finally:
        home.close()
        other.close()


# -- ``koala schedule`` in the place of a fake PBS's scheduler, and what ``koala check`` says of that server.


OPTIONS = ("-C", "", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")


@pytest.fixture
def schedule_fake(tmp_path: Path) -> Iterator[FakePbs]:
    """Give a fake of two vnodes of two processors, whose site hook holds every job."""
    fake = FakePbs(tmp_path / "fake", site_hook=True)
    yield fake
    fake.close()


@pytest.fixture
def site(schedule_fake: FakePbs, tmp_path: Path) -> Path:
    """Give a site file with that server, at which koala is an operator."""
    file = tmp_path / "site.toml"
    file.write_text(SITE.format(requests=6000, conf=schedule_fake.conf, bin_directory=schedule_fake.bin_directory))
    return file


def schedule_submit(fake: FakePbs, *options: str, seconds: float = 0.5) -> str:
    """Submit a job as another user does."""
    return fake.run("qsub", *OPTIONS, *options, stdin=f"#!/bin/sh\nexec sleep {seconds}\n")


def test_a_queue_runs_to_its_end(schedule_fake: FakePbs, site: Path) -> None:
    wide = schedule_submit(schedule_fake, "-l", "select=2:ncpus=2", "-l", "place=scatter")
    held = schedule_submit(schedule_fake, "-h")
    array = schedule_submit(schedule_fake, "-J", "1-2")
    last = schedule_submit(schedule_fake, "-l", "select=1:ncpus=2")
    elements = {array.replace("[]", f"[{index}]") for index in (1, 2)}
    with scheduling(site, "--policy", "fcfs") as lines:
        lines.wait("ended", {wide, last, *elements})
        assert held in lines.told("left out")
    starts = lines.told("start")
    assert starts[0] == wide
    assert set(starts[1:3]) == elements
    assert starts[3:] == [last]
    first = next(line for line in lines.all() if line["kind"] == "start")
    assert "n1" in json.dumps(first)
    assert "n2" in json.dumps(first)


def test_a_job_that_is_queued_again_is_started_again(schedule_fake: FakePbs, site: Path) -> None:
    job = schedule_submit(schedule_fake, seconds=600)
    with scheduling(site) as lines:
        lines.wait("started", {job})
        schedule_fake.run("qrerun", job, user=os.environ.get("USER") or "root")
        lines.wait("requeued", {job})
        wait_until(lambda: lines.told("started").count(job) > 1, seconds=SECONDS, what="it runs again")


def test_any_user_may_ask_why_a_job_waits(schedule_fake: FakePbs, site: Path) -> None:
    directory = site.with_name("ask")
    directory.mkdir(mode=0o755)
    path = directory / "p.sock"
    for options in (("select=2:ncpus=2",), ("select=1:ncpus=1",)):
        last = schedule_submit(schedule_fake, "-l", *options, seconds=600)
    with scheduling(site, "--policy", "fcfs", "--ask-socket", str(path)) as lines:
        lines.wait("submitted", {last})
        asking = site.with_name("asking")
        asking.mkdir(mode=0o700)
        own = asking / "site.toml"
        own.write_text(site.read_text().replace("[clusters.settings]", f'ask_socket = "{path}"\n[clusters.settings]'))
        wait_until(
            lambda: "place 1 of 1 in the queue" in inside(own, "explain", f"p:{last}").stdout,
            seconds=SECONDS,
            what="it is told why the job waits",
            details=lambda: inside(own, "explain", f"p:{last}").output,
        )
        assert "Traceback" not in site.with_name("errors").read_text()
    assert not path.exists()


def test_a_shadow_starts_nothing(schedule_fake: FakePbs, site: Path) -> None:
    """It says when it would have, and needs no hook."""
    plain = FakePbs(site.parent / "plain")
    site.write_text(site.read_text().replace(str(schedule_fake.conf.parent), str(plain.conf.parent)))
    plain.set_scheduling(on=False)
    job = schedule_submit(plain, "-l", "select=1:ncpus=2")
    with scheduling(site, "--shadow") as lines:
        lines.wait("start", {job})
        assert '"job_state":\t"Q"' in plain.run("qstat", "-f", "-F", "json", job)
        plain.set_scheduling(on=True)
        lines.wait("started", {job})
    plain.close()


def test_check_says_what_is_missing(schedule_fake: FakePbs, site: Path) -> None:
    done = inside(site, "check", "--outside", "--no-submit")
    assert "jobs come in held: yes, in an operator's hold" in done.stdout
    assert "we may start them: yes" in done.stdout
    plain = FakePbs(site.parent / "plain", operators=())
    site.write_text(site.read_text().replace(str(schedule_fake.conf.parent), str(plain.conf.parent)))
    done = inside(site, "check", "--outside", "--no-submit")
    assert "jobs come in held: no" in done.stdout
    assert "koala conf pbs_queuejob.py" in done.stdout
    assert "set server operators +=" in done.stdout
    assert done.exit_code
    plain.close()


async def test_check_finds_what_hinders(fake: FakePbs, context: ClusterContext) -> None:
    """A scheduler that is off, while others start no jobs, and vnodes that are out of use."""
    lrm = await started(fake, context, operator=False)
    fake.set_scheduling(on=False)
    fake.set_offline("n1", "n2", "n3")
    wrong = {result.subject: (result.found, result.remedy) for result in await lrm.check() if not result.ok}
    assert set(wrong) == {"server", "vnodes"}
    assert "its scheduling is off" in wrong["server"][0]
    assert "none of 3 is up" in wrong["vnodes"][0]
    assert all(remedy for _, remedy in wrong.values())
    outside = {result.subject: result for result in await lrm.check_outside()}
    assert (outside["who starts jobs"].ok, "set server scheduling=True" in outside["who starts jobs"].remedy) == (
        False,
        True,
    )


def test_one_cluster_is_checked(site: Path) -> None:
    site.write_text(site.read_text() + site.read_text().replace('"p"', '"q"'))
    checks = json.loads(inside(site, "check", "--outside", "--cluster", "q", "--json").stdout)["checks"]
    assert {one["cluster"] for one in checks} == {None, "q"}
    assert "jobs come in held" in {one["subject"] for one in checks}
    done = inside(site, "check", "--cluster", "x")
    assert done.exit_code == 245
    assert "p, q" in done.stderr


def test_the_queue_is_given_back(schedule_fake: FakePbs, site: Path) -> None:
    plain = [schedule_submit(schedule_fake), schedule_submit(schedule_fake, "-l", "select=1:ncpus=2")]
    array = schedule_submit(schedule_fake, "-J", "1-2")
    own = schedule_submit(schedule_fake, "-h")
    done = inside(site, "schedule", "--give-back", "p", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    elements = {array.replace("[]", f"[{index}]") for index in (1, 2)}
    assert set(plain) | elements <= set(told["released"])
    assert told["still_held"] == {}
    wait_until(lambda: not unfinished(schedule_fake) - {own}, seconds=SECONDS, what="all but the user's have run")
    assert '"Hold_Types":\t"u"' in schedule_fake.run("qstat", "-f", "-F", "json", own)
    again = json.loads(inside(site, "schedule", "--give-back", "p", "--json").stdout)
    assert (again["released"], again["still_held"]) == ([], {})
    assert "delete hook" in done.stderr


def test_the_queue_is_not_given_back_under_a_running_scheduler(schedule_fake: FakePbs, site: Path) -> None:
    """It would hold again what was queued again: it is to be stopped first."""
    del schedule_fake
    with scheduling(site) as lines:
        wait_until(
            lambda: "schedules cluster p" in site.with_name("errors").read_text(), seconds=SECONDS, what="it is up"
        )
        done = inside(site, "schedule", "--give-back", "p")
        assert done.exit_code
        assert "stop it first" in done.stderr
        assert lines.all() == []


def test_a_cluster_must_be_named(site: Path) -> None:
    done = inside(site, "schedule")
    assert done.exit_code == 2
    assert "--cluster" in done.stderr


def unfinished(fake: FakePbs) -> set[str]:
    """Return the jobs that are listed and not over."""
    listed = json.loads(fake.run("qstat", "-t", "-f", "-F", "json")).get("Jobs", {})
    return {id_ for id_, job in listed.items() if job["job_state"] not in {"F", "X"}}


# -- Two PBS servers, a Slurm and a local cluster beside each other: fakes, with real agents and the real command.


SIDE_BY_SIDE_SITE = """\
[control_center]
listen = "127.0.0.1"
lease = 120
heartbeat = 1

[scheduler]
scan_interval = 0.5
"""
CLUSTER = """
[[clusters]]
name = "{name}"
plugin = "{plugin}"
poll_interval = 0.5
requests_per_minute = 6000
[clusters.settings]
{settings}
"""
PART = """
[[components]]
name = "on-{cluster}"
cluster = "{cluster}"
command = ["sh", "-c", "echo rank $KOALA_RANK of $KOALA_SIZE on {cluster}"]
processors = {processors}
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[FakePbs, FakePbs]]:
    """Give two servers, each with a pbs.conf of its own; both number their jobs from 1."""
    found = FakePbs(tmp_path / "p"), FakePbs(tmp_path / "q", max_array_size=1)
    yield found
    for server in found:
        server.close()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    """Give a Slurm."""
    cluster = FakeSlurm(tmp_path / "r")
    yield cluster
    cluster.close()


@pytest.fixture
def mixed(tmp_path: Path, servers: tuple[FakePbs, FakePbs], slurm: FakeSlurm) -> Iterator[Koala]:
    """Give a user whose site has all four."""
    koala = Koala(tmp_path)
    systems: dict[str, tuple[str, FakePbs | FakeSlurm]] = {
        "p": ("pbs", servers[0]),
        "q": ("pbs", servers[1]),
        "r": ("slurm", slurm),
    }
    text = SIDE_BY_SIDE_SITE
    for name, (plugin, system) in systems.items():
        # By commands, whatever library this machine has.
        settings = f'conf = "{system.conf}"\nbin_directory = "{system.bin_directory}"\nsubmit_by = "commands"'
        text += CLUSTER.format(name=name, plugin=plugin, settings=settings)
    text += CLUSTER.format(name="alpha", plugin="local", settings="processors = 2\nidle_seconds = 60")
    koala.site_file.write_text(text)
    yield koala
    koala.close()


def test_one_job_over_all_of_them(mixed: Koala, servers: tuple[FakePbs, FakePbs], tmp_path: Path) -> None:
    """Placeholders as an array on one PBS, singly on the other, and on Slurm and local: all ranks start together."""
    sizes = {"p": 3, "q": 2, "r": 2, "alpha": 1}
    job = tmp_path / "job.toml"
    parts = (PART.format(cluster=cluster, processors=count) for cluster, count in sizes.items())
    job.write_text('name = "wide"\nwalltime = 600\n' + "".join(parts))
    done = mixed.run("run", str(job))
    lines = sorted(line.partition(": ")[2] for line in done.stdout.splitlines())
    places = [cluster for cluster, count in sizes.items() for _ in range(count)]
    assert lines == [f"rank {rank} of 8 on {cluster}" for rank, cluster in enumerate(places)]
    shown = [server.run("qstat", "-x", "-t", "-f", "-F", "json") for server in servers]
    assert [text.count('"array":') for text in shown] == [1, 0]
    assert [text.count('"PBS_ARRAY_INDEX":') for text in shown] == [0, 2]
