# SPDX-License-Identifier: Apache-2.0
"""Slurm as a WIKI resource manager, for clients and for Maui."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from koala_adapter.errors import LrmError
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import new_context
from koala_adapter.testing.trial import begin_start
from koala_adapter.wiki.codec.words import Dialect
from koala_wiki import PLUGIN
from koala_wiki.lrm import WikiSettings
from tests.real.mauistandin import MauiStandIn
from tests.real.serving import HoldingCluster, WikiServing
from tests.real.systems import CommandError, SlurmCluster

# -- A real Slurm under an outside scheduler that speaks WIKI: ordinary jobs come in held, and start where it says.


SLEEPER = "#!/bin/sh\nexec sleep 600\n"
USER = "nobody"


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[SlurmCluster]:
    """Run a cluster of four nodes of eight processors with the site's piece through the module."""
    with HoldingCluster("wiki", nodes=4, cpus=8) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def module_serving(
    module_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WikiServing[SlurmCluster]]:
    """Serve the cluster through the module."""
    directory = tmp_path_factory.mktemp("wiki")
    with WikiServing(directory, module_cluster, "--dialect", "wiki2", "--cache", "0.2") as serving:
        yield serving


@pytest.fixture
def serving(
    module_serving: WikiServing[SlurmCluster], module_cluster: SlurmCluster
) -> Iterator[WikiServing[SlurmCluster]]:
    """Return the server, with a cluster that has no jobs."""
    yield module_serving
    module_cluster.reset()


def submit(serving: WikiServing[SlurmCluster], processors: int, *options: str) -> str:
    """Submit an ordinary job of an ordinary user; return its id."""
    given = (f"--ntasks={processors}", "--output=/dev/null", "--time=10", *options)
    return serving.system.submit(SLEEPER, *given, user=USER)


def layout(serving: WikiServing[SlurmCluster], job: str) -> dict[str, int]:
    """Return the processors that a job has on each node, as scontrol says."""
    counts: dict[str, int] = {}
    shown = serving.system.run("scontrol", "--details", "show", "job", job)
    for nodes, cpus in re.findall(r"^\s+Nodes=(\S+) CPU_IDs=(\S+)", shown, re.MULTILINE):
        ranges = [part.partition("-") for part in cpus.split(",")]
        number = sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
        names = serving.system.run("scontrol", "show", "hostnames", nodes).split()
        counts.update(dict.fromkeys(names, number))
    return counts


def value(serving: WikiServing[SlurmCluster], job: str, name: str) -> str:
    """Return a value of a job, as scontrol says."""
    return serving.system.show(job)[name]


def no_reservation(serving: WikiServing[SlurmCluster]) -> bool:
    """Tell whether no cores are reserved."""
    return "No reservations" in serving.system.run("scontrol", "show", "reservation")


def states(serving: WikiServing[SlurmCluster]) -> set[str]:
    """Return the states of the jobs that are not over."""
    return {row[1] for row in serving.system.squeue("--states=PENDING,RUNNING")}


def test_ten_ordinary_jobs(serving: WikiServing[SlurmCluster], tmp_path: Path) -> None:
    """Jobs of sbatch come in held, our own client sees them, and starts one on exactly the processors it names."""
    jobs = [submit(serving, 6) for _ in range(10)]
    assert states(serving) == {"PENDING"}

    async def start() -> None:
        settings = WikiSettings(port=serving.port, key_file=serving.key_file)
        lrm = PLUGIN.factory(new_context(tmp_path), settings)
        await lrm.start()
        seen = {str(job.id): job for job in await lrm.jobs()}
        assert {seen[job].processors for job in jobs} == {6}
        assert {node.name for node in await lrm.nodes()} == {"n1", "n2", "n3", "n4"}
        await begin_start(lrm, LrmJobId(jobs[3]), ["n4", "n4", "n4", "n2", "n2", "n2"])
        with anyio.fail_after(60):
            running = {str(job.id): job for job in await lrm.jobs()}[jobs[3]]
            while running.state is LrmJobState.STARTING:  # it is answered before the job runs
                await anyio.sleep(0.1)
                running = {str(job.id): job for job in await lrm.jobs()}[jobs[3]]
        assert running.state is LrmJobState.RUNNING
        assert dict(running.layout) == {"n4": 3, "n2": 3}
        await lrm.close()

    anyio.run(start)
    assert layout(serving, jobs[3]) == {"n4": 3, "n2": 3}
    assert serving.job(jobs[3]).task_list == ("n4", "n4", "n4", "n2", "n2", "n2")
    assert re.search(rf"done .*job={jobs[3]} peer=127.0.0.1 .*verb=STARTJOB", serving.errors.read_text())
    waiting = {job: serving.jobs()[job].state for job in jobs if job != jobs[3]}
    assert set(waiting.values()) == {"Idle"}
    assert serving.nodes()["n4"].state == "Running"


