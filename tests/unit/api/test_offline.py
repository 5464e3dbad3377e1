# SPDX-License-Identifier: Apache-2.0
"""What commands do by themselves where no service runs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from koala_adapter.api.offline import end_daemon

if TYPE_CHECKING:
    from pathlib import Path

WAIT = "import sys; print(flush=True); sys.stdin.read()"


def test_only_the_daemon_of_a_directory_is_ended(tmp_path: Path) -> None:
    """A process that has got the id of one that was killed goes on; the daemon's command line names its directory."""
    for argument, ended in ((tmp_path / "other", False), (tmp_path, True)):
        with subprocess.Popen(
            [sys.executable, "-c", WAIT, str(argument)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            (tmp_path / "pid").write_text(str(process.pid))
            end_daemon(tmp_path)
            if ended:
                assert process.wait() < 0
            process.communicate()
            assert (process.returncode < 0) is ended
