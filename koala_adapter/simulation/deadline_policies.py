# SPDX-License-Identifier: Apache-2.0
"""Deadline scheduling of calls to servers (Takefusa 2001). Pure.

A client calls a server: it sends data, the server computes, the client receives the result. Each call has a deadline.
A server's price is its performance, so the best choice is not the fastest server but the slowest that is in time.

Units: seconds, Mbit, Mbit/s, Mop (a million operations), Mop/s. Load is the number of jobs at a server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

P_LOAD = 1.0
"""Load by which one assigned and unfinished call raises the forecast of its server, where load is corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a client wants computed."""

    send: float
    """Mbit to the server."""
    receive: float
    """Mbit back."""
    operations: float
    """Mop."""
    deadline: float
    """Time at which the client must have received all."""


@dataclass(frozen=True, slots=True)
class ServerForecast:
    """What is predicted for one server, as seen from one client."""

    name: str
    send_throughput: float
    """Mbit/s to the server."""
    receive_throughput: float
    """Mbit/s back."""
    performance: float
    """Mop/s of the server when it has nothing else to do."""
    load: float
    """Jobs there; each takes an equal part of the performance."""

    def response_time(self, call: Call, more_load: float = 0.0) -> float:
        """Return the seconds from sending to having received: Ts = Wsend/Psend + Wrecv/Precv + Ws/Pserv."""
        transfers = call.send / self.send_throughput + call.receive / self.receive_throughput
        return transfers + execution_time(call, self.performance, self.load + more_load)


def execution_time(call: Call, performance: float, load: float) -> float:
    """Return the seconds that a server of ``performance`` (Mop/s) needs beside ``load`` other jobs."""
    return call.operations * (load + 1.0) / performance


class ServerChoice(ABC):
    """Chooses the server for a call."""

    name: str

    @abstractmethod
    def choose(self, estimates: Sequence[float], time_left: float) -> int:
        """Return the index of the best server.

        ``estimates`` holds the response time (seconds) at each server, at least one; ``time_left`` is the time until
        the deadline (seconds), negative when it is over.
        """


class Greedy(ServerChoice):
    """The server with the shortest response time, whatever the deadline: the usual way, and the baseline."""

    name = "greedy"

    def choose(self, estimates: Sequence[float], time_left: float) -> int:  # noqa: ARG002 - that is its nature
        """Return the index of the shortest estimate, the first of equal ones."""
        return estimates.index(min(estimates))


class Deadline(ServerChoice):
    """The slowest server that is still in time (the deadline algorithm of the paper).

    T_target = time left x Opt. Chosen is the smallest T_target - Ts that is not negative; where there is none, the
    smallest absolute difference.
    """

    def __init__(self, opt: float) -> None:
        """Aim at the share ``opt`` of the time left, 0 < opt <= 1. Raises ValueError for another."""
        if not 0.0 < opt <= 1.0:
            message = f"opt is {opt:g}, allowed is more than 0 and at most 1"
            raise ValueError(message)
        self.opt = opt
        self.name = f"deadline {opt:g}"

    def choose(self, estimates: Sequence[float], time_left: float) -> int:
        """Return the index of the longest estimate within the target, else of the one nearest to it."""
        target = time_left * self.opt
        in_time = [estimate for estimate in estimates if estimate <= target]
        # Beyond the target the nearest estimate is the shortest one.
        return estimates.index(max(in_time) if in_time else min(estimates))


class CallScheduler:
    """Assigns calls to servers, and knows how many of its calls each server has not finished yet.

    Load correction: monitors see a new load late, so each unfinished call that was assigned to a server adds ``p_load``
    to the load that is forecast for it. 0 turns the correction off.
    """

    def __init__(self, choice: ServerChoice, *, p_load: float = 0.0) -> None:
        """Start with no call assigned."""
        self._choice = choice
        self._p_load = p_load
        self._unfinished: dict[str, int] = {}

    def assign(self, call: Call, forecasts: Sequence[ServerForecast], now: float) -> ServerForecast:
        """Return the server for a call, and count the call as there until :meth:`finished`. Needs one forecast."""
        if self._p_load:
            estimates = [one.response_time(call, self._p_load * self._unfinished.get(one.name, 0)) for one in forecasts]
        else:
            estimates = [one.response_time(call) for one in forecasts]
        chosen = forecasts[self._choice.choose(estimates, call.deadline - now)]
        self._unfinished[chosen.name] = self._unfinished.get(chosen.name, 0) + 1
        return chosen

    def finished(self, server: str) -> None:
        """A call left a server: its result was received, or it fell back. Raises KeyError if none was there."""
        if self._unfinished[server] == 1:
            del self._unfinished[server]
        else:
            self._unfinished[server] -= 1

    def unfinished(self, server: str) -> int:
        """Return the number of calls assigned to a server and not finished."""
        return self._unfinished.get(server, 0)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Lets a server send an arriving call back to be scheduled again, when it cannot finish it in time."""

    maximum: int
    """Most fallbacks of one call (N_max); 0: never."""

    def wanted(self, *, time_left: float, execution: float, receive: float, fallbacks: int) -> bool:
        """Tell whether a call that just arrived goes back.

        ``time_left``: seconds from its arrival (after the actual send time) to its deadline; ``execution`` and
        ``receive``: seconds that the server estimates; ``fallbacks``: how often this call went back before.
        """
        return fallbacks < self.maximum and time_left < execution + receive
