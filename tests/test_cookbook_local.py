# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/cookbook.md do what they promise, as they stand, on local clusters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import koala_adapter as koala
from koala_adapter.cli.koala import koala as command_line
from tests.local_koala import LIVENESS

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text(encoding="utf-8")
RECIPE = re.compile(r"^## (?P<title>.+)\n(?P<body>(?:(?!^## ).*\n)*)", re.MULTILINE)
RECIPES = {match["title"]: match["body"] for match in RECIPE.finditer(PAGE)}
MARKED = re.compile(r"<!-- (?P<mark>[^>]+) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = {
    "A sweep": [],
    "An array": [f"c1/{rank}: part {rank} of 3" for rank in range(3)],
    "A notebook": ["hello"],
    "Data staging": ["staged"],
    "Dependent jobs": ["all of part 1 part 2", "c1/0: computed 0", "c1/1: computed 1", "prepared", "summed"],
}
"""What the recipes of a title print on standard output, without empty lines, in order of the alphabet."""
SWEPT = {
    "A sweep": ["10", "14", "15", "21", "5", "7"],
    "An array": ["task 1: Delft", "task 2: Vienna", "task 3: Leiden"],
}
"""What the tasks of its sweep print."""


@pytest.fixture(scope="module")
def site() -> Iterator[koala.Site]:
    """Give two local clusters with a service, so that no command is one itself."""
    with koala.local_site() as one:
        one.begin_service()
        yield one


def tried(title: str, mark: str, site: koala.Site, directory: Path) -> str:
    """Run what is marked so in a recipe, with its files beside it, and return what it prints."""
    programs = directory / "bin"
    programs.mkdir()
    (programs / "koala").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m koala_adapter.cli "$@"\n')
    (programs / "koala").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KOALA_SITE": str(site.file),
        "KOALA_STATE": str(site.directory),
    }
    printed = ""
    for piece in MARKED.finditer(RECIPES[title]):
        if piece["mark"].startswith("file: "):
            (directory / piece["mark"].removeprefix("file: ")).write_text(piece["text"])
        elif piece["mark"] == mark:
            command = ["/bin/sh", "-e"] if piece["language"] == "sh" else [sys.executable]
            done = subprocess.run(
                [*command, "-c", piece["text"]],
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIVENESS * 3,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed += done.stdout
    return printed


@pytest.mark.parametrize("title", PRINTED)
@pytest.mark.timeout(400)
def test_a_recipe_does_what_it_promises(title: str, site: koala.Site, tmp_path: Path) -> None:
    """What is marked to be run runs, in order, and prints what it is said to."""
    before = {handle.id for handle in site.jobs()}
    printed = tried(title, "run", site, tmp_path)
    assert sorted(line for line in printed.splitlines() if line) == PRINTED[title]
    new = [handle.report() for handle in site.jobs() if handle.id not in before]
    assert new
    assert {report.state for report in new} == {koala.JobState.COMPLETED}
    if title in SWEPT:
        outputs = (Path(new[0].output_directory) / "sweep" / "tasks").glob("*/*.out")
        assert sorted(output.read_text().strip() for output in outputs) == SWEPT[title]
    if title == "Data staging":
        assert (Path(new[0].output_directory) / "c1" / "0" / "sorted.txt").read_text() == "1\n2\n3\n"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_recipe_for_dask(site: koala.Site, tmp_path: Path) -> None:
    """It is what prints the sum of the squares."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'koala-adapter[dask]'")
    assert tried("Dask", "run: dask", site, tmp_path).split() == ["285"]


def test_gpus_are_asked_for(tmp_path: Path) -> None:
    """The cluster of the recipe submits with the queue and the directive of GPU nodes, the other one without."""
    (text,) = TOML.findall(RECIPES["GPU nodes"])
    (tmp_path / "site.toml").write_text(text)
    (tmp_path / "job.toml").write_text('walltime = "1m"\n[[components]]\ncommand = ["true"]\nprocessors = 1\n')
    asked = {}
    for cluster in ("alpha", "alphagpu"):
        words = ["--site", str(tmp_path / "site.toml"), "script", str(tmp_path / "job.toml"), "--cluster", cluster]
        asked[cluster] = CliRunner().invoke(command_line, words).output
    for option in ("--gres=gpu:1", "--partition=gpu"):
        assert option in asked["alphagpu"]
        assert option not in asked["alpha"]


def test_every_recipe_is_one_of_ten() -> None:
    """Those that nothing runs here are job and site files, which are read by the tests of the manual, and programs."""
    assert len(RECIPES) == 10
    rest = {title for title, body in RECIPES.items() if "<!-- run" not in body}
    assert rest == {"MPI over three clusters", "GPU nodes", "Containers", "My site forbids arrays"}
