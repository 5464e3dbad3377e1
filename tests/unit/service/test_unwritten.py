# SPDX-License-Identifier: Apache-2.0
"""What is said of output that cannot be written; and a log that cannot be written, which ends nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from koala_adapter.cli.log import LogStream
from koala_adapter.model import JobId
from koala_adapter.service.applications import UnwrittenOutput

FULL = "No space left on device"
JOB = JobId("7")


def test_nothing_is_said_while_all_is_well() -> None:
    output = UnwrittenOutput()
    assert output.trouble(JOB, over=False) == ""
    assert output.note("8:0", "out", Path("/jobs/8/c1/0.out"), FULL)
    assert output.trouble(JOB, over=False) == ""
    output.written("8:0", "out")
    assert output.trouble(JobId("8"), over=False) == ""


def test_each_file_counts_once_and_news_are_told_once() -> None:
    """A full disk meets many ranks; one file and one reason are enough to know where to look."""
    output = UnwrittenOutput()
    for rank, others in enumerate(["", " and 1 other file", " and 2 other files"]):
        file = Path(f"/jobs/7/c1/{rank}.out")
        assert output.note(f"7:{rank}", "out", file, FULL)
        assert not output.note(f"7:{rank}", "out", file, FULL)
        assert f"cannot be written to /jobs/7/c1/0.out{others}: {FULL}." in output.trouble(JOB, over=False)
    assert output.note("7:0", "out", Path("/jobs/7/c1/0.out"), "Permission denied")


def test_of_a_job_that_is_over_it_is_said_what_is_missing() -> None:
    """Nothing is tried for ever; and what nobody asks for any more is forgotten."""
    output = UnwrittenOutput()
    output.note("7:launcher", "err", Path("/jobs/7/launcher.err"), FULL)
    assert (
        output.trouble(JOB, over=True) == f"The end of its output could not be written to /jobs/7/launcher.err: {FULL}."
    )
    output.keep_only([JobId("8")])
    assert output.trouble(JOB, over=True) == ""


def test_a_log_that_cannot_be_written_loses_lines_and_nothing_else() -> None:
    full = Path("/dev/full").open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 - its close is part of the test
    stream = LogStream(full)
    for _ in range(3):
        assert stream.write("a line\n") == 7
        stream.flush()
    with pytest.raises(OSError, match=FULL):
        full.close()
