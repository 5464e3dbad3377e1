# SPDX-License-Identifier: Apache-2.0
"""What the job script says to the agent."""

import os
import stat
import time

from koala_adapter.vjm.agent.node import clock, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

GRACE = 5.0  # seconds between SIGTERM and SIGKILL when nobody said how many


class FatalError(Exception):
    """The agent has nothing to work with; the text goes to the placeholder's stderr."""


class Settings:
    """What the job script says to the agent, and what the agent finds on its node."""

    def __init__(self, given: "Dict[str, Any]", environment: "Dict[str, str]") -> None:
        self.host: str = given["host"]
        self.port: int = given["port"]
        self.fingerprint: str = given["fingerprint"].lower()
        self.batch: str = given["batch"]
        self.lease: float = given["lease"]
        self.end_margin: float = given["end_margin"]
        self.token: str = given["token"] or read_token(given["token_file"])
        index = environment.get(given["array_index_variable"] or "", "")
        self.index = int(index) if index.isdigit() else 1
        self.lrm_id = word(environment.get(given["job_id_variable"] or "", ""))
        self.ends_at = self._end(given["walltime"], environment)

    @staticmethod
    def _end(walltime: "Optional[float]", environment: "Dict[str, str]") -> "Optional[float]":
        # The LRM may have started its clock before us (prolog), or give less than was asked: the earlier end counts.
        ends = [walltime] if walltime else []
        start, end = (environment.get(f"SLURM_JOB_{name}_TIME", "") for name in ("START", "END"))
        if end.isdigit():
            left = int(end) - time.time()
            if start.isdigit() and not 0 <= left <= int(end) - int(start):
                # The clock of this node is not that of Slurm's controller: what was granted begins now.
                left = int(end) - int(start)
            ends.append(max(0.0, left))
        return clock() + min(ends) if ends else None


def read_token(path: str) -> str:
    """Return the token in a file that nobody else can have read or written."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise FatalError(f"cannot read the token file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise FatalError(f"the token file {path} must be a file of mode 0600 that belongs to user {os.geteuid()}")
        return file.read(1024).decode("ascii", "replace").strip()
