# SPDX-License-Identifier: Apache-2.0
"""Templates from XML and to XML, and the frames that carry them, without an XML library beyond expat. Pure.

A document in the layout in which koala writes it is read in one pass; any other is read by expat. What comes from a
peer is bounded in size before anything else is done; document types, entities and processing instructions are refused
before they reach the parser, and nothing is fetched. What is read is a template by the schema (NT.xsd, NT-koala.xsd).
"""

import re
from functools import lru_cache
from typing import Dict, Iterator, List, Optional, Tuple
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
    NT_REJECTED,
    NegotiationError,
    Resource,
    Template,
    check_together,
    checked,
    require,
)

# -- Templates in koala's own layout, read in one pass -------------------------------------------------------
# koala, its application library and the published example write this layout. A template read here has the meaning that
# expat would give it. Any other document (another layout, an escaped character, a number out of range) is left to that.

_HOST_FIELD = r"([A-Za-z0-9._:-]{1,255})"
_NAME_FIELD = r"([A-Za-z][A-Za-z0-9_-]{0,62})"
_STATUS_FIELD = r"(NT_(?:NEGOTIATION|ACCEPTED|COMMITTED|CONSUMED|REJECTED|WITHDRAWN|EXPIRED|ERROR))"
_HEAD = re.compile(
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
_RESOURCE = re.compile(
    r'  <Resource((?: k:Minimum="([0-9]{1,10})")?(?: k:Maximum="([0-9]{1,10})")?'
    '(?: k:Cluster="' + _NAME_FIELD + '")?(?: k:Component="' + _NAME_FIELD + '")?)>\n'
    r"    <Type>([A-Za-z][A-Za-z0-9._-]{0,63})</Type>\n    <Quantity>([0-9]{1,10})</Quantity>\n"
    r"    <Usage>(NT_REQUIRED|NT_OPTIONAL)</Usage>\n    <Negotiability>(NT_NEGOTIABLE|NT_FIXED)</Negotiability>\n"
    r"    <Status>" + _STATUS_FIELD + "</Status>\n  </Resource>\n"
)
_RESOURCE_END = "  </Resource>\n"
_END = "</NT>\n"


def read_layout(text: str) -> Optional[Template]:
    """Parse a document in koala's own layout; None when it is in another, or no template.

    Raises NegotiationError where the resources do not go together.
    """
    head = _HEAD.match(text)
    if head is None:
        return None
    id_, extended, direction, obligation, within, number, reason, initiator, source, dest, status = head.groups()
    answer_within, round_ = float(within) if within else None, int(number) if number else None
    if answer_within == 0 or round_ == 0:
        return None
    resources: List[Resource] = []
    place, end = head.end(), len(text) - len(_END)
    while place < end:
        after = text.find(_RESOURCE_END, place) + len(_RESOURCE_END)
        resource, added = _read_resource(text[place:after])  # of no text where there is no end
        if resource is None or (added and not extended) or len(resources) == MOST_RESOURCES:
            return None
        resources.append(resource)
        place = after
    if place != end or not text.endswith(_END):
        return None
    value = Template(
        id_, initiator, source, dest, status, tuple(resources), direction or "", obligation or "", answer_within,
        round_, reason or "",
    )  # fmt: skip
    one = len(resources) == 1 and resources[0].status != NT_REJECTED
    return value if one else check_together(value)


@lru_cache(maxsize=256)  # the same ones come again and again: so many processors, offered, accepted, or committed to
def _read_resource(text: str) -> Tuple[Optional[Resource], bool]:
    """Parse one resource; return it and whether it has koala's extra attributes, or None if it is invalid."""
    found = _RESOURCE.match(text)
    if found is None or found.end() != len(text):
        return None, False
    added, least, most, cluster, component, type_, number, usage, negotiability, status = found.groups()
    quantity, minimum, maximum = int(number), int(least) if least else None, int(most) if most else None
    right = (
        1 <= quantity <= LARGEST_QUANTITY
        and (minimum is None or 1 <= minimum <= quantity)
        and (maximum is None or quantity <= maximum <= LARGEST_QUANTITY)
    )
    resource = Resource(
        type_, quantity, usage, negotiability, status, minimum, maximum, cluster or "", component or ""
    )  # fmt: skip
    return resource if right else None, bool(added)


# -- Templates in any layout, read by expat; templates to XML ------------------------------------------------

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
        depth, expected = len(self.path), ""
        if depth == 0:
            expected = "NT"
            self.root = self._attributes(name, attributes, "NT_AgreementID")
        elif depth == 1 and len(self.fields) < len(self.FIELDS):
            expected = self.FIELDS[len(self.fields)]
        elif depth == 1:
            expected = "Resource" if len(self.resources) < MOST_RESOURCES else ""
            self.resources.append((self._attributes(name, attributes, ""), []))
        elif depth == self.DEPTH and self.path[1] == "Resource":
            inner = self.resources[-1][1]
            expected = self.INNER[len(inner)] if len(inner) < len(self.INNER) else ""
        if name != expected:
            wanted = "{} comes there".format(expected) if expected else "nothing comes there"
            raise NegotiationError("this is no negotiation template: {:.70} was not expected, {}".format(name, wanted))
        if name == "NT" and "NT_AgreementID" not in attributes:
            raise NegotiationError("NT has no NT_AgreementID")
        if attributes and name not in ("NT", "Resource"):
            raise NegotiationError("{} has an attribute {:.70}".format(name, next(iter(attributes))))
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
        """Return the parsed template. Raises NegotiationError."""
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
    """Parse the value of one of koala's extra attributes. Raises NegotiationError."""
    if name == "Reason":
        value = value.translate({9: " ", 10: " ", 13: " "})
        require(len(value) <= LONGEST_REASON and not NOT_IN_REASON.search(value), name, value)
    elif name in _ADDED:
        value = value.strip(_SPACE)
        require(bool(_ADDED[name].match(value)), name, value)
        if name in ("AnswerWithin", "Round", "Minimum", "Maximum"):
            require(0 < float(value) <= LARGEST_QUANTITY, name, value)
    return value


def check_bytes(data: bytes) -> str:
    """Decode a document. Raises NegotiationError for one that must not reach an XML parser."""
    if len(data) > LARGEST_TEMPLATE:
        raise NegotiationError("a template of {} bytes is too large: at most {}".format(len(data), LARGEST_TEMPLATE))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NegotiationError("a template is in UTF-8; byte {} is not".format(error.start)) from None
    if data.startswith(b"<?") and not _DECLARATION.match(data):
        raise NegotiationError("a template begins with its root, or an XML declaration of version 1.0 in UTF-8")
    found = _FORBIDDEN.search(data)
    if found:
        raise NegotiationError("a template has no document type, entity or processing instruction: {}".format(
            found.group().decode("ascii")))  # fmt: skip
    return text


def parse(data: bytes) -> Template:
    """Parse a document into a template. Raises NegotiationError."""
    found = read_layout(check_bytes(data))
    if found is not None:
        return found
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
    """Return the XML document of a template. Raises NegotiationError."""
    checked(value)
    within = "" if value.answer_within is None else "{:.3f}".format(value.answer_within).rstrip("0").rstrip(".")
    added = _additions(
        Direction=value.direction, Obligation=value.obligation, AnswerWithin=within, Round=value.round
    )  # fmt: skip
    if value.reason:
        added += " k:Reason={}".format(quoteattr(value.reason))
    resources = "".join([_resource_text(one) for one in value.resources])
    if added or "<Resource k:" in resources:
        added = ' xmlns:k="{}"{}'.format(NAMESPACE, added)
    # Nothing to escape but a reason: what else may stand in a field has no character that XML takes for its own.
    text = _LAYOUT.format(
        value.agreement_id, _XSI, added, value.initiator, value.source, value.dest, value.status, resources
    )
    return text.encode("utf-8")


_LAYOUT = """\
<?xml version="1.0" encoding="UTF-8"?>
<NT NT_AgreementID="{}" xmlns:xsi="{}" xsi:noNamespaceSchemaLocation="NT.xsd"{}>
  <NT_Initiator>{}</NT_Initiator>
  <NT_Source>{}</NT_Source>
  <NT_Dest>{}</NT_Dest>
  <NT_Status>{}</NT_Status>
{}</NT>
"""
_RESOURCE_LAYOUT = """\
  <Resource{}>
    <Type>{}</Type>
    <Quantity>{}</Quantity>
    <Usage>{}</Usage>
    <Negotiability>{}</Negotiability>
    <Status>{}</Status>
  </Resource>
"""


@lru_cache(maxsize=256)
def _resource_text(one: Resource) -> str:
    added = _additions(Minimum=one.minimum, Maximum=one.maximum, Cluster=one.cluster, Component=one.component)
    return _RESOURCE_LAYOUT.format(added, one.type, one.quantity, one.usage, one.negotiability, one.status)


def _additions(**said: object) -> str:
    """Return koala's extra attributes in the given order, without empty ones.

    Keyword arguments keep their order from Python 3.6 on.
    """
    return "".join([' k:{}="{}"'.format(name, value) for name, value in said.items() if value])


# -- Frames: a size of eight digits, a line feed, and so many bytes ------------------------------------------

HEADER_SIZE = 9
_HEADER = re.compile(rb"[0-9]{8}\n\Z")
_HEADER_SO_FAR = re.compile(rb"[0-9]{0,8}\Z")


def frame(payload: bytes) -> bytes:
    """Return a template as a frame: size in eight digits, line feed, document. Raises NegotiationError."""
    require(1 <= len(payload) <= LARGEST_TEMPLATE, "the size of a frame", len(payload))
    return b"%08d\n" % len(payload) + payload


class FrameBuffer:
    """Incremental reader of the frames of one connection."""

    def __init__(self, limit: int = LARGEST_TEMPLATE) -> None:
        """``limit`` is the largest payload in bytes that is accepted."""
        self._limit = limit
        self._received = bytearray()

    @property
    def missing(self) -> int:
        """Bytes that are certainly still to come before a payload is complete."""
        if len(self._received) < HEADER_SIZE:
            return HEADER_SIZE - len(self._received)
        return HEADER_SIZE + int(self._received[:HEADER_SIZE]) - len(self._received)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take some bytes and yield the payloads that are complete with them.

        Raises NegotiationError for a size that is none or too large: the connection must be closed. No memory is
        reserved for it.
        """
        self._received += data
        size = self._size()
        while size is not None and len(self._received) >= HEADER_SIZE + size:
            payload = bytes(self._received[HEADER_SIZE : HEADER_SIZE + size])
            del self._received[: HEADER_SIZE + size]
            yield payload
            size = self._size()

    def _size(self) -> Optional[int]:
        header = bytes(self._received[:HEADER_SIZE])
        if _HEADER_SO_FAR.match(header):
            return None
        if not _HEADER.match(header):
            raise NegotiationError("a frame begins with its size in eight digits and a line feed, not with {!r}".format(
                header))  # fmt: skip
        size = int(header)
        require(1 <= size <= self._limit, "the size of a frame", size)
        return size
