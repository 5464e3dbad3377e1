# SPDX-License-Identifier: Apache-2.0
"""Precedence to running applications: figure 7 of KOALA's experiments with malleable jobs (CoreGRID TR-0092)."""

from __future__ import annotations

from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.simulation.experiments.framework import Experiment, Options, Result
from koala_adapter.simulation.malleable_report import (
    NOTES,
    PAPER,
    SETTINGS,
    Records,
    figures,
    higher_utilization,
    shorter_execution,
    tables,
)

WORKLOADS = ("Wm", "Wmr")


def run(options: Options) -> Result:
    """Run the experiment."""
    records = Records(options, Approach.PRA, WORKLOADS)
    return Result(
        findings=(shorter_execution(records), higher_utilization(records)),
        figures=figures(records, 7),
        tables=tables(records),
        notes=NOTES,
    )


EXPERIMENT = Experiment(
    name="koala-pra",
    summary="Malleable jobs on DAS-3, running jobs first: FPSMA and EGS with the workloads Wm and Wmr (figure 7).",
    paper=PAPER,
    run=run,
    seeds=10,
    settings=SETTINGS,
)
