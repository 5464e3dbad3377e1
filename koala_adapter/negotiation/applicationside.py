# SPDX-License-Identifier: Apache-2.0
"""Negotiation for applications: one file that needs the standard library of Python 3.6 or newer, and nothing else.

It may be copied beside a program. The templates, the rules and the state machine are those of the other modules of its
folder, which tests hold together; here no XML library is needed, and a blocking socket does.

    connection = connect("head.example.org", 7322, token)
    connection.send(template("1", "APPLICATION", "node7", "head", [resource("CPU", 4)], direction="grow"))
    while True:
        event = connection.recv()
        if event.kind == "offer":
            connection.send(decide(event.template, {"CPU": 6}))
        elif event.kind == "accepted":
            connection.send(committed(event.template))
        else:
            break
    connection.close()
"""

import re
import socket
import time
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

LARGEST_TEMPLATE = 65536
LARGEST_QUANTITY = 2147483647
HEADER_SIZE = 9
LONGEST_ANSWER_TIME = 9999999.999
LONGEST_REASON = 500
MOST_RESOURCES = 64
MOST_ROUNDS = 9999
NAMESPACE = "urn:koala-adapter:negotiation"
GREETING = b"KOALA-NT 1 "
"""Begins the first frame of a connection by TCP; the one-time token follows."""

_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_SPACE = " \t\r\n"

STATUSES = (
    "NT_NEGOTIATION", "NT_ACCEPTED", "NT_COMMITTED", "NT_CONSUMED", "NT_REJECTED", "NT_WITHDRAWN", "NT_EXPIRED",
    "NT_ERROR",
)  # fmt: skip
OTHER_SIDE = {"RMS": "APPLICATION", "APPLICATION": "RMS"}
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}\Z")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}\Z")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
_ROUND = re.compile(r"[0-9]{1,4}\Z")
_SECONDS = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?\Z")
_ADDED = {
    "Direction": re.compile(r"(grow|shrink)\Z"), "Obligation": re.compile(r"(voluntary|mandatory)\Z"),
    "AnswerWithin": _SECONDS, "Round": _ROUND, "Minimum": _NUMBER, "Maximum": _NUMBER, "Cluster": _NAME,
    "Component": _NAME,
}  # fmt: skip
"""What may stand in the attributes that koala adds, on whatever element."""
_NOT_IN_REASON = re.compile("[^ -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DECLARATION = re.compile(
    rb"""<\?xml\s+version\s*=\s*(["'])1\.0\1(\s+encoding\s*=\s*(["'])[uU][tT][fF]-8\3)?"""
    rb"""(\s+standalone\s*=\s*(["'])(yes|no)\5)?\s*\?>"""
)
_FORBIDDEN = re.compile(rb"<!(?:DOCTYPE|ENTITY)|<\?(?!xml\s)")


class NegotiationError(Exception):
    """What came, or is to be said, is no template; the text names the field."""


class NegotiationStepError(NegotiationError):
    """What was to be said does not follow; nothing was sent, and nothing has changed."""


class Resource(NamedTuple):
    """One resource of a template."""

    type: str
    quantity: int
    usage: str = "NT_REQUIRED"
    negotiability: str = "NT_NEGOTIABLE"
    status: str = "NT_NEGOTIATION"
    minimum: Optional[int] = None
    maximum: Optional[int] = None
    cluster: str = ""
    component: str = ""

    @property
    def key(self) -> Tuple[str, str, str]:
        """What tells it from the others: type, cluster and component."""
        return self.type, self.cluster, self.component

    @property
    def declined(self) -> bool:
        """Nothing of it will be in the agreement."""
        return self.status == "NT_REJECTED"


class Template(NamedTuple):
    """One negotiation template; empty and None: it does not say."""

    agreement_id: str
    initiator: str
    source: str
    dest: str
    status: str = "NT_NEGOTIATION"
    resources: Tuple[Resource, ...] = ()
    direction: str = ""
    obligation: str = ""
    answer_within: Optional[float] = None
    round: Optional[int] = None
    reason: str = ""

    @property
    def key(self) -> Tuple[str, str]:
        """Which negotiation it belongs to: initiator and id."""
        return self.initiator, self.agreement_id

    def quantities(self) -> Dict[Tuple[str, str, str], int]:
        """Return how much of each resource it is about, without those that are declined."""
        return {one.key: one.quantity for one in self.resources if not one.declined}

    def quantity(self, type_: str) -> int:
        """Return how much of a resource it is about, over all clusters and components."""
        return sum(one.quantity for one in self.resources if one.type == type_ and not one.declined)


def resource(type_: str, quantity: int, **more: Any) -> Resource:  # noqa: ANN401 - fields of several types
    """Return a resource: CPU in processors, MEM in MiB, or another; ``more`` are the fields of `Resource`."""
    return Resource(type_, quantity, **more)


def template(agreement_id: str, initiator: str, source: str, dest: str, resources: Iterable[Resource],
             **more: Any) -> Template:  # fmt: skip  # noqa: ANN401 - fields of several types
    """Return a first offer; ``more`` are the fields of `Template`. Raises NegotiationError."""
    return checked(Template(agreement_id, initiator, source, dest, resources=tuple(resources), **more))


