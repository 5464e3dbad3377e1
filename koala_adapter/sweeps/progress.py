# SPDX-License-Identifier: Apache-2.0
"""How far a sweep is, as people and programs are told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """The tasks of a sweep, counted."""

    total: int
    done: int
    failed: int
    """Those that have failed as often as they may."""
    running: int
    """Those that launchers are at."""
    first_failed: tuple[int, ...] = ()
    """Numbers of the first that have failed."""
    seconds_left: float | None = None
    """Estimated; None: nobody can tell."""
    directory: str = ""
    """Where ``results.jsonl`` and the output of the tasks are."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done."""
        return self.done + self.failed == self.total


def where_output_is(progress: SweepProgress) -> str:
    """Return, for people, where to find what the tasks have printed."""
    task = progress.first_failed[0] if progress.first_failed else 0
    failed = ", which failed" if progress.first_failed else ""
    return (
        f"what its tasks print is in {progress.directory}/tasks, such as {task // 1000:03}/{task}.out and .err of task "
        f"{task}{failed}; {progress.directory}/results.jsonl tells what became of each"
    )


def said(progress: SweepProgress) -> str:
    """Return how a sweep has ended, in words."""
    if not progress.failed:
        return f"all {progress.total} tasks are done"
    named = ", ".join(map(str, progress.first_failed[:MOST_NAMED]))
    more = f" and {progress.failed - MOST_NAMED} more" if progress.failed > MOST_NAMED else ""
    noun = "task" if progress.failed == 1 else "tasks"
    return f"{progress.failed} of {progress.total} tasks failed: {noun} {named}{more}"
