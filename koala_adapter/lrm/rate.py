# SPDX-License-Identifier: Apache-2.0
"""Bounds of requests to an LRM: a window of one minute, pauses between polls, a circuit breaker, answers that are kept.

The first part consists of plain values that are given the time (seconds, any monotonic origin). The second and third
parts share a window, and answers, between all processes of a user on this host that ask the same batch system.
"""

from __future__ import annotations

import fcntl
import json
import os
from array import array
from collections import deque
from contextlib import contextmanager, suppress
from enum import Enum
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.host.clock import boot_id, seconds_since_boot
from koala_adapter.host.privatedirectory import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


# -- Request window, poll pace and circuit breaker of one process --------------------------------------------

WINDOW = 60.0
SHORTEST_PAUSE = 0.5
"""Seconds between two polls, however few there were."""
URGENT_SHARE = 0.2
"""Share of the window that polls leave, so that they never delay a clean-up."""


class Priority(Enum):
    """Kinds of requests; the value is the share of the window up to which requests of the kind may fill it."""

    ORDINARY = 1 - URGENT_SHARE
    SUBMISSION = 1 - URGENT_SHARE / 2
    """Submissions, which polls must not delay for half a minute either."""
    URGENT = 1.0
    """Cancels."""


class RequestWindow:
    """At most ``per_minute`` requests in any 60 seconds; shares are kept for those of a higher priority."""

    def __init__(self, per_minute: int, times: Iterable[float] = ()) -> None:
        """``per_minute``: the stated upper bound, at least 2. ``times``: those of requests that went before."""
        self.per_minute = max(2, per_minute)
        self._times = deque(sorted(times))
        self.total = 0
        self.largest = 0
        """Largest number of requests seen in any 60 seconds."""

    @property
    def times(self) -> tuple[float, ...]:
        """Times of the requests of the last 60 seconds, in order."""
        return tuple(self._times)

    def wait(self, now: float, priority: Priority = Priority.ORDINARY) -> float:
        """Return 0.0 when a request may go now, else the seconds to wait before asking again."""
        self._forget(now)
        limit = max(1, int(self.per_minute * priority.value))
        if len(self._times) < limit:
            return 0.0
        # Rounding must not make it longer than a window.
        return min(WINDOW, max(0.001, self._times[len(self._times) - limit] + WINDOW - now))

    def record(self, now: float) -> None:
        """Count one request sent at ``now``."""
        self._forget(now)
        self._times.append(now)
        self.total += 1
        self.largest = max(self.largest, len(self._times))

    def _forget(self, now: float) -> None:
        while self._times and self._times[0] <= now - WINDOW:
            self._times.popleft()


class PollPace:
    """Pauses between polls while something is about to change: short at first, then growing.

    In the long run they use no more than half of the ordinary requests, in any 60 seconds at most three quarters.
    """

    def __init__(self, per_minute: int) -> None:
        """``per_minute``: the bound of requests."""
        self._lasting = per_minute * Priority.ORDINARY.value / 2
        """Requests that polls may make in each minute in the long run."""
        self._polls: deque[tuple[float, int]] = deque()

    def polled(self, now: float, requests: int) -> None:
        """Count one poll at ``now`` that took so many requests."""
        self._polls.append((now, max(1, requests)))

    def pause(self, now: float) -> float:
        """Return the seconds to the next poll."""
        while self._polls and self._polls[0][0] <= now - WINDOW:
            self._polls.popleft()
        if not self._polls:
            return SHORTEST_PAUSE
        used, latest = sum(requests for _, requests in self._polls), self._polls[-1][1]
        # With as many in a window as may last, polls are as far apart as may last; with fewer, nearer in proportion.
        return max(SHORTEST_PAUSE, WINDOW * latest / self._lasting * min(1.0, used / self._lasting))


