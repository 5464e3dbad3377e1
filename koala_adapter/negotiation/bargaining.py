# SPDX-License-Identifier: Apache-2.0
"""What may be changed in a counter-offer, what is an acceptance of what was offered, and how to decide. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.negotiation.derivedtemplates import accepted, countered, rejected
from koala_adapter.negotiation.template import Negotiability, Resource, Status, Template, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.negotiation.template import Resource, ResourceKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one side takes of a resource."""

    least: int = 1
    """Fewer are of no use to it."""
    most: int
    """More it cannot take, or give; 0: nothing."""
    fitting: Callable[[int], int] | None = None
    """Returns the largest quantity up to its argument that is of use, 0 if none; None: every quantity is."""

    def best(self, quantity: int) -> int:
        """Return the largest quantity that it takes of what is offered; 0: none."""
        most = min(quantity, self.most)
        if self.fitting is not None and most > 0:
            most = min(most, self.fitting(most))
        return most if most >= max(1, self.least) else 0


_ACCEPTED, _REJECTED, _FIXED, _OPTIONAL = Status.ACCEPTED, Status.REJECTED, Negotiability.FIXED, Usage.OPTIONAL

NOTHING = Terms(most=0)


def powers_of_two(held: int) -> Callable[[int], int]:
    """Return, for an application that holds so many processors, which growth makes its total a power of two."""

    def fitting(offered: int) -> int:
        total = 1 << (held + offered).bit_length() - 1
        return max(0, total - held)

    return fitting


def decide(offer: Template, terms: Mapping[ResourceKey, Terms]) -> Template:
    """Return the answer to an offer: it as it stands, a counter-offer, or the refusal with its reason.

    What ``terms`` does not name is not taken. An optional resource that cannot be taken is declined; a required one
    that cannot be taken refuses the whole.
    """
    quantities: dict[ResourceKey, int] = {}
    declined: set[ResourceKey] = set()
    for one in offer.resources:
        if one.declined:
            continue
        quantity = _answer(one, terms.get(one.key, NOTHING))
        if quantity:
            quantities[one.key] = quantity
        elif one.usage is _OPTIONAL:
            declined.add(one.key)
        else:
            return rejected(offer, _why_not(one, terms.get(one.key, NOTHING)))
    if not quantities:
        return rejected(offer, "nothing that is offered can be taken")
    if quantities == {key: many for key, many in offer.quantities().items() if key not in declined}:
        return accepted(offer, declined=declined)
    return countered(offer, quantities, declined=declined)


def _answer(resource: Resource, terms: Terms) -> int:
    """Return how much of a resource is taken; 0: none."""
    best = terms.best(resource.quantity)
    if best == resource.quantity:
        return best
    if resource.negotiability is _FIXED or best < (resource.minimum or 1):
        return 0
    return best


def _why_not(resource: Resource, terms: Terms) -> str:
    return f"of {resource.quantity} {resource.type} at most {max(0, terms.most)} can be had"


def problem_of_counter(previous: Template, counter: Template) -> str:
    """Return why an offer may not follow the one before it, or an empty text."""
    if counter.empty:
        return "an offer in which everything is declined is none"
    if counter.direction is not None and counter.direction is not previous.direction:
        return "the direction of an offer stays as it was"
    if counter.obligation is not None and counter.obligation is not previous.obligation:
        return "the obligation of an offer stays as it was"
    pairs = _pairs(previous.resources, counter.resources)
    if pairs is None:
        return "a counter-offer has the resources of the offer: what is not wanted is declined"
    for before, after in pairs:
        problem = _problem_of_change(before, after)
        if problem:
            return problem
    return ""


def _pairs(before: Sequence[Resource], after: Sequence[Resource]) -> Iterable[tuple[Resource, Resource]] | None:
    """Return each resource as it was and as it is; None: they are not the same ones."""
    if in_step(before, after):
        return zip(before, after)  # noqa: B905 - as many, as has just been seen
    earlier = {one.key: one for one in before}
    if earlier.keys() != {one.key for one in after}:
        return None
    return [(earlier[one.key], one) for one in after]


def in_step(some: Sequence[Resource], others: Sequence[Resource]) -> bool:
    """Tell whether these are the same resources in the same order, as they are between peers that keep to it."""
    if len(some) != len(others):
        return False
    for one, other in zip(some, others):  # noqa: B905 - as many: `strict` costs as much as the rest
        if one.type != other.type or one.cluster != other.cluster or one.component != other.component:
            return False
    return True


def same_quantities(one: Template, other: Template) -> bool:
    """Tell whether two templates are about as much of each resource."""
    if not in_step(one.resources, other.resources):
        return one.quantities() == other.quantities()
    for some, others in zip(one.resources, other.resources):  # noqa: B905 - as many, as has just been seen
        if some.declined is not others.declined or (some.quantity != others.quantity and not some.declined):
            return False
    return True


def _problem_of_change(before: Resource, after: Resource) -> str:
    if after.usage is not before.usage:
        return f"the usage of {after.type} stays as it was"
    if before.status is _REJECTED and after.status is not _REJECTED:
        return f"{after.type} was declined, and stays so"
    if before.negotiability is _FIXED:
        if after.negotiability is not _FIXED or after.quantity != before.quantity:
            return f"{after.type} is fixed"
        return ""
    least, most = before.minimum or 1, before.maximum or after.quantity
    if after.status is not _REJECTED and not least <= after.quantity <= most:
        return f"{after.quantity} {after.type} are outside the bounds of the offer"
    return ""


def problem_of_closing(standing: Template, closing: Template) -> str:
    """Return why an acceptance or commitment is not one of what stands, or an empty text.

    An acceptance may decline what is optional; a commitment may not.
    """
    pairs = _pairs(standing.resources, closing.resources)
    if pairs is None:
        return "it has other resources than what stands"
    for before, after in pairs:
        if after.quantity != before.quantity:
            return f"{after.quantity} {after.type} are not the {before.quantity} that stand"
        if before.declined and not after.declined:
            return f"{after.type} was declined"
        declinable = before.usage is _OPTIONAL and closing.status is _ACCEPTED
        if after.declined and not before.declined and not declinable:
            return f"{after.type} cannot be declined here"
    return "nothing is left in it" if closing.empty else ""


def completed(template: Template, previous: Template) -> Template:
    """Return a message with what a peer that only knows the published form has left out, as it was before.

    Clusters and components go with the resources: where the peer names none, and the types tell which is which, they
    are those of before.
    """
    resources = template.resources
    direction, obligation = template.direction or previous.direction, template.obligation or previous.obligation
    says_all = direction is template.direction and obligation is template.obligation
    if says_all and in_step(resources, previous.resources):
        return template
    before = {resource.type: resource for resource in previous.resources}
    if len(before) == len(previous.resources):
        resources = tuple(_placed(one, before.get(one.type, one)) for one in resources)
    if (resources, direction, obligation) == (template.resources, template.direction, template.obligation):
        return template
    return replace(template, resources=resources, direction=direction, obligation=obligation)


def _placed(resource: Resource, before: Resource) -> Resource:
    cluster, component = resource.cluster or before.cluster, resource.component or before.component
    if (cluster, component) == (resource.cluster, resource.component):
        return resource
    return replace(resource, cluster=cluster, component=component)
