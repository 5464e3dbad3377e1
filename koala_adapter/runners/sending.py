# SPDX-License-Identifier: Apache-2.0
"""Sends launches to agents, those with large input files a few at a time. Pure.

Each rank gets the files of its component in its own message: 500 ranks with a program of 5 MiB are more than 3 GiB of
messages, of which only so much may be in memory as is on its way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.runners.runner import AddressedLaunch

IN_FLIGHT = 64 * 1024 * 1024
"""Bytes of files that may be on their way; a single launch may have more."""


class Sending:
    """The launches that wait to be sent, and those with files that were sent and have not arrived."""

    def __init__(self, order: Callable[[AddressedLaunch], bool]) -> None:
        """``order`` sends one launch; False when its agent is not connected: it is then sent when that registers."""
        self._order = order
        self._waiting: deque[AddressedLaunch] = deque()
        self._under_way: dict[str, tuple[PlaceholderId, int]] = {}
        self._bytes = 0
        self._pumping = False

    def add(self, launches: Iterable[AddressedLaunch]) -> None:
        """Send launches as soon as there is room for them."""
        self._waiting.extend(launches)
        self._pump()

    def arrived(self, task: str) -> None:
        """An agent has a launch: there is room for others."""
        self._drop([task])

    def lost(self, placeholder: PlaceholderId) -> None:
        """An agent is out of contact, and what was on its way to it is gone."""
        self._drop([task for task, (whose, _) in self._under_way.items() if whose == placeholder])

    def forget(self, job_id: JobId) -> None:
        """A job is over: none of its launches is wanted any more."""
        prefix = f"{job_id}:"
        self._waiting = deque(one for one in self._waiting if not one.launch.task.startswith(prefix))
        self._drop([task for task in self._under_way if task.startswith(prefix)])

    def _drop(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            _, size = self._under_way.pop(task, (None, 0))
            self._bytes -= size
        self._pump()

    def _pump(self) -> None:
        if self._pumping:  # an order that fails ends its job, which is then forgotten
            return
        self._pumping = True
        try:
            while self._waiting and (not self._bytes or self._bytes + _size(self._waiting[0]) <= IN_FLIGHT):
                one = self._waiting.popleft()
                if self._order(one) and (size := _size(one)):
                    _, before = self._under_way.get(one.launch.task, (None, 0))
                    self._under_way[one.launch.task] = (one.placeholder, size)
                    self._bytes += size - before
        finally:
            self._pumping = False


def _size(one: AddressedLaunch) -> int:
    return sum(len(file.content) for file in one.launch.files)
