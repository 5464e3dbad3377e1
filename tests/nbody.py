# SPDX-License-Identifier: Apache-2.0
"""The n-body programs of examples/nbody, with their job files, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples" / "nbody"
BODIES, STEPS, REST = 24, 60, 0.05
ALONE = "80d4b84fd0b2f561a9293eb6d2179697c8c13403447ca32891ba7b84281f9aae"
"""SHA-256 of the bodies after those steps, in whatever number of processes."""


def write_nbody(directory: Path, name: str, *changes: tuple[str, str], rest: float = REST, steps: int = STEPS) -> str:
    """Return the path of a job file as it is shipped, but for its length and for what is replaced in it."""
    for program in EXAMPLES.glob("*.py"):
        (directory / program.name).write_bytes(program.read_bytes())
    (directory / "authkey").write_bytes(b"of this test")
    text = (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8")
    for old, new in (('"64", "300", "0.05"', f'"{BODIES}", "{steps}", "{rest}"'), *changes):
        assert old in text, old
        text = text.replace(old, new)
    path = directory / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def sizes_and_digest(printed: str) -> tuple[list[int], str]:
    """Return on how many processes a program was, and what it ended with."""
    digests = re.findall(r"^step \d+: SHA-256 ([0-9a-f]{64})$", printed, re.MULTILINE)
    sizes = re.findall(r"^step \d+: (\d+) processes at [0-9.]+$", printed, re.MULTILINE)
    return [int(one) for one in sizes], digests[-1] if digests else ""
