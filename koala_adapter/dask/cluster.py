# SPDX-License-Identifier: Apache-2.0
"""``KoalaCluster``: a Dask cluster whose workers come from all clusters of a site, as one malleable job of koala.

In this order: the job of the workers, addresses and TLS, the running job, and the cluster. Dask's scheduler runs in
the user's own process; koala's job consists of workers alone. Their number at a time follows from what is asked for
here, what is free, and which other jobs wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack
from urllib.parse import urlsplit

from dask.utils import parse_bytes
from distributed import Scheduler, Security
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.utils import NoOpAwaitable

from koala_adapter.api.asyncclient import AsyncClient
from koala_adapter.config.fields import parse_size
from koala_adapter.config.jobfile import job_of_values
from koala_adapter.config.written import NotAllowedError
from koala_adapter.dask import leave
from koala_adapter.errors import ConfigurationError, JobNotFoundError, KoalaError, ServiceUnavailableError
from koala_adapter.host.privatedirectory import transient_directory
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import LOGICAL
from koala_adapter.python.description import Component, SlotKeys, require_slot_keys
from koala_adapter.python.description import Job as Description
from koala_adapter.python.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from os import PathLike

    from distributed.deploy.adaptive import Adaptive

    from koala_adapter.config.sitefile import ControlCenterConfig
    from koala_adapter.model import Job
    from koala_adapter.report.values import JobReport


# -- The job of the workers, as the keys of a job file -------------------------------------------------------

COMPONENT = "worker"
LEAVE = "leave.py"
FIRST_PORT = 1024
"""Stands for the port of a scheduler that does not listen yet."""
BYTES_PER_MIB = 1024**2
CREDENTIALS = {"ca_file": "dask-ca.pem", "cert": "dask-cert.pem", "key": "dask-key.pem"}
"""Files that a worker finds beside itself, by Dask's words for what is in them."""
_NAMED = 'exec "$@" --name "$KOALA_CLUSTER-$KOALA_JOB_ID.$KOALA_RANK"'
"""Only the worker itself knows where it is. The rest of its command stands in "$@", which the shell does not read."""
_FIND_SCHEDULER = 'host=$KOALA_HOST_ADDRESS; case $host in *:*) host="[$host]" ;; esac; '
"""It depends on the cluster of the worker where some of them reach the scheduler through koala."""


def job_of_workers(
    described: Description,
    *,
    death_timeout: int,
    scheduler: str,
    size: int,
    files: Mapping[str, str],
    relay: bool,
) -> Description:
    """Return the job of the workers of a scheduler.

    ``described``: what the user says of it; its one component is run by a Python, with further options of Dask's.
    ``scheduler``: its address as the nodes reach it. ``size``: workers to start with where so many processors are idle.
    ``files``: what a worker finds beside itself, to where it is on this host. ``relay``: some may reach the scheduler,
    and each other, through koala alone.
    """
    (worker,) = described.components
    worker = replace(
        worker,
        command=worker_command(
            worker, death_timeout=death_timeout, scheduler=scheduler, credentials=files, relay=relay
        ),
        initial=size,
        environment={
            "PYTHONDONTWRITEBYTECODE": "1",  # in a directory that lives as long as the worker
            **worker.environment,
        },
        input_files=[*worker.input_files, *({"source": at, "target": name} for name, at in files.items())],
    )
    ports = [urlsplit(scheduler).port or FIRST_PORT] if relay else ()
    return replace(described, components=[worker], relay=True if relay else None, host_ports=ports)


def source_of(file: str | PathLike[str]) -> str:
    """Return an input file as a job file has it: a logical name as it is, a path from the root on."""
    path = fspath(file)
    return path if path.startswith(LOGICAL) else str(Path(path).absolute())


def memory_of(worker: Component) -> int | None:
    """Return the MiB of a worker; None where none, or none that can be, is asked for: then the job is refused."""
    with suppress(NotAllowedError):
        return None if worker.memory is None else parse_size(worker.memory)
    return None


