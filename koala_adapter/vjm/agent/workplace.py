# SPDX-License-Identifier: Apache-2.0
"""What the tasks of a placeholder share on its node: a private directory, a guard over it, and what waits on it."""

import collections
import os
import selectors

from koala_adapter.vjm.agent.directories import Removal, claim_directory, remove_tree
from koala_adapter.vjm.agent.guard import Guard
from koala_adapter.vjm.agent.node import clock, random_name
from koala_adapter.vjm.agent.timers import Timers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Iterator, Optional, Tuple

SLICE = 0.05  # seconds


class Workplace:
    """Makes directories for tasks, and removes them little by little."""

    def __init__(
        self, selector: selectors.BaseSelector, timers: Timers, batch: str, ending: "Optional[Tuple[str, str]]"
    ) -> None:
        self.selector = selector
        self.timers = timers
        self.guard = Guard(batch)
        self.ending = ending  # reason and detail, once the placeholder must go
        self._directory: "Optional[str]" = None
        self._directories = 0
        self._lock: "Optional[int]" = None
        self._removals: "Deque[Iterator[None]]" = collections.deque()
        self._cleared = False

    def new_directory(self) -> str:
        """Return a new private directory for a task."""
        if self._directory is None:
            place = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a new directory with a random name and mode 0700
            directory = os.path.join(place, "koala-" + random_name())
            os.mkdir(directory, 0o700)
            self._directory = directory
            self._lock = claim_directory(directory)
            self.guard.start(directory, self._lock)
        self._directories += 1
        path = os.path.join(self._directory, str(self._directories))
        os.mkdir(path, 0o700)
        return path

    def remove(self, directory: str) -> None:
        """Remove a directory little by little: it may hold so much that nobody would hear of us meanwhile."""
        self._removals.append(Removal(directory).steps())
        if len(self._removals) == 1:
            self._remove_some()

    def clear(self) -> None:
        """Begin to remove all directories."""
        if self._directory and not self._cleared:
            self._cleared = True
            self.remove(self._directory)

    def finish(self) -> None:
        """Remove what is left of all directories."""
        for steps in self._removals:
            for _ in steps:
                pass
        if self._directory:
            remove_tree(self._directory)
            if not os.path.lexists(self._directory):
                self.guard.dismiss()

    def _remove_some(self) -> None:
        until = clock() + SLICE
        while self._removals:
            for _ in self._removals[0]:
                if clock() > until:
                    self.timers.after(SLICE / 4, self._remove_some)
                    return
            self._removals.popleft()