def checked(value: Template) -> Template:
    """Return a template that may be written. Raises NegotiationError."""
    _require(bool(_ID.match(value.agreement_id)), "NT_AgreementID", value.agreement_id)
    _require(value.initiator in OTHER_SIDE, "NT_Initiator", value.initiator)
    _require(bool(_HOST.match(value.source)), "NT_Source", value.source)
    _require(bool(_HOST.match(value.dest)), "NT_Dest", value.dest)
    _require(value.status in STATUSES, "NT_Status", value.status)
    _require(value.direction in ("", "grow", "shrink"), "Direction", value.direction)
    _require(value.obligation in ("", "voluntary", "mandatory"), "Obligation", value.obligation)
    within = value.answer_within
    right = within is None or (0 < within <= LONGEST_ANSWER_TIME and round(within, 3) == within)
    _require(right, "AnswerWithin", within)
    _require(value.round is None or 1 <= value.round <= MOST_ROUNDS, "Round", value.round)
    right = len(value.reason) <= LONGEST_REASON and not _NOT_IN_REASON.search(value.reason)
    _require(right, "Reason", value.reason)
    for one in value.resources:
        _check_resource(one)
    keys = {one.key for one in value.resources}
    _require(len(keys) == len(value.resources) <= MOST_RESOURCES, "number of different Resources", len(keys))
    _require(bool(keys) or value.status == "NT_ERROR", "number of Resources", 0)
    standing = value.status in ("NT_NEGOTIATION", "NT_ACCEPTED", "NT_COMMITTED", "NT_CONSUMED")
    if standing and any(one.declined and one.usage == "NT_REQUIRED" for one in value.resources):
        raise NegotiationError("a required resource is declined: reject the whole")
    return value


def _check_resource(value: Resource) -> None:
    _require(bool(_TYPE.match(value.type)), "Type", value.type)
    for name, number in (("Quantity", value.quantity), ("Minimum", value.minimum), ("Maximum", value.maximum)):
        _require(number is None or 1 <= number <= LARGEST_QUANTITY, name, number)
    _require((value.minimum or 1) <= value.quantity <= (value.maximum or LARGEST_QUANTITY), "Quantity", value.quantity)
    _require(value.usage in ("NT_REQUIRED", "NT_OPTIONAL"), "Usage", value.usage)
    _require(value.negotiability in ("NT_NEGOTIABLE", "NT_FIXED"), "Negotiability", value.negotiability)
    _require(value.status in STATUSES, "Status", value.status)
    for name, word in (("Cluster", value.cluster), ("Component", value.component)):
        _require(not word or bool(_NAME.match(word)), name, word)


def _require(right: bool, name: str, value: object) -> None:  # noqa: FBT001 - a condition
    if not right:
        raise NegotiationError("{} is {:.70}".format(name, repr(value)))


# What may be said, made from what was heard.


def accepted(offer: Template, declined: Iterable[Tuple[str, str, str]] = ()) -> Template:
    """Return the acceptance of an offer, without those of its optional resources that are declined."""
    return checked(_closing(offer, "NT_ACCEPTED", frozenset(declined)))


def committed(acceptance: Template) -> Template:
    """Return the commitment to what the peer has accepted."""
    return checked(_closing(acceptance, "NT_COMMITTED", frozenset()))


def consumed(agreement: Template) -> Template:
    """Return the report that what was agreed on is allocated, or released."""
    return checked(_closing(agreement, "NT_CONSUMED", frozenset()))


def countered(offer: Template, quantities: Dict[Tuple[str, str, str], int],
              declined: Iterable[Tuple[str, str, str]] = (), reason: str = "") -> Template:  # fmt: skip
    """Return a counter-offer: other quantities, and resources that shall not be in the agreement."""
    out = frozenset(declined)
    changed = tuple(
        one._replace(
            quantity=quantities.get(one.key, one.quantity), minimum=None, maximum=None,
            status="NT_REJECTED" if one.declined or one.key in out else "NT_NEGOTIATION",
        )
        for one in offer.resources
    )  # fmt: skip
    return checked(
        offer._replace(status="NT_NEGOTIATION", resources=changed, answer_within=None, round=None, reason=reason)
    )


def rejected(offer: Template, reason: str = "") -> Template:
    """Return the refusal of an offer."""
    return _ended(offer, "NT_REJECTED", reason)


def withdrawn(value: Template, reason: str = "") -> Template:
    """Return the withdrawal of an own offer, or of an agreement that cannot be kept."""
    return _ended(value, "NT_WITHDRAWN", reason)


def _closing(value: Template, status: str, declined: Iterable[Tuple[str, str, str]]) -> Template:
    resources = tuple(
        one._replace(status="NT_REJECTED" if one.declined or one.key in declined else status) for one in value.resources
    )
    return value._replace(status=status, resources=resources, answer_within=None, reason="")


