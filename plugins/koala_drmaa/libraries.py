# SPDX-License-Identifier: Apache-2.0
"""What each DRMAA library can do, in one table, and which of them one is. Pure; the helper process reads it, too.

DRMAA 1.0 promises more than some libraries keep. A capability that crashes or lies is not stated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

INDEX_VARIABLE = "KOALA_INDEX"
"""Where a placeholder that is a job of its own finds its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One library, and what is to be known of it."""

    name: str
    system: str
    seen: str
    """Releases with which all of this was seen."""
    mark: str
    """Expression for what it calls itself, or for where it lies (in lower case)."""
    native: tuple[str, ...]
    """Options for every placeholder, unless the site gives others."""
    walltime: str
    queue: str
    memory: str
    job_id_variable: str
    index_variable: str | None
    """Where an element of a bulk finds its number; None: it is told none."""
    tells_elements: bool
    """States of the elements of a bulk are told, and each can be changed by itself."""
    hold: bool
    suspend: bool
    tells_success: bool
    """Exit code 0 is a success; else it may be a job that was cancelled, stopped, or has left the system's memory."""
    ids: str
    confused: str
    sessions: str

    @property
    def bulk(self) -> bool:
        """Whether placeholders may go as one bulk where the library alone tells of them."""
        return self.index_variable is not None and self.tells_elements


ONE_SESSION = "one session in a process; calls one after another, in a helper process for each cluster"

GRID_ENGINE = Library(
    name="gridengine-drmaa",
    system="Grid Engine",
    seen="8.1.9",
    mark=r"\b(sge|oge|uge|ocs|age)\b|grid ?engine",
    native=("-r n",),
    walltime="-l h_rt={walltime}",
    queue="-q {queue}",
    memory="-l h_vmem={memory_mib}M",
    job_id_variable="JOB_ID",
    index_variable="SGE_TASK_ID",
    tells_elements=True,
    hold=True,
    suspend=True,
    tells_success=True,
    ids="`123.4`",
    confused="`running` while the job is on its way to its node",
    sessions=f"{ONE_SESSION}; needs room for jemalloc when it is loaded, which the helper makes",
)
SLURM = Library(
    name="slurm-drmaa",
    system="Slurm",
    seen="1.1.6 with Slurm 22.05",
    mark=r"slurm",
    # Requeue=1 is the default, and a placeholder that starts twice would show up as a stranger.
    native=("--no-requeue",),
    # Its field is hours:minutes, and minutes may be more than 59.
    walltime="--time=0:{walltime_minutes}",
    queue="--partition={queue}",
    memory="--mem={memory_mib}",
    job_id_variable="SLURM_JOB_ID",
    index_variable="SLURM_ARRAY_TASK_ID",
    tells_elements=False,
    hold=True,
    suspend=False,
    tells_success=False,
    ids="`123`, `123_4` of a bulk",
    confused="waiting elements of a bulk are `undetermined`, also when they are cancelled, and releasing one releases "
    "all; jobs that Slurm has forgotten are `done` or `failed`; suspending crashes it",
    sessions=f"{ONE_SESSION}; its control requests all fail with InternalException, so that their wording decides",
)
PBS = Library(
    name="pbs-drmaa",
    system="PBS",
    seen="1.0.19 with OpenPBS 23.06",
    mark=r"pbs|torque",
    # Without -S it starts a login shell of the user's, whose profile may be long, or wait for something.
    native=("-r n", "-S /bin/sh"),
    walltime="-l walltime={walltime}",
    queue="-q {queue}",
    memory="-l mem={memory_mib}mb",
    job_id_variable="PBS_JOBID",
    index_variable=None,
    tells_elements=True,
    hold=True,
    suspend=False,
    tells_success=False,
    ids="`123.server`, of a bulk, too",
    confused="a job that was suspended (SIGSTOP) counts as finished with 0 and stays stopped; jobs that PBS has "
    "forgotten are `done` or `failed`",
    sessions=f"{ONE_SESSION}; it aborts where the server is down, and at a bulk for a queue that is not there",
)
OTHER = Library(
    name="another",
    system="another",
    seen="none",
    mark=r"",
    native=(),
    walltime="",
    queue="",
    memory="",
    job_id_variable="JOB_ID",
    index_variable=None,
    tells_elements=False,
    hold=True,
    suspend=False,
    tells_success=False,
    ids="",
    confused="nothing is known of it: the settings say how walltime, queue and memory are asked for",
    sessions=ONE_SESSION,
)
LIBRARIES = (SLURM, PBS, GRID_ENGINE, OTHER)


def library_of(*words: str) -> Library:
    """Return the library that calls itself so, or lies there; OTHER for one that is not known."""
    text = " ".join(words).lower()
    return next(library for library in LIBRARIES if re.search(library.mark, text))
