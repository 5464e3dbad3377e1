# SPDX-License-Identifier: Apache-2.0
"""Rules for sizes that are installed: what they answer is looked at, and what is wrong with them is told."""

from __future__ import annotations

import pytest

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.sizes import LARGEST_SIZE, OWN_SIZES, AcceptanceRule, CheckedRule, Decision, SizeRules, UsableSizes


class Fixed(AcceptanceRule):
    """Answers the same to everything, or fails."""

    name = "fixed"

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def largest(self, size: int) -> int:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer if size else 0  # type: ignore[return-value] # on purpose

    def smallest(self, size: int) -> int:
        return self.largest(size)


def rules(rule: AcceptanceRule) -> SizeRules:
    """Return rules to which one has been added by somebody."""
    return SizeRules({rule.name: CheckedRule(rule, "policy 'sizes.x' (m:X) of d 1")})


@pytest.mark.parametrize(
    ("size", "amount", "decided"), [(1, 2, 0), (1, 3, 3), (4, 7, 5), (9, -1, 5), (4, -4, 3), (2, -1, 1), (1, -1, 0)]
)
def test_the_sizes_that_a_function_calls_usable(size: int, amount: int, decided: int) -> None:
    """Of an offer the largest of them is taken; of what is left after a request it keeps the largest."""
    squares = UsableSizes("squares", lambda size: size in {1, 4, 9})
    assert rules(squares).decide("squares", size, amount, 1, 20) == Decision(decided)


def test_a_minimum_that_is_no_usable_size() -> None:
    """The smallest that is usable is kept; where none is, nothing is given up."""
    assert rules(UsableSizes("four", lambda size: size == 4)).decide("four", 6, -4, 2, 9) == Decision(2)
    none = UsableSizes("none", lambda _: False)
    assert none.smallest(3) == LARGEST_SIZE
    assert rules(none).decide("none", 6, -4, 2, 9) == Decision(0)
    assert rules(none).decide("none", 6, 4, 2, 20) == Decision(0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ValueError("boom"), "raises ValueError: boom"),
        ("four", "answers 5 with a str, not a number"),
        (True, "answers 5 with a bool, not a number"),
        (6, "calls 6 the largest usable size not above 5"),
        (-1, "calls -1 the largest usable size not above 5"),
    ],
)
def test_an_answer_that_cannot_be_followed(answer: object, said: str) -> None:
    """Nothing is taken, but what is asked back is given up: others do not wait until the rule is mended."""
    wrong = rules(Fixed(answer))
    taken = wrong.decide("fixed", 3, 2, 1, 9)
    assert taken.processors == 0
    assert taken.trouble == f"the answer of policy 'sizes.x' (m:X) of d 1 was refused: it {said}"
    given = wrong.decide("fixed", 7, -2, 1, 9)
    assert (given.processors, given.trouble) == (2, taken.trouble)
    bounded = wrong.decide("fixed", 7, -8, 1, 9)
    assert (bounded.processors, bounded.trouble != "") == (6, True)


def test_a_smallest_size_below_what_was_asked_for_is_no_answer() -> None:
    with pytest.raises(PolicyAnswerError, match="calls 2 the smallest usable size not below 5"):
        CheckedRule(Fixed(2), "it").smallest(5)


def test_a_rule_that_is_not_installed_any_more() -> None:
    """It is told as one that fails; nobody replaces koala's own."""
    decision = OWN_SIZES.decide("squares", 2, 3, 1, 9)
    assert (decision.processors, decision.trouble) == (
        0,
        "the rule 'squares' for the sizes of a component is not installed",
    )
    assert not OWN_SIZES.known("squares")
    assert SizeRules({"any": Fixed(1)}).decide("any", 2, 3, 1, 9) == Decision(3)
