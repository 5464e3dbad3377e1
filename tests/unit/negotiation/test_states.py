# SPDX-License-Identifier: Apache-2.0
"""The tables of the state machine: they are whole, they cannot go on for ever, and each step is what is wanted."""

from __future__ import annotations

import pytest

from koala_adapter.negotiation.serviceside.states import (
    BARGAINING,
    DEADLINE,
    DISCONNECTED,
    ENDED,
    RECEIVED,
    SAID,
    SENT,
    Message,
    Reply,
    State,
    Step,
)
from koala_adapter.negotiation.serviceside.template import Status

CLOSING = {Message.REJECT, Message.WITHDRAW, Message.EXPIRE, Message.ERROR}


def test_every_message_has_an_answer_in_every_state() -> None:
    """No state and no message is forgotten."""
    assert set(RECEIVED) == set(SENT) == set(State)
    assert all(set(row) == set(Message) for row in RECEIVED.values())
    assert set(SAID) == set(Status)


@pytest.mark.parametrize("state", list(State))
def test_what_ends_a_negotiation_is_never_answered(state: State) -> None:
    """So two ends cannot answer each other for ever."""
    assert {RECEIVED[state][message].reply for message in CLOSING} == {Reply.NONE}


def test_what_is_said_again_is_not_answered_by_its_like() -> None:
    """A last message that is said again brings no answer that brings it again."""
    steps = [(state, message, step) for state, row in RECEIVED.items() for message, step in row.items()]
    assert {(state, message) for state, message, step in steps if step.reply is Reply.AGAIN} == {
        (State.OFFERED, Message.REPEATED),  # our offer: the peer has it, or answers it
        (State.ACCEPTING, Message.REPEATED),  # our acceptance: answered by a commitment
        (State.AGREED, Message.ACCEPT),  # our commitment: not answered
        (State.CONSUMED, Message.ACCEPT),  # our report: not answered
    }
    assert RECEIVED[State.AGREED][Message.COMMIT] == Step(State.AGREED)
    assert RECEIVED[State.ACCEPTING][Message.CONSUME] == Step(State.CONSUMED)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_the_end_is_final(state: State) -> None:
    """From an ended negotiation nothing leads elsewhere; only what one side holds for real may be void."""
    changing = {message for message, step in RECEIVED[state].items() if step.state is not state}
    assert changing == (CLOSING if state is State.CONSUMED else set())
    assert SENT[state] == {}
    assert state not in DEADLINE
    assert state not in DISCONNECTED


def test_an_agreement_is_reached_only_by_commitment() -> None:
    """Only what was accepted can be committed to, and only what is agreed on, or was just committed, is consumed."""
    to = {(state, message) for state, row in RECEIVED.items() for message, step in row.items() if step.state != state
          and step.state in {State.AGREED, State.CONSUMED}}  # fmt: skip
    assert to == {
        (State.ACCEPTING, Message.COMMIT),
        (State.ACCEPTING, Message.CONSUME),
        (State.AGREED, Message.CONSUME),
    }
    assert [state for state, row in SENT.items() if State.AGREED in row.values()] == [State.ACCEPTED]


def test_whatever_waits_for_a_peer_has_a_deadline() -> None:
    """No state but an agreement lasts without the peer."""
    assert set(State) - ENDED - set(DEADLINE) == {State.NEW, State.AGREED}
    assert set(DEADLINE) == BARGAINING


def test_only_an_acceptance_outlives_the_connection() -> None:
    """The commitment to it may be on its way; all else that is not agreed on is lost."""
    assert BARGAINING - set(DISCONNECTED) == {State.ACCEPTING}
