# SPDX-License-Identifier: Apache-2.0
"""Parsl on all clusters of a site: blocks of workers are jobs of koala. Needs the extra ``koala-adapter[parsl]``.

First a block as a job file, and the state of a job as the state of a block; then ``KoalaProvider``, which Parsl asks
for blocks and which asks a koala service for jobs.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from koala_adapter.errors import ConfigurationError, JobNotFoundError, KoalaError, ServiceUnavailableError
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobState
from koala_adapter.python.description import Component, require_slot_keys
from koala_adapter.python.description import Job as Description
from koala_adapter.python.site import Site

try:
    from parsl.jobs.states import JobState as BlockState
    from parsl.jobs.states import JobStatus
    from parsl.providers.base import ExecutionProvider
    from parsl.providers.errors import SubmitException
    from parsl.utils import RepresentationMixin
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "parsl":
        raise
    message = "koala_adapter.parsl needs Parsl, which is not installed: pip install 'koala-adapter[parsl]'"
    raise ModuleNotFoundError(message, name=error.name) from None

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import Job
    from koala_adapter.python.description import InputFile, SlotKeys
    from koala_adapter.report.values import JobReport


__all__ = [
    "KoalaProvider",
]


# -- Blocks as job files, and their states -------------------------------------------------------------------

COMPONENT = "block"
SOURCE = "KoalaProvider"
"""What refusals of a block's job file call it."""
LONGEST_NAME = 128
MIB_PER_GIB = 1024
"""Parsl counts memory in GiB."""
_STATES: Mapping[JobState, BlockState] = {
    JobState.WAITING: BlockState.PENDING,
    JobState.CLAIMING: BlockState.PENDING,
    JobState.LAUNCHING: BlockState.PENDING,
    JobState.RUNNING: BlockState.RUNNING,
    JobState.COMPLETED: BlockState.COMPLETED,
    JobState.CANCELLED: BlockState.CANCELLED,
}
"""What Parsl calls the states of a job; all others are failures."""


def in_our_words(refusal: str) -> str:
    """Return an error in a block's job file in terms of the provider's arguments."""
    own = re.sub(rf"^{SOURCE}: components\[0\]\.", f"{SOURCE}: ", refusal, flags=re.MULTILINE)
    return re.sub(rf"^{SOURCE}: processors\b", f"{SOURCE}: nodes_per_block", own, flags=re.MULTILINE)


_WORKERS_PORT = re.compile(r"--port[= ](\d+)")
_ADDRESSES = re.compile(r"(?<= -a )\S+")
"""Of the interchange, in the command of Parsl's HighThroughputExecutor."""


def through_koala(command: str) -> tuple[str, tuple[int, ...]]:
    """Return a block's command with koala's address of this host, and the port of the interchange to be relayed.

    Both are as they were, and none, where the command is none of Parsl's HighThroughputExecutor.
    """
    port, found = _WORKERS_PORT.search(command), _ADDRESSES.search(command)
    if port is None or found is None:
        return command, ()
    return _ADDRESSES.sub('"$KOALA_HOST_ADDRESS"', command, count=1), (int(port[1]),)


def _title(name: str) -> str:
    return "".join(one if one.isprintable() else " " for one in name)[:LONGEST_NAME] or "parsl"


def block_state(report: JobReport) -> BlockState:
    """Return the state of a block for Parsl; the end of its walltime is no failure."""
    outcome = report.outcome
    if outcome is not None and outcome.reason is EndReason.WALLTIME:
        return BlockState.TIMEOUT
    return _STATES.get(report.state, BlockState.FAILED)


# -- The provider --------------------------------------------------------------------------------------------

PAUSE = 30.0
"""Seconds until it is tried again to start a service that did not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block: its job and last known status."""

    job_id: str
    status: JobStatus


logger = logging.getLogger(__name__)