class CircuitBreaker:
    """Stops asking an LRM that fails again and again, and tries it with growing pauses."""

    def __init__(self, *, failures: int = 3, pause: float = 5.0, longest_pause: float = 120.0) -> None:
        """Open after ``failures`` in a row; the pause doubles from ``pause`` to ``longest_pause`` seconds."""
        self._threshold = failures
        self._first_pause = pause
        self._longest_pause = longest_pause
        self.failures = 0
        self._retry_at = 0.0

    @property
    def open(self) -> bool:
        """True while the LRM counts as out of reach."""
        return self.failures >= self._threshold

    def may_ask(self, now: float) -> bool:
        """Tell whether a request may be tried at ``now``."""
        return not self.open or now >= self._retry_at

    def succeeded(self) -> None:
        """Close the breaker."""
        self.failures = 0

    def failed(self, now: float) -> None:
        """Count a failure at ``now`` and set the time of the next try."""
        self.failures += 1
        beyond = min(self.failures - self._threshold, 10)
        if beyond >= 0:
            self._retry_at = now + min(self._longest_pause, self._first_pause * 2.0**beyond)


# -- A window shared by all processes of a user on this host -------------------------------------------------
# Administrators of a batch system count the requests of an account, not of its processes. So the times of the last
# minute's requests are kept in a small file for each batch system, which a process locks for a moment before it asks.
# Where the file cannot be used, each process still keeps within the bound by itself.

LOCKED_PAUSE = 0.005
"""Seconds between two tries to get the lock."""
LOCKED_AT_MOST = 5.0
"""Seconds after which a process that keeps the lock, because it was stopped, is not waited for."""
UNUSED_AFTER = 86_400.0
"""Seconds after which the file of a batch system that nobody asked is removed."""
SUFFIX = ".requests"
ANSWERS_SUFFIX = ".answers"


def window_path(directory: Path, *identity: str) -> Path:
    """Return the file in ``directory`` that counts requests to the batch system called ``identity``.

    Times count from the boot of a host, so that each boot of each host has files of its own.
    """
    digest = sha256("\0".join((boot_id(), *identity)).encode()).hexdigest()
    return directory / f"{digest[:32]}{SUFFIX}"


def prepare_directory(directory: Path, *, now: float) -> None:
    """Make the private directory of the windows and remove the files in it that are out of use. Raises OSError.

    ``now``: the time of day.
    """
    make_private_directory(directory)
    for path in unused_windows(directory, now=now):
        with suppress(OSError):
            remove_window(path)


def unused_windows(directory: Path, *, now: float) -> list[Path]:
    """Return the files in the directory of windows that are out of use; ``now``: the time of day."""
    found = []
    for path in (*directory.glob(f"*{SUFFIX}"), *directory.glob(f"*{ANSWERS_SUFFIX}")):
        with suppress(OSError):
            if path.stat().st_mtime < now - UNUSED_AFTER:
                found.append(path)
    return found


def remove_window(path: Path) -> None:
    """Remove the file of a window unless a process uses it at this moment. Raises OSError."""
    with _locked(path) as descriptor:
        if descriptor is not None:
            path.unlink()


