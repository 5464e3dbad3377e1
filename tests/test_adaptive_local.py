# SPDX-License-Identifier: Apache-2.0
"""Programs that adapt, with and without MPI: on local clusters, and MPI programs also without koala."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.cli.jsonshapes import shape_schema
from tests.examplejobs import expected_result, write_stepsum
from tests.json_shapes import deviations
from tests.local_koala import LIVENESS, Koala, Running, eventually
from tests.mpi_by_hand import EXAMPLES, PATIENCE, HandLauncher, Mpich, of_system, of_wheel
from tests.wishes import write_wishes

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


def said(koala: Koala, job: str) -> list[list[Any]]:
    """Return what the process of rank 0 wrote of its wishes and of its sizes."""
    path = koala.state / "jobs" / job / "sum" / "0.out"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def without_approach(koala: Koala) -> None:
    """Let sizes change only when somebody asks for it."""
    koala.change_site("[scheduler]\n", '[scheduler]\napproach = "none"\n')


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


def test_an_application_that_never_answers(koala: Koala) -> None:
    """Its processes do not even take part: it keeps its size, others are not kept waiting, and it ends as it would."""
    koala.change_site("[scheduler]\n", "[scheduler]\nanswer_timeout = 3\n")
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
    koala.change_site('plugin = "local"', f'plugin = "local"\nmpi_resize = "{method}"')
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


# -- The malleable MPI examples change their size: without koala, by both methods, and their results are right.

BODIES = ("100", "20")
UNOPTIMIZED = "-std=c11 -D_XOPEN_SOURCE=700 -ffp-contract=off -O0"
"""They compute for a tenth of a second, and are compiled for two with the flags of their Makefiles."""
MPICHS = {"wheel": of_wheel(), "system": of_system()}


def built(which: str, factory: pytest.TempPathFactory) -> tuple[Mpich, Path, Path]:
    """Return an MPICH, and n-body and FT built with it."""
    mpich = MPICHS[which]
    if mpich is None:
        package = "the PyPI package mpich" if which == "wheel" else "Debian's package libmpich-dev"
        pytest.skip(f"{package} is not installed")
    directory = factory.mktemp(which)
    nbody, ft = (mpich.compile(name, directory, flags=UNOPTIMIZED) for name in ("nbody", "ft"))
    return mpich, nbody, ft


@pytest.fixture(scope="module")
def spawning_programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mpich, Path, Path]:
    """An MPICH with dynamic processes, n-body and FT."""
    return built("wheel", tmp_path_factory)


@pytest.fixture(scope="module")
def fixed_programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mpich, Path, Path]:
    """The system's MPICH, n-body and FT."""
    return built("system", tmp_path_factory)


@pytest.fixture
def spawning(spawning_programs: tuple[Mpich, Path, Path]) -> Mpich:
    """An MPICH with dynamic processes."""
    return spawning_programs[0]


@pytest.fixture
def spawning_nbody(spawning_programs: tuple[Mpich, Path, Path]) -> Path:
    """The program nbody, for an MPICH with dynamic processes."""
    return spawning_programs[1]


@pytest.fixture
def spawning_ft(spawning_programs: tuple[Mpich, Path, Path]) -> Path:
    """The program ft, for an MPICH with dynamic processes."""
    return spawning_programs[2]


@pytest.fixture
def fixed(fixed_programs: tuple[Mpich, Path, Path]) -> Mpich:
    """The system's MPICH, whatever it can do."""
    return fixed_programs[0]


@pytest.fixture
def fixed_nbody(fixed_programs: tuple[Mpich, Path, Path]) -> Path:
    """The program nbody, for the system's MPICH."""
    return fixed_programs[1]


@pytest.fixture
def fixed_ft(fixed_programs: tuple[Mpich, Path, Path]) -> Path:
    """The program ft, for the system's MPICH."""
    return fixed_programs[2]


def rigid(mpich: Mpich, program: Sequence[str], size: int) -> list[str]:
    """Return what a program prints on a fixed number of processes."""
    with HandLauncher(mpich, program, size=size, environment={}) as run:
        assert run.wait() == 0
        return run.text


