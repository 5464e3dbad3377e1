# SPDX-License-Identifier: Apache-2.0
"""Metadata of the distribution, what its wheel holds, and benchmarks at small settings."""

from __future__ import annotations

import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from email import policy
from email.parser import Parser
from pathlib import Path

import pytest

import koala_adapter
from benchmarks.common import Row, lines_of
from koala_adapter.cli.manual import page_text, shipped
from koala_adapter.simulation.models import lublin
from koala_adapter.simulation.workload import Field, write_trace

# -- Holds setup.cfg and MANIFEST.in to the source tree; what they leave out is missing in installations only.


ROOT = Path(__file__).parents[2]
SETUP = ConfigParser(interpolation=None)
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")


def listed(section: str, option: str) -> list[str]:
    return [line for line in SETUP.get(section, option).splitlines() if line]


def packages() -> dict[str, Path]:
    found = {}
    for root, pattern in ((ROOT, "koala_adapter"), (ROOT / "plugins", "koala_*")):
        for top in root.glob(pattern):
            for init in top.rglob("__init__.py"):
                found[".".join(init.parent.relative_to(root).parts)] = init.parent
    return found


def test_every_data_file_is_listed() -> None:
    """Each file in a package that is not Python source is matched by a pattern of package_data."""
    missed: list[str] = []
    for name, folder in packages().items():
        patterns = listed("options.package_data", "*")
        if SETUP.has_option("options.package_data", name):
            patterns += listed("options.package_data", name)
        data = [path for path in folder.iterdir() if path.is_file() and path.suffix not in {".py", ".pyc"}]
        missed += [str(path.relative_to(ROOT)) for path in data if not any(map(path.match, patterns))]
    assert missed == []