class KoalaProvider(ExecutionProvider, RepresentationMixin):
    """Blocks of workers on every cluster of a koala site, with one executor for all of them.

    A block is a koala job of ``nodes_per_block`` ranks. Each of them has a slot, wherever koala found one, and to Parsl
    it is a node of as many cores as the slot has ``threads``: one, on which one worker runs, unless more is asked for.

    The service is that of the state directory; one is started in the background when none answers, and goes on when
    Parsl has ended: what was cancelled is ended by it in any case.
    """

    def __init__(  # noqa: PLR0913 - Parsl's providers take these by name
        self,
        *,
        site: str | Path | None = None,
        state: str | Path | None = None,
        cluster: str | None = None,
        placement: str | None = None,
        priority: int | str = 0,
        walltime: str | int = "01:00:00",
        worker_init: str = "",
        export: str | Sequence[str] = (),
        setup: str | Sequence[str] = (),
        software: str | Sequence[str] = (),
        container: str | None = None,
        input_files: Sequence[InputFile] = (),
        nodes_per_block: int = 1,
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 1,
        parallelism: float = 1,
        status_polling_interval: int = 5,
        **slot: Unpack[SlotKeys],
    ) -> None:
        """Check everything against the site; no service is started yet.

        ``site``, ``state``: site file and state directory, by default where the command line has them. ``cluster``: the
        one on which blocks must run, by default any. ``placement``, ``priority``, ``walltime``: as in a job file; a
        ``walltime`` that is a number is in seconds. ``worker_init``: shell lines that are run before the workers start.
        ``export``, ``setup``, ``software``, ``container``, ``input_files``: as in a job file; ``setup`` is run before
        ``worker_init``.
        ``nodes_per_block``: ranks of a block; with a placement policy that splits, they may be on several clusters.
        ``threads``, ``memory``, ``gpus`` and the other keys of a slot, as in a job file: what each of these "nodes"
        has. An executor divides it by its ``cores_per_worker`` and ``mem_per_worker``. ``init_blocks``, ``min_blocks``,
        ``max_blocks``, ``parallelism``: how Parsl scales, see there.
        ``status_polling_interval``: seconds between two questions of Parsl.

        Raises ConfigurationError that names what is wrong, and what is allowed.
        """
        self.site = site
        self.state = state
        self.cluster = cluster
        self.placement = placement
        self.priority = priority
        self.walltime = walltime
        self.worker_init = worker_init
        self.export = export
        self.setup = setup
        self.software = software
        self.container = container
        self.input_files = input_files
        self.nodes_per_block = nodes_per_block
        self.init_blocks = init_blocks
        self.min_blocks = min_blocks
        self.max_blocks = max_blocks
        self.parallelism = parallelism
        self.cores_per_node = 1
        self.mem_per_node: float | None = None
        require_slot_keys("KoalaProvider", slot)
        self.slot = slot
        self.script_dir = None
        self.resources: dict[object, Any] = {}
        self._interval = status_polling_interval
        self._failed_start: tuple[float, KoalaError] | None = None
        self._koala = Site(site, state=state, notice=logger.warning)
        self._client = self._koala.client
        needed = self._job("true", "parsl").components[0].slot
        self.cores_per_node = needed.threads
        self.mem_per_node = needed.memory_mib / MIB_PER_GIB if needed.memory_mib else None

    @property
    def label(self) -> str:
        """Label of the provider in Parsl."""
        return "koala"

    @property
    def status_polling_interval(self) -> int:
        """Seconds between two calls of :meth:`status`."""
        return self._interval

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl.koala") -> str:
        """Submit a block whose processors each run ``command``, and return the id of its job.

        Raises SubmitException, with the message of koala, when it is refused or no service can be had.
        """
        if tasks_per_node != 1:
            raise _refused(job_name, f"koala runs one task on each processor, not {tasks_per_node}")
        try:
            job = self._job(command, job_name)
            self._stand_by()
            job_id = self._koala.submit(job).id
        except KoalaError as error:
            raise _refused(job_name, str(error)) from error
        self.resources[job_id] = Block(job_id=job_id, status=JobStatus(BlockState.PENDING))
        return job_id

    def status(self, job_ids: Sequence[object]) -> list[JobStatus]:
        """Return the state of blocks; UNKNOWN, with the reason, where no service can be had."""
        for job_id in job_ids:
            block = self.resources.get(job_id)
            if block is None or not block.status.terminal:
                self.resources[job_id] = Block(job_id=str(job_id), status=self._status(str(job_id)))
        return [self.resources[job_id].status for job_id in job_ids]

    def cancel(self, job_ids: Sequence[object]) -> list[bool]:
        """Cancel blocks; True where that is certain to be done: the service has noted it, or the block has ended."""
        return [self._cancel(str(job_id)) for job_id in job_ids]

    def _job(self, command: str, name: str) -> Job:
        """Return the job of a block, checked against the site. Raises ConfigurationError."""
        # Parsl takes a placeholder for a node, and would start a worker on each of the processors that it finds there.
        environment = {"PARSL_CORES": str(self.cores_per_node)}
        if self.mem_per_node is not None:
            environment["PARSL_MEMORY_GB"] = f"{self.mem_per_node:g}"
        ports: tuple[int, ...] = ()
        if self._koala.config.may_be_far(self.cluster):
            command, ports = through_koala(command)
        block = Component(
            ["/bin/bash", "-c", f"{self.worker_init}\n{command}\n"],
            name=COMPONENT,
            processors=self.nodes_per_block,
            environment=environment,
            export=self.export,
            setup=self.setup,
            software=self.software,
            container=self.container,
            input_files=self.input_files,
            cluster=self.cluster,
            flexible=True if self.cluster is None and self.nodes_per_block > 1 else None,
            **self.slot,
        )
        described = Description(
            components=[block],
            host_ports=ports,
            name=_title(name),
            walltime=self.walltime,
            priority=self.priority,
            placement=self.placement,
        )
        try:
            return self._koala.checked(described, source=SOURCE)
        except ConfigurationError as error:
            raise ConfigurationError(in_our_words(error.message), hint="see help(KoalaProvider)") from None

    def _status(self, job_id: str) -> JobStatus:
        try:
            return _status_of(self._report(job_id))
        except JobNotFoundError as error:
            return JobStatus(BlockState.MISSING, str(error))
        except KoalaError as error:
            return JobStatus(BlockState.UNKNOWN, str(error))

    def _report(self, job_id: str) -> JobReport:
        try:
            return self._client.job(job_id)
        except ServiceUnavailableError:
            self._stand_by()
            return self._client.job(job_id)

    def _stand_by(self) -> None:
        """Start a service if none answers. Raises the error of the last attempt if it was a moment ago."""
        if self._failed_start is not None and time.monotonic() < self._failed_start[0] + PAUSE:
            raise self._failed_start[1]
        try:
            self._koala.begin_service()
        except KoalaError as error:
            self._failed_start = time.monotonic(), error
            raise

    def _cancel(self, job_id: str) -> bool:
        try:
            try:
                self._client.cancel(job_id)
            except ServiceUnavailableError:
                self._stand_by()
                self._client.cancel(job_id)
        except JobNotFoundError:
            return True
        except KoalaError:
            return False
        return True


def _refused(name: str, why: str) -> SubmitException:
    return SubmitException(name, why)  # type: ignore[no-untyped-call] # Parsl's, which has no types


def _status_of(report: JobReport) -> JobStatus:
    said = report.explanation if report.outcome is None else report.outcome.detail
    output = Path(report.output_directory) / COMPONENT
    return JobStatus(
        block_state(report),
        said or None,
        None if report.outcome is None else report.outcome.exit_code,
        str(output / "0.out"),
        str(output / "0.err"),
    )
