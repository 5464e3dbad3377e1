# SPDX-License-Identifier: Apache-2.0
"""``scontrol update`` of the fake's jobs, with what Slurm does besides what it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.slurm.options import Refusal, selected, split_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.fakes.slurm.state import Job, State, Store

ONE_NUMBER_IS_BOTH_SINCE = (23, 11)
"""From here on ``NumNodes=2`` is an upper bound, too."""

AS_GIVEN: Mapping[str, tuple[str, type[int | str]]] = {
    "Comment": ("comment", str),
    "NumCPUs": ("processors", int),
    "TimeLimit": ("minutes", int),
}
"""What is taken as it is given, and where it is kept."""

INVALID_ID = "Invalid job id specified"


def update(store: Store, text: str, changes: Sequence[str]) -> None:
    """Change jobs."""
    with store.locked() as state:
        for part in split_jobs(text):
            jobs = selected(state, part)
            if not jobs:
                raise Refusal(f"{part}: {INVALID_ID}")
            for job in jobs:
                for change in changes:
                    name, _, value = change.partition("=")
                    _change(store, state, job, name, value)


def _change(store: Store, state: State, job: Job, name: str, value: str) -> None:
    identity = job.identity
    if name == "Requeue":
        job.requeue = value == "1"
    elif name == "ReqNodeList":
        nodes = [node for node in value.split(",") if node]
        if not set(nodes) <= set(store.settings["nodes"]):
            raise Refusal(f"{identity}: Invalid node name specified")
        job.wanted = nodes
    elif name == "NumNodes":
        _change_nodes(store, job, value)
    elif name == "MinCPUsNode":
        job.least = int(value)
        job.processors = job.nodes_low * job.least
    elif name in AS_GIVEN:
        attribute, kind = AS_GIVEN[name]
        setattr(job, attribute, kind(value))
    elif name == "Reservation":
        if value and value not in {one.name for one in state.reservations}:
            raise Refusal(f"Requested reservation is invalid for job {identity}")
        job.reservation = value
    else:
        raise Refusal(f"{identity}: Invalid change")


def _change_nodes(store: Store, job: Job, value: str) -> None:
    low, dash, high = value.partition("-")
    if dash or store.release >= ONE_NUMBER_IS_BOTH_SINCE:
        job.nodes_high = int(high or low)
    elif job.nodes_high and int(low) > job.nodes_high:
        raise Refusal(f"Node count specification invalid for job {job.identity}")
    job.nodes_low = int(low)
    job.processors = job.nodes_low * job.least
