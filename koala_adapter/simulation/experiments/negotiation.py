# SPDX-License-Identifier: Apache-2.0
"""Evolving and malleable applications that negotiate on eight processors, live (Ghafoor 2005)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.simulation.experiments.framework import Experiment, Options, Result, Setting
from koala_adapter.simulation.live_negotiations import SCENARIOS, Pace
from koala_adapter.simulation.negotiation_report import findings, messages_table, rates, templates, timeline

if TYPE_CHECKING:
    from koala_adapter.simulation.live_negotiations import Played, PlaysScenarios

PAPER = (
    "S. Ghafoor, T. Haupt, I. Banicescu, R. Cariño, N. Ammari: A resource management system for adaptive parallel "
    "applications in cluster environments, Mississippi State University, 2005"
)
SETTINGS = (
    Setting(
        name="steps",
        default="30",
        meaning="steps of the application, 6 to 10000; it asks after a third",
        least=6,
        most=10_000,
        whole=True,
    ),
    Setting(
        name="work",
        default="0.8",
        meaning="seconds that a step takes on one processor, 0.05 to 100",
        least=0.05,
        most=100,
    ),
    Setting(
        name="site",
        default="",
        meaning="Path of a site file whose clusters are used: eight processors of one, or of two of them. Default: a "
        "local cluster, started for it.",
    ),
)
NOTES = (
    (
        "Every run is real: a service, its journal, agents in placeholders, processes with the application library, "
        "and negotiation templates between them. What a process does in a step is to sleep its share of the work, so "
        "that eight processors fit on any machine, and steps per second say how many processes there are and what "
        "the library costs; the paper computes n bodies."
    ),
    (
        "The evolving application asks after a third of its steps and goes on computing on what it has until the "
        "processors are there, where that of the paper waits. It ends when its steps are done, and a third of them was "
        "done on the processors that it ended with."
    ),
    (
        "The paper's third experiment has one rigid job on four processors. That the application takes offers only "
        "while its total is a power of two shows when less comes free than four: so it is done once more with four "
        "rigid jobs of one processor, which are cancelled one after the other."
    ),
    "Live runs differ from each other in their times; seeds change nothing.",
)


def run(options: Options) -> Result:
    """Run the experiment."""
    if options.negotiate is None:
        raise SimulationError("negotiation runs real jobs", hint="run it with `koala experiment run negotiation`")
    played = _play(options, options.negotiate)
    return Result(
        findings=findings(played),
        figures=[*(timeline(one) for one in played), rates(played)],
        tables=[messages_table(played)],
        notes=NOTES,
        listings=templates(played),
    )


def _play(options: Options, negotiate: PlaysScenarios) -> list[Played]:
    pace = Pace(steps=int(options.settings["steps"]), work=float(options.settings["work"]))
    played = []
    for number, scenario in enumerate(SCENARIOS):
        options.progress(number, len(SCENARIOS), "scenarios")
        played.append(negotiate(scenario, pace, options.settings["site"]))
    options.progress(len(SCENARIOS), len(SCENARIOS), "scenarios")
    return played


EXPERIMENT = Experiment(
    name="negotiation",
    summary="Applications that ask for processors, and that are offered some, settle by negotiation how many; live.",
    paper=PAPER,
    run=run,
    settings=SETTINGS,
)