def test_number_of_nodes_is_the_users(serving: WikiServing[SlurmCluster]) -> None:
    """Who asked for one node, or for a range, gets that; who did not, has any number until he says otherwise.

    A start on fewer or more nodes is refused, and nothing is changed in Slurm.
    """
    one, plain, later = submit(serving, 6, "--nodes=1"), submit(serving, 6), submit(serving, 6)
    ranged = submit(serving, 4, "--nodes=2-3")
    serving.system.run("scontrol", "update", f"JobId={later}", "NumNodes=1-1", user=USER)
    for job, hosts, told in (
        (one, "n2:n2:n2:n4:n4:n4", "insists on"),
        (later, "n2:n2:n2:n4:n4:n4", "insists on"),
        (ranged, "n1:n1:n1:n1", "insists on 2 to 3 nodes"),
        (ranged, "n1:n2:n3:n4", "insists on 2 to 3 nodes"),
    ):
        refused = serving.ask(f"STARTJOB ARG={job} TASKLIST={hosts}")
        assert (refused.status, told in refused.text) == (-930, True), refused
    assert (value(serving, ranged, "NumNodes"), value(serving, ranged, "ReqNodeList")) == ("2-3", "(null)")
    serving.done(f"STARTJOB ARG={plain} TASKLIST=n2:n2:n2:n4:n4:n4")
    serving.done(f"STARTJOB ARG={one} TASKLIST=n1:n1:n1:n1:n1:n1")
    serving.done(f"STARTJOB ARG={ranged} TASKLIST=n3:n3:n4:n4")
    layouts = [layout(serving, job) for job in (plain, one, ranged)]
    assert layouts == [{"n2": 3, "n4": 3}, {"n1": 6}, {"n3": 2, "n4": 2}]


def test_different_numbers_on_busy_nodes(serving: WikiServing[SlurmCluster]) -> None:
    """Five and one processors beside other jobs are exactly five and one; no reservation is left."""
    first, second, third = (submit(serving, size) for size in (3, 6, 7))
    serving.done(f"STARTJOB ARG={first} TASKLIST=n2:n2:n4")
    serving.done(f"STARTJOB ARG={second} TASKLIST=n4:n4:n4:n4:n4:n2")
    assert layout(serving, first) == {"n2": 2, "n4": 1}
    assert layout(serving, second) == {"n4": 5, "n2": 1}
    assert no_reservation(serving)
    refused = serving.ask(f"STARTJOB ARG={third} TASKLIST=n4:n4:n4:n4:n4:n4:n4")
    assert refused.status == -913
    assert "n4 has 2 free processors, and 7 are wanted" in refused.text
    assert value(serving, third, "Reason") == "JobHeldUser"


def test_control_is_seen_in_slurm(serving: WikiServing[SlurmCluster]) -> None:
    """Suspend, resume, signal, notify, modify, requeue and cancel each do to the job in Slurm what they say."""
    traces = serving.system.directory / "traces"
    traces.mkdir(mode=0o777)
    traces.chmod(0o777)
    trap = f"#!/bin/sh\ntrap 'touch {traces}/heard' USR1\ntouch {traces}/begun\nwhile :; do sleep 0.1; done\n"
    job = serving.system.submit(trap, "--ntasks=2", "--output=/dev/null", "--time=10", user=USER)
    serving.done(f"STARTJOB ARG={job} TASKLIST=n1:n1")
    serving.wait((traces / "begun").exists, what="the job's first words")
    # Before it is suspended: Slurm takes 2 s for that, and a signal in that time is lost.
    serving.done(f"SIGNALJOB ARG={job} VALUE=SIGUSR1")
    serving.wait((traces / "heard").exists, what="the signal")
    serving.done(f"SUSPENDJOB ARG={job}")
    assert value(serving, job, "JobState") == "SUSPENDED"
    assert serving.job(job).state == "Suspended"
    assert serving.ask(f"SUSPENDJOB ARG={job}").status == -700
    serving.done(f"RESUMEJOB ARG={job}")
    assert value(serving, job, "JobState") == "RUNNING"
    serving.done(f"NOTIFYJOB ARG={job} MSG=the end is near")
    serving.done(f"MODIFYJOB ARG={job} TIMELIMIT=7")
    assert value(serving, job, "TimeLimit") == "00:07:00"
    assert serving.job(job).walltime == 420
    serving.done(f"REQUEUEJOB ARG={job}")
    assert (value(serving, job, "JobState"), serving.job(job).state) == ("PENDING", "Hold")
    serving.done(f"CANCELJOB ARG={job} TYPE=ADMIN")
    assert value(serving, job, "JobState") == "CANCELLED"
    assert serving.job(job).state == "Removed"


