# SPDX-License-Identifier: Apache-2.0
"""What a machine lacks for running the real batch systems, by the names of Debian's packages.

Checked are the files that are really executed: several of the commands in /usr/bin are wrappers or alternatives that
remain, or lead elsewhere, when the package behind them is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from koala_adapter.lrm.drmaa.choice import find_libraries
from koala_adapter.lrm.drmaa.libraries import PBS as PBS_DRMAA
from koala_adapter.lrm.drmaa.libraries import SLURM as SLURM_DRMAA
from koala_slurm.releases import LIBRARIES, misfit
from tests.real.systems.processes import OTHER_SLURM, SLURM_PATH, SYSTEM_PATH

SLURM: Mapping[str, str] = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
LUA = "lib/slurm/job_submit_lua.so"
"""What runs a script at each submission, in a Slurm that was built with Lua."""
MUNGE: Mapping[str, str] = {"munged": "munge"}
GRID_ENGINE: Mapping[str, str] = {
    "/usr/lib/gridengine/sge_qmaster": "gridengine-master",
    "/usr/share/gridengine/scripts/init_cluster": "gridengine-master",
    "/usr/lib/gridengine/sge_execd": "gridengine-exec",
    "/usr/lib/gridengine/qsub": "gridengine-client",
}
DRMAA: Mapping[str, str] = {"/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0": "gridengine-drmaa1.0"}
MPI: Mapping[str, str] = {
    "mpicc": "mpich, libmpich-dev",
    "mpiexec.hydra": "mpich",
    "hydra_pmi_proxy": "mpich",
    "gcc": "gcc",
}


def _missing(programs: Mapping[str, str], *, root: bool) -> list[str]:
    lacking = ["to be root"] if root and os.getuid() != 0 else []
    for program, package in programs.items():
        found = Path(program).exists() if program.startswith("/") else shutil.which(program, path=SYSTEM_PATH)
        if not found:
            lacking.append(f"{program} (Debian package {package})")
    return lacking


def missing_for_slurm(*, munge: bool = False, lua: bool = False) -> list[str]:
    """Say what is missing for a Slurm cluster; with `munge` for one with several users. Empty: nothing.

    ``lua``: its controller runs a script at each submission. Debian's always can.

    Where KOALA_TEST_SLURM names a Slurm, no other will do: it would be tested in the name of that one.
    """
    if not SLURM_PATH:
        return _missing({**SLURM, **(MUNGE if munge else {})}, root=True)
    lacking = [program for program in SLURM if not shutil.which(program, path=SLURM_PATH)]
    if lua and OTHER_SLURM is not None and not (OTHER_SLURM / LUA).exists():
        lacking.append(LUA)
    return [
        *(f"{name} in {SLURM_PATH} (KOALA_TEST_SLURM)" for name in lacking),
        *_missing(MUNGE if munge else {}, root=True),
    ]


def missing_for_grid_engine() -> list[str]:
    """Say what is missing for a Grid Engine cell. Empty: nothing."""
    return _missing(GRID_ENGINE, root=True)


def missing_for_mpi() -> list[str]:
    """Say what is missing for compiling and running an MPICH program. Empty: nothing."""
    return _missing(MPI, root=False)


NAMED_LIBRARIES = {system: os.environ.get(f"KOALA_TEST_{system.upper()}_DRMAA") for system in ("slurm", "pbs")}
"""Read when this is imported: while tests run they see no variables of ours."""


def drmaa_library(system: str) -> Path | None:
    """Return the DRMAA library of ``slurm`` or ``pbs``, named by KOALA_TEST_SLURM_DRMAA or KOALA_TEST_PBS_DRMAA.

    One that is not named counts where the Slurm that is tested understands it.
    """
    named = NAMED_LIBRARIES[system]
    if named is not None:
        return Path(named) if Path(named).exists() else None
    library = {"slurm": SLURM_DRMAA, "pbs": PBS_DRMAA}[system]
    found = find_libraries(None, library, library.places, environment={})
    paths = [one.path for one in found if system != "slurm" or not misfit(one.path, _other_release())]
    return paths[0] if paths else None


def _other_release() -> tuple[int, ...]:
    """Return the release of the Slurm that KOALA_TEST_SLURM names, by its library; an empty one where it names none."""
    numbers = [] if OTHER_SLURM is None else [path.suffix[1:] for path in OTHER_SLURM.glob("lib/libslurm.so.*")]
    return next((LIBRARIES[int(number)] for number in numbers if number.isdecimal() and int(number) in LIBRARIES), ())


def require(missing: list[str]) -> None:
    """Skip the running test when something is missing, saying what.

    With KOALA_REQUIRE_REAL=1 tests/conftest.py makes a failure of every skip in tests/real.
    """
    if missing:
        pytest.skip(f"missing: {', '.join(missing)}")