def _ended(value: Template, status: str, reason: str) -> Template:
    resources = tuple(one._replace(status=status) for one in value.resources)
    return value._replace(status=status, resources=resources, answer_within=None, reason=_sayable(reason))


def _sayable(text: str) -> str:
    return _NOT_IN_REASON.sub("?", " ".join(text.split()))[:LONGEST_REASON]


Terms = Union[int, Callable[[int], int]]
"""The most that is taken of a resource, or which quantity up to its argument is, 0 for none."""


def decide(offer: Template, terms: Dict[str, Terms]) -> Template:
    """Return the answer to an offer: its acceptance, a counter-offer, or its refusal.

    ``terms`` says for each type of resource what can be taken; what it does not name is not taken.
    """
    quantities = {}  # type: Dict[Tuple[str, str, str], int]
    declined = []
    for one in offer.resources:
        if one.declined:
            continue
        most = terms.get(one.type, 0)
        best = most(one.quantity) if callable(most) else min(one.quantity, most)
        if best != one.quantity and (one.negotiability == "NT_FIXED" or best < (one.minimum or 1)):
            best = 0
        if best > 0:
            quantities[one.key] = best
        elif one.usage == "NT_OPTIONAL":
            declined.append(one.key)
        else:
            return rejected(offer, "{} {} cannot be taken".format(one.quantity, one.type))
    if not quantities:
        return rejected(offer, "nothing that is offered can be taken")
    if all(one.declined or one.key in declined or quantities[one.key] == one.quantity for one in offer.resources):
        return accepted(offer, declined)
    return countered(offer, quantities, declined)


# XML.


class _Reader:
    """Builds a template from what expat finds in a document."""

    FIELDS = ("NT_Initiator", "NT_Source", "NT_Dest", "NT_Status")
    INNER = ("Type", "Quantity", "Usage", "Negotiability", "Status")
    DEPTH = 2
    """That of the fields of a resource; nothing lies deeper."""

    def __init__(self) -> None:
        self.path = []  # type: List[str]
        self.root = {}  # type: Dict[str, str]
        self.fields = []  # type: List[str]
        self.resources = []  # type: List[Tuple[Dict[str, str], List[str]]]
        self.text = ""

    def start(self, name: str, attributes: Dict[str, str]) -> None:
        """Take the beginning of an element."""
        depth = len(self.path)
        if depth == 0:
            right = name == "NT" and "NT_AgreementID" in attributes
            self.root = self._attributes(name, attributes, "NT_AgreementID")
        elif depth == 1 and len(self.fields) < len(self.FIELDS):
            right = name == self.FIELDS[len(self.fields)] and not attributes
        elif depth == 1:
            right = name == "Resource" and len(self.resources) < MOST_RESOURCES
            self.resources.append((self._attributes(name, attributes, ""), []))
        else:
            inner = self.resources[-1][1] if self.path[1] == "Resource" else list(self.INNER)
            right = (
                depth == self.DEPTH
                and len(inner) < len(self.INNER)
                and name == self.INNER[len(inner)]
                and not attributes
            )
        if not right:
            raise NegotiationError("this is no negotiation template: {:.70} was not expected".format(name))
        self.path.append(name)
        self.text = ""

    @staticmethod
    def _attributes(name: str, attributes: Dict[str, str], own: str) -> Dict[str, str]:
        found = {}
        for attribute, value in attributes.items():
            namespace, _, local = attribute.rpartition(" ")
            if namespace == _XSI and local not in ("noNamespaceSchemaLocation", "schemaLocation"):
                raise NegotiationError("{} has an attribute {:.70}".format(name, attribute))
            if not namespace and local != own:
                raise NegotiationError("{} has an attribute {:.70}".format(name, attribute))
            if namespace in ("", NAMESPACE):
                found[local] = _checked_addition(local, value) if namespace else value
        return found

    def end(self, name: str) -> None:
        """Take the end of an element."""
        self.path.pop()
        text, self.text = self.text.strip(_SPACE), ""
        if len(self.path) == 1 and name != "Resource":
            self.fields.append(text)
        elif len(self.path) == self.DEPTH:
            self.resources[-1][1].append(text)
        elif text:
            raise NegotiationError("{} has text".format(name))
        elif name == "Resource" and len(self.resources[-1][1]) < len(self.INNER):
            raise NegotiationError("{} is missing".format(self.INNER[len(self.resources[-1][1])]))

    def characters(self, text: str) -> None:
        """Take some text."""
        if text.strip(_SPACE) and (len(self.path) < self.DEPTH or self.path[-1] == "Resource"):
            raise NegotiationError("{} has text".format(self.path[-1]))
        self.text += text

    def template(self) -> Template:
        """Return what the document says. Raises NegotiationError."""
        if len(self.fields) < len(self.FIELDS):
            raise NegotiationError("{} is missing".format(self.FIELDS[len(self.fields)]))
        initiator, source, dest, status = self.fields
        within, number = self.root.get("AnswerWithin"), self.root.get("Round")
        return checked(
            Template(
                self.root["NT_AgreementID"].strip(_SPACE), initiator, source, dest, status,
                tuple(self._resource(*one) for one in self.resources),
                self.root.get("Direction", ""), self.root.get("Obligation", ""),
                float(within) if within else None, int(number) if number else None, self.root.get("Reason", ""),
            )
        )  # fmt: skip

    @staticmethod
    def _resource(attributes: Dict[str, str], inner: List[str]) -> Resource:
        type_, quantity, usage, negotiability, status = inner
        _require(bool(_NUMBER.match(quantity)), "Quantity", quantity)
        least, most = attributes.get("Minimum"), attributes.get("Maximum")
        return Resource(
            type_, int(quantity), usage, negotiability, status, int(least) if least else None,
            int(most) if most else None, attributes.get("Cluster", ""), attributes.get("Component", ""),
        )  # fmt: skip


