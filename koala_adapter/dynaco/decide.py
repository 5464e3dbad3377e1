# SPDX-License-Identifier: Apache-2.0
"""DYNACO, decide: does an application adapt, and to what size? Rules of which the scheduler knows nothing. Pure.

CoreGRID TR-0092: no step size is assumed, the amount of a change is settled by offer and acceptance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class AcceptanceRule(ABC):
    """Which sizes an application can run on."""

    name: str

    @abstractmethod
    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""

    @abstractmethod
    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""

    def accept(self, size: int, offered: int, minimum: int, maximum: int) -> int:
        """Return how many of the processors offered an application of ``size`` takes; the rest it gives back."""
        wanted = self.largest(min(size + offered, maximum))
        return max(0, wanted - size) if wanted >= minimum else 0

    def release(self, size: int, requested: int, minimum: int) -> int:
        """Return how many processors an application of ``size`` gives up when so many are requested.

        That can be more than requested, where it cannot use what would be left, but it stays at its minimum or above.
        """
        left = self.largest(max(size - requested, minimum))
        if left < minimum:
            left = self.smallest(minimum)
        return max(0, size - left)

    def answer(self, size: int, amount: int, minimum: int, maximum: int) -> int:
        """Return the signed answer to a message of a malleability policy."""
        if amount > 0:
            return self.accept(size, amount, minimum, maximum)
        return -self.release(size, -amount, minimum)


class AnySize(AcceptanceRule):
    """Runs on any number of processors (GADGET-2)."""

    name = "any"

    def largest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.largest`."""
        return size

    def smallest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.smallest`."""
        return size


class PowerOfTwo(AcceptanceRule):
    """Runs on powers of two only (NAS FT): of an offer it uses the highest power of two not above it."""

    name = "power-of-two"

    def largest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.largest`."""
        return 1 << (size.bit_length() - 1) if size > 0 else 0

    def smallest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.smallest`."""
        return 1 << (size - 1).bit_length() if size > 1 else 1


class Multiple(AcceptanceRule):
    """Runs on multiples of a number only, such as whole nodes."""

    name = "multiple"

    def __init__(self, step: int) -> None:
        """Take multiples of ``step``, which is at least 1."""
        if step < 1:
            raise ValueError(f"multiples of {step} are no sizes")
        self._step = step

    def largest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.largest`."""
        return size // self._step * self._step

    def smallest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.smallest`."""
        return -(-size // self._step) * self._step


ACCEPTANCE_RULES: Mapping[str, AcceptanceRule] = {rule.name: rule for rule in (AnySize(), PowerOfTwo())}
"""Rules that need no number."""

_MULTIPLE = "multiple-of-"


def rule_named(name: str) -> AcceptanceRule:
    """Return the rule of a name: ``any``, ``power-of-two``, or ``multiple-of-N``. Raises ValueError for another one."""
    number = name.removeprefix(_MULTIPLE)
    if name.startswith(_MULTIPLE) and number.isascii() and number.isdecimal():
        return Multiple(int(number))
    if name not in ACCEPTANCE_RULES:
        raise ValueError(f"there is no rule {name!r}")
    return ACCEPTANCE_RULES[name]
