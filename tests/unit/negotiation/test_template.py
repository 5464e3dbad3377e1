# SPDX-License-Identifier: Apache-2.0
"""Templates as values, in XML and in JSON: what is written is read again, and what is no template is refused."""

from __future__ import annotations

import json
import random
import socket
from dataclasses import replace

import pytest
from hypothesis import given

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.schema import LARGEST_TEMPLATE, from_json, to_json
from koala_adapter.negotiation.serviceside.document import NAMESPACE, build, parse
from koala_adapter.negotiation.serviceside.template import (
    Negotiability,
    Resource,
    ResourceKey,
    Side,
    Status,
    Template,
    Usage,
    accepted,
    committed,
    countered,
    published,
    rejected,
    sayable,
    withdrawn,
)
from tests.examples import examples, repeated
from tests.unit.negotiation.templates import CPU, MEM, PUBLISHED, full, mutated, request, templates

ADDED = b'xmlns:k="urn:koala-adapter:negotiation" '


def published_value() -> Template:
    """Return what the published instance says."""
    memory = Resource(type="MEM", quantity=1024, usage=Usage.OPTIONAL, negotiability=Negotiability.FIXED)
    return Template(
        agreement_id="1001",
        initiator=Side.RMS,
        source="rms.example.org",
        dest="node7.example.org",
        resources=(Resource(type="CPU", quantity=4), memory),
    )


def test_the_published_instance_is_read() -> None:
    """All its fields arrive."""
    assert parse(PUBLISHED) == published_value()


def test_a_new_template_is_written_as_the_published_one() -> None:
    """The layout of what we write is that of the published instance."""
    assert build(published_value()) == PUBLISHED


@pytest.mark.parametrize(
    "document",
    [
        PUBLISHED,
        PUBLISHED.replace(b"\n", b"\r\n"),
        PUBLISHED.replace(b'"', b"'").replace(b"<Type>CPU<", b"<Type> CPU\t<"),
        PUBLISHED.split(b"\n", 1)[1].replace(b"  <", b"<"),
        PUBLISHED.replace(b"<Resource>", b"<!-- of ours --><Resource >", 1).replace(b">4<", b"><![CDATA[4]]><"),
        PUBLISHED.replace(b"NT_AgreementID", b'xmlns:o="urn:other" o:x="1" NT_AgreementID'),
    ],
    ids=["published", "crlf", "quotes", "no declaration", "comments", "others' attributes"],
)
def test_what_is_not_changed_is_written_byte_for_byte(document: bytes) -> None:
    """However a peer lays its template out, it gets the same bytes back."""
    template = parse(document)
    assert template == published_value()
    assert build(template) == document


def test_what_is_changed_is_written_anew() -> None:
    """A change of a template that was read shows in its bytes, whichever way it is made."""
    template = parse(PUBLISHED)
    for changed in (replace(template, dest="node8"), accepted(template), countered(template, {CPU: 2})):
        assert parse(build(changed)) == changed != template


def test_what_koala_adds_is_in_its_own_namespace() -> None:
    """Without the attributes of our namespace, a template is one of the published form that says the same."""
    document = build(full()).decode()
    plain = parse(build(published(full())))
    assert NAMESPACE in document
    assert NAMESPACE not in build(plain).decode()
    assert plain.quantities() == {ResourceKey(type="GPU.x"): 3, CPU: 2**31 - 1}
    assert (plain.agreement_id, plain.initiator, plain.status) == ("a:7-x._", Side.APPLICATION, Status.NEGOTIATION)


@examples(60)
@given(templates)
def test_xml_and_json_keep_every_template(template: Template) -> None:
    """What is written in either form is read again, and the bytes are the same the second time."""
    assert parse(build(template)) == template
    assert build(parse(build(template))) == build(template)
    assert from_json(to_json(template)) == template


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
    """Only NT_ERROR may go without a resource."""
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
        (b"<a>" * 9000, "well-formed"),
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
        (b'{"agreement_id": "1"}', "well-formed"),
    ],
)
def test_what_could_harm_a_parser_is_refused(document: bytes, named: str) -> None:
    """Bombs, outside entities, depth, size and wrong encodings are refused with a sentence, at once."""
    with pytest.raises(NegotiationError, match=named):
        parse(document)


