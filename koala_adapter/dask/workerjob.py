# SPDX-License-Identifier: Apache-2.0
"""The job whose processes are the workers of a Dask scheduler, as the keys of a job file. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMPONENT = "worker"
LEAVE = "leave.py"
CREDENTIALS = {"ca_file": "dask-ca.pem", "cert": "dask-cert.pem", "key": "dask-key.pem"}
"""Files that a worker finds beside itself, by Dask's words for what is in them."""
_NAMED = 'exec "$@" --name "$KOALA_CLUSTER-$KOALA_JOB_ID.$KOALA_RANK"'
"""Only the worker itself knows where it is. The rest of its command stands in "$@", which the shell does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the user says of the workers, by the keys of :class:`koala_adapter.dask.KoalaCluster`."""

    minimum: int
    maximum: int
    job_name: str
    walltime: float | str
    python: str
    worker_options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    input_files: Sequence[str] = ()
    cluster: str | None = None
    placement: str | None = None
    priority: int = 0
    retire_grace: int = 30
    death_timeout: int = 60


def job_values(
    settings: WorkerSettings, *, scheduler: str, size: int | None, files: Mapping[str, str]
) -> dict[str, object]:
    """Return the job of the workers of a scheduler.

    ``scheduler``: its address as the nodes reach it. ``size``: workers to start with where so many processors are idle;
    None: the fewest. ``files``: what a worker finds beside itself, to where it is on this host.
    """
    component: dict[str, object] = {
        "name": COMPONENT,
        "command": worker_command(settings, scheduler=scheduler, credentials=files),
        "minimum": settings.minimum,
        "maximum": settings.maximum,
        "initial": settings.minimum if size is None else size,
        "flexible": settings.cluster is None,
        "retire_grace": settings.retire_grace,
        "environment": {
            "DASK_LEAVE_SECONDS": f"{settings.retire_grace / 2:g}",
            "PYTHONDONTWRITEBYTECODE": "1",  # in a directory that lives as long as the worker
            **settings.environment,
        },
        "input_files": [*settings.input_files, *({"source": at, "target": name} for name, at in files.items())],
    }
    job: dict[str, object] = {
        "name": settings.job_name,
        "kind": "malleable",
        "runner": "workers",
        "walltime": settings.walltime,
        "priority": settings.priority,
        "components": [component],
    }
    if settings.cluster is not None:
        component["cluster"] = settings.cluster
    if settings.placement is not None:
        job["placement"] = settings.placement
    return job


def worker_command(settings: WorkerSettings, *, scheduler: str, credentials: Mapping[str, str]) -> list[str]:
    """Return the command of a worker: Dask's own, with one thread for the one processor that it has.

    No nanny stands between it and the signals that it gets, and nobody is served a page of what it does.
    """
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", LEAVE]
    options += ["--death-timeout", str(settings.death_timeout)]
    for part, name in CREDENTIALS.items():
        if name in credentials:
            options += [f"--tls-{part.replace('_', '-')}", name]
    worker = [settings.python, "-m", "distributed.cli.dask_worker", scheduler, *options, *settings.worker_options]
    return ["/bin/sh", "-c", _NAMED, "sh", *worker]
