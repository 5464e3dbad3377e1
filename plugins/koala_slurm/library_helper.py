# SPDX-License-Identifier: Apache-2.0
"""The pyslurm helper process: reads requests from stdin and writes results to stdout, as lines of JSON.

Run as a program of its own by the path of this file, because pyslurm is under the GPL, may end its process, and keeps
all threads waiting while it waits. It is the only file that imports pyslurm, and needs nothing else but the standard
library. It ends when its stdin is closed.

Jobs are told as squeue and scontrol write them, so that they are read by the same code. The helper keeps the last
picture and sends only jobs that have changed since. What pyslurm cannot tell exactly is marked, and read by commands.
"""

from __future__ import annotations

import ctypes
import grp
import importlib
import json
import os
import pwd
import sys
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

Values = Mapping[str, Any]

WATCHED = (
    *("id", "array_id", "array_task_id", "array_tasks_waiting", "heterogeneous_id", "heterogeneous_offset"),
    *("name", "user_id", "group_id", "account", "partition", "state", "state_reason", "cpus", "allocated_nodes"),
    *("submit_time", "eligible_time", "start_time", "end_time", "time_limit", "exit_code", "exit_code_signal"),
    *("cpus_per_task", "ntasks_per_node", "constraints", "dependencies", "required_nodes", "requeue_count"),
    *("working_directory", "comment", "admin_comment"),
)
"""Attributes of a job that are looked at each time: when one differs, the job is sent again."""

TRACKABLE = ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")

STATE = WATCHED.index("state")
ESTIMATES = (WATCHED.index("start_time"), WATCHED.index("end_time"))
"""Of a pending job these are the controller's estimates, which change all the time and mean nothing here."""

NOT_RUNNING = frozenset({2020, 2024})
"""What Slurm says when a job that waits or is ending is signalled; scancel passes such jobs over."""


# -- A job in the words of squeue and scontrol ---------------------------------------------------------------


def row_of(values: Values) -> list[str]:
    """Return what squeue writes of a job, in the order of the fields that the plugin asks it for."""
    ends = values["end_time"]
    if values["time_limit"] is None and values["state"] in {"RUNNING", "SUSPENDED"}:
        ends = None
    return [
        squeue_id(values),
        user_name(values["user_id"]),
        values["state"],
        str(values["cpus"]),
        values["partition"] or "",
        values["allocated_nodes"] or "",
        _moment(values["submit_time"]),
        _moment(values["start_time"]),
        _moment(ends),
        f"{values['exit_code']}:{values['exit_code_signal']}",
        values["state_reason"] or "None",
        values["name"],
        "UNLIMITED" if values["time_limit"] is None else f"{values['time_limit']}:00",
        _moment(values["eligible_time"]),
        "",
        str(values["cpus_per_task"]),
        str(values["ntasks_per_node"] or 0),
        ",".join(values["constraints"]),
        values["required_nodes"] or "",
        group_name(values["group_id"]),
        values["account"] or "",
        str(values["requeue_count"]),
        values["working_directory"] or "",
        values["comment"] or "",
        values["admin_comment"] or "",
    ]


def squeue_id(values: Values) -> str:
    """Return the id that squeue shows: ``12``, ``12_3``, ``12_[1-4]``, ``12+1``."""
    if values["array_id"] is not None:
        waiting = values["array_tasks_waiting"]
        # pyslurm shows element 0 as none.
        return f"{values['array_id']}_{f'[{waiting}]' if waiting else values['array_task_id'] or 0}"
    if values["heterogeneous_id"] is not None:
        return f"{values['heterogeneous_id']}+{values['heterogeneous_offset'] or 0}"
    return str(values["id"])


def untold(values: Values) -> str:
    """Return what pyslurm reports incompletely for a job; empty when it reports everything that is needed."""
    if values["name"] is None:
        return "a name that pyslurm takes for none"
    if values["dependencies"] is not None:
        return "dependencies, of which pyslurm leaves some out"
    if values["exit_code"]:
        return "an exit code, from which pyslurm may have taken 128"
    element = values["array_task_id"] or values["array_tasks_waiting"]
    if values["array_id"] is not None and not element and not values["allocated_nodes"]:
        return "element 0, or an array that was cancelled before any of it ran"
    if values["cpus_per_task"] is None:
        return "processors by generic resource"
    return ""


