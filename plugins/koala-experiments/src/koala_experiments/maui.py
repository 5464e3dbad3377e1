# SPDX-License-Identifier: Apache-2.0
"""What the comparison of Maui's backfill with Metacluster found: the paper's claims, figures and tables. Pure.

The simulations themselves are in :mod:`koala_adapter.simulation.experiments.maui_backfill`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.simulation.experiments.framework import Figure, Finding, Result, Series, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRSTFIT, BESTFIT, GREEDY, METACLUSTER = "FIRSTFIT", "BESTFIT", "GREEDY", "Metacluster"
ALL_POLICIES = (FIRSTFIT, BESTFIT, GREEDY, METACLUSTER)
COMPARED = (FIRSTFIT, BESTFIT, METACLUSTER)
"""The three of the paper."""
CLOSE = 13.0
"""Percent by which the paper's mean waits differ at most."""
FAR = 3.5
"""Times by which the paper's slowdowns differ on DAS2-fs3."""
SHORT_DOMINATE = 0.85
"""Share of jobs below 1000 s from which on short jobs dominate a trace."""
TELLING = 0.01
"""Share of jobs that must wait under some policy for a trace to tell policies apart."""
LARGE_DOMINATE = 0.65
"""Share of jobs below 1000 s up to which large jobs dominate a trace."""
FS3 = "DAS2-fs3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came out of one simulation, or the mean over the seeds."""

    trace: str
    policy: str
    exact: bool
    jobs: int
    wait: float
    slowdown: float
    bounded: float
    short: float
    """Share of jobs below 1000 s."""
    run: float
    """Mean run time, seconds."""
    utilization: float
    waiting: float
    """Share of jobs that wait at all, from 0 to 1."""
    modelled: bool = False
    """Whether a model stood in for the trace."""


Values: TypeAlias = dict[str, dict[str, Measured]]
"""By trace and policy."""


def by_trace(found: Sequence[Measured], *, exact: bool) -> Values:
    """Return what belongs to one kind of estimates; a model has exact ones only, and belongs to both."""
    requested = {one.trace for one in found if not one.exact}
    values: Values = {}
    for one in found:
        if one.exact == exact or one.trace not in requested:
            values.setdefault(one.trace, {})[one.policy] = one
    return values


def result(found: Sequence[Measured], notes: Sequence[str]) -> Result:
    """Return findings, figures and tables."""
    requested, exact = by_trace(found, exact=False), by_trace(found, exact=True)
    return Result(
        findings=findings(requested, exact),
        figures=[
            _bars(requested, "wait", "mean wait (s)", lambda one: one.wait),
            _bars(requested, "slowdown", "mean slowdown", lambda one: one.slowdown),
            _relative(requested, "relative-wait", "mean wait", lambda one: one.wait),
            _relative(requested, "relative-slowdown", "mean slowdown", lambda one: one.slowdown),
            _relative(exact, "exact-wait", "mean wait, exact estimates", lambda one: one.wait),
            _relative(exact, "exact-slowdown", "mean slowdown, exact estimates", lambda one: one.slowdown),
        ],
        tables=[
            _table("requested", "With the requested times as estimates", requested),
            _table("exact", "With exact estimates", exact),
        ],
        notes=[*notes, *_silent(requested)],
    )


def _silent(values: Values) -> list[str]:
    """Return what to say of the traces that cannot tell policies apart."""
    return [
        f"On {trace} at most {100 * max(one.waiting for one in some.values()):.2f} % of the jobs wait, so it cannot "
        "tell policies apart; it does not count where one policy is to be better than another."
        for trace, some in values.items()
        if trace not in telling(values)
    ]


def telling(values: Values) -> Values:
    """Return the traces that can tell policies apart: on the others hardly any job waits."""
    return {trace: some for trace, some in values.items() if max(one.waiting for one in some.values()) >= TELLING}


