# SPDX-License-Identifier: Apache-2.0
"""A template and its resources as immutable values, their bounds, and the answers made of them. Pure.

The service uses this very module, and programs get it as text: Python 3.6 and its standard library are enough.
"""

import re
from functools import lru_cache
from typing import Any, Callable, Dict, FrozenSet, Iterable, Mapping, NamedTuple, Optional, Tuple, Union

# -- Templates and resources ---------------------------------------------------------------------------------

LARGEST_TEMPLATE = 65536
"""Bytes."""
LARGEST_QUANTITY = 2147483647
LONGEST_ANSWER_TIME = 9999999.999
"""Seconds."""
LONGEST_REASON = 500
"""Characters."""
MOST_RESOURCES = 64
MOST_ROUNDS = 9999
"""Highest number of an offer that can be written; far fewer are agreed upon."""
NAMESPACE = "urn:koala-adapter:negotiation"

NT_NEGOTIATION = "NT_NEGOTIATION"
"""Of a template: it is an offer, or a counter-offer."""
NT_ACCEPTED = "NT_ACCEPTED"
NT_COMMITTED = "NT_COMMITTED"
NT_CONSUMED = "NT_CONSUMED"
"""What was agreed on is real: the resources are allocated (grow) or released (shrink)."""
NT_REJECTED = "NT_REJECTED"
"""Of a resource: it is declined."""
NT_WITHDRAWN = "NT_WITHDRAWN"
NT_EXPIRED = "NT_EXPIRED"
NT_ERROR = "NT_ERROR"
"""The peer said what it may not say."""
STATUSES = (
    NT_NEGOTIATION, NT_ACCEPTED, NT_COMMITTED, NT_CONSUMED, NT_REJECTED, NT_WITHDRAWN, NT_EXPIRED, NT_ERROR,
)  # fmt: skip
STANDING = frozenset((NT_NEGOTIATION, NT_ACCEPTED, NT_COMMITTED, NT_CONSUMED))
"""Statuses of templates that end nothing."""
RMS = "RMS"
"""The side of resource management: koala."""
APPLICATION = "APPLICATION"
OTHER_SIDE = {RMS: APPLICATION, APPLICATION: RMS}
GROW = "grow"
"""The application gets the resources."""
SHRINK = "shrink"
"""The application gives the resources up."""
MANDATORY = "mandatory"
"""The offer must be accommodated."""
VOLUNTARY = "voluntary"
"""The offer is a guideline."""
NT_REQUIRED = "NT_REQUIRED"
"""There is no agreement without the resource."""
NT_OPTIONAL = "NT_OPTIONAL"
NT_NEGOTIABLE = "NT_NEGOTIABLE"
NT_FIXED = "NT_FIXED"
"""The peer may not change the quantity of the resource."""
CPU = "CPU"
"""Type of the resource that is counted in processors."""
MEMORY = "MEM"
"""Type of the resource that is counted in MiB, for each processor."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}\Z")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}\Z")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}\Z")
NOT_IN_REASON = re.compile("[^ -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class NegotiationError(Exception):
    """An invalid template; the text names the field."""


class NegotiationStepError(NegotiationError):
    """A message that is not allowed in the present state; nothing was sent or changed."""


ResourceKey = Tuple[str, str, str]
"""Type, cluster and component of a resource."""
NegotiationKey = Tuple[str, str]
"""Initiator and agreement id of a negotiation: each side counts its own."""


class Resource(NamedTuple):
    """One resource of a template."""

    type: str
    """CPU, MEM, or a name that both sides know."""
    quantity: int
    """Processors, MiB, or as the name means."""
    usage: str = NT_REQUIRED
    negotiability: str = NT_NEGOTIABLE
    status: str = NT_NEGOTIATION
    minimum: Optional[int] = None
    """The least that the sender takes as a counter-offer; None: it does not say."""
    maximum: Optional[int] = None
    cluster: str = ""
    component: str = ""

    @property
    def key(self) -> ResourceKey:
        """(type, cluster, component), which identify a resource in a template."""
        return self.type, self.cluster, self.component

    @property
    def declined(self) -> bool:
        """Whether the resource was rejected, so that it will not be part of the agreement."""
        return self.status == NT_REJECTED


class Template(NamedTuple):
    """A negotiation template. Fields that are empty or None are left out of the document."""

    agreement_id: str
    """Chosen by the initiator; with that, it names the negotiation and the agreement that comes of it."""
    initiator: str
    source: str
    """Host of the initiator."""
    dest: str
    """Host of its peer."""
    status: str = NT_NEGOTIATION
    resources: Tuple[Resource, ...] = ()
    direction: str = ""
    obligation: str = ""
    answer_within: Optional[float] = None
    """Seconds from its arrival, in thousandths."""
    round: Optional[int] = None
    """Number of the offer, from 1."""
    reason: str = ""

    @property
    def key(self) -> NegotiationKey:
        """(initiator, agreement id), which identify the negotiation."""
        return self.initiator, self.agreement_id

    def quantities(self) -> Dict[ResourceKey, int]:
        """Return the quantity of each resource that is not declined."""
        return {one.key: one.quantity for one in self.resources if not one.declined}

    def quantity(self, type_: str) -> int:
        """Return the quantity of a type of resource, summed over clusters and components."""
        return sum(one.quantity for one in self.resources if one.type == type_ and one.status != NT_REJECTED)

    @property
    def empty(self) -> bool:
        """True when all resources are declined."""
        return all(one.status == NT_REJECTED for one in self.resources)


def resource(type_: str, quantity: int, **more: Any) -> Resource:  # noqa: ANN401 - fields of several types
    """Return a resource: CPU in processors, MEM in MiB, or another; ``more`` are the fields of `Resource`."""
    return Resource(type_, quantity, **more)


def template(agreement_id: str, initiator: str, source: str, dest: str, resources: Iterable[Resource],
             **more: Any) -> Template:  # fmt: skip  # noqa: ANN401 - fields of several types
    """Return a first offer; ``more`` are the fields of `Template`. Raises NegotiationError."""
    return checked(Template(agreement_id, initiator, source, dest, resources=tuple(resources), **more))


def checked(value: Template) -> Template:
    """Return a template with valid fields. Raises NegotiationError."""
    require(bool(_ID.match(value.agreement_id)), "NT_AgreementID", value.agreement_id)
    require(value.initiator in OTHER_SIDE, "NT_Initiator", value.initiator)
    require(bool(_HOST.match(value.source)), "NT_Source", value.source)
    require(bool(_HOST.match(value.dest)), "NT_Dest", value.dest)
    require(value.status in STATUSES, "NT_Status", value.status)
    require(value.direction in ("", GROW, SHRINK), "Direction", value.direction)
    require(value.obligation in ("", VOLUNTARY, MANDATORY), "Obligation", value.obligation)
    within = value.answer_within
    right = within is None or (0 < within <= LONGEST_ANSWER_TIME and round(within, 3) == within)
    require(right, "AnswerWithin", within)
    require(value.round is None or 1 <= value.round <= MOST_ROUNDS, "Round", value.round)
    right = len(value.reason) <= LONGEST_REASON and not NOT_IN_REASON.search(value.reason)
    require(right, "Reason", value.reason)
    for one in value.resources:
        _check_resource(one)
    return check_together(value)


def check_together(value: Template) -> Template:
    """Return a template of valid fields. Raises NegotiationError where its resources contradict each other."""
    resources = value.resources
    if not resources and value.status != NT_ERROR:
        raise NegotiationError("a template has at least one Resource, unless it tells of an error")
    if len(resources) > 1 and len({one.key for one in resources}) < len(resources):
        raise NegotiationError("two resources have the same Type, Cluster and Component")
    if len(resources) > MOST_RESOURCES:
        raise NegotiationError("{} resources are too many: at most {}".format(len(resources), MOST_RESOURCES))
    for one in resources:
        if one.status == NT_REJECTED and one.usage == NT_REQUIRED and value.status in STANDING:
            raise NegotiationError("a required resource is declined: reject the whole")
    return value


@lru_cache(maxsize=256)  # a negotiation is about the same ones, message after message
def _check_resource(value: Resource) -> None:
    require(bool(_TYPE.match(value.type)), "Type", value.type)
    for name, number in (("Quantity", value.quantity), ("Minimum", value.minimum), ("Maximum", value.maximum)):
        require(number is None or 1 <= number <= LARGEST_QUANTITY, name, number)
    least, most = value.minimum or 1, value.maximum or LARGEST_QUANTITY
    if not least <= value.quantity <= most:
        raise NegotiationError("Quantity is {}, outside its own {} to {}".format(value.quantity, least, most))
    require(value.usage in (NT_REQUIRED, NT_OPTIONAL), "Usage", value.usage)
    require(value.negotiability in (NT_NEGOTIABLE, NT_FIXED), "Negotiability", value.negotiability)
    require(value.status in STATUSES, "Status", value.status)
    for name, word in (("Cluster", value.cluster), ("Component", value.component)):
        require(not word or bool(NAME.match(word)), name, word)


def require(right: bool, name: str, value: object) -> None:  # noqa: FBT001 - a condition
    """Raise NegotiationError unless a condition on a field holds."""
    if not right:
        raise NegotiationError("{} is {:.70}".format(name, repr(value)))


# -- Answers: templates made of a received one, and deciding about an offer ----------------------------------
# What an answer takes over from the template that it is made of was checked with that. All of it is checked again
# where it is said.


def accepted(offer: Template, declined: Iterable[ResourceKey] = ()) -> Template:
    """Return the acceptance of an offer, without declined optional resources."""
    return check_together(_closing(offer, NT_ACCEPTED, frozenset(declined)))


def committed(acceptance: Template) -> Template:
    """Return the commitment to what the peer has accepted: from now on there is an agreement."""
    return _closing(acceptance, NT_COMMITTED, frozenset())


def consumed(agreement: Template) -> Template:
    """Return the report that the agreed resources are allocated, or released."""
    return _closing(agreement, NT_CONSUMED, frozenset())


def countered(offer: Template, quantities: Mapping[ResourceKey, int], declined: Iterable[ResourceKey] = (),
              reason: str = "") -> Template:  # fmt: skip
    """Return a counter-offer: other quantities, and resources that shall not be in the agreement."""
    out = frozenset(declined)
    changed = tuple(
        one._replace(
            quantity=quantities.get(one.key, one.quantity), minimum=None, maximum=None,
            status=NT_REJECTED if one.declined or one.key in out else NT_NEGOTIATION,
        )
        for one in offer.resources
    )  # fmt: skip
    return checked(
        offer._replace(status=NT_NEGOTIATION, resources=changed, answer_within=None, round=None, reason=reason)
    )


def rejected(offer: Template, reason: str = "") -> Template:
    """Return the refusal of an offer; it ends the negotiation."""
    return ended(offer, NT_REJECTED, reason)


def withdrawn(value: Template, reason: str = "") -> Template:
    """Return the withdrawal of an own offer, or of an agreement that cannot be kept."""
    return ended(value, NT_WITHDRAWN, reason)


def _closing(value: Template, status: str, declined: FrozenSet[ResourceKey]) -> Template:
    resources = tuple(
        one._replace(status=NT_REJECTED if one.declined or one.key in declined else status) for one in value.resources
    )
    return value._replace(status=status, resources=resources, answer_within=None, reason="")


def ended(value: Template, status: str, reason: str) -> Template:
    """Return the message that ends a negotiation with this status."""
    resources = tuple(one._replace(status=status) for one in value.resources)
    return value._replace(status=status, resources=resources, answer_within=None, reason=sayable(reason))


def sayable(text: str) -> str:
    """Return a text as a valid reason: one line of limited length."""
    return NOT_IN_REASON.sub("?", " ".join(text.split()))[:LONGEST_REASON]


Terms = Union[int, Callable[[int], int]]
"""The most that is taken of a resource, or which quantity up to its argument is, 0 for none."""


def decide(offer: Template, terms: Mapping[str, Terms]) -> Template:
    """Return the answer to an offer: acceptance, counter-offer or rejection.

    ``terms`` says for each type of resource what can be taken; what it does not name is not taken.
    """
    quantities: Dict[ResourceKey, int] = {}
    declined = []
    for one in offer.resources:
        if one.declined:
            continue
        most = terms.get(one.type, 0)
        best = most(one.quantity) if callable(most) else min(one.quantity, most)
        if best != one.quantity and (one.negotiability == NT_FIXED or best < (one.minimum or 1)):
            best = 0
        if best > 0:
            quantities[one.key] = best
        elif one.usage == NT_OPTIONAL:
            declined.append(one.key)
        else:
            return rejected(offer, "{} {} cannot be taken".format(one.quantity, one.type))
    if not quantities:
        return rejected(offer, "nothing that is offered can be taken")
    if all(one.declined or one.key in declined or quantities[one.key] == one.quantity for one in offer.resources):
        return accepted(offer, declined)
    return countered(offer, quantities, declined)
