# SPDX-License-Identifier: Apache-2.0
"""The module for applications: it says, reads and refuses what the other modules do, with nothing but Python 3.6."""

from __future__ import annotations

import ast
import random
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from koala_adapter import negotiation as applicationside
from koala_adapter.application.shipping import negotiation_file
from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.schema import LARGEST_TEMPLATE
from koala_adapter.negotiation.serviceside import document as framing
from koala_adapter.negotiation.serviceside import document as templatexml
from koala_adapter.negotiation.serviceside import template
from koala_adapter.negotiation.serviceside.endpoint import Limits
from koala_adapter.negotiation.serviceside.states import (
    BARGAINING,
    DEADLINE,
    DISCONNECTED,
    ENDED,
    RECEIVED,
    SAID,
    SENT,
    Message,
)
from koala_adapter.negotiation.serviceside.template import Side, Template
from tests.examples import examples, repeated
from tests.unit.negotiation.foreign import ForeignEndpoint, ours
from tests.unit.negotiation.templates import PUBLISHED, full, mutated, request, templates

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = negotiation_file()


def test_the_file_is_python_36() -> None:
    """The syntax of the modules, joined, is that of Python 3.6."""
    nodes = list(ast.walk(ast.parse(SOURCE, feature_version=(3, 6))))
    assert not [node for node in nodes if isinstance(node, ast.NamedExpr | ast.Match | ast.AsyncFunctionDef)]


def test_the_tables_are_the_same() -> None:
    """Both sides have the same state machine."""
    assert tuple(Message) == applicationside.MESSAGES
    assert {str(state): {str(message): (str(step.state), str(step.reply)) for message, step in row.items()}
            for state, row in RECEIVED.items()} == applicationside.RECEIVED  # fmt: skip
    assert {str(state): {str(message): str(to) for message, to in row.items()} for state, row in SENT.items()} == (
        applicationside.SENT
    )
    assert {str(status): str(message) for status, message in SAID.items()} == applicationside.SAID
    assert {str(state): str(to) for state, to in DISCONNECTED.items()} == applicationside.DISCONNECTED
    assert set(applicationside.ENDED) == ENDED
    assert set(applicationside.BARGAINING) == BARGAINING == set(DEADLINE)


def test_the_bounds_are_the_same() -> None:
    """Nothing is too large for one side only."""
    assert applicationside.LARGEST_TEMPLATE == LARGEST_TEMPLATE
    assert applicationside.HEADER_SIZE == framing.HEADER_SIZE
    assert applicationside.NAMESPACE == templatexml.NAMESPACE
    for name in ("LARGEST_QUANTITY", "LONGEST_ANSWER_TIME", "LONGEST_REASON", "MOST_RESOURCES", "MOST_ROUNDS"):
        assert getattr(applicationside, name) == getattr(template, name)
    defaults = applicationside.Endpoint.__init__.__kwdefaults__
    assert {name: getattr(Limits(), name) for name in Limits.__slots__} == defaults


@examples(60)
@given(templates)
def test_both_write_the_same_bytes(value: Template) -> None:
    """Each reads what the other has written, and writes it as the other did."""
    document = templatexml.build(value)
    read = applicationside.parse(document)
    assert applicationside.build(read) == document
    assert ours(read) == value


def test_the_published_instance() -> None:
    """It is read, and written as it is published."""
    read = applicationside.parse(PUBLISHED)
    assert [one.quantity for one in read.resources] == [4, 1024]
    assert applicationside.build(read) == PUBLISHED
    assert applicationside.parse(PUBLISHED.replace(b"\n", b"\r\n").replace(b'"', b"'")) == read