def findings(all_requested: Values, all_exact: Values) -> list[Finding]:
    """Return each claim of the paper beside what came out, on the traces that can tell."""
    requested, exact = telling(all_requested), {trace: all_exact[trace] for trace in telling(all_requested)}
    return [
        _waits_close(all_requested, all_exact),
        _slowdowns_differ_more(requested, exact),
        _far_on_fs3(all_requested),
        _best_is_worse(requested, exact),
        _better(requested, exact, winner=FIRSTFIT, loser=METACLUSTER, short=True),
        _better(requested, exact, winner=METACLUSTER, loser=FIRSTFIT, short=False),
    ]


def spread(values: dict[str, Measured], measure: Callable[[Measured], float]) -> float:
    """Return by how many percent the worst of the three compared policies exceeds the best."""
    some = [measure(values[policy]) for policy in COMPARED]
    return 100 * (max(some) / min(some) - 1) if min(some) > 0 else 0.0


def _wait(one: Measured) -> float:
    return one.wait


def _slowdown(one: Measured) -> float:
    return one.slowdown


def _spreads(values: Values, measure: Callable[[Measured], float]) -> dict[str, float]:
    return {trace: spread(some, measure) for trace, some in values.items()}


def _listed(spreads: dict[str, float]) -> str:
    return ", ".join(f"{trace} {value:.1f} %" for trace, value in spreads.items())


def _waits_close(requested: Values, exact: Values) -> Finding:
    spreads, others = _spreads(requested, _wait), _spreads(exact, _wait)
    largest = max(spreads.values())
    close = sum(value < CLOSE for value in spreads.values())
    return Finding(
        claim=f"The mean waits of FIRSTFIT, BESTFIT and Metacluster differ by less than {CLOSE:.0f} % on each trace.",
        outcome=f"Worst over best: {_listed(spreads)}. With exact estimates: {_listed(others)}.",
        holds=largest < CLOSE,
        margin=f"less on {close} of {len(spreads)} traces; {largest:.1f} % where they differ most",
    )


def _slowdowns_differ_more(requested: Values, exact: Values) -> Finding:
    waits, slowdowns = _spreads(requested, _wait), _spreads(requested, _slowdown)
    more = [trace for trace in waits if slowdowns[trace] > waits[trace]]
    return Finding(
        claim="The mean slowdowns differ much more than the mean waits do.",
        outcome=f"Worst over best slowdown: {_listed(slowdowns)}. With exact estimates: "
        f"{_listed(_spreads(exact, _slowdown))}.",
        holds=len(more) == len(waits) if waits else None,
        margin=f"more than the waits on {len(more)} of {len(waits)} traces" + (f": {', '.join(more)}" if more else ""),
    )


def _far_on_fs3(requested: Values) -> Finding:
    values = requested[FS3]
    ratio = 1 + spread(values, _slowdown) / 100
    listed = ", ".join(f"{policy} {values[policy].slowdown:,.1f}" for policy in COMPARED)
    modelled = values[FIRSTFIT].modelled
    on_model = " on the model that stands in for the trace, which cannot tell of the trace itself" if modelled else ""
    return Finding(
        claim=f"On DAS2-fs3 the worst mean slowdown is over {FAR} times the best.",
        outcome=f"{ratio:.2f} times{on_model}: {listed}.",
        holds=None if modelled else ratio > FAR,
        margin=f"{ratio:.2f} in place of {FAR}",
    )


def _best_is_worse(requested: Values, exact: Values) -> Finding:
    counted = [
        [trace for trace, some in values.items() if measure(some[BESTFIT]) > measure(some[FIRSTFIT])]
        for values in (requested, exact)
        for measure in (_wait, _slowdown)
    ]
    total = len(requested)
    waits, slowdowns, exact_waits, exact_slowdowns = (len(some) for some in counted)
    return Finding(
        claim="BESTFIT is worse than FIRSTFIT.",
        outcome=f"Longer mean wait on {waits} of {total} traces, larger mean slowdown on {slowdowns}; with exact "
        f"estimates on {exact_waits} and {exact_slowdowns}.",
        holds=waits == slowdowns == total if total else None,
        margin=_changes(requested, BESTFIT, FIRSTFIT),
    )


