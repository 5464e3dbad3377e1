# SPDX-License-Identifier: Apache-2.0
"""How a malleable MPI program changes its size, where its job file leaves that to its clusters: the weakest decides."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from koala_adapter.model import JobKind, Launcher, MpiResize, RunnerName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_adapter.config.sitemodel import ClusterConfig, SiteConfig
    from koala_adapter.config.tomlfile import KeyPath
    from koala_adapter.model import Job


class MpiResizeWanted(StrEnum):
    """What a job file may say."""

    ANY = "any"
    SPAWN = "spawn"
    RESTART = "restart"


class ResizeKeys(Protocol):
    """What of the top of a job file matters here."""

    @property
    def kind(self) -> JobKind:
        """How the size of the job may change."""

    @property
    def runner(self) -> RunnerName:
        """What runs it."""

    @property
    def launcher(self) -> Launcher:
        """How its ranks are started."""

    @property
    def mpi_resize(self) -> MpiResizeWanted:
        """How an MPI program changes its size."""

    @property
    def working_directory(self) -> str | None:
        """Where its ranks start."""


def unable_to_spawn(pinned: Sequence[str | None], site: SiteConfig) -> list[str]:
    """Return the clusters on which a job may run and whose MPI cannot spawn. ``pinned``: of each component, or None."""
    possible = [one for one in site.enabled_clusters if None in pinned or one.name in pinned]
    return [one.name for one in possible if not _spawns(one)]


def _spawns(cluster: ClusterConfig) -> bool:
    return cluster.mpi_resize is MpiResize.SPAWN


def mpi_resize(wanted: MpiResizeWanted, pinned: Sequence[str | None], site: SiteConfig | None) -> MpiResize:
    """Return how a job changes its size; without a site as if its clusters could do nothing."""
    if wanted is not MpiResizeWanted.ANY:
        return MpiResize(wanted)
    return MpiResize.RESTART if site is None or unable_to_spawn(pinned, site) else MpiResize.SPAWN


def mpi_resize_problems(
    header: ResizeKeys, pinned: Sequence[str | None], site: SiteConfig | None
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what of a job file does not fit together, or not to the site, by the place in the file."""
    adaptive = header.kind is JobKind.MALLEABLE and header.runner is RunnerName.ADAPTIVE
    if not adaptive or header.launcher is not Launcher.MPI:
        if header.mpi_resize is not MpiResizeWanted.ANY:
            yield ("mpi_resize",), 'allowed with kind = "malleable", runner = "adaptive" and launcher = "mpi" only'
        return
    unable = [] if site is None else unable_to_spawn(pinned, site)
    if header.mpi_resize is MpiResizeWanted.SPAWN and unable:
        text = (
            f'found "spawn", which the MPI of {", ".join(unable)} cannot do, as the site file has it: allowed is '
            '"restart" or "any", or cluster = with one that can (mpi_resize in the site file says which do)'
        )
        yield ("mpi_resize",), text
    restarts = mpi_resize(header.mpi_resize, pinned, site) is MpiResize.RESTART
    if restarts and header.working_directory is None and (site is not None or header.mpi_resize == "restart"):
        why = (
            f" (by the site file, the MPI of {', '.join(unable)} cannot spawn)"
            if unable and header.mpi_resize == "any"
            else ""
        )
        text = f"missing: this program is started anew with each change of its size{why}, and keeps its state there"
        yield ("working_directory",), f"{text}; allowed is a directory that all nodes share"


def explained(job: Job, site: SiteConfig) -> str:
    """Say how a malleable MPI program will change its size; empty for other jobs."""
    if job.runner is not RunnerName.ADAPTIVE or job.launcher is not Launcher.MPI:
        return ""
    if job.mpi_resize is MpiResize.SPAWN:
        return "its size changes while it runs: processes are spawned, and leave, one at a time"
    unable = unable_to_spawn([one.cluster for one in job.components], site)
    why = f" (by the site file, the MPI of {', '.join(unable)} cannot spawn)" if unable else ""
    return (
        f"with each change of its size the program is started anew{why}; its state goes through {job.working_directory}"
    )
