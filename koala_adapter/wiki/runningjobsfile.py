# SPDX-License-Identifier: Apache-2.0
"""Which jobs were running when a server last looked, kept on disk: their ends must be told also after a restart.

Grid Engine forgets a job at its end, and Maui never forgets one whose end it is not told (WIKI.md 6.3). A note that is
lost or damaged costs such an end, nothing else, so it is not forced to disk.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import structlog

from koala_adapter.model import LrmJob, LrmJobId, LrmJobState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

log = structlog.get_logger()


class RunningJobsFile:
    """The running jobs of one server, in one file of mode 0600."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path

    def save(self, jobs: Iterable[LrmJob]) -> None:
        """Keep these jobs instead of the ones before; that it fails is logged."""
        rows = [
            [job.id, job.user, job.processors, job.walltime, job.submitted_at, job.started_at, list(job.layout)]
            for job in jobs
        ]
        temporary = self._path.with_suffix(".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(rows, file)
            temporary.replace(self._path)
        except OSError as error:
            log.warning("running jobs cannot be kept for a restart", path=str(self._path), error=str(error))

    def load(self) -> tuple[LrmJob, ...]:
        """Return the jobs that were kept; none when there are none, or they cannot be read."""
        try:
            rows = json.loads(self._path.read_text())
            return tuple(
                LrmJob(
                    id=LrmJobId(str(id_)),
                    name="",
                    state=LrmJobState.RUNNING,
                    user=str(user),
                    processors=int(processors),
                    walltime=walltime,
                    submitted_at=submitted_at,
                    started_at=started_at,
                    layout=tuple((str(node), int(count)) for node, count in layout),
                )
                for id_, user, processors, walltime, submitted_at, started_at, layout in rows
            )
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError) as error:
            log.warning("the running jobs of an earlier server are not known", path=str(self._path), error=str(error))
            return ()
