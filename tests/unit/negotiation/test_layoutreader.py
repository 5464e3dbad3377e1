# SPDX-License-Identifier: Apache-2.0
"""What is read in one pass is what the XML parser and the schema read, and the layout in which we write is read so."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.serviceside import document as layoutreader
from koala_adapter.negotiation.serviceside.document import build, parse_any
from koala_adapter.negotiation.serviceside.template import Direction, Resource, Template
from tests.examples import examples, repeated
from tests.unit.negotiation.templates import PUBLISHED, full, mutated, request, templates

_VALUE = re.compile(rb'(?<=[>"])[^<>"\n]+(?=[<"])')
_VALUES = (
    b"0", b"1", b"007", b"9999", b"10000", b"2147483647", b"2147483648", b"99999999999", b"0.0", b"0.001", b"1.",
    b"1.2345", b"-1", b"+1", b"", b" ", b" CPU ", b"CPU", b"MEM", b"NT_REJECTED", b"NT_OPTIONAL", b"NT_REQUIRED",
    b"NT_FIXED", b"NT_ERROR", b"NT_ACCEPTED", b"NT_NOTHING", b"grow", b"shrink", b"RMS", b"x" * 63, b"x" * 64,
    b"x" * 65, b"x" * 255, b"x" * 500, b"x" * 501, b"\xc2\x80", b"\xc2\xa0", b"\xef\xbf\xbe", b"\xf0\x9f\x98\x80",
    b"a>b", b"it's", b"&amp;", b"&#9;", b"\xd9\xa3", b"\xff", b"\t", b"urn:koala-adapter:negotiation", b"urn:x",
    b"NT.xsd",
)  # fmt: skip


def reading(document: bytes) -> Template | None:
    """Return what the parser and the schema make of a document; None: they refuse it."""
    try:
        return parse_any(document)
    except NegotiationError:
        return None


def expect_agreement(document: bytes) -> bool:
    """Check that both readers say the same of a document, where the one says something; return whether it does."""
    try:
        found = layoutreader.read(document)
    except NegotiationError:
        assert reading(document) is None, document
        return True
    if found is None:
        return False
    assert found == reading(document), document
    assert found.bytes_read == document
    return True


def revalued(document: bytes, chance: random.Random) -> bytes:
    """Return a document with other values in one or two places."""
    for _ in range(chance.randint(1, 2)):
        found = chance.choice(list(_VALUE.finditer(document)))
        document = document[: found.start()] + chance.choice(_VALUES) + document[found.end() :]
    return document


@pytest.mark.hypothesis  # random: in the night there is more of it
@pytest.mark.parametrize("wound", [mutated, revalued])
def test_both_readers_agree_about_wounded_templates(wound: object) -> None:
    """Of a document that is read in one pass the schema says the same."""
    assert callable(wound)
    chance = random.Random(15)
    plain = replace(full(), reason="job 14 waits \u2026")
    documents = [
        PUBLISHED,
        build(plain),
        build(request(memory=512)),
        build(replace(plain, resources=plain.resources[:1])),
    ]
    read = sum(expect_agreement(wound(documents[number % 4], chance)) for number in range(repeated(2500)))
    assert 0 < read < repeated(2500)


@examples(60)
@given(templates)
def test_what_we_write_is_read_in_one_pass(value: Template) -> None:
    """Unless a character of its reason is escaped, or is beyond what the pass looks at."""
    document = build(value)
    assert expect_agreement(document) or re.search('["&<>\U00010000-\U0010ffff]', value.reason)


def test_the_published_instance_is_read_in_one_pass() -> None:
    """Also as an application sends it that knows nothing else."""
    assert expect_agreement(PUBLISHED)


@pytest.mark.parametrize("many", [1, 64, 65])
def test_up_to_as_many_resources_as_there_may_be(many: int) -> None:
    """One more is left to the schema, which says so."""
    value = request()
    one = build(value).partition(b"  <Resource>")[2].partition(b"</NT>")[0]
    all_ = b"".join(b"  <Resource>" + one.replace(b"CPU", b"T%d" % number) for number in range(many))
    document = build(value).replace(b"  <Resource>" + one, all_)
    assert expect_agreement(document) == (many <= 64)


def test_a_field_in_our_namespace_needs_the_namespace() -> None:
    """Without its declaration the document is not well-formed."""
    value = Template(
        agreement_id="1", initiator=request().initiator, source="a", dest="b",
        resources=(Resource(type="CPU", quantity=1, cluster="beta"),), direction=Direction.GROW,
    )  # fmt: skip
    document = build(value)
    assert expect_agreement(document)
    bare = document.replace(b' xmlns:k="urn:koala-adapter:negotiation" k:Direction="grow"', b"")
    assert layoutreader.read(bare) is None
    assert reading(bare) is None
