# SPDX-License-Identifier: Apache-2.0
"""Launches with large files go out a few at a time, and none is forgotten."""

from __future__ import annotations

from koala_adapter.model import BatchKey, JobId, PlaceholderId
from koala_adapter.runners.runner import IN_FLIGHT, AddressedLaunch, Sending
from koala_adapter.vjm.channel import Launch, LaunchFile

QUARTER = LaunchFile(target="data", mode=0o600, content=bytes(IN_FLIGHT // 4))


def placeholder(number: int) -> PlaceholderId:
    """Return a placeholder."""
    return PlaceholderId(batch=BatchKey("koala-k-1"), index=number)


def launch(number: int, *files: LaunchFile, job: str = "1") -> AddressedLaunch:
    """Return a launch into the placeholder of its number."""
    return AddressedLaunch(
        placeholder=placeholder(number), launch=Launch(task=f"{job}:{number}", argv=("true",), files=files)
    )


class Sent:
    """What was sent, by task; agents that are not connected get nothing."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.away: set[PlaceholderId] = set()
        self.sending = Sending(self._order)

    def _order(self, one: AddressedLaunch) -> bool:
        if one.placeholder in self.away:
            return False
        self.tasks.append(one.launch.task)
        return True


def test_small_launches_go_at_once() -> None:
    sent = Sent()
    sent.sending.add(launch(number) for number in range(1000))
    assert len(sent.tasks) == 1000


def test_large_launches_wait_for_room() -> None:
    """One more goes when one has arrived; an arrival that is told twice makes room once."""
    sent = Sent()
    sent.sending.add(launch(number, QUARTER) for number in range(8))
    assert sent.tasks == ["1:0", "1:1", "1:2", "1:3"]
    sent.sending.arrived("1:2")
    sent.sending.arrived("1:2")
    assert sent.tasks[4:] == ["1:4"]
    for task in ("1:0", "1:1", "1:3", "1:4"):
        sent.sending.arrived(task)
    assert sent.tasks[5:] == ["1:5", "1:6", "1:7"]


def test_what_alone_is_too_large_goes_alone() -> None:
    sent = Sent()
    sent.sending.add([launch(1, *[QUARTER] * 5), launch(2)])
    assert sent.tasks == ["1:1"]
    sent.sending.arrived("1:1")
    assert sent.tasks == ["1:1", "1:2"]


def test_an_agent_that_went_away_makes_room() -> None:
    """What was on its way is gone; it is sent again when the agent registers, by whoever hears of that."""
    sent = Sent()
    sent.sending.add(launch(number, QUARTER) for number in range(5))
    sent.sending.lost(placeholder(0))
    assert sent.tasks[4:] == ["1:4"]
    sent.sending.add([launch(0, QUARTER)])
    sent.sending.arrived("1:1")
    assert sent.tasks[5:] == ["1:0"]


def test_agents_that_are_away_take_no_room() -> None:
    sent = Sent()
    sent.away = {placeholder(number) for number in range(4)}
    sent.sending.add(launch(number, QUARTER) for number in range(6))
    assert sent.tasks == ["1:4", "1:5"]


def test_a_launch_sent_again_counts_once() -> None:
    """An agent that lost and found the center gets it twice at most, and frees its room all the same."""
    sent = Sent()
    sent.sending.add([launch(0, QUARTER), launch(0, QUARTER)])
    sent.sending.arrived("1:0")
    sent.sending.add(launch(number, QUARTER) for number in range(1, 5))
    assert sent.tasks == ["1:0", "1:0", "1:1", "1:2", "1:3", "1:4"]


def test_nothing_is_sent_for_a_job_that_is_over() -> None:
    sent = Sent()
    sent.sending.add(launch(number, QUARTER) for number in range(8))
    sent.sending.add([launch(1, QUARTER, job="12")])
    sent.sending.forget(JobId("1"))
    assert sent.tasks[4:] == ["12:1"]