@pytest.mark.parametrize("distribution", sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")))
def test_distributions_of_their_own_name_what_is_there(distribution: str) -> None:
    """Each package that one lists is in its sources, with its marker of types, and each entry point names an object."""
    project = tomllib.loads((ROOT / "plugins" / distribution / "pyproject.toml").read_text(encoding="utf-8"))
    listed, source = project["tool"]["setuptools"]["packages"], ROOT / "plugins" / distribution / "src"
    assert set(listed) == {path.parent.name for path in source.glob("*/*.py")}
    assert [name for name in listed if name.isidentifier() and not (source / name / "py.typed").is_file()] == []
    for group, named in project["project"].get("entry-points", {}).items():
        for name, value in named.items():
            module, _, attribute = value.partition(":")
            text = (source / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
            assert re.search(rf"^(def )?{attribute}\b", text, re.MULTILINE), f"{group}: {name}"


def test_every_top_package_carries_its_types() -> None:
    """Each package at the top has the marker that lets type checkers use its annotations."""
    tops = [folder for name, folder in packages().items() if "." not in name]
    assert [str(folder) for folder in tops if not (folder / "py.typed").is_file()] == []


def test_versions_in_the_manual_are_the_present_one() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    shown = {found for page in pages for found in re.findall(r"(?:koala, version|koala-adapter:) (\d[\d.]*\d)", page)}
    assert shown == {koala_adapter.__version__}


def test_minimal_environment_runs_with_the_lower_bounds() -> None:
    """The versions that tox installs for "minimal" are the lower bounds that users are promised."""
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    pinned = [line.replace("==", ">=") for line in tox.get("testenv:minimal", "deps").splitlines() if line]
    extras = [one for extra in ("figures", "web") for one in listed("options.extras_require", extra)]
    assert pinned == sorted(listed("options", "install_requires") + extras)


def test_tests_that_an_environment_runs_by_name_are_there() -> None:
    """Pytest runs none at all when one that it is given is missing."""
    named = re.findall(r"tests/[\w/.:]+", (ROOT / "tox.ini").read_text(encoding="utf-8"))
    assert "tests/unit/config" in named
    for path, _, test in (one.partition("::") for one in named):
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), test


PACKAGING = ROOT / "packaging"
VERSION = {
    "debian/changelog": "koala-adapter ({}) ",
    "recipe.yaml": 'version: "{}"',
    "spack/spack_repo/koala/packages/py_koala_adapter/package.py": 'version("{}")',
}
NEEDED = {
    "recipe.yaml": r"^    - ([a-z_]+) >=([\d.]+)$",
    "spack/spack_repo/koala/packages/py_koala_adapter/package.py": r'^        depends_on\("py-([a-z-]+)@([\d.]+):"\)$',
}


@pytest.mark.parametrize("recipe", VERSION)
def test_recipes_have_the_present_version(recipe: str) -> None:
    text = (PACKAGING / recipe).read_text(encoding="utf-8")
    assert VERSION[recipe].format(koala_adapter.__version__) in text


@pytest.mark.parametrize("recipe", NEEDED)
def test_recipes_need_what_the_wheel_needs(recipe: str) -> None:
    text = (PACKAGING / recipe).read_text(encoding="utf-8")
    found = {f"{name.replace('_', '-')}>={bound}" for name, bound in re.findall(NEEDED[recipe], text, re.MULTILINE)}
    assert found - {"python>=3.11", "setuptools>=77"} == set(listed("options", "install_requires"))


# -- What a wheel is made of: the package, what messages refer to, the manual pages, and what package indexes show.


SLURM = ROOT / "plugins" / "koala_slurm"


def test_a_wheel_has_what_messages_refer_to(tmp_path: Path) -> None:
    """Built of a copy, so that nothing is written into the sources; the copy then has nothing but what was built."""
    names = ("conf", "docs", "examples", "koala_adapter", "plugins", "man")
    for name in (*names, "setup.py", "setup.cfg", "README.md", "LICENSE"):
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


# -- Benchmarks run at small settings; those that are cut off leave nothing behind, and none waits for ever.

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIVENESS = 120.0
"""Seconds within which anything that is expected must have happened; on a busy machine, too."""
BENCHMARK = """
import subprocess, sys, tempfile, time
sys.path.insert(0, {directory!r})
import cutoff
cutoff.begin({limit})
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
apart = {{"stdout": subprocess.DEVNULL, "start_new_session": True}}
named = subprocess.Popen([*sleep, tempfile.gettempdir()], env={{}}, **apart)
heir = subprocess.Popen(sleep, **apart)
try:
    print(named.pid, heir.pid, tempfile.gettempdir(), flush=True)
    while True:  # one long sleep would not see a signal that comes in the moment before it
        time.sleep(0.1)
finally:
    print("cleaned up", flush=True)
"""


def ended(pid: int) -> bool:
    """Wait until a process has ended; tell whether it has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LIVENESS)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("how", "limit", "cleans"),
    [(signal.SIGINT, 600, True), (signal.SIGTERM, 600, True), (signal.SIGKILL, 600, False), (None, 1, True)],
)
def test_nothing_is_left_of_a_benchmark_that_is_cut_off(
    how: signal.Signals | None, limit: int, *, cleans: bool
) -> None:
    """Neither what names its directory in its command line nor what has its environment, nor the directory."""
    program = BENCHMARK.format(directory=str(BENCHMARKS), limit=limit)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        *pids, directory = process.stdout.readline().split()
        if how is not None:
            process.send_signal(how)
        assert process.wait(LIVENESS) != 0
        assert ("cleaned up" in process.stdout.read()) is cleans
    assert all(ended(int(pid)) for pid in pids)
    while Path(directory).exists():
        select.select([], [], [], 0.05)


SMALL = """
commands history --jobs 20 --repeat 1
agents many --agents 10 --clients 1
agents start --sizes 1 --repeat 1
scheduler decisions --clusters 2 --jobs 10,20 --repeat 1
scheduler snapshots --placeholders 1000 --repeat 1
scheduler month --jobs 200 --clusters 2 --processors 64
queues easy TRACE --repeat 1
queues looks --waiting 50 --running 20 --repeat 1
negotiation wish --repeat 2
negotiation points --repeat 2 --calls 100
tasks handed-out --tasks 50 --pullers 2 --repeat 1
wiki codec --nodes 20 --jobs 20 --repeat 1
"""
"""Benchmarks that need no batch system, with the smallest settings."""
NIGHTLY = (
    *("agents many", "negotiation wish", "queues easy"),
    *("scheduler decisions", "scheduler snapshots"),
)
"""Those that are left to the night: another one of their module is run by day."""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(line.split(), id=line, marks=pytest.mark.nightly if line.startswith(NIGHTLY) else ())
        for line in SMALL.split("\n")
        if line
    ],
)
def test_a_benchmark_gives_numbers(words: list[str], tmp_path: Path) -> None:
    trace = tmp_path / "small.swf.gz"
    jobs = lublin(100, seed=1, processors=64)
    columns = {Field.JOB: jobs.ids, Field.SUBMITTED: jobs.submits, Field.RUN: jobs.runs, Field.ALLOCATED: jobs.sizes}
    write_trace(trace, ["; MaxProcs: 64"], columns)
    module, *options = [str(trace) if word == "TRACE" else word for word in words]
    command = [sys.executable, "-m", f"benchmarks.{module}", *options, "--json"]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    assert all(isinstance(value, (str, int, float)) for row in rows for value in row.values())


def test_the_rows_of_a_benchmark_as_a_table() -> None:
    """Text stands left, numbers right; other columns have a heading of their own; what is not known is a dash."""
    rows: list[Row] = [{"": "a", "s": 1234.5}, {"": "long", "s": 0.01234}, {"ms": math.nan}]
    assert lines_of(rows) == ["           s", "a      1,234", "long  0.0123", "", "ms", " -"]


TEST_MODULES = re.compile(r"^\s*(?:from|import)\s+(?:tests\.)?(?:\w+\.)*(?:test_\w+|conftest)\b", re.MULTILINE)


def test_no_benchmark_imports_tests() -> None:
    """What both use is in modules of its own: a benchmark must not change with the tests of something else."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(BENCHMARKS.glob("*.py"))}
    assert len(texts) > 10
    assert [name for name, text in texts.items() if TEST_MODULES.search(text)] == []
    for line in ("from tests.unit.scheduler.test_state import record", "import tests.conftest"):
        assert TEST_MODULES.search(line)
