# SPDX-License-Identifier: Apache-2.0
"""Makes the installed policies, ready to be handed to what decides: the scheduler, or the queue of one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koala_adapter.dynaco.decide import ACCEPTANCE_RULES, AcceptanceRule
from koala_adapter.dynaco.sizerules import CheckedRule
from koala_adapter.errors import ConfigurationError, PluginError
from koala_adapter.policies.definition import PolicyKind
from koala_adapter.policies.entrypoints import HINT, load_definitions
from koala_adapter.queueing.checkedqueue import CheckedQueues
from koala_adapter.queueing.local_queue import ClusterScheduler
from koala_adapter.queueing.policies import POLICIES as QUEUE_POLICIES
from koala_adapter.queueing.priority import ARRIVAL
from koala_adapter.scheduler.knownpolicies import Policies
from koala_adapter.scheduler.malleable.checkedmalleability import CheckedMalleability
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES, MalleabilityPolicy
from koala_adapter.scheduler.placement.checkedplacement import CheckedPlacement
from koala_adapter.scheduler.placement.ownpolicies import POLICIES as PLACEMENT_POLICIES
from koala_adapter.scheduler.placement.policy import PlacementPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

    from koala_adapter.errors import PolicyAnswerError
    from koala_adapter.policies.entrypoints import InstalledPolicy
    from koala_adapter.queueing.policies import MakeQueue


def load_policies(entry_points: Iterable[EntryPoint] | None = None) -> Policies:
    """Return what the scheduler may use: koala's own policies of placement and malleability, and those installed.

    With them come the installed rules for the sizes of components.

    Raises PluginError, naming the distribution at fault, for one that cannot be made.
    """
    points = None if entry_points is None else tuple(entry_points)
    placement = load_definitions(PolicyKind.PLACEMENT, PLACEMENT_POLICIES, points)
    malleability = load_definitions(PolicyKind.MALLEABILITY, MALLEABILITY_POLICIES, points)
    sizes = load_definitions(PolicyKind.SIZES, ACCEPTANCE_RULES, points)
    return Policies(
        placement={
            name: CheckedPlacement(_made(one, PlacementPolicy), one.described) for name, one in placement.items()
        },
        malleability={
            name: CheckedMalleability(_made(one, MalleabilityPolicy), one.described)
            for name, one in malleability.items()
        },
        sizes={name: CheckedRule(_made(one, AcceptanceRule), one.described) for name, one in sizes.items()},
    )


def load_queue_policy(
    name: str,
    entry_points: Iterable[EntryPoint] | None = None,
    *,
    refused: Callable[[PolicyAnswerError], None] | None = None,
) -> MakeQueue | None:
    """Return what makes queues under an installed policy; None for one of koala's own.

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
