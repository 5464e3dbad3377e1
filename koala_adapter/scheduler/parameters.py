# SPDX-License-Identifier: Apache-2.0
"""The numbers that steer the scheduler, as values that travel in the journal with the events."""

from __future__ import annotations

from dataclasses import dataclass

from koala_adapter.model import ClusterName
from koala_adapter.scheduler.malleable.approaches import Approach


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Site-wide settings; times in seconds."""

    instance: str = "k"
    """Short name of this service instance; begins every LRM job name of ours."""
    scan_interval: float = 15.0
    """Between two scans of the placement queue (scans also follow events that may help a job)."""
    placeholder_life: float = 900.0
    """Life cycle: how long held placeholders wait for the missing ones before they are handed back (PAPERS 2)."""
    backoff: float = 60.0
    """First pause before processors that were handed back are taken again; doubles with every try."""
    longest_backoff: float = 3600.0
    maximum_tries: int = 1000
    """Placement tries after which a submission fails, unless the job says otherwise."""
    registration_timeout: float = 120.0
    """A placeholder that runs but whose agent has not reported after this is MISSING."""
    missing_limit: int = 3
    """So many MISSING in a row pause the cluster."""
    pause: float = 600.0
    """How long a cluster is paused."""
    lease: float = 300.0
    """An agent without contact for so long has ended itself."""
    launch_margin: float = 120.0
    """Added to the walltime asked from an LRM, for launching and cleaning up."""
    end_patience: float = 10.0
    """After this an ending placeholder is cancelled (again) through its LRM."""
    reuse: bool = True
    """Hand the placeholders of a completed job to waiting jobs instead of giving them back."""
    reorganize: bool = True
    """Exchange processors between jobs of one user before handing them back (resource reorganization, PAPERS 2)."""
    exchange_always: bool = False
    """Exchange them also when the job that takes them does not start with it. Here for the experiment only."""
    out_of_step: bool = True
    """Whoever breaks a deadlock does so out of step with other instances. False: as before there was this, for the
    replay of journals from then."""
    cluster_cost: float = 30.0
    """Seconds of expected wait that a job accepts to use one cluster less (placement by waiting history)."""
    approach: Approach = Approach.PWA
    """Who comes first when processors are free, running malleable jobs or waiting jobs (PAPERS 1.3)."""
    malleability_policy: str = "egs-repeated"
    """Which running malleable jobs grow and shrink, by how much: fpsma, egs (as published), egs-repeated (until the
    value is reached), equipartition or folding, or one that a site brings along."""
    answer_timeout: float = 60.0
    """An application that has not answered a message after this declines it."""
    release_timeout: float = 300.0
    """For so long processors that an application agreed to give up are waited for."""
    guard_scans: int = 40
    """After so many interval scans in the placement queue, later jobs no longer take the room that a job needs."""
    finished_kept: int = 1000
    """So many finished jobs are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParameters:
    """What a site says about one cluster."""

    name: ClusterName
    threshold: int = 0
    """Processors left to local users."""
    walltime_limit: int | None = None
    """Longest walltime of an LRM job there, seconds."""
    malleability_policy: str | None = None
    """None: that of the site."""
    placeholders_in_flight: int = 500
    """Most placeholders of ours that may wait in the LRM's queue at once."""
    files: tuple[str, ...] = ()
    """Absolute paths of files, and of directories with all below them, that its nodes have already."""
    bandwidth: float | None = None
    """MiB/s from the submitting host to its nodes; None: not known."""
    bandwidth_from: tuple[tuple[ClusterName, float], ...] = ()
    """MiB/s to its nodes from other clusters, where known."""
