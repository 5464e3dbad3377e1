# SPDX-License-Identifier: Apache-2.0
"""The malleable MPI examples change their size: without koala, by both methods, and their results are right."""

from __future__ import annotations

import ctypes
import hashlib
import random
import subprocess
import time
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.mpi_by_hand import EXAMPLES, PATIENCE, HandLauncher, Mpich, of_system, of_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_nbody_ends_alike_on_any_fixed_size(fixed: Mpich, fixed_nbody: Path, size: int) -> None:
    assert rigid_digest(fixed, fixed_nbody, size) == rigid_digest(fixed, fixed_nbody)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [("0:2 4:5 8:3", [2, 5, 3]), ("2:4 6:-1-3 9:-1 12:3", [1, 4, 2, 1, 3])],
    ids=["the last leave", "others leave"],
)
def test_nbody_by_spawn(spawning: Mpich, spawning_nbody: Path, plan: str, expected: list[int]) -> None:
    program = [str(spawning_nbody), *BODIES]
    with HandLauncher(spawning, program, size=1, environment={"RESIZE_METHOD": "spawn", "RESIZE_PLAN": plan}) as run:
        assert run.wait() == 0
    assert sizes(run.text) == expected
    assert digest(run.text) == rigid_digest(spawning, spawning_nbody)
    assert [proxy.process.returncode for proxy in run.proxies] == [0] * len(run.proxies)
    assert [(proxy.group, proxy.number) for proxy in run.proxies] == [(each, 0) for each in range(len(run.proxies))]


@pytest.mark.parametrize("plan", ["0:3 5:1", "0:4 3:-1 5:-1"], ids=["the last leave", "others leave"])
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