@pytest.mark.hypothesis  # random: in the night there is more of it
def test_both_refuse_the_same_wounded_templates() -> None:
    """Without an XML schema the same documents are templates, and none costs a traceback."""
    chance = random.Random(14)
    documents = [PUBLISHED, templatexml.build(full()), templatexml.build(request(memory=512))]
    good = 0
    for number in range(repeated(5000)):
        document = mutated(documents[number % 3], chance)
        if b"\xef\xbb\xbf" in document:
            continue  # in names, the editions of XML do not agree about this character
        try:
            expected = templatexml.parse(document)
        except NegotiationError as error:
            if "valid URI" in error.message:
                continue  # only lxml looks at the names of namespaces
            with pytest.raises(applicationside.NegotiationError):
                applicationside.parse(document)
            continue
        good += 1
        assert ours(applicationside.parse(document)) == expected
    assert good


@pytest.mark.parametrize(
    "document",
    [
        b"", b"<NT/>", b"<NT" + PUBLISHED[44:], b"<a>" * 9000, b"x" * 70_000, PUBLISHED.decode().encode("utf-16"),
        PUBLISHED.replace(b"<NT ", b'<!DOCTYPE NT SYSTEM "file:///etc/passwd"><NT '),
        PUBLISHED.replace(b">4<", b">&x;<"), PUBLISHED.replace(b">4<", b">4<x/><"),
        PUBLISHED.replace(b"<Type>", b"<Type xsi:type='Host'>"), PUBLISHED.replace(b"<Resource>", b"<Resource x='1'>"),
        PUBLISHED.replace(b"<Resource>", b"<Resource xsi:nil='true'>"), PUBLISHED.replace(b"CPU", b"C P"),
        PUBLISHED.replace(b"</NT>", b"text</NT>"), PUBLISHED.replace(b"</Resource>", b"text</Resource>"),
        PUBLISHED.replace(b"<NT ", b"<NT xmlns='urn:x' "), PUBLISHED.replace(b"<NT ", b"<NT y:a='1' "),
        PUBLISHED.replace(b"<Type>CPU</Type>", b""), PUBLISHED.replace(b"<NT_Status>NT_NEGOTIATION</NT_Status>", b""),
        PUBLISHED.replace(b"MEM", b"CPU"), PUBLISHED.replace(b"UTF-8", b"latin-1"),
        PUBLISHED.replace(b"UTF-8", b"UTF8"),
        PUBLISHED.replace(b"UTF-8", b"US-ASCII"),
    ],
)  # fmt: skip
def test_both_refuse(document: bytes) -> None:
    """Neither module takes any of these for a template."""
    with pytest.raises(NegotiationError):
        templatexml.parse(document)
    with pytest.raises(applicationside.NegotiationError):
        applicationside.parse(document)


@pytest.mark.parametrize(
    "document",
    [
        PUBLISHED.replace(b"<Type>CPU", b"<Type>\n C<!-- x -->P<![CDATA[U]]> "),
        PUBLISHED.replace(b"<NT ", b"<!-- <a> --><NT xml:lang='de' xmlns:o='urn:o' o:x='&#10;' "),
        PUBLISHED.replace(b"<NT ", b"<NT xmlns:kk='urn:koala-adapter:negotiation' kk:Later='7' kk:Round='0012' "),
        PUBLISHED.replace(b"NT_AgreementID='1001'", b"NT_AgreementID=' 1001 '") + b"\n<!-- end -->\n",
        b"\xef\xbb\xbf" + PUBLISHED,
    ],
)
def test_both_accept(document: bytes) -> None:
    """Comments, CDATA, others' attributes and ours of later versions do not hinder."""
    assert ours(applicationside.parse(document)) == templatexml.parse(document)


def test_what_is_no_template_cannot_be_made() -> None:
    """The refusal names the field."""
    cpu = applicationside.resource("CPU", 4)
    more: list[dict[str, object]] = [{"direction": "up"}, {"answer_within": -1}, {"round": 0}, {"reason": "\n"}]
    for wrong in more:
        with pytest.raises(applicationside.NegotiationError, match=" is "):
            applicationside.template("1", "RMS", "a", "b", [cpu], **wrong)
    with pytest.raises(applicationside.NegotiationError, match="NT_Initiator"):
        applicationside.template("1", "ME", "a", "b", [cpu])
    with pytest.raises(applicationside.NegotiationError, match="Quantity"):
        applicationside.template("1", "RMS", "a", "b", [applicationside.resource("CPU", 0)])


