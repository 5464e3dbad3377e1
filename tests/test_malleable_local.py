# SPDX-License-Identifier: Apache-2.0
"""Malleable jobs on local clusters: workers, examples with state, jobs near their end, as simulated."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from koala_adapter.host.sockets import free_port
from koala_adapter.scheduler.parameters import Approach
from tests.examplejobs import ALONE, expected_sum, sizes_and_digest, write_nbody, write_taskqueue
from tests.local_koala import Gate, Koala, Running, eventually, kill_and_wait
from tests.sizes_over_time import expect_the_same, live
from tests.unit.application.test_library import HEAT, HEAT_ALONE
from tests.unit.policies.installed import ENTRY_POINTS, EXAMPLES, install

# -- Jobs that grow and shrink while they run, on local clusters: the example of a head and workers as it stands.


BROKEN = """
from koala_adapter.sizes import UsableSizes
from koala_adapter.policies import PolicyDefinition, PolicyKind

def make():
    return UsableSizes("broken", lambda processors: 1 // 0)

BROKEN = PolicyDefinition(kind=PolicyKind.SIZES, name="broken", summary="fails", factory=make)
"""


def sizes(koala: Koala, job: str = "1") -> dict[str, int]:
    """Return the processors of the workers on each cluster."""
    found: dict[str, int] = {}
    for one in koala.json("status", job)["components"]:
        if one["name"] == "worker" and one["processors"]:
            found[one["cluster"]] = found.get(one["cluster"], 0) + one["processors"]
    return found


def expect_right(koala: Koala, job: str = "1") -> None:
    """Expect that the head has printed each result once, and their sum."""
    *results, total = (koala.state / "jobs" / job / "head" / "0.out").read_text().splitlines()
    assert sorted(int(line.split()[0]) for line in results) == [*range(len(results))]
    assert total == expected_sum(len(results))


def workers_saying(koala: Koala, word: str) -> int:
    """Return how many workers of job 1 have printed a word."""
    said = (path.read_text() for path in (koala.state / "jobs" / "1" / "worker").glob("*.out"))
    return sum(word in text for text in said)


def test_a_worker_whose_head_has_ended_leaves_without_an_error(tmp_path: Path) -> None:
    """As many of them do, before koala asks them to end."""
    write_taskqueue(tmp_path, tasks=1, seconds=0)
    named = {"KOALA_RANK": "0", "KOALA_CLUSTER": "alpha", "KOALA_HEAD_ADDRESS": "127.0.0.1"}
    environment = {**os.environ, **named, "TASKQUEUE_PORT": str(free_port()), "TASKQUEUE_SECONDS": "0"}
    command = [sys.executable, "taskqueue.py"]
    with subprocess.Popen([*command, "head", "1"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as head:
        worker = subprocess.run(
            [*command, "worker"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert head.returncode == 0
    assert (worker.stderr, worker.returncode) == ("", 0)
    assert worker.stdout.splitlines() == ["worker 0 on alpha joins", "worker 0 on alpha leaves"]


def test_workers_come_while_processors_are_idle_and_go_when_others_wait(koala: Koala) -> None:
    koala.serve()
    end, rigid = Gate(koala.directory / "end"), Gate(koala.directory / "rigid")
    koala.inside("submit", str(write_taskqueue(koala.directory, tasks=1, seconds=0.3, until=end.path)))
    eventually(lambda: sum(sizes(koala).values()) == 7)
    assert set(sizes(koala)) == {"alpha", "beta"}
    eventually(lambda: workers_saying(koala, "joins") == 7)  # earlier, SIGTERM would end them without a word
    koala.inside("submit", koala.job(rigid.wait, name="rigid", processors=3))
    eventually(lambda: koala.state_of("2") == "running")
    assert sum(sizes(koala).values()) <= 2
    assert "room for job 2" in koala.inside("explain", "1").stdout
    rigid.open()
    assert koala.outcome("2")["exit_code"] == 0
    eventually(lambda: sum(sizes(koala).values()) == 7)
    end.open()
    assert koala.outcome()["exit_code"] == 0
    expect_right(koala)
    eventually(lambda: koala.placeholders() == [])
    report = koala.json("status", "1")
    changes = [(one["before"], one["after"]) for one in report["size_changes"]]
    assert any(after > before for before, after in changes)
    assert any(after < before for before, after in changes)
    assert workers_saying(koala, "leaves") >= 5, "those that were asked to leave did not"


def test_a_worker_that_does_not_listen_is_killed_after_its_grace(koala: Koala) -> None:
    koala.serve()
    text = (
        'kind = "malleable"\nrunner = "workers"\nwalltime = 300\n'
        '[[components]]\nname = "head"\ncommand = ["sleep", "300"]\nprocessors = 1\ncluster = "alpha"\n'
        '[[components]]\nname = "worker"\ncommand = ["sh", "-c", "trap : TERM; while :; do sleep 1; done"]\n'
        'minimum = 1\nmaximum = 4\ncluster = "beta"\nretire_grace = 2\n'
    )
    path = koala.directory / "deaf.toml"
    path.write_text(text)
    koala.inside("submit", str(path))
    eventually(lambda: sizes(koala) == {"beta": 4})
    koala.inside("submit", koala.job("true", name="rigid", processors=2))
    assert koala.outcome("2")["exit_code"] == 0
    assert koala.state_of("1") == "running"
    koala.inside("cancel", "1")
    eventually(lambda: koala.placeholders() == [])


def test_an_owner_resizes_a_job(koala: Koala) -> None:
    koala.serve()
    never = koala.directory / "never"
    koala.inside("submit", str(write_taskqueue(koala.directory, tasks=1, seconds=0.2, until=never)))
    eventually(lambda: sum(sizes(koala).values()) == 7)
    koala.inside("resize", "1", "2")
    eventually(lambda: sum(sizes(koala).values()) == 2)
    koala.inside("resize", "1", "4", "--component", "worker")
    eventually(lambda: sum(sizes(koala).values()) == 4)
    assert "its job file allows 1 to 20" in koala.inside("resize", "1", "21", check=240).stderr
    assert "name one of: worker" in koala.inside("resize", "1", "1", "--component", "head", check=240).stderr
    koala.inside("cancel", "1")
    assert "has ended" in koala.inside("resize", "1", "2", check=240).stderr
    eventually(lambda: koala.placeholders() == [])


SQUARES = """
name = "squares"
kind = "malleable"
runner = "workers"
walltime = 300
[[components]]
name = "worker"
command = ["sleep", "900"]
minimum = 1
maximum = 9
cluster = "{}"
sizes = "{}"
"""


@pytest.mark.nightly
def test_sizes_by_a_rule_that_is_installed(koala: Koala, tmp_path: Path) -> None:
    """Four processors make a square, three do not. Where a rule fails, its job keeps its size, and says why."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    install(packages, f"{ENTRY_POINTS}sizes.broken = brokensizes:BROKEN\n")
    (packages / "brokensizes.py").write_text(BROKEN)
    koala.packages += [packages, EXAMPLES]
    koala.serve()
    for name, cluster in (("square-grids", "alpha"), ("broken", "beta")):
        path = koala.directory / f"{name}.toml"
        path.write_text(SQUARES.format(cluster, name))
        koala.run("submit", str(path))
        eventually(lambda: sum(sizes(koala).values()) == 4)
    assert "near are 1 and 4" in koala.inside("resize", "1", "3", check=240).stderr
    eventually(lambda: "raises ZeroDivisionError" in koala.json("status", "2")["explanation"])
    assert (koala.state_of("2"), sum(sizes(koala, "2").values())) == ("running", 1)
    koala.inside("resize", "1", "1")
    eventually(lambda: sum(sizes(koala).values()) == 1)
    for job in ("1", "2"):
        koala.inside("cancel", job)
    eventually(lambda: koala.placeholders() == [])


def test_a_wish_for_more_has_the_clusters_looked_at(koala: Koala) -> None:
    """What others have given up since the last poll is had at once, not only after the next one, ten minutes later."""
    koala.change_site("poll_interval = 0.5", "poll_interval = 600")
    koala.change_site("[scheduler]", '[scheduler]\napproach = "none"')
    foreign = koala.submit_foreign("busy", 3, "alpha")
    koala.serve()
    path = koala.directory / "patient.toml"
    path.write_text(
        'kind = "malleable"\nrunner = "workers"\nwalltime = 300\n[[components]]\nname = "worker"\n'
        'command = ["sleep", "900"]\nminimum = 1\nmaximum = 4\ncluster = "alpha"\n'
    )
    koala.inside("submit", str(path))
    eventually(lambda: koala.state_of("1") == "running")
    koala.cancel_foreign(foreign, "alpha")
    eventually(lambda: len(koala.placeholders()) == 1)
    koala.inside("resize", "1", "4")
    eventually(lambda: sizes(koala) == {"alpha": 4})
    koala.inside("cancel", "1")
    eventually(lambda: koala.placeholders() == [])


# -- The end of the walltime comes near: programs are told, and workers leave, on local clusters.
# The walltime is ten minutes, of which nobody waits for more than the first seconds: the warning comes that early.


PROGRAM = """\
import os, sys, time
import koala_app

app = koala_app.join()
print("joined with", 0 < app.time_left() <= 600, flush=True)
while not app.ending:
    app.point()
    time.sleep(0.02)
print("told with", 0 < app.time_left() <= 595, flush=True)
while not os.path.exists(sys.argv[1]):
    app.point()
    time.sleep(0.02)
print("sizes stay", app.size, flush=True)
app.close()
"""


def ranks_printed(koala: Koala, component: str) -> list[list[str]]:
    """Return the lines of each process of a component of job 1."""
    found: list[Path] = sorted((koala.state / "jobs" / "1" / component).glob("*.out"))
    return [one.read_text().splitlines() for one in found]


def serving(koala: Koala) -> Running:
    """Return a service under which sizes change only when somebody asks for it."""
    koala.change_site("[scheduler]\n", '[scheduler]\napproach = "none"\n')
    return koala.serve()


def submit(koala: Koala, runner: str, *components: str) -> None:
    """Submit a job that is warned in its first seconds."""
    path = koala.directory / "job.toml"
    header = f'kind = "malleable"\nrunner = "{runner}"\nwalltime = 600\nwarn_before = 595\n'
    path.write_text(header + "".join(f"[[components]]\n{one}\n" for one in components))
    koala.inside("submit", str(path))


def submit_program(koala: Koala, gate: Gate, program: str = PROGRAM) -> None:
    """Submit the program on two processes; it ends when the gate is open."""
    (koala.directory / "program.py").write_text(program)
    command = json.dumps(["python3", "program.py", str(gate.path)])
    more = 'minimum = 2\nmaximum = 3\ninput_files = ["program.py"]'
    submit(koala, "adaptive", f'name = "p"\ncommand = {command}\n{more}')


@pytest.mark.nightly
def test_a_program_is_told_and_a_restarted_service_tells_again(koala: Koala) -> None:
    """It knows its time from the beginning, hears that the end is near, goes on with its size, and ends by itself."""
    service = serving(koala)
    gate = Gate(koala.directory / "gate")
    submit_program(koala, gate)
    eventually(lambda: ranks_printed(koala, "p") == [["joined with True", "told with True"]] * 2)
    told = "2 of its processes have been told that the end of the walltime is near."
    eventually(lambda: told in koala.report("1").explanation)
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    koala.serve()
    eventually(lambda: told in koala.report("1").explanation)
    gate.open()
    eventually(lambda: koala.state_of("1") == "completed")
    assert [lines[-1] for lines in ranks_printed(koala, "p")] == ["sizes stay 2"] * 2


@pytest.mark.nightly
def test_a_program_knows_it_without_a_service(koala: Koala) -> None:
    service = serving(koala)
    gate, saved = Gate(koala.directory / "gate"), koala.directory / "saved"
    told = PROGRAM.replace('print("told with"', f'open({str(saved)!r} + str(app.rank), "w").close()\nprint("told with"')
    submit_program(koala, gate, told)
    eventually(lambda: ranks_printed(koala, "p") == [["joined with True"]] * 2)
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    eventually(lambda: all((koala.directory / f"saved{rank}").exists() for rank in range(2)))
    koala.serve()
    gate.open()
    eventually(lambda: koala.state_of("1") == "completed")


@pytest.mark.nightly
def test_workers_leave_before_they_are_killed(koala: Koala) -> None:
    serving(koala)
    gate = Gate(koala.directory / "gate")
    asked = f"{koala.directory}/asked-$KOALA_RANK"
    head = json.dumps(["sh", "-c", gate.wait])
    worker = json.dumps(["sh", "-c", f"until [ -e {asked} ]; do sleep 0.1; done; echo handed back"])
    retire = json.dumps(["sh", "-c", f"touch {asked}"])
    submit(
        koala,
        "workers",
        f'name = "head"\ncommand = {head}\nprocessors = 1',
        f'name = "w"\ncommand = {worker}\nminimum = 2\nmaximum = 3\nretire_grace = 600\nretire_command = {retire}',
    )
    eventually(lambda: ranks_printed(koala, "w") == [["handed back"]] * 2)
    eventually(lambda: koala.report("1").explanation.count("ended, near the end of the walltime") == 2)
    assert koala.state_of("1") == "running"
    gate.open()
    eventually(lambda: koala.state_of("1") == "completed")
    eventually(lambda: koala.placeholders() == [])


# -- Two malleable jobs and a rigid one on a local cluster under PRA and PWA: their sizes are as simulated.


@pytest.mark.parametrize("approach", [pytest.param(Approach.PRA, marks=pytest.mark.nightly), Approach.PWA])
def test_sizes_over_time_are_those_of_the_simulator(approach: Approach) -> None:
    """The same changes in the same order; under PRA the rigid job waits for an end, under PWA it does not."""
    expect_the_same(approach, live(approach))


# -- The manual's example of a program of one's own, on local clusters, with its job file.


@pytest.mark.nightly
def test_the_rod_is_the_same_after_growing_and_shrinking(koala: Koala) -> None:
    """The job file as it is shipped, but for its length: it grows, makes room for a rigid job, and is right."""
    job = HEAT.with_suffix(".toml").read_text(encoding="utf-8")
    assert '"2000", "0.05"' in job
    (koala.directory / "heat.toml").write_text(job.replace('"2000", "0.05"', '"100", "0.2"'), encoding="utf-8")
    (koala.directory / "heat.py").write_bytes(HEAT.read_bytes())
    (koala.directory / "authkey").write_bytes(b"of this test")
    koala.serve()
    koala.inside("submit", str(koala.directory / "heat.toml"))
    eventually(lambda: sum(one.processors for one in koala.report("1").components) == 8)
    koala.inside("submit", koala.job("sleep 1", name="rigid", processors=3))
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    assert koala.json("status", "1")["outcome"]["exit_code"] == 0, koala.inside("explain", "1").stdout
    printed = Path(koala.state / "jobs" / "1" / "rod" / "0.out").read_text(encoding="utf-8").splitlines()
    assert printed[-1] == f"result {HEAT_ALONE}"
    sizes = [int(one) for one in printed[-2].split()[1:]]
    assert max(sizes) == 8
    assert min(sizes[sizes.index(8) :]) < 8, sizes
    eventually(lambda: koala.placeholders() == [])


# -- The n-body programs on local clusters, as a user runs them: with the library, and without it.


MANY = 600
"""Steps of a program that is to be there when something else has happened, whatever the machine does meanwhile."""


KILLS = 12
"""How often the service is killed while a program runs."""


def printed(koala: Koala, job: str) -> str:
    """Return what the process of rank 0 printed."""
    path = koala.state / "jobs" / job / "bodies" / "0.out"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_evolving_programs_ask_for_more_and_end_as_the_rigid_one(koala: Koala) -> None:
    """Two on 2 processes get 2 more each, one of them by sockets and XML alone; the state is that of a rigid one.

    Where koala offers malleable jobs what is idle, it offers these nothing: their programs alone change their size.
    """
    koala.serve()
    running = [koala.start("run", write_nbody(koala.directory, name)) for name in ("evolving", "byhand")]
    for one in running:
        said, complaints = one.communicate(timeout=200)
        assert one.returncode == 0, said + complaints
    for job in ("1", "2"):
        assert "asked for 2, granted 2\n" in printed(koala, job)
        assert sizes_and_digest(printed(koala, job)) == ([2, 4], ALONE)
    koala.run("run", write_nbody(koala.directory, "rigid", ("28790", str(free_port())), rest=0))
    assert sizes_and_digest(printed(koala, "3")) == ([4], ALONE)


@pytest.mark.nightly  # a minute of steps, so that they are not over before it has grown
@pytest.mark.parametrize("library", ["koala_app", "byhand"])
def test_a_malleable_program_takes_what_makes_a_power_of_two(koala: Koala, library: str) -> None:
    koala.serve()
    end, rigid = koala.directory / "end", koala.directory / "one.toml"
    wait = json.dumps(["sh", "-c", f"until [ -e {end} ]; do sleep 0.2; done"])
    rigid.write_text(f'walltime = 300\n[[components]]\ncommand = {wait}\nprocessors = 1\ncluster = "alpha"\n')
    koala.inside("submit", str(rigid))
    eventually(lambda: koala.state_of("1") == "running")
    environment = ('"power-of-two" }', f'"power-of-two", NBODY_LIBRARY = "{library}" }}')
    running = koala.start("run", write_nbody(koala.directory, "malleable", environment, rest=0.1, steps=MANY))
    eventually(lambda: 4 in sizes_and_digest(printed(koala, "2"))[0])
    end.touch()
    said, complaints = running.communicate(timeout=300)
    assert running.returncode == 0, said + complaints
    koala.run("run", write_nbody(koala.directory, "rigid", ("28790", str(free_port())), rest=0, steps=MANY))
    sizes, digest = sizes_and_digest(printed(koala, "2"))
    assert digest == sizes_and_digest(printed(koala, "3"))[1]
    assert sizes[0] == 2
    assert sizes[-1] == 8
    assert set(sizes) <= {2, 4, 8}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_killed_services_change_no_bit_of_the_result(koala: Koala, seed: int) -> None:
    chance = random.Random(seed)
    service = koala.serve()
    file = write_nbody(koala.directory, "malleable", rest=0.1, steps=MANY)
    koala.inside("submit", file)
    eventually(lambda: koala.state_of("1") == "running")
    kills = 0
    while kills < KILLS and koala.state_of("1") == "running":
        koala.inside("resize", "1", str(chance.choice((2, 4, 8))), check=None)
        time.sleep(chance.uniform(0.0, 1.5))  # the moment of the kill
        kill_and_wait(service.pid)
        service = koala.serve()
        kills += 1
    eventually(lambda: koala.state_of("1") in {"completed", "failed"})
    assert koala.state_of("1") == "completed", printed(koala, "1")
    koala.run("run", write_nbody(koala.directory, "rigid", ("28790", str(free_port())), rest=0, steps=MANY))
    sizes, digest = sizes_and_digest(printed(koala, "1"))
    assert digest == sizes_and_digest(printed(koala, "2"))[1], f"sizes {sizes}, {kills} kills"
