# SPDX-License-Identifier: Apache-2.0
"""Interrupts come at once, or at the end of what must not be broken off, and never get lost."""

from __future__ import annotations

import signal

import pytest

from koala_adapter.cli.terminal import Interrupts

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupt_is_raised_at_once(number: signal.Signals) -> None:
    """Outside of anything that puts it off."""
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_an_interrupt_that_is_put_off_comes_at_the_end() -> None:
    """The block is not broken off; afterwards the interrupt is raised, once."""
    done = []

    def interrupted(interrupts: Interrupts) -> None:
        with interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            with interrupts.deferred():
                done.append("inner")
            done.append("outer")

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupted(interrupts)
        with interrupts.deferred():
            done.append("quiet")
    assert done == ["inner", "outer", "quiet"]


def test_a_part_can_be_let_in_again() -> None:
    """What is pending is raised where interrupts are let in; what comes there is raised at once."""
    with Interrupts() as interrupts, interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.let_in():
            raise AssertionError("not reached")
        with pytest.raises(KeyboardInterrupt), interrupts.let_in():
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", NUMBERS)
def test_handlers_are_given_back(number: signal.Signals) -> None:
    """After the block all is as it was, whatever happened inside."""
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