def details_of(job: Any) -> tuple[dict[str, str], list[tuple[str, str]], str]:  # noqa: ANN401 - pyslurm has no types
    """Return a job's details as ``scontrol --details show job`` has them: values, CPU ids by node, missing values."""
    pending = job.state == "PENDING"
    # It does not show all of them: see the client, which has no details told where there are generic resources.
    if job.gres_per_node or any(getattr(job, name) is not None for name in TRACKABLE):
        return {}, [], "trackable resources, of which pyslurm leaves some out"
    nodes = job.num_nodes or 0
    most = (job.max_nodes or 0) if pending else 0
    asked = job.requested_tres and job.requested_tres.node
    values = {
        "NumNodes": f"{min(nodes, most)}-{most}" if most else str(nodes),
        "NumCPUs": str(job.cpus),
        "ReqNodeList": job.required_nodes or "",
        "ExcNodeList": job.excluded_nodes or "",
        "MinMemoryCPU": f"{job.memory_per_cpu}M" if job.memory_per_cpu else "",
        "MinMemoryNode": f"{job.memory_per_node}M" if job.memory_per_node else "",
        "Reason": "_".join((job.state_reason or "None").split()),
        "ReqTRES": f"node={asked.count}" if asked else "",
        "Features": ",".join(job.constraints),
        "OverSubscribe": job.resource_sharing or "",
        "Contiguous": "1" if job.requires_contiguous_nodes else "0",
        "Licenses": ",".join(job.licenses),
        "ArrayTaskThrottle": str(job.array_tasks_parallel or "") if job.array_id is not None else "",
        "HetJobId": str(job.heterogeneous_id or ""),
        "CoreSpec": str(job.cores_reserved_for_system or ""),
        "ThreadSpec": str(job.threads_reserved_for_system or ""),
        "Reservation": job.reservation or "",
        "ReqB:S:C:T": _joined(job.boards_per_node, job.sockets_per_board, job.cores_per_socket, job.threads_per_core),
        "NtasksPerN:B:S:C": _joined(
            job.ntasks_per_node, job.ntasks_per_board, job.ntasks_per_socket, job.ntasks_per_core
        ),
        "ReqSwitch": str(job.required_switches or ""),
        "MinTmpDiskNode": str(job.temporary_disk_per_node or ""),
        "QOS": job.qos or "",
    }
    places: list[tuple[str, str]] = []
    if not pending and job.allocated_nodes and job.num_nodes and job.num_nodes > 1:
        places = [(node, str(one["cpu_ids"])) for node, one in job.get_resource_layout_per_node().items()]
        if sum(_count(cpus) for _, cpus in places) != job.cpus:
            return {}, [], "its processors on nodes whose cores have threads"
    return values, places, ""


