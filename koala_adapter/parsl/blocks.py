# SPDX-License-Identifier: Apache-2.0
"""Blocks of Parsl as jobs of koala: what is submitted for a block, and what state its job's report means. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parsl.jobs.states import JobState as BlockState

from koala_adapter.model import EndReason
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.api.reports import JobReport

COMPONENT = "block"
SOURCE = "KoalaProvider"
"""What refusals of a block's job file call it."""
LONGEST_NAME = 128
_STATES: Mapping[JobState, BlockState] = {
    JobState.WAITING: BlockState.PENDING,
    JobState.CLAIMING: BlockState.PENDING,
    JobState.LAUNCHING: BlockState.PENDING,
    JobState.RUNNING: BlockState.RUNNING,
    JobState.COMPLETED: BlockState.COMPLETED,
    JobState.CANCELLED: BlockState.CANCELLED,
}
"""What Parsl calls the states of a job; all others are failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """What all blocks of a provider have in common."""

    processors: int
    walltime: str | int
    """As in a job file."""
    cluster: str | None = None
    """The cluster on which all blocks must run; None: any."""
    placement: str | None = None
    """Placement policy; None: that of the site."""
    priority: int = 0
    worker_init: str = ""
    """Lines of shell that are run before the workers start."""


def job_text(shape: BlockShape, command: str, name: str) -> str:
    """Return the job file of a block whose processors each run ``command``, a text for bash, as Parsl means it."""
    header: dict[str, object] = {"name": _title(name), "walltime": shape.walltime, "priority": shape.priority}
    if shape.placement is not None:
        header["placement"] = shape.placement
    # Parsl takes a placeholder for a node, and would start a worker on each of the processors that it finds there.
    block = {
        "name": COMPONENT,
        "command": ["/bin/bash", "-c", f"{shape.worker_init}\n{command}\n"],
        "processors": shape.processors,
        "environment": {"PARSL_CORES": "1"},
    }
    if shape.cluster is not None:
        block["cluster"] = shape.cluster
    else:
        block["flexible"] = shape.processors > 1
    return f"{_lines(header)}\n[[components]]\n{_lines(block)}"


def in_our_words(refusal: str) -> str:
    """Return what is wrong with a block's job file as what is wrong with the arguments of the provider."""
    own = re.sub(rf"^{SOURCE}:[0-9]+: (components\[0\]\.)?", f"{SOURCE}: ", refusal, flags=re.MULTILINE)
    return re.sub(rf"^{SOURCE}: processors\b", f"{SOURCE}: nodes_per_block", own, flags=re.MULTILINE)


def _title(name: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", " ", name)[:LONGEST_NAME] or "parsl"


def _lines(values: Mapping[str, object]) -> str:
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # A text of JSON is one of TOML, but for the one control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def block_state(report: JobReport) -> BlockState:
    """Return the state of a block. The end of its walltime is none of its failures: Parsl expects it."""
    outcome = report.outcome
    if outcome is not None and outcome.reason is EndReason.WALLTIME:
        return BlockState.TIMEOUT
    return _STATES.get(report.state, BlockState.FAILED)
