# SPDX-License-Identifier: Apache-2.0
"""The contract has the capabilities that are asked for, and the manual's table has the same."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from koala_adapter.lrm import Capabilities

ROOT = Path(__file__).parents[3]
CONTRACT = ROOT / "koala_adapter" / "plugin" / "contract.py"
NAMES = [field.name for field in fields(Capabilities)]


def test_the_manual_lists_every_capability_and_no_other() -> None:
    """Table and contract agree, in the same order."""
    text = (ROOT / "docs" / "plugins.md").read_text()
    table = text.partition("## Capabilities")[2].partition("<!-- capabilities -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_capability_is_asked_for(name: str) -> None:
    """Somebody outside the contract and the plugins asks for it: the core, or the conformance kit for an operation."""
    asking = re.compile(rf"""\.{name}\b|need\("{name}"\)|: \("{name}",""")
    sources = [path for path in (ROOT / "koala_adapter").rglob("*.py") if path != CONTRACT]
    assert any(asking.search(path.read_text()) for path in sources)
