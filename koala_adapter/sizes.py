# SPDX-License-Identifier: Apache-2.0
"""The rules by which applications accept sizes: koala's own, and installed ones, whose answers are checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.dynaco.decide import AcceptanceRule, AnySize, rule_named
from koala_adapter.errors import PolicyAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LARGEST_SIZE = 65_536
"""Where the search for a usable size ends."""


class UsableSizes(AcceptanceRule):
    """Runs on the sizes that a function calls usable."""

    def __init__(self, name: str, usable: Callable[[int], bool]) -> None:
        """``usable`` tells of a number of processors, 1 or more, whether the application can run on so many."""
        self.name = name
        self._usable = usable

    def largest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.largest`."""
        return next((one for one in range(size, 0, -1) if self._usable(one)), 0)

    def smallest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.smallest`; LARGEST_SIZE when there is none up to that."""
        return next((one for one in range(max(1, size), LARGEST_SIZE) if self._usable(one)), max(size, LARGEST_SIZE))


class WithPendingChanges(AcceptanceRule):
    """A rule for an application that other changes may alter, too: it must be able to use what it has with and without.

    Sizes are those without these changes.
    """

    def __init__(self, rule: AcceptanceRule, changes: Sequence[int]) -> None:
        """``changes``: by how many processors, below 0: fewer; each for itself, and perhaps not at all."""
        self.name = rule.name
        self._rule = rule
        sums = {0}
        for change in changes:
            sums |= {one + change for one in sums}
        self._least, self._most = min(sums), max(sums)
        self._altered = sums - {0}

    def accept(self, size: int, offered: int, minimum: int, maximum: int) -> int:
        """See :meth:`AcceptanceRule.accept`."""
        return super().accept(size, offered, minimum, max(0, maximum - self._most))

    def release(self, size: int, requested: int, minimum: int) -> int:
        """See :meth:`AcceptanceRule.release`."""
        return super().release(size, requested, minimum - self._least)

    def largest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.largest`."""
        while (size := self._rule.largest(size)) > 0 and not self._usable_when_altered(size):
            size -= 1
        return size

    def smallest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.smallest`; LARGEST_SIZE when there is none up to that."""
        while (size := self._rule.smallest(size)) < LARGEST_SIZE and not self._usable_when_altered(size):
            size += 1
        return size

    def _usable_when_altered(self, size: int) -> bool:
        sizes = (size + change for change in self._altered)
        return all(one > 0 and self._rule.largest(one) == one for one in sizes)


class CheckedRule(AcceptanceRule):
    """A rule of somebody else, whose answers are looked at before they are followed."""

    def __init__(self, rule: AcceptanceRule, described: str) -> None:
        """``described``: the rule and its entry point, as a person is told."""
        self.name = rule.name
        self._rule = rule
        self._described = described

    def largest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.largest`. Raises PolicyAnswerError for an answer that is none."""
        found = self._asked(self._rule.largest, size)
        if not 0 <= found <= size:
            raise PolicyAnswerError.of(self._described, f"calls {found} the largest usable size not above {size}")
        return found

    def smallest(self, size: int) -> int:
        """See :meth:`AcceptanceRule.smallest`. Raises PolicyAnswerError for an answer that is none."""
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
    """What an application answers to an offer or a request."""

    processors: int
    """So many it takes, or gives up."""
    trouble: str = ""
    """What is wrong with the rule that was to decide."""


@dataclass(frozen=True, slots=True)
class SizeRules:
    """All rules that a job file may name."""

    installed: Mapping[str, AcceptanceRule] = field(default_factory=dict)
    """Those beside koala's own, which nobody replaces."""

    def known(self, name: str) -> bool:
        """Tell whether there is a rule of a name."""
        try:
            self.named(name)
        except PolicyAnswerError:
            return False
        return True

    def named(self, name: str) -> AcceptanceRule:
        """Return a rule. Raises PolicyAnswerError when there is none of that name (any more)."""
        try:
            return rule_named(name)
        except ValueError:
            if name in self.installed:
                return self.installed[name]
        message = f"the rule {name!r} for the sizes of a component is not installed"
        raise PolicyAnswerError(message, hint="install its distribution, and restart the service")

    def decide(
        self, name: str, size: int, amount: int, minimum: int, maximum: int, *, pending: Sequence[int] = ()
    ) -> Decision:
        """Decide about an offer (``amount`` above 0) or a request to an application of ``size`` processors.

        ``pending``: by how many processors other changes may alter its size, each of them for itself or not at all.
        By a rule that fails nothing is taken. What is asked back is given, as others must not wait for it to be mended.
        """
        try:
            return Decision(abs(WithPendingChanges(self.named(name), pending).answer(size, amount, minimum, maximum)))
        except PolicyAnswerError as error:
            return Decision(0 if amount > 0 else AnySize().release(size, -amount, minimum), error.message)


OWN_SIZES = SizeRules()
"""Koala's own, and no others."""
