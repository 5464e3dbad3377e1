# SPDX-License-Identifier: Apache-2.0
"""How jobs ended according to the accounting database: the command line of sacct(1), and its rows as jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_slurm.listing import SEPARATOR, parse_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import LrmJob

FIELDS = (
    "JobID",
    "User",
    "State",
    "AllocCPUS",
    "Partition",
    "NodeList",
    "Submit",
    "Start",
    "End",
    "ExitCode",
    "JobName",
)


def sacct_command(jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that lists these jobs without their steps, over all times."""
    return (
        "sacct",
        "--noheader",
        "--allocations",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
        f"--format={','.join(FIELDS)}",
        f"--jobs={','.join(jobs)}",
    )


def parse_history(output: str) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing. Raises LrmUnavailableError for text that is no listing."""
    rows = (line.split(SEPARATOR, len(FIELDS) - 1) for line in output.splitlines() if line.strip())
    return tuple(parse_job(_as_listed(row)) for row in rows)


def _as_listed(row: Sequence[str]) -> list[str]:
    # The same fields as in the listing of squeue, without a reason; "CANCELLED by 1000" is one state with a reason.
    if len(row) != len(FIELDS):
        return list(row)
    word, _, by = row[2].partition(" ")
    return [*row[:2], word.removesuffix("+"), *row[3:10], by.removeprefix("by ") or "None", row[10]]
