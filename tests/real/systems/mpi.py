# SPDX-License-Identifier: Apache-2.0
"""The MPI programs of the tests, compiled with this machine's MPICH where jobs of all users can run them."""

from __future__ import annotations

from pathlib import Path

from tests.real.systems.processes import base_environment, run_command

PROGRAMS = Path(__file__).parents[1] / "programs"


def compile_program(name: str, directory: Path) -> Path:
    """Compile programs/NAME.c into the directory and return the path of the program.

    Raises CommandError with the compiler's words when it does not compile.
    """
    program = directory / name
    argv = ["mpicc", "-O2", "-Wall", "-Werror", "-fopenmp", "-o", str(program), str(PROGRAMS / f"{name}.c")]
    run_command(argv, environment=base_environment())
    return program
