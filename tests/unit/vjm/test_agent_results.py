# SPDX-License-Identifier: Apache-2.0
"""The files that a task left are looked for in short steps, between which the agent does all else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.vjm.agent.results import STEP, Results

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_looked_for_in_steps(tmp_path: Path) -> None:
    """On a slow file system many take long, and an agent that is silent meanwhile would be given up.

    Nothing is sent, and the directory is kept, until it is known what there is; also over a new connection.
    """
    for number in range(5 * STEP):
        (tmp_path / str(number)).write_text("x")
    results = Results("1:0", str(tmp_path), {"output_files": ["*"], "working_directory": None}, {})
    steps = 0
    for _ in results.collect():
        steps += 1
        assert results.has_files
        assert results.next() is None
        results.rewind()
        assert results.next() is None
    assert steps == 5
    sent = 0
    while (message := results.next()) is not None:
        assert message["kind"] == "file"
        results.acknowledge(message["number"], message["offset"] + 1, "")
        sent += 1
        if sent == 5 * STEP:
            break
    assert sent == 5 * STEP
    assert not results.has_files
    last = results.next()
    assert last is not None
    assert (last["kind"], last["arrived"]) == ("files", 5 * STEP)