def waits_again(serving: WikiServing[SlurmCluster], job: str) -> bool:
    """Tell whether a job is told as queued again, and not to be started yet."""
    record = serving.job(job)
    return record.state == "Hold" and "queued again" in record.comment


def test_a_job_that_slurm_queues_again_is_idle_when_it_may_start(serving: WikiServing[SlurmCluster]) -> None:
    """Requeued by its user, also while the service is down, it is held, tied to nothing, and started elsewhere."""
    first, second = submit(serving, 6), submit(serving, 7)
    serving.done(f"STARTJOB ARG={first} TASKLIST=n1:n1:n1:n2:n2:n2")
    serving.done(f"STARTJOB ARG={second} TASKLIST=n3:n3:n3:n3:n4:n4:n4")
    serving.system.run("scontrol", "requeue", first, user=USER)
    serving.wait(lambda: waits_again(serving, first), what="the first one waits")
    serving.kill()
    serving.system.run("scontrol", "requeue", second, user=USER)
    serving.start()
    serving.wait(lambda: waits_again(serving, second), what="the second one waits")
    assert (serving.job(first).host_list, serving.job(second).host_list) == ((), ())
    for job, processors in ((first, "6"), (second, "7")):
        shown = [value(serving, job, name) for name in ("JobState", "Reason", "ReqNodeList", "NumCPUs")]
        assert shown == ["PENDING", "JobHeldUser", "(null)", processors]
        serving.system.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    serving.wait(lambda: serving.job(second).state == "Idle", what="its begin time has come")
    serving.done(f"STARTJOB ARG={second} TASKLIST=n1:n1:n1:n1:n2:n2:n2")
    assert layout(serving, second) == {"n1": 4, "n2": 3}


def test_users_cannot_start_their_jobs(serving: WikiServing[SlurmCluster]) -> None:
    """Releasing does nothing to the site's hold; a user's own hold counts, and its release gives the job back to us."""
    job, own = submit(serving, 1), submit(serving, 1, "--hold")
    with pytest.raises(CommandError):
        serving.system.run("scontrol", "release", job, user=USER)
    assert (serving.job(job).state, serving.job(own).state) == ("Idle", "Hold")
    refused = serving.ask(f"STARTJOB ARG={own} TASKLIST=n1")
    assert (refused.status, "held by its user" in refused.text) == (-918, True)
    serving.system.run("scontrol", "release", own, user=USER, check=False)
    serving.wait(lambda: serving.job(own).state == "Idle", what="a job given back")
    serving.system.run("scontrol", "hold", job, user=USER)
    serving.wait(lambda: serving.job(job).state == "Hold", what="a job held by its user")
    assert states(serving) == {"PENDING"}


def test_check_finds_the_piece(serving: WikiServing[SlurmCluster]) -> None:
    """``koala check --outside`` sees a job come in held, marked as ours, and that we may start it; none is left."""
    done = serving.user.run("check", "--outside", "--json")
    found = {one["subject"]: one["ok"] for one in done.json["checks"]}
    assert (done.code, found["jobs come in held"], found["we may start them"]) == (0, True, True), done
    assert states(serving) == set()


def test_dead_node_is_down(serving: WikiServing[SlurmCluster]) -> None:
    """A job is refused on a drained node, and dependent jobs are not started before their time."""
    first = submit(serving, 1)
    dependent = submit(serving, 1, f"--dependency=afterany:{first}")
    later = submit(serving, 1, "--begin=now+1hour")
    serving.system.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=broken")
    try:
        serving.wait(lambda: serving.nodes()["n3"].state == "Drained", what="a drained node")
        assert serving.ask(f"STARTJOB ARG={first} TASKLIST=n3").status == -913
    finally:
        serving.system.run("scontrol", "update", "NodeName=n3", "State=RESUME")
    assert serving.ask(f"STARTJOB ARG={dependent} TASKLIST=n1").status == -912
    assert serving.ask(f"STARTJOB ARG={later} TASKLIST=n1").status == -919
    assert serving.ask(f"STARTJOB ARG={first} TASKLIST=n9").status == -700
    assert serving.ask("STARTJOB ARG=999999 TASKLIST=n1").status == -700
    serving.done(f"STARTJOB ARG={first} TASKLIST=n1")


