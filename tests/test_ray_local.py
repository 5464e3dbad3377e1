# SPDX-License-Identifier: Apache-2.0
"""Ray on two local clusters: the example as it stands, whose nodes come, make room for another job, and come back."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.host.sockets import free_port
from tests.local_koala import Koala, eventually, processes_naming
from tests.taskqueue import EXAMPLE, expected_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.nightly
pytest.importorskip("ray", reason="Ray is not installed")
TASKS = 120


@pytest.fixture
def ray_directory() -> Iterator[Path]:
    """Give a directory for what Ray keeps: its sockets want a short path."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def write_raysquares(directory: Path, ray_directory: Path) -> Path:
    """Return the path of the example's job file in a directory, with fewer and shorter tasks on fewer nodes."""
    for name in ("raysquares.py", "raynode.py"):
        shutil.copy(EXAMPLE / name, directory)
    token = directory / "ray.token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef" * 4)
    text = (EXAMPLE / "raysquares.toml").read_text().replace('"200"', f'"{TASKS}"')
    own = {"RAYSQUARES_PORT": str(free_port()), "RAYSQUARES_SECONDS": "0.2", "RAY_TMPDIR": str(ray_directory)}
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in own.items())
    for old, new in (
        ('"python3"', json.dumps(sys.executable)),
        ("maximum = 20", "maximum = 2"),
        ("[environment]\n", f"[environment]\n{lines}"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = directory / "raysquares.toml"
    path.write_text(text)
    return path


def test_the_example_makes_room_and_loses_nothing(koala: Koala, ray_directory: Path) -> None:
    koala.serve()
    koala.inside("submit", str(write_raysquares(koala.directory, ray_directory)))
    eventually(lambda: sum(one.processors for one in koala.report("1").components) == 3)
    output = koala.state / "jobs" / "1" / "head"
    eventually((output / "0.out").exists)  # Ray takes its time to start
    koala.inside("submit", koala.job("sleep 1", name="rigid", processors=3))
    eventually(lambda: koala.report("1").over)
    report = koala.report("1")
    assert report.outcome is not None
    assert report.outcome.exit_code == 0, (report.outcome, (output / "0.err").read_text()[-3000:])
    assert any(one.reason == "room for job 2" and one.after < one.before for one in report.size_changes)
    lines = (output / "0.out").read_text().splitlines()
    assert expected_sum(TASKS) in lines
    squares = [line for line in lines if " squared is " in line]  # Ray has a line of its own now and then
    assert len(squares) == TASKS
    assert {line.rpartition(" ")[2] for line in squares} <= {"alpha", "beta"}
    eventually(lambda: koala.placeholders() == [])
    eventually(lambda: processes_naming(str(ray_directory)) == [])
