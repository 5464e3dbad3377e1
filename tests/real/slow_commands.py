# SPDX-License-Identifier: Apache-2.0
"""Commands of a batch system that pause where a test wants them to, so that the service can be killed just there.

The true command does its work; a script of the same name, earlier in PATH, waits before or after it, once.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Literal

from tests.real.systems.processes import PATIENCE, SYSTEM_PATH, wait_until

SCRIPT = """\
#!/bin/sh
# The first call pauses; the others are those of the true command.
if mkdir "{gate}" 2>/dev/null; then
    {before}
    "{true}" "$@" >"{gate}/answer"
    status=$?
    {after}
    cat "{gate}/answer"
    exit $status
fi
exec "{true}" "$@"
"""
PAUSE = ': >"{gate}/reached"; while [ ! -e "{go}" ]; do sleep 0.1; done'


class PausedCommand:
    """The first call of a command, which pauses until it is let go."""

    def __init__(self, directory: Path, command: str, *, when: Literal["before", "after"]) -> None:
        """Write the script into ``directory``, to be put at the head of PATH."""
        true = shutil.which(command, path=SYSTEM_PATH)
        if true is None:
            raise FileNotFoundError(command)
        self._gate = directory / f"{command}.gate"
        directory.mkdir(exist_ok=True)
        pause = PAUSE.format(gate=self._gate, go=self._gate.with_suffix(".go"))
        before, after = (pause, ":") if when == "before" else (":", pause)
        script = directory / command
        script.write_text(SCRIPT.format(gate=self._gate, true=true, before=before, after=after))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def wait_reached(self) -> None:
        """Return when the call pauses."""
        wait_until((self._gate / "reached").exists, seconds=PATIENCE, what="the command is called")

    def let_go(self) -> None:
        """Let the call go on, or pass if it has not come yet."""
        self._gate.with_suffix(".go").touch()
