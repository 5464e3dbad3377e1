# SPDX-License-Identifier: Apache-2.0
"""Templates as values, in XML, in frames and in JSON: what is written is read again, what is no template is refused.

Both ways of reading XML (in one pass, and by expat) agree with the XML schema.
"""

from __future__ import annotations

import ast
import json
import random
import re
import socket
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from koala_adapter import errors
from koala_adapter.application.shipping import negotiation_file
from koala_adapter.negotiation import (
    LARGEST_TEMPLATE,
    NAMESPACE,
    FrameBuffer,
    NegotiationError,
    Resource,
    Template,
    accepted,
    build,
    committed,
    frame,
    parse,
    rejected,
    resource,
    template,
    withdrawn,
)
from koala_adapter.negotiation import document as templatexml
from koala_adapter.negotiation.schema import read, template_schema, to_object
from koala_adapter.negotiation.templates import (
    GROW,
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_FIXED,
    NT_NEGOTIATION,
    NT_OPTIONAL,
    NT_REJECTED,
    RMS,
    checked,
    sayable,
)
from tests.examples import examples, repeated
from tests.unit.negotiation.templates import CPU, MEM, PUBLISHED, full, mutated, published, request, templates

ADDED = b'xmlns:k="urn:koala-adapter:negotiation" '


def published_value() -> Template:
    """Return what the published instance says."""
    memory = Resource(type="MEM", quantity=1024, usage=NT_OPTIONAL, negotiability=NT_FIXED)
    return Template("1001", RMS, "rms.example.org", "node7.example.org", resources=(Resource("CPU", 4), memory))


def test_the_published_instance_is_read_in_one_pass_and_written() -> None:
    assert templatexml.read_layout(PUBLISHED.decode()) == parse(PUBLISHED) == published_value()
    assert build(published_value()) == PUBLISHED


@pytest.mark.parametrize(
    "document",
    [
        PUBLISHED.replace(b"\n", b"\r\n"),
        PUBLISHED.replace(b'"', b"'").replace(b"<Type>CPU<", b"<Type> CPU\t<"),
        PUBLISHED.split(b"\n", 1)[1].replace(b"  <", b"<"),
        PUBLISHED.replace(b"<Resource>", b"<!-- of ours --><Resource >", 1).replace(b">4<", b"><![CDATA[4]]><"),
        PUBLISHED.replace(b"<Type>CPU", b"<Type>\n C<!-- x -->P<![CDATA[U]]> "),
        PUBLISHED.replace(b"NT_AgreementID", b'xmlns:o="urn:other" o:x="1" NT_AgreementID'),
        PUBLISHED.replace(b"<NT ", b"<!-- <a> --><NT xml:lang='de' xmlns:o='urn:o' o:x='&#10;' "),
        PUBLISHED.replace(b'"1001"', b'" 1001 "') + b"\n<!-- end -->\n",
        b"\xef\xbb\xbf" + PUBLISHED,
    ],
    ids=["crlf", "quotes", "no declaration", "comments", "cdata", "others' attributes", "more", "blanks", "mark"],
)
def test_a_template_in_any_layout_is_read(document: bytes) -> None:
    """However a peer lays its template out, it says the same, and is written in koala's layout."""
    assert templatexml.read_layout(document.decode()) is None
    assert parse(document) == published_value()
    assert build(parse(document)) == PUBLISHED


def test_attributes_of_later_versions_do_not_hinder() -> None:
    added = b"<NT xmlns:kk='urn:koala-adapter:negotiation' kk:Later='7' kk:Round='0012' "
    assert parse(PUBLISHED.replace(b"<NT ", added)) == published_value()._replace(round=12)


def test_what_koala_adds_is_in_its_own_namespace() -> None:
    """Without the attributes of our namespace, a template is one of the published form that says the same."""
    document = build(full()).decode()
    plain = parse(build(published(full())))
    assert NAMESPACE in document
    assert NAMESPACE not in build(plain).decode()
    assert plain.quantities() == {("GPU.x", "", ""): 3, CPU: 2**31 - 1}
    assert (plain.agreement_id, plain.initiator, plain.status) == ("a:7-x._", "APPLICATION", NT_NEGOTIATION)


