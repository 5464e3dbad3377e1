# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md has each variable that the code names, and no other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from docs import variables

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PREFIX = "KOALA_"
NEW = f"{PREFIX}NEW"
"""Written so that this file does not name it."""
PAGE = variables.ROOT / "docs" / "environment.md"


def test_the_tables_are_those_of_the_code() -> None:
    """A variable that is new in the code has no meaning yet; one that is gone has one too many."""
    assert variables.problems() == []


def test_the_page_has_each_variable_once() -> None:
    """In one of its tables; `python docs/reference.py` writes them."""
    rows = re.findall(r"^\| `(KOALA_\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(name for group in variables.GROUPS.values() for name in group.meanings)


def test_names_are_found_where_they_are_used() -> None:
    """The rooms that name a variable are told; guards of header files are none."""
    found = variables.names_in(*variables.PACKAGES)
    assert "koala_adapter/runners" in found["KOALA_RANK"]
    assert found["KOALA_SITE"] >= {"koala_adapter/config"}
    assert not [name for name in found if name.endswith("_H")]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"code.py": f'os.environ["{NEW}"]'}, f"{NEW} has no meaning in docs/variables.py"),
        ({}, "KOALA_SITE is in docs/variables.py, and nothing sets or reads it"),
    ],
)
def test_what_does_not_agree_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: dict[str, str], problem: str
) -> None:
    """By the variable, and what is wrong with it."""
    _write(tmp_path / "koala_adapter", written.items())
    for place in ("plugins", "tests"):
        (tmp_path / place).mkdir()
    (tmp_path / "tox.ini").touch()
    monkeypatch.setattr(variables, "ROOT", tmp_path)
    assert problem in variables.problems()
    with pytest.raises(ValueError, match=r"docs/variables\.py"):
        variables.table("koala")


def _write(directory: Path, files: Iterable[tuple[str, str]]) -> None:
    directory.mkdir()
    for name, text in files:
        (directory / name).write_text(text, encoding="utf-8")
