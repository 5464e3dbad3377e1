# SPDX-License-Identifier: Apache-2.0
"""Templates of an application as XML: frames, writing and reading, without an XML library beyond expat. Pure.

A document in the layout in which koala writes it is read in one pass; any other is read by expat.
"""

import re
from typing import Dict, Iterable, List, Match, Optional, Tuple
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from koala_adapter.negotiation.templates import (
    LARGEST_QUANTITY,
    LARGEST_TEMPLATE,
    LONGEST_REASON,
    MOST_RESOURCES,
    NAME,
    NAMESPACE,
    NOT_IN_REASON,
    NegotiationError,
    Resource,
    Template,
    check_together,
    checked,
    require,
)

# -- Templates in koala's own layout, read in one pass -------------------------------------------------------
# A document is read here only if it is a template by the schema. Any other one (another layout, an escaped character,
# a number out of range) is left to expat. The service's reader,
# negotiation/serviceside/document.py, uses the same patterns.

_HOST_FIELD = r"([A-Za-z0-9._:-]{1,255})"
_NAME_FIELD = r"([A-Za-z][A-Za-z0-9_-]{0,62})"
_STATUS_FIELD = r"(NT_(?:NEGOTIATION|ACCEPTED|COMMITTED|CONSUMED|REJECTED|WITHDRAWN|EXPIRED|ERROR))"
LAYOUT_HEAD = re.compile(
    r'<\?xml version="1\.0" encoding="UTF-8"\?>\n'
    r'<NT NT_AgreementID="([A-Za-z0-9._:-]{1,64})" xmlns:xsi="http://www\.w3\.org/2001/XMLSchema-instance"'
    r' xsi:noNamespaceSchemaLocation="NT\.xsd"'
    r'(?:( xmlns:k="urn:koala-adapter:negotiation")'
    r'(?: k:Direction="(grow|shrink)")?(?: k:Obligation="(voluntary|mandatory)")?'
    r'(?: k:AnswerWithin="([0-9]{1,7}(?:\.[0-9]{1,3})?)")?(?: k:Round="([0-9]{1,4})")?'
    '(?: k:Reason="([ !#-%\'-;=-~\u00a0-\ud7ff\ue000-\ufffd]{1,500})")?)?>\n'
    r"  <NT_Initiator>(RMS|APPLICATION)</NT_Initiator>\n  <NT_Source>" + _HOST_FIELD + "</NT_Source>\n"
    r"  <NT_Dest>" + _HOST_FIELD + r"</NT_Dest>\n  <NT_Status>" + _STATUS_FIELD + "</NT_Status>\n"
)
LAYOUT_RESOURCE = re.compile(
    r'  <Resource((?: k:Minimum="([0-9]{1,10})")?(?: k:Maximum="([0-9]{1,10})")?'
    '(?: k:Cluster="' + _NAME_FIELD + '")?(?: k:Component="' + _NAME_FIELD + '")?)>\n'
    r"    <Type>([A-Za-z][A-Za-z0-9._-]{0,63})</Type>\n    <Quantity>([0-9]{1,10})</Quantity>\n"
    r"    <Usage>(NT_REQUIRED|NT_OPTIONAL)</Usage>\n    <Negotiability>(NT_NEGOTIABLE|NT_FIXED)</Negotiability>\n"
    r"    <Status>" + _STATUS_FIELD + "</Status>\n  </Resource>\n"
)
LAYOUT_END = "</NT>\n"


def read_layout(text: str) -> Optional[Template]:
    """Return the template that a document is; None: not in this layout, or not one at all.

    Raises NegotiationError where the resources do not go together.
    """
    head = LAYOUT_HEAD.match(text)
    if head is None:
        return None
    id_, extended, direction, obligation, within, number, reason, initiator, source, dest, status = head.groups()
    answer_within, round_ = float(within) if within else None, int(number) if number else None
    resources: List[Resource] = []
    place = head.end()
    found = LAYOUT_RESOURCE.match(text, place)
    while found is not None:
        resource = _resource(found, bool(extended))
        if resource is None:
            return None
        resources.append(resource)
        place = found.end()
        found = LAYOUT_RESOURCE.match(text, place)
    if text[place:] != LAYOUT_END or answer_within == 0 or round_ == 0 or len(resources) > MOST_RESOURCES:
        return None
    return check_together(Template(
        id_, initiator, source, dest, status, tuple(resources), direction or "", obligation or "", answer_within,
        round_, reason or ""))  # fmt: skip


