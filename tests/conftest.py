# SPDX-License-Identifier: Apache-2.0
"""What every test gets: asyncio as the event loop, and an environment free of the caller's shell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FOREIGN_PREFIXES = ("KOALA_", "SLURM", "SBATCH_", "SGE_", "DRMAA_", "PBS_", "PMI", "XDG_")
"""Variables that steer a batch system or us, and would make a test depend on who runs it."""

KEPT = frozenset({"KOALA_REQUIRE_REAL"})
"""The switch of the real tests: with it a missing batch system is a failure."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on asyncio, the only event loop the service uses."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the whole session an empty home directory and none of the variables of a batch system."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(FOREIGN_PREFIXES) and name not in KEPT]:
            patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("LC_ALL", "C.UTF-8")
        yield
