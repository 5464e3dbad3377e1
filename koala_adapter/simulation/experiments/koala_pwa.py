# SPDX-License-Identifier: Apache-2.0
"""Precedence to waiting applications: figure 8 of KOALA's experiments with malleable jobs (CoreGRID TR-0092)."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.simulation.confidence import difference
from koala_adapter.simulation.experiments.framework import Experiment, Finding, Options, Result
from koala_adapter.simulation.malleable_report import (
    NOTES,
    OTHER_CONDITIONS,
    PAPER,
    POLICIES,
    SETTINGS,
    Records,
    combination,
    figures,
    higher_utilization,
    shorter_execution,
    show,
    tables,
)

if TYPE_CHECKING:
    from koala_adapter.simulation.malleable_runs import Conditions

WORKLOADS = ("W'm", "W'mr")
NEARLY = 0.10
"""Execution times are called nearly the same when the longest exceeds the shortest by at most this share."""
FAR = 0.25
"""A response time is called far worse when it exceeds all others by at least this share."""


def run(options: Options) -> Result:
    """Run the experiment."""
    records = Records(options, Approach.PWA, WORKLOADS)
    return Result(
        findings=(
            shorter_execution(records),
            higher_utilization(records),
            _same_execution(records, "execution", "all jobs"),
            _same_execution(records, "malleable_execution", "the malleable jobs alone"),
            _worse_response(records),
        ),
        figures=figures(records, 8),
        tables=tables(records),
        notes=(
            *NOTES,
            f"Nearly the same is taken to mean within {100 * NEARLY:.0f} %, far worse by {100 * FAR:.0f} % at least.",
        ),
    )


def _same_execution(records: Records, what: str, whose: str) -> Finding:
    """Judge the claim on the four execution times."""
    means = {
        combination(policy, workload): records.estimate(policy, workload, what)
        for workload in WORKLOADS
        for policy in POLICIES
    }
    longest, shortest = (pick(one.mean for one in means.values()) for pick in (max, min))
    return Finding(
        claim=f"The execution times of the four combinations are nearly the same (taken over {whose}).",
        outcome="; ".join(f"{name}: {show(one)} s" for name, one in means.items()) + ".",
        holds=longest / shortest - 1.0 <= NEARLY,
        margin=f"the longest mean exceeds the shortest by {100.0 * (longest / shortest - 1.0):.0f} %",
    )


def _worse_response(records: Records) -> Finding:
    """Judge the claim that EGS with W'm has far worse response times than the others, because jobs wait longer."""
    excess, others = _excess(records, None)
    more_wait = difference(records.values("egs", "W'm", "wait"), records.values("fpsma", "W'm", "wait"))
    more_response = difference(records.values("egs", "W'm", "response"), records.values("fpsma", "W'm", "response"))
    egs = records.estimate("egs", "W'm", "response")
    worst = max(OTHER_CONDITIONS, key=lambda where: _against_fpsma(records, where))
    return Finding(
        claim="EGS with W'm has far worse response times than the other three, because its jobs wait longer.",
        outcome=f"EGS/W'm: {show(egs)} s; the largest of the others: {others:.1f} s. Against FPSMA/W'm it responds "
        f"{show(more_response)} s later, of which {show(more_wait)} s are longer waits. Under the other conditions of "
        f"the table below, the mean response of EGS/W'm comes out worst against FPSMA/W'm with {worst.name}: "
        f"{100.0 * _against_fpsma(records, worst):+.0f} %.",
        holds=excess >= FAR and more_wait.low > 0.5 * more_response.mean,
        margin=f"{100.0 * excess:+.0f} % against the largest of the others",
    )


def _excess(records: Records, where: Conditions | None) -> tuple[float, float]:
    """Return by which share the response time of EGS with W'm exceeds that of all others, and the largest of those."""
    others = max(
        records.estimate(policy, workload, "response", where).mean
        for policy in POLICIES
        for workload in WORKLOADS
        if (policy, workload) != ("egs", "W'm")
    )
    return records.estimate("egs", "W'm", "response", where).mean / others - 1.0, others


def _against_fpsma(records: Records, where: Conditions) -> float:
    """Return by which share the response time of EGS exceeds that of FPSMA with W'm."""
    egs, fpsma = (fmean(records.values(policy, "W'm", "response", where)) for policy in ("egs", "fpsma"))
    return egs / fpsma - 1.0


EXPERIMENT = Experiment(
    name="koala-pwa",
    summary="Malleable jobs on DAS-3, waiting jobs first: FPSMA and EGS with the workloads W'm and W'mr (figure 8).",
    paper=PAPER,
    run=run,
    seeds=10,
    settings=SETTINGS,
)
