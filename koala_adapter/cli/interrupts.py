# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment, and yet never in the middle of what would leave a job, a thread or a process behind."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from koala_adapter.cli.terminal import hangup_once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Self


class Interrupts:
    """Has Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, but not where that would lose track of something."""

    def __init__(self) -> None:
        """Nothing is changed before the block."""
        self._former: dict[signal.Signals, signal._HANDLER] = {}
        self._deferred = False
        self._pending = False

    def __enter__(self) -> Self:
        """Take over the signals."""
        handlers = {signal.SIGINT: self._handle, signal.SIGTERM: self._handle, signal.SIGHUP: hangup_once(self._handle)}
        for number, handler in handlers.items():
            self._former[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block come to its end first; an interrupt meanwhile is raised then."""
        former, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = former
        self._deliver()

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Inside a block that puts them off: a part that an interrupt may end."""
        former, self._deferred = self._deferred, False
        try:
            self._deliver()
            yield
        finally:
            self._deferred = former

    def _deliver(self) -> None:
        if self._pending and not self._deferred:
            self._pending = False
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._pending = True
        self._deliver()
