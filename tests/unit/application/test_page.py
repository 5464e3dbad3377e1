# SPDX-License-Identifier: Apache-2.0
"""docs/adaptive.md, on the library: its examples run and print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from koala_adapter.application.shipping import install
from tests.unit.application.koala_end import LIVENESS

PAGE = (Path(__file__).parents[3] / "docs" / "adaptive.md").read_text(encoding="utf-8")
IN_PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```\n", re.MULTILINE | re.DOTALL)
IN_C = re.compile(r"^```c\n(?P<code>.*?)^```\n", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", list(IN_PYTHON.finditer(PAGE)), ids=["sizes", "the end of the walltime"])
def test_the_example_in_python_prints_what_the_page_says(tmp_path: Path, example: re.Match[str]) -> None:
    """It runs as it stands, beside the file that koala writes."""
    install(tmp_path)
    (tmp_path / "example.py").write_text(example["code"], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=LIVENESS,
        check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (example["output"], "")


@pytest.mark.real("cc")
def test_the_example_in_c_is_compiled_and_runs(tmp_path: Path) -> None:
    """Without a warning, and outside koala as one process."""
    install(tmp_path)
    (example,) = IN_C.finditer(PAGE)
    (tmp_path / "example.c").write_text(example["code"], encoding="utf-8")
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    sources = ["example.c", "koala_app.c", "koala_nt.c"]
    subprocess.run(["cc", *warnings, "-pthread", "-I.", "-o", "example", *sources], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "example"], env={}, capture_output=True, text=True, timeout=LIVENESS, check=True)
    assert done.stdout == "1000 steps, at last as 0 of 1\n"
