# SPDX-License-Identifier: Apache-2.0
"""The cases that ``koala simulate`` compares: what they are called, their clusters, their outcomes, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.simulation.comparison import result, run_case
from koala_adapter.simulation.parallel import watched
from koala_adapter.simulation.platform import PLATFORMS, load_platform, named_platform
from koala_adapter.simulation.platform_replay import Site
from koala_adapter.simulation.report import Heading, write_result
from koala_adapter.simulation.workload_models import MODELS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from koala_adapter.simulation.comparison import Case, Outcome
    from koala_adapter.simulation.parallel import ProgressBoard
    from koala_adapter.simulation.platform import Platform


def trace_names(traces: Iterable[str]) -> dict[str, str]:
    """Return what each trace is called, no two alike. Raises SimulationError for an unknown model."""
    names: dict[str, str] = {}
    for trace in dict.fromkeys(traces):
        name = trace.removeprefix(PREFIX)
        if trace.startswith(PREFIX):
            if name not in MODELS:
                hint = f"there is {', '.join(PREFIX + model for model in MODELS)}"
                raise SimulationError(f"there is no workload model {name}", hint=hint)
        else:
            name = Path(trace).name.removesuffix(".gz").removesuffix(".swf")
        number = sum(other == name or other.startswith(f"{name}~") for other in names.values())
        names[trace] = f"{name}~{number + 1}" if number else name
    return names


def find_platform(platform: str) -> Platform:
    """Return the platform of a file, or one by its name. Raises ConfigurationError, OSError."""
    path = Path(platform)
    return named_platform(platform) if platform in PLATFORMS and not path.exists() else load_platform(path)


def sites_of(platform: Platform) -> tuple[Site, ...]:
    """Return the clusters of a platform."""
    return tuple(
        Site(
            name=cluster.name,
            processors=cluster.processors - cluster.threshold,
            speed=cluster.speed,
            cluster=cluster,
            local_users=platform.background_of(cluster),
            failures=platform.failures_of(cluster),
        )
        for cluster in platform.clusters
    )


def run_cases(cases: Sequence[Case], processes: int, show: Callable[[int, int, int | None], None]) -> list[Outcome]:
    """Return the outcomes in the order of the cases, those that there are when it is interrupted.

    ``show`` hears how many jobs of a case, given by its index, have ended, and of how many, if that is known.
    """
    found: dict[int, Outcome] = {}

    def update(board: ProgressBoard) -> None:
        for index, (done, total) in enumerate(board.progress):
            show(index, done, total or None)

    for index, outcome in watched(run_case, cases, processes, update):
        found[index] = outcome
        if not outcome.interrupted:
            show(index, outcome.summary.jobs, outcome.summary.jobs)
        if outcome.interrupted and min(processes, len(cases)) == 1:
            break
    return [found[index] for index in sorted(found) if found[index].summary.jobs or not found[index].interrupted]


def heading(cases: Sequence[Case]) -> Heading:
    """Return what stands at the top of the page."""
    first = cases[0]
    policies = list(dict.fromkeys(case.policy.name for case in cases))
    sources = list(dict.fromkeys(case.source for case in cases))
    words = ["koala simulate", *(Path(source).name for source in sources), *(f"--policy {name}" for name in policies)]
    if first.sites:
        words.append("--platform FILE")
    options = {"--processors": first.processors, "--jobs": first.jobs, "--seed": first.seed or None}
    words += [f"{name} {value}" for name, value in options.items() if value is not None]
    words += [f"--metric {first.policy.metric}"] if first.policy.metric != "processors" else []
    words += [f"--depth {first.policy.depth}"] if first.policy.depth > 1 else []
    words += ["--kill-at-limit"] if first.kill_at_limit else []
    lead = f"{', '.join(dict.fromkeys(case.name for case in cases))} under {', '.join(policies)}."
    return Heading(title="Simulation", lead=lead, command=" ".join([*words, "--out DIR"]))


def write_page(out: Path, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Path:
    """Write page, figures and data of several outcomes; returns the page."""
    return write_result(out, heading(cases), result(outcomes))
