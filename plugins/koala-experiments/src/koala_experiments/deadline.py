# SPDX-License-Identifier: Apache-2.0
"""Experiment deadline: against greedy scheduling, with load correction and fallback (Takefusa 2001).

Simulated grids (``bricks``). First the schedulers that are compared and one simulation, then all of them and the
paper's claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.errors import SimulationError
from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Finding, Result, Table
from koala_experiments.bricks import (
    HOUR,
    OTHERS,
    Bricks,
    Correction,
    Variant,
    failure_rate,
    make_calls,
    make_grid,
    mean_cost,
)
from koala_experiments.framework import Comparison, Experiment, Measure, Options, Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

# -- Schedulers and simulations ------------------------------------------------------------------------------

MINUTE = 60.0
LOADS = {"high": 60 * MINUTE, "medium": 90 * MINUTE, "low": 120 * MINUTE}
"""Mean seconds between two calls of a client."""
OPTS = (0.5, 0.6, 0.7, 0.8, 0.9)
POLICIES: tuple[float | None, ...] = (None, *OPTS)
"""Opt of each policy that is compared; None stands for greedy."""
FALLBACKS = (0, 1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Failure rate, cost and number of calls of one simulation."""

    failure_rate: float
    cost: float
    calls: int


VARIANTS = (
    *(Variant(opt, fallbacks) for opt in POLICIES for fallbacks in FALLBACKS),
    *(Variant(opt, 0, correction) for opt in POLICIES for correction in ("shared", "own")),
)


def simulate(
    case: tuple[str, Variant], seed: int, *, factor: tuple[float, float], interval: float, duration: float
) -> Outcome:
    """Simulate a load and a variant; ``interval``: of the monitors, ``duration``: seconds in which clients call."""
    load, variant = case
    grid = make_grid(seed)
    calls = make_calls(seed, grid, interval=LOADS[load], deadline_factor=factor, duration=duration)
    records = Bricks(seed, grid, variant, OTHERS, interval).run(calls)
    return Outcome(failure_rate(records), mean_cost(records), len(records))


FAILURES = Measure[Outcome]("failure rate", lambda one: one.failure_rate)
COSTS = Measure[Outcome]("mean cost", lambda one: one.cost)


Outcomes: TypeAlias = Comparison[tuple[str, Variant], Outcome]
"""By load and variant."""


# -- The experiment ------------------------------------------------------------------------------------------

WORTH = 0.25
"""A measure is called very effective when it takes away at least this share of the failures."""
NO_FAILURES = "no call of the deadline policies at high load failed, so there is no failure to take away"


def run(options: Options) -> Result:
    """Run all variants at all loads, on the same grids with the same calls."""
    simulation = partial(
        simulate,
        factor=_range(options.settings["deadline-factor"]),
        interval=float(options.settings["monitor-interval"]),
        duration=HOUR * int(options.settings["hours"]),
    )
    outcomes = options.compare(simulation, [(load, variant) for load in LOADS for variant in VARIANTS])
    return Result(
        findings=(
            _load_finding(outcomes),
            _opt_finding(outcomes),
            _correction_finding(outcomes),
            _fallback_finding(outcomes),
            _greedy_finding(outcomes),
        ),
        figures=_figures(outcomes),
        tables=(_table(outcomes),),
        notes=_notes(options, outcomes),
    )


def _policy(opt: float | None) -> str:
    return "greedy" if opt is None else f"Opt {opt:g}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _load_finding(outcomes: Outcomes) -> Finding:
    """Judge the claim that the failure rate falls with the load, in the same way for all variants."""
    means = {load: [fmean(outcomes.values((load, Variant(opt)), FAILURES)) for opt in POLICIES] for load in LOADS}
    falls = all(high > medium > low for high, medium, low in zip(*means.values(), strict=True))
    orders = {tuple(sorted(range(1, len(POLICIES)), key=rates.__getitem__)) for rates in means.values()}
    spread = ", ".join(f"{load} {_percent(min(rates))} to {_percent(max(rates))}" for load, rates in means.items())
    high, low = means["high"][1], means["low"][1]
    return Finding(
        claim="The failure rate falls with the load, and its shape over the policies is the same at every load.",
        outcome=f"failure rates over the policies: {spread}; "
        f"the deadline policies come in {'the same' if len(orders) == 1 else 'a different'} order at the three loads",
        holds=falls and len(orders) == 1,
        margin=f"the best policy fails {high / low:.1f} times as often at high load as at low" if low else "",
    )


