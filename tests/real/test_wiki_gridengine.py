# SPDX-License-Identifier: Apache-2.0
"""Grid Engine as a WIKI resource manager, for clients and for Maui."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from koala_adapter.wiki.codec.words import Dialect
from tests.real.mauistandin import MauiStandIn
from tests.real.serving import WikiServing
from tests.real.systems import GridEngineCell
from tests.real.systems.gridengine import ENVIRONMENT

# -- A real Grid Engine under an outside scheduler that speaks WIKI, with two queue instances as its nodes.


PIECE = Path(__file__).parents[2] / "conf" / "sge_jsv.sh"


def two_queues(cell: GridEngineCell) -> None:
    """Have two queues of eight slots instead of one, a parallel environment, and the site's piece."""
    file = cell.directory / "edit"
    file.write_text(ENVIRONMENT.format(name="any", rule="$fill_up"))
    cell.run("qconf", "-Ap", str(file))
    queue = cell.run("qconf", "-sq", "all.q")
    for name in ("n2.q", "n4.q"):
        lines = [line for line in queue.splitlines() if line.split()[:1] not in (["qname"], ["pe_list"])]
        file.write_text("\n".join([f"qname {name}", "pe_list any", *lines]) + "\n")
        cell.run("qconf", "-Aq", str(file))
    cell.run("qmod", "-d", "all.q")
    script = cell.directory / "jsv.sh"
    script.write_text(PIECE.read_text())
    script.chmod(0o755)
    settings = [line for line in cell.run("qconf", "-sconf").splitlines() if not line.startswith(("#", "jsv_"))]
    settings += [f"jsv_url script:{script}", "jsv_allowed_mod ac,h,i,e,o,j,M,N,p,w,q_hard,q_soft"]
    (cell.directory / "global").write_text("\n".join(settings) + "\n")
    cell.run("qconf", "-Mconf", str(cell.directory / "global"))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WikiServing[GridEngineCell]]:
    """Serve a cell of two queues through the module."""
    with GridEngineCell("w", slots=8) as cell:
        two_queues(cell)
        server = WikiServing(
            tmp_path_factory.mktemp("wiki"), cell, "--user-holds", "--dialect", "wiki2", "--cache", "0.2"
        )
        with server.user.site.open("a") as site:
            site.write('nodes = "queue-instances"\ntrigger_scheduler = true\n')
        with server:
            yield server


def submit(cell: GridEngineCell, processors: int) -> str:
    """Submit an ordinary job of an ordinary user; return its id."""
    options = ("-pe", "any", str(processors)) if processors > 1 else ()
    where = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y", "-l", "h_rt=600")
    return cell.submit("#!/bin/sh\nexec sleep 600\n", *options, *where, user="nobody")


def test_jobs_start_where_they_are_told(serving: WikiServing[GridEngineCell]) -> None:
    """Jobs of qsub come in held, and each starts in the queue instance that the scheduler names, with all its slots."""
    cell = serving.system
    first, second, third = submit(cell, 6), submit(cell, 3), submit(cell, 1)
    serving.wait(lambda: cell.qstat().count(" hqw ") == 3, what="held jobs")
    assert {name for name in serving.nodes() if serving.nodes()[name].state != "Drained"} == {
        "n2.q_localhost",
        "n4.q_localhost",
    }
    assert {job: serving.job(job).state for job in (first, second, third)} == dict.fromkeys(
        (first, second, third), "Idle"
    )
    serving.done(f"STARTJOB ARG={first} TASKLIST={':'.join(['n4.q_localhost'] * 6)}")
    serving.done(f"STARTJOB ARG={second} TASKLIST={':'.join(['n2.q_localhost'] * 3)}")
    shown = cell.run("qstat", "-u", "*", "-g", "t")
    assert (shown.count("n4.q@localhost"), shown.count("n2.q@localhost")) == (6, 3), shown
    assert serving.job(first).state in {"Running", "Starting"}
    assert serving.job(first).task_list == ("n4.q_localhost",) * 6
    refused = serving.ask(f"STARTJOB ARG={third} TASKLIST=n1")
    assert refused.status == -700
    gone = submit(cell, 1)
    serving.job(gone)
    cell.run("qdel", gone)
    assert serving.ask(f"STARTJOB ARG={gone} TASKLIST=n2.q_localhost").status == -700
    divided = submit(cell, 4)
    refused = serving.ask(
        f"STARTJOB ARG={divided} TASKLIST=n2.q_localhost:n2.q_localhost:n2.q_localhost:n4.q_localhost"
    )
    assert (refused.status, "divides job" in refused.text) == (-930, True)
    held_back = serving.job(divided)
    assert (held_back.state, "divides job" in held_back.comment) == ("Hold", True)

    serving.done(f"SUSPENDJOB ARG={first}")
    serving.wait(lambda: " hs " in cell.qstat(), what="a suspended job")
    serving.done(f"RESUMEJOB ARG={first}")
    serving.wait(lambda: " hs " not in cell.qstat(), what="a resumed job")
    unsupported = serving.ask(f"MODIFYJOB ARG={first} TIMELIMIT=7")
    assert unsupported.status == -810
    for job in (first, second, third, divided):
        serving.done(f"CANCELJOB ARG={job} TYPE=ADMIN")
    serving.wait(lambda: cell.qstat() == "", what="no jobs")
    seen = serving.jobs()
    assert {seen[job].state for job in (third, divided)} == {"Removed"}
    assert {seen[job].state for job in (first, second)} <= {"Removed", "Completed"}


