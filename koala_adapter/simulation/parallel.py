# SPDX-License-Identifier: Apache-2.0
"""Runs independent simulations on all cores, tells how far they are, and leaves no process behind when interrupted."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Protocol, TypeVar

from koala_adapter.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")


class Progress(Protocol):
    """Who wants to know how far a run is."""

    def __call__(self, done: int, total: int, what: str, /) -> None:
        """Hear that ``done`` of ``total`` parts of ``what`` are there."""


def silent(done: int, total: int, what: str, /) -> None:
    """Tell nobody."""


def in_parallel(function: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[tuple[int, R]]:
    """Yield index and result for each item as it becomes ready.

    With more than one process, ``function`` must be found by name at the top of a module, and items and results must
    be picklable. Closing the iterator, or an exception such as KeyboardInterrupt, ends the processes at once.
    Raises SimulationError when a process dies.
    """
    if min(processes, len(items)) <= 1:
        for index, item in enumerate(items):
            yield index, function(item)
        return
    before = set(multiprocessing.active_children())
    # A process that is forked would inherit our threads' locks; a spawned one begins clean.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(items)), mp_context=context, initializer=_leave_interrupts) as pool:
        try:
            futures = {pool.submit(function, item): index for index, item in enumerate(items)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            message = "a process of the simulation ended before its time"
            raise SimulationError(message, hint="it may have run out of memory: try --processes 1") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            raise


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which the terminal sends to every process, to the one that started us; it ends us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
