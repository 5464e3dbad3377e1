# SPDX-License-Identifier: Apache-2.0
"""A site's own placement policy, whose answers are looked at before anything is done by them. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.scheduler.placement.policy import (
    Infeasible,
    Insufficient,
    Placed,
    PlacedComponent,
    PlacementPolicy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacementResult


class CheckedPlacement(PlacementPolicy):
    """A policy that answers as another one does, if that can be followed."""

    def __init__(self, policy: PlacementPolicy, described: str) -> None:
        """``described``: the policy and its entry point, as a person is told."""
        self.name = policy.name
        self.splits = bool(policy.splits)
        self._policy = policy
        self._described = described

    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """See :meth:`PlacementPolicy.place`. Raises PolicyAnswerError for an answer that cannot be followed."""
        try:
            result: object = self._policy.place(list(requests), MappingProxyType(views))
        except Exception as error:
            raise PolicyAnswerError.raised(self._described, error) from error
        problem = placement_problem(result, requests, views)
        if problem or not isinstance(result, Placed | Insufficient | Infeasible):
            raise PolicyAnswerError.of(self._described, problem)
        return result


def placement_problem(
    result: object, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> str:
    """Return what is wrong with an answer, as it goes on after "it"; nothing when it can be followed."""
    return next(_problems(result, requests, views), "")


def _problems(
    result: object, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> Iterator[str]:
    """Yield what is wrong; only the first counts, as what is looked at next relies on what was looked at before."""
    if isinstance(result, Insufficient | Infeasible):
        if not (isinstance(result.reason, str) and result.reason):
            yield "gives no reason"
        return
    if not isinstance(result, Placed):
        yield f"is {_kind(result)}, not Placed, Insufficient or Infeasible"
    elif not isinstance(result.components, tuple | list):
        yield f"has {_kind(result.components)} for a tuple of components"
    else:
        wanted = {request.component.name: request for request in requests}
        for part in result.components:
            yield from _problems_of_part(part, wanted, views)
        for request in requests:
            parts = [part for part in result.components if part.component == request.component.name]
            yield from _problems_of_component(request, parts)
        for cluster in {part.cluster: None for part in result.components}:
            processors = sum(part.processors for part in result.components if part.cluster == cluster)
            if processors > (room := max(0, views[cluster].room)):
                yield f"places {processors} processors on {cluster!r}, which has room for {room}"


def _problems_of_part(
    part: object, wanted: Mapping[str, ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> Iterator[str]:
    if not isinstance(part, PlacedComponent):
        yield f"places {_kind(part)}, not a PlacedComponent"
        return
    if not isinstance(part.component, str) or part.component not in wanted:
        yield f"places component {_shown(part.component)}, which it was not asked about"
    placed = f"places component {_shown(part.component)}"
    if not isinstance(part.cluster, str) or part.cluster not in views:
        yield f"{placed} on {_shown(part.cluster)}, which is no cluster of the site"
    if not _is_count(part.processors):
        yield f"{placed} on {_shown(part.processors)} processors"
    if part.piece is not None and not (_is_count(part.piece) and part.piece <= part.processors):
        yield f"{placed} with {_shown(part.piece)} of its minimum on {part.processors} processors"
    view = views[part.cluster]
    if (never := wanted[part.component].never(view)) is not None:
        yield f"{placed} on {_shown(part.cluster)}, where it can never run: {never}"
    if view.closed is not None:
        yield f"{placed} on {_shown(part.cluster)}, which is {view.closed}"


def _problems_of_component(request: ComponentRequest, parts: Sequence[PlacedComponent]) -> Iterator[str]:
    component = request.component
    if not parts:
        yield f"leaves component {component.name!r} out"
    if len(parts) > 1 and not request.splittable:
        yield f"splits component {component.name!r}, which is to stay whole"
    if len({part.cluster for part in parts}) < len(parts):
        yield f"places two pieces of component {component.name!r} on one cluster"
    processors = sum(part.processors for part in parts)
    if not component.minimum <= processors <= component.maximum:
        allowed = str(component.minimum) + (f" to {component.maximum}" if component.maximum > component.minimum else "")
        yield f"places component {component.name!r} on {processors} processors, it asks for {allowed}"
    shares = [part.piece for part in parts if part.piece is not None]
    if len(parts) > 1 and len(shares) < len(parts):
        yield f"does not say what share of component {component.name!r} a piece is"
    if shares and sum(shares) != component.minimum:
        yield f"shares {sum(shares)} processors of component {component.name!r}, its minimum is {component.minimum}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _shown(value: object) -> str:
    """Return a value as it was written; of anything else what it is: the same each time, as it gets into a journal."""
    return repr(value) if isinstance(value, str | int | float | None) else _kind(value)