@examples(40)
@given(templates)
def test_xml_keeps_every_template(value: Template) -> None:
    """What is written is read again, in one pass unless the reason has an escaped character; JSON says the same."""
    document = build(value)
    assert parse(document) == checked(value) == value
    assert expect_agreement(document) or re.search('["&<>\U00010000-\U0010ffff]', value.reason)
    said = json.loads(json.dumps(to_object(value)))
    resources = tuple(Resource(**one) for one in said.pop("resources"))
    assert Template(**said, resources=resources) == value


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b"RMS", b"ME", "NT_Initiator"),
        (b">4<", b">0<", "Quantity"),
        (b">4<", b">+4<", "Quantity"),
        (b">4<", b">4.0<", "Quantity"),
        (b">4<", b">2147483648<", "Quantity"),
        (b">4<", ">\u0664<".encode(), "Quantity"),
        (b"NT_REQUIRED", b"REQUIRED", "Usage"),
        (b"<Type>CPU</Type>", b"", "Type"),
        (b"<Type>CPU</Type>", b"<Type>C P U</Type>", "Type"),
        (b"</NT>", b"<more/></NT>", "more"),
        (b"node7.example.org", b"node7/example", "NT_Dest"),
        (b'"1001"', b'""', "NT_AgreementID"),
        (b'NT_AgreementID="1001"', b"", "NT_AgreementID"),
        (b"MEM", b"CPU", "same Type"),
        (b"<NT_Status>", b"<NT_Status x='1'>", "NT_Status"),
        (b"NT_AgreementID", ADDED + b'k:Direction="up" NT_AgreementID', "Direction"),
        (b"NT_AgreementID", ADDED + b'k:Round="0" NT_AgreementID', "Round"),
        (b"NT_AgreementID", ADDED + b'k:AnswerWithin="0" NT_AgreementID', "AnswerWithin"),
        (b"NT_AgreementID", ADDED + b'k:Reason="&#27;[2J" NT_AgreementID', "well-formed"),
        (b"NT_AgreementID", ADDED + b'k:Reason="&#x9b;2J" NT_AgreementID', "Reason"),
        (b"<Resource>", b'<Resource xmlns:k="urn:koala-adapter:negotiation" k:Minimum="5">', "outside its own 5"),
        (b"<Resource>", b'<Resource xmlns:k="urn:koala-adapter:negotiation" k:Cluster="">', "Cluster"),
    ],
)
def test_a_wrong_field_is_named(old: bytes, new: bytes, named: str) -> None:
    """A template with one wrong field is refused, and the refusal says which."""
    document = PUBLISHED.replace(old, new, 1)
    assert document != PUBLISHED
    with pytest.raises(NegotiationError, match=named):
        parse(document)


