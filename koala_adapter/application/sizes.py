# SPDX-License-Identifier: Apache-2.0
"""Sizes that a program can run on: the rules of koala_adapter/sizes.py, and the user's own function. No I/O."""

from typing import Callable, Union

from koala_adapter.application.notes import LARGEST_NUMBER, KoalaAppError

SizeFunction = Callable[[int, int], int]
"""Given its size and how many processors are offered, below 0: wanted back, it returns the size that it wants."""
Sizes = Union[str, SizeFunction]

_MULTIPLE = "multiple-of-"


class SizeRule:
    """Rule by which a program accepts offered processors and gives up requested ones."""

    name = "any"

    def one_growth_at_a_time(self, size: int) -> bool:
        """Return whether two growths of a program of ``size`` may add up to an unusable size, so that one must wait.

        They do where the second one is there first, or alone.
        """
        return self.largest(size) != size

    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""
        return size

    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""
        return size

    def accept(self, size: int, offered: int, minimum: int, maximum: int) -> int:
        """Return how many of the processors offered a program of ``size`` takes."""
        wanted = self.largest(min(size + offered, maximum))
        return max(0, wanted - size) if wanted >= minimum else 0

    def release(self, size: int, requested: int, minimum: int) -> int:
        """Return how many processors a program of ``size`` gives up of those requested.

        That can be more, where it cannot use what would be left.
        """
        left = self.largest(max(size - requested, minimum))
        if left < minimum:
            left = self.smallest(minimum)
        return max(0, size - left)


class PowersOfTwo(SizeRule):
    """Size rule: powers of two only."""

    name = "power-of-two"

    def one_growth_at_a_time(self, size: int) -> bool:  # noqa: ARG002 - whatever it is
        """Whether a component changes on one cluster at a time."""
        return True

    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""
        return 1 << (size.bit_length() - 1) if size > 0 else 0

    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""
        return 1 << (size - 1).bit_length() if size > 1 else 1


class MultiplesOf(SizeRule):
    """Size rule: multiples of a number only."""

    def __init__(self, step: int) -> None:
        self.name = _MULTIPLE + str(step)
        self._step = step

    def largest(self, size: int) -> int:
        """Return the largest usable size that is not above ``size``; 0 when there is none."""
        return size // self._step * self._step

    def smallest(self, size: int) -> int:
        """Return the smallest usable size that is not below ``size``."""
        return -(-size // self._step) * self._step


class ByFunction(SizeRule):
    """Size rule of a function of the program, which is only called with sizes within the job's bounds."""

    name = "function"

    def __init__(self, function: SizeFunction) -> None:
        self._function = function

    def one_growth_at_a_time(self, size: int) -> bool:  # noqa: ARG002 - whatever it is
        """Whether a component changes on one cluster at a time."""
        return True

    def accept(self, size: int, offered: int, minimum: int, maximum: int) -> int:
        """Return how many offered processors are accepted. Raises KoalaAppError for an impossible answer."""
        possible = min(size + offered, maximum)
        if possible <= size or possible < minimum:
            return 0
        return self._wanted(size, possible - size, size, possible) - size

    def release(self, size: int, requested: int, minimum: int) -> int:
        """Return how many requested processors are given up. Raises KoalaAppError for an impossible answer."""
        possible = max(size - requested, minimum)
        return size - self._wanted(size, possible - size, minimum, size) if possible < size else 0

    def _wanted(self, size: int, offered: int, least: int, most: int) -> int:
        wanted = self._function(size, offered)
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not least <= wanted <= most:
            raise KoalaAppError(
                "sizes({}, {}) returned {:.40}, which is no size from {} to {}".format(
                    size, offered, repr(wanted), least, most
                )
            )
        return wanted


def size_rule(sizes: Sizes) -> SizeRule:
    """Return the rule for ``any``, ``power-of-two``, ``multiple-of-N`` or a function. Raises KoalaAppError."""
    if callable(sizes):
        return ByFunction(sizes)
    for rule in (SizeRule(), PowersOfTwo()):
        if sizes == rule.name:
            return rule
    if isinstance(sizes, str) and sizes.startswith(_MULTIPLE):
        number = sizes[len(_MULTIPLE) :]
        if _is_number(number):
            return MultiplesOf(int(number))
    raise KoalaAppError("sizes is any, power-of-two, multiple-of-N or a function, not {:.60}".format(repr(sizes)))


def _is_number(text: str) -> bool:
    return 1 <= len(text) <= len(str(LARGEST_NUMBER)) and all("0" <= c <= "9" for c in text) and int(text) > 0
