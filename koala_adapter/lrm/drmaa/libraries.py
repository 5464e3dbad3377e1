# SPDX-License-Identifier: Apache-2.0
"""DRMAA libraries: their capabilities in one table, and the errors that their complaints are.

DRMAA 1.0 promises more than some libraries keep; a capability that crashes or gives wrong answers is not stated. The
module only computes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnsupportedError
from koala_adapter.lrm.drmaa.complaints import FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping


# -- Capabilities of each library, and recognizing a library -------------------------------------------------

INDEX_VARIABLE = "KOALA_INDEX"
"""Where a placeholder that is a job of its own finds its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A DRMAA library with its known properties."""

    name: str
    system: str
    seen: str
    """Releases with which all of this was seen."""
    places: tuple[str, ...] = ()
    """Patterns of the files where sites put it."""
    mark: str
    """Expression for what it calls itself, or for where it lies (in lower case)."""
    native: tuple[str, ...]
    """Options for every placeholder, unless the site gives others."""
    walltime: str
    queue: str
    memory: str
    slots: tuple[tuple[str, str], ...] = ()
    """How keys of a slot are asked for, as in [clusters.map]; of those that are not here the site must say it."""
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
    least_version: tuple[int, int, int] | None = None
    """The first release that is trusted with submissions of a cluster that is read by commands; None: all are."""
    not_chosen: str = ""
    """Why such a cluster does not use it unless its site says so; empty where it does."""
    reserved: frozenset[str]
    """Native options that change names, numbers or moments of jobs: what koala sets, and finds its jobs by."""

    @property
    def bulk(self) -> bool:
        """Whether placeholders may be submitted as one bulk job when only the library tells of their ends."""
        return self.index_variable is not None and self.tells_elements


def _usual_places(name: str) -> tuple[str, ...]:
    roots = (f"/usr/lib/{name}", f"/usr/local/{name}", f"/opt/{name}", f"/opt/{name}-*")
    return (*(f"{root}/lib*/libdrmaa.so*" for root in roots), f"/usr/lib/*/{name}/libdrmaa.so*")


ONE_SESSION = "one session in a process; calls one after another, in a helper process for each cluster"

GRID_ENGINE = Library(
    name="gridengine-drmaa",
    system="Grid Engine",
    seen="8.1.9",
    places=("/usr/lib/gridengine-drmaa/lib/libdrmaa.so*",),
    mark=r"\b(sge|oge|uge|ocs|age)\b|grid ?engine",
    native=("-r n",),
    walltime="-l h_rt={walltime}",
    queue="-q {queue}",
    memory="-l h_vmem={memory_mib}M",
    # Which parallel environment has processors of one host, each site says.
    slots=(("features", "-l {name}=true"), ("licenses", "-l {name}={n}"), ("account", "-A {name}")),
    job_id_variable="JOB_ID",
    index_variable="SGE_TASK_ID",
    tells_elements=True,
    hold=True,
    suspend=True,
    tells_success=True,
    ids="`123.4`",
    confused="`running` while the job is on its way to its node",
    sessions=f"{ONE_SESSION}; needs room for jemalloc when it is loaded, which the helper makes",
    reserved=frozenset({"-N", "-t", "-a", "-sync", "-now", "-verify", "-@"}),
)
SLURM = Library(
    name="slurm-drmaa",
    system="Slurm",
    seen="1.1.6 with Slurm 22.05",
    places=_usual_places("slurm-drmaa"),
    least_version=(1, 1, 6),
    mark=r"slurm",
    # Requeue=1 is the default, and a placeholder that starts twice would show up as a stranger.
    native=("--no-requeue",),
    # Its field is hours:minutes, and minutes may be more than 59.
    walltime="--time=0:{walltime_minutes}",
    queue="--partition={queue}",
    memory="--mem={memory_mib}",
    slots=(
        ("threads", "--nodes=1 --ntasks=1 --cpus-per-task={n}"),
        ("gpus", "--gres=gpu:{n}"),
        ("gpu_kind", "--gres=gpu:{kind}:{n}"),
        ("exclusive", "--exclusive"),
        ("scratch", "--tmp={mib}"),
        ("account", "--account={name}"),
        ("qos", "--qos={name}"),
    ),
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
    reserved=frozenset({"-J", "--job-name", "-a", "--array", "-b", "--begin", "-W", "--wait", "--wrap", "--test-only"}),
)
PBS = Library(
    name="pbs-drmaa",
    system="PBS",
    seen="1.0.19 with OpenPBS 23.06",
    places=_usual_places("pbs-drmaa"),
    not_chosen="it submits placeholders one by one, leaves files in ~/.drmaa, and aborts where PBS is down",
    mark=r"pbs|torque",
    # Without -S it starts a login shell of the user's, whose profile may be long, or wait for something.
    native=("-r n", "-S /bin/sh"),
    walltime="-l walltime={walltime}",
    queue="-q {queue}",
    memory="-l mem={memory_mib}mb",
    slots=(("threads", "-l ncpus={n}"), ("licenses", "-l {name}={n}"), ("account", "-A {name}")),
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
    reserved=frozenset({"-N", "-J", "-t", "-a", "-I", "-X", "-z", "-C"}),
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
    reserved=frozenset({"-N", "-J", "--job-name", "--array"}),
)
LIBRARIES = (SLURM, PBS, GRID_ENGINE, OTHER)


def library_of(*words: str) -> Library:
    """Return the known library with this contact or path; OTHER for an unknown one."""
    text = " ".join(words).lower()
    return next(library for library in LIBRARIES if re.search(library.mark, text))


# -- From a kind of failure to one of the four LRM errors ----------------------------------------------------


class LibraryLoadError(LrmUnavailableError):
    """The library is missing or cannot be loaded."""


_ERRORS: Mapping[FailureKind, tuple[type[LrmError], str]] = {
    FailureKind.UNAVAILABLE: (LrmUnavailableError, "it is asked again later"),
    FailureKind.REJECTED: (
        LrmRejectedError,
        "change the cluster's settings or directives in the site file, or ask its admin",
    ),
    FailureKind.NOT_FOUND: (LrmNotFoundError, "it has ended, or never was"),
    FailureKind.UNSUPPORTED: (LrmUnsupportedError, "the DRMAA library cannot do this"),
    FailureKind.LIBRARY: (LibraryLoadError, "`koala check` says which library is looked for"),
}


def error_of(kind: FailureKind, message: str) -> LrmError:
    """Return the exception for a complaint."""
    error, hint = _ERRORS[kind]
    return error(message, hint=hint)