# -- Jobs of all shapes on a real Grid Engine, started by a stand-in for Maui: all come to their end, where they may
# run. Accounting tells in which queue each job ran, with how many slots, and how it ended.


USER = "nobody"
SCRIPT = "#!/bin/sh\nexec sleep 0.5\n"
WHERE = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y", "-r", "y")
BOTH = frozenset({"n2.q", "n4.q"})
SHORT_LIMIT = 1800
"""Seconds that jobs may run in n2.q."""

SHAPES: Mapping[str, tuple[Sequence[str], frozenset[str], int]] = {
    "one": ((), BOTH, 1),
    "five": (("-pe", "any", "5"), BOTH, 5),
    "all of a queue": (("-pe", "any", "8"), BOTH, 8),
    "in a queue": (("-q", "n4.q"), frozenset({"n4.q"}), 1),
    "in either": (("-q", "n4.q,n2.q"), BOTH, 1),
    "in an instance": (("-q", "n2.q@localhost"), frozenset({"n2.q"}), 1),
    "in a queue of a group": (("-q", "n4.q@@allhosts"), frozenset({"n4.q"}), 1),
    "queue as a resource": (("-l", "qname=n2.q"), frozenset({"n2.q"}), 1),
    "first task in a queue": (("-pe", "any", "3", "-masterq", "n4.q"), frozenset({"n4.q"}), 3),
    "memory": (("-l", "h_vmem=1G"), BOTH, 1),
    "too long for one": (("-l", f"h_rt={SHORT_LIMIT + 60}"), frozenset({"n4.q"}), 1),
    "soft": (("-soft", "-l", "arch=vax"), BOTH, 1),
}
"""Options, queues in which it may run, and slots."""
NEVER: Mapping[str, tuple[Sequence[str], str]] = {
    "too large": (("-pe", "any", "12"), "can take"),
    "no such machine": (("-l", "arch=vax"), "no queue instance"),
    "no such memory": (("-l", "mem_total=900T"), "no queue instance"),
    "environment is not there": (("-pe", "any", "2", "-q", "all.q"), "no queue instance"),
    "held": (("-h",), "its user holds it"),
}


@pytest.fixture(scope="module")
def cell() -> Iterator[GridEngineCell]:
    """Two queues of eight slots, one of them for short jobs."""
    with GridEngineCell("shapes", slots=8) as started:
        two_queues(started)
        started.run("qconf", "-mattr", "queue", "h_rt", str(SHORT_LIMIT), "n2.q")
        yield started


@pytest.fixture
def maui_serving(
    cell: GridEngineCell, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WikiServing[GridEngineCell]]:
    """Serve them as docs/wiki.md says."""
    server = WikiServing(tmp_path_factory.mktemp("shapes"), cell, "--cache", "0.5")
    with server.user.site.open("a") as site:
        site.write('nodes = "queue-instances"\ntrigger_scheduler = true\n')
    with server:
        yield server
    cell.run("qdel", "-u", "*", check=False)


def maui_submit(cell: GridEngineCell, *options: str) -> str:
    """Submit a short job of an ordinary user."""
    limit = () if "h_rt" in " ".join(options) else ("-l", "h_rt=1200")
    return cell.submit(SCRIPT, *WHERE, *limit, *options, user=USER).split(".")[0]


def accounted(cell: GridEngineCell, job: str) -> Sequence[tuple[str, int]]:
    """Return queue and slots of the runs of a job, or of all elements of an array, that came to their own end."""
    shown = cell.run("qacct", "-j", job)
    found = []
    for record in shown.split("=" * 62)[1:]:
        values = dict(re.findall(r"^(\S+) +(.*?) *$", record, re.MULTILINE))
        if values["failed"].split()[0] == "0":
            found.append((values["qname"], int(values["slots"])))
    return found