def test_a_template_without_resources_tells_of_an_error_or_is_none() -> None:
    bare = PUBLISHED[: PUBLISHED.index(b"  <Resource>")] + b"</NT>"
    with pytest.raises(NegotiationError, match="at least one Resource"):
        parse(bare)
    assert parse(bare.replace(b"NT_NEGOTIATION", b"NT_ERROR")).resources == ()


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE NT [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + number, b"&%c;" % (97 + number) * 10) for number in range(9))
    + b"]><NT>&j;</NT>"
)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (BOMB, "document type"),
        (b'<!DOCTYPE NT [<!ENTITY x SYSTEM "file:///etc/passwd">]><NT>&x;</NT>', "document type"),
        (b'<!DOCTYPE NT SYSTEM "http://127.0.0.1:9/x.dtd"><NT/>', "document type"),
        (PUBLISHED.replace(b">4<", b">&four;<"), "well-formed"),
        (b"<a>" * 9000, "a was not expected"),
        (b"<a>" * 4000 + b"</a>" * 4000, "well-formed|no negotiation template"),
        (b"x" * (LARGEST_TEMPLATE + 1), "too large"),
        (b"", "well-formed"),
        (b"\x00" * 100, "well-formed"),
        (PUBLISHED.decode().encode("utf-16"), "UTF-8"),
        (PUBLISHED.replace(b"UTF-8", b"ISO-8859-1"), "version 1.0 in UTF-8"),
        (PUBLISHED.replace(b"UTF-8", b"UTF-7"), "version 1.0 in UTF-8"),
        (PUBLISHED.replace(b"1.0", b"1.1"), "version 1.0 in UTF-8"),
        (PUBLISHED.replace(b"node7", b"n\xe9de7"), "UTF-8"),
        (PUBLISHED.replace(b"<NT ", b'<?xml-stylesheet href="http://x/"?><NT '), "processing instruction"),
        (PUBLISHED + PUBLISHED, "processing instruction|well-formed"),
        (PUBLISHED.replace(b"UTF-8", b"US-ASCII"), "version 1.0 in UTF-8"),
        (b'{"agreement_id": "1"}', "well-formed"),
        (b"<NT" + PUBLISHED[44:], "well-formed"),
        (b"<NT/>", "NT_AgreementID"),
        (PUBLISHED.replace(b">4<", b">4<x/><"), "x was not expected"),
        (PUBLISHED.replace(b"<Type>", b"<Type xsi:type='Host'>"), "type"),
        (PUBLISHED.replace(b"<Resource>", b"<Resource x='1'>"), "x"),
        (PUBLISHED.replace(b"<Resource>", b"<Resource xsi:nil='true'>"), "nil"),
        (PUBLISHED.replace(b"</NT>", b"text</NT>"), "text"),
        (PUBLISHED.replace(b"</Resource>", b"text</Resource>"), "text"),
        (PUBLISHED.replace(b"<NT ", b"<NT xmlns='urn:x' "), "NT"),
        (PUBLISHED.replace(b"<NT ", b"<NT y:a='1' "), "well-formed"),
        (PUBLISHED.replace(b"<NT_Status>NT_NEGOTIATION</NT_Status>", b""), "NT_Status"),
    ],
)
def test_what_could_harm_or_is_no_template_is_refused(document: bytes, named: str) -> None:
    """Bombs, depth, size, encodings and what the schema refuses; people are told by the schema where it is wrong."""
    with pytest.raises(NegotiationError, match=named):
        parse(document)
    with pytest.raises(errors.NegotiationError) as refused:
        read(document)
    assert refused.value.hint


def test_a_template_sends_koala_nowhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)  # noqa: FBT003 - so the library wants it
        url = b"http://127.0.0.1:%d/NT.xsd" % trap.getsockname()[1]
        hints = b'xsi:schemaLocation="urn:x %b" xsi:noNamespaceSchemaLocation="%b"' % (url, url)
        document = PUBLISHED.replace(b'xsi:noNamespaceSchemaLocation="NT.xsd"', hints)
        assert parse(document) == published_value()
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_an_optional_resource_can_be_declined() -> None:
    """A declined resource keeps its quantity, and is not in what the template is about."""
    taken = accepted(published_value(), declined=[MEM])
    assert taken.quantities() == {CPU: 4}
    assert [one.status for one in taken.resources] == [NT_ACCEPTED, NT_REJECTED]
    assert committed(taken).quantities() == {CPU: 4}
    assert [one.status for one in committed(taken).resources] == [NT_COMMITTED, NT_REJECTED]


def test_a_required_resource_cannot_be_declined() -> None:
    with pytest.raises(NegotiationError, match="reject the whole"):
        accepted(published_value(), declined=[CPU])


def test_endings_say_why() -> None:
    """A refusal and a withdrawal carry their reason, whatever characters it was given in."""
    assert rejected(request(), "no\nroom\x1b[2J").reason == "no room?[2J"
    assert len(withdrawn(request(), "x" * 900).reason) == 500
    assert parse(build(rejected(request(), sayable("\udc80 \x00 a")))).reason == "? ? a"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"agreement_id": "a b"}, "NT_AgreementID is 'a b'"),
        ({"initiator": "ME"}, "NT_Initiator is 'ME'"),
        ({"source": ""}, "NT_Source is ''"),
        ({"status": "NT_NOTHING"}, "NT_Status is"),
        ({"direction": "up"}, "Direction is 'up'"),
        ({"obligation": "may"}, "Obligation is 'may'"),
        ({"answer_within": 0.0005}, "AnswerWithin is 0.0005"),
        ({"answer_within": -1.0}, "AnswerWithin"),
        ({"answer_within": float("nan")}, "AnswerWithin"),
        ({"round": 0}, "Round is 0"),
        ({"reason": "two\nlines"}, "Reason is"),
        ({"reason": "\ud800"}, "Reason is"),
        ({"resources": ()}, "at least one Resource"),
        ({"resources": (Resource("CPU", 1),) * 2}, "same Type"),
        ({"resources": tuple(Resource(f"T{n}", 1) for n in range(65))}, "too many"),
        ({"resources": (resource("CPU", 0),)}, "Quantity is 0"),
        ({"resources": (resource("CPU", 10**400),)}, "Quantity is 1000"),
        ({"resources": (resource("CPU", 3, minimum=4),)}, "Quantity is 3, outside its own 4"),
        ({"resources": (resource("CPU", 3, usage="MAYBE"),)}, "Usage is 'MAYBE'"),
        ({"resources": (resource("CPU", 3, cluster="-"),)}, "Cluster is '-'"),
    ],
)
def test_no_wrong_template_is_written(wrong: dict[str, object], named: str) -> None:
    """What the schema would refuse is refused where it is made or written; the refusal names the field."""
    value = request()._replace(**wrong)  # type: ignore[arg-type]
    with pytest.raises(NegotiationError, match=named):
        build(value)
    with pytest.raises(NegotiationError, match=named):
        template(**value._asdict())