def _opt_finding(outcomes: Outcomes) -> Finding:
    """Judge the claim that Opt trades failure rate against cost."""
    low, high = ("high", Variant(OPTS[0])), ("high", Variant(OPTS[-1]))
    failures, costs = (outcomes.difference(measure, high, low) for measure in (FAILURES, COSTS))
    return Finding(
        claim="Opt trades failure rate against cost: a larger Opt fails more often and costs less.",
        outcome=f"from Opt {OPTS[0]:g} to {OPTS[-1]:g} at high load the failure rate changes by "
        f"{100 * failures.mean:+.1f} ± {100 * failures.half_width:.1f} points and the mean cost by "
        f"{costs.mean:+.0f} ± {costs.half_width:.0f} Mop/s",
        holds=failures.low > 0 and costs.high < 0,
        margin="both differences are beyond their 95 % intervals" if failures.low > 0 and costs.high < 0 else "",
    )


def _correction_finding(outcomes: Outcomes) -> Finding:
    """Judge the claim that load correction has little effect."""
    claim = "Load correction is not effective."
    plain = _failures(outcomes, 0)
    if not sum(plain):
        return Finding(claim=claim, outcome=NO_FAILURES, holds=None)
    corrections: tuple[Correction, ...] = ("shared", "own")
    shares = {one: 1 - sum(_failures(outcomes, 0, one)) / sum(plain) for one in corrections}
    return Finding(
        claim=claim,
        outcome=f"with one scheduler that knows all calls it takes away {_percent(shares['shared'])} of the failures "
        "of the deadline policies at high load; with a scheduler for each client, which knows only its own calls, "
        f"{_percent(shares['own'])}",
        holds=shares["shared"] < WORTH,
        margin=f"called effective from {_percent(WORTH)} on; it depends on how much the scheduler knows, see the notes",
    )


def _fallback_finding(outcomes: Outcomes) -> Finding:
    """Judge the claim that deadline scheduling with several fallbacks is very effective."""
    claim = "Deadline scheduling with several fallbacks is very effective."
    most = FALLBACKS[-1]
    without, several = _failures(outcomes, 0), _failures(outcomes, most)
    if not sum(without):
        return Finding(claim=claim, outcome=NO_FAILURES, holds=None)
    saved = 1 - sum(several) / sum(without)
    return Finding(
        claim=claim,
        outcome=f"{most} fallbacks take away {_percent(saved)} of the failures of the deadline policies "
        f"at high load ({_percent(fmean(without))} to {_percent(fmean(several))})",
        holds=saved >= WORTH,
        margin=f"called very effective from {_percent(WORTH)} on",
    )


def _greedy_finding(outcomes: Outcomes) -> Finding:
    """Judge the claim that deadline scheduling fails less often than greedy, at less cost."""
    most = FALLBACKS[-1]
    greedy, best = ("high", Variant(None)), ("high", Variant(OPTS[0], most))
    gain = outcomes.difference(FAILURES, greedy, best)
    (greedy_rate, greedy_cost), (best_rate, best_cost) = (
        [fmean(outcomes.values(one, measure)) for measure in (FAILURES, COSTS)] for one in (greedy, best)
    )
    return Finding(
        claim="It fails less often than greedy scheduling, and at less cost.",
        outcome=f"at high load greedy fails for {_percent(greedy_rate)} at {greedy_cost:.0f} Mop/s, "
        f"Opt {OPTS[0]:g} with {most} fallbacks for {_percent(best_rate)} at {best_cost:.0f} Mop/s",
        holds=gain.low > 0 and best_cost < greedy_cost,
        margin=f"{100 * gain.mean:.1f} ± {100 * gain.half_width:.1f} points fewer failures",
    )


def _failures(outcomes: Outcomes, fallbacks: int, correction: Correction = "none") -> list[float]:
    """Return the failure rates of all deadline policies at high load, of each seed."""
    return [rate for opt in OPTS for rate in outcomes.values(("high", Variant(opt, fallbacks, correction)), FAILURES)]


