# SPDX-License-Identifier: Apache-2.0
"""Child process that reads with pyslurm and prints JSON: ``python pyslurm_reader.py version|nodes|jobs [USER]``.

Never imported by the service: pyslurm ends the whole process when slurm.conf is not to its liking, and holds the
interpreter for 10 seconds when the controller does not answer. Imports nothing of ours, so that it can be run by path.
Written for the API of pyslurm 25.11; its rows are those of squeue and sinfo as the plugin asks for them.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Value = str | int | float | None
Row = list[str]


class Node(Protocol):
    """What is used of pyslurm.Node."""

    name: str
    state: str
    partitions: list[str] | None
    allocated_cpus: int | None
    idle_cpus: int | None
    total_cpus: int | None
    real_memory: int | None
    cpu_load: float | None


class Job(Protocol):
    """What is used of pyslurm.Job."""

    id: int
    array_id: int | None
    array_task_id: int | None
    array_tasks_waiting: str | None
    user_name: str | None
    state: str
    state_reason: str | None
    cpus: int | None
    partition: str | None
    allocated_nodes: str | None
    submit_time: int | None
    start_time: int | None
    end_time: int | None
    exit_code: int | None
    exit_code_signal: int | None
    name: str | None


def text(value: Value) -> str:
    """Return a value as the commands would print it."""
    return "" if value is None else str(value)


def node_rows(nodes: Iterable[Node]) -> Iterator[Row]:
    """Return name, partition, state, allocated/idle/other/total processors, MiB and load, for each partition."""
    for node in nodes:
        allocated, idle, total = (node.allocated_cpus or 0, node.idle_cpus or 0, node.total_cpus or 0)
        counts = f"{allocated}/{idle}/{max(0, total - allocated - idle)}/{total}"
        for partition in node.partitions or [""]:
            yield [node.name, partition, node.state, counts, text(node.real_memory), text(node.cpu_load)]


def job_rows(jobs: Iterable[Job], user: str) -> Iterator[Row]:
    """Return the fields of squeue for each job, of one user only if ``user`` is given."""
    for job in jobs:
        if user and job.user_name != user:
            continue
        yield [
            identity(job),
            text(job.user_name),
            job.state,
            text(job.cpus),
            text(job.partition),
            text(job.allocated_nodes),
            text(job.submit_time),
            text(job.start_time),
            text(job.end_time),
            f"{job.exit_code or 0}:{job.exit_code_signal or 0}",
            job.state_reason or "None",
            text(job.name),
        ]


def identity(job: Job) -> str:
    """Return the id of a job as squeue prints it: ``12_[1-4]`` for elements of an array that wait together."""
    if not job.array_id:
        return str(job.id)
    if job.array_task_id is None and job.array_tasks_waiting:
        return f"{job.array_id}_[{job.array_tasks_waiting.strip('[]')}]"
    # pyslurm shows element 0 as None.
    return f"{job.array_id}_{job.array_task_id or 0}"


def main(arguments: list[str]) -> int:
    """Print what is asked for as one JSON object; return the exit status."""
    what, user = arguments[0], arguments[1] if len(arguments) > 1 else ""
    try:
        import pyslurm  # noqa: PLC0415 - importing may end the process: only here, and only when asked
    except Exception as error:  # noqa: BLE001 - a wrong build raises anything
        print(f"pyslurm cannot be imported: {error}", file=sys.stderr)  # noqa: T201 - this is a program
        return 3
    answer: dict[str, object] = {"version": getattr(pyslurm, "__version__", None) or metadata.version("pyslurm")}
    if what == "nodes":
        answer["rows"] = list(node_rows(pyslurm.Nodes.load().values()))
    elif what == "jobs":
        answer["rows"] = list(job_rows(pyslurm.Jobs.load().values(), user))
    print(json.dumps(answer))  # noqa: T201 - this is a program
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
