# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests of real systems cannot pass by unnoticed: skipped with what is missing, or failed in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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
MODULE = """
import pytest

pytest.skip("no such daemon", allow_module_level=True)
"""


def outcome(directory: Path, *, folder: str, source: str, required: bool) -> str:
    """Return what pytest prints about one test file below a copy of our tests/conftest.py."""
    tests = directory / "tests"
    (tests / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", tests)
    shutil.copy(ROOT / "pyproject.toml", directory)
    (tests / folder / "test_case.py").write_text(source, encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "KOALA_REQUIRE_REAL": "1" if required else ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"]
    run = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    return run.stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [(COMMAND, "not on this machine: no-such-daemon"), (TEST, "no such daemon"), (MODULE, "no such daemon")],
    ids=["command", "test", "module"],
)
def test_missing_system_is_named(tmp_path: Path, source: str, reason: str) -> None:
    """Where nothing is required the test is skipped, and the report says what is missing."""
    printed = outcome(tmp_path, folder="real", source=source, required=False)
    assert reason in printed
    assert "= 1 skipped in" in printed


@pytest.mark.parametrize(
    ("source", "reason", "end"),
    [
        (COMMAND, "not on this machine: no-such-daemon", "= 1 error in"),
        (TEST, "no such daemon", "= 1 failed in"),
        (MODULE, "no such daemon", "= 1 error in"),
    ],
    ids=["command", "test", "module"],
)
def test_missing_system_fails_where_it_is_required(tmp_path: Path, source: str, reason: str, end: str) -> None:
    """In CI each way of skipping a real test is a failure that gives the same reason."""
    printed = outcome(tmp_path, folder="real", source=source, required=True)
    assert f"may not be skipped. {reason}" in printed.replace("Skipped: ", "")
    assert end in printed


def test_marked_test_elsewhere_is_required_too(tmp_path: Path) -> None:
    """The marker alone makes a test one of the real systems, wherever its file is."""
    assert "= 1 error in" in outcome(tmp_path, folder="unit", source=COMMAND, required=True)


def test_skips_elsewhere_stay_skips(tmp_path: Path) -> None:
    """The requirement is about real systems: any other test may be skipped in CI."""
    assert "= 1 skipped in" in outcome(tmp_path, folder="unit", source=TEST, required=True)