@cache
def rigid_digest(mpich: Mpich, program: Path, size: int = 2) -> str:
    """Return SHA-256 of the end state of n-body on a fixed number of processes; each is run once."""
    return digest(rigid(mpich, [str(program), *BODIES], size))


def sizes(lines: Sequence[str]) -> list[int]:
    """Return the numbers of processes that a program had."""
    return [int(line.split(": ")[1].split()[0]) for line in lines if line.endswith(" processes")]


def digest(lines: Sequence[str]) -> str:
    """Return SHA-256 of the end state of n-body."""
    return next(line for line in lines if "SHA-256" in line)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [1, 3])
def test_nbody_ends_alike_on_any_fixed_size(fixed: Mpich, fixed_nbody: Path, size: int) -> None:
    assert rigid_digest(fixed, fixed_nbody, size) == rigid_digest(fixed, fixed_nbody)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        pytest.param("0:2 4:5 8:3", [2, 5, 3], marks=pytest.mark.nightly, id="the last leave"),
        pytest.param("2:4 6:-1-3 9:-1 12:3", [1, 4, 2, 1, 3], id="others leave"),
    ],
)
def test_nbody_by_spawn(spawning: Mpich, spawning_nbody: Path, plan: str, expected: list[int]) -> None:
    program = [str(spawning_nbody), *BODIES]
    with HandLauncher(spawning, program, size=1, environment={"RESIZE_METHOD": "spawn", "RESIZE_PLAN": plan}) as run:
        assert run.wait() == 0
    assert sizes(run.text) == expected
    assert digest(run.text) == rigid_digest(spawning, spawning_nbody)
    assert [proxy.process.returncode for proxy in run.proxies] == [0] * len(run.proxies)
    assert [(proxy.group, proxy.number) for proxy in run.proxies] == [(each, 0) for each in range(len(run.proxies))]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("0:3 5:1", marks=pytest.mark.nightly, id="the last leave"),
        pytest.param("0:4 3:-1 5:-1", id="others leave"),
    ],
)
def test_who_leaves_is_gone_while_the_others_go_on(
    spawning: Mpich, spawning_nbody: Path, tmp_path: Path, plan: str
) -> None:
    stop = tmp_path / "stop"
    program = [str(spawning_nbody), "100", "1000000", "0.05", str(stop)]
    environment = {"RESIZE_METHOD": "spawn", "RESIZE_PLAN": plan}
    with HandLauncher(spawning, program, size=1, environment=environment) as run:
        until = time.monotonic() + PATIENCE
        while len(run.ended) < 2:
            assert time.monotonic() < until, run.text
            time.sleep(0.05)
        assert not run.over
        assert len(run.ended) == 2
        stop.touch()
        assert run.wait() == 0
    assert "SHA-256" in run.text[-1]


@pytest.mark.nightly
def test_ft_by_spawn(spawning: Mpich, spawning_ft: Path) -> None:
    """The checksums are the published ones on 1, 2, 4 and 2 processes."""
    plan = {"RESIZE_METHOD": "spawn", "RESIZE_PLAN": "2:2 3:4 5:2"}
    with HandLauncher(spawning, [str(spawning_ft), "S"], size=1, environment=plan) as run:
        assert run.wait() == 0
    assert sizes(run.text) == [1, 2, 4, 2]
    assert run.text[-1] == "VERIFICATION SUCCESSFUL"


@pytest.mark.parametrize("name", ["S", pytest.param("W", marks=pytest.mark.nightly)])
def test_ft_has_the_published_checksums(fixed: Mpich, fixed_ft: Path, name: str) -> None:
    assert rigid(fixed, [str(fixed_ft), name], 2)[-1] == "VERIFICATION SUCCESSFUL"


def restarted(mpich: Mpich, program: Sequence[str], directory: Path, plan: str, size: int) -> list[str]:
    """Run a program to its end, starting it again with each other size; return what it printed."""
    lines: list[str] = []
    environment = {"RESIZE_METHOD": "restart", "RESIZE_PLAN": plan, "RESIZE_DIRECTORY": str(directory)}
    while True:
        with HandLauncher(mpich, program, size=size, environment=environment) as run:
            assert run.wait() == 0
        lines += run.text
        word = directory / "next"
        if not word.exists():
            return lines
        change, number, _ = word.read_text().split()
        size = int(number)
        environment["RESIZE_CHANGE"] = change
        word.unlink()