@pytest.fixture
def stranger() -> Iterator[tuple[applicationside.Connection, socket.socket]]:
    """Return a connection and the bare socket at its other end."""
    here, there = socket.socketpair()
    connection = applicationside.Connection(here)
    with there:
        yield connection, there
    connection.close()


def test_two_applications_talk_over_sockets() -> None:
    """The published calls: accept, connect, send, recv, decide, close; to an agreement that is consumed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard = []

        def manager() -> None:
            rms = applicationside.accept(listening, applicationside.Endpoint("RMS"))
            while (event := rms.recv(10)) is not None and event.kind != "closed":
                heard.append(event.kind)
                assert event.template is not None
                if event.kind == "offer":
                    rms.send(applicationside.decide(event.template, {"CPU": 6}))
                else:
                    rms.send(applicationside.committed(event.template))
                    rms.send(applicationside.consumed(event.template))
            rms.close()

        thread = threading.Thread(target=manager)
        thread.start()
        connection = applicationside.connect("127.0.0.1", listening.getsockname()[1])
        wish = applicationside.template(
            "1", "APPLICATION", "node7", "head", [applicationside.resource("CPU", 14)], direction="grow"
        )
        connection.send(wish)
        offer = connection.recv(10)
        assert offer is not None
        assert offer.template is not None
        assert (offer.kind, offer.template.quantity("CPU")) == ("offer", 6)
        connection.send(applicationside.accepted(offer.template))
        kinds = [event.kind for event in (connection.recv(10), connection.recv(10)) if event]
        connection.close()
        thread.join(10)
    # The offer was RMS' last: it is the one that commits, and its report says that the processors are there.
    assert kinds == ["agreed", "consumed"]
    assert heard == ["offer", "accepted"]


def test_silence_ends_at_the_deadline(stranger: tuple[applicationside.Connection, socket.socket]) -> None:
    """Who gets no answer is told so in time, and nothing comes before."""
    connection, _ = stranger
    offer = applicationside.parse(templatexml.build(request()))
    connection.send(offer._replace(answer_within=0.05))
    assert connection.recv(0) is None
    event = connection.recv(10)
    assert event is not None
    assert (event.kind, event.state, event.reason) == ("ended", "expired", "no answer in time")


@pytest.mark.parametrize("data", [b"", b"99999999\n", b"00000005\n<NT/>", b"\x00" * 100])
def test_a_peer_that_goes_or_errs_ends_the_connection(
    stranger: tuple[applicationside.Connection, socket.socket], data: bytes
) -> None:
    """What is open is lost, and the program is told; garbage is answered before."""
    connection, peer = stranger
    connection.send(applicationside.parse(templatexml.build(request())))
    peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
    kinds = []
    while (event := connection.recv(10)) is not None:
        kinds.append(event.kind)
        if event.kind == "closed":
            break
    assert kinds == [*(["unreadable"] if data else []), "ended", "closed"]
    if data:
        answer = b"".join(iter(lambda: peer.recv(65536), b""))
        assert b"NT_ERROR" in answer


def test_a_foreign_end_is_that_of_the_module() -> None:
    """The tests that compare both run the module's own machine."""
    end = ForeignEndpoint(side=Side.APPLICATION, host="node7", peer="head")
    assert isinstance(end._end, applicationside.Endpoint)


def test_small_templates_are_sent_at_once() -> None:
    """On both sides of a connection by TCP, also of one that the program has made or accepted itself."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as made,
    ):
        for end in (applicationside.accept(listening), applicationside.Connection(made)):
            with socket.socket(fileno=socket.dup(end.fileno())) as stream:
                assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            end.close()
