# SPDX-License-Identifier: Apache-2.0
"""Jobs of Snakemake as jobs of koala."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import koala_adapter as koala

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

PREFIX = "koala_"
"""Begins the names of resources that are keys of a job file."""
OWN = frozenset(
    {
        "command",
        "components",
        "environment",
        "name",
        "processors",
        "runner",
        "sweep",
        "walltime",
        "working_directory",
    }
)
"""Keys of a job that Snakemake has words of its own for, or that would make it another kind of job."""
NOT_COUNTED = ("gpu", "gpus", "nvidia_gpu", "amd_gpu")
SECONDS = 60
"""The resource runtime is in minutes."""


def koala_job(
    job: JobExecutorInterface,
    script: str,
    *,
    directory: str,
    environment: Mapping[str, str],
    walltime: str,
) -> koala.Job:
    """Return the job of koala that a job of Snakemake asks for.

    ``script``: what a shell on the node is to do; ``walltime``: of jobs that do not say theirs. Raises
    ConfigurationError with all that koala cannot do for it.
    """
    problems = list(_problems(job))
    if problems:
        raise koala.ConfigurationError(f"job {job.jobid} ({job.name}): {'; '.join(problems)}")
    runtime = job.resources.get("runtime")
    return koala.Job(
        ["/bin/sh", "-c", script],
        name=f"{job.name}-{job.jobid}",
        walltime=runtime * SECONDS if isinstance(runtime, int) else walltime,
        working_directory=directory,
        environment=environment,
        **_own_keys(job),
    )


def _problems(job: JobExecutorInterface) -> Iterator[str]:
    if job.threads > 1:
        yield (
            f"threads: found {job.threads}, allowed is 1: a process of koala has one processor "
            "(`--max-threads 1` runs such rules with one)"
        )
    for name in ("tasks", *NOT_COUNTED):
        wanted = job.resources.get(name)
        if isinstance(wanted, int) and wanted > (name == "tasks"):
            yield f"resource {name}: found {wanted}, which koala cannot promise: it counts processors, one for each job"
    known = {one.name for one in dataclasses.fields(koala.Job)} - OWN
    for name in dict(job.resources.items()):  # by itself, what Snakemake has here goes through positions
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known:
            yield f"resource {name}: allowed is {PREFIX} and one of {', '.join(sorted(known))}"


def _own_keys(job: JobExecutorInterface) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): value for name, value in job.resources.items() if name.startswith(PREFIX)}
