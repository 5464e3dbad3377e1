# SPDX-License-Identifier: Apache-2.0
"""Independent simulations run on all cores, with progress, and no process left when interrupted."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Protocol, TypeVar

from koala_adapter.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableSequence, Sequence

T = TypeVar("T")
R = TypeVar("R")


class ProgressListener(Protocol):
    """Callback that is told the progress of a run."""

    def __call__(self, done: int, total: int, what: str, /) -> None:
        """Show that ``done`` of ``total`` parts of ``what`` are done."""


def silent(done: int, total: int, what: str, /) -> None:
    """Show no progress."""


def in_parallel(function: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[tuple[int, R]]:
    """Compute ``function`` of each item in several processes; yield (index, result) as each becomes ready.

    With more than one process, ``function`` must be found by name at the top of a module, and items and results must
    be picklable. Closing the iterator, or an exception such as KeyboardInterrupt, ends the processes at once.
    Raises SimulationError when a process dies.
    """
    if min(processes, len(items)) <= 1:
        for index, item in enumerate(items):
            yield index, function(item)
        return
    with _pool(min(processes, len(items)), _leave_interrupts) as pool:
        futures = {pool.submit(function, item): index for index, item in enumerate(items)}
        for future in as_completed(futures):
            yield futures[future], future.result()


@contextmanager
def _pool(size: int, begin: Callable[..., None], *arguments: object) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes that run ``begin`` first; an exception in the block ends them without waiting."""
    before = set(multiprocessing.active_children())
    # A process that is forked would inherit our threads' locks; a spawned one begins clean.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(size, mp_context=context, initializer=begin, initargs=arguments) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            message = "a process of the simulation ended before its time"
            raise SimulationError(message, hint="it may have run out of memory: try --processes 1") from error
        except BaseException:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            # The pool's thread is the only one to wait for them: of two, one may not learn that a process has ended.
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _leave_interrupts() -> None:
    """Ignore Ctrl-C in a child process: the terminal sends it to all, and the parent ends the children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class ProgressBoard:
    """Progress of several runs in memory shared by processes, with a flag that tells them to stop."""

    def __init__(self, runs: int) -> None:
        self.cells: MutableSequence[int] = RawArray("q", 2 * runs + 1)

    @property
    def progress(self) -> list[tuple[int, int]]:
        """Parts done and parts in all of each run, (done, total); total is 0 while a run does not know it."""
        return list(zip(self.cells[0:-1:2], self.cells[1:-1:2], strict=True))

    def stop(self) -> None:
        """Tell all runs to stop and return what they have."""
        self.cells[-1] = 1

    def mark(self, run: int) -> ProgressMark:
        """Return the entry of one run."""
        return ProgressMark(self.cells, run)


class ProgressMark:
    """Entry of one run on a progress board."""

    def __init__(self, cells: MutableSequence[int], run: int) -> None:
        self._cells = cells
        self._run = run
        self.told: Callable[[], None] | None = None

    def expect(self, total: int) -> None:
        """Set the number of parts in all."""
        self._cells[2 * self._run + 1] = total

    def __call__(self, done: int, /) -> bool:
        """Set the number of parts done; return whether the run should go on."""
        self._cells[2 * self._run] = done
        if self.told is not None:
            self.told()
        return not self._cells[-1]


_BOARD: ContextVar[ProgressBoard] = ContextVar("_BOARD")
"""The board that this process was given when it was started."""
LOOK = 0.1
"""Seconds between two looks at how far the runs are."""


def watched(
    function: Callable[[T, ProgressMark], R],
    items: Sequence[T],
    processes: int,
    progress: Callable[[ProgressBoard], None],
) -> Iterator[tuple[int, R]]:
    """Compute ``function`` of each item in several processes, with progress; yield (index, result) as ready.

    An interrupt has those that run return what they have so far; those that have not begun never do. A second one ends
    everything at once. For the rest as `in_parallel`.
    """
    board = ProgressBoard(len(items))
    if min(processes, len(items)) <= 1:
        for index, item in enumerate(items):
            mark = board.mark(index)
            mark.told = lambda: progress(board)
            yield index, function(item, mark)
        return
    with _pool(min(processes, len(items)), _join, board) as pool:
        futures = {pool.submit(_marked, function, item, index): index for index, item in enumerate(items)}
        pending = set(futures)
        stopped = False
        while pending:
            try:
                done, pending = wait(pending, timeout=LOOK)
                progress(board)
            except KeyboardInterrupt:
                if stopped:
                    raise
                stopped = True
                board.stop()
                pending = {future for future in pending if not future.cancel()}
                continue
            for future in sorted(done, key=futures.__getitem__):
                yield futures[future], future.result()


def _join(board: ProgressBoard) -> None:
    _leave_interrupts()
    _BOARD.set(board)


def _marked(function: Callable[[T, ProgressMark], R], item: T, run: int) -> R:
    return function(item, _BOARD.get().mark(run))
