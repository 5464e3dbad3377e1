# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` in the place of a real Slurm's or Grid Engine's scheduler: ordinary jobs that come in held."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koala_adapter.cli.jsonshapes import shape_schema
from koala_adapter.queueing.backfill import POLICIES
from tests.json_shapes import deviations
from tests.real.serving import HoldingCluster, Scheduling, WikiServing
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.user import KoalaUser, part

# -- ``koala schedule`` in the place of a real Slurm's scheduler: ordinary jobs that come in held, on 4 nodes of 8.

SEED = 5
NIGHTLY = pytest.mark.nightly
BY_DAY = {"easy", "fcfs"}
"""Policies that are seen by day on a real system; what tells them from others is computed, and tested without one."""


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[SlurmCluster]:
    """Run a cluster whose jobs come in held by the site's submission piece through the module; tests take `cluster`."""
    with HoldingCluster("sched", nodes=4, cpus=8) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Return the cluster without jobs."""
    yield module_cluster
    module_cluster.reset()


def submit(
    scheduling: Scheduling[SlurmCluster],
    name: str,
    processors: int,
    *options: str,
    seconds: float = 0.3,
    limit: int = 30,
    until_told: bool = False,
) -> str:
    """Submit an ordinary job, ``limit`` in minutes, that runs so many seconds or until told to end; return its id."""
    script = scheduling.script_until_told(name) if until_told else scheduling.script(name, seconds)
    given = (f"--ntasks={processors}", f"--time={limit}", "--output=/dev/null", *options)
    return scheduling.system.submit(script, *given)


def unfinished(cluster: SlurmCluster) -> list[list[str]]:
    """Return the jobs that are not over."""
    return cluster.squeue("--states=PENDING,RUNNING,SUSPENDED", form="%i|%T|%r")


@pytest.mark.parametrize("policy", [name if name in BY_DAY else pytest.param(name, marks=NIGHTLY) for name in POLICIES])
def test_a_mixed_queue_runs_to_the_end(policy: str, cluster: SlurmCluster, tmp_path: Path) -> None:
    """With each policy every job runs once, on nodes and with counts as it asked for."""
    scheduling = Scheduling(tmp_path, cluster, "--policy", policy, "--depth", "2")
    wide = submit(scheduling, "wide", 32)
    uneven = submit(scheduling, "uneven", 7, "--nodes=2")
    spread = submit(scheduling, "spread", 4, "--nodes=4", "--ntasks-per-node=1")
    named = submit(scheduling, "named", 3, "--nodelist=n3")
    submit(scheduling, "array", 1, "--array=1-3")
    with scheduling:
        scheduling.wait_runs({"wide", "uneven", "spread", "named"})
        scheduling.wait(lambda: not unfinished(cluster), what="nothing left")
        scheduling.wait(lambda: wide in scheduling.told("ended"), what="the ends are seen")
    assert scheduling.traces().pop("array").count("end") == 3
    assert all(found == ["run", "end"] for name, found in scheduling.traces().items() if name != "array")
    nodes = {job: dict(line["nodes"]) for job, line in scheduling.told("start").items()}
    assert nodes[wide] == {"n1": 8, "n2": 8, "n3": 8, "n4": 8}
    assert sorted(nodes[uneven].values()) == [3, 4]
    assert nodes[spread] == {"n1": 1, "n2": 1, "n3": 1, "n4": 1}
    assert nodes[named] == {"n3": 3}
    assert scheduling.told("not started") == {}


def test_jobs_that_take_more_than_they_ask_for(tmp_path: Path) -> None:
    """A job of one processor takes a core of two, one with its nodes for itself all of them: no start is in vain."""
    threads = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2"
    with HoldingCluster("cores", cpus=8, node_options=threads) as cluster:
        scheduling = Scheduling(tmp_path, cluster, "--patience", "3")
        ids = [submit(scheduling, f"j{number}", 1, seconds=4) for number in range(8)]
        ids += [submit(scheduling, "alone", 1, "--exclusive", seconds=4), submit(scheduling, "after", 3)]
        with scheduling:
            scheduling.wait(lambda: set(ids) <= set(scheduling.told("ended")), what="all have run")
        assert scheduling.told("not started") == {}


@pytest.mark.parametrize("policy", ["fcfs", pytest.param("firstfit", marks=NIGHTLY)])
def test_jobs_of_one_second_start_by_their_numbers(policy: str, cluster: SlurmCluster, tmp_path: Path) -> None:
    """Slurm lists the newest first; also those that come in while it runs start in the order of their ids."""
    scheduling = Scheduling(tmp_path, cluster, "--policy", policy)
    first = submit(scheduling, "first", 32, until_told=True)
    with scheduling:
        scheduling.wait(lambda: first in scheduling.told("started"), what="the cluster is full")
        ids = [submit(scheduling, f"j{number}", 32, seconds=0.1) for number in range(4)]
        array = submit(scheduling, "array", 32, "--array=2,10", seconds=0.1)
        elements = [f"{array}_2", f"{array}_10"]
        scheduling.wait(lambda: {*ids, *elements} <= set(scheduling.told("submitted")), what="all are seen")
        scheduling.let_end("first")
        scheduling.wait(lambda: set(elements) <= set(scheduling.told("ended")), what="all have run")
    starts = [line["job_id"] for line in scheduling.lines() if line["kind"] == "start"]
    assert starts == [first, *ids, *elements]


@pytest.mark.parametrize("down", [False, True])
def test_jobs_that_are_queued_again_wait_held_and_untied(
    down: bool,  # noqa: FBT001 - a parameter
    cluster: SlurmCluster,
    tmp_path: Path,
) -> None:
    """Requeued by its owner, or because its node fails, a job waits for us, also while koala is down."""
    scheduling = Scheduling(tmp_path, cluster)
    even = submit(scheduling, "even", 10, until_told=True)
    uneven = submit(scheduling, "uneven", 7, "--nodes=2", until_told=True)
    one = submit(scheduling, "one", 1, "--nodelist=n4", until_told=True)
    element = submit(scheduling, "array", 1, "--array=3", until_told=True) + "_3"
    jobs = (even, uneven, one, element)
    with scheduling.ended():
        scheduling.start()
        scheduling.wait(lambda: set(jobs) <= set(scheduling.told("started")), what="all run")
        # A job is put in hold as soon as it is seen to run; one that is queued again before would escape a dead koala.
        scheduling.wait(lambda: all(cluster.show(job)["Priority"] == "0" for job in jobs), what="all are in hold")
        if down:
            scheduling.kill()
        for job in jobs[:3]:
            cluster.run("scontrol", "requeue", job)
        fail_node(cluster, scheduling, element)
        if down:
            scheduling.start()
        scheduling.wait(lambda: set(jobs) <= set(scheduling.told("requeued")), what="all wait again")
        # Slurm may let it start again after two minutes, or at once.
        scheduling.wait(
            lambda: all(untied(cluster, job) or again(scheduling, job) for job in (even, uneven, element)),
            what="all are untied",
        )
        waiting = {job: shown for job in jobs if (shown := cluster.show(job))["JobState"] == "PENDING"}
        assert waiting
        assert {shown["Reason"] for shown in waiting.values()} == {"JobHeldUser"}
        asked = {even: "10", uneven: "7", one: "1", element: "1"}
        assert {job: shown["NumCPUs"] for job, shown in waiting.items()} == {job: asked[job] for job in waiting}
        assert one not in waiting or waiting[one]["ReqNodeList"] == "n4"
        for name in ("even", "uneven", "one", "array"):
            scheduling.let_end(name)
        for job in jobs:
            # A node refuses a job whose new credential is of the same second as the end of its last run.
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+2", check=False)
        scheduling.wait_runs({"even", "uneven", "one", "array"})
        scheduling.wait(lambda: not unfinished(cluster), what="nothing left")
        scheduling.stop()
    assert all(found == ["run", "run", "end"] for found in scheduling.traces().values())
    starts = {job: line["nodes"] for job, line in scheduling.told("start").items()}
    assert (len(starts[uneven]), starts[one]) == (2, [["n4", 1]])


def test_a_users_range_of_nodes_is_kept(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job of ``-N2-3`` waits for a second node although one has room, and says so; then it gets two or three."""
    scheduling = Scheduling(tmp_path, cluster)
    wide = submit(scheduling, "wide", 24, "--nodes=3", until_told=True)
    with scheduling:
        scheduling.wait(lambda: wide in scheduling.told("started"), what="one node is left")
        ranged = submit(scheduling, "ranged", 3, "--nodes=2-3")
        silent = cluster.submit(
            scheduling.script("silent", 0.3), "--nodes=2-4", "--time=10", "--output=/dev/null", "--ntasks-per-node=1"
        )
        scheduling.wait(lambda: ranged in scheduling.told("passed over"), what="it is passed over")
        scheduling.let_end("wide")
        scheduling.wait_runs({"wide", "ranged", "silent"})
    assert "on 2 to 3 nodes" in scheduling.told("passed over")[ranged]["detail"]
    nodes = {job: len(line["nodes"]) for job, line in scheduling.told("start").items()}
    assert nodes[ranged] in {2, 3}
    assert nodes[silent] in {2, 3, 4}
    assert scheduling.told("not started") == {}