def _checked_addition(name: str, value: str) -> str:
    """Return the value of an attribute of ours, as it is meant. Raises NegotiationError."""
    if name == "Reason":
        value = value.translate({9: " ", 10: " ", 13: " "})
        _require(len(value) <= LONGEST_REASON and not _NOT_IN_REASON.search(value), name, value)
    elif name in _ADDED:
        value = value.strip(_SPACE)
        _require(bool(_ADDED[name].match(value)), name, value)
        if name in ("AnswerWithin", "Round", "Minimum", "Maximum"):
            _require(0 < float(value) <= LARGEST_QUANTITY, name, value)
    return value


def parse(data: bytes) -> Template:
    """Return the template that a document is. Raises NegotiationError."""
    if len(data) > LARGEST_TEMPLATE:
        raise NegotiationError("a template of {} bytes is too large".format(len(data)))
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise NegotiationError("a template is in UTF-8") from None
    if data.startswith(b"<?") and not _DECLARATION.match(data):
        raise NegotiationError("a template begins with its root, or an XML declaration of version 1.0 in UTF-8")
    if _FORBIDDEN.search(data):
        raise NegotiationError("a template has no document type, entity or processing instruction")
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.characters
    try:
        parser.Parse(data, True)  # noqa: FBT003 - expat takes no names
    except expat.ExpatError as error:
        raise NegotiationError("this is no well-formed XML: {}".format(error)) from None
    return reader.template()


def build(value: Template) -> bytes:
    """Return the document of a template. Raises NegotiationError."""
    checked(value)
    within = "" if value.answer_within is None else "{:.3f}".format(value.answer_within).rstrip("0").rstrip(".")
    said = (("Direction", value.direction), ("Obligation", value.obligation), ("AnswerWithin", within),
            ("Round", str(value.round or "")), ("Reason", value.reason))  # fmt: skip
    inner = [_additions(_resource_additions(one)) for one in value.resources]
    added = _additions(said)
    if added or any(inner):
        added = ' xmlns:k="{}"{}'.format(NAMESPACE, added)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<NT NT_AgreementID="{}" xmlns:xsi="{}" xsi:noNamespaceSchemaLocation="NT.xsd"{}>'.format(
            value.agreement_id, _XSI, added
        ),
    ]
    # Nothing to escape: what may stand in a field has no character that XML takes for its own.
    fields = (value.initiator, value.source, value.dest, value.status)
    lines += ["  <{0}>{1}</{0}>".format(name, text) for name, text in zip(_Reader.FIELDS, fields)]
    for one, more in zip(value.resources, inner):
        lines.append("  <Resource{}>".format(more))
        texts = (one.type, str(one.quantity), one.usage, one.negotiability, one.status)
        lines += ["    <{0}>{1}</{0}>".format(name, text) for name, text in zip(_Reader.INNER, texts)]
        lines.append("  </Resource>")
    return "\n".join([*lines, "</NT>", ""]).encode("utf-8")


def _resource_additions(value: Resource) -> Tuple[Tuple[str, str], ...]:
    return (("Minimum", str(value.minimum or "")), ("Maximum", str(value.maximum or "")),
            ("Cluster", value.cluster), ("Component", value.component))  # fmt: skip


def _additions(said: Iterable[Tuple[str, str]]) -> str:
    return "".join(" k:{}={}".format(name, quoteattr(value)) for name, value in said if value)


# Frames.


def frame(payload: bytes) -> bytes:
    """Return the frame of a template: its size in eight digits, a line feed, and itself."""
    _require(1 <= len(payload) <= LARGEST_TEMPLATE, "the size of a frame", len(payload))
    return b"%08d\n" % len(payload) + payload


def unframed(received: bytearray) -> Optional[bytes]:
    """Take the first payload out of what was received; None: it is not complete. Raises NegotiationError."""
    header = bytes(received[:HEADER_SIZE])
    if not re.match(rb"[0-9]{8}\n\Z" if len(header) == HEADER_SIZE else rb"[0-9]*\Z", header):
        raise NegotiationError("a frame begins with its size in eight digits and a line feed")
    if len(header) < HEADER_SIZE:
        return None
    size = int(header)
    _require(1 <= size <= LARGEST_TEMPLATE, "the size of a frame", size)
    if len(received) < HEADER_SIZE + size:
        return None
    payload = bytes(received[HEADER_SIZE : HEADER_SIZE + size])
    del received[: HEADER_SIZE + size]
    return payload


