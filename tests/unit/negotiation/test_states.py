# SPDX-License-Identifier: Apache-2.0
"""The state machine and its rules, connections of programs, and the examples of docs/negotiation.md."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter import negotiation as nt
from koala_adapter.application.shipping import NEGOTIATION_FILE_NAME, negotiation_file
from koala_adapter.negotiation import (
    OTHER_SIDE,
    NegotiationError,
    Resource,
    Template,
    accepted,
    committed,
    consumed,
    countered,
    decide,
)
from koala_adapter.negotiation.schema import EXTENSION, PUBLISHED, schema_path
from koala_adapter.negotiation.states import (
    ACCEPTED,
    ACCEPTING,
    AGAIN,
    AGREED,
    BARGAINING,
    CONSUMED,
    DISCONNECTED,
    ENDED,
    MESSAGES,
    NEW,
    OFFERED,
    RECEIVED,
    RESENT,
    SAID,
    SENT,
    problem_of_closing,
    problem_of_counter,
)
from koala_adapter.negotiation.templates import (
    MANDATORY,
    NT_ACCEPTED,
    NT_FIXED,
    NT_NEGOTIATION,
    NT_OPTIONAL,
    NT_REJECTED,
    SHRINK,
    STATUSES,
    checked,
)
from tests.examples import examples
from tests.unit.negotiation.templates import CPU, MEM, request, templates
from tests.unit.negotiation.templates import PUBLISHED as PUBLISHED_TEMPLATE

# -- The state machine and its rules: the tables are whole and end, and what an answer may change; deciding.

CLOSING = {"reject", "withdraw", "expire", "error"}

# -- Tables --------------------------------------------------------------------------------------------------


def test_every_message_has_an_answer_in_every_state() -> None:
    assert set(RECEIVED) == set(SENT) == {NEW, AGREED, *BARGAINING, *ENDED}
    assert all(set(row) == set(MESSAGES) for row in RECEIVED.values())
    assert set(SAID) == set(STATUSES) == set(RESENT.values())


@pytest.mark.parametrize("state", list(RECEIVED))
def test_what_ends_a_negotiation_is_never_answered(state: str) -> None:
    assert {RECEIVED[state][message][1] for message in CLOSING} == {"-"}


def test_what_is_said_again_is_not_answered_by_its_like() -> None:
    """A last message that is said again brings no answer that brings it again."""
    steps = [(state, message, step) for state, row in RECEIVED.items() for message, step in row.items()]
    assert {(state, message) for state, message, (_, answer) in steps if answer == AGAIN} == {
        (OFFERED, "repeated offer"),  # our offer: the peer has it, or answers it
        (ACCEPTING, "repeated offer"),  # our acceptance: answered by a commitment
        (AGREED, "accept"),  # our commitment: not answered
        (CONSUMED, "accept"),  # our report: not answered
    }
    assert RECEIVED[AGREED]["commit"] == (AGREED, "-")
    assert RECEIVED[ACCEPTING]["consume"] == (CONSUMED, "-")


@pytest.mark.parametrize("state", ENDED)
def test_the_end_is_final(state: str) -> None:
    """From an ended negotiation nothing leads elsewhere; only what one side holds for real may be void."""
    changing = {message for message, (following, _) in RECEIVED[state].items() if following != state}
    assert changing == (CLOSING if state == CONSUMED else set())
    assert SENT[state] == {}
    assert state not in {*BARGAINING, *DISCONNECTED}


def test_an_agreement_is_reached_only_by_commitment() -> None:
    """Only what was accepted can be committed to, and only what is agreed on, or was just committed, is consumed."""
    to = {(state, message) for state, row in RECEIVED.items() for message, (following, _) in row.items()
          if following != state and following in {AGREED, CONSUMED}}  # fmt: skip
    assert to == {(ACCEPTING, "commit"), (ACCEPTING, "consume"), (AGREED, "consume")}
    assert [state for state, row in SENT.items() if AGREED in row.values()] == [ACCEPTED]


def test_only_an_acceptance_outlives_the_connection() -> None:
    """The commitment to it may be on its way; all else that is not agreed on is lost."""
    assert set(BARGAINING) - set(DISCONNECTED) == {ACCEPTING}


# -- Deciding ------------------------------------------------------------------------------------------------


FIXED = Resource("CPU", 4, negotiability=NT_FIXED)
OPTIONAL = Resource("MEM", 512, usage=NT_OPTIONAL, negotiability=NT_FIXED)


@pytest.mark.parametrize(
    ("resources", "terms", "status", "quantities"),
    [
        ([Resource("CPU", 4), OPTIONAL], {"CPU": 6, "MEM": 4096}, NT_ACCEPTED, {CPU: 4, MEM: 512}),
        ([Resource("CPU", 4), OPTIONAL], {"CPU": 4}, NT_ACCEPTED, {CPU: 4}),
        ([Resource("CPU", 14)], {"CPU": 6}, NT_NEGOTIATION, {CPU: 6}),
        ([Resource("CPU", 4, minimum=3)], {"CPU": 3}, NT_NEGOTIATION, {CPU: 3}),
        ([Resource("CPU", 4, minimum=3)], {"CPU": 2}, NT_REJECTED, "4 CPU cannot be taken"),
        ([FIXED, OPTIONAL], {"CPU": 3, "MEM": 512}, NT_REJECTED, "4 CPU cannot be taken"),
        ([FIXED, OPTIONAL], {"MEM": 512}, NT_REJECTED, "4 CPU cannot be taken"),
        ([OPTIONAL], {}, NT_REJECTED, "nothing that is offered can be taken"),
    ],
)
def test_deciding(resources: list[Resource], terms: dict[str, int], status: str, quantities: object) -> None:
    """All required resources or nothing, within the bounds of the offer; an optional one may be declined."""
    answer = decide(request()._replace(resources=tuple(resources)), terms)
    assert (answer.status, answer.reason or answer.quantities()) == (status, quantities)


@pytest.mark.parametrize(
    ("held", "offered", "taken"),
    [(4, 4, 4), (4, 1, 0), (4, 2, 0), (4, 3, 0), (4, 12, 12), (4, 13, 12), (3, 2, 1), (1, 9, 7)],
)
def test_an_application_of_powers_of_two(held: int, offered: int, taken: int) -> None:
    """The third published experiment: 5, 6 and 7 are declined, 8 is accepted."""
    answer = decide(request(offered), {"CPU": lambda most: (1 << (held + most).bit_length() - 1) - held})
    if taken:
        assert answer.quantities() == {CPU: taken}
        assert answer.status == (NT_ACCEPTED if taken == offered else NT_NEGOTIATION)
    else:
        assert answer.status == NT_REJECTED


@examples(40)
@given(templates, st.integers(0, 2**31))
def test_every_answer_may_follow_its_offer(offer: Template, most: int) -> None:
    """What is decided is never what the other side refuses to read, and never more than the terms allow."""
    try:
        offer = checked(offer._replace(status=NT_NEGOTIATION))
    except NegotiationError:
        return  # a required resource is declined: no offer
    answer = decide(offer, {one.type: most for one in offer.resources})
    assert all(many <= most for many in answer.quantities().values()) or answer.status == NT_REJECTED
    match answer.status:
        case "NT_NEGOTIATION":
            assert problem_of_counter(offer, answer) == ""
        case "NT_ACCEPTED":
            assert problem_of_closing(offer, answer) == ""
            assert problem_of_closing(answer, committed(answer)) == ""
        case _:
            assert answer.reason


# -- Rules ---------------------------------------------------------------------------------------------------


def changed(offer: Template, **fields: object) -> Template:
    """Return an offer with something changed of its first resource."""
    first, *others = offer.resources
    return offer._replace(resources=(first._replace(**fields), *others))  # type: ignore[arg-type]


OFFER, WITH_MEMORY = request(8), request(8, memory=512)
BOUNDED, DECLINED = changed(OFFER, minimum=4, maximum=8), countered(WITH_MEMORY, {}, declined=[MEM])


@pytest.mark.parametrize(
    ("offer", "counter", "problem"),
    [
        (OFFER, countered(OFFER, {CPU: 6}), ""),
        (OFFER, countered(OFFER, {CPU: 9}), ""),
        (OFFER, changed(OFFER, negotiability=NT_FIXED, quantity=2), ""),
        (OFFER, OFFER._replace(direction="", obligation=""), ""),
        (OFFER, changed(OFFER, usage=NT_OPTIONAL), "the usage of CPU stays as it was"),
        (OFFER, changed(OFFER, type="MEM"), "has the resources of the offer"),
        (OFFER, WITH_MEMORY, "has the resources of the offer"),
        (OFFER, OFFER._replace(direction=SHRINK), "the direction of an offer stays as it was"),
        (OFFER, OFFER._replace(obligation=MANDATORY), "the obligation of an offer stays as it was"),
        (WITH_MEMORY, WITH_MEMORY._replace(resources=WITH_MEMORY.resources[::-1]), ""),
        (WITH_MEMORY, DECLINED, ""),
        (WITH_MEMORY, countered(WITH_MEMORY, {MEM: 256}), "MEM is fixed"),
        (DECLINED, WITH_MEMORY, "MEM was declined, and stays so"),
        (BOUNDED, countered(BOUNDED, {CPU: 4}), ""),
        (BOUNDED, countered(BOUNDED, {CPU: 3}), "3 CPU are outside the bounds of the offer"),
        (BOUNDED, countered(BOUNDED, {CPU: 9}), "9 CPU are outside the bounds of the offer"),
    ],
)
def test_what_a_counter_offer_may_change(offer: Template, counter: Template, problem: str) -> None:
    found = problem_of_counter(offer, counter)
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.parametrize(
    ("standing", "closing", "problem"),
    [
        (WITH_MEMORY, accepted(WITH_MEMORY), ""),
        (WITH_MEMORY, accepted(WITH_MEMORY, declined=[MEM]), ""),
        (accepted(WITH_MEMORY), consumed(accepted(WITH_MEMORY)), ""),
        (WITH_MEMORY, accepted(countered(WITH_MEMORY, {CPU: 7})), "7 CPU are not the 8 that stand"),
        (WITH_MEMORY, accepted(OFFER), "it has other resources than what stands"),
        (DECLINED, accepted(WITH_MEMORY), "MEM was declined"),
        (WITH_MEMORY, committed(accepted(WITH_MEMORY, declined=[MEM])), "MEM cannot be declined here"),
    ],
)
def test_what_may_be_accepted_and_committed_to(standing: Template, closing: Template, problem: str) -> None:
    assert problem_of_closing(standing, closing) == problem


# -- Connections of programs: blocking sockets, deadlines, and peers that go or err.


@pytest.fixture
def stranger() -> Iterator[tuple[nt.Connection, socket.socket]]:
    """Return a connection and the bare socket at its other end."""
    here, there = socket.socketpair()
    connection = nt.Connection(here)
    with there:
        yield connection, there
    connection.close()


def test_two_applications_talk_over_sockets() -> None:
    """The published calls: accept, connect, send, recv, decide, close; to an agreement that is consumed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard = []

        def manager() -> None:
            rms = nt.accept(listening, nt.Endpoint("RMS"))
            while (event := rms.recv(10)) is not None and event.kind != "closed":
                heard.append(event.kind)
                assert event.template is not None
                if event.kind == "offer":
                    rms.send(nt.decide(event.template, {"CPU": 6}))
                else:
                    rms.send(nt.committed(event.template))
                    rms.send(nt.consumed(event.template))
            rms.close()

        thread = threading.Thread(target=manager)
        thread.start()
        connection = nt.connect("127.0.0.1", listening.getsockname()[1])
        wish = nt.template("1", "APPLICATION", "node7", "head", [nt.resource("CPU", 14)], direction="grow")
        connection.send(wish)
        offer = connection.recv(10)
        assert offer is not None
        assert offer.template is not None
        assert (offer.kind, offer.template.quantity("CPU")) == ("offer", 6)
        connection.send(nt.accepted(offer.template))
        kinds = [event.kind for event in (connection.recv(10), connection.recv(10)) if event]
        connection.close()
        thread.join(10)
    # The offer was RMS' last: it is the one that commits, and its report says that the processors are there.
    assert kinds == ["agreed", "consumed"]
    assert heard == ["offer", "accepted"]