def _count(text: str) -> int:
    ranges = (part.partition("-") for part in text.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _joined(*numbers: object) -> str:
    return ":".join(str(number) if isinstance(number, int) else "*" for number in numbers)


def _moment(seconds: int | None) -> str:
    return str(seconds) if seconds else "N/A"


@cache
def user_name(number: int) -> str:
    """Return a user's name, or the number for an unknown one, as squeue does."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@cache
def group_name(number: int) -> str:
    """Return a group's name, or the number for an unknown one."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


# -- The picture of all jobs ---------------------------------------------------------------------------------


class Picture:
    """The jobs as they were last sent to the plugin."""

    def __init__(self, *, tells_details: bool = False) -> None:
        self._tells_details = tells_details
        self._seen: dict[int, tuple[Any, ...]] = {}
        self._order: list[int] | None = None
        # What was unknown may have a name by now.
        user_name.cache_clear()
        group_name.cache_clear()
        self._watched = attrgetter(*WATCHED)

    def update(self, jobs: Mapping[int, Any], again: set[int]) -> dict[str, Any]:
        """Return job numbers in squeue's order and the jobs changed since the last call.

        ``again``: numbers of jobs and arrays that are to be sent as they are, changed or not.
        """
        seen: dict[int, tuple[Any, ...]] = {}
        changed: list[dict[str, Any]] = []
        ranks: list[tuple[int, int, int, int]] = []
        for number, job in jobs.items():
            try:
                watched = self._watched(job)
            except UnicodeDecodeError:
                watched = ()
            if not watched:
                array = job.array_id or number
                changed.append({"number": number, "asked": str(array), "untold": "text that is no UTF-8"})
                ranks.append((-(job.priority or 0), array, job.array_task_id or 0, number))
                continue
            if watched[STATE] == "PENDING":
                watched = tuple(None if place in ESTIMATES else value for place, value in enumerate(watched))
            seen[number] = watched
            array = watched[1]
            ranks.append((-(job.priority or 0), array or number, watched[2] or 0, number))
            if watched != self._seen.get(number) or number in again or array in again:
                changed.append(self._told(number, job, dict(zip(WATCHED, watched, strict=True))))
        order = [rank[-1] for rank in sorted(ranks)]
        result: dict[str, Any] = {"changed": changed}
        if order != self._order:
            result["order"] = order
        self._seen, self._order = seen, order
        return result

    def _told(self, number: int, job: Any, values: Values) -> dict[str, Any]:  # noqa: ANN401 - pyslurm has no types
        why = untold(values)
        if why:
            array = values["array_id"]
            return {"number": number, "asked": str(number if array is None else array), "untold": why}
        told = {"number": number, "row": row_of(values), "details": None, "places": []}
        if values["heterogeneous_id"] is not None:
            # scontrol calls its components otherwise, so that what it shows of them is not found.
            return {**told, "details": {}}
        if not self._tells_details:
            return told
        details, places, why = details_of(job)
        return told if why else {**told, "details": details, "places": places}


# -- The library ---------------------------------------------------------------------------------------------


class Library:
    """Access to pyslurm, imported when opened, as that may end the process."""

    def __init__(self) -> None:
        self._pyslurm: Any = None
        self._picture = Picture()
        self._tells_details = False

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request; return its result or error."""
        operations: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "open": self._open,
            "jobs": self._jobs,
            "change": self._change,
        }
        try:
            return {"result": operations[request["op"]](request)}
        except Exception as error:  # noqa: BLE001 - pyslurm's classes do not exist before it is loaded
            kind = "slurm" if hasattr(error, "errno") else "library"
            message = getattr(error, "msg", None) or str(error) or type(error).__name__
            return {"error": {"kind": kind, "message": str(message)}}

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        conf, release = request["conf"], request["release"]
        # Without it libslurm tries for a minute, and then ends the process.
        if conf is not None and not Path(conf).is_file():
            raise RuntimeError(f"{conf} does not exist")
        if self._pyslurm is None:
            try:
                pyslurm = importlib.import_module("pyslurm")
            except (ImportError, OSError) as error:
                raise RuntimeError(f"pyslurm cannot be loaded: {error}") from error
            version = tuple(int(part) for part in pyslurm.slurm_api_version())
            found = f"{version[0]}.{version[1]:02}"
            if found != release:
                raise RuntimeError(f"pyslurm is for Slurm {found}, and the controller runs {release}")
            pyslurm.slurm_init(conf)
            self._pyslurm = pyslurm
        self._tells_details = request["details"]
        self._picture = Picture(tells_details=self._tells_details)
        return {"version": ".".join(map(str, self._pyslurm.slurm_api_version()))}

    def _jobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        jobs = self._pyslurm.Jobs.load()
        if request["whole"]:
            self._picture = Picture(tells_details=self._tells_details)
        return self._picture.update({job.id: job for job in jobs.values()}, set(request["again"]))

    def _change(self, request: Mapping[str, Any]) -> dict[str, Any]:
        changes: Mapping[str, Callable[[Any, Any], None]] = {
            "release": lambda job, _: job.release(),
            "requeue": self._requeue,
            "signal": self._signal,
            "notify": lambda job, text: job.notify(text),
            "walltime": lambda job, minutes: job.modify(self._pyslurm.JobSubmitDescription(time_limit=minutes)),
            "pin": lambda job, node: job.modify(self._pyslurm.JobSubmitDescription(required_nodes=[node])),
        }
        changes[request["change"]](self._pyslurm.Job(int(request["job"])), request["value"])
        return {}

    def _requeue(self, job: Any, _: object) -> None:  # noqa: ANN401 - pyslurm has no types
        # Placeholders are submitted with --no-requeue.
        job.modify(self._pyslurm.JobSubmitDescription(is_requeueable=True))
        job.requeue()

    def _signal(self, job: Any, number: int) -> None:  # noqa: ANN401 - pyslurm has no types
        # pyslurm looks at errno, which an earlier call may have left, whatever comes of this one.
        _errno().value = 0
        try:
            job.send_signal(number, steps="all")
        except Exception as error:
            if getattr(error, "errno", None) not in NOT_RUNNING:
                raise


def _errno() -> ctypes.c_int:
    place = getattr(ctypes.CDLL(None), "__errno_location")
    place.restype = ctypes.POINTER(ctypes.c_int)
    return cast("ctypes.c_int", place().contents)


# -- The program ---------------------------------------------------------------------------------------------


def main() -> int:
    """Answer requests until stdin ends."""
    results = _claim_stdout()
    library = Library()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer = {"number": request["number"], **library.answer(request)}
        try:
            results.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            results.flush()
        except OSError:
            break
    return 0


def _claim_stdout() -> BinaryIO:
    """Reserve stdout for results; the library's own output goes to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(descriptor, "wb")


if __name__ == "__main__":
    sys.exit(main())