@pytest.mark.nightly
def test_nbody_by_restart(fixed: Mpich, fixed_nbody: Path, tmp_path: Path) -> None:
    program = [str(fixed_nbody), *BODIES]
    lines = restarted(fixed, program, tmp_path, "4:5 8:3", 2)
    assert sizes(lines) == [2, 5, 3]
    assert digest(lines) == rigid_digest(fixed, fixed_nbody)
    assert list(tmp_path.iterdir()) == []


def test_ft_by_restart(fixed: Mpich, fixed_ft: Path, tmp_path: Path) -> None:
    """The checksums are the published ones; a round that a restart interrupts is not begun anew."""
    lines = restarted(fixed, [str(fixed_ft), "S"], tmp_path, "2:2 3:4 5:2", 1)
    assert sizes(lines) == [1, 2, 4, 2]
    assert sum("checksum" in line for line in lines) == 6
    assert lines[-1] == "VERIFICATION SUCCESSFUL"


def test_a_state_that_cannot_be_kept_does_not_end_the_program(fixed: Mpich, fixed_nbody: Path, tmp_path: Path) -> None:
    program = [str(fixed_nbody), *BODIES]
    lines = restarted(fixed, program, tmp_path / "missing", "4:5", 2)
    assert sizes(lines) == [2, 2]
    assert digest(lines) == rigid_digest(fixed, fixed_nbody)


ENDING = """\
#include "resize.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, step = 0;

    resize_init(&argc, &argv, "any");
    if (resize_entering()) {
        resize_carry_value(&step, sizeof step);
        resize_done();
    }
    while (!resize_ending() && step < 30) {
        step++;
        if (resize_point()) {
            resize_carry_value(&step, sizeof step);
            resize_done();
        }
    }
    MPI_Comm_rank(resize_world(), &rank);
    MPI_Comm_size(resize_world(), &size);
    printf("%d of %d ends in step %d\\n", rank, size, step);
    resize_finalize();
    return 0;
}
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("from_point", "step"), [("4", 4), ("5", 6), ("99", 30)])
def test_all_processes_learn_at_the_same_point_that_the_end_is_near(
    spawning: Mpich, tmp_path: Path, from_point: str, step: int
) -> None:
    program, source = tmp_path / "ending", tmp_path / "ending.c"
    source.write_text(ENDING)
    resize, library = EXAMPLES / "resize", EXAMPLES.parents[1] / "koala_adapter" / "application" / "c"
    files = [source, *sorted(resize.glob("*.c")), library / "koala_app.c", library / "koala_nt.c"]
    mpicc = [str(spawning.commands / "mpicc"), *UNOPTIMIZED.split(), "-Wall", "-Wextra", "-Werror", f"-I{resize}"]
    subprocess.run([*mpicc, f"-I{library}", "-o", program, *files, "-pthread", "-lm"], check=True, timeout=PATIENCE)
    plan = {"RESIZE_METHOD": "spawn", "RESIZE_PLAN": "0:2 5:3", "RESIZE_ENDING": from_point}
    with HandLauncher(spawning, [str(program)], size=1, environment=plan) as run:
        assert run.wait() == 0
    size = 2 if step < 5 else 3
    said = sorted(line for line in run.text if " ends in step " in line)
    assert said == [f"{rank} of {size} ends in step {step}" for rank in range(size)]


def test_sha256_is_that_of_python(tmp_path: Path) -> None:
    """The digest of the examples is SHA-256 as others compute it, for lengths around the ends of blocks."""
    library = tmp_path / "sha256.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, EXAMPLES / "nbody" / "sha256.c"], check=True, timeout=PATIENCE
    )
    sha256 = ctypes.CDLL(str(library)).sha256
    for length in range(200):
        data, digits = random.Random(length).randbytes(length), ctypes.create_string_buffer(65)
        sha256(data, ctypes.c_size_t(length), digits)
        assert digits.value.decode() == hashlib.sha256(data).hexdigest()