@pytest.mark.parametrize(
    "after", [pytest.param(0.05, marks=pytest.mark.nightly), 0.15, pytest.param(0.4, marks=pytest.mark.nightly)]
)
def test_killed_between_start_and_reply(serving: WikiServing[SlurmCluster], after: float) -> None:
    """A service that is killed in the middle of starts leaves each job running once, or held once, never lost."""
    jobs = {submit(serving, 6): f"{a}:{a}:{a}:{a}:{b}:{b}" for a, b in (("n1", "n2"), ("n3", "n4"), ("n2", "n3"))}
    serving.jobs()

    def ask(job: str, tasks: str) -> None:
        with suppress(LrmError):  # the reply may come or not
            serving.ask(f"STARTJOB ARG={job} TASKLIST={tasks}")

    threads = [threading.Thread(target=ask, args=item) for item in jobs.items()]
    for thread in threads:
        thread.start()
    threads[0].join(after)
    serving.kill()
    for thread in threads:
        thread.join()
    serving.start()
    words: dict[str, tuple[str, str]] = {}

    def settled() -> bool:  # what was released before the kill may be about to start
        seen = serving.jobs()
        words.update({job: (value(serving, job, "JobState"), seen[job].state) for job in jobs})
        # What runs is held for the case that Slurm queues it again.
        held = {value(serving, job, "Reason") for job in jobs} == {"JobHeldUser"}
        return held and set(words.values()) <= {("RUNNING", "Running"), ("PENDING", "Idle")}

    serving.wait(settled, what="each runs or waits in hold")
    assert no_reservation(serving)
    for job, tasks in jobs.items():
        if words[job][0] == "PENDING":
            serving.done(f"STARTJOB ARG={job} TASKLIST={tasks}")
        assert layout(serving, job) == {node: tasks.split(":").count(node) for node in tasks.split(":")}
    assert states(serving) == {"RUNNING"}


# -- Jobs of all shapes on a real Slurm, started by a stand-in for Maui: all come to their end, and none waits for
# others. Each job writes where it ran and with how much, which is compared with what its user asked for.


SCRIPT = "#!/bin/sh\nexec sleep 0.5\n"

SHAPES: Mapping[str, Sequence[str]] = {
    "one": ("-n1",),
    "on n3": ("-n2", "-w", "n3"),
    "one node": ("-n5", "-N1"),
    "two each": ("-n8", "--ntasks-per-node=2"),
    "not there": ("-n2", "-x", "n1,n2"),
    "either": ("-n1", "-C", "fast|slow"),
    "both": ("-n1", "-C", "fast&big"),
    "range": ("-n3", "-N2-3"),
    "uneven": ("-n5", "-N2"),
    "alone": ("-n1", "--exclusive"),
    "threads": ("-n2", "-c3"),
    "two nodes by name": ("-n3", "-w", "n1,n2"),
    "wide": ("-n11",),
    "one licence": ("-n1", "-L", "tool"),
    "the same licence": ("-n1", "-L", "tool"),
    "one card": ("-n1", "--gres=fpga:1"),
    "the same card": ("-n1", "--gres=fpga:1", "-w", "n3"),
    "cards of two nodes": ("-n2", "-N2", "--gres=fpga:1"),
    "in a partition of single nodes": ("-n5", "-p", "single", "--time=10"),
}
NEVER: Mapping[str, tuple[Sequence[str], str]] = {
    "reordered features": (("-n1", "-C", "[fast*1&slow*1]"), "features"),
    "no such resource": (("-n1", "--gres=gpu:1"), "no node has free"),
    "too long for its partition": (("-n1", "-p", "single", "--time=50"), "minutes at most"),
    "more nodes than its partition gives": (("-N2", "-p", "single", "--time=10"), "at most 1 nodes"),
    "no room in its partition": (("-n9", "-p", "single", "--time=10"), "can take"),
    "contiguous": (("-n2", "--contiguous"), "contiguous"),
}
SETTINGS = {"Licenses": "tool:1", "GresTypes": "fpga,gpu"}
SINGLE = ("PartitionName=single", "Nodes=n1,n2", "MaxNodes=1", "MaxTime=20", "State=UP")
NODES: Mapping[str, frozenset[str]] = {
    "on n3": frozenset({"n3"}),
    "not there": frozenset({"n3", "n4"}),
    "either": frozenset({"n1", "n2", "n3"}),
    "both": frozenset({"n2"}),
    "two nodes by name": frozenset({"n1", "n2"}),
    "the same card": frozenset({"n3"}),
    "in a partition of single nodes": frozenset({"n1", "n2"}),
}
NUMBERS: Mapping[str, tuple[int, int]] = {
    "on n3": (1, 1),
    "one node": (1, 1),
    "two each": (4, 4),
    "range": (2, 3),
    "uneven": (2, 2),
    "two nodes by name": (2, 2),
    "cards of two nodes": (2, 2),
    "in a partition of single nodes": (1, 1),
}
"""Least and most nodes."""


