# SPDX-License-Identifier: Apache-2.0
"""Holds setup.cfg and MANIFEST.in to the source tree; what they leave out is missing in installations only."""

from __future__ import annotations

import re
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

import koala_adapter

ROOT = Path(__file__).parents[2]
SETUP = ConfigParser(interpolation=None)
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")


def listed(section: str, option: str) -> list[str]:
    """Return the lines of an option that holds one item on each."""
    return [line for line in SETUP.get(section, option).splitlines() if line]


def packages() -> dict[str, Path]:
    """Return the folders of all packages in the source tree by the name of the package."""
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
    """Outputs in the manual name the version that the package states."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    shown = {found for page in pages for found in re.findall(r"(?:koala, version|koala-adapter:) (\d[\d.]*\d)", page)}
    assert shown == {koala_adapter.__version__}


def test_minimal_environment_runs_with_the_lower_bounds() -> None:
    """The versions that tox installs for "minimal" are the lower bounds that users are promised."""
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    pinned = [line.replace("==", ">=") for line in tox.get("testenv:minimal", "deps").splitlines() if line]
    assert pinned == sorted(listed("options", "install_requires") + listed("options.extras_require", "figures"))