def test_a_template_sends_nobody_anywhere() -> None:
    """Where it says that its schemas lie is not looked at."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)  # noqa: FBT003 - so the library wants it
        url = b"http://127.0.0.1:%d/NT.xsd" % trap.getsockname()[1]
        hints = b'xsi:schemaLocation="urn:x %b" xsi:noNamespaceSchemaLocation="%b"' % (url, url)
        document = PUBLISHED.replace(b'xsi:noNamespaceSchemaLocation="NT.xsd"', hints)
        assert parse(document) == published_value()
        with pytest.raises(BlockingIOError):
            trap.accept()


@pytest.mark.hypothesis  # random: in the night there is more of it
def test_wounded_templates_are_read_or_refused() -> None:
    """Whatever is done to a template, it is one that can be written again, or is refused by our error."""
    chance = random.Random(10)
    documents = [PUBLISHED, build(full()), build(request(memory=512))]
    read = 0
    for number in range(repeated(5000)):
        document = mutated(documents[number % 3], chance)
        try:
            template = parse(document)
        except NegotiationError:
            continue
        read += 1
        assert parse(build(replace(template))) == template
    assert 0 < read < repeated(5000)


@pytest.mark.hypothesis  # random: in the night there is more of it
def test_wounded_json_is_read_or_refused() -> None:
    """The same of the JSON form."""
    chance = random.Random(11)
    document = to_json(full()).encode()
    for _ in range(repeated(1000)):
        try:
            template = from_json(mutated(document, chance))
        except NegotiationError:
            continue
        assert from_json(to_json(template)) == template


@pytest.mark.parametrize(
    ("member", "value", "named"),
    [
        ("agreement_id", 7, "agreement_id: expected a text"),
        ("initiator", "ME", "initiator: expected one of RMS, APPLICATION"),
        ("resources", {}, "resources: expected a list"),
        ("resources", [4], r"resources\[0\]: expected an object"),
        ("resources", [{"type": "CPU"}], r"resources\[0\].quantity is missing"),
        ("resources", [{"type": "CPU", "quantity": True}], r"resources\[0\].quantity: expected a whole number"),
        ("resources", [{"type": "CPU", "quantity": 10**400}], "Quantity of CPU"),
        ("answer_within", float("nan"), "AnswerWithin"),
        ("answer_within", "soon", "answer_within: expected a number of seconds"),
        ("round", 1.5, "round: expected a whole number"),
        ("bytes_read", "x", "bytes_read: no such member"),
        ("reason", "\ud800", "Reason"),
        ("source", None, "source: expected a text"),
    ],
)
def test_a_wrong_member_is_named(member: str, value: object, named: str) -> None:
    """The refusal of a JSON document says which member is wrong."""
    document = json.loads(to_json(request())) | {member: value}
    with pytest.raises(NegotiationError, match=named):
        from_json(json.dumps(document))


def test_json_without_what_is_not_said() -> None:
    """The published instance in JSON has what it says, and nothing else."""
    assert json.loads(to_json(published_value())) == {
        "agreement_id": "1001",
        "initiator": "RMS",
        "source": "rms.example.org",
        "dest": "node7.example.org",
        "status": "NT_NEGOTIATION",
        "resources": [
            {
                "type": "CPU", "quantity": 4, "usage": "NT_REQUIRED", "negotiability": "NT_NEGOTIABLE",
                "status": "NT_NEGOTIATION",
            },
            {
                "type": "MEM", "quantity": 1024, "usage": "NT_OPTIONAL", "negotiability": "NT_FIXED",
                "status": "NT_NEGOTIATION",
            },
        ],
    }  # fmt: skip


def test_an_optional_resource_can_be_declined() -> None:
    """A declined resource keeps its quantity, and is not in what the template is about."""
    taken = accepted(published_value(), declined=[MEM])
    assert taken.quantities() == {CPU: 4}
    assert [one.status for one in taken.resources] == [Status.ACCEPTED, Status.REJECTED]
    assert committed(taken).quantities() == {CPU: 4}
    assert [one.status for one in committed(taken).resources] == [Status.COMMITTED, Status.REJECTED]


def test_a_required_resource_cannot_be_declined() -> None:
    """All required resources, or nothing."""
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
        ({"agreement_id": "a b"}, "NT_AgreementID"),
        ({"source": ""}, "NT_Source"),
        ({"answer_within": 0.0005}, "AnswerWithin"),
        ({"answer_within": -1.0}, "AnswerWithin"),
        ({"round": 0}, "Round"),
        ({"reason": "two\nlines"}, "Reason"),
        ({"resources": ()}, "at least one Resource"),
        ({"resources": (Resource(type="CPU", quantity=1),) * 2}, "same Type"),
        ({"resources": tuple(Resource(type=f"T{n}", quantity=1) for n in range(65))}, "too many"),
    ],
)
def test_no_wrong_template_can_be_made(wrong: dict[str, object], named: str) -> None:
    """What the schema would refuse cannot be constructed."""
    with pytest.raises(NegotiationError, match=named):
        replace(request(), **wrong)  # type: ignore[arg-type]
