# SPDX-License-Identifier: Apache-2.0
"""What a wheel is made of: the package, what messages refer to, the manual pages, and what package indexes show."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from email import policy
from email.parser import Parser
from pathlib import Path

import koala_adapter
from koala_adapter.cli.manual import page_text, shipped

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "plugins" / "koala_slurm"


def test_a_wheel_has_what_messages_refer_to(tmp_path: Path) -> None:
    """Built of a copy, so that nothing is written into the sources; the copy then has nothing but what was built."""
    for name in (
        "conf",
        "docs",
        "examples",
        "koala_adapter",
        "plugins",
        "man",
        "setup.py",
        "setup.cfg",
        "README.md",
        "LICENSE",
    ):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    build = ["build_py", "--build-lib", "built", "egg_info", "--egg-base", "built"]
    command = [sys.executable, "setup.py", "--quiet", *build]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    check_metadata(tmp_path / "built" / "koala_adapter.egg-info" / "PKG-INFO")
    package = tmp_path / "built" / "koala_adapter"
    for top, sources in ((package, ROOT / "koala_adapter"), (tmp_path / "built" / "koala_slurm", SLURM)):
        modules = {file.relative_to(sources) for file in sources.rglob("*.py")}
        assert {file.relative_to(top) for file in top.rglob("*.py") if "shipped" not in file.parts} == modules
    for kind, pattern in (("conf", "*"), ("docs", "*.md"), ("docs", "*.schema.json")):
        files = {file.name: file.read_bytes() for file in shipped(kind, pattern)}
        assert files
        assert {file.name: file.read_bytes() for file in (package / "shipped" / kind).glob(pattern)} == files
    written = package / "shipped" / "examples"
    examples = {file.relative_to(ROOT / "examples") for file in (ROOT / "examples").rglob("*") if file.is_file()}
    expected = {file for file in examples if not {"__pycache__", ".pytest_cache"}.intersection(file.parts)}
    assert {file.relative_to(written) for file in written.rglob("*") if file.is_file()} == expected
    for page in (package / "shipped" / "docs").glob("*.md"):
        assert page_text(page) == page_text(ROOT / "docs" / page.name)


def check_metadata(file: Path) -> None:
    """What pip and package indexes show says what this is, for whom, under which licence, and with which Python."""
    found = Parser(policy=policy.compat32).parsestr(file.read_text(encoding="utf-8"))
    assert (found["Name"], found["Version"]) == ("koala-adapter", koala_adapter.__version__)
    assert (found["License-Expression"] or found["License"]) == "Apache-2.0"
    assert found["License-File"] == "LICENSE"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"
    assert "# koala-adapter" in str(found.get_payload() or found["Description"])
    assert {"slurm", "gridengine", "pbs", "scheduler", "malleable"} <= set(found["Keywords"].split(","))
    classifiers = found.get_all("Classifier", [])
    assert len(classifiers) == len(set(classifiers))
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(classifiers)
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed"} <= set(classifiers)


def test_the_manual_page_is_installed_where_man_looks() -> None:
    """That it is right is tested where it is made."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    assert config["options.data_files"]["share/man/man1"] == "man/*.1"
    assert (ROOT / "man" / "koala.1").is_file()