def fail_node(cluster: SlurmCluster, scheduling: Scheduling[SlurmCluster], job: str) -> None:
    """Have the node of a running job fail, and come back."""
    node = cluster.squeue(f"--jobs={job}", form="%N")[0][0]
    cluster.kill_node(node)
    cluster.give_up(node)
    scheduling.wait(lambda: not cluster.squeue(f"--jobs={job}", form="%N")[0][0], what="the job lost its node")
    cluster.start_node(node)
    if "down" in node_state(cluster, node):  # it comes back by itself when it registers, and may have done so
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    scheduling.wait(lambda: "down" not in node_state(cluster, node), what="the node is back")


def node_state(cluster: SlurmCluster, node: str) -> str:
    """Return what sinfo tells of a node, such as ``idle`` or ``down*``."""
    return cluster.run("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip()


def again(scheduling: Scheduling[SlurmCluster], job: str) -> bool:
    """Tell whether a job was started a second time."""
    return [line["kind"] for line in scheduling.lines() if line["job_id"] == job].count("started") > 1


def untied(cluster: SlurmCluster, job: str) -> bool:
    """Tell whether a job waits in hold, bound to no node."""
    shown = cluster.show(job)
    return (shown["JobState"], shown["Reason"], shown["ReqNodeList"]) == ("PENDING", "JobHeldUser", "(null)")


def test_a_backfilled_job_never_delays_the_reserved_one(cluster: SlurmCluster, tmp_path: Path) -> None:
    """What ends in time overtakes, what could be in the way does not, and the promise is kept; explain tells all."""
    path = tmp_path / "public" / "ask.sock"
    path.parent.mkdir(mode=0o755)
    scheduling = Scheduling(tmp_path, cluster, "--ask-socket", str(path))
    another = KoalaUser(tmp_path / "another", [cluster], clusters={cluster.name: {"ask_socket": str(path)}})
    first = submit(scheduling, "first", 24, limit=20, until_told=True)
    reserved = submit(scheduling, "reserved", 32, limit=20)
    long = submit(scheduling, "long", 8, limit=50)
    short = submit(scheduling, "short", 8, limit=10)
    with scheduling:
        scheduling.wait(lambda: reserved in scheduling.told("reserved"), what="a reservation")
        told = scheduling.user.run("explain", f"{cluster.name}:{reserved}", "--json").json
        assert deviations(told, shape_schema("local-explanation")) == []
        assert (told["phase"], told["position"]) == ("waiting", 1)
        assert "reserved for it" in told["reason"]
        assert "is in nobody's way" in scheduling.user.run("explain", "--cluster", cluster.name, long).text
        assert scheduling.user.run("explain", f"{cluster.name}:999").code == 240
        in_public = another.run("explain", f"{cluster.name}:{reserved}", "--json").json
        assert in_public["position"] == 1
        assert in_public["promised_at"] == pytest.approx(told["promised_at"], abs=60)
        assert another.run("explain", f"{cluster.name}:999").code == 240
        scheduling.wait_runs({"short"})
        scheduling.let_end("first")
        scheduling.wait_runs({"first", "reserved", "long", "short"})
        # Not until it is seen to run: it may be over before the next look.
        scheduling.wait(lambda: long in scheduling.told("ended"), what="all are over")
    promise = scheduling.told("reserved")[reserved]["at"]
    starts = {job: line["time"] for job, line in scheduling.told("start").items()}
    assert told["reserved_at"] == pytest.approx(promise, abs=60)
    assert starts[first] + 1100 < promise < starts[first] + 1260
    assert starts[short] < starts[reserved] < starts[long]
    assert starts[reserved] < promise
    assert scheduling.user.run("explain", f"{cluster.name}:{long}").code == 246


def test_over_wiki_it_schedules_the_same(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The queue of a resource manager that speaks WIKI, here our own server in front of Slurm, runs to the end."""
    (tmp_path / "serving").mkdir()
    scheduling = Scheduling(tmp_path, cluster)
    with WikiServing(tmp_path / "serving", cluster) as serving:
        scheduling.over_wiki(serving.port, serving.key_file)
        wide = submit(scheduling, "wide", 32)
        spread = submit(scheduling, "spread", 8, "--nodes=4", "--ntasks-per-node=2")
        submit(scheduling, "one", 1)
        with scheduling:
            scheduling.wait_runs({"wide", "spread", "one"})
            scheduling.wait(lambda: not unfinished(cluster), what="nothing left")
    nodes = {job: dict(line["nodes"]) for job, line in scheduling.told("start").items()}
    assert nodes[wide] == {"n1": 8, "n2": 8, "n3": 8, "n4": 8}
    assert nodes[spread] == {"n1": 2, "n2": 2, "n3": 2, "n4": 2}
    assert all(found == ["run", "end"] for found in scheduling.traces().values())


def test_a_shadow_changes_nothing(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """Slurm shows the same before and after; the report tells what our policy would have done."""
    scheduling = Scheduling(tmp_path, slurm_a, "--shadow", "--policy", "fcfs")
    run = ("--time=5", "--output=/dev/null")
    slurm_a.submit("#!/bin/sh\nsleep 900\n", "--ntasks=6", *run)
    waiting = slurm_a.submit("#!/bin/sh\nsleep 900\n", "--ntasks=8", *run)
    scheduling.wait(lambda: len(slurm_a.squeue("--states=RUNNING")) == 1, what="the first one runs")
    # With its first look at a job, Slurm works out what it will show of it from then on.
    scheduling.wait(lambda: slurm_a.show(waiting)["Reason"] == "Resources", what="the second one was looked at")
    submit(scheduling, "held", 1, "--hold")
    before = shown(slurm_a)
    logged = len(slurm_a.controller_log.read_text())
    with scheduling.ended():
        scheduling.start()
        assert "watches" in scheduling.said()[0]
        time.sleep(1)
        overtaking = slurm_a.submit("#!/bin/sh\nsleep 900\n", "--ntasks=1", "--time=1", "--output=/dev/null")
        scheduling.wait(lambda: overtaking in scheduling.told("started"), what="Slurm starts the short one")
        time.sleep(3)  # differences of less than two seconds count as none
        assert scheduling.stop() == 0
    slurm_a.run("scancel", overtaking)
    after = shown(slurm_a)
    assert {job: after[job] for job in before} == before
    assert "update_job" not in slurm_a.controller_log.read_text()[logged:]
    report = scheduling.lines()[-1]
    assert report["kind"] == "report"
    assert report["later"] == 1
    assert report["first_later"][0]["job_id"] == overtaking
    assert "held" not in scheduling.traces()


def shown(cluster: SlurmCluster) -> dict[str, list[str]]:
    """Return all that Slurm shows of its jobs, by id, but for what time alone and its own scheduler change.

    Without those that have ended: it forgets them some minutes later, also the ones of earlier tests.
    """
    text = cluster.run("scontrol", "--oneliner", "show", "job")
    moving = re.compile(r"(RunTime|StartTime|EndTime|LastSchedEval|SchedNodeList|Scheduler|Reason|Priority|NumNodes)=")
    rows = [line.split() for line in text.splitlines() if line.strip()]
    there = [row for row in rows if {"JobState=PENDING", "JobState=RUNNING"} & {*row}]
    return {row[0].partition("=")[2]: [word for word in row if not moving.match(word)] for row in there}


def test_killed_at_any_moment_it_loses_and_doubles_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Each job runs exactly once, however often the scheduler is killed in between."""
    chance = random.Random(SEED)
    scheduling = Scheduling(tmp_path, cluster, "--patience", "5")
    names = {f"j{number}" for number in range(9)}
    for name in sorted(names):
        submit(scheduling, name, chance.choice([1, 3, 8, 16, 32]), until_told=True)
    with scheduling.ended():
        kills = 0
        while kills < 6 and any(state == "PENDING" for _, state, _ in unfinished(cluster)):
            scheduling.start()
            scheduling.wait_new_line(or_when=lambda: not unfinished(cluster))
            time.sleep(chance.uniform(0.0, 0.6))
            scheduling.kill()
            kills += 1
            if kills == 2:  # until now those that run have kept others waiting
                for name in names:
                    scheduling.let_end(name)
        assert kills > 1
        with scheduling:
            scheduling.wait_runs(names)
            scheduling.wait(lambda: not unfinished(cluster), what="nothing left")
    assert scheduling.traces() == {name: ["run", "end"] for name in names}


def test_a_controller_that_goes_away_costs_time_only(cluster: SlurmCluster, tmp_path: Path) -> None:
    """It is told, nothing is decided meanwhile, and the queue goes on when the controller is back."""
    scheduling = Scheduling(tmp_path, cluster)
    names = {"first", "second", "third"}
    for name in sorted(names):
        submit(scheduling, name, 32, seconds=0.5)
    with scheduling:
        scheduling.wait(lambda: bool(scheduling.told("start")), what="the first start")
        cluster.stop_controller()
        # Of the cluster: a start that could not be sent says so of the controller, and no look need have failed then.
        silent = f"{cluster.name} does not answer"
        scheduling.wait(lambda: any(silent in line for line in scheduling.said()), what="it is told")
        cluster.start_controller()
        scheduling.wait_runs(names)
        scheduling.wait(lambda: not unfinished(cluster), what="nothing left")
        # Later than that when all had been started before the controller was gone.
        scheduling.wait(lambda: any("answers again" in line for line in scheduling.said()), what="it answers again")
    assert scheduling.traces() == {name: ["run", "end"] for name in names}


def test_the_queue_is_given_back_after_a_kill(cluster: SlurmCluster, tmp_path: Path) -> None:
    """What the hook held runs under Slurm's own scheduler; what users hold stays held, at a second time, too."""
    scheduling = Scheduling(tmp_path, cluster)
    runs = submit(scheduling, "runs", 32, until_told=True)
    with scheduling.ended():
        scheduling.start()
        scheduling.wait(lambda: runs in scheduling.told("started"), what="one runs")
        waits = [submit(scheduling, f"waits{number}", 32) for number in range(2)]
        array = submit(scheduling, "array", 1, "--array=1-3")
        own = submit(scheduling, "own", 1, "--hold")
        scheduling.wait(lambda: {*waits, own} <= set(scheduling.told("submitted")), what="all are seen")
        scheduling.kill()
    back = scheduling.user.run("schedule", "--give-back", cluster.name, "--json")
    assert back.code == 0, back.stderr
    assert set(waits) | {f"{array}_{index}" for index in (1, 2, 3)} == set(back.json["released"])
    assert back.json["running"] == [runs]
    # Queued again it waits for the two minutes that Slurm lets such a job wait, and not in anybody's hold.
    cluster.run("scontrol", "requeue", runs)
    reasons = {"None", "BeginTime"}
    scheduling.wait(lambda: cluster.squeue(f"--jobs={runs}")[0][1] == "PENDING", what="it waits again")
    assert cluster.squeue(f"--jobs={runs}")[0][2] in reasons
    cluster.run("scancel", runs)
    scheduling.wait(lambda: [row[0] for row in unfinished(cluster)] == [own], what="all but the user's have run")
    assert "own" not in scheduling.traces()
    assert scheduling.user.run("schedule", "--give-back", cluster.name, "--json").json["released"] == []
    cluster.run("scontrol", "release", own)
    scheduling.wait(lambda: not unfinished(cluster), what="its user's release lets it run")


def test_what_nobody_releases_is_named(cluster: SlurmCluster, tmp_path: Path) -> None:
    """With the hook and without a scheduler, `explain` and `check` say who holds a job, and the way out."""
    scheduling = Scheduling(tmp_path, cluster)
    user = scheduling.user
    user.serve()
    try:
        job = user.submit(user.job_file(part(cluster.name, 1, "true")))
        scheduling.wait(
            lambda: "in hold by its user or a submission hook" in user.run("explain", job).text, what="it says so"
        )
        assert "koala schedule" in user.run("explain", job).text
        check = user.run("check", "--timeout", "6")
        assert check.code == 1
        assert "in hold by the site's hook for an outside scheduler" in check.text
        assert f"koala schedule --give-back {cluster.name}" in check.text
    finally:
        user.close()


# -- ``koala schedule`` on a real Grid Engine, whose submission default holds every job.

QUIET = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y")


@pytest.fixture
def holding_cell(sge_cell: GridEngineCell) -> Iterator[GridEngineCell]:
    """Return a cell in which every job comes in held: ``-h`` in its sge_request (sge_request(5))."""
    defaults = sge_cell.root / sge_cell.cell / "common" / "sge_request"
    before = defaults.read_text() if defaults.exists() else ""
    defaults.write_text(f"{before}\n-h\n")
    yield sge_cell
    defaults.write_text(before)


def test_grid_engine_a_queue_runs_to_the_end(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """Ordinary jobs and an array, more than the cell holds at once: each runs once, in the order of submission."""
    scheduling = Scheduling(tmp_path, holding_cell, "--policy", "fcfs", "--weights", "queue-time=1")
    names = [f"j{number}" for number in range(6)]
    ids = [holding_cell.submit(scheduling.script(name, 1.0), *QUIET, "-l", "h_rt=3600") for name in names]
    array = holding_cell.submit(scheduling.script("array", 0.2), *QUIET, "-t", "1-3", "-l", "h_rt=3600")
    with scheduling:
        scheduling.wait_runs(set(names))
        scheduling.wait(lambda: scheduling.traces().get("array", []).count("end") == 3, what="the array has run")
        scheduling.wait(lambda: not holding_cell.qstat(), what="nothing left")
    traces = scheduling.traces()
    assert traces.pop("array").count("run") == 3
    assert traces == {name: ["run", "end"] for name in names}
    starts = [line for line in scheduling.lines() if line["kind"] == "start"]
    assert [line["job_id"] for line in starts][: len(ids)] == ids
    assert {line["job_id"].partition(".")[0] for line in starts[len(ids) :]} == {array.partition(".")[0]}


def test_grid_engine_jobs_of_one_second_start_by_their_numbers(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """Also when they come in while it runs."""
    scheduling = Scheduling(tmp_path, holding_cell, "--policy", "fcfs")
    options = (*QUIET, "-l", "h_rt=3600")
    blockers = [f"b{number}" for number in range(4)]
    for name in blockers:
        holding_cell.submit(scheduling.script_until_told(name), *options)
    with scheduling:
        scheduling.wait(lambda: len(scheduling.told("started")) == len(blockers), what="the cell is full")
        known = set(scheduling.told("start"))
        ids = [holding_cell.submit(scheduling.script(f"j{number}", 0.2), *options) for number in range(8)]
        scheduling.wait(lambda: set(ids) <= set(scheduling.told("submitted")), what="all are seen")
        for name in blockers:
            scheduling.let_end(name)
        scheduling.wait_runs({f"j{number}" for number in range(8)})
    starts = [line["job_id"] for line in scheduling.lines() if line["kind"] == "start"]
    assert [id_ for id_ in starts if id_ not in known] == ids


def test_grid_engine_jobs_that_are_queued_again_wait_in_hold(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """By ``qmod -rj`` and by exit status 99: each is started anew by us, and by nobody else."""
    scheduling = Scheduling(tmp_path, holding_cell)
    options = (*QUIET, "-l", "h_rt=3600")
    pushed = holding_cell.submit(scheduling.script_until_told("pushed"), *options, "-r", "y")
    own = scheduling.script_until_told("own").replace(
        "while",
        f"[ -e {tmp_path}/second ] || {{ while [ ! -e {tmp_path}/second ]; do sleep 0.1; done; exit 99; }}\nwhile",
    )
    asking = holding_cell.submit(own, *options)
    jobs = {pushed, asking}
    with scheduling:
        scheduling.wait(lambda: jobs <= set(scheduling.told("started")), what="both run")
        scheduling.wait(lambda: holding_cell.qstat().count(" hr ") == len(jobs), what="both are held while they run")
        holding_cell.run("qmod", "-rj", pushed)
        (tmp_path / "second").touch()
        scheduling.wait(lambda: jobs <= set(scheduling.told("requeued")), what="both wait again")
        scheduling.let_end("pushed")
        scheduling.let_end("own")
        scheduling.wait_runs({"pushed", "own"})
        scheduling.wait(lambda: jobs <= set(scheduling.told("ended")), what="both are over")
    assert scheduling.traces() == {"pushed": ["run", "run", "end"], "own": ["run", "run", "end"]}
    for job in jobs:
        kinds = [line["kind"] for line in scheduling.lines() if line["job_id"] == job]
        assert kinds.count("start") == 2
        assert "adopted" not in kinds


def test_grid_engine_the_queue_is_given_back(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """Single jobs and arrays run; one whose user holds it, and an operator's, stay; again there is nothing to do."""
    scheduling = Scheduling(tmp_path, holding_cell)
    options = (*QUIET, "-l", "h_rt=3600")
    plain = holding_cell.submit(scheduling.script("plain", 0.1), *options)
    array = holding_cell.submit(scheduling.script("array", 0.1), *options, "-t", "1-2")
    own = holding_cell.submit(scheduling.script("own", 0.1), *options, "-ac", "a=1,koala_user_hold=1")
    operators = holding_cell.submit(scheduling.script("operators", 0.1), *options)
    holding_cell.run("qhold", "-h", "o", operators)
    back = scheduling.user.run("schedule", "--give-back", holding_cell.name, "--json")
    assert back.code == 0, back.stderr
    number = array.partition(".")[0]
    assert {plain, f"{number}.1", f"{number}.2"} <= set(back.json["released"])
    assert own not in back.json["released"]
    scheduling.wait_runs({"plain"})
    scheduling.wait(lambda: scheduling.traces().get("array", []).count("end") == 2, what="the array has run")
    assert not {"own", "operators"} & scheduling.traces().keys()
    again = scheduling.user.run("schedule", "--give-back", holding_cell.name, "--json")
    assert (again.code, again.json["released"]) == (0, [])