def test_silence_ends_at_the_deadline(stranger: tuple[nt.Connection, socket.socket]) -> None:
    connection, _ = stranger
    offer = request()
    connection.send(offer._replace(answer_within=0.05))
    assert connection.recv(0) is None
    event = connection.recv(10)
    assert event is not None
    assert (event.kind, event.state, event.reason) == ("ended", "expired", "no answer in time")


@pytest.mark.parametrize("data", [b"", b"99999999\n", b"00000005\n<NT/>", b"\x00" * 100])
def test_a_peer_that_goes_or_errs_ends_the_connection(
    stranger: tuple[nt.Connection, socket.socket], data: bytes
) -> None:
    """What is open is lost, and the program is told; garbage is answered before."""
    connection, peer = stranger
    connection.send(request())
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


def test_small_templates_are_sent_at_once() -> None:
    """On both sides of a connection by TCP, also of one that the program has made or accepted itself."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as made,
    ):
        for end in (nt.accept(listening), nt.Connection(made)):
            with socket.socket(fileno=socket.dup(end.fileno())) as stream:
                assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            end.close()


def test_a_unix_socket(tmp_path: Path) -> None:
    """It is connected to by its path; where nothing listens, nothing stays open."""
    path = tmp_path / "nt.sock"
    with pytest.raises(OSError, match="No such file"):
        nt.connect_unix(str(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        connection = nt.connect_unix(str(path))
        peer = nt.accept(listening, nt.Endpoint("RMS"))
        connection.send(request())
        event = peer.recv(60)
        assert event is not None
        assert event.kind == "offer"
        peer.close()
        connection.close()


# -- docs/negotiation.md: its examples run and print what it says, and it leaves nothing out.

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "negotiation.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```\n", re.MULTILINE | re.DOTALL)
EXAMPLES = list(EXAMPLE.finditer(PAGE))


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_the_page_says(number: int, tmp_path: Path) -> None:
    """Each example runs as it stands, in a Python of its own, beside the file that koala writes."""
    example = EXAMPLES[number]
    (tmp_path / NEGOTIATION_FILE_NAME).write_text(negotiation_file(), encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", example["code"]], cwd=tmp_path, env={"PYTHONPATH": paths}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == (example["output"], "", 0)


def test_every_example_says_what_it_prints() -> None:
    assert len(EXAMPLES) == PAGE.count("```python\n") >= 1


def test_the_published_instance_is_shown() -> None:
    assert f"```xml\n{PUBLISHED_TEMPLATE.decode()}```" in PAGE


def test_every_field_and_word_is_described() -> None:
    names = {
        name
        for path in (PUBLISHED, EXTENSION)
        for name in re.findall(r'<xs:(?:element|attribute) name="(\w+)"', schema_path(path).read_text(encoding="utf-8"))
    }
    words = [*OTHER_SIDE, *STATUSES, "NT_REQUIRED", "NT_OPTIONAL", "NT_NEGOTIABLE", "NT_FIXED"]
    words += ["grow", "shrink", "voluntary", "mandatory"]
    members = {*Template._fields, *Resource._fields}
    assert "Round" in names
    assert [name for name in (*names, *words, *members) if f"`{name}`" not in PAGE] == ["NT"] * ("`NT`" not in PAGE)
    assert [message for message in MESSAGES if message not in PAGE] == []
