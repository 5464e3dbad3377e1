# SPDX-License-Identifier: Apache-2.0
"""One look at a batch system for all who want one, and fewer looks while it does not answer."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from koala_adapter.errors import LrmError, LrmUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from koala_adapter.plugin.limits import CircuitBreaker

T = TypeVar("T")


class Watcher(Generic[T]):
    """Looks when somebody asks: one look at a time, whose result serves all who wait for it."""

    def __init__(
        self,
        read: Callable[[], Awaitable[T]],
        *,
        breaker: CircuitBreaker,
        on_trouble: Callable[[LrmError | None], None],
    ) -> None:
        """``read`` asks the batch system and raises LrmError when it does not answer.

        ``on_trouble`` hears when it stops answering (why), and when it answers again (None).
        """
        self._read = read
        self.breaker = breaker
        self._on_trouble = on_trouble
        self._lock = anyio.Lock()
        self._begun_at = -inf
        """When the last look that was answered was begun (monotonic)."""
        self._changed_at = -inf
        """When something was last done to the batch system."""
        self.failure: LrmError | None = None
        """Why the last look was not answered; None when it was."""
        self.looks = 0
        """How many were answered."""

    @property
    def resting(self) -> bool:
        """Tell whether it is left alone now, because it has failed again and again."""
        return not self.breaker.may_ask(anyio.current_time())

    def invalidate(self) -> None:
        """Say that something was done to the batch system: no look begun before now will do."""
        self._changed_at = anyio.current_time()

    async def look(self) -> T:
        """Look now. Raises LrmError."""
        async with self._lock:
            return await self._look()

    async def fresh(self, *, within: float, now: bool = False) -> None:
        """Return when a look begun within the last so many seconds, and since the last change, has been answered.

        ``now``: one begun from now on, even while the batch system is left alone. Raises LrmError.
        """
        wanted = anyio.current_time() if now else max(self._changed_at, anyio.current_time() - within)
        if self._begun_at >= wanted:
            return
        async with self._lock:
            if self._begun_at >= wanted:
                return
            if self.resting and not now:
                message = "it is left alone for a while" if self.failure is None else self.failure.message
                raise LrmUnavailableError(message, hint="it has failed again and again, and is asked again later")
            await self._look()

    async def _look(self) -> T:
        begun = anyio.current_time()
        try:
            found = await self._read()
        except LrmError as error:
            self.breaker.failed(anyio.current_time())
            known, self.failure = self.failure, error
            if known is None:
                self._on_trouble(error)
            raise
        self.breaker.succeeded()
        self.looks += 1
        self._begun_at = begun
        if self.failure is not None:
            self.failure = None
            self._on_trouble(None)
        return found
