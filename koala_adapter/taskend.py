# SPDX-License-Identifier: Apache-2.0
"""How a process on a node ended, as its agent tells it."""

from __future__ import annotations

from dataclasses import dataclass

from koala_adapter.endreason import EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """How a process that an agent ran came to its end."""

    reason: EndReason
    exit_code: int | None = None
    """Exit status when the process exited."""
    signal: int | None = None
    """Signal number when it was killed by one."""
    detail: str = ""

    @property
    def ok(self) -> bool:
        """True only for exit status 0."""
        return self.reason is EndReason.EXITED and self.exit_code == 0

    @property
    def status(self) -> int:
        """Exit status as a shell would show it: the code, or 128 + signal; 1 when neither is known."""
        if self.exit_code is not None:
            return self.exit_code
        return 128 + self.signal if self.signal is not None else 1