@pytest.fixture(scope="module")
def maui_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WikiServing[SlurmCluster]]:
    """Serve a cluster of four nodes of eight processors, three of them with features."""
    cluster = HoldingCluster("shapes", nodes=4, cpus=8, settings=SETTINGS, gres=("fpga", 1))
    with cluster:
        for node, features in (("n1", "fast"), ("n2", "fast,big"), ("n3", "slow")):
            cluster.run("scontrol", "update", f"NodeName={node}", f"Features={features}")
        cluster.run("scontrol", "create", *SINGLE)
        with WikiServing(tmp_path_factory.mktemp("shapes"), cluster, "--cache", "0.5") as served:
            yield served


def maui_submit(serving: WikiServing[SlurmCluster], *options: str) -> str:
    """Submit a short job of an ordinary user."""
    return serving.system.submit(SCRIPT, "--output=/dev/null", "--time=20", *options, user=USER)


def ran_on(serving: WikiServing[SlurmCluster], job: str) -> frozenset[str]:
    """Return the nodes on which a job ran, as Slurm says."""
    shown = serving.system.show(job)
    assert shown["JobState"] == "COMPLETED", shown
    return frozenset(serving.system.run("scontrol", "show", "hostnames", shown["NodeList"]).split())


def run_all(serving: WikiServing[SlurmCluster], rounds: int) -> None:
    """Have so many jobs of each shape run, and compare what Slurm did with what was asked for."""
    impossible = {maui_submit(serving, *options): (name, words) for name, (options, words) in NEVER.items()}
    jobs = {maui_submit(serving, *options): name for _ in range(rounds) for name, options in SHAPES.items()}
    first = next(iter(jobs))
    jobs[maui_submit(serving, "-n1", f"--dependency=afterok:{first}")] = "one"
    array = maui_submit(serving, "-n1", "--array=0-3%2")
    elements = {f"{array}_{number}" for number in range(4)}
    maui = MauiStandIn(serving.peer(Dialect.WIKI), interval=1.0, defer=5.0)
    maui.expect_all([*jobs, *elements], impossible, seconds=240 + 60 * rounds, details=serving.details)
    for job, name in jobs.items():
        nodes = ran_on(serving, job)
        assert nodes <= NODES.get(name, nodes), (name, nodes)
        least, most = NUMBERS.get(name, (1, 4))
        assert least <= len(nodes) <= most, (name, nodes)


def test_every_shape_runs_where_its_user_allows(maui_serving: WikiServing[SlurmCluster]) -> None:
    """One job of each, two that cannot be told, an array with a throttle, and a job that waits for another."""
    run_all(maui_serving, 1)


@pytest.mark.nightly
def test_two_hundred_jobs_of_all_shapes(maui_serving: WikiServing[SlurmCluster]) -> None:
    """None waits for a refused one, none violates its request."""
    run_all(maui_serving, 15)


@pytest.mark.nightly
def test_kills_node_loss_and_requeues_lose_nothing(maui_serving: WikiServing[SlurmCluster]) -> None:
    """Kills every ten seconds, a node that goes away and comes back, jobs queued again: all run to their end."""
    cluster = maui_serving.system
    jobs = {maui_submit(maui_serving, *options): name for _ in range(6) for name, options in SHAPES.items()}
    maui = MauiStandIn(maui_serving.peer(Dialect.WIKI), interval=1.0, defer=5.0)
    left, begun, killed = set(jobs), time.monotonic(), 0
    while left and time.monotonic() < begun + 400:
        left = maui.run(left, seconds=10)
        if not left:
            break
        maui_serving.kill()
        killed += 1
        if killed == 1:
            cluster.kill_node("n4")
            cluster.give_up("n4")
            running = [row[0] for row in cluster.squeue("--states=RUNNING")]
            for job in running:
                cluster.run("scontrol", "requeue", job, check=False)
        if killed == 3:
            cluster.start_node("n4")
            cluster.return_to_use()
        for job in left:  # Slurm gives what was queued again a time to begin
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+2", check=False)
        maui_serving.start()
    assert not left, ({job: (jobs[job], maui.jobs.get(job)) for job in left}, maui.refusals, maui_serving.details())
    for job, name in jobs.items():
        nodes = ran_on(maui_serving, job)
        assert nodes <= NODES.get(name, nodes), (name, nodes)
