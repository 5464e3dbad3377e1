# SPDX-License-Identifier: Apache-2.0
"""Looking for a secret where other users could see it: in the arguments and environments of processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class SecretWatcher:
    """Scans ``/proc/*/cmdline`` and ``/proc/*/environ`` without a pause while the ``with`` block runs."""

    def __init__(self, secret: str) -> None:
        """``secret`` must be long and random: it is looked for literally."""
        self.leaks: set[str] = set()
        """Where the secret was seen: ``PID cmdline`` or ``PID environ``, with the program's name."""
        self._secret = secret.encode()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="secret-watcher", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look a last time and end."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            last = self._ended.is_set()
            self._scan()
            if last:
                return

    def _scan(self) -> None:
        with os.scandir("/proc") as entries:
            pids = [entry.name for entry in entries if entry.name.isdigit() and int(entry.name) != os.getpid()]
        for pid in pids:
            for part in ("cmdline", "environ"):
                try:
                    seen = Path("/proc", pid, part).read_bytes()
                    name = Path("/proc", pid, "comm").read_text(errors="replace").strip()
                except OSError:
                    continue
                if self._secret in seen:
                    self.leaks.add(f"{pid} ({name}) {part}")
