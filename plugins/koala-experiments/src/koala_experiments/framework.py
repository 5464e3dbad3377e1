# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: how it is run, what it returns, and how installed experiments are found.

An experiment is a value that an entry point of the group ``koala_adapter.experiments`` names, under its own name:

    EXPERIMENT = Experiment(name="vjm-deadlock", summary="...", paper="...", run=run)

    def run(options: Options) -> Result:
        outcomes = options.map(one_simulation, cases)   # on all cores, in order of the cases
        return Result(findings=(Finding(claim=..., outcome=..., holds=..., margin=...),), figures=..., tables=...)

It returns values only; :mod:`koala_adapter.report.page` draws and writes them. The same options give the same
values to the last bit, whatever the number of processes: chance comes from ``random.Random(seed)`` alone.

Means with confidence intervals come first, then the comparison of variants, what live runs are, and
experiments.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf, nan
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Generic, TypeVar

from koala_adapter.errors import SimulationError
from koala_adapter.lrm.contract import installed_entry_points
from koala_adapter.report.figures import Series
from koala_adapter.report.page import Cell, Heading, Result, Table, write_result
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.parallel import ProgressListener, in_parallel, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from importlib import metadata
    from pathlib import Path

    from koala_adapter.simulation.applications import Outcome, SimulatedJob
    from koala_adapter.simulation.platform import ClusterModel


ENTRY_POINT_GROUP = "koala_adapter.experiments"


T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")
O = TypeVar("O")  # noqa: E741 - of a simulation


# -- Means with confidence intervals -------------------------------------------------------------------------
# Over repetitions, by Student's t: few repetitions give wide intervals.

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (any table); beyond, the normal one is near.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions with its 95 % confidence interval."""

    mean: float
    half_width: float
    """Half of the 95 % confidence interval; 0 with a single repetition, which tells nothing of its spread."""
    repetitions: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent repetitions with its 95 % confidence interval. Raises ValueError for none."""
    if not values:
        message = "a mean needs at least one value"
        raise ValueError(message)
    count = len(values)
    if count == 1:
        return Estimate(values[0], 0.0, 1)
    quantile = T_95[count - 2] if count - 1 <= len(T_95) else NORMAL_95
    return Estimate(fmean(values), quantile * stdev(values) / math.sqrt(count), count)