def worker_command(
    described: Component, *, death_timeout: int, scheduler: str, credentials: Mapping[str, str], relay: bool
) -> list[str]:
    """Return the command of a worker: Dask's own, with as many threads and as much memory as its slot has.

    It has no nanny, so that it gets signals itself, and no dashboard.
    """
    python, *own_options = map(str, described.command)
    memory = memory_of(described)
    options = ["--nthreads", str(described.threads or 1), *(["--memory-limit", f"{memory}MiB"] if memory else [])]
    options += ["--no-nanny", "--no-dashboard", "--preload", LEAVE]
    options += ["--death-timeout", str(death_timeout)]
    for part, name in CREDENTIALS.items():
        if name in credentials:
            options += [f"--tls-{part.replace('_', '-')}", name]
    worker = [python, "-m", "distributed.cli.dask_worker", *options, *own_options]
    if relay:
        parts = urlsplit(scheduler)
        return ["/bin/sh", "-c", f'{_FIND_SCHEDULER}{_NAMED} "{parts.scheme}://$host:{parts.port}"', "sh", *worker]
    return ["/bin/sh", "-c", _NAMED, "sh", *worker[:3], scheduler, *worker[3:]]


# -- Addresses of the scheduler, and keys for TLS between it and workers -------------------------------------

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nodes must reach the scheduler; who connects proves that it has the key


def listening_address(control_center: ControlCenterConfig, host: str | None) -> str:
    """Return the address on which the scheduler listens: that by which nodes reach it, where that is one of ours."""
    if host is None:
        return control_center.listen
    try:
        ip_address(host)
    except ValueError:
        return EVERYWHERE
    return host


def as_nodes_reach_it(scheduler: str, host: str) -> str:
    """Return the address of a scheduler with the host that nodes know."""
    parts = urlsplit(scheduler)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"


def credentials_of_workers(security: Security) -> dict[str, str]:
    """Return what workers need for TLS, by the names of the files; nothing where there is no TLS.

    Raises ConfigurationError when a file that ``security`` names cannot be read.
    """
    found: dict[str, str] = {}
    config = security.get_tls_config_for_role("worker")
    if not (config["ca_file"] and config["cert"]):
        return found
    for part, name in CREDENTIALS.items():
        value = config[part]
        if value is None:
            continue
        try:
            found[name] = value if "\n" in value else Path(value).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"KoalaCluster: security: the {part} of workers, {value}: {why}") from None
    return found


@contextmanager
def files_of(texts: Mapping[str, str], parent: Path) -> Iterator[dict[str, str]]:
    """Have texts in private files below a directory during the block; yields where each is, by its name."""
    with transient_directory(parent) as directory:
        paths = {name: directory / name for name in texts}
        for name, path in paths.items():
            path.touch(mode=0o600)
            path.write_text(texts[name], encoding="ascii")
        yield {name: str(path) for name, path in paths.items()}


# -- The job while it runs -----------------------------------------------------------------------------------
# It is submitted, followed, resized and ended through koala's service.

LOOK_AGAIN = 1.0
"""Seconds between two attempts to reach a service that went away."""
CLOSING = 5.0
"""Seconds that workers have to end by themselves once their scheduler has told them so."""
SETTLING = 10.0
"""Seconds for workers that Dask has retired to be gone from the job, too."""


class Owner(Protocol):
    """What a WorkersJob asks of its cluster, and tells it."""

    def described(self, scheduler: str, size: int) -> AbstractContextManager[Job]:
        """Have the job of ``size`` workers of the scheduler at an address, with its files, during the block."""

    def say(self, text: str, *, trouble: bool = False) -> None:
        """Called with messages for the user."""

    def job_over(self, text: str, *, bad: bool) -> None:
        """Note that the job has ended by itself; ``text`` says so, ``bad``: otherwise than well."""