# The state machine: for each state and each message of the peer, the state that follows and the answer. The same tables
# as in states.py, which says what they mean.

MESSAGES = (
    "offer", "repeated offer", "unfit offer", "accept", "commit", "consume", "mismatch", "reject", "withdraw",
    "expire", "error",
)  # fmt: skip
SAID = {
    "NT_NEGOTIATION": "offer", "NT_ACCEPTED": "accept", "NT_COMMITTED": "commit", "NT_CONSUMED": "consume",
    "NT_REJECTED": "reject", "NT_WITHDRAWN": "withdraw", "NT_EXPIRED": "expire", "NT_ERROR": "error",
}  # fmt: skip
AGAIN = "last message again"
ENDED = ("consumed", "rejected", "withdrawn", "expired", "lost", "broken")
BARGAINING = ("offered", "asked", "accepting", "accepted")
_CLOSINGS = {
    "reject": ("rejected", "-"), "withdraw": ("withdrawn", "-"), "expire": ("expired", "-"), "error": ("broken", "-"),
}  # fmt: skip


def _row(default: Tuple[str, str], *steps: Dict[str, Tuple[str, str]]) -> Dict[str, Tuple[str, str]]:
    row = dict.fromkeys(MESSAGES, default)
    for some in steps:
        row.update(some)
    return row


def _open(**steps: Tuple[str, str]) -> Dict[str, Tuple[str, str]]:
    named = {name.replace("_", " "): step for name, step in steps.items()}
    return _row(("broken", "NT_ERROR"), _CLOSINGS, named)


def _final(state: str, answer: str) -> Dict[str, Tuple[str, str]]:
    return _row((state, answer), dict.fromkeys(_CLOSINGS, (state, "-")))


RECEIVED = {
    "new": _row(
        ("new", "-"),
        {"offer": ("asked", "-"), "unfit offer": ("new", "NT_REJECTED")},
        dict.fromkeys(("accept", "commit", "consume", "mismatch"), ("new", "NT_EXPIRED")),
    ),
    "offered": _open(
        offer=("asked", "-"), repeated_offer=("offered", AGAIN), unfit_offer=("rejected", "NT_REJECTED"),
        accept=("accepted", "-"),
    ),
    "asked": _open(repeated_offer=("asked", "-")),
    "accepting": _open(repeated_offer=("accepting", AGAIN), commit=("agreed", "-"), consume=("consumed", "-")),
    "accepted": _open(repeated_offer=("accepted", "-"), accept=("accepted", "-")),
    "agreed": _open(
        repeated_offer=("agreed", "-"), accept=("agreed", AGAIN), commit=("agreed", "-"), consume=("consumed", "-")
    ),
    "consumed": _row(("consumed", "-"), _CLOSINGS, {"accept": ("consumed", AGAIN)}),
    "rejected": _final("rejected", "NT_REJECTED"),
    "withdrawn": _final("withdrawn", "NT_WITHDRAWN"),
    "expired": _final("expired", "NT_EXPIRED"),
    "lost": _final("lost", "NT_WITHDRAWN"),
    "broken": _final("broken", "NT_ERROR"),
}  # fmt: skip
SENT = {
    "new": {"offer": "offered"},
    "offered": {"withdraw": "withdrawn"},
    "asked": {"offer": "offered", "accept": "accepting", "reject": "rejected", "withdraw": "withdrawn"},
    "accepting": {},
    "accepted": {"commit": "agreed", "withdraw": "withdrawn"},
    "agreed": {"consume": "consumed", "withdraw": "withdrawn"},
    "consumed": {}, "rejected": {}, "withdrawn": {}, "expired": {}, "lost": {}, "broken": {},
}  # type: Dict[str, Dict[str, str]]  # fmt: skip
DISCONNECTED = {"offered": "lost", "asked": "lost", "accepted": "lost"}
_RESENT = {
    "accepting": "NT_ACCEPTED", "agreed": "NT_COMMITTED", "consumed": "NT_CONSUMED", "rejected": "NT_REJECTED",
    "withdrawn": "NT_WITHDRAWN", "expired": "NT_EXPIRED", "broken": "NT_ERROR",
}  # fmt: skip
_EVENTS = {"asked": "offer", "accepted": "accepted", "agreed": "agreed", "consumed": "consumed"}


# What may follow what.


def problem_of_counter(previous: Template, counter: Template) -> str:
    """Return why an offer may not follow the one before it, or an empty text."""
    if not counter.quantities():
        return "an offer in which everything is declined is none"
    for name in ("direction", "obligation"):
        if getattr(counter, name) and getattr(counter, name) != getattr(previous, name):
            return "the {} of an offer stays as it was".format(name)
    before = {one.key: one for one in previous.resources}
    if before.keys() != {one.key for one in counter.resources}:
        return "a counter-offer has the resources of the offer: what is not wanted is declined"
    problems = [_problem_of_change(before[one.key], one) for one in counter.resources]
    return next((problem for problem in problems if problem), "")


