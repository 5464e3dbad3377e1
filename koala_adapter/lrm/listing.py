# SPDX-License-Identifier: Apache-2.0
"""One look at a batch system for all who want one, and fewer looks while it does not answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from koala_adapter.errors import LrmError, LrmUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.plugin.limits import CircuitBreaker

T = TypeVar("T")


@dataclass(eq=False, slots=True, kw_only=True)
class Look(Generic[T]):
    """One look, begun and perhaps over."""

    begun: float
    over: anyio.Event = field(default_factory=anyio.Event)
    answered: bool = False
    found: T = field(init=False)
    """Set when it was answered."""
    error: Exception | None = None
    """Why it was not; None also when it was given up."""


class Watcher(Generic[T]):
    """Looks when somebody asks: one look at a time, whose result serves all who wait for it.

    While `run` runs, a look that was begun comes to its end, whatever becomes of those who wait for it: who asks with
    little patience, again and again, has it in the end.
    """

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
        self._tasks: TaskGroup | None = None
        self.under_way: Look[T] | None = None
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

    @property
    def begun_at(self) -> float:
        """When the last look that was answered was begun (monotonic); before everything when none was."""
        return self._begun_at

    def invalidate(self) -> None:
        """Say that something was done to the batch system: no look begun before now will do."""
        self._changed_at = anyio.current_time()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Have looks outlive those who ask for them, until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def look(self) -> T:
        """Look now. Raises LrmError."""
        while True:
            while self.under_way is not None:
                await self.under_way.over.wait()
            look = await self._seen()
            if look.error is not None:
                raise look.error
            if look.answered:
                return look.found

    async def fresh(self, *, within: float, now: bool = False) -> None:
        """Return when a look begun within the last so many seconds, and since the last change, has been answered.

        ``now``: one begun from now on, even while the batch system is left alone. Raises LrmError.
        """
        wanted = anyio.current_time() if now else max(self._changed_at, anyio.current_time() - within)
        while self._begun_at < wanted:
            look = self.under_way
            if look is not None:
                await look.over.wait()
            elif self.resting and not now:
                message = "it is left alone for a while" if self.failure is None else self.failure.message
                raise LrmUnavailableError(message, hint="it has failed again and again, and is asked again later")
            else:
                look = await self._seen()
            if look.error is not None and look.begun >= wanted:
                raise look.error

    async def _seen(self) -> Look[T]:
        """Look, and return it when it is over; nobody else looks now."""
        look: Look[T] = Look(begun=anyio.current_time())
        self.under_way = look
        if self._tasks is None:
            await self._carry_out(look)
        else:
            self._tasks.start_soon(self._carry_out, look)
            await look.over.wait()
        return look

    async def _carry_out(self, look: Look[T]) -> None:
        try:
            look.found = await self._read()
            look.answered = True
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and nobody else may have to bear it
            look.error = error
        finally:
            self.under_way = None
            look.over.set()
        if isinstance(look.error, LrmError):
            self._failed(look.error)
        elif look.answered:
            self._answered(look.begun)

    def _failed(self, error: LrmError) -> None:
        self.breaker.failed(anyio.current_time())
        known, self.failure = self.failure, error
        if known is None:
            self._on_trouble(error)

    def _answered(self, begun: float) -> None:
        self.breaker.succeeded()
        self.looks += 1
        self._begun_at = begun
        if self.failure is not None:
            self.failure = None
            self._on_trouble(None)
