# SPDX-License-Identifier: Apache-2.0
"""``KoalaCluster``: a Dask cluster whose workers come from all clusters of a site, as one malleable job of koala.

The scheduler of Dask runs in the user's own process; koala's job has workers alone. How many there are at a time is
settled between what is asked for here, what is free, and who else waits.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from distributed import Scheduler, Security
from distributed.core import Status
from distributed.deploy.spec import SpecCluster
from distributed.utils import NoOpAwaitable

from koala_adapter.api.statedirectory import check_directory
from koala_adapter.config.jobfile import job_of_values
from koala_adapter.config.locations import find_site_file, state_directory
from koala_adapter.config.sitefile import load_site
from koala_adapter.dask import leave
from koala_adapter.dask.access import as_nodes_reach_it, credentials_of_workers, files_of, listening_address
from koala_adapter.dask.runningjob import WorkersJob
from koala_adapter.dask.workerjob import LEAVE, WorkerSettings, job_values
from koala_adapter.errors import ConfigurationError
from koala_adapter.plugin import load_plugins
from koala_adapter.plugin.commands import login_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from distributed.deploy.adaptive import Adaptive

    from koala_adapter.model import Job

JOB = "job"
"""The one entry in what :class:`SpecCluster` takes for a table of workers."""
LOCALHOST = "127.0.0.1"
UNFINISHED = frozenset({"waiting", "queued", "no-worker", "processing"})
"""Words of Dask's scheduler for tasks that wait for somebody to work them out."""

logger = logging.getLogger(__name__)