# -- Two ways of reading, and the schema -----------------------------------------------------------------------


_VALUE = re.compile(rb'(?<=[>"])[^<>"\n]+(?=[<"])')
_VALUES = (
    b"0", b"1", b"007", b"9999", b"10000", b"2147483647", b"2147483648", b"99999999999", b"0.0", b"0.001", b"1.",
    b"1.2345", b"-1", b"+1", b"", b" ", b" CPU ", b"CPU", b"MEM", b"NT_REJECTED", b"NT_OPTIONAL", b"NT_REQUIRED",
    b"NT_FIXED", b"NT_ERROR", b"NT_ACCEPTED", b"NT_NOTHING", b"grow", b"shrink", b"RMS", b"x" * 63, b"x" * 64,
    b"x" * 65, b"x" * 255, b"x" * 500, b"x" * 501, b"\xc2\x80", b"\xc2\xa0", b"\xef\xbf\xbe", b"\xf0\x9f\x98\x80",
    b"a>b", b"it's", b"&amp;", b"&#9;", b"\xd9\xa3", b"\xff", b"\t", b"urn:koala-adapter:negotiation", b"urn:x",
    b"NT.xsd",
)  # fmt: skip


def by_schema(document: bytes) -> bool | None:
    """Tell whether a document is a template by the schema; None: only the two parsers differ about it."""
    try:
        templatexml.check_bytes(document)
        root = etree.fromstring(document, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))
    except (NegotiationError, etree.XMLSyntaxError, ValueError) as error:
        return None if "valid URI" in str(error) else False  # only lxml looks at the names of namespaces
    return template_schema().validate(root)


def expect_agreement(document: bytes) -> bool:
    """Check that both ways of reading, and the schema, say the same of a document; return whether one pass reads it."""
    try:
        expected: Template | None = parse(document)
    except NegotiationError:
        expected = None
    whole = by_schema(document)
    # The schema cannot say that resources differ, what a required one may be, or what a reason has on one line.
    assert whole is not False or expected is None, document
    try:
        found = templatexml.read_layout(document.decode())
    except UnicodeDecodeError:
        assert expected is None
        return False
    except NegotiationError:
        assert expected is None, document
        return True
    if found is not None:
        assert found == by_expat(document), document
    return found is not None


def by_expat(document: bytes) -> Template:
    """Return what expat finds in a document: behind a comment, one pass reads nothing."""
    return parse(document + b"<!-- -->")


def revalued(document: bytes, chance: random.Random) -> bytes:
    """Return a document with other values in one or two places."""
    for _ in range(chance.randint(1, 2)):
        found = chance.choice(list(_VALUE.finditer(document)))
        document = document[: found.start()] + chance.choice(_VALUES) + document[found.end() :]
    return document


@pytest.mark.hypothesis  # random: in the night there is more of it
@pytest.mark.parametrize("wound", [mutated, revalued])
def test_wounded_templates_are_read_or_refused(wound: Callable[[bytes, random.Random], bytes]) -> None:
    """Whatever is done to a template, it is one that can be written again, or is refused by our error."""
    chance = random.Random(15)
    plain = full()._replace(reason="job 14 waits \u2026")
    one = plain._replace(resources=plain.resources[:1])
    documents = [PUBLISHED, build(plain), build(request(memory=512)), build(one), build(full())]
    read_, fast = 0, 0
    for number in range(repeated(2000)):
        document = wound(documents[number % 5], chance)
        if b"\xef\xbb\xbf" in document:
            continue  # in names, the editions of XML do not agree about this character
        fast += expect_agreement(document)
        try:
            value = parse(document)
        except NegotiationError:
            continue
        read_ += 1
        assert parse(build(value)) == value
    assert 0 < fast < read_ < repeated(2000)