class WorkersJob(ProcessInterface):
    """One malleable job of koala whose processes are the workers of a Dask scheduler.

    Its ``start`` raises ServiceUnavailableError when no service runs and none can be begun, and JobRefusedError.
    """

    def __init__(
        self,
        scheduler: str,
        *,
        name: str,
        owner: Owner,
        site: Site,
        size: int,
    ) -> None:
        """``scheduler``: its address. ``site``: where the job runs. ``size``: workers."""
        super().__init__(scheduler=scheduler, name=name)
        self.job_id = ""
        self.report: JobReport | None = None
        self._scheduler = scheduler
        self._site = site
        self._client = AsyncClient(site.directory)
        self._owner = owner
        self._wanted = size
        self._told: int | None = None
        self._changed = asyncio.Condition()
        self._follower: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Tell whether its application has ended, or is lost to us."""
        return self.status is Status.closed or (self.report is not None and self.report.outcome is not None)

    @property
    def size(self) -> int:
        """Return how many processors the job has."""
        components = () if self.report is None else self.report.components
        return sum(one.processors for one in components)

    async def start(self) -> None:
        """Submit the job, where no service runs through one that is begun; returns once koala has it."""
        pid = await asyncio.to_thread(self._site.begin_service)
        if pid is not None:
            self._owner.say(f"no koala service was running; started one in the background (pid {pid})")
        with self._owner.described(self._scheduler, self._wanted) as job:
            # It begins another service where this one ends before it has the job.
            self.job_id = (await asyncio.to_thread(self._site.submit, job)).id
        self._owner.say(f"submitted as job {self.job_id}")
        await self.resize(self._wanted)
        await super().start()
        self._follower = asyncio.create_task(self._follow())

    async def resize(self, size: int) -> None:
        """Set the wanted number of workers; a service that does not answer now is told when it does."""
        self._wanted = size
        if self._told == size or self.over:
            return
        try:
            await self._client.resize(self.job_id, size, COMPONENT)
        except KoalaError as error:
            if not self.over:
                self._owner.say(f"job {self.job_id} cannot be brought to {size} workers now: {error}", trouble=True)
        else:
            self._told = size

    async def settled(self, size: int) -> None:
        """Wait, for a bounded time, until the job has at most ``size`` processors."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLING), self._changed:
                await self._changed.wait_for(lambda: self.over or self.size <= size)

    async def _follow(self) -> None:
        lost = False
        while not self.over:
            try:
                async with aclosing(self._client.watch(self.job_id)) as reports:
                    async for report in reports:
                        await self._seen(report)
                        lost = False
                        if self.over:
                            return
                        await self.resize(self._wanted)
            except ServiceUnavailableError as error:
                if not lost:
                    self._owner.say(f"{error}; the workers go on", trouble=True)
                lost = True
                await asyncio.sleep(LOOK_AGAIN)
            except KoalaError as error:
                self.status = Status.closed
                self._owner.job_over(f"job {self.job_id} cannot be followed any more: {error}", bad=True)
                return

    async def _seen(self, report: JobReport) -> None:
        """Take in what koala tells of the job, and say what is new in it."""
        known = () if self.report is None else self.report.size_changes
        for one in report.size_changes:
            if one not in known:
                verb = "grew" if one.after > one.before else "shrank"
                self._owner.say(f"{verb} from {one.before} to {one.after} on {one.cluster}: {one.reason}")
        before, self.report = self.over, report
        if self.over and not before:
            if self.status is not Status.closing:
                text = f"job {self.job_id} has ended by itself: {report.explanation} (`koala logs {self.job_id}`)"
                self._owner.job_over(text, bad=report.outcome is None or report.outcome.exit_code != 0)
            self.status = Status.closed
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """End the job; returns once its application has ended, or the service knows that it is to end."""
        if self.job_id and self.status is not Status.closed:
            self.status = Status.closing
            await self._end()
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        await super().close()

    async def _end(self) -> None:
        try:
            if self.report is not None and self.report.launched_at is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLOSING), self._changed:
                        await self._changed.wait_for(lambda: self.over)
            if not self.over:
                await self._client.cancel(self.job_id)
        except JobNotFoundError:
            return
        except KoalaError as error:
            text = f"job {self.job_id} could not be cancelled: {error}; its workers end without their scheduler"
            self._owner.say(text, trouble=True)


