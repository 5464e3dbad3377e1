# SPDX-License-Identifier: Apache-2.0
"""The fake pyslurm: as much of 25.11.2 as the helper uses, with what that leaves out or gets wrong.

Files in the directory of the fake cluster make it fail: ``library-release`` holds the release that it is for, with
``library-aborts`` each listing and each change ends the process, with ``library-hangs`` no listing ends.
"""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.fakes.scripts import Refusal
from tests.fakes.slurm import programs
from tests.fakes.slurm.state import Store, schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.slurm.state import Job as FakeJob

RELEASE = "25.11.7"
SIGNALLING_PENDING = 2020

_conf = ""


class RPCError(Exception):
    """Slurm refused, or did not answer."""

    def __init__(self, msg: str, errno: int = 2000) -> None:
        super().__init__(msg)
        self.msg = msg
        self.errno = errno


def slurm_api_version() -> tuple[int, int, int]:
    """Return the release that the library is for."""
    file = Path(os.environ["SLURM_CONF"]).parent / "library-release"
    major, minor, micro = (file.read_text() if file.exists() else RELEASE).split(".")
    return int(major), int(minor), int(micro)


def slurm_init(conf: str | None = None) -> None:
    """Read slurm.conf; where there is none, end the process, as libslurm does."""
    global _conf  # noqa: PLW0603 - as the library's
    _conf = conf or os.environ["SLURM_CONF"]
    if not Path(_conf).is_file():
        os._exit(1)


def _store() -> Store:
    store = Store(Path(_conf))
    if store.down:
        raise RPCError("Unable to contact slurm controller (connect failure)", 1800)
    return store


class JobSubmitDescription:
    """Changes of a job."""

    def __init__(self, **changes: Any) -> None:  # noqa: ANN401 - as the library's
        self.changes = changes


class Job:
    """A job as it is told by number, or one of a listing."""

    def __init__(self, number: int) -> None:
        self.id = number

    def _run(self, program: str, *arguments: str) -> None:
        store = _store()
        if (store.directory / "library-aborts").exists():
            os.abort()
        with store.locked() as state:
            identity = next((job.identity for job in state.jobs if job.id == self.id), str(self.id))
        try:
            programs.PROGRAMS[program](store, [word.replace("JOB", identity) for word in arguments])
        except Refusal as refusal:
            raise RPCError(refusal.text) from None

    def release(self) -> None:
        self._run("scontrol", "release", "JOB")

    def requeue(self) -> None:
        """Queue it again."""
        self._run("scontrol", "requeue", "JOB")

    def send_signal(self, number: int, steps: str = "children") -> None:
        """Send a signal; what waits cannot be signalled."""
        assert steps == "all"
        with _store().locked() as state:
            if any(job.id == self.id and job.state == "PENDING" for job in state.jobs):
                raise RPCError("Job can not be altered now, try again later", SIGNALLING_PENDING)
        self._run("scancel", "--full", "--state=RUNNING", f"--signal={number}", "JOB")

    def notify(self, text: str) -> None:
        """Refuse, as scontrol does in the fake."""
        self._run("scontrol", "notify", "JOB", text)

    def modify(self, description: JobSubmitDescription) -> None:
        """Change it."""
        words: dict[str, Callable[[Any], str]] = {
            "time_limit": lambda minutes: f"TimeLimit={minutes}",
            "required_nodes": lambda nodes: f"ReqNodeList={','.join(nodes)}",
            "is_requeueable": lambda wanted: f"Requeue={int(wanted)}",
        }
        for name, value in description.changes.items():
            self._run("scontrol", "update", "JobId=JOB", words[name](value))


class _ListedJob(Job):
    """A job with what the library tells of it."""

    def __init__(self, job: FakeJob) -> None:
        super().__init__(job.id)
        pending = job.state == "PENDING"
        status = job.status >> 8
        self.__dict__.update(dict.fromkeys(_NOT_ASKED_FOR))
        self.array_id = job.array if job.element >= 0 else None
        # Zero is none to it.
        self.array_task_id = job.element if job.element > 0 and not pending else None
        self.array_tasks_waiting = str(job.element) if job.element >= 0 and pending else None
        self.name = job.name
        self.user = job.user
        self.user_id, self.group_id = pwd.getpwnam(job.user)[2:4]
        self.partition, self.state = job.partition, job.state
        self.state_reason = None if job.reason == "None" else job.reason
        self.cpus, self.cpus_per_task, self.requeue_count = job.processors, 1, 0
        self.allocated_nodes = ",".join(job.places) or None
        self.num_nodes = len(job.places) or job.nodes_low
        self.max_nodes = max(job.nodes_low, job.nodes_high)
        self.submit_time = self.eligible_time = int(job.submitted)
        self.start_time = int(job.started) or None
        self.end_time = int(job.ended or (job.started + job.minutes * 60 if job.started else 0)) or None
        self.time_limit = job.minutes
        self.exit_code = status - 128 if status >= 128 else status
        self.exit_code_signal = job.status & 0x7F
        self.constraints: list[str] = []
        self.licenses: list[str] = []
        self.required_nodes = ",".join(job.wanted) or None
        self.working_directory = "/"
        self.comment = None if job.comment == "(null)" else job.comment
        self.admin_comment = None if job.admin_comment == "(null)" else job.admin_comment
        self.requested_tres = SimpleNamespace(node=SimpleNamespace(count=job.nodes_low))
        self.reservation = job.reservation or None
        self.priority = 1
        self.gres_per_node: dict[str, int] = {}
        self._places = job.places

    def get_resource_layout_per_node(self) -> dict[str, dict[str, Any]]:
        """Return the processors on each node."""
        return {node: {"cpu_ids": f"0-{count - 1}"} for node, count in self._places.items()}


_NOT_ASKED_FOR = (
    *("heterogeneous_id", "heterogeneous_offset", "account", "ntasks_per_node", "dependencies", "excluded_nodes"),
    *("memory_per_cpu", "memory_per_node", "resource_sharing", "requires_contiguous_nodes", "array_tasks_parallel"),
    *("cores_reserved_for_system", "threads_reserved_for_system", "boards_per_node", "sockets_per_board"),
    *("cores_per_socket", "threads_per_core", "ntasks_per_board", "ntasks_per_socket", "ntasks_per_core"),
    *("required_switches", "temporary_disk_per_node", "qos"),
    *("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket"),
)


class Jobs:
    """All jobs."""

    @staticmethod
    def load() -> dict[int, _ListedJob]:
        """Return all jobs by number."""
        store = _store()
        if (store.directory / "library-aborts").exists():
            os.abort()
        while (store.directory / "library-hangs").exists():
            time.sleep(0.1)
        with store.locked() as state:
            schedule(store, state)
            return {job.id: _ListedJob(job) for job in state.jobs}
