# SPDX-License-Identifier: Apache-2.0
"""The words of everyday use, each for the site that is loaded as the command line finds it, or for another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.python.site import LATEST, Site

if TYPE_CHECKING:
    from os import PathLike

    from koala_adapter.api.clusterreports import ClusterReport
    from koala_adapter.python.description import Job
    from koala_adapter.python.handle import JobHandle
    from koala_adapter.python.result import JobResult


def submit(job: Job | str | PathLike[str], *, site: Site | None = None) -> JobHandle:
    """Hand a job, or a job file, to the service of a site; see :meth:`Site.submit`.

    ``site``: default :meth:`Site.load`. Who submits many jobs loads it once.
    """
    return (site or Site.load()).submit(job)


def run(
    job: Job | str | PathLike[str],
    *,
    timeout: float | None = None,
    check: bool = True,
    show: bool = False,
    site: Site | None = None,
) -> JobResult:
    """Run a job, or a job file, to its end and return how it ended; see :meth:`Site.run`."""
    return (site or Site.load()).run(job, timeout=timeout, check=check, show=show)


def clusters(*, site: Site | None = None) -> list[ClusterReport]:
    """Return the clusters: what is idle, what koala holds, how often it asks; see :meth:`Site.clusters`."""
    return (site or Site.load()).clusters()


def job(job_id: str, *, site: Site | None = None) -> JobHandle:
    """Return a handle on a job that was submitted earlier, by this program or any other."""
    return (site or Site.load()).job(job_id)


def jobs(limit: int = LATEST, *, site: Site | None = None) -> list[JobHandle]:
    """Return handles on the latest jobs in order of submission, ``limit`` of them at most."""
    return (site or Site.load()).jobs(limit)