class SharedWindow:
    """At most ``per_minute`` requests in any 60 seconds, those of other processes that use the same file counted."""

    def __init__(
        self, per_minute: int, path: Path | None = None, *, clock: Callable[[], float] = seconds_since_boot
    ) -> None:
        """``path``: in a private directory; None: this process alone is counted. ``clock``: the same for all (s)."""
        self._own = RequestWindow(per_minute)
        self._path = path
        self._clock = clock
        self._locked_since: float | None = None
        self._alone = False
        self._largest = 0

    @property
    def per_minute(self) -> int:
        """The bound."""
        return self._own.per_minute

    @property
    def total(self) -> int:
        """How many requests this process has sent."""
        return self._own.total

    @property
    def largest(self) -> int:
        """Largest number of requests seen in any 60 seconds, those of other processes counted."""
        return max(self._largest, self._own.largest)

    def recent(self) -> int:
        """Return the number of requests in the last 60 seconds, those of other processes counted where that can be."""
        now = self._clock()
        own = sum(1 for time in self._own.times if time > now - WINDOW)
        if self._path is None:
            return own
        with suppress(OSError), self._path.open("rb") as file:
            return max(own, len(_read(file.fileno(), now)))
        return own

    def take(self, priority: Priority = Priority.ORDINARY) -> float:
        """Count one request and return 0.0 when it may go now, else the seconds to wait before asking again."""
        now = self._clock()
        wait = self._own.wait(now, priority)
        if wait == 0.0 and self._path is not None:
            wait = self._take_shared(self._path, now, priority)
        if wait == 0.0:
            self._own.record(now)
        return wait

    def _take_shared(self, path: Path, now: float, priority: Priority) -> float:
        try:
            with _locked(path) as descriptor:
                if descriptor is None:
                    return self._another_has_it(now)
                wait = self._take_locked(descriptor, now, priority)
        except OSError as error:
            self._go_alone(str(error))
            return 0.0
        self._locked_since, self._alone = None, False
        return wait

    def _take_locked(self, descriptor: int, now: float, priority: Priority) -> float:
        window = RequestWindow(self.per_minute, _read(descriptor, now))
        wait = window.wait(now, priority)
        if wait == 0.0:
            window.record(now)
            _write(descriptor, window.times)
            self._largest = max(self._largest, window.largest)
        return wait

    def _another_has_it(self, now: float) -> float:
        if self._locked_since is None:
            self._locked_since = now
        if now - self._locked_since < LOCKED_AT_MOST:
            return LOCKED_PAUSE
        self._go_alone(f"another process has kept it locked for {LOCKED_AT_MOST:g} s")
        return 0.0

    def _go_alone(self, why: str) -> None:
        """Count only this process's requests, within the whole bound, until the file can be used again."""
        if not self._alone:
            import structlog  # noqa: PLC0415 - every command that reads the site imports this module

            structlog.get_logger().warning(
                "requests of other processes cannot be counted", path=str(self._path), error=why
            )
        self._alone = True


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Open and lock the file; None when another process has the lock. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            # It may have been removed, and made anew by another, before we got the lock.
            yield descriptor if _is_at(descriptor, path) else None
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _read(descriptor: int, now: float) -> list[float]:
    """Return the times of the last minute; what is not one, in a damaged file, is left out."""
    times: array[float] = array("d")
    raw = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    times.frombytes(raw[: len(raw) - len(raw) % times.itemsize])
    return [time for time in times if now - WINDOW < time <= now]


def _write(descriptor: int, times: tuple[float, ...]) -> None:
    raw = array("d", times).tobytes()
    os.pwrite(descriptor, raw, 0)
    os.ftruncate(descriptor, len(raw))


# -- Answers that are kept, so that questions need not be asked again ----------------------------------------
# Several commands of koala that follow each other, as init, check and run do, ask a batch system for the same settings.
# What it answered is kept in a file beside that of its window.

LARGEST_ANSWER = 1024**2
"""Characters of an answer that is kept in the file."""


class KeptAnswers:
    """What a batch system has answered to questions for its settings."""

    def __init__(
        self, path: Path | None = None, *, trusted: float = 0.0, clock: Callable[[], float] = seconds_since_boot
    ) -> None:
        """``path``: in a private directory; None: only this process uses its answers. ``clock``: the same for all (s).

        ``trusted``: how many seconds before now an answer to another process may have been given to be used here.
        """
        self._path = path
        self._clock = clock
        self._since = clock() - trusted
        self._answers: dict[str, tuple[float, str]] = _read_answers(path) if trusted and path is not None else {}

    def get(self, question: str, *, within: float) -> str | None:
        """Return an answer that was given in the last ``within`` seconds; None: there is none."""
        given_at, answer = self._answers.get(question, (-inf, ""))
        now = self._clock()
        return answer if max(self._since, now - within) <= given_at <= now else None

    def keep(self, question: str, answer: str) -> None:
        """Keep an answer that was given now."""
        self._answers[question] = given = (self._clock(), answer)
        if self._path is None or len(answer) > LARGEST_ANSWER:
            return
        # Of two processes that write at the same time one answer is lost, and asked for again.
        kept = {**_read_answers(self._path), question: given}
        recent = {question: one for question, one in kept.items() if one[0] > given[0] - UNUSED_AFTER}
        with suppress(OSError):
            new = self._path.with_suffix(f".{os.getpid()}.new")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(recent, file)
            new.replace(self._path)


def _read_answers(path: Path) -> dict[str, tuple[float, str]]:
    """Return what a file has kept; nothing of a damaged one."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {str(question): (float(given_at), str(answer)) for question, (given_at, answer) in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
