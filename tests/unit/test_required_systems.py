# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests of real systems cannot pass by unnoticed: skipped with what is missing, or failed in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[2]

COMMAND = """
import pytest

@pytest.mark.real("sh", "no-such-daemon")
def test_it() -> None:
    raise OSError
"""
TEST = """
import pytest

def test_it() -> None:
    pytest.skip("no such daemon")
"""
NEVER = """
import pytest

@pytest.mark.never_required
def test_it() -> None:
    pytest.skip("no such daemon")
"""
MODULE = """
import pytest

pytest.skip("no such daemon", allow_module_level=True)
"""


FILES = {
    "real/test_command.py": COMMAND,
    "real/test_case.py": TEST,
    "real/test_module.py": MODULE,
    "real/test_never.py": NEVER,
    "unit/test_marked.py": COMMAND,
    "unit/test_other.py": TEST,
}


@cache
def report(*, required: bool) -> str:
    with TemporaryDirectory() as place:
        directory = Path(place)
        for name, source in FILES.items():
            file = directory / "tests" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        for name in ("tests/conftest.py", "tests/examples.py", "tests/sqlite_watch.py", "pyproject.toml"):
            shutil.copy(ROOT / name, directory / name)
        environment = {"PATH": os.environ["PATH"], "KOALA_REQUIRE_REAL": "1" if required else ""}
        options = ["-p", "no:cacheprovider", "-p", "no:randomly", "-v", "--continue-on-collection-errors"]
        command = [sys.executable, "-m", "pytest", *options, "tests"]
        run = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        return run.stdout.replace("Skipped: ", "")


def summary(printed: str, outcome: str, name: str) -> str:
    """Return the line of pytest's summary with this outcome of a file; fail when there is none."""
    lines = [line for line in printed.splitlines() if line.startswith(outcome) and f"tests/{name}" in line]
    assert lines, printed
    return lines[-1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("real/test_command.py", "not on this machine: no-such-daemon"),
        ("real/test_case.py", "no such daemon"),
        ("real/test_module.py", "no such daemon"),
    ],
)
def test_missing_system_is_named(name: str, reason: str) -> None:
    printed = report(required=False)
    # The marker is read by our conftest, where the skip then happens.
    place = "conftest.py" if name == "real/test_command.py" else name
    assert summary(printed, "SKIPPED", place).endswith(reason)
    assert "= 6 skipped in" in printed


@pytest.mark.parametrize(
    ("name", "reason", "outcome"),
    [
        ("real/test_command.py", "not on this machine: no-such-daemon", "ERROR"),
        ("real/test_case.py", "no such daemon", "FAILED"),
        ("real/test_module.py", "no such daemon", "ERROR"),
    ],
)
def test_missing_system_fails_where_it_is_required(name: str, reason: str, outcome: str) -> None:
    """In CI each way of skipping a real test is a failure that gives the same reason."""
    printed = report(required=True)
    assert summary(printed, outcome, name)
    assert f"may not be skipped. {reason}" in printed
    assert "= 1 failed, 2 skipped, 3 errors in" in printed


def test_marked_test_elsewhere_is_required_too() -> None:
    """The marker alone makes a test one of the real systems, wherever its file is."""
    assert summary(report(required=True), "ERROR", "unit/test_marked.py")


def test_what_no_registry_has_is_never_required() -> None:
    """A batch system that cannot be installed in CI is named, and nothing more."""
    assert summary(report(required=True), "SKIPPED", "real/test_never.py").endswith("no such daemon")


def test_skips_elsewhere_stay_skips() -> None:
    """The requirement is about real systems: any other test may be skipped in CI."""
    assert summary(report(required=True), "SKIPPED", "unit/test_other.py")