def _problem_of_change(before: Resource, after: Resource) -> str:
    if after.usage != before.usage:
        return "the usage of {} stays as it was".format(after.type)
    if before.declined and not after.declined:
        return "{} was declined, and stays so".format(after.type)
    if before.negotiability == "NT_FIXED":
        same = after.negotiability == "NT_FIXED" and after.quantity == before.quantity
        return "" if same else "{} is fixed".format(after.type)
    if not after.declined and not (before.minimum or 1) <= after.quantity <= (before.maximum or after.quantity):
        return "{} {} are outside the bounds of the offer".format(after.quantity, after.type)
    return ""


def problem_of_closing(standing: Template, closing: Template) -> str:
    """Return why an acceptance or commitment is not one of what stands, or an empty text."""
    before = {one.key: one for one in standing.resources}
    if before.keys() != {one.key for one in closing.resources}:
        return "it has other resources than what stands"
    for one in closing.resources:
        earlier = before[one.key]
        if one.quantity != earlier.quantity:
            return "{} {} are not the {} that stand".format(one.quantity, one.type, earlier.quantity)
        if earlier.declined and not one.declined:
            return "{} was declined".format(one.type)
        declinable = earlier.usage == "NT_OPTIONAL" and closing.status == "NT_ACCEPTED"
        if one.declined and not earlier.declined and not declinable:
            return "{} cannot be declined here".format(one.type)
    return "" if closing.quantities() else "nothing is left in it"


def completed(value: Template, previous: Template) -> Template:
    """Return a message with what a peer that only knows the published form has left out, as it was before."""
    resources = value.resources
    before = {one.type: one for one in previous.resources}
    if len(before) == len(previous.resources):
        resources = tuple(
            one._replace(cluster=one.cluster or before[one.type].cluster,
                         component=one.component or before[one.type].component)
            if one.type in before else one
            for one in resources
        )  # fmt: skip
    return value._replace(
        resources=resources,
        direction=value.direction or previous.direction,
        obligation=value.obligation or previous.obligation,
    )


class Event(NamedTuple):
    """Something that happened in a negotiation, or to the connection."""

    kind: str
    """offer: it waits for our answer; accepted: for our commitment; agreed; consumed: it is real; ended: nothing is
    agreed (any more); unreadable: the peer sent no template; complaint: it reports an error; closed."""
    key: Tuple[str, str] = ("", "")
    template: Optional[Template] = None
    state: str = ""
    before: str = ""
    reason: str = ""


class _Negotiation:
    """Where one negotiation is."""

    def __init__(self, standing: Template) -> None:
        self.state = "new"
        self.standing = standing
        self.round = 0
        self.deadline = None  # type: Optional[float]
        self.last_sent = None  # type: Optional[Template]