def _figures(outcomes: Outcomes) -> list[Figure]:
    failed = "calls past their deadline (%)"

    def rates(label: str, variants: list[tuple[str, Variant]], x: Sequence[float] = ()) -> Series:
        return outcomes.series(label, FAILURES, variants, scale=100, x=x)

    def bars(name: str, title: str, y_label: str, series: Sequence[Series], caption: str = "") -> Figure:
        return Figure(
            name=name,
            title=title,
            kind="bars",
            x_label="scheduling policy",
            y_label=y_label,
            categories=[_policy(opt) for opt in POLICIES],
            series=series,
            caption=caption,
        )

    plain = {load: [(load, Variant(opt)) for opt in POLICIES] for load in LOADS}
    by_load = [rates(f"{load} load", variants) for load, variants in plain.items()]
    costs = [outcomes.series(f"{load} load", COSTS, variants) for load, variants in plain.items()]
    caption = "Without load correction or fallback. Bars: 95 % confidence intervals over the grids."
    corrections: dict[str, Correction] = {
        "no correction": "none",
        "one scheduler for all clients": "shared",
        "a scheduler for each client": "own",
    }
    corrected = [
        rates(label, [("high", Variant(opt, 0, one)) for opt in POLICIES]) for label, one in corrections.items()
    ]
    return [
        bars("failure-rate", "Failure rate", failed, by_load, caption),
        bars("cost", "Mean resource cost", "performance of the server used (Mop/s)", costs, caption),
        *(
            Figure(
                name=f"fallbacks-{load}",
                title=f"Failure rate over the allowed fallbacks, {load} load",
                x_label="most fallbacks of a call (N_max)",
                y_label=failed,
                series=[
                    rates(_policy(opt), [(load, Variant(opt, number)) for number in FALLBACKS], FALLBACKS)
                    for opt in POLICIES
                ],
            )
            for load in LOADS
        ),
        bars("load-correction", "Load correction, high load", failed, corrected),
    ]


def _table(outcomes: Outcomes) -> Table:
    rows = []
    for load in LOADS:
        for variant in VARIANTS:
            failures, costs = (outcomes.estimate((load, variant), measure) for measure in (FAILURES, COSTS))
            rows.append(
                (
                    load,
                    _policy(variant.opt),
                    variant.fallbacks,
                    variant.correction,
                    round(100 * failures.mean, 2),
                    round(100 * failures.half_width, 2),
                    round(costs.mean, 1),
                    round(costs.half_width, 1),
                )
            )
    return Table(
        name="outcomes",
        title="All variants",
        columns=(
            "load",
            "policy",
            "N_max",
            "load correction",
            "failure rate (%)",
            "± of the rate (95 %)",
            "mean cost (Mop/s)",
            "± of the cost (95 %)",
        ),
        rows=rows,
    )


def _notes(options: Options, outcomes: Outcomes) -> list[str]:
    simulations = options.seeds * len(LOADS) * len(VARIANTS)
    calls = ", ".join(f"{load} {sum(one.calls for one in outcomes.outcomes[load, Variant(None)]):,}" for load in LOADS)
    factor, interval = options.settings["deadline-factor"], options.settings["monitor-interval"]
    return [
        (
            f"{options.seeds} grids, {options.settings['hours']} simulated hours each, {simulations:,} simulations; "
            f"calls per variant: {calls}. "
            "All variants meet the same grids and the same calls."
        ),
        (
            "A client calls every 60, 90 or 120 minutes on average. With seconds in place of minutes the calls would "
            "ask for about 35 times what all servers together can do, so minutes must be meant."
        ),
        (
            "Every node is a client and a server. Servers work first come, first served, beside tasks of others that "
            "take a tenth of their time; transfers share the local domains and the wide-area links fairly."
        ),
        (
            f"How deadlines were set is our assumption: the time left at submission is {factor} times (uniform) what "
            "the call takes on an average server with the network to itself."
        ),
        (
            f"Monitors look every {interval} s, and the forecast is what was seen last. A call on its way there "
            "is seen by no monitor: that is what a scheduler that counts its own calls can correct, and a scheduler "
            "for each client cannot."
        ),
    ]


def _range(text: str) -> tuple[float, float]:
    low, separator, high = text.partition("-")
    try:
        values = float(low), float(high if separator else low)
    except ValueError:
        values = 0.0, 0.0
    if not 0 < values[0] <= values[1]:
        raise SimulationError(f"deadline-factor is {text!r}", hint="allowed is a range such as 1-3, above 0")
    return values


EXPERIMENT = Experiment(
    name="deadline",
    summary="Failure rate and cost of greedy and deadline scheduling, with load correction and fallback.",
    paper="A. Takefusa, H. Casanova, S. Matsuoka, F. Berman: A study of deadline scheduling for client-server systems "
    "on the computational grid, HPDC 2001",
    run=run,
    seeds=5,
    settings=(
        Setting(
            name="deadline-factor",
            default="1-3",
            meaning="Time left at submission over the usual response time, as a range",
        ),
        Setting(
            name="monitor-interval", default="60", meaning="Seconds between two looks of the monitors", least=0.001
        ),
        Setting(
            name="hours",
            default="24",
            meaning="Hours in which clients call, 1 to 240; the paper has 24",
            least=1,
            most=240,
            whole=True,
        ),
    ),
)