def _resource(found: Match[str], extended: bool) -> Optional[Resource]:  # noqa: FBT001 - of a private function
    added, least, most, cluster, component, type_, number, usage, negotiability, status = found.groups()
    quantity, minimum, maximum = int(number), int(least) if least else None, int(most) if most else None
    if (added and not extended) or not 1 <= quantity <= LARGEST_QUANTITY:
        return None
    if (minimum is not None and not 1 <= minimum <= quantity) or (
        maximum is not None and not quantity <= maximum <= LARGEST_QUANTITY
    ):
        return None
    return Resource(type_, quantity, usage, negotiability, status, minimum, maximum, cluster or "", component or "")


# -- Templates in XML, read by expat and written -------------------------------------------------------------

_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_SPACE = " \t\r\n"
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
_ROUND = re.compile(r"[0-9]{1,4}\Z")
_SECONDS = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?\Z")
_ADDED = {
    "Direction": re.compile(r"(grow|shrink)\Z"), "Obligation": re.compile(r"(voluntary|mandatory)\Z"),
    "AnswerWithin": _SECONDS, "Round": _ROUND, "Minimum": _NUMBER, "Maximum": _NUMBER, "Cluster": NAME,
    "Component": NAME,
}  # fmt: skip
"""What may stand in the attributes that koala adds, on whatever element."""
_DECLARATION = re.compile(
    rb"""<\?xml\s+version\s*=\s*(["'])1\.0\1(\s+encoding\s*=\s*(["'])[uU][tT][fF]-8\3)?"""
    rb"""(\s+standalone\s*=\s*(["'])(yes|no)\5)?\s*\?>"""
)
_FORBIDDEN = re.compile(rb"<!(?:DOCTYPE|ENTITY)|<\?(?!xml\s)")


class _Reader:
    """Builds a template from what expat finds in a document."""

    FIELDS = ("NT_Initiator", "NT_Source", "NT_Dest", "NT_Status")
    INNER = ("Type", "Quantity", "Usage", "Negotiability", "Status")
    DEPTH = 2
    """That of the fields of a resource; nothing lies deeper."""

    def __init__(self) -> None:
        self.path: List[str] = []
        self.root: Dict[str, str] = {}
        self.fields: List[str] = []
        self.resources: List[Tuple[Dict[str, str], List[str]]] = []
        self.text = ""

    def start(self, name: str, attributes: Dict[str, str]) -> None:
        """Handle the start tag of an element."""
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
        """Handle the end tag of an element."""
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
        """Handle character data."""
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
        require(bool(_NUMBER.match(quantity)), "Quantity", quantity)
        least, most = attributes.get("Minimum"), attributes.get("Maximum")
        return Resource(
            type_, int(quantity), usage, negotiability, status, int(least) if least else None,
            int(most) if most else None, attributes.get("Cluster", ""), attributes.get("Component", ""),
        )  # fmt: skip


def _checked_addition(name: str, value: str) -> str:
    """Return the value of an attribute of ours, as it is meant. Raises NegotiationError."""
    if name == "Reason":
        value = value.translate({9: " ", 10: " ", 13: " "})
        require(len(value) <= LONGEST_REASON and not NOT_IN_REASON.search(value), name, value)
    elif name in _ADDED:
        value = value.strip(_SPACE)
        require(bool(_ADDED[name].match(value)), name, value)
        if name in ("AnswerWithin", "Round", "Minimum", "Maximum"):
            require(0 < float(value) <= LARGEST_QUANTITY, name, value)
    return value


def parse(data: bytes) -> Template:
    """Return the template that a document is. Raises NegotiationError."""
    if len(data) > LARGEST_TEMPLATE:
        raise NegotiationError("a template of {} bytes is too large".format(len(data)))
    try:
        found = read_layout(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise NegotiationError("a template is in UTF-8") from None
    if found is not None:
        return found
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


# -- Frames: a size of eight digits, a line feed, and so many bytes ------------------------------------------

HEADER_SIZE = 9


def frame(payload: bytes) -> bytes:
    """Return the frame of a template: its size in eight digits, a line feed, and itself."""
    require(1 <= len(payload) <= LARGEST_TEMPLATE, "the size of a frame", len(payload))
    return b"%08d\n" % len(payload) + payload


def unframed(received: bytearray) -> Optional[bytes]:
    """Take the first payload out of what was received; None: it is not complete. Raises NegotiationError."""
    header = bytes(received[:HEADER_SIZE])
    if not re.match(rb"[0-9]{8}\n\Z" if len(header) == HEADER_SIZE else rb"[0-9]*\Z", header):
        raise NegotiationError("a frame begins with its size in eight digits and a line feed")
    if len(header) < HEADER_SIZE:
        return None
    size = int(header)
    require(1 <= size <= LARGEST_TEMPLATE, "the size of a frame", size)
    if len(received) < HEADER_SIZE + size:
        return None
    payload = bytes(received[HEADER_SIZE : HEADER_SIZE + size])
    del received[: HEADER_SIZE + size]
    return payload
