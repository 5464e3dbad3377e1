# SPDX-License-Identifier: Apache-2.0
"""What differs between releases of Slurm, each with the release from which it holds: one table, shown in the manual.

A difference that shows itself (a field that is there or not, another form of a value) is read as it is. Only where
nothing shows it does the code compare the controller's release with the one named here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Release: TypeAlias = "tuple[int, int]"
"""Year and month, such as (26, 5)."""

OLDEST: Release = (20, 11)
"""Nothing older is tried, and none is accepted."""

NEWEST: Release = (26, 5)
"""The newest one that is tried. A later one is accepted: what it says anew is unknown, and never guessed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Behaviour of Slurm that changed with a release."""

    since: Release
    subject: str
    before: str
    then: str


RELATED_NODES = Difference(
    (23, 11),
    "number of nodes of a waiting job that names none, in `scontrol show job`",
    "`NumNodes=2`: an estimate",
    "`NumNodes=2-2`, as if its user had asked for that; the node count in `ReqTRES` is the user's",
)
BOUNDED_BY_TASKS = Difference(
    (26, 5),
    "most nodes of a waiting job that names none",
    "not told",
    "its number of tasks: `NumNodes=3-20` of `sbatch -n20`, the first number an estimate as before",
)
EXCLUSIVE_APART = Difference(
    (26, 5),
    "jobs that have nodes for themselves",
    "`OverSubscribe=NO`, `USER`, `MCS`; of others `OK`, `YES`",
    "`Exclusive=NODE`, `USER`, `MCS`, `TOPO`; `OverSubscribe=NO` is what every job has that asks for neither",
)
EXCLUSIVE_PARTITIONS = Difference(
    (26, 5),
    "partitions whose jobs have nodes for themselves",
    "`EXCLUSIVE` where sinfo tells of sharing",
    "`Exclusive=NODE` in `scontrol show partition`; sinfo does not tell, so partitions are read every five minutes",
)
CORES_SPREAD = Difference(
    (23, 11),
    "cores of a reservation on several nodes (`CoreCnt`)",
    "a number for each node, `5,1`",
    "one number that Slurm spreads over the nodes as it likes",
)

SERVES_OLDER = Difference(
    (24, 11),
    "how much older than slurmctld what asks it may be: commands, and a DRMAA library by the libslurm that it uses",
    "two releases",
    "three releases",
)

DIFFERENCES: tuple[Difference, ...] = (
    Difference((23, 2), "exit status in squeue", "a wait status, `768`", "exit code and signal, `3:0`"),
    Difference((23, 2), "`TRES` in `scontrol show job`", "`TRES=`", "`ReqTRES=` and `AllocTRES=`"),
    Difference(
        (23, 11),
        "`sbatch --export=NIL`",
        "has slurmd run the user's login shell and wait for it",
        "has it not; `ALL`, which never did, is used for all releases",
    ),
    Difference(
        (23, 11),
        "`sbatch --cpus-per-task=3` in `scontrol show job`",
        "`CPUs/Task=3`",
        "`TresPerTask=cpu=3` (or `cpu:3`) as well, where GPUs by task stand, too",
    ),
    RELATED_NODES,
    CORES_SPREAD,
    Difference(
        (23, 11),
        "PriorityType, where slurm.conf does not say it",
        "`priority/basic`: later jobs have lower priorities, from which `--nice` takes",
        "`priority/multifactor`: without weights all jobs have the same, and `--nice` changes nothing",
    ),
    SERVES_OLDER,
    Difference(
        (25, 5),
        "a second change of the nodes of a running job without slurmdbd",
        "is refused for ever (`DB index is being set, try again in a bit`)",
        "is made",
    ),
    Difference((25, 11), "user called `nobody` in a reservation", "found by name", "found by number only"),
    EXCLUSIVE_APART,
    EXCLUSIVE_PARTITIONS,
    BOUNDED_BY_TASKS,
)
"""By release. What commands print as JSON differs in nearly each one; none of it is used."""

NEW_WORDS: Mapping[str, Release] = {
    "PLANNED": (21, 8),
    "POWERED_DOWN": (21, 8),
    "POWERING_UP": (21, 8),
    "REBOOT_REQUESTED": (21, 8),
    "REBOOT_ISSUED": (21, 8),
    "MAINTENANCE": (21, 8),
    "NOT_RESPONDING": (21, 8),
    "INVAL": (21, 8),
    "INVALID_REG": (21, 8),
    "BLOCKED": (24, 5),
    "EXPEDITING": (25, 11),
}
"""Words for states of jobs and nodes that the oldest release does not have (`koala_slurm.words` has what all mean)."""


LIBRARIES: Mapping[int, Release] = {
    36: (20, 11),
    37: (21, 8),
    38: (22, 5),
    39: (23, 2),
    40: (23, 11),
    41: (24, 5),
    42: (24, 11),
    43: (25, 5),
    44: (25, 11),
    45: (26, 5),
}
"""Releases by the number of their library: programs ask for it as ``libslurm.so.44``."""

_LIBRARY = re.compile(rb"\0libslurm(?:full)?\.so\.([0-9]{1,4})\0")


def misfit(library: Path, controller: tuple[int, ...]) -> str:
    """Return why a DRMAA library does not work with a release; empty where that is unknown.

    The library opens its session all the same: it asks slurmctld only when it submits.
    """
    try:
        found = _LIBRARY.search(library.read_bytes())
    except OSError:
        return ""
    releases = list(LIBRARIES.values())
    release = LIBRARIES.get(int(found[1])) if found else None
    if release is None or controller not in releases:
        return ""
    at = releases.index(controller)
    most = 3 if controller >= SERVES_OLDER.since else 2
    if release in releases[max(0, at - most) : at + 1]:
        return ""
    served = name_of(releases[at])
    return f"it uses libslurm of Slurm {name_of(release)}, which slurmctld of {served} does not understand"


def name_of(release: Release) -> str:
    """Return a release as Slurm writes it: ``26.05``."""
    year, month = release
    return f"{year}.{month:02}"
