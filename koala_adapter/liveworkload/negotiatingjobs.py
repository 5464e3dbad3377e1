# SPDX-License-Identifier: Apache-2.0
"""Scenarios of negotiation as live jobs, and what the program of one has printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koala_adapter.model import ClusterName, Component, InputFile, Job, JobId, JobKind, RunnerName
from koala_adapter.simulation.live_negotiations import Played, Said, Scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.simulation.live_negotiations import Pace

STEPPER = Path(__file__).with_name("stepper.py")
COMPONENT = "steps"
WALLTIME = 3600
LONGEST = 100.0
"""Seconds, but for delays, that the application computes where it never comes to its goal."""


def application(scenario: Scenario, pace: Pace, *, user: str, anywhere: bool, gate: Path | None = None) -> Job:
    """Return the application of a scenario.

    ``anywhere``: it may grow on other clusters than that of its beginning. ``gate``: a file, which its processes see,
    too; it asks for nothing before that is there.
    """
    most = max(pace.steps, round(LONGEST * scenario.initial / pace.work))
    gates = () if gate is None else (gate,)
    arguments = (pace.steps, pace.work, scenario.sizes, scenario.wish, scenario.goal, most, *gates)
    component = Component(
        name=COMPONENT,
        command=("python3", STEPPER.name, *(str(one) for one in arguments)),
        minimum=scenario.initial,
        maximum=scenario.maximum,
        initial=scenario.initial,
        flexible=anywhere,
        input_files=(InputFile(source=str(STEPPER), target=STEPPER.name),),
    )
    return _job(scenario.name, component, user, RunnerName.ADAPTIVE)


def rigid(processors: int, seconds: float, *, user: str, cluster: str) -> Job:
    """Return a rigid job that does nothing for some seconds."""
    component = Component(
        name="rigid",
        command=("sleep", f"{seconds:g}"),
        minimum=processors,
        maximum=processors,
        cluster=ClusterName(cluster),
    )
    return _job(f"rigid-{processors}", component, user, RunnerName.RANKS)


def _job(name: str, component: Component, user: str, runner: RunnerName) -> Job:
    return Job(
        id=JobId("0"),
        name=name,
        kind=JobKind.MALLEABLE if runner is RunnerName.ADAPTIVE else JobKind.RIGID,
        components=(component,),
        walltime=WALLTIME,
        user=user,
        submitted_at=0.0,
        runner=runner,
    )


def printed(output: bytes) -> list[list[Any]]:
    """Return what the program has printed, whole lines only."""
    return [json.loads(line) for line in output.decode().splitlines(keepends=True) if line.endswith("\n")]


def steps_done(output: bytes) -> int:
    """Return how many steps the program has done."""
    return max((one[2] for one in printed(output) if one[1] == "step"), default=0)


def played(
    scenario: Scenario,
    output: bytes,
    *,
    begin: float,
    end: float,
    beside: Sequence[tuple[int, float, float]],
    messages: Sequence[Said],
) -> Played:
    """Return what came of a scenario. All times are seconds since the epoch, but for those of ``messages``."""
    lines = printed(output)
    sizes = [(at - begin, size) for at, what, *_, size in lines if what in {"begins", "resized"}]
    return Played(
        scenario=scenario,
        sizes=[*sizes, (end - begin, 0)],
        beside=[(processors, since - begin, until - begin) for processors, since, until in beside],
        steps=[(one[0] - begin, one[3]) for one in lines if one[1] == "step"],
        resized=[one[0] - begin for one in lines if one[1] == "resized"],
        messages=messages,
    )