# -- The cluster ---------------------------------------------------------------------------------------------

PRIVATE = "dask"
"""Directory of the state directory in which keys are while a job is submitted."""
JOB = "job"
"""The one entry in what :class:`SpecCluster` takes for a table of workers."""
LOCALHOST = "127.0.0.1"
UNFINISHED = frozenset({"waiting", "queued", "no-worker", "processing"})
"""States of tasks that wait for a worker, in the words of Dask's scheduler."""

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
        priority: int | str = 0,
        placement: str | None = None,
        environment: Mapping[str, str] | None = None,
        export: str | Sequence[str] = (),
        setup: str | Sequence[str] = (),
        software: str | Sequence[str] = (),
        container: str | None = None,
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
        **slot: Unpack[SlotKeys],
    ) -> None:
        """``minimum`` to ``maximum``: workers, each with a processor and a thread unless ``threads`` says more.

        n_workers: Workers to be had, as :meth:`scale` says it. Default: as many as can be, up to ``maximum``.
        site, state: Site file and state directory of koala; default as for the command line.
        cluster: The only cluster of the site to be used. Default: all.
        walltime, job_name, priority, placement, environment, input_files: As in a job file; the job ends with its
            walltime. Input files are relative to the current directory.
        export, setup, software, container: As in a job file. In a container, ``python`` is that of the image.
        slot: What each worker needs, by the keys of a job file: threads, memory, gpus, exclusive, scratch, features,
            licenses, queue, account, qos, directives. Dask's ``--nthreads`` and ``--memory-limit`` are threads and
            memory, unless ``worker_options`` say otherwise.
        python: The Python of the nodes, with the same versions of distributed and of what tasks need.
        worker_options: Further options of ``dask worker``, such as ``["--resources", "GPU=1"]``.
        retire_grace: Seconds that a worker has to leave; half of them, tasks have to be finished.
        death_timeout: Seconds after which a worker ends that does not find the scheduler.
        security: Dask's. Default: a temporary key of this cluster's own, so that other users cannot connect.
            With ``Security()`` there is no TLS, and all who reach the port of the scheduler can run programs as you.
        host: Name or IP address by which nodes reach this process. Default: as they reach koala's control center; from
            other sites through koala, which then also takes the workers to each other.
        port: The port of the scheduler; 0: any.
        dashboard_address: Where Dask's dashboard is served, to everybody who reaches it. Default: this host alone.
        silence_logs, asynchronous, loop: As for Dask's LocalCluster.

        Raises ConfigurationError when site or job are not right, JobRefusedError, and ServiceUnavailableError when no
        service of koala runs and none can be begun.
        """
        self._koala = Site(site, state=state, notice=logger.warning)
        self._site = self._koala.config
        _ = self._koala.directory
        require_slot_keys("KoalaCluster", slot)
        if minimum >= maximum:
            message = f"KoalaCluster: found minimum {minimum} and maximum {maximum}, allowed is a larger maximum"
            raise ConfigurationError(message, hint="workers come and go between the two")
        self._least, self._most, self._death_timeout = minimum, maximum, death_timeout
        worker = Component(
            [python, *worker_options],
            name=COMPONENT,
            minimum=minimum,
            maximum=maximum,
            cluster=cluster,
            flexible=cluster is None,
            retire_grace=retire_grace,
            environment={"DASK_LEAVE_SECONDS": f"{retire_grace / 2:g}", **(environment or {})},
            export=export,
            setup=setup,
            software=software,
            container=container,
            input_files=[source_of(file) for file in input_files],
            **slot,
        )
        self._described = Description(
            components=[worker],
            name=job_name,
            kind="malleable",
            runner="workers",
            walltime=walltime,
            priority=priority,
            placement=placement,
        )
        credentials = Security.temporary() if security is None else security
        self._credentials = credentials_of_workers(credentials)
        if not self._credentials:
            logger.warning("without TLS, whoever reaches the port of the scheduler can run programs as you")
        self._relay = host is None and self._site.may_be_far(cluster)
        self._node_address = host or self._site.control_center.node_address
        self._wanted = 0
        self._want(maximum if n_workers is None else n_workers)
        self._job(f"tls://{LOCALHOST}:0", self._wanted, {})  # what is wrong with it is said before anything is begun
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
        self, n: int = 0, memory: float | str | None = None, cores: int | None = None
    ) -> NoOpAwaitable | None:
        """Ask for ``n`` workers, or as many as have so many ``cores`` or so much ``memory``: at most so many.

        As many of them are there as can be had. 0 ends the job; the next number begins another one. Raises ValueError
        for others than 0 and ``minimum`` to ``maximum``, and for ``memory`` where workers have none of their own.
        """
        if memory is not None:
            n = max(n, math.ceil(parse_bytes(memory) / self._memory_per_worker()))
        self._want(max(n, math.ceil((cores or 0) / (self._described.components[0].threads or 1))))
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
        self._want(left if left == 0 else max(left, self._least))
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
        least, most = self._least, self._most
        minimum = least if minimum is None else minimum
        maximum = most if maximum is None else min(maximum, most)
        if not (least <= minimum <= maximum or (minimum == 0 and least == 1 <= maximum)):
            message = f"adapt(minimum={minimum}, maximum={maximum}): the cluster has {least} to {most} workers"
            raise ValueError(message)
        return super().adapt(minimum=minimum, maximum=maximum, **more)

    @property
    def plan(self) -> set[str]:
        """Names of the wanted workers: of running ones, and of ones that are still to start."""
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

    def _memory_per_worker(self) -> int:
        memory = memory_of(self._described.components[0])
        if memory is None:
            raise ValueError("the workers have no memory of their own: give n or cores, or the cluster memory=")
        return memory * BYTES_PER_MIB

    def _want(self, workers: int) -> None:
        least, most = self._least, self._most
        if workers != 0 and not least <= workers <= most:
            raise ValueError(f"{workers} workers: the cluster has {least} to {most} of them, or 0 and no job")
        self._wanted = workers

    # ---- the job ----------------------------------------------------------------------------------------------------

    def _workers_spec(self) -> dict[str, dict[str, object]]:
        if self._wanted == 0:
            return {}
        options = {"owner": self, "site": self._koala, "size": self._wanted}
        # The "group" is what Dask shows as the number of workers that are wanted.
        return {JOB: {"cls": WorkersJob, "options": options, "group": range(self._wanted)}}

    def _plan_job(self) -> None:
        if self.status not in {Status.closing, Status.closed} or self._wanted == 0:
            self.worker_spec = self._workers_spec()
            if self.loop is not None:
                self.loop.add_callback(self._correct_state)

    async def _correct_state_internal(self) -> None:
        """Bring the job to the planned size: end it, submit a new one, or resize the running one."""
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
        with files_of(self._credentials, self._koala.directory / PRIVATE) as files:
            yield self._job(scheduler, size, files)

    def _job(self, scheduler: str, size: int, files: Mapping[str, str]) -> Job:
        """Return the job, with keys in ``files``. Raises ConfigurationError."""
        described = job_of_workers(
            self._described,
            death_timeout=self._death_timeout,
            scheduler=as_nodes_reach_it(scheduler, self._node_address),
            size=max(size, self._least),
            files={LEAVE: leave.__file__, **files},
            relay=self._relay,
        )
        values = described.values()
        return job_of_values(values, source="KoalaCluster", user=login_name(), site=self._site, directory=Path.cwd())

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