def _better(requested: Values, exact: Values, *, winner: str, loser: str, short: bool) -> Finding:
    def chosen(values: Values) -> Values:
        return {
            trace: some
            for trace, some in values.items()
            if (some[winner].short >= SHORT_DOMINATE if short else some[winner].short <= LARGE_DOMINATE)
        }

    def won(values: Values, measure: Callable[[Measured], float]) -> int:
        return sum(measure(some[winner]) < measure(some[loser]) for some in chosen(values).values())

    some = chosen(requested)
    kind = "short" if short else "large"
    claim = f"{'Maui' if short else 'Metacluster'} is better where {kind} jobs dominate."
    if not some:
        return Finding(claim=claim, outcome=f"There is no trace in which {kind} jobs dominate.", holds=None)
    waits, slowdowns = won(requested, _wait), won(requested, _slowdown)
    only_models = all(values[winner].modelled for values in some.values())
    shares = ", ".join(f"{trace} ({values[winner].short:.0%} below 1000 s)" for trace, values in some.items())
    return Finding(
        claim=claim,
        outcome=f"{winner} against {loser} on {shares}: shorter mean wait on {waits} of {len(some)}, smaller mean "
        f"slowdown on {slowdowns}; with exact estimates on {won(exact, _wait)} and {won(exact, _slowdown)}."
        + (" All of it on models, which cannot tell of the traces themselves." if only_models else ""),
        holds=None if only_models else waits == slowdowns == len(some),
        margin=_changes(some, winner, loser),
    )


def _changes(values: Values, one: str, other: str) -> str:
    parts = []
    for trace, some in values.items():
        waits = 100 * (some[one].wait / some[other].wait - 1) if some[other].wait else 0.0
        slowdowns = 100 * (some[one].slowdown / some[other].slowdown - 1)
        parts.append(f"{trace}: wait {waits:+.1f} %, slowdown {slowdowns:+.1f} %")
    return "; ".join(parts)


def _bars(values: Values, name: str, label: str, measure: Callable[[Measured], float]) -> Figure:
    return Figure(
        name=name,
        title=f"{label[0].upper()}{label[1:]} by trace and policy".replace(" (s)", ""),
        x_label="trace",
        y_label=f"{label}, logarithmic",
        kind="bars",
        y_log=True,
        categories=list(values),
        series=[Series(label=policy, y=[measure(some[policy]) for some in values.values()]) for policy in ALL_POLICIES],
        caption="Estimates are the requested times; exact for models.",
    )


def _relative(values: Values, name: str, label: str, measure: Callable[[Measured], float]) -> Figure:
    return Figure(
        name=name,
        title=f"{label[0].upper()}{label[1:]}, compared with FIRSTFIT",
        x_label="trace",
        y_label="percent of that under FIRSTFIT",
        kind="bars",
        categories=list(values),
        series=[
            Series(
                label=policy,
                y=[100 * measure(some[policy]) / measure(some[FIRSTFIT]) for some in values.values()],
            )
            for policy in ALL_POLICIES
        ],
    )


def _table(name: str, title: str, values: Values) -> Table:
    rows = [
        (
            trace, policy, one.jobs, 100 * one.short, one.run, 100 * one.utilization, one.wait, one.slowdown,
            one.bounded,
        )
        for trace, some in values.items()
        for policy, one in some.items()
    ]  # fmt: skip
    columns = (
        "trace", "policy", "jobs", "below 1000 s (%)", "mean run (s)", "utilization (%)", "mean wait (s)",
        "mean slowdown", "mean bounded slowdown (10 s)",
    )  # fmt: skip
    return Table(name=name, title=title, columns=columns, rows=rows)