@pytest.mark.parametrize("many", [1, 64, 65])
def test_up_to_as_many_resources_as_there_may_be(many: int) -> None:
    value = request()
    one = build(value).partition(b"  <Resource>")[2].partition(b"</NT>")[0]
    all_ = b"".join(b"  <Resource>" + one.replace(b"CPU", b"T%d" % number) for number in range(many))
    document = build(value).replace(b"  <Resource>" + one, all_)
    assert expect_agreement(document) == (many <= 64)


def test_a_field_in_our_namespace_needs_the_namespace() -> None:
    value = Template("1", RMS, "a", "b", resources=(Resource("CPU", 1, cluster="beta"),), direction=GROW)
    document = build(value)
    assert expect_agreement(document)
    bare = document.replace(b' xmlns:k="urn:koala-adapter:negotiation" k:Direction="grow"', b"")
    assert templatexml.read_layout(bare.decode()) is None
    assert not by_schema(bare)
    with pytest.raises(NegotiationError, match="well-formed"):
        parse(bare)


def test_what_travels_is_python_36() -> None:
    """The syntax of the modules, joined to one file for programs, is that of Python 3.6."""
    nodes = list(ast.walk(ast.parse(negotiation_file(), feature_version=(3, 6))))
    assert not [node for node in nodes if isinstance(node, ast.NamedExpr | ast.Match | ast.AsyncFunctionDef)]


# -- Frames --------------------------------------------------------------------------------------------------


def test_a_frame_is_a_size_and_so_many_bytes() -> None:
    assert frame(b"<NT/>") == b"00000005\n<NT/>"


@examples(50)
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.lists(st.integers(1, 30), max_size=40))
def test_frames_come_in_any_pieces(payloads: list[bytes], pieces: list[int]) -> None:
    data = b"".join(map(frame, payloads))
    frames, found = FrameBuffer(), list[bytes]()
    for piece in [*pieces, len(data) + 1]:
        found += frames.feed(data[:piece])
        data = data[piece:]
    assert found == payloads
    assert frames.missing == 9


@pytest.mark.parametrize(
    "data", [b"99999999\n", b"00065537\n", b"00000000\n", b"0000001x\n", b"00000010 x", b"<?xml", b"-1", b"\xff", b"1 "]
)
def test_a_wrong_size_is_refused_at_once(data: bytes) -> None:
    """No byte of the payload is waited for when the header is already wrong."""
    with pytest.raises(NegotiationError, match="frame"):
        list(FrameBuffer().feed(data))


def test_nothing_is_kept_for_a_claim() -> None:
    """A header that claims 100 MB costs nothing, nor does a thousand honest headers without their payloads."""
    tracemalloc.start()
    with pytest.raises(NegotiationError):
        list(FrameBuffer().feed(b"99999999\n" + b"x" * 1000))
    waiting = [FrameBuffer() for _ in range(1000)]
    for one in waiting:
        assert list(one.feed(b"%08d\n" % LARGEST_TEMPLATE)) == []
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


@pytest.mark.hypothesis  # random: in the night there is more of it
def test_wounded_frames_are_read_or_refused() -> None:
    """Whatever is done to a stream of frames, payloads come out, or our error."""
    chance = random.Random(12)
    stream = frame(PUBLISHED) * 2
    for _ in range(repeated(5000)):
        frames, data = FrameBuffer(), mutated(stream[:40] if chance.random() < 0.5 else stream, chance)
        try:
            payloads = list(frames.feed(data))
        except NegotiationError:
            continue
        assert sum(map(len, payloads)) <= len(data)
        assert frames.missing > 0


@pytest.mark.parametrize("payload", [b"", b"x" * (LARGEST_TEMPLATE + 1)])
def test_no_wrong_frame_can_be_made(payload: bytes) -> None:
    with pytest.raises(NegotiationError):
        frame(payload)
