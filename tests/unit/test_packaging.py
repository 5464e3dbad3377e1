# SPDX-License-Identifier: Apache-2.0
"""Metadata of the distribution and what its wheel holds."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from email import policy
from email.parser import Parser
from pathlib import Path

import pytest

import koala_adapter
from koala_adapter.cli.manual import page_text, shipped

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


def test_version_is_stated_where_the_build_reads_it() -> None:
    """The package states a version of three numbers, which setup.cfg takes over."""
    assert SETUP.get("metadata", "version") == "attr: koala_adapter.__version__"
    assert all(part.isdigit() for part in koala_adapter.__version__.split("."))


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