def mean_of(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None without values."""
    return fmean(values) if values else None


# -- Variants compared ---------------------------------------------------------------------------------------


@dataclass(frozen=True)  # with slots, Python 3.11 cannot make one of a given type
class Measure(Generic[O]):
    """A quantity that is compared between variants."""

    name: str
    of: Callable[[O], float | None]
    """Returns it of an outcome; None where the outcome has none."""
    digits: int = 0
    """Behind the point, where it is written."""

    def over(self, unit: float) -> Measure[O]:
        """Return the measure in another unit."""
        return replace(self, of=lambda one: None if (value := self.of(one)) is None else value / unit)


@dataclass(frozen=True, slots=True)
class Paired:
    """A measure of two variants, in the repetitions where both have it."""

    before: float
    """Mean of the first variant."""
    after: float
    gain: Estimate
    """By how much it is less under the second variant."""

    @property
    def holds(self) -> bool | None:
        """Whether the second variant has less of it, beyond chance; None when the confidence interval includes 0."""
        return True if self.gain.low > 0 else False if self.gain.high < 0 else None

    @property
    def cannot(self) -> str:
        """Sentence for a difference that chance may have made."""
        return "; the interval holds 0, so these repetitions cannot tell" if self.holds is None else ""


class Comparison(Generic[V, O]):
    """Outcomes by variant and seed; those of one seed have met the same conditions."""

    def __init__(self, outcomes: Mapping[V, Sequence[O]]) -> None:
        self.outcomes = outcomes

    def values(self, variant: V, measure: Measure[O]) -> list[float]:
        """Return a measure of each repetition that has it."""
        return [value for one in self.outcomes[variant] if (value := measure.of(one)) is not None]

    def mean(self, variant: V, measure: Measure[O]) -> float | None:
        """Return the mean of a measure over repetitions; None when no repetition has it."""
        return mean_of(self.values(variant, measure))

    def estimate(self, variant: V, measure: Measure[O]) -> Estimate:
        """Return the estimate of a measure over repetitions. Raises ValueError when no repetition has it."""
        return estimate(self.values(variant, measure))

    def difference(self, measure: Measure[O], first: V, second: V) -> Estimate:
        """Return the estimate of ``first - second``, paired by seed so that common variation cancels out.

        Raises ValueError when no repetition has the measure of both.
        """
        return estimate([one - other for one, other in self._pairs(measure, first, second)])

    def paired(self, measure: Measure[O], first: V, second: V) -> Paired | None:
        """Return a measure of two variants, paired by seed; None when no repetition has both."""
        pairs = self._pairs(measure, first, second)
        if not pairs:
            return None
        before, after = (fmean(values) for values in zip(*pairs, strict=True))
        return Paired(before, after, self.difference(measure, first, second))

    def _pairs(self, measure: Measure[O], first: V, second: V) -> list[tuple[float, float]]:
        both = zip(map(measure.of, self.outcomes[first]), map(measure.of, self.outcomes[second]), strict=True)
        return [(one, other) for one, other in both if one is not None and other is not None]

    def series(
        self,
        label: str,
        measure: Measure[O],
        variants: Iterable[V] | None = None,
        *,
        scale: float = 1.0,
        x: Sequence[float] = (),
    ) -> Series:
        """Return the means of variants (default: all) with confidence intervals, as series of a figure."""
        each = [self.values(one, measure) for one in (self.outcomes if variants is None else variants)]
        found = [estimate(values) if values else Estimate(nan, 0.0, 0) for values in each]
        y, low, high = ([scale * getattr(one, end) for one in found] for end in ("mean", "low", "high"))
        return Series(label=label, x=x, y=y, low=low, high=high)


def table_of(name: str, title: str, rows: Sequence[Mapping[str, Cell]], caption: str = "") -> Table:
    """Return a table whose rows, at least one, give their values by the headings of the columns."""
    return Table(
        name=name, title=title, columns=list(rows[0]), rows=[list(row.values()) for row in rows], caption=caption
    )


# -- Live negotiations and live workloads --------------------------------------------------------------------
# Scenarios in which a live application negotiates its size, live runs of a workload, and what came of both. The
# scenarios are the experiments of Ghafoor et al. on eight processors (Ghafoor 2005).

ALL = 8
"""Processors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A negotiation scenario: an application and the jobs beside it."""

    name: str
    title: str
    approach: Approach
    """NONE: only the application begins negotiations."""
    initial: int
    maximum: int
    goal: int
    """Processors on which it is to end."""
    wish: int = 0
    """It asks for so many more after a third of its steps; 0: it does not ask."""
    sizes: str = "any"
    """On how many processes the program can run."""
    beside: tuple[int, ...] = ()
    """Processors of the rigid jobs beside it; one alone ends by itself, several end one after the other."""


EVOLVING = Scenario(
    name="asks-for-2",
    title="An evolving application on 2 asks for 2 more",
    approach=Approach.NONE,
    initial=2,
    maximum=16,
    goal=4,
    wish=2,
)
COUNTERED = Scenario(
    name="asks-for-14",
    title="An evolving application on 2 asks for 14 more, and 6 are idle",
    approach=Approach.NONE,
    initial=2,
    maximum=16,
    goal=8,
    wish=14,
)
MALLEABLE = Scenario(
    name="is-offered-4",
    title="A malleable application on 4 beside a rigid one on 4, which ends",
    approach=Approach.PRA,
    initial=4,
    maximum=8,
    goal=8,
    sizes="power-of-two",
    beside=(4,),
)
DECLINING = Scenario(
    name="declines-1-to-3",
    title="A malleable application on 4 beside four rigid ones on 1, which end one after the other",
    approach=Approach.PRA,
    initial=4,
    maximum=8,
    goal=8,
    sizes="power-of-two",
    beside=(1, 1, 1, 1),
)
SCENARIOS = (EVOLVING, COUNTERED, MALLEABLE, DECLINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Durations of the phases of a scenario."""

    steps: int = 30
    work: float = 0.8
    """Seconds that a step takes on one processor."""
    rest: float = 6.0
    """Seconds that a rigid job runs which ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of a negotiation."""

    negotiation: int
    at: float
    """Seconds from the beginning of the scenario."""
    sender: str
    status: str
    processors: int
    reason: str
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Record of a played scenario; times in seconds from its start."""

    scenario: Scenario
    sizes: Sequence[tuple[float, int]]
    """From when on the application had how many processors; 0 at its end."""
    beside: Sequence[tuple[int, float, float]]
    """Of each rigid job its processors, when it began and when it ended."""
    steps: Sequence[tuple[float, int]]
    """When each step was done, and on how many processes."""
    resized: Sequence[float]
    """When the application went on after a change."""
    messages: Sequence[Said]

    def rate(self, size: int) -> float | None:
        """Return the steps per second on ``size`` processes, without changes of size; None for fewer than two steps."""
        pairs = [
            after - before
            for (before, earlier), (after, later) in pairwise(self.steps)
            if earlier == later == size and not any(before < at <= after for at in self.resized)
        ]
        return len(pairs) / sum(pairs) if pairs else None

    @property
    def course(self) -> list[int]:
        """Return the sequence of the application's sizes."""
        return [size for _, size in self.sizes if size]

    def said(self, status: str, sender: str) -> list[int]:
        """Return the quantities in the messages of one side with one status, in order."""
        return [one.processors for one in self.messages if (one.status, one.sender) == (status, sender)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A workload, policy and approach to be run on live clusters."""

    approach: Approach
    malleability: str
    """Name of a policy."""
    jobs: Sequence[SimulatedJob]
    """Each of one component, in the order of their submission."""
    clusters: Sequence[ClusterModel]
    """Local clusters to be started for it; without effect where a site file names others."""
    pace: float
    """Seconds of the workload in one second."""
    site: str = ""
    """Path of the site file with the clusters; empty: ``clusters``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOutcome:
    """Outcome and measured delays of a live run."""

    outcome: Outcome
    clusters: Sequence[ClusterModel]
    """As they were seen: processors that others had are not among them."""
    held_after: float
    """Mean, from the submission of a placeholder until it was held."""
    computes_after: float
    """Mean, from the launch of a process until it was ready to work."""
    known_after: float
    """Mean, from the end of a job's work until the scheduler knew that it had ended."""
    sizes: Mapping[int, Sequence[tuple[float, int]]]
    """By the number of each job: when it had how many processors from then on; 0 at its end."""
    free_after: float
    """Mean, from the end of a process until its processor was known to be idle."""


# -- Experiments ---------------------------------------------------------------------------------------------

SIMULATIONS = "simulations"
"""What the progress of an experiment counts."""
ALSO = "also"
"""Name of the setting :data:`ALSO_POLICIES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run of an experiment."""

    seeds: int = 1
    """Number of repetitions; repetition i uses ``seed + i``."""
    seed: int = 0
    """The first seed."""
    processes: int = 1
    """Processes to use side by side."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of this experiment by name, all of them: the defaults are filled in."""
    progress: ProgressListener = silent
    policies: Policies = OWN
    """Those that a setting may name."""

    def also(self, known: Collection[str], but: Sequence[str]) -> list[str]:
        """Return the further policies that the setting ``also`` names. Raises SimulationError for one not ``known``."""
        names = [name.strip() for name in self.settings[ALSO].split(",") if name.strip()]
        for name in names:
            if name not in known:
                message = f"{ALSO}: there is no policy {name!r} of that kind"
                raise SimulationError(message, hint=f"there is {', '.join(known)}")
        return [name for name in dict.fromkeys(names) if name not in but]

    @property
    def all_seeds(self) -> range:
        """Seeds of all repetitions."""
        return range(self.seed, self.seed + self.seeds)

    def compare(self, simulate: Callable[[V, int], R], variants: Sequence[V]) -> Comparison[V, R]:
        """Call ``simulate`` with each variant and each seed, in parallel. See `in_parallel` for the requirements."""
        found = self.map(partial(_applied, simulate), [(one, seed) for one in variants for seed in self.all_seeds])
        many = len(self.all_seeds)
        return Comparison({one: found[at * many : (at + 1) * many] for at, one in enumerate(variants)})

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Apply a function to items in parallel; results in order. See `in_parallel` for the requirements."""
        results: dict[int, R] = {}
        self.progress(0, len(items), SIMULATIONS)
        for index, result in in_parallel(function, items, self.processes):
            results[index] = result
            self.progress(len(results), len(items), SIMULATIONS)
        return [results[index] for index in range(len(items))]


def _applied(simulate: Callable[[V, int], R], case: tuple[V, int]) -> R:
    return simulate(*case)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of an experiment that users can change."""

    name: str
    default: str
    meaning: str
    """With the unit, and the values that are allowed."""
    least: float | None = None
    """Smallest number that is allowed; None: it is not a number, or the experiment looks at it itself."""
    most: float = inf
    """Largest number that is allowed."""
    whole: bool = False
    """Whether it is a whole number."""

    def check(self, value: str) -> None:
        """Raise SimulationError for an invalid value."""
        if self.least is None or value == self.default:
            return
        try:
            number = int(value) if self.whole else float(value)
        except ValueError:
            number = nan
        if not (self.least <= number <= self.most and number < inf):
            most = f" to {self.most:g}" if self.most < inf else ""
            hint = f"allowed is a {'whole ' * self.whole}number from {self.least:g}{most}"
            raise SimulationError(f"{self.name} is {value!r}", hint=hint)


ALSO_POLICIES = Setting(
    name=ALSO, default="", meaning="Further policies to compare, also installed ones, separated by commas."
)
"""Of experiments that compare policies: :meth:`Options.also`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A repeatable published evaluation."""

    name: str
    """Words joined by hyphens; the module has the same name with underscores."""
    summary: str
    """One sentence."""
    paper: str
    """Authors, title, place and year."""
    run: Callable[[Options], Result] = field(repr=False)
    seeds: int = 1
    """Repetitions when nobody says how many."""
    settings: Sequence[Setting] = ()

    def options(
        self,
        *,
        seeds: int | None = None,
        seed: int = 0,
        processes: int = 1,
        settings: Mapping[str, str] | None = None,
        progress: ProgressListener = silent,
        policies: Policies = OWN,
    ) -> Options:
        """Return options with this experiment's defaults filled in. Raises SimulationError for a wrong setting."""
        known = {setting.name: setting for setting in self.settings}
        for name, value in (settings or {}).items():
            if name not in known:
                hint = f"there is {', '.join(known)}" if known else "it has none"
                raise SimulationError(f"experiment {self.name} has no setting {name}", hint=hint)
            known[name].check(value)
        return Options(
            seeds=self.seeds if seeds is None else seeds,
            seed=seed,
            processes=processes,
            settings={**{name: setting.default for name, setting in known.items()}, **(settings or {})},
            progress=progress,
            policies=policies,
        )


def experiment_names() -> list[str]:
    """Return the names of installed experiments, sorted."""
    return sorted(_installed())


def load_experiment(name: str) -> Experiment:
    """Return an installed experiment. Raises SimulationError for an unknown name."""
    installed = _installed()
    if name not in installed:
        raise SimulationError(f"there is no experiment {name}", hint=f"there is {', '.join(sorted(installed))}")
    experiment = installed[name].load()
    if not isinstance(experiment, Experiment) or experiment.name != name:
        raise SimulationError(f"the module of experiment {name} does not define it")
    return experiment


def _installed() -> dict[str, metadata.EntryPoint]:
    return {one.name: one for one in installed_entry_points().select(group=ENTRY_POINT_GROUP)}


def write_experiment(directory: Path, experiment: Experiment, options: Options, result: Result) -> Path:
    """Write data, figures and page of an experiment; returns the page. Raises OSError."""
    words = ["koala", "experiment", "run", experiment.name, "--seeds", str(options.seeds)]
    words += ["--seed", str(options.seed)] if options.seed else []
    defaults = {setting.name: setting.default for setting in experiment.settings}
    changed = {name: value for name, value in options.settings.items() if defaults.get(name) != value}
    words += [word for name, value in changed.items() for word in ("--set", f"{name}={value}")]
    heading = Heading(
        title=experiment.name, lead=f"{experiment.summary} After: {experiment.paper}", command=shlex.join(words)
    )
    return write_result(directory, heading, result)