class Endpoint:
    """One side of the negotiations with one peer: bytes and templates in, events and bytes out; no socket, no clock."""

    def __init__(self, side: str = "APPLICATION", host: str = "localhost", peer: str = "localhost", *,
                 answer_within: float = 30.0, longest_answer: float = 3600.0, most_rounds: int = 8,
                 most_open: int = 16, most_kept: int = 64) -> None:  # fmt: skip
        """The bounds are those of ``Limits`` in endpoint.py."""
        self.side = side
        self._host = host
        self._peer = peer
        self._answer_within = answer_within
        self._longest_answer = longest_answer
        self._most_rounds = most_rounds
        self._most_open = most_open
        self._most_kept = most_kept
        self._received = bytearray()
        self._output = bytearray()
        self._known = OrderedDict()  # type: OrderedDict[Tuple[str, str], _Negotiation]
        self.unreadable = False

    def state(self, key: Tuple[str, str]) -> str:
        """Return where we are in a negotiation; "new" when it is not known (any more)."""
        return self._known[key].state if key in self._known else "new"

    def standing(self, key: Tuple[str, str]) -> Optional[Template]:
        """Return what stands in a negotiation; None: it is not known."""
        return self._known[key].standing if key in self._known else None

    def next_deadline(self) -> Optional[float]:
        """Return when `time_passed` is to be called at the latest."""
        return min((one.deadline for one in self._known.values() if one.deadline is not None), default=None)

    def data_to_send(self) -> bytes:
        """Return what is to be written, once."""
        data = bytes(self._output)
        del self._output[:]
        return data

    def send(self, value: Template, now: float) -> Tuple[str, str]:
        """Say something: what, is its status. Returns which negotiation it belongs to. Raises NegotiationStepError."""
        known = self._known.get(value.key)
        message = SAID[checked(value).status]
        state = known.state if known is not None else "new"
        following = SENT[state].get(message)
        problem = "the negotiation is {}".format(state) if following is None else self._problem(value, known, message)
        if following is None or problem:
            raise NegotiationStepError("cannot say {} in {} of {}: {}".format(
                message, value.agreement_id, value.initiator, problem))  # fmt: skip
        if known is None:
            known = self._known[value.key] = _Negotiation(value)
        if message == "offer":
            known.round += 1
            value = value._replace(answer_within=value.answer_within or self._answer_within)
        value = value._replace(round=known.round)
        if following not in ENDED or following == "consumed":
            known.standing = value
        self._move(value.key, known, following, now, None)
        self._say(known, value)
        return value.key

    def _problem(self, value: Template, known: Optional[_Negotiation], message: str) -> str:
        if known is None:
            if value.initiator != self.side:
                return "{} is the initiator of what it offers first".format(self.side)
            return "" if self._number_open() < self._most_open else "too many negotiations are open"
        if message == "offer" and known.round >= self._most_rounds:
            return "there were {} offers already: accept or reject".format(known.round)
        if message == "offer":
            return problem_of_counter(known.standing, value)
        if message == "accept":
            return problem_of_closing(known.standing, value)
        changed = message in ("commit", "consume") and value.quantities() != known.standing.quantities()
        return "it is not what was accepted" if changed else ""

    def _number_open(self) -> int:
        return sum(one.state not in ENDED for one in self._known.values())

    def receive(self, data: bytes, now: float) -> List[Event]:
        """Take what has come from the peer, in whatever pieces, and return what happened by it."""
        events = []  # type: List[Event]
        if self.unreadable:
            return events
        self._received += data
        try:
            while True:
                payload = unframed(self._received)
                if payload is None:
                    return events
                events += self._take(parse(payload), now)
        except NegotiationError as error:
            self.unreadable = True
            reason = _sayable(str(error))
            self._write(Template("unreadable", self.side, self._host, self._peer, "NT_ERROR", reason=reason))
            return [*events, Event("unreadable", reason=reason)]

    def _take(self, value: Template, now: float) -> List[Event]:
        key = value.key
        known = self._known.get(key)
        if known is not None:
            value = completed(value, known.standing)
        message, problem = self._classified(value, known)
        state = known.state if known is not None else "new"
        following, answer = RECEIVED[state][message]
        if known is None:
            known = _Negotiation(value)
            if following != "new":
                self._known[key] = known
            elif message == "error":
                return [Event("complaint", reason=value.reason)]
        if following != state:
            if following not in ENDED or following == "consumed":
                known.standing = value
            known.round += message == "offer"
            self._move(key, known, following, now, value.answer_within)
        self._reply(known, answer, problem)
        return [] if following == state else [_event(key, known, state, value.reason or problem)]

    def _classified(self, value: Template, known: Optional[_Negotiation]) -> Tuple[str, str]:
        message = SAID[value.status]
        if known is None:
            return self._classified_first(value, message)
        if message == "offer":
            return self._classified_offer(value, known)
        problem = ""
        if message == "accept" and known.state == "offered":
            problem = problem_of_closing(known.standing, value)
        elif message in ("accept", "commit", "consume") and value.quantities() != known.standing.quantities():
            problem = "it is not what stands"
        if message in ("accept", "commit") and value.round not in (None, known.round):
            problem = "round {} is not the last one, {}".format(value.round, known.round)
        return ("mismatch" if problem else message), problem or "{} does not follow".format(message)

    def _classified_first(self, value: Template, message: str) -> Tuple[str, str]:
        if message != "offer":
            return message, "there is no such negotiation (any more)"
        if value.initiator == self.side:
            return "unfit offer", "{} has not begun this negotiation".format(self.side)
        if value.round not in (None, 1):
            return "unfit offer", "the first offer has round 1"
        if not value.quantities():
            return "unfit offer", "an offer in which everything is declined is none"
        if self._number_open() >= self._most_open:
            return "unfit offer", "{} negotiations are open already".format(self._most_open)
        return message, ""

    def _classified_offer(self, value: Template, known: _Negotiation) -> Tuple[str, str]:
        same = value.quantities() == known.standing.quantities()
        if value.round is None and known.state != "offered" and same:
            return "repeated offer", ""
        if value.round is not None and value.round <= known.round:
            return "repeated offer", ""
        if value.round not in (None, known.round + 1):
            return "unfit offer", "round {} does not follow {}".format(value.round, known.round)
        if known.round >= self._most_rounds:
            return "unfit offer", "no agreement within {} offers".format(self._most_rounds)
        problem = problem_of_counter(known.standing, value)
        return ("unfit offer", problem) if problem else ("offer", "an offer does not follow")

    def time_passed(self, now: float) -> List[Event]:
        """End what was not answered in time, and tell the peer."""
        events = []
        for key, known in list(self._known.items()):
            if known.deadline is not None and known.deadline <= now:
                before = known.state
                reason = "no answer in time" if before == "offered" else "not settled in time"
                self._move(key, known, "expired", now, None)
                self._say(known, _ended(known.standing, "NT_EXPIRED", reason))
                events.append(_event(key, known, before, reason))
        return events

    def disconnected(self, now: float) -> List[Event]:
        """Take note that the connection has ended; what was not agreed on is lost."""
        del self._received[:]
        del self._output[:]
        events = []
        for key, known in list(self._known.items()):
            before = known.state
            if before in DISCONNECTED:
                self._move(key, known, DISCONNECTED[before], now, None)
                events.append(_event(key, known, before, "the connection ended"))
        return events

    def resumed(self) -> None:
        """Say again, on a new connection, what may not have arrived on the last one."""
        self.unreadable = False
        for known in self._known.values():
            if known.last_sent is not None and known.last_sent.status == _RESENT.get(known.state):
                self._write(known.last_sent)

    def offer_again(self) -> None:
        """Say again the own first offers that wait for an answer, to a peer that may have forgotten them."""
        for known in self._known.values():
            own = known.state == "offered" and known.round == 1 and known.standing.initiator == self.side
            if own and known.last_sent is not None:
                self._write(known.last_sent)

    def _move(self, key: Tuple[str, str], known: _Negotiation, state: str, now: float,
              asked_within: Optional[float]) -> None:  # fmt: skip
        known.state = state
        within = self._answer_within
        if state == "asked":
            within = min(asked_within or within, self._longest_answer)
        elif state == "offered":
            within = known.standing.answer_within or within
        known.deadline = now + within if state in BARGAINING else None
        if state in ENDED:
            self._known.move_to_end(key)
            ended = [key for key, one in self._known.items() if one.state in ENDED]
            for old in ended[: max(0, len(ended) - self._most_kept)]:
                del self._known[old]

    def _reply(self, known: _Negotiation, answer: str, problem: str) -> None:
        said = known.last_sent
        if answer == "-" or (answer == AGAIN and said is None):
            return
        if said is not None and answer in (AGAIN, said.status):
            self._write(said)
            return
        value = _ended(known.standing, answer, problem)
        self._say(known, value._replace(round=known.round or None))

    def _say(self, known: _Negotiation, value: Template) -> None:
        known.last_sent = value
        self._write(value)

    def _write(self, value: Template) -> None:
        self._output += frame(build(value))


