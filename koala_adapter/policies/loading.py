# SPDX-License-Identifier: Apache-2.0
"""Installed policies: found by their entry points, checked against the contract, and made for their users.

The made policies are handed to the scheduler or to the queue of one cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import ConfigurationError, PluginError, PolicyAnswerError
from koala_adapter.policies.checked import CheckedMalleability, CheckedPlacement, CheckedQueues
from koala_adapter.policies.definition import INTERFACE_VERSION, PolicyDefinition, PolicyKind, installed
from koala_adapter.queueing.backfill import POLICIES as QUEUE_POLICIES
from koala_adapter.queueing.queue import ARRIVAL, ClusterScheduler
from koala_adapter.scheduler.knownpolicies import Policies
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES, MalleabilityPolicy
from koala_adapter.scheduler.placement.policies import PLACEMENT_POLICIES
from koala_adapter.scheduler.placement.policy import PlacementPolicy
from koala_adapter.sizes import ACCEPTANCE_RULES, AcceptanceRule, CheckedRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib import metadata
    from importlib.metadata import EntryPoint

    from koala_adapter.queueing.backfill import MakeQueue


# -- Finding installed policies; refusing invalid definitions ------------------------------------------------

HINT = "see `koala docs policies`"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPolicy:
    """An installed policy whose definition is valid."""

    definition: PolicyDefinition
    described: str
    """Its entry point and distribution, as a person is told."""


def load_definitions(
    kind: PolicyKind, own: Iterable[str], entry_points: Iterable[metadata.EntryPoint] | None = None
) -> Mapping[str, InstalledPolicy]:
    """Return installed policies of a kind by name; ``own``: koala's names, which may not be used.

    Raises PluginError, naming the distribution at fault, when one cannot be imported or breaks the contract, and for
    an entry point that is of no kind.
    """
    known, found = frozenset(own), dict[str, InstalledPolicy]()
    for entry_point in installed() if entry_points is None else entry_points:
        where = described(entry_point)
        begins = entry_point.name.partition(".")[0]
        if begins not in PolicyKind.__members__.values():
            kinds = ", ".join(f"{one}.NAME" for one in PolicyKind)
            raise PluginError(f"{where} is of no kind that there is", hint=f"entry points are called {kinds}")
        if begins != kind:
            continue
        definition = _loaded(entry_point, where)
        if definition.name in known or definition.name in found:
            whose = "koala's own" if definition.name in known else "another installed one"
            message = f"{where}: {definition.name!r} is the name of {whose}"
            raise PluginError(message, hint="rename it, or uninstall its distribution")
        found[definition.name] = InstalledPolicy(definition=definition, described=where)
    return found


def described(entry_point: metadata.EntryPoint) -> str:
    """Return an entry point for messages: its name, its target and its distribution."""
    dist = entry_point.dist
    of = f" of {dist.name} {dist.version}" if dist is not None else ""
    return f"policy {entry_point.name!r} ({entry_point.value}){of}"


def _loaded(entry_point: metadata.EntryPoint, where: str) -> PolicyDefinition:
    try:
        definition = entry_point.load()
    except Exception as error:
        message = f"{where} cannot be imported: {type(error).__name__}: {error}"
        raise PluginError(message, hint="reinstall it, or uninstall its distribution") from error
    if not isinstance(definition, PolicyDefinition):
        problem = f"expected a PolicyDefinition, found {type(definition).__name__}"
    else:
        problem = _problem(entry_point.name, definition)
    if problem:
        raise PluginError(f"{where} breaks the contract of policies: {problem}", hint=HINT)
    checked: PolicyDefinition = definition
    return checked


def _problem(name: str, definition: PolicyDefinition) -> str:
    if f"{definition.kind}.{definition.name}" != name:
        return f"it calls itself {definition.kind}.{definition.name}"
    if not _NAME.fullmatch(definition.name):
        return "a name is a letter, then letters, digits, _ or -, at most 63 in all"
    if definition.interface_version != INTERFACE_VERSION:
        return f"it is written for interface {definition.interface_version}, this is interface {INTERFACE_VERSION}"
    return "" if callable(definition.factory) else "factory must be callable"


# -- Making policies for the scheduler and for the queues of clusters ----------------------------------------


def load_policies(entry_points: Iterable[EntryPoint] | None = None) -> Policies:
    """Return koala's and the installed policies for placement, malleability and sizes.

    With them come the installed rules for the sizes of components.

    Raises PluginError, naming the distribution at fault, for one that cannot be made.
    """
    points = None if entry_points is None else tuple(entry_points)
    placement = load_definitions(PolicyKind.PLACEMENT, PLACEMENT_POLICIES, points)
    malleability = load_definitions(PolicyKind.MALLEABILITY, MALLEABILITY_POLICIES, points)
    sizes = load_definitions(PolicyKind.SIZES, ACCEPTANCE_RULES, points)
    return Policies(
        placement={
            **PLACEMENT_POLICIES,
            **{name: CheckedPlacement(_made(one, PlacementPolicy), one.described) for name, one in placement.items()},
        },
        malleability={
            **MALLEABILITY_POLICIES,
            **{
                name: CheckedMalleability(_made(one, MalleabilityPolicy), one.described)
                for name, one in malleability.items()
            },
        },
        sizes={name: CheckedRule(_made(one, AcceptanceRule), one.described) for name, one in sizes.items()},
    )


def load_queue_policy(
    name: str,
    entry_points: Iterable[EntryPoint] | None = None,
    *,
    refused: Callable[[PolicyAnswerError], None] | None = None,
) -> MakeQueue | None:
    """Return the factory of an installed queue policy; None for one of koala's own.

    ``refused`` hears of answers that cannot be followed; None: PolicyAnswerError is raised where they are given.
    Raises ConfigurationError when there is none of that name, and PluginError for one that cannot be made.
    """
    if name in QUEUE_POLICIES:
        return None
    found = load_definitions(PolicyKind.QUEUE, QUEUE_POLICIES, entry_points)
    if name not in found:
        known = ", ".join((*QUEUE_POLICIES, *sorted(found)))
        raise ConfigurationError(f"there is no policy {name!r}", hint=f"policies are {known}")
    chosen = found[name]
    _made(chosen, ClusterScheduler, 1, weights=ARRIVAL)
    return CheckedQueues(make=chosen.definition.factory, described=chosen.described, refused=refused)


def _made(chosen: InstalledPolicy, kind: type[Any], *arguments: object, **options: object) -> Any:  # noqa: ANN401 - of the kind that is asked for
    definition, where = chosen.definition, chosen.described
    try:
        made: Any = definition.factory(*arguments, **options)
    except Exception as error:
        message = f"{where} cannot be made: {type(error).__name__}: {error}"
        raise PluginError(message, hint=HINT) from error
    if not isinstance(made, kind):
        message = f"{where} breaks the contract of policies: it makes a {type(made).__name__}, no {kind.__name__}"
        raise PluginError(message, hint=HINT)
    called = getattr(made, "name", definition.name)
    if called != definition.name:
        message = f"{where} breaks the contract of policies: what it makes calls itself {called!r}"
        raise PluginError(message, hint=HINT)
    return made
