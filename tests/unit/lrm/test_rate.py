# SPDX-License-Identifier: Apache-2.0
"""The bound on requests of one process and of all together, and answers that are kept."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koala_adapter.lrm.rate import (
    LARGEST_ANSWER,
    LOCKED_AT_MOST,
    LOCKED_PAUSE,
    SHORTEST_PAUSE,
    SUFFIX,
    UNUSED_AFTER,
    URGENT_SHARE,
    WINDOW,
    CircuitBreaker,
    KeptAnswers,
    PollPace,
    Priority,
    RequestWindow,
    SharedWindow,
    prepare_directory,
    window_path,
)

# The safety rails: the stated bound of requests holds in every window, and a failing LRM is left alone.

bounds = st.integers(min_value=2, max_value=40)
wishes = st.lists(
    st.tuples(st.floats(min_value=0, max_value=90, allow_nan=False), st.booleans()), min_size=1, max_size=150
)
"""Requests that somebody wants to make: seconds after the one before was sent, and whether it is urgent."""


def send_all(window: RequestWindow, wanted: list[tuple[float, bool]]) -> list[tuple[float, bool]]:
    """Send requests as CommandRunner does, waiting as the window says; return the times at which they went."""
    now, sent = 1000.0, []
    for pause, urgent in wanted:
        now += pause
        while (wait := window.wait(now, Priority.URGENT if urgent else Priority.ORDINARY)) > 0:
            now += wait
        window.record(now)
        sent.append((now, urgent))
    return sent


def largest_in_any_window(times: list[float]) -> int:
    """Return the largest number of times within any WINDOW seconds."""
    return max(sum(begin <= time < begin + WINDOW for time in times) for begin in times)


@given(bound=bounds, wanted=wishes)
def test_bound_holds_in_every_window(bound: int, wanted: list[tuple[float, bool]]) -> None:
    """However requests arrive, no 60 seconds see more than the bound, and ``largest`` tells the truth."""
    window = RequestWindow(bound)
    times = [time for time, _ in send_all(window, wanted)]
    assert largest_in_any_window(times) <= bound
    assert window.largest == largest_in_any_window(times)
    assert window.total == len(wanted)


@given(bound=bounds, wanted=wishes)
def test_ordinary_requests_leave_the_urgent_share(bound: int, wanted: list[tuple[float, bool]]) -> None:
    window = RequestWindow(bound)
    times = [time for time, _ in send_all(window, [(pause, False) for pause, _ in wanted])]
    ordinary = max(1, int(bound * (1 - URGENT_SHARE)))
    assert largest_in_any_window(times) <= ordinary
    assert window.wait(times[-1], Priority.URGENT) == 0.0


@given(bound=bounds, wanted=wishes, urgent=st.booleans())
@example(bound=2, wanted=[(1.2870188873075028, False)], urgent=False)
def test_waiting_as_told_is_enough(bound: int, wanted: list[tuple[float, bool]], urgent: bool) -> None:  # noqa: FBT001
    window = RequestWindow(bound)
    now = send_all(window, wanted)[-1][0]
    wait = window.wait(now, Priority.URGENT if urgent else Priority.ORDINARY)
    assert 0.0 <= wait <= WINDOW
    assert window.wait(now + wait + 0.01, Priority.URGENT if urgent else Priority.ORDINARY) == 0.0


def test_no_wait_without_need() -> None:
    """The first requests of a window go at once; the one over the part of ordinary ones waits for the oldest."""
    window = RequestWindow(10)
    for _ in range(8):
        assert window.wait(100.0) == 0.0
        window.record(100.0)
    assert window.wait(130.0) == 30.0
    assert window.wait(130.0, Priority.URGENT) == 0.0
    assert window.wait(160.0) == 0.0
    assert RequestWindow(0).per_minute == 2, "of less, cancels would have none"


@given(failures=st.integers(1, 10), more=st.integers(0, 40))
def test_breaker_opens_and_pauses_grow(failures: int, more: int) -> None:
    breaker = CircuitBreaker(failures=failures, pause=5, longest_pause=120)
    now, pauses = 0.0, []
    for number in range(failures + more):
        assert breaker.may_ask(now)
        assert breaker.open == (number >= failures)
        breaker.failed(now)
        if breaker.open:
            pause = next(second for second in range(1, 200) if breaker.may_ask(now + second))
            pauses.append(pause)
            assert not breaker.may_ask(now + pause - 1)
            now += pause
    assert pauses == sorted(pauses)
    assert pauses[0] == 5
    assert max(pauses) <= 120


def test_breaker_closes_on_success() -> None:
    """One success and the LRM is asked as before; failures count anew."""
    breaker = CircuitBreaker(failures=2)
    breaker.failed(0)
    breaker.failed(0)
    assert not breaker.may_ask(1)
    breaker.succeeded()
    assert breaker.may_ask(1)
    breaker.failed(1)
    assert not breaker.open


@given(bound=bounds, wanted=wishes)
def test_submissions_go_where_polls_have_used_their_share(bound: int, wanted: list[tuple[float, bool]]) -> None:
    """Polls leave a tenth of the bound to submissions, and these leave a tenth to cancels."""
    window = RequestWindow(10 * bound)
    now = 1000.0
    for priority, most in (
        (Priority.ORDINARY, 8 * bound),
        (Priority.SUBMISSION, 9 * bound),
        (Priority.URGENT, 10 * bound),
    ):
        while window.wait(now, priority) == 0.0:
            window.record(now)
        assert len(window.times) == most


@given(bound=st.integers(2, 600), cost=st.integers(1, 9))
def test_the_pace_of_polls(bound: int, cost: int) -> None:
    """Polls of any cost use half of the ordinary requests in the long run, and three quarters in any minute."""
    pace, now = PollPace(bound), 1000.0
    times: list[float] = []
    while now < 1000.0 + 10 * WINDOW and len(times) < 2000:
        times.append(now)
        pace.polled(now, cost)
        now += pace.pause(now)
    ordinary = bound * (1 - URGENT_SHARE)
    windows = [sum(begin <= one < begin + WINDOW for one in times) for begin in times[::7]]
    assert cost * max(windows) <= 0.75 * ordinary + cost
    assert cost * len(times) <= (now - 1000.0) / WINDOW * ordinary * 0.53 + 2 * cost


def test_a_poll_of_few_requests_is_soon_followed_by_another() -> None:
    """What polls cost at the most does not matter, only what they did cost."""
    cheap, dear = PollPace(60), PollPace(60)
    cheap.polled(1000.0, 1)
    dear.polled(1000.0, 7)
    assert cheap.pause(1000.0) == SHORTEST_PAUSE
    assert dear.pause(1000.0) > 5.0 * 0.9
    assert PollPace(60).pause(1000.0) == SHORTEST_PAUSE


# The window that processes share: the bound holds for all of them together, and a bad file stops nobody.

ASKER = """
import json, sys, time
from pathlib import Path
from koala_adapter.lrm.rate import SharedWindow

