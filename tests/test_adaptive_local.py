# SPDX-License-Identifier: Apache-2.0
"""Programs that adapt, with and without MPI, on local clusters."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.cli.jsonshapes import shape_schema
from tests.json_shapes import deviations
from tests.local_koala import LIVENESS, Koala, eventually
from tests.mpi_by_hand import HandLauncher, Mpich, of_system, of_wheel
from tests.stepsum import expected_result, write_stepsum
from tests.wishes import write_wishes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.local_koala import Running


# -- Programs whose processes change together, on local clusters, with the application library as it travels.


STEPS = 1500
"""Steps of a program that takes five minutes for them, unless it is told to take no time any more."""
UNTIL = "until [ -e {} ]; do sleep 0.1; done"


def size(koala: Koala, job: str = "1") -> int:
    """Return how many processors a job has."""
    return sum(one.processors for one in koala.report(job).components)


def printed(koala: Koala, job: str = "1") -> list[str]:
    """Return what the process of rank 0 printed."""
    return (koala.state / "jobs" / job / "sum" / "0.out").read_text().splitlines()


def test_processes_come_and_go_and_the_result_is_the_same(koala: Koala) -> None:
    """It grows to all that is idle on two clusters, makes room for a rigid job, and computes what it would alone."""
    koala.serve()
    gate, end = koala.directory / "gate", koala.directory / "end"
    koala.inside("submit", write_stepsum(koala.directory, steps=STEPS, seconds=0.2, gate=gate))
    eventually(lambda: size(koala) == 6)
    koala.inside("submit", koala.job(UNTIL.format(end), name="rigid", processors=3))
    eventually(lambda: koala.state_of("2") == "running")
    end.touch()
    assert koala.outcome("2")["exit_code"] == 0
    gate.touch()
    sizes = expect_right(koala, STEPS)
    assert {1, 2, 6} <= set(sizes), sizes


def wait_for_phase(koala: Koala, words: str, job: str = "1") -> None:
    """Wait until the service says that a job is in some phase of a change."""
    until = time.monotonic() + LIVENESS
    while words not in koala.report(job).explanation:
        report = koala.report(job)
        assert report.outcome is None, report.explanation
        assert time.monotonic() < until, report.explanation
        time.sleep(0.01)


def restart(koala: Koala, service: Running) -> None:
    """Kill the service, and begin another."""
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    koala.serve()


def expect_right(koala: Koala, steps: int, job: str = "1") -> list[int]:
    """Wait for the end of the program: its result is right and nothing is left; return its sizes."""
    ended = koala.outcome(job)
    assert ended["exit_code"] == 0, koala.inside("explain", job).stdout
    sizes, result = printed(koala, job)[-2:]
    assert result == expected_result(steps)
    eventually(lambda: koala.placeholders() == [])
    return [int(one) for one in sizes.split()[1:]]


@pytest.mark.nightly
def test_a_service_that_is_killed_while_a_program_grows(koala: Koala) -> None:
    """The program goes on, and has the same result; the growth is made, or given up and made later.

    tests/real has it for each phase of a change.
    """
    service = koala.serve()
    gate = koala.directory / "gate"
    koala.inside("submit", write_stepsum(koala.directory, steps=STEPS, seconds=0.2, maximum=4, gate=gate))
    wait_for_phase(koala, "it is taking in")
    restart(koala, service)
    eventually(lambda: size(koala) == 4 and "taking in" not in koala.report("1").explanation)
    gate.touch()
    assert 4 in expect_right(koala, STEPS)


@pytest.mark.nightly
def test_a_service_that_is_killed_while_a_program_shrinks(koala: Koala) -> None:
    service = koala.serve()
    gate = koala.directory / "gate"
    path = write_stepsum(koala.directory, steps=STEPS, seconds=0.2, minimum=2, maximum=6, gate=gate)
    koala.inside("submit", path)
    eventually(lambda: size(koala) == 6 and "taking in" not in koala.report("1").explanation)
    submitting = koala.start("submit", koala.job("sleep 1", name="rigid", processors=3))
    wait_for_phase(koala, "it is giving up")  # it may be over before the command is
    restart(koala, service)
    submitting.communicate()
    assert koala.outcome("2")["exit_code"] == 0
    gate.touch()
    assert min(expect_right(koala, STEPS)) == 2


def said(koala: Koala, job: str) -> list[list[Any]]:
    """Return what the process of rank 0 wrote of its wishes and of its sizes."""
    path = koala.state / "jobs" / job / "sum" / "0.out"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def without_approach(koala: Koala) -> None:
    """Let sizes change only when somebody asks for it."""
    text = koala.site_file.read_text()
    koala.site_file.write_text(text.replace("[scheduler]\n", '[scheduler]\napproach = "none"\n'))


def end(koala: Koala, *names: str) -> None:
    """Have programs end, and wait until nothing of them is left."""
    for name in names:
        (koala.directory / name / "stop").touch()
    eventually(lambda: koala.placeholders() == [])


def test_a_program_asks_for_more_and_gives_back(koala: Koala) -> None:
    """It gets what is free of what it asks for, with the reason in writing why not all; then it gives some back."""
    without_approach(koala)
    service = koala.serve()
    more = 'minimum = 1\nmaximum = 8\ncluster = "alpha"\n'
    wishes = ("voluntary=1", "voluntary=5", "give-back=2")
    koala.inside("submit", write_wishes(koala.directory, *wishes, name="one", more=more))
    eventually(lambda: koala.state_of("1") == "running")
    (koala.directory / "one" / "go").touch()
    eventually(lambda: len(said(koala, "1")) == 6)
    assert said(koala, "1") == [
        ["voluntary", 1, 1, ""],
        ["size", 2],
        ["voluntary", 5, 2, "no more is free"],
        ["size", 4],
        ["give-back", 2, 2, ""],
        ["size", 2],
    ]
    eventually(lambda: "the application gives them back" in koala.inside("explain", "1").stdout)
    end(koala, "one")
    assert koala.outcome("1")["exit_code"] == 0
    expect_negotiations(koala, service)


def expect_negotiations(koala: Koala, service: Running) -> None:
    """What was said is told by the service, by the next one, and without one."""
    summaries = [
        "it asked for 1 more; 1 processor was allocated",
        "it asked for 5 more; 2 processors were allocated (no more is free)",
        "it wanted to give back 2; 2 processors were released",
    ]
    found = koala.client.negotiations(job_id="1")
    assert [one.summary for one in found] == summaries
    shown = koala.inside("negotiations", "2").stdout
    for said in (
        "application asks for 5",
        "koala offers 2 (no more is free)",
        "application accepts 2",
        "koala commits to 2",
    ):
        assert said in shown
    assert "<NT NT_AgreementID=" in koala.inside("negotiations", "--templates").stdout
    assert summaries[2] in koala.report("1").explanation
    restart(koala, service)
    assert koala.client.negotiations() == found
    koala.client.stop()
    eventually(lambda: not koala.client.running())
    negotiated = koala.json("negotiations")
    assert [one["summary"] for one in negotiated] == summaries
    assert deviations(negotiated, shape_schema("negotiation-list")) == []
    assert deviations(koala.json("status", "1"), shape_schema("job-report")) == []
    assert "no negotiation 7" in koala.inside("negotiations", "7", check=1).stderr


@pytest.mark.nightly
def test_a_mandatory_wish_makes_another_program_shrink(koala: Koala) -> None:
    without_approach(koala)
    koala.serve()
    more = 'minimum = 1\nmaximum = 4\ncluster = "alpha"\n'
    koala.inside("submit", write_wishes(koala.directory, name="rich", more=more + "initial = 3\n"))
    eventually(lambda: koala.state_of("1") == "running" and size(koala) == 3)
    koala.inside("submit", write_wishes(koala.directory, "mandatory=2", "voluntary=1", name="poor", more=more))
    eventually(lambda: koala.state_of("2") == "running")
    (koala.directory / "poor" / "go").touch()
    eventually(lambda: ["size", 3] in said(koala, "2"))
    assert ["mandatory", 2, 2, ""] in said(koala, "2")
    assert ["size", 1] in said(koala, "1")
    eventually(lambda: any(one[0] == "voluntary" for one in said(koala, "2")))
    refused = next(one for one in said(koala, "2") if one[0] == "voluntary")
    assert refused[2] == 0
    assert refused[3]
    assert "job 2 asked for 2 more" in koala.inside("explain", "1").stdout
    end(koala, "rich", "poor")


def test_an_application_that_never_answers(koala: Koala) -> None:
    """Its processes do not even take part: it keeps its size, others are not kept waiting, and it ends as it would."""
    text = koala.site_file.read_text()
    koala.site_file.write_text(text.replace("[scheduler]\n", "[scheduler]\nanswer_timeout = 3\n"))
    koala.serve()
    path, gate = koala.directory / "deaf.toml", koala.directory / "gate"
    command = json.dumps(["sh", "-c", UNTIL.format(gate)])
    path.write_text(
        'kind = "malleable"\nrunner = "adaptive"\nwalltime = 600\n'
        f'[[components]]\nname = "sum"\ncommand = {command}\nminimum = 1\nmaximum = 4\ncluster = "alpha"\n'
    )
    koala.inside("submit", str(path))
    eventually(lambda: koala.state_of("1") == "running")
    koala.inside("submit", koala.job("true", name="rigid", processors=1))
    assert koala.outcome("2")["exit_code"] == 0
    assert koala.state_of("1") == "running"
    gate.touch()
    assert koala.outcome("1")["exit_code"] == 0
    eventually(lambda: koala.placeholders() == [])


@pytest.mark.nightly
def test_a_wrong_call_is_told_after_a_run_that_was_its_own_service(koala: Koala) -> None:
    """The process ended with it: its last words are in what `koala run` leaves, and `koala explain` tells them."""
    program, job = koala.directory / "wrong.py", koala.directory / "wrong.toml"
    program.write_text("import koala_app\nkoala_app.join().leave()\n")
    job.write_text(
        'kind = "malleable"\nrunner = "adaptive"\nwalltime = 600\n[[components]]\nname = "x"\n'
        f'minimum = 1\nmaximum = 2\ncommand = ["{sys.executable}", "{program}"]\n'
    )
    process = koala.start("run", str(job))
    assert process.wait(LIVENESS) == 1
    explained = koala.run("explain", "1")
    assert "no service runs" in explained.stderr
    assert "Process 0 made a wrong call: leave() of a process that was not taken out" in explained.stdout


# -- An MPI program whose processes come and go, on local clusters: they are spawned, and the result is right.


def mpi_size(koala: Koala, job: str = "1") -> int:
    """Return how many processors a job has."""
    return sum(one["processors"] for one in koala.json("status", job)["components"])


def submit(koala: Koala, mpich: Mpich, command: Sequence[str], **component: int) -> Running:
    """Submit a job of launcher mpi, on clusters whose MPI can do what it can; return the service."""
    method = "spawn" if mpich.spawns else "restart"
    site = koala.site_file.read_text()
    koala.site_file.write_text(site.replace('plugin = "local"', f'plugin = "local"\nmpi_resize = "{method}"'))
    path = f"{mpich.commands}:{os.environ['PATH']}"
    keys = "".join(f"{name} = {value}\n" for name, value in component.items())
    file = koala.directory / "mpi.toml"
    file.write_text(
        'name = "mpi"\nkind = "malleable"\nrunner = "adaptive"\nlauncher = "mpi"\nwalltime = 600\n'
        f'working_directory = "{koala.directory}"\nenvironment = {{ PATH = {json.dumps(path)} }}\n'
        f'[[components]]\nname = "bodies"\ncommand = {json.dumps(list(command))}\n'
        f"minimum = 1\nflexible = true\n{keys}"
    )
    service = koala.serve()
    koala.inside("submit", str(file))
    return service


@pytest.fixture(params=["spawn", "restart"])
def mpich(request: pytest.FixtureRequest) -> Mpich:
    """An MPICH with dynamic processes, and that of the system, which has none."""
    found = of_wheel() if request.param == "spawn" else of_system()
    if found is None:
        pytest.skip("the PyPI package mpich is not installed" if request.param == "spawn" else "no MPICH of the system")
    return found


@pytest.mark.nightly  # tests/real shows the same
def test_nbody_grows_and_shrinks_over_two_clusters(koala: Koala, mpich: Mpich, tmp_path: Path) -> None:
    program, stop = mpich.compile("nbody", tmp_path), tmp_path / "stop"
    submit(koala, mpich, [str(program), "100", "100000", "0.1", str(stop)], maximum=5, initial=2)
    eventually(lambda: mpi_size(koala) == 5)
    koala.inside("resize", "1", "3")
    eventually(lambda: mpi_size(koala) == 3)
    stop.touch()
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    assert koala.json("status", "1")["outcome"]["exit_code"] == 0, koala.inside("explain", "1").stdout
    lines = (koala.state / "jobs" / "1" / "bodies" / "0.out").read_text().splitlines()
    steps = lines[-1].split(":")[0].removeprefix("step ")
    with HandLauncher(mpich, [str(program), "100", steps], size=2, environment={}) as fixed:
        assert fixed.wait() == 0
    assert lines[-1] == fixed.text[-1]
    sizes = [int(line.split(": ")[1].split()[0]) for line in lines[:-1]]
    assert (sizes[0], max(sizes), sizes[-1]) == (2, 5, 3), lines
    eventually(lambda: koala.placeholders() == [])
    assert not list(koala.directory.glob("koala-1-*")), "the directory of the keepers is gone"


@pytest.mark.nightly
def test_the_service_is_killed_between_two_changes(koala: Koala, mpich: Mpich, tmp_path: Path) -> None:
    """The next one goes on: it knows who was spawned as what, and in which directory the keepers meet."""
    program, stop = mpich.compile("nbody", tmp_path), tmp_path / "stop"
    service = submit(koala, mpich, [str(program), "100", "100000", "0.1", str(stop)], maximum=4)
    eventually(lambda: mpi_size(koala) == 4)
    service.kill()
    service.wait()
    koala.serve()
    koala.inside("resize", "1", "2")
    eventually(lambda: mpi_size(koala) == 2)
    koala.inside("resize", "1", "3")
    eventually(lambda: mpi_size(koala) == 3)
    stop.touch()
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    assert koala.json("status", "1")["outcome"]["exit_code"] == 0, koala.inside("explain", "1").stdout
    lines = (koala.state / "jobs" / "1" / "bodies" / "0.out").read_text().splitlines()
    assert " 3 processes" in lines[-2]
    assert "SHA-256" in lines[-1]
    eventually(lambda: koala.placeholders() == [])


@pytest.mark.nightly
@pytest.mark.parametrize("killed", ["$$", "$PPID $$"], ids=["program", "its shell, too"])
def test_a_process_that_ends_badly_ends_the_job(koala: Koala, mpich: Mpich, tmp_path: Path, killed: str) -> None:
    """Whoever of them it is, however the others hang in MPI then, and though mpiexec may end with 0."""
    program = mpich.compile("nbody", tmp_path)
    script = f'[ "$KOALA_RANK" != 1 ] || (sleep 2; kill -9 {killed}) & exec {program} 100 100000 0.1'
    submit(koala, mpich, ["sh", "-c", script], maximum=3, initial=2)
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    outcome = koala.json("status", "1")["outcome"]
    assert (outcome["state"], outcome["exit_code"] != 0) == ("failed", True), outcome
    eventually(lambda: koala.placeholders() == [])
    assert not list(koala.directory.glob("koala-1-*")), "the directory of the keepers is gone"
