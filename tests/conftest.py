# SPDX-License-Identifier: Apache-2.0
"""What every test gets: asyncio as the event loop, an environment free of the caller's shell, and the marker `real`.

``@pytest.mark.real("slurmctld", "slurmd")`` names the commands a test needs. Where one is missing the test is skipped
and says which. With KOALA_REQUIRE_REAL=1, as in CI, a test with this marker, or one in tests/real, fails instead of
being skipped, unless the conformance kit skips it because the plugin does not claim to do what it tests, or it is
marked ``never_required``: its system is in no package registry, and so not there in CI.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import structlog

from tests.examples import register_profiles
from tests.sqlite_watch import close_all, watch_connections

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.local_koala import Koala

register_profiles()
watch_connections()

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

REAL = Path(__file__).parent / "real"
KIT = Path(__file__).parents[1] / "koala_adapter" / "testing"
"""The conformance kit skips only what a plugin says it cannot do: that is no missing system."""
REQUIRED = os.environ.get("KOALA_REQUIRE_REAL") == "1"
DAEMONS_TOO = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

FOREIGN_PREFIXES = ("KOALA_", "SLURM", "SBATCH_", "SGE_", "DRMAA_", "PBS_", "PMI", "XDG_")
"""Variables that steer a batch system or us, and would make a test depend on who runs it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take how much chaos is wanted, for tests/real/chaos."""
    group = parser.getgroup("chaos")
    group.addoption("--chaos-seed", type=int, help="seed of the first plan of chaos; by default a random one")
    group.addoption("--chaos-minutes", type=float, help="minutes in which one plan of chaos is run after another")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while thousands of tests are collected, nor later among them: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the night what a class inherits and does not name in ``BY_DAY``, if it has such a set of names."""
    for item in items:
        cls = getattr(item, "cls", None)
        by_day = getattr(cls, "BY_DAY", None)
        if by_day is not None and isinstance(item, pytest.Function) and item.originalname not in by_day:
            item.add_marker(pytest.mark.nightly)
        if unknown := [name for name in by_day or () if not hasattr(cls, name)]:
            raise pytest.UsageError(f"{item.nodeid}: BY_DAY of its class names no test: {', '.join(sorted(unknown))}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on asyncio, the only event loop the service uses."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the whole session an empty home directory and none of the variables of a batch system."""
    # Started in the background by a script, we would have inherited that these are ignored, and so would all commands.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(FOREIGN_PREFIXES)]:
            patch.delenv(name)
        patch.delenv("COLUMNS", raising=False)  # or what a command prints inside this process is broken into lines
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("LC_ALL", "C.UTF-8")
        yield


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors, and end all of it afterwards."""
    from tests.local_koala import Koala  # noqa: PLC0415 - tests that need no service do not import one

    with closing(Koala(tmp_path)) as one:
        yield one


@pytest.fixture(autouse=True)
def _closed_databases() -> Iterator[None]:
    """Close what the test has opened for itself."""
    yield
    close_all()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Take back how a command configured logging, or the next test would see only its errors."""
    yield
    structlog.reset_defaults()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test, before any of its fixtures start a daemon, when a command that it names is missing."""
    commands = {str(command) for marker in item.iter_markers("real") for command in marker.args}
    missing = sorted(command for command in commands if shutil.which(command, path=DAEMONS_TOO) is None)
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)}")


def _insist(report: Report, node: pytest.Item | pytest.Collector) -> Report:
    """Make a failure of a skip among the real tests when the real systems are required."""
    real = node.path.is_relative_to(REAL) or node.get_closest_marker("real") is not None
    real = real and node.get_closest_marker("never_required") is None
    if REQUIRED and real and report.skipped and not hasattr(report, "wasxfail"):
        if isinstance(report.longrepr, tuple) and Path(report.longrepr[0]).is_relative_to(KIT):
            return report
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"KOALA_REQUIRE_REAL=1, so this may not be skipped. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Do not let a required test pass by as skipped."""
    return _insist((yield), item)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do not let a required module pass by as skipped."""
    return _insist((yield), collector)
