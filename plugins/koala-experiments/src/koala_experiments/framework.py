# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: how it is run, what it returns, and how the experiments of this package are found.

An experiment is a module beside this one with a constant ``EXPERIMENT``:

    EXPERIMENT = Experiment(name="vjm-deadlock", summary="...", paper="...", run=run)

    def run(options: Options) -> Result:
        outcomes = options.map(one_simulation, cases, what="simulations")   # on all cores, in order of the cases
        return Result(findings=(Finding(claim=..., outcome=..., holds=..., margin=...),), figures=..., tables=...)

It returns values only; :mod:`koala_adapter.simulation.report` draws and writes them. The same options give the same
values to the last bit, whatever the number of processes: chance comes from ``random.Random(seed)`` alone.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from koala_adapter.errors import SimulationError
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.simulation import experiments
from koala_adapter.simulation.parallel import ProgressListener, in_parallel, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.simulation.live_negotiations import PlaysScenarios
    from koala_adapter.simulation.live_runs import RunsLive

T = TypeVar("T")
R = TypeVar("R")

ALSO = "also"
"""Name of the setting :data:`ALSO_POLICIES`."""
Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an experiment is to be run."""

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
    live: RunsLive | None = None
    """What runs workloads on live clusters, for experiments that do so."""
    negotiate: PlaysScenarios | None = None
    """What plays scenarios of negotiation on live clusters, likewise."""

    def also(self, known: Sequence[str], but: Sequence[str]) -> list[str]:
        """Return the further policies that the setting ``also`` names. Raises SimulationError for one not ``known``."""
        names = [name.strip() for name in self.settings[ALSO].split(",") if name.strip()]
        for name in names:
            if name not in known:
                message = f"{ALSO}: there is no policy {name!r} of that kind"
                raise SimulationError(message, hint=f"there is {', '.join(known)}")
        return [name for name in dict.fromkeys(names) if name not in but]

    @property
    def all_seeds(self) -> range:
        """The seed of each repetition."""
        return range(self.seed, self.seed + self.seeds)

    def map(self, function: Callable[[T], R], items: Sequence[T], *, what: str = "simulations") -> list[R]:
        """Return the results in the order of the items, computed in parallel; see `in_parallel` for what is needed."""
        results: dict[int, R] = {}
        self.progress(0, len(items), what)
        for index, result in in_parallel(function, items, self.processes):
            results[index] = result
            self.progress(len(results), len(items), what)
        return [results[index] for index in range(len(items))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim of the paper beside what came out here."""

    claim: str
    """What the paper says, in our words."""
    outcome: str
    """What came out, with numbers."""
    holds: bool | None
    """Whether the claim holds here; None when this run cannot tell, and `outcome` says why."""
    margin: str = ""
    """By how much it holds or fails to."""


def tally(findings: Sequence[Finding]) -> str:
    """Return in words how many claims hold, and how many this run cannot tell."""
    held = sum(finding.holds is True for finding in findings)
    unknown = sum(finding.holds is None for finding in findings)
    return f"{held} of {len(findings)} hold" + (f", {unknown} cannot be told" if unknown else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or one set of bars of a figure."""

    label: str
    y: Sequence[float]
    x: Sequence[float] = ()
    """As many as ``y``; empty for bars, which stand at the categories of the figure."""
    low: Sequence[float] = ()
    """Lower ends of the confidence intervals; empty when there are none."""
    high: Sequence[float] = ()
    """Upper ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The values of a figure and what is written at its axes."""

    name: str
    """Stem of its files."""
    title: str
    x_label: str
    """With the unit."""
    y_label: str
    """With the unit."""
    series: Sequence[Series]
    kind: Literal["line", "step", "bars", "points", "timeline"] = "line"
    """``step``: each value holds until the next x. ``line`` and ``points`` mark or join the values. ``timeline``: a
    bar from x to ``high`` in row y."""
    categories: Sequence[str] = ()
    """Names along the x axis, for bars; names of the rows from 0, for a timeline."""
    caption: str = ""
    x_log: bool = False
    y_log: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    """None: from 0, or from what is there on a logarithmic axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Values in rows and columns."""

    name: str
    """Stem of its files."""
    title: str
    columns: Sequence[str]
    """Headings, with units."""
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Text to be read as it stands."""

    name: str
    """Stem of its file."""
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that came out of an experiment."""

    findings: Sequence[Finding]
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    """What a reader must know to judge it: what was substituted, assumed or left out."""
    listings: Sequence[Listing] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Something about an experiment that the person who runs it can change."""

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
        """Raise SimulationError for a value that is not allowed."""
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
    """A published evaluation that can be repeated with one command."""

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
        live: RunsLive | None = None,
        negotiate: PlaysScenarios | None = None,
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
            live=live,
            negotiate=negotiate,
        )


def experiment_names() -> list[str]:
    """Return the names of the experiments in this package, in order of the alphabet."""
    modules = [module.name for module in pkgutil.iter_modules([str(Path(experiments.__file__).parent)])]
    return [name.replace("_", "-") for name in sorted(modules) if name != "framework"]


def load_experiment(name: str) -> Experiment:
    """Return an experiment by name. Raises SimulationError when there is none of that name."""
    names = experiment_names()
    if name not in names:
        raise SimulationError(f"there is no experiment {name}", hint=f"there is {', '.join(names)}")
    module = import_module(f"{experiments.__name__}.{name.replace('-', '_')}")
    experiment = module.EXPERIMENT
    if not isinstance(experiment, Experiment) or experiment.name != name:
        raise SimulationError(f"the module of experiment {name} does not define it")
    return experiment
