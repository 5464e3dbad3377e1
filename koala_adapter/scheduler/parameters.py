# SPDX-License-Identifier: Apache-2.0
"""Settings that steer the scheduler, as values that are journaled with the events.

In order: the job management approach, the settings of a site, those of a cluster. Each default is written here once.
The keys of a site file, their bounds, documentation and JSON Schema are made from the ``Setting`` beside each
(:mod:`koala_adapter.config.sitefile`); a parameter without one is worked out by the service, or has a key of its own
form. The bounds hold for site files only: experiments may exceed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

from koala_adapter.model import Claiming, ClusterName, Component, Launcher
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


# -- Job management approach ---------------------------------------------------------------------------------


class Approach(StrEnum):
    """Job management approach."""

    NONE = "none"
    """Malleable jobs keep the size they start with, unless they ask for more themselves."""
    PRA = "pra"
    PWA = "pwa"

    @property
    def running_first(self) -> bool:
        """True when free processors are offered to running jobs before the queue is scanned."""
        return self is Approach.PRA

    @property
    def shrinks_for_waiting(self) -> bool:
        """True when running jobs are shrunk for the head of the queue."""
        return self is Approach.PWA


# -- Settings of a site and of a cluster ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """How a parameter may be set in a site file; None: no bound."""

    meaning: str
    """For the people who write site files: ends up in their documentation."""
    unit: Literal["", "seconds", "MiB/s", "absolute paths"] = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: Mapping[str, object] | None = None
    """Its names are what a text may be."""
    key: str | None = None
    """Key in the site file; None: the name of the parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Site-wide settings; times in seconds."""

    instance: str = "k"
    """Short name of this service instance; begins every LRM job name of ours."""
    scan_interval: Annotated[
        float,
        Setting(
            "Time between two scans of the placement queue; scans also follow events that may help a job. For so long, "
            "too, no malleable job of a cluster is asked to shrink after its jobs gave less than they were asked for.",
            "seconds",
            least=0.05,
            most=3600,
        ),
    ] = 15.0
    cluster_cost: Annotated[
        float,
        Setting(
            "Only waiting-history: how much longer a job may be expected to wait to use one cluster less.",
            "seconds",
            least=0,
            most=604_800,
        ),
    ] = 30.0
    placeholder_life: Annotated[
        float,
        Setting(
            "Life cycle: how long, at most, a held placeholder waits for the others of its job before it is handed "
            "back.",
            "seconds",
            least=1,
            most=604_800,
        ),
    ] = 900.0
    backoff: Annotated[
        float,
        Setting(
            "Shortest pause before a job whose placeholders were handed back tries again; it doubles with each try. "
            "It should be longer than the batch systems need to give to others what was handed back. For so long, too, "
            "nothing is offered to the malleable jobs of a cluster after a growth there came to nothing.",
            "seconds",
            least=0.1,
            most=86_400,
        ),
    ] = 60.0
    longest_backoff: Annotated[
        float, Setting("Upper bound of a job's pause, at least backoff.", "seconds", least=0.1, most=604_800)
    ] = 3600.0
    maximum_tries: Annotated[
        int,
        Setting(
            "Placement tries after which the submission of a job fails, where the job file gives no number.",
            least=1,
            most=1_000_000,
        ),
    ] = 1000
    guard_scans: Annotated[
        int,
        Setting(
            "After so many scans at the scan_interval in the placement queue, a job has room kept free for it, which "
            "later jobs no longer take. One job at a time.",
            least=1,
            most=1_000_000,
        ),
    ] = 40
    lease: Annotated[
        float,
        Setting(
            "An agent without contact for so long ends its application and itself. At least three heartbeats.",
            "seconds",
            least=1,
            most=86_400,
        ),
    ] = 300.0
    await_suspended: Annotated[
        bool,
        Setting(
            "A job waits for placeholders that its batch system lists as suspended, and time in which an agent is "
            "stopped does not count for its lease. Otherwise a job is lost with an agent that is suspended for longer "
            "than its lease."
        ),
    ] = False
    registration_timeout: Annotated[
        float,
        Setting(
            "A placeholder that runs in its LRM, but whose agent has not reported for so long, is MISSING.",
            "seconds",
            least=1,
            most=86_400,
        ),
    ] = 120.0
    end_patience: Annotated[
        float,
        Setting(
            "A placeholder that was told to end, and has not after so long, is cancelled through its LRM.",
            "seconds",
            least=1,
            most=3600,
        ),
    ] = 10.0
    missing_limit: Annotated[
        int, Setting("So many MISSING placeholders in a row pause a cluster.", least=1, most=1000)
    ] = 3
    pause: Annotated[float, Setting("How long a cluster is paused.", "seconds", least=1, most=86_400)] = 600.0
    launch_margin: Annotated[
        int,
        Setting(
            "Added to the walltime that is requested from LRMs, for launching and ending.",
            "seconds",
            least=0,
            most=86_400,
        ),
    ] = 120
    reuse: Annotated[
        bool, Setting("Hand the placeholders of a finished job to a waiting job of the same user, if they last.")
    ] = True
    reorganize: Annotated[
        bool,
        Setting(
            "Resource reorganization: before held placeholders are handed back at the end of their life, give them to "
            "another job of the same user that waits for that cluster, in exchange for its place in the queue."
        ),
    ] = True
    approach: Annotated[
        Approach,
        Setting(
            "Who comes first when processors are free. pra: running malleable jobs are offered them before the "
            "placement queue is scanned, and none is shrunk for a waiting job. pwa: the queue is scanned first, and "
            "running malleable jobs are shrunk for its head. none: malleable jobs keep their size, unless they ask for "
            "more themselves."
        ),
    ] = Approach.PWA
    malleability_policy: Annotated[
        str,
        Setting(
            "Which running malleable jobs of a cluster grow and shrink, and by how much. fpsma: those that started "
            "first grow first, those that started last shrink first. egs: equal shares for all, what some decline is "
            "left. egs-repeated: equal shares for those that can, and shrinking is repeated until it is enough. "
            "equipartition: nearly the same size for all. folding: sizes are doubled and halved.",
            choices=MALLEABILITY_POLICIES,
            key="malleability",
        ),
    ] = "egs-repeated"
    answer_timeout: Annotated[
        float,
        Setting(
            "A malleable job that has not answered an offer or a request after so long declines it.",
            "seconds",
            least=1,
            most=3600,
        ),
    ] = 60.0
    release_timeout: Annotated[
        float,
        Setting(
            "For so long the processors that a malleable job agreed to give up are waited for.",
            "seconds",
            least=1,
            most=86_400,
        ),
    ] = 300.0
    grow_pause: Annotated[
        float,
        Setting(
            "For so long after malleable jobs of a cluster were shrunk nothing is offered to those that run there. "
            "What applications ask for themselves is granted all the same.",
            "seconds",
            least=0,
            most=86_400,
        ),
    ] = 0.0
    shrink_pause: Annotated[
        float,
        Setting(
            "For so long after malleable jobs of a cluster have grown none of those that run there is asked to "
            "shrink, but for an application that insists on more. While jobs wait in the placement queue, nothing is "
            "offered there for so long, either.",
            "seconds",
            least=0,
            most=86_400,
        ),
    ] = 0.0
    least_time_to_grow: Annotated[
        float,
        Setting(
            "A malleable job that has less of its walltime left grows no more: it is offered nothing, what it asks for "
            "is declined, and what is still being gathered for it is handed back. Some times what it takes to have "
            "processors and start processes on them.",
            "seconds",
            least=0,
            most=86_400,
        ),
    ] = 60.0
    largest_change: Annotated[
        int | None,
        Setting(
            "Most processors by which one step may grow or shrink the malleable jobs of a cluster; the next step "
            "follows when all have answered and released what they give up. It bounds neither what applications "
            "insist on nor what equipartition moves between jobs. Folding doubles no larger job, and may halve one. "
            "Default: no bound.",
            least=1,
            most=10_000_000,
        ),
    ] = None
    finished_kept: Annotated[
        int,
        Setting(
            "So many finished jobs are kept in memory, with the reasons of all that happened to them.",
            least=10,
            most=1_000_000,
        ),
    ] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParameters:
    """What a site says about one cluster."""

    name: ClusterName
    threshold: Annotated[int, Setting("Idle processors always left to local users.", least=0, most=10_000_000)] = 0
    walltime_limit: Annotated[
        int | None,
        Setting(
            "Longest walltime that this cluster grants. Default: no limit known.", "seconds", least=1, most=315_360_000
        ),
    ] = None
    memory_limit: Annotated[
        int | None,
        Setting(
            "Most memory that a running application may ask for with each further processor (MEM of a negotiation). "
            "Its batch system must be one that gives placeholders memory. Default: such wishes are refused.",
            "MiB",
            least=1,
            most=16_777_216,
        ),
    ] = None
    placeholders_in_flight: Annotated[
        int,
        Setting(
            "Most placeholders that are queued here at once (the site's limit of submitted jobs per user).",
            least=1,
            most=1_000_000,
        ),
    ] = 500
    malleability_policy: Annotated[
        str | None,
        Setting(
            "Which running malleable jobs grow and shrink here, and by how much. Default: as in [scheduler].",
            choices=MALLEABILITY_POLICIES,
            key="malleability",
        ),
    ] = None
    files: Annotated[
        tuple[str, ...],
        Setting(
            "Only close-to-files: files, and directories with all below them, that the nodes see under the same path "
            "as this host. Input files from there count as near; ranks are sent them in any case.",
            "absolute paths",
        ),
    ] = ()
    bandwidth: Annotated[
        float | None,
        Setting(
            "How fast files get from this host to the nodes, for close-to-files and for estimates of when a job can "
            "start. Default: for a cluster at another site what koala observes, for others not known.",
            "MiB/s",
            above=0,
            most=1_000_000,
        ),
    ] = None
    site: str = ""
    """Name of the site that it is at; empty: the submitting host's."""
    here: bool = False
    """Its batch system is on the submitting host: files need not go to another site."""
    claiming: Annotated[
        Claiming,
        Setting(
            "How processors are claimed where a job does not say it. placeholders: by jobs that wait in the queue. "
            "reserve: by a reservation of the batch system for the estimated start, in which placeholders run; by "
            "placeholders alone where it does not reserve for you. Slurm reserves for operators, Grid Engine for users "
            "in arusers, PBS for all users.",
        ),
    ] = Claiming.PLACEHOLDERS
    bandwidth_from: tuple[tuple[ClusterName, float], ...] = ()
    """MiB/s to its nodes from other clusters, where known."""
    software: tuple[str, ...] = ()
    """Names of the software that its nodes have, as components ask for it."""
    container_runtime: str = ""
    """Program that runs containers on its nodes; empty: none does."""
    slot_keys: tuple[str, ...] | None = None
    """What its batch system can be asked for, of ``koala_adapter.slots.SLOT_KEYS``; None: all, or not known yet."""
    counts_slots: bool = False
    """Polls count slots on its nodes: until one has, nothing is placed by processors alone."""
    reserves: bool | None = None
    """Its batch system can be asked for reservations; None: that is not known before it has answered."""
    stages: bool = False
    """Input files that it lacks are brought to it before its processors are wanted: large ones, unless it is here, and
    those with logical names."""
    site_lease: float | None = None
    """That of agents on its nodes; None: as everywhere."""

    def lacks(self, component: Component) -> str | None:
        """Return what a cluster lacks for the ranks of a component; None when nothing."""
        return lacking(component, self.software, self.container_runtime)


def lacking(component: Component, software: Collection[str], container_runtime: str) -> str | None:
    """Return what software and container runtime of a cluster lack for a component; None when nothing."""
    if missing := [name for name in component.software if name not in software]:
        return f"its software in the site file does not include {', '.join(missing)}"
    if component.container and not container_runtime:
        return "the site file names no container_runtime for it"
    if component.container and component.launcher is Launcher.MPI and container_runtime == "podman":
        return "its container_runtime, podman, cannot run the ranks of an MPI program"
    return None


def absent(component: Component, found: Mapping[str, str], bringable: Mapping[str, int | None]) -> str | None:
    """Return in words which logical name of a component a cluster cannot have; None when it has or can have all.

    ``found``: the input files that it has, by their sources. ``bringable``: those that it lacks and can be brought.
    """
    names = (one.source for one in component.input_files if one.logical)
    missing = next((name for name in names if name not in found and name not in bringable), None)
    return None if missing is None else f"its catalogue, as it was read last, has no {missing}"