def _event(key: Tuple[str, str], known: _Negotiation, before: str, reason: str) -> Event:
    kind = _EVENTS.get(known.state, "ended")
    return Event(kind, key, known.standing, known.state, before, reason if kind == "ended" else "")


# Sockets.


class Connection:
    """Negotiations with one peer over a socket, which blocks. Not to be used by two threads at once."""

    def __init__(self, stream: socket.socket, endpoint: Optional[Endpoint] = None) -> None:
        """``endpoint`` is that of an earlier connection with the same peer, to go on where that ended."""
        self.endpoint = endpoint or Endpoint()
        self._stream = stream
        self._events = []  # type: List[Event]
        if endpoint is not None:
            endpoint.resumed()
            self._flush()

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._stream.fileno()

    def send(self, value: Template) -> Tuple[str, str]:
        """Say something. Returns which negotiation it belongs to. Raises NegotiationStepError, OSError."""
        key = self.endpoint.send(value, time.monotonic())
        self._flush()
        return key

    def recv(self, timeout: Optional[float] = None) -> Optional[Event]:
        """Return what happens next; None: nothing within ``timeout`` seconds. After "closed" nothing else comes."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._events:
            now = time.monotonic()
            self._events += self.endpoint.time_passed(now)
            try:
                self._flush()
                if self._events or (until is not None and now >= until):
                    break
                alive = self._receive(now, until)
            except OSError:
                alive = False
            if not alive:
                self.close()
                self._events += [*self.endpoint.disconnected(time.monotonic()), Event("closed")]
        return self._events.pop(0) if self._events else None

    def _receive(self, now: float, until: Optional[float]) -> bool:
        """Wait for something from the peer, to the next deadline at most. Return whether the connection goes on."""
        ends = [moment for moment in (until, self.endpoint.next_deadline()) if moment is not None]
        self._stream.settimeout(max(0.001, min(ends) - now) if ends else None)
        try:
            data = self._stream.recv(65536)
        except socket.timeout:  # another class than TimeoutError before Python 3.10
            return True
        self._events += self.endpoint.receive(data, time.monotonic())
        self._flush()
        return bool(data) and not self.endpoint.unreadable

    def _flush(self) -> None:
        data = self.endpoint.data_to_send()
        if data:
            self._stream.settimeout(30.0)
            self._stream.sendall(data)

    def close(self) -> None:
        """End the connection. What is agreed on stays so."""
        self._stream.close()


def connect(host: str, port: int, token: str = "", endpoint: Optional[Endpoint] = None) -> Connection:
    """Connect by TCP, and show the one-time token if there is one. Raises OSError."""
    stream = socket.create_connection((host, port), timeout=30.0)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if token:
        stream.sendall(frame(GREETING + token.encode("ascii")))
    return Connection(stream, endpoint)


def connect_unix(path: str, endpoint: Optional[Endpoint] = None) -> Connection:
    """Connect to a Unix socket. Raises OSError."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(path)
    except OSError:
        stream.close()
        raise
    return Connection(stream, endpoint)


def accept(listening: socket.socket, endpoint: Optional[Endpoint] = None) -> Connection:
    """Wait for a peer on a listening socket that only it can reach. Raises OSError."""
    stream, _ = listening.accept()
    return Connection(stream, endpoint)