class KoalaCluster(SpecCluster):
    """A Dask cluster on all clusters of a site at once.

    >>> with KoalaCluster(minimum=2, maximum=40) as cluster, Client(cluster) as client:
    ...     client.submit(sum, [1, 2, 3]).result()

    The job is submitted at once, with ``minimum`` workers; it gets more as processors come free. When others need them,
    koala has workers leave: each hands its results to others before it does. :meth:`scale` and :meth:`adapt` bound how
    many there are. The job ends with this object, or with its process.
    """

    def __init__(  # noqa: PLR0913 - as many as there are things to say of a scheduler and of a job
        self,
        *,
        maximum: int,
        minimum: int = 1,
        n_workers: int | None = None,
        site: str | PathLike[str] | None = None,
        state: str | PathLike[str] | None = None,
        cluster: str | None = None,
        walltime: float | str = "1h",
        job_name: str = "dask",
        priority: int = 0,
        placement: str | None = None,
        environment: Mapping[str, str] | None = None,
        input_files: Sequence[str | PathLike[str]] = (),
        python: str = sys.executable,
        worker_options: Sequence[str] = (),
        retire_grace: int = 30,
        death_timeout: int = 60,
        security: Security | None = None,
        host: str | None = None,
        port: int = 0,
        dashboard_address: str = f"{LOCALHOST}:0",
        silence_logs: int | bool = logging.WARNING,
        asynchronous: bool = False,
        loop: Any = None,  # noqa: ANN401 - Tornado's, as every cluster of Dask takes it
    ) -> None:
        """``minimum`` to ``maximum``: workers, one processor and one thread each.

        n_workers: Workers to be had, as :meth:`scale` says it. Default: as many as can be, up to ``maximum``.
        site, state: Site file and state directory of koala; default as for the command line.
        cluster: The only cluster of the site to be used. Default: all.
        walltime, job_name, priority, placement, environment, input_files: As in a job file; the job ends with its
            walltime. Input files are relative to the current directory.
        python: The Python of the nodes, with the same versions of distributed and of what tasks need.
        worker_options: Further options of ``dask worker``, such as ``["--resources", "GPU=1"]``.
        retire_grace: Seconds that a worker has to leave; half of them, tasks have to be finished.
        death_timeout: Seconds after which a worker ends that does not find the scheduler.
        security: Dask's. Default: a temporary key of this cluster's own, so that nobody else gets in. With
            ``Security()`` there is no TLS, and whoever reaches the port of the scheduler can run programs as you.
        host: Name or IP address by which nodes reach this process. Default: as they reach koala's control center.
        port: The port of the scheduler; 0: any.
        dashboard_address: Where Dask's dashboard is served, to everybody who reaches it. Default: this host alone.
        silence_logs, asynchronous, loop: As for Dask's LocalCluster.

        Raises ConfigurationError when site or job are not right, JobRefusedError, and ServiceUnavailableError when no
        service of koala runs and none can be begun.
        """
        self._site_file = find_site_file(None if site is None else Path(site))
        self._directory = state_directory(None if state is None else Path(state))
        check_directory(self._directory)
        self._site = load_site(self._site_file, load_plugins())
        self._settings = WorkerSettings(
            minimum=minimum,
            maximum=maximum,
            job_name=job_name,
            walltime=walltime,
            python=python,
            worker_options=tuple(worker_options),
            environment=dict(environment or {}),
            input_files=tuple(str(Path(file).absolute()) for file in input_files),
            cluster=cluster,
            placement=placement,
            priority=priority,
            retire_grace=retire_grace,
            death_timeout=death_timeout,
        )
        self._require_room_to_change()
        credentials = Security.temporary() if security is None else security
        self._credentials = credentials_of_workers(credentials)
        if not self._credentials:
            logger.warning("without TLS, whoever reaches the port of the scheduler can run programs as you")
        self._node_address = host or self._site.control_center.node_address
        self._wanted = 0
        self._want(maximum if n_workers is None else n_workers)
        with self.described(f"tls://{LOCALHOST}:0", self._wanted):
            pass  # what is wrong with it is said now, before anything is begun
        scheduler = {
            "host": listening_address(self._site.control_center, host),
            "port": port,
            "protocol": "tls://" if self._credentials else "tcp://",
            "security": credentials,
            "dashboard_address": dashboard_address,
        }
        self._served_at = dashboard_address.rpartition(":")[0]
        super().__init__(
            workers=self._workers_spec(),
            scheduler={"cls": Scheduler, "options": scheduler},
            worker={"cls": WorkersJob},
            security=credentials,
            silence_logs=silence_logs,
            asynchronous=asynchronous,
            loop=loop,
        )

    @property
    def job_id(self) -> str:
        """The id of koala's job, for `koala status` and `koala explain`; empty while there is none."""
        job = self.workers.get(JOB)
        return job.job_id if isinstance(job, WorkersJob) else ""

    def scale(  # type: ignore[override] # Dask's own clusters return something to be awaited, too
        self, n: int = 0, memory: object = None, cores: int | None = None
    ) -> NoOpAwaitable | None:
        """Ask for ``n`` workers (or ``cores``, which is the same): at most so many, and as many of them as can be had.

        0 ends the job; the next number begins another one. Raises ValueError for others than 0 and ``minimum`` to
        ``maximum``, and for ``memory``, which koala does not count.
        """
        if memory is not None:
            raise ValueError("koala counts processors, not memory: give n or cores")
        self._want(max(n, cores or 0))
        self._plan_job()
        return NoOpAwaitable() if self.asynchronous else None

    scale_up = scale

    async def scale_down(self, workers: Iterable[object]) -> None:
        """Do without workers that Dask has retired (this is how :meth:`adapt` makes the cluster smaller)."""
        left = max(0, self._wanted - len(set(map(str, workers))))
        async with self._lock:
            job = self.workers.get(JOB)
            if isinstance(job, WorkersJob):
                await job.settled(left)  # or koala would ask others to leave in their place
        self._want(left if left == 0 else max(left, self._settings.minimum))
        self._plan_job()

    def adapt(  # type: ignore[override] # all others are handed on
        self,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
        **more: Any,  # noqa: ANN401 - Dask's
    ) -> Adaptive:
        """Let Dask's load say how many workers are wanted, between ``minimum`` and ``maximum``.

        Default: those of the cluster. Raises ValueError for others beyond them, but for ``minimum=0`` where the cluster
        has 1: then the job ends when nothing is to be done, and another one begins.
        """
        least, most = self._settings.minimum, self._settings.maximum
        minimum = least if minimum is None else minimum
        maximum = most if maximum is None else min(maximum, most)
        if not (least <= minimum <= maximum or (minimum == 0 and least == 1 <= maximum)):
            message = f"adapt(minimum={minimum}, maximum={maximum}): the cluster has {least} to {most} workers"
            raise ValueError(message)
        return super().adapt(minimum=minimum, maximum=maximum, **more)

    @property
    def plan(self) -> set[str]:
        """The workers that there are to be: those that are there, and names for those that are not yet."""
        there = sorted(map(str, self.observed))[: self._wanted]
        return {*there, *(f"expected-{number}" for number in range(self._wanted - len(there)))}

    @property
    def requested(self) -> set[str]:
        """The workers that koala was asked for."""
        return self.plan

    @property
    def dashboard_link(self) -> str:
        """Where Dask's dashboard is, as seen from this host; empty without one."""
        link: str = super().dashboard_link
        served, contact = self._served_at, urlsplit(self.scheduler_address).hostname
        return link.replace(f"//{contact}:", f"//{served}:") if served and contact else link

    def _threads_per_worker(self) -> int:
        return 1

    def _want(self, workers: int) -> None:
        least, most = self._settings.minimum, self._settings.maximum
        if workers != 0 and not least <= workers <= most:
            raise ValueError(f"{workers} workers: the cluster has {least} to {most} of them, or 0 and no job")
        self._wanted = workers

    def _require_room_to_change(self) -> None:
        least, most = self._settings.minimum, self._settings.maximum
        if least >= most:
            message = f"KoalaCluster: found minimum {least} and maximum {most}, allowed is a larger maximum"
            raise ConfigurationError(message, hint="workers come and go between the two")

    # ---- the job ----------------------------------------------------------------------------------------------------

    def _workers_spec(self) -> dict[str, dict[str, object]]:
        if self._wanted == 0:
            return {}
        options = {
            "owner": self,
            "site_file": self._site_file,
            "directory": self._directory,
            "size": self._wanted,
        }
        # The "group" is what Dask shows as the number of workers that are wanted.
        return {JOB: {"cls": WorkersJob, "options": options, "group": range(self._wanted)}}

    def _plan_job(self) -> None:
        if self.status not in {Status.closing, Status.closed} or self._wanted == 0:
            self.worker_spec = self._workers_spec()
            if self.loop is not None:
                self.loop.add_callback(self._correct_state)

    async def _correct_state_internal(self) -> None:
        """Have the job as it is planned: none, a new one, or the one that there is in another size."""
        async with self._lock:
            job = self.workers.get(JOB)
            if isinstance(job, WorkersJob) and job.over:
                del self.workers[JOB]
                await job.close()  # Dask closes those alone that it knows
            if JOB in self.workers and JOB not in self.worker_spec and isinstance(self.scheduler, Scheduler):
                for address in list(self.scheduler.workers):
                    self.scheduler.close_worker(address)
        await super()._correct_state_internal()
        job = self.workers.get(JOB)
        if isinstance(job, WorkersJob) and self._wanted > 0:
            await job.resize(self._wanted)

    # ---- what the job asks and tells --------------------------------------------------------------------------------

    @contextmanager
    def described(self, scheduler: str, size: int) -> Iterator[Job]:
        """Have the job of ``size`` workers of the scheduler at an address, with its files, during the block."""
        with files_of(self._credentials) as files:
            values = job_values(
                self._settings,
                scheduler=as_nodes_reach_it(scheduler, self._node_address),
                size=max(size, self._settings.minimum),
                files={LEAVE: leave.__file__, **files},
            )
            yield job_of_values(values, source="KoalaCluster", user=login_name(), site=self._site, directory=Path.cwd())

    def say(self, text: str, *, trouble: bool = False) -> None:
        """Keep what is to be told of the job for :meth:`get_logs`, and log it."""
        self._cluster_manager_logs.append((datetime.now(), text))  # noqa: DTZ005 - as Dask does
        logger.log(logging.WARNING if trouble else logging.INFO, "koala: %s", text)

    def job_over(self, text: str, *, bad: bool) -> None:
        """Note that the job has ended by itself: nothing is wanted any more until :meth:`scale` says so."""
        tasks = self.scheduler.tasks.values() if isinstance(self.scheduler, Scheduler) else ()
        self.say(text, trouble=bad or any(task.state in UNFINISHED for task in tasks))
        if self.status is not Status.closing:
            self._wanted = 0
            self.worker_spec = {}
