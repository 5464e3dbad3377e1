# SPDX-License-Identifier: Apache-2.0
"""docs/negotiation.md: its examples run and print what it says, and it leaves nothing out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from koala_adapter.application.shipping import NEGOTIATION_FILE_NAME, negotiation_file
from koala_adapter.negotiation import OTHER_SIDE, STATUSES, Resource, Template
from koala_adapter.negotiation.schema import EXTENSION, PUBLISHED, schema_path
from koala_adapter.negotiation.states import MESSAGES
from tests.unit.negotiation import templates

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "negotiation.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```\n", re.MULTILINE | re.DOTALL)
EXAMPLES = list(EXAMPLE.finditer(PAGE))


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_the_page_says(number: int, tmp_path: Path) -> None:
    """Each example runs as it stands, in a Python of its own, beside the file that koala writes."""
    example = EXAMPLES[number]
    (tmp_path / NEGOTIATION_FILE_NAME).write_text(negotiation_file(), encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", example["code"]], cwd=tmp_path, env={"PYTHONPATH": paths}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == (example["output"], "", 0)


def test_every_example_says_what_it_prints() -> None:
    assert len(EXAMPLES) == PAGE.count("```python\n") >= 3


def test_the_published_instance_is_shown() -> None:
    assert f"```xml\n{templates.PUBLISHED.decode()}```" in PAGE


def test_every_field_and_word_is_described() -> None:
    names = {
        name
        for path in (PUBLISHED, EXTENSION)
        for name in re.findall(r'<xs:(?:element|attribute) name="(\w+)"', schema_path(path).read_text(encoding="utf-8"))
    }
    words = [*OTHER_SIDE, *STATUSES, "NT_REQUIRED", "NT_OPTIONAL", "NT_NEGOTIABLE", "NT_FIXED"]
    words += ["grow", "shrink", "voluntary", "mandatory"]
    members = {*Template._fields, *Resource._fields}
    assert "Round" in names
    assert [name for name in (*names, *words, *members) if f"`{name}`" not in PAGE] == ["NT"] * ("`NT`" not in PAGE)
    assert [message for message in MESSAGES if message not in PAGE] == []
