# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests of real systems cannot pass by unnoticed: skipped with what is missing, or failed in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def report(directory: Path, *, required: bool) -> str:
    """Return what pytest prints of the files below, with our conftest."""
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


def test_missing_system_is_named(tmp_path: Path) -> None:
    printed = report(tmp_path, required=False)
    # The marker is read by our conftest, where the skip then happens.
    assert summary(printed, "SKIPPED", "conftest.py").endswith("not on this machine: no-such-daemon")
    for name in ("real/test_case.py", "real/test_module.py"):
        assert summary(printed, "SKIPPED", name).endswith("no such daemon")
    assert "= 6 skipped in" in printed


def test_missing_system_fails_where_it_is_required(tmp_path: Path) -> None:
    """In CI each way of skipping a real test, and a marked one elsewhere, is a failure that gives the same reason.

    What is in no registry, and so cannot be there in CI, and any other test may be skipped.
    """
    printed = report(tmp_path, required=True)
    for name, outcome in (
        ("real/test_command.py", "ERROR"),
        ("unit/test_marked.py", "ERROR"),
        ("real/test_module.py", "ERROR"),
        ("real/test_case.py", "FAILED"),
    ):
        assert summary(printed, outcome, name)
    for reason in ("not on this machine: no-such-daemon", "no such daemon"):
        assert f"may not be skipped. {reason}" in printed
    assert summary(printed, "SKIPPED", "real/test_never.py").endswith("no such daemon")
    assert summary(printed, "SKIPPED", "unit/test_other.py")
    assert "= 1 failed, 2 skipped, 3 errors in" in printed
