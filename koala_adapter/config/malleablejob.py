# SPDX-License-Identifier: Apache-2.0
"""What a job file says of jobs whose size changes while they run, and what of it fits together."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import AfterValidator, BeforeValidator

from koala_adapter.config.fields import NotAllowedError, PlainText
from koala_adapter.dynaco.decide import rule_named
from koala_adapter.model import JobKind, Launcher, RunnerName
from koala_adapter.policies.definition import PolicyKind
from koala_adapter.policies.entrypoints import policy_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from koala_adapter.config.tomlfile import KeyPath

LONGEST_GRACE = 3600

_SIGNALS = {one.name.removeprefix("SIG"): one for one in signal.Signals}
LONGEST_POINT_PATIENCE = 86_400
WARN_ADAPTIVE_BEFORE = 60
"""Seconds before the end of its walltime at which an adaptive program is told of it, unless its job file says."""

_OF_MALLEABLE = {
    "initial",
    "sizes",
    "retire_signal",
    "retire_command",
    "retire_grace",
    "point_patience",
    "done_patience",
}
_OF_RUNNERS = {
    "retire_signal": (RunnerName.WORKERS,),
    "retire_command": (RunnerName.WORKERS,),
    "retire_grace": (RunnerName.WORKERS, RunnerName.SWEEP),
    "point_patience": (RunnerName.ADAPTIVE,),
    "done_patience": (RunnerName.ADAPTIVE,),
}
"""Keys of a component that have a meaning with some runners only."""
_ENDING = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL")


def _ending_signal(value: object) -> object:
    if value not in _ENDING:
        raise NotAllowedError(", ".join(f'"{name}"' for name in _ENDING[:-1]) + f' or "{_ENDING[-1]}"')
    return value


def _program(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and not value[0]:
        raise NotAllowedError("a list whose first text is the name or path of a program")
    return value


def _sizes(value: object) -> object:
    try:
        rule_named(str(value))
    except ValueError:
        installed = policy_names(PolicyKind.SIZES)
        if value not in installed:
            others = "".join(f', "{name}"' for name in installed)
            own = '"any", "power-of-two" or "multiple-of-N" with a whole number N'
            raise NotAllowedError(f"{own}{others and ', or of those installed'}{others}") from None
    return value


SignalName = Annotated[str, BeforeValidator(_ending_signal)]
SizesName = Annotated[str, BeforeValidator(_sizes)]
RetireCommand = Annotated[tuple[PlainText, ...], AfterValidator(_program)]


def signal_number(name: str) -> int:
    """Return the number of a signal that a job file names."""
    return int(_SIGNALS[name])


class HeaderKeys(Protocol):
    """What of the top of a job file matters here."""

    @property
    def kind(self) -> JobKind:
        """How the size of the job may change."""

    @property
    def runner(self) -> RunnerName:
        """What runs it."""

    @property
    def launcher(self) -> Launcher:
        """How its ranks are started."""

    @property
    def walltime(self) -> int:
        """Seconds that it may run."""

    @property
    def warn_before(self) -> int | None:
        """Seconds before that at which it is warned; None: as is usual for its runner."""


class ComponentKeys(Protocol):
    """What of a component matters here."""

    @property
    def minimum(self) -> int | None:
        """Fewest processors; None: it keeps its size."""

    @property
    def maximum(self) -> int | None:
        """Most processors; None: it keeps its size."""

    @property
    def launcher(self) -> Launcher | None:
        """How its ranks are started; None: as the job says."""

    @property
    def retire_command(self) -> tuple[str, ...]:
        """What asks a worker to end."""

    @property
    def model_fields_set(self) -> AbstractSet[str]:
        """Keys that are in the file."""


def malleability_problems(
    header: HeaderKeys, components: Sequence[tuple[int, ComponentKeys]]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what does not fit together, by the place in the file."""
    malleable = header.kind is JobKind.MALLEABLE
    if malleable and header.runner is RunnerName.RANKS:
        text = 'allowed in a malleable job is "workers", "adaptive" or "sweep": it says how its size can change'
        yield ("runner",), text
    if not malleable and header.runner is not RunnerName.RANKS:
        yield ("runner",), f'found "{header.runner}", allowed in a malleable job only: write kind = "malleable"'
    if malleable and components and all(component.minimum is None for _, component in components):
        text = "no component can change its size: allowed is minimum and maximum in at least one of them"
        yield ("components",), text
    adaptive_mpi = header.runner is RunnerName.ADAPTIVE and header.launcher is Launcher.MPI
    if malleable and adaptive_mpi and len(components) > 1:
        yield ("components",), 'allowed with runner = "adaptive" and launcher = "mpi" is one component'
    if header.warn_before is not None:
        yield from _warning_problems(header)
    for index, component in components:
        yield from _component_problems(header, index, component)


def _warning_problems(header: HeaderKeys) -> Iterator[tuple[KeyPath, str]]:
    if header.runner not in {RunnerName.ADAPTIVE, RunnerName.WORKERS}:
        yield ("warn_before",), 'allowed with runner = "adaptive" or "workers" only'
    elif header.warn_before is not None and header.warn_before >= header.walltime:
        yield ("warn_before",), f"found {header.warn_before}, allowed is less than walltime ({header.walltime} s)"


def warned_before(header: HeaderKeys) -> int:
    """Return how many seconds before the end of its walltime a job is warned; 0: it is not."""
    usual = WARN_ADAPTIVE_BEFORE if header.runner is RunnerName.ADAPTIVE else 0
    return usual if header.warn_before is None else header.warn_before


def _component_problems(header: HeaderKeys, index: int, component: ComponentKeys) -> Iterator[tuple[KeyPath, str]]:
    malleable = header.kind is JobKind.MALLEABLE
    alone = header.runner in {RunnerName.WORKERS, RunnerName.SWEEP}
    if malleable and alone and (component.launcher or header.launcher) is Launcher.MPI:
        text = f'found "mpi", allowed with runner = "{header.runner}" is "process"'
        yield ("components", index, "launcher"), text
    # A sweep of one task has one launcher; here, a component that cannot change would be the head.
    changes = header.runner in {RunnerName.WORKERS, RunnerName.ADAPTIVE}
    if malleable and changes and component.minimum is not None and component.minimum == component.maximum:
        text = (
            f'found {component.maximum}, which is minimum, too: allowed with runner = "{header.runner}" is a larger '
            f"maximum; in a component that keeps its size write processors = {component.maximum} instead of the two"
        )
        yield ("components", index, "maximum"), text
    for key in sorted(_OF_MALLEABLE & component.model_fields_set):
        if not malleable:
            yield ("components", index, key), 'allowed in a malleable job only: write kind = "malleable" at the top'
        elif component.minimum is None:
            yield ("components", index, key), "allowed in a component with minimum and maximum only"
    yield from _problems_with_runner(header, index, component)
    if "retire_signal" in component.model_fields_set and component.retire_command:
        yield ("components", index, "retire_signal"), "given together with retire_command: allowed is one of them"


def _problems_with_runner(header: HeaderKeys, index: int, component: ComponentKeys) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys of a component that mean nothing to the runner of the job."""
    if header.kind is not JobKind.MALLEABLE or header.runner is RunnerName.RANKS or component.minimum is None:
        return
    for key in sorted(_OF_RUNNERS.keys() & component.model_fields_set):
        if header.runner not in _OF_RUNNERS[key]:
            names = " or ".join(f'"{runner}"' for runner in _OF_RUNNERS[key])
            yield ("components", index, key), f"allowed with runner = {names} only"