def check_ends(cell: GridEngineCell, jobs: Mapping[str, str]) -> None:
    """Compare what Grid Engine did with what was asked for."""
    for job, name in jobs.items():
        _, queues, slots = SHAPES[name]
        runs = accounted(cell, job)
        assert runs, (job, name, cell.run("qacct", "-j", job))
        assert {queue for queue, _ in runs} <= queues, (name, runs)
        assert {number for _, number in runs} == {slots}, (name, runs)


def run_all(serving: WikiServing[GridEngineCell], rounds: int) -> None:
    """Have so many jobs of each shape run, beside some that cannot, and arrays."""
    cell = serving.system
    impossible = {maui_submit(cell, *options): (name, words) for name, (options, words) in NEVER.items()}
    jobs = {maui_submit(cell, *options): name for _ in range(rounds) for name, (options, *_) in SHAPES.items()}
    jobs[maui_submit(cell, "-hold_jid", next(iter(jobs)))] = "one"
    arrays = [
        maui_submit(cell, "-t", "1-3"),
        maui_submit(cell, "-t", "1-3", "-tc", "1"),
        maui_submit(cell, "-t", "1-2", "-q", "n4.q"),
    ]
    elements = [
        f"{array}.{number}" for array, count in zip(arrays, (3, 3, 2), strict=True) for number in range(1, count + 1)
    ]
    maui = MauiStandIn(serving.peer(Dialect.WIKI), interval=1.0, defer=5.0)
    maui.expect_all([*jobs, *elements], impossible, seconds=300 + 60 * rounds, details=serving.details)
    check_ends(cell, jobs)
    assert {queue for queue, _ in accounted(cell, arrays[2])} == {"n4.q"}
    held = next(job for job, (name, _) in impossible.items() if name == "held")
    cell.run("qalter", "-dc", "koala_user_hold", held, user=USER)
    assert maui.run([held], seconds=240) == set(), (maui.jobs[held], serving.details())


@pytest.mark.timeout(900)
def test_every_shape_runs_where_its_user_allows(maui_serving: WikiServing[GridEngineCell]) -> None:
    """One job of each, five that cannot run, arrays, a job that waits for another, and a hold of its user."""
    run_all(maui_serving, 1)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_two_hundred_jobs_of_all_shapes(maui_serving: WikiServing[GridEngineCell]) -> None:
    """None waits for a refused one, none violates its request."""
    run_all(maui_serving, 16)


def survive(
    serving: WikiServing[GridEngineCell], jobs: Mapping[str, str], *, kills: int, between: float, seconds: float
) -> None:
    """Have jobs run while koala is killed, a host goes away and comes back, and jobs are queued again.

    ``between``: seconds between two kills; there is also a start between them.
    """
    cell = serving.system
    maui = MauiStandIn(serving.peer(Dialect.WIKI), interval=1.0, defer=5.0)
    left, until, killed = set(jobs), time.monotonic() + seconds, 0
    while left and time.monotonic() < until:
        taken = len(maui.started)
        left = maui.run(left, seconds=between)
        # Grid Engine closes queues whose host was lost while a job was handed to it, until an operator opens them.
        cell.run("qmod", "-cq", "*", check=False)
        if left and killed < kills and len(maui.started) > taken:
            killed += 1
            serving.kill()
            trouble(cell, killed)
            serving.start()
    assert not left, ({job: (jobs[job], maui.jobs.get(job)) for job in left}, maui.refusals, serving.details())
    check_ends(cell, jobs)


def trouble(cell: GridEngineCell, turn: int) -> None:
    """Queue running jobs again, then lose the host."""
    if turn == 1:
        for row in cell.qstat("-s", "r").splitlines()[2:]:
            cell.run("qmod", "-rj", row.split()[0], check=False)
    elif turn == 2:
        cell.kill_execd(with_jobs=True)
        cell.start_execd()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_kills_host_loss_and_requeues_lose_nothing(
    maui_serving: WikiServing[GridEngineCell], cell: GridEngineCell
) -> None:
    """Kills every ten seconds: all of two hundred jobs run to their end, and where they may."""
    jobs = {maui_submit(cell, *options): name for _ in range(16) for name, (options, *_) in SHAPES.items()}
    survive(maui_serving, jobs, kills=1000, between=10.0, seconds=1200)


@pytest.mark.timeout(900)
def test_kills_and_requeues_lose_nothing(maui_serving: WikiServing[GridEngineCell], cell: GridEngineCell) -> None:
    """The same with few jobs, and few kills."""
    jobs = {
        maui_submit(cell, *SHAPES[name][0]): name for name in ("five", "in a queue", "in an instance", "one", "one")
    }
    survive(maui_serving, jobs, kills=2, between=1.0, seconds=400)
