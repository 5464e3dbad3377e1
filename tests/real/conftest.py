# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the real batch systems.

`slurm_a`, `slurm_b` and `sge_cell` run through the whole session, because several tests use all three at once; each
test gets them empty. A test that destroys a daemon for good, or needs other settings, makes a system of its own, and
starts it with `started`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import pytest

from tests.real.agents import Site
from tests.real.lrms import Served
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.pbs import PbsServer, missing_for_pbs
from tests.real.systems.processes import SystemDirectory, compile_program
from tests.real.systems.requirements import (
    missing_for_mpi,
    require,
)
from tests.real.user import KoalaUser, Values


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests at sites, which take the longest: one that began last would be waited for."""
    first = ("test_three_sites.py", "test_other_sites.py")
    items.sort(key=lambda item: first.index(item.path.name) if item.path.name in first else len(first))


class Settings(TypedDict, total=False):
    """Settings of a user; see KoalaUser."""

    scheduler: Values | None
    center: Values | None
    clusters: Mapping[str, Values] | None
    path: Path | None


class NewUser(Protocol):
    """Makes users of koala, whose services run; everything of them ends with the test."""

    def __call__(self, *systems: Served, serve: bool = True, **settings: Unpack[Settings]) -> KoalaUser:
        """Return a user with a site of these systems. ``serve``: the service runs."""


@pytest.fixture(scope="session")
def session_slurm_a() -> Iterator[SlurmCluster]:
    """Run cluster `a`, two nodes of four processors, through the session; tests take `slurm_a`."""
    with SlurmCluster("a", nodes=2, cpus=4) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def session_slurm_b() -> Iterator[SlurmCluster]:
    """Run cluster `b`, two nodes of four processors, through the session; tests take `slurm_b`."""
    with SlurmCluster("b", nodes=2, cpus=4) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def session_sge_cell() -> Iterator[GridEngineCell]:
    """Run cell `c`, one host of four slots, through the session; tests take `sge_cell`."""
    with GridEngineCell("c", slots=4) as cell:
        yield cell


@pytest.fixture
def slurm_a(session_slurm_a: SlurmCluster) -> Iterator[SlurmCluster]:
    """Slurm cluster `a` without jobs; jobs that are left at the end are cancelled."""
    yield session_slurm_a
    session_slurm_a.reset()


@pytest.fixture
def slurm_b(session_slurm_b: SlurmCluster) -> Iterator[SlurmCluster]:
    """Slurm cluster `b` without jobs; jobs that are left at the end are cancelled."""
    yield session_slurm_b
    session_slurm_b.reset()


@pytest.fixture
def sge_cell(session_sge_cell: GridEngineCell) -> Iterator[GridEngineCell]:
    """Grid Engine cell `c` without jobs; jobs that are left at the end are deleted."""
    yield session_sge_cell
    session_sge_cell.reset()


@pytest.fixture
def server() -> Iterator[PbsServer]:
    """The PBS server of this machine, without jobs, before and after the test."""
    require(missing_for_pbs())
    server = PbsServer()
    with server.alone():
        yield server
        server.clear()


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Return what is to be entered by batch systems for this test alone; they end with it."""
    with ExitStack() as systems:
        yield systems


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """Directory for compiled programs that the jobs of all users may run."""
    directory = SystemDirectory.create("programs")
    yield directory.path
    directory.remove()


@pytest.fixture(scope="session")
def allreduce(programs: Path) -> Path:
    """Path of the compiled programs/allreduce.c."""
    require(missing_for_mpi())
    return compile_program("allreduce", programs)


@pytest.fixture
def new_user(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewUser]:
    """Return a function that makes a user of koala and starts the service."""
    for system in ("slurm_a", "slurm_b", "sge_cell"):  # emptied after the end of services, which would fill them again
        if system in request.fixturenames:
            request.getfixturevalue(system)
    with ExitStack() as users:

        def make(*systems: Served, serve: bool = True, **settings: Unpack[Settings]) -> KoalaUser:
            user = KoalaUser(tmp_path / "user", systems, **settings)
            users.callback(user.close)
            if serve:
                user.serve()
            return user

        yield make


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Return a control center without agents, for tests of agents that need no batch system."""
    with closing(Site(tmp_path)) as made:
        yield made
