# SPDX-License-Identifier: Apache-2.0
"""Sizes on which malleable applications run: acceptance rules, their check, and the decision on an offer. Pure.

This is the "decide" step of DYNACO; the scheduler does not know these rules. The built-in rules come first, then the
rules made of functions or installed plugins, and the table of all rules that a job file may name.

No step size is assumed: the amount of a change is settled by offer and acceptance (CoreGRID TR-0092).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.errors import PolicyAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# -- Built-in rules ------------------------------------------------------------------------------------------


class AcceptanceRule(ABC):
    """Rule for the sizes on which an application can run."""

    name: str

    @abstractmethod
    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""

    @abstractmethod
    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""

    def accept(self, size: int, offered: int, minimum: int, maximum: int) -> int:
        """Return how many of ``offered`` processors an application of ``size`` accepts."""
        wanted = self.largest(min(size + offered, maximum))
        return max(0, wanted - size) if wanted >= minimum else 0

    def release(self, size: int, requested: int, minimum: int) -> int:
        """Return how many processors an application of ``size`` gives up when ``requested`` are wanted.

        That can be more than requested, where it cannot use what would be left, but it stays at its minimum or above.
        """
        left = self.largest(max(size - requested, minimum))
        if left < minimum:
            left = self.smallest(minimum)
        return max(0, size - left)

    def answer(self, size: int, amount: int, minimum: int, maximum: int) -> int:
        """Return the accepted part of a proposed change (positive: grow, negative: shrink)."""
        if amount > 0:
            return self.accept(size, amount, minimum, maximum)
        return -self.release(size, -amount, minimum)


class AnySize(AcceptanceRule):
    """Rule: any number of processors (GADGET-2)."""

    name = "any"

    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""
        return size

    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""
        return size


class PowerOfTwo(AcceptanceRule):
    """Rule: powers of two (NAS FT)."""

    name = "power-of-two"

    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""
        return 1 << (size.bit_length() - 1) if size > 0 else 0

    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""
        return 1 << (size - 1).bit_length() if size > 1 else 1


class Multiple(AcceptanceRule):
    """Rule: multiples of a number, such as whole nodes."""

    name = "multiple"

    def __init__(self, step: int) -> None:
        """``step``: at least 1."""
        if step < 1:
            raise ValueError(f"multiples of {step} are no sizes")
        self._step = step

    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""
        return size // self._step * self._step

    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""
        return -(-size // self._step) * self._step


ACCEPTANCE_RULES: Mapping[str, AcceptanceRule] = {rule.name: rule for rule in (AnySize(), PowerOfTwo())}
"""Rules that need no number."""

_MULTIPLE = "multiple-of-"


def rule_named(name: str) -> AcceptanceRule:
    """Return the rule called ``any``, ``power-of-two`` or ``multiple-of-N``. Raises ValueError for other names."""
    number = name.removeprefix(_MULTIPLE)
    if name.startswith(_MULTIPLE) and number.isascii() and number.isdecimal():
        return Multiple(int(number))
    if name not in ACCEPTANCE_RULES:
        raise ValueError(f"there is no rule {name!r}")
    return ACCEPTANCE_RULES[name]


# -- Rules from functions and plugins, and the table of all rules --------------------------------------------
# Answers of installed rules are checked before they are followed.

LARGEST_SIZE = 65_536
"""Where the search for a usable size ends."""


class UsableSizes(AcceptanceRule):
    """Rule: sizes for which a function returns true."""

    def __init__(self, name: str, usable: Callable[[int], bool]) -> None:
        """``usable``: returns whether the application can run on a number of processors (from 1)."""
        self.name = name
        self._usable = usable

    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""
        return next((one for one in range(size, 0, -1) if self._usable(one)), 0)

    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``; LARGEST_SIZE when there is none up to that."""
        return next((one for one in range(max(1, size), LARGEST_SIZE) if self._usable(one)), max(size, LARGEST_SIZE))


class CheckedRule(AcceptanceRule):
    """Installed size rule whose answers are checked."""

    def __init__(self, rule: AcceptanceRule, described: str) -> None:
        """``described``: rule and entry point, for messages."""
        self.name = rule.name
        self._rule = rule
        self._described = described

    def largest(self, size: int) -> int:
        """Return the largest usable size not above ``size``. Raises PolicyAnswerError for an invalid answer."""
        found = self._asked(self._rule.largest, size)
        if not 0 <= found <= size:
            raise PolicyAnswerError.of(self._described, f"calls {found} the largest usable size not above {size}")
        return found

    def smallest(self, size: int) -> int:
        """Return the smallest usable size not below ``size``. Raises PolicyAnswerError for an invalid answer."""
        found = self._asked(self._rule.smallest, size)
        if found < size:
            raise PolicyAnswerError.of(self._described, f"calls {found} the smallest usable size not below {size}")
        return found

    def _asked(self, question: Callable[[int], object], size: int) -> int:
        try:
            answer = question(size)
        except Exception as error:
            raise PolicyAnswerError.raised(self._described, error) from error
        if not isinstance(answer, int) or isinstance(answer, bool):
            raise PolicyAnswerError.of(self._described, f"answers {size} with a {type(answer).__name__}, not a number")
        return answer


@dataclass(frozen=True, slots=True)
class Decision:
    """Answer of an application to an offer or request of processors."""

    processors: int
    """So many it takes, or gives up."""
    trouble: str = ""
    """What is wrong with the rule that was to decide."""


@dataclass(frozen=True, slots=True)
class SizeRules:
    """The size rules that job files may name."""

    installed: Mapping[str, AcceptanceRule] = field(default_factory=dict)
    """Rules of other distributions by name; they cannot replace koala's own."""

    def known(self, name: str) -> bool:
        """Return whether there is a rule with this name."""
        try:
            self.named(name)
        except PolicyAnswerError:
            return False
        return True

    def named(self, name: str) -> AcceptanceRule:
        """Return a rule by name. Raises PolicyAnswerError when it is not installed (any more)."""
        try:
            return rule_named(name)
        except ValueError:
            if name in self.installed:
                return self.installed[name]
        message = f"the rule {name!r} for the sizes of a component is not installed"
        raise PolicyAnswerError(message, hint="install its distribution, and restart the service")

    def decide(self, name: str, size: int, amount: int, minimum: int, maximum: int) -> Decision:
        """Return the answer to an offer (``amount`` > 0) or a request (< 0) at ``size`` processors.

        By a rule that fails nothing is taken. What is asked back is given, as others must not wait for it to be mended.
        """
        try:
            return Decision(abs(self.named(name).answer(size, amount, minimum, maximum)))
        except PolicyAnswerError as error:
            return Decision(0 if amount > 0 else AnySize().release(size, -amount, minimum), error.message)


OWN_SIZES = SizeRules()
"""Koala's own, and no others."""