window = SharedWindow(int(sys.argv[2]), Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
while window.total < 1000:
    wait = window.take()
    if 0 < wait < 1:
        time.sleep(wait)
    elif wait:
        break
print(json.dumps([window.total, window.largest]), flush=True)
"""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        """Some time after the boot."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the present time."""
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of a batch system in a private directory."""
    prepare_directory(tmp_path / "requests", now=0.0)
    return window_path(tmp_path / "requests", "slurm", "{}")


@pytest.fixture
def locked(path: Path) -> Iterator[None]:
    """Keep the file locked, as a process that was stopped would."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def test_processes_together_keep_within_the_bound(path: Path) -> None:
    """Three processes that ask as fast as they may send as many requests as one would, and all know of it."""
    command = [sys.executable, "-c", ASKER, str(path), "100"]
    pipe = subprocess.PIPE
    askers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for asker in askers:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "ready\n"
    told = [json.loads(asker.communicate("go\n")[0]) for asker in askers]
    assert sum(total for total, _ in told) == 80
    assert max(largest for _, largest in told) == 80


def test_another_process_leaves_the_urgent_share(path: Path) -> None:
    clock = Clock()
    one, other = SharedWindow(10, path, clock=clock), SharedWindow(10, path, clock=clock)
    assert [one.take() for _ in range(8)] == [0.0] * 8
    clock.now += 20
    assert other.take() == 40.0
    assert other.take(Priority.URGENT) == 0.0
    clock.now += 40
    assert other.take() == 0.0
    assert (one.total, other.total) == (8, 2)
    assert (one.largest, other.largest) == (8, 9)


def test_each_keeps_its_own_bound(path: Path) -> None:
    clock = Clock()
    modest, generous = SharedWindow(5, path, clock=clock), SharedWindow(100, path, clock=clock)
    assert [generous.take() for _ in range(10)] == [0.0] * 10
    assert modest.take() == 60.0
    assert generous.take() == 0.0


@pytest.mark.parametrize("content", [b"", b"odd", b"\xff" * 64, b"\0" * 8000])
def test_a_damaged_file_is_mended(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    clock = Clock()
    assert SharedWindow(2, path, clock=clock).take() == 0.0
    assert path.stat().st_size == 8
    assert SharedWindow(2, path, clock=clock).take() == 60.0


def test_a_file_that_cannot_be_used_leaves_the_bound_of_the_process(tmp_path: Path) -> None:
    window = SharedWindow(5, tmp_path / "missing" / "file", clock=Clock())
    assert [window.take() for _ in range(4)] == [0.0] * 4
    assert window.take() == 60.0


@pytest.mark.usefixtures("locked")
def test_a_stopped_process_does_not_stop_the_others(path: Path) -> None:
    """Who does not get the lock tries again, and after some seconds goes on by itself."""
    clock = Clock()
    window = SharedWindow(5, path, clock=clock)
    assert window.take() == LOCKED_PAUSE
    clock.now += LOCKED_AT_MOST
    assert [window.take() for _ in range(4)] == [0.0] * 4
    assert window.take() == 60.0


def test_files_out_of_use_are_removed(path: Path) -> None:
    SharedWindow(5, path).take()
    old = path.with_name(f"old{SUFFIX}")
    SharedWindow(5, old).take()
    now = path.stat().st_mtime
    os.utime(old, (now - UNUSED_AFTER, now - UNUSED_AFTER))
    prepare_directory(path.parent, now=now + 1)
    assert list(path.parent.iterdir()) == [path]


def test_a_file_removed_meanwhile_is_made_anew(path: Path) -> None:
    window = SharedWindow(5, path)
    window.take()
    path.unlink()
    assert window.take() == 0.0
    assert path.stat().st_mode & 0o777 == 0o600


def test_each_batch_system_has_a_file_of_its_own(tmp_path: Path) -> None:
    paths = {window_path(tmp_path, *words) for words in (("a", "b"), ("ab",), ("a", "c"), ("a", "b"))}
    assert len(paths) == 3


# -- Answers that are kept.


def test_an_answer_serves_for_a_while(path: Path) -> None:
    """It serves its own process for as long as each question allows, another one for as long as that trusts it."""
    clock = Clock()
    own = KeptAnswers(path, clock=clock)
    own.keep("settings", "a = 1")
    clock.now += 20
    assert own.get("settings", within=30) == "a = 1"
    assert own.get("settings", within=10) is None
    assert own.get("another", within=30) is None
    assert KeptAnswers(path, trusted=30, clock=clock).get("settings", within=30) == "a = 1"
    assert KeptAnswers(path, trusted=10, clock=clock).get("settings", within=30) is None
    assert KeptAnswers(path, clock=clock).get("settings", within=30) is None
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"settings": 3}', '{"settings": ["x", "y"]}', "\x00"])
def test_a_damaged_file_of_answers_has_none(path: Path, content: str) -> None:
    path.write_text(content)
    clock = Clock()
    answers = KeptAnswers(path, trusted=30, clock=clock)
    assert answers.get("settings", within=30) is None
    answers.keep("settings", "a = 1")
    assert KeptAnswers(path, trusted=30, clock=clock).get("settings", within=30) == "a = 1"


def test_answers_of_several_questions_are_kept_together(path: Path) -> None:
    """Old ones, and very large ones, are not."""
    clock = Clock()
    one, other = KeptAnswers(path, clock=clock), KeptAnswers(path, clock=clock)
    one.keep("old", "0")
    clock.now += UNUSED_AFTER
    one.keep("large", "x" * (LARGEST_ANSWER + 1))
    one.keep("one", "1")
    other.keep("other", "2")
    kept = KeptAnswers(path, trusted=2 * UNUSED_AFTER, clock=clock)
    found = {name: kept.get(name, within=2 * UNUSED_AFTER) for name in ("old", "large", "one", "other")}
    assert found == {"old": None, "large": None, "one": "1", "other": "2"}
    assert one.get("large", within=1) == "x" * (LARGEST_ANSWER + 1)


def test_answers_that_cannot_be_written_serve_their_process(tmp_path: Path) -> None:
    answers = KeptAnswers(tmp_path / "missing" / "file", clock=Clock())
    answers.keep("settings", "a = 1")
    assert answers.get("settings", within=1) == "a = 1"
