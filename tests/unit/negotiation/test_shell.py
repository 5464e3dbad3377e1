# SPDX-License-Identifier: Apache-2.0
"""A shell and nc negotiate, as docs/negotiation.md shows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from anyio import run_process

from tests.unit.negotiation.templates import CPU
from tests.unit.negotiation.test_peerlistener import Manager, listening

pytestmark = [pytest.mark.real("nc"), pytest.mark.anyio]

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "examples" / "negotiation" / "evolving.sh"


async def test_a_shell_negotiates() -> None:
    """14 are asked for, 6 are idle, 6 are taken and allocated; and then none are left."""
    assert f"{{literalinclude}} ../{PROGRAM.relative_to(ROOT)}" in (ROOT / "docs" / "negotiation.md").read_text("utf-8")
    async with listening(Manager()) as manager:
        for said, code in (
            ("NT_NEGOTIATION: 6 processors\nNT_COMMITTED: 6 processors\nNT_CONSUMED: 6 processors\n", 0),
            ("NT_REJECTED: 14 processors\n", 1),
        ):
            asking = [str(PROGRAM), "127.0.0.1", str(manager.port), manager.tokens.issue("evolving"), "14"]
            manager.endpoints.clear()
            done = await run_process(asking, check=False, env={"PATH": os.environ["PATH"]})
            assert (done.stdout.decode(), done.stderr, done.returncode) == (said, b"", code)
        assert manager.book.available(CPU) == 0
