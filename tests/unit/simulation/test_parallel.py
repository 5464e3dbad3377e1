# SPDX-License-Identifier: Apache-2.0
"""Simulations on several processes: the same results as on one, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import SimulationError
from koala_adapter.simulation.parallel import in_parallel, watched
from koala_experiments.framework import Options

if TYPE_CHECKING:
    from koala_adapter.simulation.parallel import ProgressBoard, ProgressMark


def square(number: int) -> int:
    """Return the square, later for small numbers."""
    time.sleep(0.02 / (1 + number))
    return number * number


def refuse(number: int) -> int:
    """Refuse one number."""
    if number == 1:
        raise SimulationError(f"not {number}", hint="another")
    return number


def die(number: int) -> int:
    """End the process without a word."""
    os._exit(number)


def count(number: int, mark: ProgressMark) -> tuple[int, bool]:
    """Count until told to stop; returns how far, and whether to the end."""
    mark.expect(number)
    for done in range(number):
        if not mark(done):
            return done, False
        time.sleep(0.001)
    mark(number)
    return number, True


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_of_the_items(processes: int) -> None:
    """Whoever is ready first, the results are in order, and progress is told from 0 to all."""
    told: list[tuple[int, int]] = []
    options = Options(processes=processes, progress=lambda done, total, _what: told.append((done, total)))
    assert options.map(square, range(6)) == [0, 1, 4, 9, 16, 25]
    assert told == [(done, 6) for done in range(7)]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_a_process_arrives_whole(processes: int) -> None:
    """Message and hint are those that were raised, and no process is left."""
    with pytest.raises(SimulationError, match="not 1") as caught:
        list(in_parallel(refuse, [0, 1, 2], processes))
    assert caught.value.hint == "another"
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_told_of() -> None:
    """A killed process is an error with a way out, not a wait for ever."""
    with pytest.raises(SimulationError, match="ended before its time"):
        list(in_parallel(die, [3, 4], 2))
    assert multiprocessing.active_children() == []


def test_an_abandoned_run_leaves_no_process() -> None:
    """Who does not want the rest of the results gets rid of the processes by closing the iterator."""
    runs = in_parallel(square, range(50), 2)
    next(runs)
    runs.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_runs_tell_how_far_they_are(processes: int) -> None:
    """The board shows each run's part of its whole, in the end all."""
    seen: list[list[tuple[int, int]]] = []
    results = dict(watched(count, [40, 90], processes, lambda board: seen.append(board.progress)))
    assert results == {0: (40, True), 1: (90, True)}
    assert seen
    assert all(done <= total for board in seen for done, total in board if total)


def test_an_interrupt_returns_what_there_is() -> None:
    """After Ctrl-C those that run return how far they came, those that have not begun never do."""
    interrupted = False

    def interrupt(board: ProgressBoard) -> None:
        nonlocal interrupted
        if not interrupted and min(done for done, _ in board.progress[:2]) > 0:
            interrupted = True
            signal.raise_signal(signal.SIGINT)

    results = dict(watched(count, [60_000, 60_000, 5], 2, interrupt))
    assert interrupted
    assert sorted(results)[:2] == [0, 1]
    assert all(0 < done < 60_000 and not whole for done, whole in (results[0], results[1]))
    assert multiprocessing.active_children() == []
